// Random: the one source of chance of a simulation. Small and the same on every machine, so that a seed replays anywhere.
#pragma once

#include <cstdint>

namespace ccks::gpu::sim {

/// xorshift64*, seeded through splitmix64 so that neighbouring seeds have nothing in common.
class Random {
 public:
  explicit Random(std::uint64_t seed) {
    std::uint64_t z = seed + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    state_ = (z ^ z >> 31) | 1;
  }
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1dull;
  }
  /// 0 to `end` - 1; 0 for end 0.
  std::uint64_t below(std::uint64_t end) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * end) >> 64);
  }
  /// True once in `one_in` times; never for 0.
  bool chance(std::uint64_t one_in) { return one_in != 0 && below(one_in) == 0; }
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + below(high - low + 1); }

 private:
  std::uint64_t state_;
};

}  // namespace ccks::gpu::sim

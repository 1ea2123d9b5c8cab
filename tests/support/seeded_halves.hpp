// bf16 values that a test makes up.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace ccks::test {

/// `count` of -scale / 2 to scale / 2, the same for the same seed.
inline std::vector<std::uint16_t> seeded_halves(std::size_t count, std::uint32_t seed, float scale = 1) {
  std::vector<std::uint16_t> out(count);
  for (std::uint16_t& v : out) {
    seed = seed * 1664525u + 1013904223u;
    const float value = (static_cast<float>(seed >> 8) / 16777216.0f - 0.5f) * scale;
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    v = static_cast<std::uint16_t>(bits >> 16);
  }
  return out;
}

}  // namespace ccks::test

// SHA-256 (FIPS 180-4): names and checks the entries of the cache, where a collision would run the wrong code.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ccks::gpu {

using Digest = std::array<std::uint8_t, 32>;

/// Sha256 takes bytes piece by piece. Fields are told apart with `field`, so that "ab","c" is not "a","bc".
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  /// The length of `text`, then `text`.
  void field(std::string_view text);
  /// Ends the message; the object is of no further use.
  Digest finish();

 private:
  void block(const std::uint8_t* bytes);

  std::array<std::uint32_t, 8> state_;
  std::array<std::uint8_t, 64> pending_{};
  std::uint64_t length_ = 0;
};

Digest sha256(std::span<const std::byte> bytes);
/// The first `bytes` bytes in lower-case hex.
std::string hex(const Digest& digest, std::size_t bytes = 32);

}  // namespace ccks::gpu

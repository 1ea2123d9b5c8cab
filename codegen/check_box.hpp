// Box: the bytes an operand window touches, as nested strides; and whether two of them share a byte.
#pragma once

#include <array>
#include <cstdint>

#include "ccks/wire/frame.hpp"

namespace ccks::codegen::check {

/// Half-open ranges of indices, one per dim of an operand.
struct Window {
  std::array<std::int64_t, 4> lo{}, hi{};
  bool empty() const { return lo[0] >= hi[0] || lo[1] >= hi[1] || lo[2] >= hi[2] || lo[3] >= hi[3]; }
};

/// An operand with numbers in it.
struct Operand {
  wire::Space space = wire::Space::arena;
  wire::Dtype dtype = wire::Dtype::f32;
  std::uint8_t rank = 0, flags = 0;
  std::uint32_t tensor = 0;
  std::int64_t offset = 0;                      // bytes
  std::array<std::int64_t, 4> dim{}, stride{};  // strides in elements
  std::int64_t element_bytes() const { return wire::dtype_bytes(dtype); }
};

/// Box is base + sum of stride[i] * x[i] with 0 <= x[i] < extent[i], strides falling, the last one 1 (a run of bytes).
class Box {
 public:
  Box() = default;
  /// The bytes of `window` of `operand`; the window must not be empty.
  Box(const Operand& operand, const Window& window);
  /// A run of bytes.
  Box(wire::Space space, std::int64_t base, std::int64_t bytes);

  wire::Space space() const { return space_; }
  std::int64_t first() const { return base_; }
  std::int64_t end() const { return base_ + span(0); }  // one past the last byte

  /// Whether a and b share a byte. Never misses a shared byte; may see one too many where strides are not multiples of
  /// each other, or where a box crosses itself.
  friend bool overlap(const Box& a, const Box& b);

 private:
  static constexpr int kMaxDims = 9;  // four of an operand, each split once, and the run
  struct Dim {
    std::int64_t stride, extent;
  };

  void push(std::int64_t stride, std::int64_t extent);
  void tidy();
  /// Bytes from the first to one past the last of dims [from, count).
  std::int64_t span(int from) const;
  bool nested() const;
  Box tail(std::int64_t base) const;  // without the first dim
  Box piece(std::int64_t base, std::int64_t outer_stride, std::int64_t outer, std::int64_t inner) const;
  static bool overlap_same_period(const Box& a, const Box& b);
  static bool overlap_split(const Box& a, const Box& b);

  wire::Space space_ = wire::Space::arena;
  std::int64_t base_ = 0;
  int count_ = 0;
  std::array<Dim, kMaxDims> dims_{};
};

bool overlap(const Box& a, const Box& b);

}  // namespace ccks::codegen::check

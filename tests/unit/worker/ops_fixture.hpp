// A bench for tile ops: tensors with any strides in a poisoned arena, a frame of one op, and three ways to run it.
// Values are read and written here by plain scalar code that shares nothing with the ops.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ccks/wire/op_shape.hpp"
#include "ccks/wire/frame.hpp"
#include "ccks/wire/op_layout.hpp"
#include "ccks/wire/task.hpp"

namespace ccks::worker::test {

using wire::Dtype;
using wire::ExprOp;
using wire::FaultCode;
using wire::OpCode;
using Index = std::array<int, 4>;

enum class Machine { host, host_small_scratch, emulated, emulated_warps };

/// Runs all tiles of the op on one machine; the first fault, or none. Defined in generic_ops_test.cpp.
FaultCode run_tiles(Machine machine, const wire::RunFrame& frame, const wire::OpParams& op);

struct Tensor {
  Dtype dtype = Dtype::f32;
  Index dim{1, 1, 1, 1};
  std::array<std::int64_t, 4> stride{};
  std::uint64_t offset = 0;
  std::uint8_t flags = 0;
  std::uint8_t space = 0;  // wire::Space: arena or weights, which begin at the same place here

  std::int64_t at(const Index& c) const {
    std::int64_t o = 0;
    for (int i = 0; i < 4; ++i) o += c[i] * stride[i];
    return o;
  }
};

inline double half_value(std::uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  if (exponent == 31) v = mantissa != 0 ? std::nan("") : INFINITY;
  return h & 0x8000 ? -v : v;
}
inline std::uint16_t half_near(double v) {  // truncates: inputs need not be rounded well
  std::uint16_t best = 0;
  for (int bit = 14; bit >= 0; --bit)
    if (half_value(static_cast<std::uint16_t>(best | 1 << bit)) <= std::abs(v))
      best |= static_cast<std::uint16_t>(1 << bit);
  return static_cast<std::uint16_t>(best | (v < 0 ? 0x8000 : 0));
}

class Bench {
 public:
  explicit Bench(std::uint32_t seed) : rng(seed), arena(kArenaBytes / 8, 0xa5a5a5a5a5a5a5a5ull) {}

  std::mt19937 rng;
  wire::OpParams op{};
  std::vector<wire::ExprInstr> code;
  std::vector<wire::GuardParams> guards;
  std::vector<Tensor> operands;  // inputs, then outputs

  int pick(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); }
  double uniform(double lo, double hi) { return std::uniform_real_distribution<double>(lo, hi)(rng); }
  bool coin() { return pick(0, 1) == 1; }

  /// Layout is drawn: order of dims in memory, gaps between rows.
  Tensor tensor(Dtype dtype, Index dim, bool contiguous = false) {
    Tensor t{dtype, dim, {}, 0, contiguous ? std::uint8_t{wire::kOperandContiguous} : std::uint8_t{0}};
    std::array<int, 4> order{3, 2, 1, 0};
    if (!contiguous && pick(0, 2) == 0) std::swap(order[0], order[1]);
    std::int64_t stride = !contiguous && pick(0, 5) == 0 ? 2 : 1;
    for (const int axis : order) {
      t.stride[axis] = stride;
      stride = stride * dim[axis] + (contiguous || pick(0, 3) != 0 ? 0 : pick(1, 5));
    }
    t.offset = used;
    used += (static_cast<std::uint64_t>(stride) * wire::dtype_bytes(dtype) + 255) / 64 * 64;
    EXPECT_LE(used, kArenaBytes);
    return t;
  }
  /// An operand that fits `dim` by broadcasting some of its dims.
  Tensor broadcast(Dtype dtype, Index dim) {
    Index own = dim;
    for (int& d : own)
      if (pick(0, 3) == 0) d = 1;
    Tensor t = tensor(dtype, own);
    fill(t, -2, 2);
    for (int i = 0; i < 4; ++i)
      if (own[i] == 1) t.stride[i] = 0;
    t.dim = dim;
    return t;
  }

  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(arena.data()); }
  std::uint8_t* address(const Tensor& t, const Index& c) {
    return bytes() + t.offset + t.at(c) * wire::dtype_bytes(t.dtype);
  }

  double get(const Tensor& t, const Index& c) {
    const std::uint8_t* p = address(t, c);
    switch (t.dtype) {
      case Dtype::f32:
        return value<float>(p);
      case Dtype::f16:
        return half_value(value<std::uint16_t>(p));
      case Dtype::bf16: {
        const std::uint32_t bits = static_cast<std::uint32_t>(value<std::uint16_t>(p)) << 16;
        return value<float>(reinterpret_cast<const std::uint8_t*>(&bits));
      }
      case Dtype::i32:
        return value<std::int32_t>(p);
      case Dtype::i64:
        return static_cast<double>(value<std::int64_t>(p));
      default:
        return *p;
    }
  }
  void set(const Tensor& t, const Index& c, double v) {
    std::uint8_t* p = address(t, c);
    switch (t.dtype) {
      case Dtype::f32:
        return put(p, static_cast<float>(v));
      case Dtype::f16:
        return put(p, half_near(v));
      case Dtype::bf16: {
        const float f = static_cast<float>(v);
        return put(p, value<std::uint16_t>(reinterpret_cast<const std::uint8_t*>(&f) + 2));
      }
      case Dtype::i32:
        return put(p, static_cast<std::int32_t>(v));
      case Dtype::i64:
        return put(p, static_cast<std::int64_t>(v));
      default:
        return put(p, static_cast<std::uint8_t>(v != 0));
    }
  }
  /// Cuts `space` into tiles.
  void tiles(Index space, Index tile) {
    op.tile_count = 1;
    for (int i = 0; i < 4; ++i) {
      op.tile[i] = tile[i];
      op.grid[i] = (space[i] + tile[i] - 1) / tile[i];
      op.tile_count *= static_cast<std::uint32_t>(op.grid[i]);
    }
  }
  void fill(const Tensor& t, double lo, double hi) {
    each(t.dim, [&](const Index& c) {
      set(t, c, wire::dtype_is_float(t.dtype) ? uniform(lo, hi) : std::floor(uniform(lo, hi + 1)));
    });
  }
  static void each(const Index& dim, const std::function<void(const Index&)>& f) {
    Index c{};
    for (c[0] = 0; c[0] < dim[0]; ++c[0])
      for (c[1] = 0; c[1] < dim[1]; ++c[1])
        for (c[2] = 0; c[2] < dim[2]; ++c[2])
          for (c[3] = 0; c[3] < dim[3]; ++c[3]) f(c);
  }

  /// Draws tile sizes for a tile space; `whole` dims stay in one tile, tile[3] is a multiple of `granule`.
  void grid(const Index& space, bool whole_last = false, int granule = 1) {
    for (int i = 0; i < 4; ++i) {
      op.tile[i] = coin() ? space[i] : pick(1, space[i]);
      if (i == 3 && whole_last) op.tile[3] = space[3];
      if (i == 3 && !whole_last) op.tile[3] = std::min(space[3], (op.tile[3] + granule - 1) / granule * granule);
      op.grid[i] = (space[i] + op.tile[i] - 1) / op.tile[i];
    }
    op.tile_count = static_cast<std::uint32_t>(op.grid[0] * op.grid[1] * op.grid[2] * op.grid[3]);
  }

  /// Runs the op by `runner(frame, op)`.
  template <class Runner>
  FaultCode run_by(OpCode kind, std::size_t inputs, Runner&& runner) {
    op.kind = static_cast<std::uint8_t>(kind);
    op.input_count = static_cast<std::uint16_t>(inputs);
    op.output_count = static_cast<std::uint16_t>(operands.size() - inputs);
    op.code_count = static_cast<std::uint16_t>(code.size());
    const std::vector<std::uint64_t> image = frame_image();
    const auto& frame = *reinterpret_cast<const wire::RunFrame*>(image.data());
    const auto* base = reinterpret_cast<const std::uint8_t*>(image.data());
    return runner(frame, *reinterpret_cast<const wire::OpParams*>(base + frame.ops));
  }
  FaultCode run(Machine machine, OpCode kind, std::size_t inputs) {
    return run_by(kind, inputs, [&](const auto& frame, const auto& o) { return run_tiles(machine, frame, o); });
  }

  /// Runs on every machine and compares every output with `want(output, c)`; nothing outside the outputs may change.
  using Want = std::function<double(std::size_t, const Index&)>;
  void check(OpCode kind, std::size_t inputs, const Want& want, double tolerance = 2e-5) {
    const std::vector<std::uint64_t> before = arena;
    std::vector<std::vector<double>> wanted;
    for (std::size_t o = inputs; o < operands.size(); ++o) wanted.push_back(values_of(operands[o], [&](const Index& c) { return want(o - inputs, c); }));
    for (const Machine machine : {Machine::host, Machine::host_small_scratch, Machine::emulated, Machine::emulated_warps}) {
      SCOPED_TRACE("machine " + std::to_string(static_cast<int>(machine)) + describe());
      arena = before;
      ASSERT_EQ(run(machine, kind, inputs), FaultCode::none);
      for (std::size_t o = inputs; o < operands.size(); ++o) compare(operands[o], wanted[o - inputs], tolerance);
      for (std::size_t o = inputs; o < operands.size(); ++o) restore(operands[o], before);
      ASSERT_EQ(arena == before, true) << "bytes outside of the outputs changed";
      if (testing::Test::HasFailure()) return;
    }
    arena = before;
  }

  /// Each value of `out` is within `tolerance` of `want(c)`, times the largest that is wanted.
  void expect_near(const Tensor& out, const std::function<double(const Index&)>& want, double tolerance) {
    const std::vector<double> wanted = values_of(out, want);
    double largest = 0;
    for (const double w : wanted) largest = std::max(largest, std::abs(w));
    const double* next = wanted.data();
    each(out.dim, [&](const Index& c) {
      const double w = *next++;
      if (testing::Test::HasFailure()) return;
      EXPECT_NEAR(get(out, c), w, tolerance * largest) << c[0] << " " << c[1] << " " << c[2] << " " << c[3] << describe();
    });
  }

  std::string describe() const {
    std::string s = "; tile";
    for (const int t : op.tile) s += " " + std::to_string(t);
    for (const Tensor& t : operands) {
      s += "; " + std::string(wire::dtype_name(t.dtype));
      for (int i = 0; i < 4; ++i) s += " " + std::to_string(t.dim[i]) + "/" + std::to_string(t.stride[i]);
    }
    return s;
  }

  std::vector<std::uint64_t> memory() const { return arena; }
  /// Makes what is in `t` what it was in `before`, a memory().
  void restore(const Tensor& t, const std::vector<std::uint64_t>& before) {
    const auto* old = reinterpret_cast<const std::uint8_t*>(before.data());
    each(t.dim, [&](const Index& c) {
      std::uint8_t* p = address(t, c);
      std::memcpy(p, old + (p - bytes()), wire::dtype_bytes(t.dtype));
    });
  }

 private:
  static constexpr std::uint64_t kArenaBytes = 8 << 20;
  std::vector<std::uint64_t> arena;
  std::uint64_t used = 0;

  template <class T>
  static T value(const std::uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  static void put(std::uint8_t* p, T v) {
    std::memcpy(p, &v, sizeof v);
  }

  static double resolution(Dtype d) { return d == Dtype::bf16 ? 0x1.01p-8 : d == Dtype::f16 ? 0x1.01p-11 : 0; }
  static std::vector<double> values_of(const Tensor& t, const std::function<double(const Index&)>& value) {
    std::vector<double> values;
    each(t.dim, [&](const Index& c) { values.push_back(value(c)); });
    return values;
  }
  void compare(const Tensor& t, const std::vector<double>& wanted, double tolerance) {
    double squares = 0, n = 0;
    for (const double w : wanted)
      if (std::isfinite(w)) squares += w * w, n += 1;
    const double scale = n > 0 ? std::sqrt(squares / n) : 0;
    const double* next = wanted.data();
    each(t.dim, [&](const Index& c) {
      const double w = *next++, g = get(t, c);
      if (w == g || (std::isnan(w) && std::isnan(g)) || testing::Test::HasFailure()) return;
      const double allowed = !wire::dtype_is_float(t.dtype) ? 0
                                                            : tolerance * std::max(std::abs(w), scale) + resolution(t.dtype) * std::abs(w) +
                                                                  (t.dtype == Dtype::f16 ? 0x1p-24 : 0);
      EXPECT_LE(std::abs(w - g), allowed) << "at " << c[0] << " " << c[1] << " " << c[2] << " " << c[3] << ": got " << g << " want " << w;
    });
  }

  template <class T>
  static std::uint32_t append(std::vector<std::uint64_t>& image, const T* data, std::size_t count) {
    const std::size_t at = (image.size() + 1) / 2 * 2;
    image.resize(at + (count * sizeof(T) + 7) / 8);
    if (count != 0) std::memcpy(image.data() + at, data, count * sizeof(T));
    return static_cast<std::uint32_t>(at * 8);
  }
  std::vector<std::uint64_t> frame_image() {
    std::vector<std::uint64_t> image(sizeof(wire::RunFrame) / 8);
    std::vector<wire::OperandParams> params;
    for (const Tensor& t : operands) {
      wire::OperandParams p{};
      p.offset = t.offset;
      for (int i = 0; i < 4; ++i) p.stride[i] = t.stride[i], p.dim[i] = t.dim[i];
      p.dtype = static_cast<std::uint8_t>(t.dtype);
      p.rank = 4;
      p.flags = t.flags;
      p.space = t.space;
      params.push_back(p);
    }
    op.flags &= static_cast<std::uint8_t>(~(wire::kOpFlat | wire::kOpVectors | wire::kOpStreams | wire::kOpGroups));
    if (!operands.empty() && (op.output_count == 1 || op.output_count == 3)) wire::mark_shape(op, params.data());
    wire::RunFrame frame{};
    frame.arena = frame.weights = reinterpret_cast<std::uint64_t>(bytes());
    frame.op_count = 1;
    frame.ops = append(image, &op, 1);
    frame.operands = append(image, params.data(), params.size());
    frame.code = append(image, code.data(), code.size());
    frame.guards = append(image, guards.data(), guards.size());
    frame.frame_bytes = static_cast<std::uint32_t>(image.size() * 8);
    std::memcpy(image.data(), &frame, sizeof frame);
    return image;
  }
};

inline wire::ExprInstr ins(ExprOp op, int dst, int a = 0, int b = 0, std::uint32_t c = 0) {
  return {static_cast<std::uint8_t>(op), static_cast<std::uint8_t>(dst), static_cast<std::uint8_t>(a),
          static_cast<std::uint8_t>(b), c};
}
inline std::uint32_t float_bits(float v) {
  std::uint32_t u;
  std::memcpy(&u, &v, sizeof u);
  return u;
}

}  // namespace ccks::worker::test

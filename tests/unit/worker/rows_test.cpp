// reduce, softmax, norms, rope, gather, scatter, argmax, topk.
#include <algorithm>
#include <numeric>

#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

constexpr Dtype kFloats[] = {Dtype::f32, Dtype::f16, Dtype::bf16};
Dtype any_float(Bench& b) { return kFloats[b.pick(0, 2)]; }
Index any_shape(Bench& b) { return {b.pick(1, 2), b.pick(1, 3), b.pick(1, 5), b.pick(1, b.coin() ? 7 : 400)}; }

double reduced(Bench& b, const Tensor& x, int fn, int mask, Index c) {
  double acc = fn == 4 ? 1 : fn == 2 ? -INFINITY : fn == 3 ? INFINITY : 0, count = 0;
  Index extent{1, 1, 1, 1};
  for (int i = 0; i < 4; ++i)
    if (mask >> i & 1) extent[i] = x.dim[i];
  Bench::each(extent, [&](const Index& r) {
    Index at = c;
    for (int i = 0; i < 4; ++i)
      if (mask >> i & 1) at[i] = r[i];
    const double v = b.get(x, at);
    acc = fn == 4 ? acc * v : fn == 2 ? std::max(acc, v) : fn == 3 ? std::min(acc, v) : acc + v;
    count += 1;
  });
  return fn == 1 ? acc / count : acc;
}

TEST(Reduce, AnyAxesAnyFunction) {
  for (std::uint32_t seed = 0; seed < 160; ++seed) {
    Bench b(seed);
    Index shape = any_shape(b);
    const int mask = b.pick(1, 15), fn = static_cast<int>(seed % 5);
    if (fn == 4) shape[3] = std::min(shape[3], 9);
    const bool ints = b.pick(0, 3) == 0 && fn != 1;
    const Tensor x = b.tensor(ints ? Dtype::i32 : any_float(b), shape);
    b.fill(x, fn == 4 ? 0.7 : -3, fn == 4 ? 1.4 : 3);
    Index out = shape;
    for (int i = 0; i < 4; ++i)
      if (mask >> i & 1) out[i] = 1;
    b.operands = {x, b.tensor(ints ? (b.coin() ? Dtype::i64 : Dtype::i32) : Dtype::f32, out)};
    b.op.dims[0] = fn;
    b.op.dims[1] = mask;
    b.grid(out);
    SCOPED_TRACE("fn " + std::to_string(fn) + " mask " + std::to_string(mask));
    b.check(
        OpCode::reduce, 1, [&](std::size_t, const Index& c) { return reduced(b, x, fn, mask, c); }, 1e-5);
    if (HasFailure()) return;
  }
}

TEST(Reduce, NanWins) {
  for (const int fn : {0, 2, 3}) {
    Bench b(3);
    const Tensor x = b.tensor(Dtype::f32, {1, 1, 2, 300});
    b.fill(x, -1, 1);
    b.set(x, {0, 0, 1, 217}, NAN);
    b.operands = {x, b.tensor(Dtype::f32, {1, 1, 2, 1})};
    b.op.dims[0] = fn;
    b.op.dims[1] = 8;
    b.grid({1, 1, 2, 1});
    b.check(OpCode::reduce, 1, [&](std::size_t, const Index& c) { return c[2] == 1 ? NAN : reduced(b, x, fn, 8, c); });
  }
}

struct ReduceShape {
  Index shape, tile;  // a tile of the output
  int mask;
  wire::ReduceBody body;
};

// What lanes share out: columns beyond all lanes, fewer than a warp, one; rows beyond what a lane has under way; whole rows for a lane, a warp and all lanes; runs of rows.
TEST(Reduce, BodiesForLanesInWarps) {
  using enum wire::ReduceBody;
  constexpr ReduceShape kShapes[] = {
      {{1, 1, 16, 512}, {1, 1, 1, 512}, 4, vectors}, {{1, 1, 16, 512}, {1, 1, 1, 128}, 4, vectors},  {{1, 1, 1, 512}, {1, 1, 1, 64}, 4, vectors},
      {{1, 1, 300, 4}, {1, 1, 1, 4}, 4, vectors},    {{1, 1, 77, 36}, {1, 1, 1, 36}, 4, vectors},     {{1, 1, 3, 2000}, {1, 1, 1, 2000}, 4, vectors},
      {{2, 3, 40, 12}, {2, 2, 1, 12}, 4, vectors},   {{2, 5, 7, 8}, {1, 1, 7, 8}, 2, vectors},       {{6, 5, 7, 8}, {1, 1, 1, 8}, 7, vectors},
      {{1, 1, 40, 33}, {1, 1, 1, 33}, 4, elements},  {{1, 1, 1000, 1}, {1, 1, 1, 1}, 4, elements},   {{1, 1, 20, 300}, {1, 1, 1, 300}, 4, vectors},
      {{1, 1, 1, 4}, {1, 1, 1, 1}, 8, vectors},      {{1, 1, 5, 400}, {1, 1, 2, 1}, 8, vectors},     {{1, 1, 300, 8}, {1, 1, 300, 1}, 8, vectors},
      {{1, 1, 9, 128}, {1, 1, 9, 1}, 8, vectors},    {{1, 1, 1, 5000}, {1, 1, 1, 1}, 8, vectors},    {{2, 3, 17, 30}, {2, 3, 17, 1}, 8, elements},
      {{2, 3, 5, 20}, {1, 1, 1, 1}, 15, vectors},    {{3, 4, 10, 6}, {3, 1, 1, 1}, 14, elements},    {{4, 3, 6, 20}, {1, 3, 6, 1}, 9, vectors},
      {{4, 3, 6, 21}, {1, 3, 6, 1}, 9, elements},    {{2, 3, 5, 8}, {1, 3, 1, 8}, 5, none},
  };
  std::uint32_t seed = 500;
  for (const ReduceShape& r : kShapes) {
    for (int fn = 0; fn < 4; ++fn, ++seed) {
      Bench b(seed);
      const bool ints = seed % 7 == 0 && fn != 1;
      const Tensor x = b.tensor(ints ? Dtype::i32 : any_float(b), r.shape, true);
      b.fill(x, -3, 3);
      Index out = r.shape;
      for (int i = 0; i < 4; ++i)
        if (r.mask >> i & 1) out[i] = 1;
      b.operands = {x, b.tensor(ints ? Dtype::i64 : any_float(b), out, true)};
      b.op.dims[0] = fn;
      b.op.dims[1] = r.mask;
      b.tiles(out, r.tile);
      SCOPED_TRACE("fn " + std::to_string(fn) + " mask " + std::to_string(r.mask));
      b.check(
          OpCode::reduce, 1, [&](std::size_t, const Index& c) { return reduced(b, x, fn, r.mask, c); }, 1e-5);
      const auto body = ints && r.body == vectors ? elements : r.body;
      b.run_by(OpCode::reduce, 1, [&](const auto&, const auto& op) {
        EXPECT_EQ(op.dims[wire::kReduceBodyDim], static_cast<int>(body)) << b.describe();
        return FaultCode::none;
      });
      if (HasFailure()) return;
    }
  }
}

TEST(Reduce, RowsThatLieApart) {
  for (const int mask : {4, 8, 12}) {
    Bench b(7);
    Tensor x = b.tensor(Dtype::f32, {1, 2, 24, 64}, true);
    b.fill(x, -3, 3);
    x.dim = {1, 2, 9, 40};  // a window of it
    x.flags = 0;
    const Index out{1, 2, (mask & 4) != 0 ? 1 : 9, (mask & 8) != 0 ? 1 : 40};
    b.operands = {x, b.tensor(Dtype::f32, out, true)};
    b.op.dims[1] = mask;
    b.tiles(out, {1, 1, out[2], out[3]});
    b.check(
        OpCode::reduce, 1, [&](std::size_t, const Index& c) { return reduced(b, x, 0, mask, c); }, 1e-5);
  }
}

TEST(Softmax, MatchesPlainLoops) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Bench b(seed);
    Index shape = any_shape(b);
    if (seed % 10 == 0) shape = {1, 1, 2, 15000};  // longer than the smaller scratch holds
    const Tensor x = b.tensor(any_float(b), shape);
    b.fill(x, -8, 8);
    b.operands = {x, b.tensor(any_float(b), shape)};
    b.op.scalars[0] = static_cast<float>(b.uniform(-1, 2));
    b.grid(shape, true);
    const double scale = b.op.scalars[0];
    std::vector<double> tops, sums;
    Bench::each({shape[0], shape[1], shape[2], 1}, [&](Index c) {
      double top = -INFINITY, sum = 0;
      for (c[3] = 0; c[3] < shape[3]; ++c[3]) top = std::max(top, b.get(x, c) * scale);
      for (c[3] = 0; c[3] < shape[3]; ++c[3]) sum += std::exp(b.get(x, c) * scale - top);
      tops.push_back(top);
      sums.push_back(sum);
    });
    b.check(OpCode::softmax, 1, [&](std::size_t, const Index& c) {
      const auto row = static_cast<std::size_t>((c[0] * shape[1] + c[1]) * shape[2] + c[2]);
      return std::exp(b.get(x, c) * scale - tops[row]) / sums[row];
    });
    if (HasFailure()) return;
  }
}

void check_norm(std::uint32_t seed, OpCode kind) {
  Bench b(seed);
  Index shape = any_shape(b);
  if (seed % 10 == 0) shape = {1, 1, 2, 15000};
  const bool layer = kind == OpCode::layernorm, biased = layer && b.coin();
  const Tensor x = b.tensor(any_float(b), shape), weight = b.tensor(any_float(b), {1, 1, 1, shape[3]}),
               bias = b.tensor(any_float(b), {1, 1, 1, shape[3]});
  b.fill(x, layer ? 3 : -4, 5);
  b.fill(weight, -1, 2);
  b.fill(bias, -1, 1);
  b.operands = {x, weight};
  if (biased) b.operands.push_back(bias);
  b.operands.push_back(b.tensor(any_float(b), shape));
  b.op.dims[0] = biased;
  b.op.scalars[0] = 1e-3f;
  b.grid(shape, true);
  std::vector<double> means, scales;
  Bench::each({shape[0], shape[1], shape[2], 1}, [&](Index c) {
    double mean = 0, square = 0;
    for (c[3] = 0; layer && c[3] < shape[3]; ++c[3]) mean += b.get(x, c) / shape[3];
    for (c[3] = 0; c[3] < shape[3]; ++c[3]) square += (b.get(x, c) - mean) * (b.get(x, c) - mean) / shape[3];
    means.push_back(mean);
    scales.push_back(1 / std::sqrt(square + 1e-3));
  });
  b.check(kind, biased ? 3 : 2, [&](std::size_t, const Index& c) {
    const auto row = static_cast<std::size_t>((c[0] * shape[1] + c[1]) * shape[2] + c[2]);
    const Index w{0, 0, 0, c[3]};
    return (b.get(x, c) - means[row]) * scales[row] * b.get(weight, w) + (biased ? b.get(bias, w) : 0);
  });
}

TEST(Norms, MatchPlainLoops) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    check_norm(seed, OpCode::rmsnorm);
    check_norm(seed + 1000, OpCode::layernorm);
    if (HasFailure()) return;
  }
}

TEST(Rope, RotatesPairs) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Bench b(seed);
    const int heads = b.pick(1, 4), head_dim = 2 * b.pick(1, b.coin() ? 8 : 150), rows = b.pick(1, 6);
    const Index shape{1, b.pick(1, 2), rows, heads * head_dim};
    const bool positions = b.coin(), interleaved = b.coin();
    const Tensor x = b.tensor(any_float(b), shape), position = b.tensor(Dtype::i32, {1, 1, 1, rows});
    b.fill(x, -2, 2);
    b.fill(position, 0, 100000);
    b.operands = {x};
    if (positions) b.operands.push_back(position);
    b.operands.push_back(b.tensor(any_float(b), shape));
    const int first = b.pick(0, 5000);
    for (const auto& [i, v] : {std::pair{0, heads}, {1, first}, {2, int{positions}}, {3, int{interleaved}}})
      b.op.dims[i] = v;
    b.op.scalars[0] = 10000;
    b.grid(shape, false, head_dim);
    b.check(OpCode::rope, positions ? 2 : 1, [&](std::size_t, const Index& c) {
      const int d = c[3] % head_dim, half = head_dim / 2;
      const int j = interleaved ? d / 2 : d % half;
      const bool second = interleaved ? d % 2 != 0 : d >= half;
      const double p = positions ? b.get(position, {0, 0, 0, c[2]}) : first + c[2];
      const double angle = p * std::pow(10000.0, -2.0 * j / head_dim);
      Index other = c;
      other[3] += (second ? -1 : 1) * (interleaved ? 1 : half);
      return b.get(x, c) * std::cos(angle) + (second ? 1 : -1) * b.get(x, other) * std::sin(angle);
    });
    if (HasFailure()) return;
  }
}

TEST(Gather, CopiesRowsAndRefusesBadIndices) {
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    Bench b(seed);
    const int rows = b.pick(1, 20), width = b.pick(1, 300), picked = b.pick(1, 9);
    const Dtype d = seed % 3 == 0 ? Dtype::i64 : any_float(b);
    const Tensor table = b.tensor(d, {1, 1, rows, width}, true),
                 index = b.tensor(b.coin() ? Dtype::i32 : Dtype::i64, {1, 1, 1, picked});
    b.fill(table, -9, 9);
    b.fill(index, 0, rows - 1);
    b.operands = {table, index, b.tensor(d, {1, 1, picked, width}, true)};
    b.grid({1, 1, picked, width});
    b.check(OpCode::gather, 2, [&](std::size_t, const Index& c) {
      return b.get(table, {0, 0, static_cast<int>(b.get(index, {0, 0, 0, c[2]})), c[3]});
    });
    b.set(index, {0, 0, 0, picked - 1}, b.coin() ? rows : -1);
    for (const Machine m : {Machine::host, Machine::emulated})
      EXPECT_EQ(b.run(m, OpCode::gather, 2), FaultCode::bad_index);
    if (HasFailure()) return;
  }
}

// Rows without an index of their own keep what they held. Every other shape goes in pieces of 16 bytes.
TEST(Scatter, WritesRowsWhereTheIndexSays) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Bench b(seed);
    const bool pieces = b.coin();
    const int rows = b.pick(1, 20), given = b.pick(1, 9), width = pieces ? 8 * b.pick(1, 40) : b.pick(1, 300);
    const Dtype d = seed % 3 == 0 ? Dtype::i64 : any_float(b), into = seed % 3 == 0 ? Dtype::i32 : pieces ? d : any_float(b);
    const Tensor x = b.tensor(d, {1, 1, given, width}, pieces), index = b.tensor(b.coin() ? Dtype::i32 : Dtype::i64, {1, 1, 1, given}),
                 out = b.tensor(into, {1, 1, rows, width}, pieces);
    b.fill(x, -9, 9);
    b.fill(out, -9, 9);
    std::vector<int> targets(static_cast<std::size_t>(rows + 9));  // no two alike
    std::iota(targets.begin(), targets.end(), -4);
    std::shuffle(targets.begin(), targets.end(), b.rng);
    std::vector<double> held;
    Bench::each(out.dim, [&](const Index& c) { held.push_back(b.get(out, c)); });
    for (int i = 0; i < given; ++i) b.set(index, {0, 0, 0, i}, targets[static_cast<std::size_t>(i)]);
    b.operands = {x, index, out};
    b.grid({1, 1, given, width}, false, pieces && b.coin() ? 8 : 1);
    b.check(OpCode::scatter, 2, [&](std::size_t, const Index& c) {
      for (int i = 0; i < given; ++i)
        if (targets[static_cast<std::size_t>(i)] == c[2]) return b.get(x, {0, 0, i, c[3]});
      return held[static_cast<std::size_t>(c[2] * width + c[3])];
    });
    if (HasFailure()) return;
  }
}

std::vector<int> order_of(Bench& b, const Tensor& x, Index c) {
  std::vector<int> order(static_cast<std::size_t>(x.dim[3]));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int i) {
    c[3] = i;
    const double v = b.get(x, c);
    return std::isnan(v) ? -INFINITY : v;
  };
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return key(i) > key(j); });
  return order;
}

TEST(Argmax, FirstOfEquals) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Bench b(seed);
    const Index shape = any_shape(b);
    const Dtype d = seed % 4 == 0 ? Dtype::i32 : any_float(b);
    const Tensor x = b.tensor(d, shape);
    b.fill(x, -2, 2);
    Bench::each(shape, [&](const Index& c) {
      if (b.pick(0, 2) != 0) b.set(x, c, b.pick(-2, 2));
      if (d == Dtype::f32 && b.pick(0, 9) == 0) b.set(x, c, b.coin() ? NAN : -0.0);
    });
    const Index out{shape[0], shape[1], shape[2], 1};
    b.operands = {x, b.tensor(Dtype::i32, out)};
    b.grid(out);
    b.check(OpCode::argmax, 1, [&](std::size_t, const Index& c) { return order_of(b, x, c)[0]; });
    if (HasFailure()) return;
  }
}

TEST(Argmax, RowsInVectors) {
  std::uint32_t seed = 50;
  for (const int width : {1, 8, 43, 2048, 2055, 20001}) {
    for (const Dtype d : {Dtype::f32, Dtype::bf16}) {
      Bench b(seed++);
      const Index shape{1, 1, 1, width};
      const Tensor x = b.tensor(d, shape, true);
      b.fill(x, -2, 2);
      for (int i = 0; i < 5; ++i) b.set(x, {0, 0, 0, b.pick(0, width - 1)}, i < 2 ? NAN : 2.5);
      if (d == Dtype::f32) b.set(x, {0, 0, 0, width - 1}, 3);  // behind the last whole vector
      if (width == 8) Bench::each(shape, [&](const Index& c) { b.set(x, c, c[3] % 2 == 0 ? NAN : -INFINITY); });
      b.operands = {x, b.tensor(Dtype::i32, {1, 1, 1, 1})};
      b.grid({1, 1, 1, 1});
      b.check(OpCode::argmax, 1, [&](std::size_t, const Index& c) { return order_of(b, x, c)[0]; });
      if (HasFailure()) return;
    }
  }
}

TEST(Topk, FallingValuesFirstOfEqualsFirst) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    Bench b(seed);
    Index shape = any_shape(b);
    const int k = b.pick(1, std::min(shape[3], 9));
    const Dtype d = seed % 4 == 0 ? Dtype::i64 : any_float(b);
    const Tensor x = b.tensor(d, shape);
    b.fill(x, -2, 2);
    Bench::each(shape, [&](const Index& c) {
      if (b.coin()) b.set(x, c, b.pick(-2, 2));
    });
    const Index out{shape[0], shape[1], shape[2], k};
    b.operands = {x, b.tensor(d, out), b.tensor(Dtype::i32, out)};
    b.op.dims[0] = k;
    b.grid({shape[0], shape[1], shape[2], 1});
    b.check(OpCode::topk, 1, [&](std::size_t o, const Index& c) {
      const int i = order_of(b, x, c)[static_cast<std::size_t>(c[3])];
      return o == 1 ? i : b.get(x, {c[0], c[1], c[2], i});
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace ccks::worker::test

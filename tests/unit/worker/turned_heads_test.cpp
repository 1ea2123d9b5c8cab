// Products that turn the heads they make (wire::kRopeDim), on all machines and on warps that have a ring: against products in f64, rounded,
// and turned.
#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_stream.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

double stored(Dtype d, double v) {
  const auto f = static_cast<float>(v);
  return d == Dtype::bf16 ? to_float<Dtype::bf16>(from_float<Dtype::bf16>(f)) : d == Dtype::f16 ? to_float<Dtype::f16>(from_float<Dtype::f16>(f)) : f;
}

struct Heads {
  int heads, pairs, m, k, tile_m, tile_n;
  int gap = 0;  // elements between rows of the output
};

/// x [m, k], normed where `normed`, by columns w [heads * 2 * pairs, k], turned by a table.
struct TurnedProduct {
  TurnedProduct(std::uint32_t seed, Dtype dtype, const Heads& h, bool normed) : b(seed), shape(h), norms(normed) {
    const int columns = h.heads * 2 * h.pairs;
    x = b.tensor(dtype, {1, 1, h.m, h.k}, true);
    x.dim = {2, h.heads, h.m, h.k};
    x.stride[0] = x.stride[1] = 0;
    w = b.tensor(dtype, {1, 1, columns, h.k}, true);
    w.dim = {2, h.heads, h.k, h.pairs};
    w.stride = {h.pairs * h.k, 2 * h.pairs * h.k, 1, h.k};
    w.flags = wire::kOperandStreamed;
    w.space = static_cast<std::uint8_t>(wire::Space::weights);
    table = b.tensor(Dtype::f32, {1, 1, h.m, 2 * h.pairs}, true);
    gain = b.tensor(dtype, {1, 1, 1, h.k}, true);
    out = b.tensor(dtype, {1, 1, h.m, columns + h.gap}, true);
    out.dim = {2, h.heads, h.m, h.pairs};
    out.stride = {h.pairs, 2 * h.pairs, columns + h.gap, 1};
    out.flags = 0;
    for (const Tensor& t : {x, w}) b.fill(t, -1, 1);
    b.fill(gain, 0.5, 1.5);
    b.fill(table, -1, 1);
    b.operands = {x, w, table, out};
    b.op.dims[wire::kEpilogueDim] = 2;
    b.op.dims[wire::kRopeDim] = 2;
    if (norms) {
      b.operands.insert(b.operands.begin() + 3, gain);
      b.op.dims[wire::kNormDim] = 3;
      b.op.scalars[0] = 1e-3f;
    }
    b.tiles({2, h.heads, h.m, h.pairs}, {2, 1, h.tile_m, h.tile_n});
  }
  std::size_t inputs() const { return norms ? 4 : 3; }

  double product(int half, int head, int row, int j) {
    double sum = 0, squares = 0;
    for (int p = 0; p < shape.k; ++p) squares += std::pow(b.get(x, {0, 0, row, p}), 2) / shape.k;
    const double scale = norms ? 1 / std::sqrt(squares + 1e-3) : 1;
    for (int p = 0; p < shape.k; ++p) {
      const double of_a = b.get(x, {0, 0, row, p}) * scale * (norms ? b.get(gain, {0, 0, 0, p}) : 1);
      sum += stored(x.dtype, of_a) * b.get(w, {half, head, p, j});
    }
    return stored(out.dtype, sum);
  }
  double want(const Index& c) {
    const double u = product(0, c[1], c[2], c[3]), v = product(1, c[1], c[2], c[3]);
    const double cosine = b.get(table, {0, 0, c[2], c[3]}), sine = b.get(table, {0, 0, c[2], c[3] + shape.pairs});
    return c[0] == 0 ? u * cosine - v * sine : u * sine + v * cosine;
  }
  double tolerance() const { return out.dtype == Dtype::f32 ? 5e-5 : out.dtype == Dtype::f16 ? 2e-3 : 1.2e-2; }

  void check_everywhere() {
    b.check(OpCode::matmul, inputs(), [&](std::size_t, const Index& c) { return want(c); }, tolerance());
  }
  /// On warps with a ring.
  template <class Op>
  FaultCode run_streamed() {
    return b.run_by(OpCode::matmul, inputs(), [&](const wire::RunFrame& frame, const wire::OpParams& op) {
      EXPECT_NE(op.flags & wire::kOpStreams, 0) << b.describe();
      return test::run_streamed<Op>(frame, op);
    });
  }
  template <class Op>
  FaultCode run_on_warps() {
    return b.run_by(OpCode::matmul, inputs(), [&](const wire::RunFrame& frame, const wire::OpParams& op) {
      EXPECT_NE(op.flags & wire::kOpVectors, 0) << b.describe();
      return test::run_on_warps<Op>(frame, op);
    });
  }
  void expect_right() {
    b.expect_near(out, [&](const Index& c) { return want(c); }, tolerance());
  }

  Bench b;
  Heads shape;
  bool norms;
  Tensor x, w, table, gain, out;
};

TEST(TurnedHeads, OnEveryMachine) {
  std::uint32_t seed = 700;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
    for (const bool normed : {false, true}) {
      TurnedProduct(seed++, dtype, {3, 16, 1, 136, 1, 8}, normed).check_everywhere();
      TurnedProduct(seed++, dtype, {2, 8, 3, 136, 2, 8, 8}, normed).check_everywhere();
      if (!normed) TurnedProduct(seed++, dtype, {1, 16, 20, 40, 16, 16}, normed).check_everywhere();  // more rows than bodies of few take
    }
}

TEST(TurnedHeads, ThroughARing) {
  std::uint32_t seed = 730;
  for (const Heads& h : {Heads{2, 32, 1, 1304, 1, 8}, Heads{3, 16, 2, 520, 2, 16}, Heads{1, 32, 8, 776, 4, 32, 8}}) {
    TurnedProduct plain(seed++, Dtype::bf16, h, false);
    ASSERT_EQ(plain.run_streamed<ProductsByFrame>(), FaultCode::none);
    plain.expect_right();
    TurnedProduct normed(seed++, Dtype::bf16, h, true);
    using Op = TypedOp<OpCode::matmul, Roped<Normed<Code<>>>, Dtype::bf16, Dtype::bf16, Dtype::f32, Dtype::bf16, Dtype::bf16>;
    ASSERT_EQ(normed.run_streamed<Op>(), FaultCode::none);
    normed.expect_right();
    normed.b.fill(normed.out, 5, 5);
    ASSERT_EQ(normed.run_on_warps<Op>(), FaultCode::none);
    normed.expect_right();
  }
}

constexpr int kHeads = 2, kPairs = 16, kRows = 2, kDepth = 1032, kColumns = kHeads * 2 * kPairs;
using X = Window<2, kHeads, kRows, kDepth, 0, 0, kDepth, 1, 0>;
using W = Window<2, kHeads, kDepth, kPairs, kPairs * kDepth, 2 * kPairs * kDepth, 1, kDepth, 0>;
using T = Window<1, 1, kRows, 2 * kPairs, kRows * 2 * kPairs, kRows * 2 * kPairs, 2 * kPairs, 1, wire::kOperandContiguous>;
using G = Window<1, 1, 1, kDepth, kDepth, kDepth, kDepth, 1, wire::kOperandContiguous>;
using Y = Window<2, kHeads, kRows, kPairs, kPairs, 2 * kPairs, kColumns, 1, 0>;
using Shaped = ShapedOp<OpCode::matmul, Roped<Normed<Code<>>>, Tiles<2, 1, kRows, 8, 1, kHeads, 1, 2>, Windows<X, W, T, G, Y>, Dtype::bf16,
                        Dtype::bf16, Dtype::f32, Dtype::bf16, Dtype::bf16>;

TEST(TurnedHeads, ShapesKnownWhenCompiled) {
  TurnedProduct product(760, Dtype::bf16, {kHeads, kPairs, kRows, kDepth, kRows, 8}, true);
  ASSERT_EQ(product.run_streamed<Shaped>(), FaultCode::none);
  product.expect_right();
  product.b.fill(product.out, 5, 5);
  ASSERT_EQ(product.run_on_warps<Shaped>(), FaultCode::none);
  product.expect_right();
}

}  // namespace
}  // namespace ccks::worker::test

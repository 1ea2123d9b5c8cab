// Products whose weights come through a ring: against sums in f64, with what a frame, a type and a shape know, on emulated warps.
#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_stream.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

/// acc + other
const std::vector<wire::ExprInstr> kSum = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
using Sum = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;

/// x [2, 1, m, k] by weights [2, 1, n, k], the last two dims of which are swapped.
struct Product {
  Product(std::uint32_t seed, Dtype dtype, int m, int k, int n, int tile_m, int tile_n) : b(seed), rows(m), depth(k), columns(n) {
    const Index shape{2, 1, m, n};
    x = b.tensor(dtype, {2, 1, m, k}, true);
    w = b.tensor(dtype, {2, 1, n, k}, true);
    std::swap(w.stride[2], w.stride[3]);
    std::swap(w.dim[2], w.dim[3]);
    w.flags = wire::kOperandStreamed;
    w.space = static_cast<std::uint8_t>(wire::Space::weights);
    other = b.tensor(dtype, shape, true);
    out = b.tensor(dtype, shape, true);
    for (const Tensor& t : {x, w, other}) b.fill(t, -1, 1);
    b.fill(out, 77, 77);
    b.operands = {x, w, other, out};
    b.op.dims[wire::kEpilogueDim] = 2;
    b.code = kSum;
    b.tiles(shape, {1, 1, tile_m, tile_n});
  }

  template <class Op>
  void check() {
    b.fill(out, 77, 77);
    ASSERT_EQ(b.run_by(OpCode::matmul, 3, [&](const auto& frame, const auto& op) {
      EXPECT_NE(op.flags & wire::kOpStreams, 0) << b.describe();
      return run_streamed<Op>(frame, op);
    }), FaultCode::none);
    for (int c = 0; c < 2 * rows * columns; ++c) {
      const int batch = c / (rows * columns), i = c / columns % rows, j = c % columns;
      double sum = b.get(other, {batch, 0, i, j});
      for (int p = 0; p < depth; ++p) sum += b.get(x, {batch, 0, i, p}) * b.get(w, {batch, 0, p, j});
      ASSERT_NEAR(b.get(out, {batch, 0, i, j}), sum, 0.01 * std::abs(sum) + 0.01) << "row " << i << " column " << j << b.describe();
    }
  }

  Bench b;
  int rows, depth, columns;
  Tensor x, w, other, out;
};

template <Dtype D>
void check(std::uint32_t seed, int m, int k, int n, int tile_m, int tile_n) {
  Product product(seed, D, m, k, n, tile_m, tile_n);
  product.check<TypedOp<OpCode::matmul, Sum, D, D, D, D>>();
  if (testing::Test::HasFailure()) return;
  product.check<ProductsByFrame>();
}

TEST(Streamed, GivesTheSums) {
  check<Dtype::bf16>(301, 1, 2048, 16, 1, 16);
  check<Dtype::f16>(302, 1, 520, 24, 1, 16);    // the last piece is eight deep, the last tile eight wide
  check<Dtype::bf16>(303, 3, 1304, 20, 3, 20);  // more columns than a stage has, the last warps without a slice
  check<Dtype::bf16>(304, 8, 512, 36, 8, 36);
  check<Dtype::f16>(305, 7, 776, 12, 4, 12);    // fewer rows in the last tile
}

TEST(Streamed, RowsThatScratchCannotHoldAreReadWhereTheyLie) { check<Dtype::bf16>(306, 8, 4096, 16, 8, 16); }

constexpr int kRows = 2, kDepth = 1032, kColumns = 24;
constexpr u32 kLies = wire::kOperandContiguous;
using X = Window<2, 1, kRows, kDepth, kRows * kDepth, kRows * kDepth, kDepth, 1, kLies>;
using W = Window<2, 1, kDepth, kColumns, kDepth * kColumns, kDepth * kColumns, 1, kDepth, 0>;  // nor need it be known to be streamed
using Y = Window<2, 1, kRows, kColumns, kRows * kColumns, kRows * kColumns, kColumns, 1, kLies>;
using Shaped = ShapedOp<OpCode::matmul, Sum, Tiles<1, 1, kRows, 16, 2, 1, 1, 2>, Windows<X, W, Y, Y>, Dtype::bf16, Dtype::bf16, Dtype::bf16,
                        Dtype::bf16>;

TEST(Streamed, ShapesKnownWhenCompiled) { Product(310, Dtype::bf16, kRows, kDepth, kColumns, kRows, 16).check<Shaped>(); }

/// Rows that are normed on their way into scratch.
template <Dtype D, class Op>
void check_normed(std::uint32_t seed, int m, int k, int n) {
  Product product(seed, D, m, k, n, m, 16);
  Bench& b = product.b;
  const Tensor gain = b.tensor(D, {1, 1, 1, k}, true);
  b.fill(gain, 0.5, 1.5);
  b.operands = {product.x, product.w, gain, product.out};
  b.op.dims[wire::kNormDim] = 2;
  b.op.scalars[0] = 1e-3f;
  b.code.clear();
  ASSERT_EQ(b.run_by(OpCode::matmul, 3, [&](const auto& frame, const auto& op) {
    EXPECT_NE(op.flags & wire::kOpStreams, 0) << b.describe();
    return run_streamed<Op>(frame, op);
  }), FaultCode::none);
  for (int c = 0; c < 2 * m * n; ++c) {
    const int batch = c / (m * n), i = c / n % m, j = c % n;
    double squares = 0, sum = 0;
    for (int p = 0; p < k; ++p) squares += b.get(product.x, {batch, 0, i, p}) * b.get(product.x, {batch, 0, i, p});
    for (int p = 0; p < k; ++p) sum += b.get(product.x, {batch, 0, i, p}) * b.get(gain, {0, 0, 0, p}) * b.get(product.w, {batch, 0, p, j});
    sum /= std::sqrt(squares / k + 1e-3);
    ASSERT_NEAR(b.get(product.out, {batch, 0, i, j}), sum, 0.02 * std::abs(sum) + 0.2) << "row " << i << " column " << j << b.describe();
  }
}

TEST(Streamed, RowsMayBeNormedFirst) {
  check_normed<Dtype::bf16, TypedOp<OpCode::matmul, Normed<Code<>>, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>>(330, 3, 520, 16);
  check_normed<Dtype::f16, ProductsByFrame>(331, 2, 776, 24);
}

wire::u8 flags_of(Product& product) {
  wire::u8 flags = 0;
  (void)product.b.run_by(OpCode::matmul, 3, [&](const auto&, const auto& op) {
    flags = op.flags;
    return FaultCode::none;
  });
  return flags;
}

TEST(Streamed, OnlyWeightsInColumnsOfLongRuns) {
  Product good(320, Dtype::bf16, 1, 512, 16, 1, 16);
  EXPECT_NE(flags_of(good) & wire::kOpStreams, 0);
  Product shallow(321, Dtype::bf16, 1, 504, 16, 1, 16);
  EXPECT_EQ(flags_of(shallow) & wire::kOpStreams, 0);
  Product input = good;
  input.b.operands[1].space = static_cast<std::uint8_t>(wire::Space::arena);
  EXPECT_EQ(flags_of(input) & wire::kOpStreams, 0);
  Product written = good;
  written.b.operands[1].flags = 0;
  EXPECT_EQ(flags_of(written) & wire::kOpStreams, 0);
  Product wide(322, Dtype::bf16, 8, 512, 144, 8, 144);
  EXPECT_EQ(flags_of(wide) & wire::kOpStreams, 0);
  Product full(323, Dtype::f32, 1, 512, 16, 1, 16);
  EXPECT_EQ(flags_of(full) & wire::kOpStreams, 0);
  Product divided(325, Dtype::bf16, 1, 512, 48, 1, 16);  // three tiles a batch
  EXPECT_EQ(flags_of(divided) & wire::kOpStreams, 0);
  Product rows(324, Dtype::bf16, 1, 512, 512, 1, 16);
  std::swap(rows.b.operands[1].stride[2], rows.b.operands[1].stride[3]);
  EXPECT_NE(flags_of(rows) & wire::kOpVectors, 0);
  EXPECT_EQ(flags_of(rows) & wire::kOpStreams, 0);
}

TEST(Streamed, WeightsMayBeLarge) {
  Product large(326, Dtype::bf16, 1, 512, 16, 1, 16);  // as the heads of large vocabularies are
  large.b.operands[1].stride[3] = 1 << 25;
  EXPECT_NE(flags_of(large) & wire::kOpStreams, 0);
  Product rows = large;  // bodies for b in rows count bytes in 32 bits
  rows.b.operands[1].stride[2] = 1 << 20;
  rows.b.operands[1].stride[3] = 1;
  EXPECT_EQ(flags_of(rows) & wire::kOpVectors, 0);
  Product beyond = large;
  beyond.b.operands[1].stride[3] = i64{1} << 29;
  EXPECT_EQ(flags_of(beyond) & wire::kOpVectors, 0);
}

}  // namespace
}  // namespace ccks::worker::test

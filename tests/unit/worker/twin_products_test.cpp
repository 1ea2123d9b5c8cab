// Products with a twin (wire::kTwinDim), on all machines and on warps that have a ring: against two products in f64, the twin's rounded.
#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_stream.hpp"
#include "tests/unit/worker/ops_fixture.hpp"
#include "tests/unit/worker/twin_codes.hpp"

namespace ccks::worker::test {
namespace {

struct Size {
  int m, k, n, tile_m, tile_n;
};

/// x [m, k], normed where `normed`, by columns w and v [n, k].
struct TwinProduct {
  TwinProduct(std::uint32_t seed, Dtype dtype, const Size& s, bool normed, bool plain_twin = false)
      : b(seed), size(s), norms(normed), scales(!plain_twin) {
    x = b.tensor(dtype, {1, 1, s.m, s.k}, true);
    for (Tensor* t : {&w, &v}) {
      *t = b.tensor(dtype, {1, 1, s.n, s.k}, true);
      std::swap(t->stride[2], t->stride[3]);
      std::swap(t->dim[2], t->dim[3]);
      t->flags = wire::kOperandStreamed;
      t->space = static_cast<std::uint8_t>(wire::Space::weights);
    }
    const Index shape{1, 1, s.m, s.n};
    added = b.tensor(dtype, shape, true);
    factor = b.tensor(dtype, shape, true);
    gain = b.tensor(dtype, {1, 1, 1, s.k}, true);
    out = b.tensor(dtype, shape, true);
    for (const Tensor& t : {x, w, v, added}) b.fill(t, -1, 1);
    b.fill(factor, -0.5, 0.5);
    b.fill(gain, 0.5, 1.5);
    b.fill(out, 77, 77);
    b.operands = {x, w, v, added, factor};
    b.op.dims[wire::kEpilogueDim] = 2;
    b.op.dims[wire::kTwinDim] = scales ? 1 + static_cast<int>(kScaled.size()) : 1;
    if (scales) b.code = kScaled;
    b.code.insert(b.code.end(), kGated.begin(), kGated.end());
    if (norms) {
      b.operands.push_back(gain);
      b.op.dims[wire::kNormDim] = 5;
      b.op.scalars[0] = 1e-3f;
    }
    b.operands.push_back(out);
    b.tiles(shape, {1, 1, s.tile_m, s.tile_n});
  }
  std::size_t inputs() const { return norms ? 6 : 5; }

  double product(const Tensor& by, int row, int column) {
    double sum = 0, squares = 0;
    for (int p = 0; p < size.k; ++p) squares += std::pow(b.get(x, {0, 0, row, p}), 2) / size.k;
    const double scale = norms ? 1 / std::sqrt(squares + 1e-3) : 1;
    for (int p = 0; p < size.k; ++p)
      sum += stored(x.dtype, b.get(x, {0, 0, row, p}) * scale * (norms ? b.get(gain, {0, 0, 0, p}) : 1)) * b.get(by, {0, 0, p, column});
    return sum;
  }
  double want(const Index& c) {
    const double twin = stored(out.dtype, product(v, c[2], c[3]) * (scales ? b.get(factor, c) : 1));
    return product(w, c[2], c[3]) * twin + b.get(added, c);
  }
  double tolerance() const { return out.dtype == Dtype::f32 ? 2e-4 : out.dtype == Dtype::f16 ? 4e-3 : 2.5e-2; }

  void check_everywhere() {
    b.check(OpCode::matmul, inputs(), [&](std::size_t, const Index& c) { return want(c); }, tolerance());
  }
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
  Size size;
  bool norms, scales;
  Tensor x, w, v, added, factor, gain, out;
};

TEST(TwinProducts, OnEveryMachine) {
  std::uint32_t seed = 800;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32})
    for (const bool normed : {false, true}) {
      TwinProduct(seed++, dtype, {1, 136, 16, 1, 8}, normed).check_everywhere();
      TwinProduct(seed++, dtype, {3, 136, 20, 2, 12}, normed, true).check_everywhere();
      if (!normed) TwinProduct(seed++, dtype, {20, 40, 36, 16, 16}, normed).check_everywhere();  // more rows than bodies of few take
    }
}

TEST(TwinProducts, ThroughARing) {
  std::uint32_t seed = 830;
  for (const Size& s : {Size{1, 1304, 64, 1, 32}, Size{2, 520, 24, 2, 24}, Size{8, 776, 40, 4, 20}, Size{3, 2048, 12, 3, 12}}) {
    TwinProduct plain(seed++, Dtype::bf16, s, false);
    ASSERT_EQ(plain.run_streamed<ProductsByFrame>(), FaultCode::none);
    plain.expect_right();
    TwinProduct unscaled(seed++, Dtype::f16, s, true, true);
    ASSERT_EQ(unscaled.run_streamed<ProductsByFrame>(), FaultCode::none);
    unscaled.expect_right();
    TwinProduct normed(seed++, Dtype::bf16, s, true);
    using Op = TypedOp<OpCode::matmul, Normed<Twinned<Scaled, Gated>>, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16,
                       Dtype::bf16>;
    ASSERT_EQ(normed.run_streamed<Op>(), FaultCode::none);
    normed.expect_right();
    normed.b.fill(normed.out, 5, 5);
    ASSERT_EQ(normed.run_on_warps<Op>(), FaultCode::none);
    normed.expect_right();
  }
}

constexpr int kRows = 2, kDepth = 1032, kColumns = 48;
constexpr u32 kLies = wire::kOperandContiguous;
using X = Window<1, 1, kRows, kDepth, kRows * kDepth, kRows * kDepth, kDepth, 1, kLies>;
using W = Window<1, 1, kDepth, kColumns, kDepth * kColumns, kDepth * kColumns, 1, kDepth, 0>;
using G = Window<1, 1, 1, kDepth, kDepth, kDepth, kDepth, 1, kLies>;
using Y = Window<1, 1, kRows, kColumns, kRows * kColumns, kRows * kColumns, kColumns, 1, kLies>;
using Shaped = ShapedOp<OpCode::matmul, Normed<Twinned<Scaled, Gated>>, Tiles<1, 1, kRows, 24, 1, 1, 1, 2>, Windows<X, W, W, Y, Y, G, Y>, Dtype::bf16,
                        Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>;

TEST(TwinProducts, ShapesKnownWhenCompiled) {
  TwinProduct product(860, Dtype::bf16, {kRows, kDepth, kColumns, kRows, 24}, true);
  ASSERT_EQ(product.run_streamed<Shaped>(), FaultCode::none);
  product.expect_right();
  product.b.fill(product.out, 5, 5);
  ASSERT_EQ(product.run_on_warps<Shaped>(), FaultCode::none);
  product.expect_right();
}

TEST(TwinProducts, OnlyTwinsThatLieAlikeStream) {
  const auto flags_of = [](TwinProduct& product) {
    wire::u8 flags = 0;
    (void)product.b.run_by(OpCode::matmul, 5, [&](const auto&, const auto& op) {
      flags = op.flags;
      return FaultCode::none;
    });
    return flags;
  };
  TwinProduct good(870, Dtype::bf16, {1, 512, 32, 1, 16}, false);
  EXPECT_NE(flags_of(good) & wire::kOpStreams, 0);
  TwinProduct other = good;
  other.b.operands[2].space = static_cast<std::uint8_t>(wire::Space::arena);
  EXPECT_EQ(flags_of(other) & wire::kOpStreams, 0);
  other = good;
  other.b.operands[2].stride[3] += 8;
  EXPECT_EQ(flags_of(other) & wire::kOpStreams, 0);
  TwinProduct wide(871, Dtype::bf16, {8, 512, 80, 8, 80}, false);  // alone it would: its sums fit into scratch once
  EXPECT_EQ(flags_of(wide) & wire::kOpStreams, 0);
}

}  // namespace
}  // namespace ccks::worker::test

// Products whose rows of a are normed first, on all machines: bodies of few rows that stage them, and those that norm piece by piece.
#include <algorithm>

#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

constexpr float kEps = 1e-3f;

double stored(Dtype d, double v) {
  const auto f = static_cast<float>(v);
  return d == Dtype::bf16 ? to_float<Dtype::bf16>(from_float<Dtype::bf16>(f)) : d == Dtype::f16 ? to_float<Dtype::f16>(from_float<Dtype::f16>(f)) : f;
}

Tensor filled(Bench& b, Dtype d, Index shape, double lo = -1, double hi = 1) {
  const Tensor t = b.tensor(d, shape, true);
  b.fill(t, lo, hi);
  return t;
}

struct Product {
  int m, k, n, tile_m, tile_n;
  bool down;
};

/// A product of normed rows, with another operand added: inputs a, b, other, weight.
struct NormedProduct {
  Bench bench;
  Tensor x, y, other, weight;

  NormedProduct(std::uint32_t seed, const Product& p, Dtype dtype, Dtype of_weight, bool contiguous = true) : bench(seed) {
    const Index shape{1, 1, p.m, p.n};
    x = contiguous ? filled(bench, dtype, {1, 1, p.m, p.k}) : bench.tensor(dtype, {1, 1, p.m, p.k});
    bench.fill(x, -3, 1);
    y = p.down ? filled(bench, dtype, {1, 1, p.n, p.k}) : filled(bench, dtype, {1, 1, p.k, p.n});
    if (p.down) {
      std::swap(y.stride[2], y.stride[3]);
      std::swap(y.dim[2], y.dim[3]);
      y.flags = 0;
    }
    other = filled(bench, dtype, shape);
    weight = contiguous ? filled(bench, of_weight, {1, 1, 1, p.k}) : bench.tensor(of_weight, {1, 1, 1, p.k});
    bench.fill(weight, 0.5, 2);
    bench.operands = {x, y, other, weight, bench.tensor(dtype, shape, true)};
    bench.op.dims[wire::kEpilogueDim] = 2;
    bench.op.dims[wire::kNormDim] = 3;
    bench.op.scalars[0] = kEps;
    bench.code = {ins(ExprOp::arg_f, 3), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 3, 3, 1)};
    bench.tiles(shape, {1, 1, p.tile_m, p.tile_n});
  }
  bool marked() {
    bool is = false;
    (void)bench.run_by(OpCode::matmul, 4, [&](const wire::RunFrame&, const wire::OpParams& op) {
      is = (op.flags & wire::kOpVectors) != 0;
      return FaultCode::none;
    });
    return is;
  }
  double want(const Index& c) {
    double squares = 0, sum = bench.get(other, c);
    for (int k = 0; k < x.dim[3]; ++k) squares += std::pow(bench.get(x, {0, 0, c[2], k}), 2) / x.dim[3];
    const double scale = 1 / std::sqrt(squares + kEps);
    for (int k = 0; k < x.dim[3]; ++k)
      sum += stored(x.dtype, bench.get(x, {0, 0, c[2], k}) * scale * bench.get(weight, {0, 0, 0, k})) * bench.get(y, {0, 0, k, c[3]});
    return sum;
  }
  // A value between two neighbours of the dtype may go to either: then a product of k such values is off by some of those steps.
  double tolerance() const { return x.dtype == Dtype::f32 ? 2e-5 : x.dtype == Dtype::f16 ? 4e-4 : 3e-3; }
};

void check(std::uint32_t seed, const Product& p, Dtype dtype, bool marked, Dtype of_weight, bool contiguous = true) {
  NormedProduct product(seed, p, dtype, of_weight, contiguous);
  EXPECT_EQ(product.marked(), marked) << product.bench.describe();
  product.bench.check(OpCode::matmul, 4, [&](std::size_t, const Index& c) { return product.want(c); }, product.tolerance());
}

TEST(NormedProducts, OfFewRowsByColumns) {
  std::uint32_t seed = 1;
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    check(seed++, {1, 256, 24, 1, 8, true}, dtype, true, dtype);
    check(seed++, {1, 2048, 16, 1, 16, true}, dtype, true, Dtype::f32);
    check(seed++, {1, 2056, 8, 1, 8, true}, dtype, true, dtype);  // longer than lanes keep
    check(seed++, {3, 264, 20, 3, 20, true}, dtype, true, Dtype::bf16);
    check(seed++, {8, 512, 36, 8, 36, true}, dtype, true, dtype);
    check(seed++, {11, 264, 12, 8, 12, true}, dtype, true, dtype);
  }
}

TEST(NormedProducts, ThatNoMarkedBodyTakes) {
  std::uint32_t seed = 50;
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    check(seed++, {8, 3000, 4, 8, 4, true}, dtype, false, dtype);  // rows are too long for scratch
    check(seed++, {1, 256, 24, 1, 8, false}, dtype, false, dtype);   // b in rows
    check(seed++, {5, 100, 20, 5, 12, false}, dtype, false, dtype);
    check(seed++, {41, 68, 36, 24, 20, true}, dtype, false, dtype);  // blocks
    check(seed++, {41, 68, 36, 24, 20, false}, dtype, false, Dtype::f32);
    check(seed++, {150, 64, 8, 150, 8, true}, dtype, false, dtype);  // more rows than scales are kept of
    check(seed++, {7, 33, 5, 7, 5, true}, dtype, false, dtype);
  }
}

TEST(NormedProducts, OfRowsThatLieAnyhow) {
  for (std::uint32_t seed = 100; seed < 112; ++seed) {
    const auto s = static_cast<int>(seed);
    const Product p{1 + s % 9, 20 + 12 * (s % 5), 4 + s % 3 * 8, 1 + s % 4, 4, s % 2 == 0};
    NormedProduct product(seed, p, Dtype::bf16, Dtype::f32, false);
    check(seed, p, Dtype::bf16, product.marked(), Dtype::f32, false);
  }
}

using Add = Code<Ins<ExprOp::arg_f, 3, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 3, 3, 1, 0>>;
template <i32 kM, i32 kN>
using Rows = Window<1, 1, kM, kN, kM * kN, kM * kN, kN, 1, wire::kOperandContiguous>;

/// Dtypes known: on matrix units where they are 16 bits wide. `kShape`: shape known too.
template <Dtype D, Dtype W, i32 kM, i32 kK, i32 kN, i32 kTn, bool kShape>
void check_typed(std::uint32_t seed) {
  NormedProduct product(seed, {kM, kK, kN, kM, kTn, true}, D, W);
  Bench& b = product.bench;
  const Tensor out = b.operands.back();
  b.fill(out, 77, 77);
  using Right = Window<1, 1, kK, kN, kK * kN, kK * kN, 1, kK, 0>;
  using Windows4 = Windows<Rows<kM, kK>, Right, Rows<kM, kN>, Rows<1, kK>, Rows<kM, kN>>;
  using Shaped = ShapedOp<OpCode::matmul, Normed<Add>, Tiles<1, 1, kM, kTn, 1, 1, 1, (kN + kTn - 1) / kTn>, Windows4, D, D, D, W, D>;
  using Typed = TypedOp<OpCode::matmul, Normed<Add>, D, D, D, W, D>;
  using Op = std::conditional_t<kShape, Shaped, Typed>;
  ASSERT_TRUE(product.marked());
  ASSERT_EQ(b.run_by(OpCode::matmul, 4, [&](const auto& frame, const auto& op) { return run_on_warps<Op>(frame, op); }), FaultCode::none);
  Bench::each(out.dim, [&](const Index& c) {
    const double want = product.want(c), resolution = D == Dtype::bf16 ? 0x1p-8 : D == Dtype::f16 ? 0x1p-11 : 0;
    ASSERT_NEAR(b.get(out, c), want, product.tolerance() * std::max(1.0, std::sqrt(kK) * 0.5) + resolution * std::abs(want))
        << c[2] << " " << c[3] << b.describe();
  });
}

TEST(NormedProducts, OnMatrixUnits) {
  check_typed<Dtype::bf16, Dtype::bf16, 1, 2048, 40, 16, false>(201);
  check_typed<Dtype::bf16, Dtype::f32, 1, 520, 40, 16, true>(202);  // k is no multiple of a warp's slice
  check_typed<Dtype::f16, Dtype::f16, 8, 264, 36, 36, false>(203);
  check_typed<Dtype::bf16, Dtype::bf16, 5, 8, 12, 12, true>(204);  // warps without any k
  check_typed<Dtype::f16, Dtype::bf16, 2, 4608, 16, 16, true>(205);
}

TEST(NormedProducts, OfKnownTypes) {
  check_typed<Dtype::f32, Dtype::f32, 1, 256, 40, 8, true>(211);
  check_typed<Dtype::f32, Dtype::bf16, 3, 264, 12, 12, false>(212);
  check_typed<Dtype::f32, Dtype::f32, 8, 520, 12, 12, true>(213);
}

}  // namespace
}  // namespace ccks::worker::test

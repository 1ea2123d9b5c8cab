// Bodies made for one shape give bit for bit what the same bodies give that read it from the frame, on emulated warps.
#include "ccks/worker/shaped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

/// Shaped: has the shape that the bench's operands have. The same op by both ways to find its operands.
template <class Typed, class Shaped>
void compare(Bench& b, OpCode kind, std::size_t inputs) {
  const auto run = [&](bool shaped, bool copied) {
    return b.run_by(kind, inputs, [&](const auto& frame, const auto& op) {
      EXPECT_NE(op.flags & (wire::kOpFlat | wire::kOpVectors), 0) << b.describe();
      EXPECT_EQ(Shaped::params().flags & (wire::kOpFlat | wire::kOpVectors), op.flags & (wire::kOpFlat | wire::kOpVectors));
      const Copied copy(frame, op);
      const wire::OpParams& from = copied ? copy.op : op;
      return shaped ? run_on_warps<Shaped>(frame, from) : run_on_warps<Typed>(frame, from);
    });
  };
  const auto empty = b.memory();
  ASSERT_EQ(run(false, false), FaultCode::none);
  const auto want = b.memory();
  ASSERT_NE(want, empty);
  for (const bool copied : {false, true}) {
    for (std::size_t o = inputs; o < b.operands.size(); ++o) b.fill(b.operands[o], 7, 7);
    ASSERT_EQ(run(true, copied), FaultCode::none);
    EXPECT_TRUE(want == b.memory()) << "copied " << copied << b.describe();
  }
  EXPECT_EQ(b.run_by(kind, inputs, [](const auto& frame, const auto& op) {
    return run_on_warps<Shaped>(frame, op, op.tile_count + 1);
  }), FaultCode::bad_op);
}

Tensor filled(Bench& b, Dtype d, Index shape) {
  const Tensor t = b.tensor(d, shape, true);
  b.fill(t, -2, 2);
  return t;
}
template <i32 kD0, i32 kD1, i32 kD2, i32 kD3>
using Rows = Window<kD0, kD1, kD2, kD3, i64{kD1} * kD2 * kD3, i64{kD2} * kD3, kD3, 1, wire::kOperandContiguous>;
/// [.., n, k] seen as [.., k, n].
template <i32 kD1, i32 kK, i32 kN>
using Columns = Window<1, kD1, kK, kN, i64{kD1} * kN * kK, i64{kN} * kK, 1, kK, 0>;
template <i32 kM, i32 kN>
using Spread = Window<1, 1, kM, kN, 0, 0, 0, 1, 0>;

using Double = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
const std::vector<wire::ExprInstr> kDouble = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};

template <Dtype D, i32 kD1, i32 kM, i32 kN, i32 kT1, i32 kTm, i32 kTn>
void check_map(std::uint32_t seed) {
  using W = Rows<1, kD1, kM, kN>;
  using T = Tiles<1, kT1, kTm, kTn, 1, (kD1 + kT1 - 1) / kT1, (kM + kTm - 1) / kTm, (kN + kTn - 1) / kTn>;
  Bench b(seed);
  const Index shape{1, kD1, kM, kN};
  b.operands = {filled(b, D, shape), filled(b, Dtype::f32, shape), b.tensor(D, shape, true)};
  b.code = kDouble;
  b.tiles(shape, {1, kT1, kTm, kTn});
  compare<TypedOp<OpCode::map, Double, D, Dtype::f32, D>, ShapedOp<OpCode::map, Double, T, Windows<W, W, W>, D, Dtype::f32, D>>(
      b, OpCode::map, 2);
}

TEST(ShapedOp, Maps) {
  check_map<Dtype::f32, 1, 64, 64, 1, 4, 64>(1);   // flat
  check_map<Dtype::bf16, 3, 13, 20, 1, 5, 20>(2);  // not flat: the third tile is short
  check_map<Dtype::f16, 2, 8, 40, 1, 8, 16>(3);    // columns are cut too
}

template <Dtype D, bool kDown, i32 kBatch, i32 kM, i32 kK, i32 kN, i32 kTm, i32 kTn>
void check_product(std::uint32_t seed, wire::ProductBody body) {
  using Right = std::conditional_t<kDown, Columns<kBatch, kK, kN>, Rows<1, kBatch, kK, kN>>;
  using W = Windows<Rows<1, kBatch, kM, kK>, Right, Spread<kM, kN>, Rows<1, kBatch, kM, kN>>;
  using T = Tiles<1, 1, kTm, kTn, 1, kBatch, (kM + kTm - 1) / kTm, (kN + kTn - 1) / kTn>;
  using Shaped = ShapedOp<OpCode::matmul, Double, T, W, D, D, D, D>;
  EXPECT_EQ(Shaped::params().dims[0], static_cast<i32>(body));
  Bench b(seed);
  const Index shape{1, kBatch, kM, kN};
  Tensor right = kDown ? filled(b, D, {1, kBatch, kN, kK}) : filled(b, D, {1, kBatch, kK, kN});
  if (kDown) {
    std::swap(right.stride[2], right.stride[3]);
    std::swap(right.dim[2], right.dim[3]);
    right.flags = 0;
  }
  Tensor bias = filled(b, D, {1, 1, 1, kN});
  bias.dim = shape;
  bias.stride = {0, 0, 0, 1};
  bias.flags = 0;
  b.operands = {filled(b, D, {1, kBatch, kM, kK}), right, bias, b.tensor(D, shape, true)};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.code = kDouble;
  b.tiles(shape, {1, 1, kTm, kTn});
  compare<TypedOp<OpCode::matmul, Double, D, D, D, D>, Shaped>(b, OpCode::matmul, 3);
}

TEST(ShapedOp, Products) {
  using Body = wire::ProductBody;
  constexpr Dtype kSmall = Dtype::bf16;
  check_product<Dtype::f32, false, 1, 1, 256, 64, 1, 8>(20, Body::row);
  check_product<kSmall, false, 2, 3, 36, 40, 3, 12>(21, Body::four_rows);
  check_product<Dtype::f32, false, 1, 8, 256, 32, 8, 8>(22, Body::eight_rows);
  check_product<kSmall, true, 1, 1, 520, 40, 1, 16>(23, Body::turned_row);
  check_product<Dtype::f32, true, 1, 3, 264, 12, 2, 12>(24, Body::turned_four_rows);
  check_product<kSmall, true, 2, 7, 64, 20, 7, 8>(25, Body::turned_eight_rows);
  check_product<Dtype::f32, true, 3, 16, 64, 16, 16, 16>(26, Body::head);
  check_product<kSmall, false, 2, 16, 16, 64, 16, 64>(27, Body::head);
  check_product<Dtype::f32, true, 1, 41, 132, 68, 40, 36>(28, Body::block);
}

// Types known, shapes from the frame: what goes to matrix units, against sums in f64.
template <Dtype D>
void check_matrix_units(std::uint32_t seed, int m, int k, int n, int tile_m, int tile_n) {
  Bench b(seed);
  const Index shape{2, 1, m, n};
  const Tensor left = filled(b, D, {2, 1, m, k});
  Tensor right = filled(b, D, {2, 1, n, k});
  std::swap(right.stride[2], right.stride[3]);
  std::swap(right.dim[2], right.dim[3]);
  right.flags = 0;
  const Tensor other = filled(b, D, shape), out = b.tensor(D, shape, true);
  b.fill(out, 77, 77);
  b.operands = {left, right, other, out};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.code = kDouble;
  b.tiles(shape, {1, 1, tile_m, tile_n});
  ASSERT_EQ(b.run_by(OpCode::matmul, 3, [&](const auto& frame, const auto& op) {
    EXPECT_NE(op.flags & wire::kOpVectors, 0) << b.describe();
    return run_on_warps<TypedOp<OpCode::matmul, Double, D, D, D, D>>(frame, op);
  }), FaultCode::none);
  for (int c = 0; c < 2 * m * n; ++c) {
    const int batch = c / (m * n), i = c / n % m, j = c % n;
    double sum = b.get(other, {batch, 0, i, j});
    for (int p = 0; p < k; ++p) sum += b.get(left, {batch, 0, i, p}) * b.get(right, {batch, 0, p, j});
    ASSERT_NEAR(b.get(out, {batch, 0, i, j}), sum, 0.01 * std::abs(sum) + 0.01) << "row " << i << " column " << j << b.describe();
  }
}

TEST(MatrixUnits, GiveTheSums) {
  check_matrix_units<Dtype::bf16>(201, 1, 520, 40, 1, 16);   // k is no multiple of a warp's slice, the last tile is short
  check_matrix_units<Dtype::f16>(202, 1, 2048, 20, 1, 20);   // more columns than a unit takes
  check_matrix_units<Dtype::bf16>(203, 8, 264, 36, 8, 36);
  check_matrix_units<Dtype::f16>(204, 5, 8, 12, 3, 12);
}

TEST(ShapedOp, RowsOfTheLastDim) {
  using W = Rows<2, 3, 16, 16>;
  using T = Tiles<1, 1, 16, 16, 2, 3, 1, 1>;
  Bench b(60);
  const Index shape{2, 3, 16, 16};
  b.operands = {filled(b, Dtype::f32, shape), b.tensor(Dtype::f32, shape, true)};
  b.op.scalars[0] = 0.125f;
  b.tiles(shape, {1, 1, 16, 16});
  compare<TypedOp<OpCode::softmax, Code<>, Dtype::f32, Dtype::f32>,
          ShapedOp<OpCode::softmax, Code<>, T, Windows<W, W>, Dtype::f32, Dtype::f32>>(b, OpCode::softmax, 1);
}

template <OpCode kKind, bool kBias>
void check_norm(std::uint32_t seed) {
  using X = Rows<1, 1, 6, 260>;
  using Line = Window<1, 1, 1, 260, 0, 0, 0, 1, wire::kOperandContiguous>;
  using T = Tiles<1, 1, 4, 260, 1, 1, 2, 1>;
  Bench b(seed);
  const Index shape{1, 1, 6, 260}, line{1, 1, 1, 260};
  b.operands = {filled(b, Dtype::bf16, shape), filled(b, Dtype::bf16, line)};
  if (kBias) b.operands.push_back(filled(b, Dtype::bf16, line));
  b.operands.push_back(b.tensor(Dtype::bf16, shape, true));
  b.op.scalars[0] = 1e-3f;
  b.op.dims[0] = kBias;
  b.tiles(shape, {1, 1, 4, 260});
  constexpr Dtype kD = Dtype::bf16;
  if constexpr (kBias)
    compare<TypedOp<kKind, Code<>, kD, kD, kD, kD>, ShapedOp<kKind, Code<>, T, Windows<X, Line, Line, X>, kD, kD, kD, kD>>(b, kKind, 3);
  else
    compare<TypedOp<kKind, Code<>, kD, kD, kD>, ShapedOp<kKind, Code<>, T, Windows<X, Line, X>, kD, kD, kD>>(b, kKind, 2);
}
TEST(ShapedOp, Norms) {
  check_norm<OpCode::rmsnorm, false>(70);
  check_norm<OpCode::layernorm, false>(71);
  check_norm<OpCode::layernorm, true>(72);
}

// Norms of an op as workers copy it: rows that a warp's registers hold, of as many vectors as lanes have or fewer. Others go the other way.
template <OpCode kKind>
void check_near_norm(int width, int rows, bool near) {
  constexpr bool kCentred = kKind == OpCode::layernorm;
  Bench b(static_cast<std::uint32_t>(width + rows));
  const auto filled = [&](Index dims) {
    const Tensor t = b.tensor(Dtype::bf16, dims, true);
    b.fill(t, -1, 2);
    return t;
  };
  const Tensor x = filled({1, 1, rows, width}), weight = filled({1, 1, 1, width}), bias = filled({1, 1, 1, width});
  b.operands = {x, weight};
  if (kCentred) b.operands.push_back(bias);
  const Tensor out = b.tensor(Dtype::bf16, {1, 1, rows, width}, true);
  b.operands.push_back(out);
  b.op.dims[0] = kCentred;
  b.op.scalars[0] = 1e-3f;
  b.tiles(out.dim, {1, 1, 10, width});
  using Op = std::conditional_t<kCentred, TypedOp<kKind, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>, TypedOp<kKind, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16>>;
  bool done = false;
  const auto run = [&](const wire::RunFrame& frame, const wire::OpParams& op) {
    const Copied copy(frame, op);
    const auto one = [&](auto& lanes) {
      using Types = std::conditional_t<kCentred, FixedTypes<Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>, FixedTypes<Dtype::bf16, Dtype::bf16, Dtype::bf16>>;
      return norms_near<kCentred, kCentred>(lanes, Call(frame, copy.op), 0, Types{});
    };
    WarpBlock block;
    block.run([&](wire::u32 lane) {
      EmulatedWarps lanes(block, lane);
      done = one(lanes);
    });
    return run_on_warps<Op>(frame, copy.op);
  };
  ASSERT_EQ(b.run_by(kKind, kCentred ? 3 : 2, run), FaultCode::none);
  EXPECT_EQ(done, near) << width;
  for (int r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (int i = 0; kCentred && i < width; ++i) mean += b.get(x, {0, 0, r, i}) / width;
    for (int i = 0; i < width; ++i) squares += std::pow(b.get(x, {0, 0, r, i}) - mean, 2) / width;
    for (int i = 0; i < width; ++i) {
      const double want = (b.get(x, {0, 0, r, i}) - mean) / std::sqrt(squares + 1e-3) * b.get(weight, {0, 0, 0, i}) + (kCentred ? b.get(bias, {0, 0, 0, i}) : 0);
      ASSERT_NEAR(b.get(out, {0, 0, r, i}), want, 0.008 * std::abs(want) + 2e-3) << "row " << r << ", column " << i;
    }
  }
}
TEST(NearNorms, RowsThatAWarpHolds) {
  check_near_norm<OpCode::layernorm>(512, 37, true);
  check_near_norm<OpCode::layernorm>(136, 10, true);
  check_near_norm<OpCode::rmsnorm>(512, 23, true);
  check_near_norm<OpCode::rmsnorm>(300, 11, true);
}
TEST(NearNorms, OthersGoTheOtherWay) {
  check_near_norm<OpCode::layernorm>(128, 9, false);
  check_near_norm<OpCode::rmsnorm>(1024, 5, false);
}

}  // namespace
}  // namespace ccks::worker::test

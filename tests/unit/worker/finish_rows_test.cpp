// Epilogues of products whose sums lie in scratch: operands with a row each, with one row for all, with one value for a row or for all, integers, and
// those that do not lie in vectors.
#include "ccks/worker/expert_product.hpp"
#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

constexpr int kDepth = 72;

// acc * factor + bias + residual + shift, of which shift is an integer.
using Sum = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>,
                 Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 3>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::arg_i, 1, 0, 0, 4>,
                 Ins<ExprOp::f_from_i, 1, 1, 0, 0>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
using Op = TypedOp<OpCode::matmul, Sum, Dtype::bf16, Dtype::bf16, Dtype::f32, Dtype::bf16, Dtype::bf16, Dtype::i32, Dtype::f32>;

void check(std::uint32_t seed, int columns, int tile_columns, bool one_factor, bool apart, int rows = 40, int tile_rows = 32) {
  Bench b(seed);
  const auto filled = [&](Dtype dtype, Index dims, bool contiguous = true) {
    const Tensor t = b.tensor(dtype, dims, contiguous);
    b.fill(t, -3, 3);
    return t;
  };
  const auto spread = [&](Tensor t) {
    for (int i = 0; i < 4; ++i)
      if (t.dim[i] == 1) t.stride[i] = 0;
    t.dim = {1, 1, rows, columns};
    t.flags = 0;
    return t;
  };
  const Tensor a = filled(Dtype::bf16, {1, 1, rows, kDepth});
  Tensor w = filled(Dtype::bf16, {1, 1, columns, kDepth});
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  w.flags = 0;
  const Tensor factor = spread(filled(Dtype::f32, {1, 1, one_factor ? 1 : rows, 1})), bias = spread(filled(Dtype::bf16, {1, 1, 1, columns}));
  Tensor residual = filled(Dtype::bf16, {1, 1, rows, columns + (apart ? 1 : 0)});
  residual.dim[3] = columns;  // rows of it begin anywhere, if apart
  residual.flags = 0;
  const Tensor shift = filled(Dtype::i32, {1, 1, rows, columns}), out = b.tensor(Dtype::f32, {1, 1, rows, columns}, true);
  b.operands = {a, w, factor, bias, residual, shift, out};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(out.dim, {1, 1, tile_rows, tile_columns});
  const auto run = [&](const auto& frame, const auto& op) {
    return run_on_warps<Op, RoomyWarps>(frame, op, op.tile_count, [](const RoomyWarps& lanes) {
      EXPECT_GT(lanes.copies(), 0u) << "the body with stages has not taken it";
    });
  };
  ASSERT_EQ(b.run_by(OpCode::matmul, 6, run), FaultCode::none);
  Bench::each(out.dim, [&](const Index& c) {
    double want = 0;
    for (int i = 0; i < kDepth; ++i) want += b.get(a, {0, 0, c[2], i}) * b.get(w, {0, 0, i, c[3]});
    want = want * b.get(factor, c) + b.get(bias, c) + b.get(residual, c) + b.get(shift, c);
    ASSERT_NEAR(b.get(out, c), want, 2e-3) << "row " << c[2] << ", column " << c[3] << " of " << columns;
  });
}

TEST(FinishRows, OperandsOfEveryForm) {
  check(1, 128, 128, true, false);
  check(2, 64, 64, false, false);
  check(3, 136, 136, false, false);
}
// A lane has sixteen: those of the next but one four are asked for while four are finished.
TEST(FinishRows, ManyRowsOfALane) {
  check(6, 128, 128, true, false, 130, 128);
  check(7, 128, 128, true, false, 117, 128);
  check(8, 128, 128, false, false, 128, 128);
}
TEST(FinishRows, ColumnsThatAreNoVectors) {
  check(4, 70, 70, false, false);
  check(5, 128, 128, true, true);
}

}  // namespace
}  // namespace ccks::worker::test

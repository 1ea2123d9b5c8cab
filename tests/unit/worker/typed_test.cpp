// Typed ops give bit for bit what generic ops give: dtypes and code move from the frame into the type, nothing else.
#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/typed_ops.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

template <class Op>
void compare(Bench& b, OpCode kind, std::size_t inputs) {
  ASSERT_EQ(b.run(Machine::host, kind, inputs), FaultCode::none);
  const auto generic = b.memory();
  for (std::size_t o = inputs; o < b.operands.size(); ++o) b.fill(b.operands[o], 7, 7);
  ASSERT_NE(generic, b.memory());
  alignas(128) static u8 scratch[512 * 1024];
  HostLanes lanes(scratch, sizeof scratch);
  const FaultCode fault = b.run_by(kind, inputs, [&](const auto& frame, const auto& op) {
    FaultCode f = FaultCode::none;
    for (u32 tile = 0; tile < op.tile_count && f == FaultCode::none; ++tile) f = Op::run(lanes, frame, op, tile);
    EXPECT_EQ(Op::run(lanes, frame, op, op.tile_count), FaultCode::bad_op);
    return f;
  });
  EXPECT_EQ(fault, FaultCode::none);
  EXPECT_TRUE(generic == b.memory()) << b.describe();
}

Tensor filled(Bench& b, Dtype d, Index shape, double lo = -2, double hi = 2) {
  const Tensor t = b.tensor(d, shape);
  b.fill(t, lo, hi);
  return t;
}

TEST(TypedOp, MapWithCode) {
  using Op = TypedOp<OpCode::map,
                     Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::silu_f, 0, 0, 0, 0>,
                          Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>,
                     Dtype::bf16, Dtype::f32, Dtype::f16>;
  Bench b(1);
  const Index shape{1, 2, 3, 300};
  b.operands = {filled(b, Dtype::bf16, shape), filled(b, Dtype::f32, shape), b.tensor(Dtype::f16, shape)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::silu_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::mul_f, 0, 0, 1)};
  b.grid(shape);
  compare<Op>(b, OpCode::map, 2);
}

TEST(TypedOp, MapWithConstantsOfTheFrame) {
  using Op = TypedOp<OpCode::map,
                     Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, FrameConst<ExprOp::const_f, 1, 1>, Ins<ExprOp::mul_f, 0, 0, 1, 0>,
                          FrameConst<ExprOp::const_i, 1, 3>, Ins<ExprOp::index_i, 2, 0, 0, 3>, Ins<ExprOp::add_i, 1, 1, 2, 0>,
                          Ins<ExprOp::f_from_i, 1, 1, 0, 0>, Ins<ExprOp::add_f, 0, 0, 1, 0>>,
                     Dtype::f32, Dtype::f32>;
  for (const i32 constant : {-3, 70000}) {
    Bench b(3);
    const Index shape{1, 2, 3, 140};
    b.operands = {filled(b, Dtype::f32, shape), b.tensor(Dtype::f32, shape)};
    b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::const_f, 1, 0, 0, bit_cast<u32>(0.75f * static_cast<float>(constant))), ins(ExprOp::mul_f, 0, 0, 1),
              ins(ExprOp::const_i, 1, 0, 0, static_cast<u32>(constant)), ins(ExprOp::index_i, 2, 0, 0, 3), ins(ExprOp::add_i, 1, 1, 2),
              ins(ExprOp::f_from_i, 1, 1), ins(ExprOp::add_f, 0, 0, 1)};
    b.grid(shape);
    compare<Op>(b, OpCode::map, 1);
  }
}

TEST(TypedOp, MapThatGivesIntegers) {
  using Op = TypedOp<OpCode::map,
                     Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::index_i, 1, 0, 0, 3>,
                          Ins<ExprOp::f_from_i, 1, 1, 0, 0>, Ins<ExprOp::lt_f, 2, 0, 1, 0>>,
                     Dtype::f32, Dtype::boolean>;
  Bench b(2);
  const Index shape{1, 2, 3, 140};
  b.operands = {filled(b, Dtype::f32, shape, 0, 140), b.tensor(Dtype::boolean, shape)};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::index_i, 1, 0, 0, 3), ins(ExprOp::f_from_i, 1, 1),
            ins(ExprOp::lt_f, 2, 0, 1)};
  b.grid(shape);
  compare<Op>(b, OpCode::map, 1);
}

TEST(TypedOp, MatmulWithEpilogue) {
  using Op =
      TypedOp<OpCode::matmul,
              Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>,
              Dtype::bf16, Dtype::f32, Dtype::i32, Dtype::f32>;
  for (const int m : {1, 3, 40}) {
    Bench b(3);
    const Index shape{1, 1, m, 50};
    b.operands = {filled(b, Dtype::bf16, {1, 1, m, 70}), filled(b, Dtype::f32, {1, 1, 70, 50}),
                  filled(b, Dtype::i32, shape), b.tensor(Dtype::f32, shape)};
    b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
    b.op.dims[wire::kEpilogueDim] = 2;
    b.grid(shape);
    compare<Op>(b, OpCode::matmul, 3);
  }
}

TEST(TypedOp, RowsAndIndices) {
  Bench b(4);
  const Index shape{1, 2, 5, 200};
  const Tensor x = filled(b, Dtype::bf16, shape), weight = filled(b, Dtype::f32, {1, 1, 1, 200});
  b.op.scalars[0] = 1e-5f;
  b.grid(shape, true);
  b.operands = {x, weight, b.tensor(Dtype::bf16, shape)};
  compare<TypedOp<OpCode::rmsnorm, Code<>, Dtype::bf16, Dtype::f32, Dtype::bf16>>(b, OpCode::rmsnorm, 2);
  compare<TypedOp<OpCode::layernorm, Code<>, Dtype::bf16, Dtype::f32, Dtype::bf16>>(b, OpCode::layernorm, 2);
  b.op.dims[0] = 1;
  b.operands = {x, weight, filled(b, Dtype::f16, {1, 1, 1, 200}), b.tensor(Dtype::bf16, shape)};
  compare<TypedOp<OpCode::layernorm, Code<>, Dtype::bf16, Dtype::f32, Dtype::f16, Dtype::bf16>>(b, OpCode::layernorm,
                                                                                                3);
  b.op.scalars[0] = 1;
  b.operands = {x, b.tensor(Dtype::f32, shape)};
  compare<TypedOp<OpCode::softmax, Code<>, Dtype::bf16, Dtype::f32>>(b, OpCode::softmax, 1);
  b.op.scalars[0] = 10000;
  b.op.dims[0] = 2;
  compare<TypedOp<OpCode::rope, Code<>, Dtype::bf16, Dtype::f32>>(b, OpCode::rope, 1);
  b.op.dims[0] = 0;
  b.grid({1, 2, 5, 1});
  b.operands = {x, b.tensor(Dtype::i32, {1, 2, 5, 1})};
  compare<TypedOp<OpCode::argmax, Code<>, Dtype::bf16, Dtype::i32>>(b, OpCode::argmax, 1);
  b.op.dims[0] = 3;
  b.operands = {x, b.tensor(Dtype::bf16, {1, 2, 5, 3}), b.tensor(Dtype::i32, {1, 2, 5, 3})};
  compare<TypedOp<OpCode::topk, Code<>, Dtype::bf16, Dtype::bf16, Dtype::i32>>(b, OpCode::topk, 1);
  b.op.dims[0] = 2;
  b.op.dims[1] = 8;
  b.operands = {x, b.tensor(Dtype::f32, {1, 2, 5, 1})};
  compare<TypedOp<OpCode::reduce, Code<>, Dtype::bf16, Dtype::f32>>(b, OpCode::reduce, 1);
}

TEST(TypedOp, AttentionGatherAndConv) {
  Bench b(5);
  const Index shape{1, 1, 6, 64}, context{1, 1, 90, 32};
  b.operands = {filled(b, Dtype::bf16, shape), filled(b, Dtype::bf16, context), filled(b, Dtype::bf16, context),
                b.tensor(Dtype::bf16, shape)};
  b.op.dims[0] = 4;
  b.op.dims[1] = 2;
  b.op.dims[2] = 1;
  b.op.scalars[0] = 0.25f;
  b.grid(shape, false, 16);
  compare<TypedOp<OpCode::attention, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>>(b, OpCode::attention,
                                                                                                  3);
  const Tensor table = b.tensor(Dtype::f16, {1, 1, 9, 64}, true), index = b.tensor(Dtype::i64, {1, 1, 1, 6});
  b.fill(table, -1, 1);
  b.fill(index, 0, 8);
  b.operands = {table, index, b.tensor(Dtype::f16, shape, true)};
  compare<TypedOp<OpCode::gather, Code<>, Dtype::f16, Dtype::i64, Dtype::f16>>(b, OpCode::gather, 2);
  const Index image{1, 3, 8, 9}, kernel{4, 3, 3, 3}, out{1, 4, 8, 9};
  const int dims[] = {1, 1, 1, 1, 1, 1};
  for (int i = 0; i < 6; ++i) b.op.dims[i] = dims[i];
  b.operands = {filled(b, Dtype::f32, image), filled(b, Dtype::f32, kernel), b.tensor(Dtype::f32, out)};
  b.grid(out);
  compare<TypedOp<OpCode::conv2d, Code<>, Dtype::f32, Dtype::f32, Dtype::f32>>(b, OpCode::conv2d, 2);
}

TEST(TypedOp, CustomIsNotOne) {
  Bench b(6);
  const Tensor x = filled(b, Dtype::f32, {1, 1, 1, 4});
  b.operands = {x, x};
  b.grid(x.dim);
  alignas(128) u8 scratch[1024];
  HostLanes lanes(scratch, sizeof scratch);
  EXPECT_EQ(b.run_by(OpCode::custom, 1,
                     [&](const auto& frame, const auto& op) {
                       return TypedOp<OpCode::custom, Code<>, Dtype::f32, Dtype::f32>::run(lanes, frame, op, 0);
                     }),
            FaultCode::bad_op);
}

}  // namespace
}  // namespace ccks::worker::test

// Products of many rows by groups of four warps, on emulated ones: what they multiply is looked at only once they are waited for.
#include "ccks/worker/grouped_ops.hpp"

#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

/// kColumns: as GroupedOp has it.
template <Dtype D, u32 kColumns = 0>
void check(std::uint32_t seed, int rows, int columns, int depth, Index tile) {
  Bench b(seed);
  const auto filled = [&](Index dims) {
    const Tensor t = b.tensor(D, dims, true);
    b.fill(t, -1, 1);
    return t;
  };
  const Tensor a = filled({1, 2, rows, depth});
  Tensor w = filled({1, 2, columns, depth}), bias = filled({1, 1, 1, columns});
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  w.flags = bias.flags = 0;
  bias.dim = {1, 2, rows, columns};
  bias.stride[0] = bias.stride[1] = bias.stride[2] = 0;
  const Tensor out = b.tensor(D, {1, 2, rows, columns}, true);
  b.operands = {a, w, bias, out};
  b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(out.dim, tile);
  using Op = GroupedOp<OpCode::matmul, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>, kColumns, D, D, D, D>;
  u32 groups = 0;
  bool awaited = false;
  const auto run = [&](const auto& frame, const auto& op) {
    return run_on_warps<Op, GroupWarps>(frame, op, op.tile_count, [&](const GroupWarps& lanes) {
      groups = lanes.groups();
      awaited = lanes.awaited_all();
    });
  };
  ASSERT_EQ(b.run_by(OpCode::matmul, 3, run), FaultCode::none);
  EXPECT_NE(b.op.flags & wire::kOpGroups, 0);
  EXPECT_TRUE(awaited);
  const u32 steps = ceil_div(static_cast<u32>(depth), tile[2] <= 64 ? 128u : 64u);
  EXPECT_GE(groups, 2 * steps);  // of the first tile of each batch at least
  Bench::each(out.dim, [&](const Index& c) {
    double want = b.get(bias, c);
    for (int i = 0; i < depth; ++i) want += b.get(a, {0, c[1], c[2], i}) * b.get(w, {0, c[1], i, c[3]});
    ASSERT_NEAR(b.get(out, c), want, 0.008 * std::abs(want) + 2e-3) << "row " << c[2] << ", column " << c[3] << b.describe();
  });
}

TEST(ProductGroup, WholeBlocks) { check<Dtype::bf16>(1, 128, 128, 448, {1, 1, 128, 128}); }
TEST(ProductGroup, DepthsOfFewStepsAndOfAPart) {
  check<Dtype::bf16>(2, 128, 128, 8, {1, 1, 128, 128});
  check<Dtype::f16>(3, 128, 128, 72, {1, 1, 128, 128});
  check<Dtype::bf16>(4, 128, 128, 192, {1, 1, 128, 128});
}
TEST(ProductGroup, RowsAndColumnsThatThereAreNot) {
  check<Dtype::bf16>(5, 65, 72, 136, {1, 1, 128, 128});
  check<Dtype::f16>(6, 127, 100, 64, {1, 1, 128, 128});
}
TEST(ProductGroup, WideBlocks) {
  check<Dtype::bf16>(8, 128, 256, 200, {1, 1, 128, 256});
  check<Dtype::f16>(9, 100, 180, 64, {1, 1, 128, 256});
}
TEST(ProductGroup, BlocksOf64Columns) {
  check<Dtype::bf16>(20, 128, 64, 448, {1, 1, 128, 64});
  check<Dtype::f16>(21, 127, 36, 72, {1, 1, 128, 64});
}
TEST(ProductGroup, BlocksOf192Columns) {
  check<Dtype::bf16>(22, 128, 192, 448, {1, 1, 128, 192});
  check<Dtype::f16>(23, 90, 164, 72, {1, 1, 128, 192});
}
// Behind the last whole one there are fewer columns, and behind the last rows fewer of those.
TEST(ProductGroup, BlocksOfColumnsThatTheBodyKnows) {
  check<Dtype::bf16, 64>(24, 200, 136, 136, {1, 1, 128, 64});
  check<Dtype::bf16, 128>(25, 200, 168, 136, {1, 1, 128, 128});
  check<Dtype::bf16, 192>(26, 150, 232, 136, {1, 1, 128, 192});
  check<Dtype::bf16, 256>(27, 150, 292, 136, {1, 1, 128, 256});
}
TEST(ProductGroup, ManyTiles) { check<Dtype::bf16>(7, 200, 296, 80, {1, 1, 128, 128}); }
TEST(ProductGroup, NarrowBlocks) {
  check<Dtype::bf16>(10, 64, 64, 1288, {1, 1, 64, 64});
  check<Dtype::f16>(11, 64, 128, 640, {1, 1, 64, 128});
  check<Dtype::bf16>(12, 16, 64, 128, {1, 1, 64, 64});
}
TEST(ProductGroup, NarrowBlocksOfRowsAndColumnsThatThereAreNot) {
  check<Dtype::bf16>(13, 9, 36, 8, {1, 1, 16, 64});
  check<Dtype::f16>(14, 33, 100, 264, {1, 1, 64, 128});
  check<Dtype::bf16>(15, 70, 200, 136, {1, 1, 32, 64});
}

/// Sums of a block without a depth: a share of one may have none. op_fault: they are not zero.
template <u32 kColumns>
struct NoDepth {
  template <class Lanes>
  static FaultCode run(Lanes& lanes, const wire::RunFrame&, const wire::OpParams&, u32) {
    if (lanes.lane() == 0) std::memset(lanes.scratch(), 0x3f, lanes.scratch_bytes());
    lanes.sync();
    const u8 nothing[16] = {};
    multiply_packets<Dtype::bf16, kColumns>(lanes, {nothing, nothing, 0, 0, 128, kColumns, 0});
    const float* sums = reinterpret_cast<const float*>(grouped_scratch(lanes));
    bool zero = true;
    for (u32 i = lanes.lane(); i < 128 * kColumns; i += lanes.lanes()) zero = zero && sums[i / kColumns * grouped_pitch(kColumns) + i % kColumns] == 0;
    return zero ? FaultCode::none : FaultCode::op_fault;
  }
};
TEST(ProductGroup, NoDepthIsNoSum) {
  const auto sums = [](auto op) { return run_on_warps<decltype(op), GroupWarps>({}, {}, 1, [](const GroupWarps&) {}); };
  EXPECT_EQ(sums(NoDepth<64>{}), FaultCode::none);
  EXPECT_EQ(sums(NoDepth<128>{}), FaultCode::none);
  EXPECT_EQ(sums(NoDepth<192>{}), FaultCode::none);
  EXPECT_EQ(sums(NoDepth<256>{}), FaultCode::none);
}

// acc + bias + x, and rows of x `apart` elements longer: as blocks whose sums stay in registers, with x there from the beginning, or by way of scratch.
template <Dtype D, u32 kColumns, class Expr>
void check_blocks(std::uint32_t seed, int rows, int columns, int depth, int apart, bool held, const std::vector<wire::ExprInstr>& code, double (*value)(double acc, double bias, double x)) {
  Bench b(seed);
  const auto filled = [&](Index dims) {
    const Tensor t = b.tensor(D, dims, true);
    b.fill(t, -1, 1);
    return t;
  };
  const Tensor a = filled({1, 1, rows, depth});
  Tensor w = filled({1, 1, columns, depth}), bias = filled({1, 1, 1, columns}), x = filled({1, 1, rows, columns + apart});
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  w.flags = bias.flags = x.flags = 0;
  bias.dim = x.dim = {1, 1, rows, columns};
  bias.stride[0] = bias.stride[1] = bias.stride[2] = 0;
  const Tensor out = b.tensor(D, {1, 1, rows, columns}, true);
  b.operands = {a, w, bias, x, out};
  b.code = code;
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(out.dim, {1, 1, 128, static_cast<int>(kColumns)});
  const std::vector<std::uint64_t> before = b.memory();
  u32 groups = 0;
  const auto run = [&](const wire::RunFrame& frame, const wire::OpParams& op) {
    const Copied copy(frame, op);
    return run_on_warps<BlocksOp<OpCode::matmul, Expr, kColumns, 2, D, D, D, D, D>, GroupWarps>(frame, copy.op, op.tile_count, [&](const GroupWarps& lanes) {
      groups = lanes.groups();
      EXPECT_TRUE(lanes.awaited_all());
    });
  };
  ASSERT_EQ(b.run_by(OpCode::matmul, 4, run), FaultCode::none);
  EXPECT_EQ((b.op.flags & wire::kOpBlocks) != 0, held);
  EXPECT_NE(b.op.flags & wire::kOpGroups, 0);
  EXPECT_GT(groups, 0u);
  Bench::each(out.dim, [&](const Index& c) {
    double acc = 0;
    for (int i = 0; i < depth; ++i) acc += b.get(a, {0, c[1], c[2], i}) * b.get(w, {0, c[1], i, c[3]});
    const double want = value(acc, b.get(bias, c), b.get(x, c));
    ASSERT_NEAR(b.get(out, c), want, 0.008 * std::abs(want) + 2e-3) << "row " << c[2] << ", column " << c[3] << b.describe();
  });
  b.restore(out, before);
  EXPECT_TRUE(b.memory() == before) << "bytes outside of the output changed";
}

using AddsBoth = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
template <Dtype D, u32 kColumns>
void check_sums(std::uint32_t seed, int rows, int columns, int depth, int apart, bool held) {
  static_assert(AddsBoth::Bind<2>::kAddends == 3);
  check_blocks<D, kColumns, AddsBoth>(
      seed, rows, columns, depth, apart, held,
      {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1), ins(ExprOp::arg_f, 1, 0, 0, 2), ins(ExprOp::add_f, 0, 0, 1)},
      [](double acc, double bias, double x) { return acc + bias + x; });
}
TEST(ProductGroup, BlocksFinishedInRegisters) {
  check_sums<Dtype::bf16, 128>(30, 128, 128, 136, 0, true);
  check_sums<Dtype::f16, 256>(31, 200, 264, 72, 16, true);  // few columns behind the last whole block
  check_sums<Dtype::bf16, 64>(32, 150, 168, 72, 8, true);
  check_sums<Dtype::bf16, 192>(33, 70, 192, 200, 0, true);
  check_sums<Dtype::bf16, 128>(34, 140, 128, 448, 0, true);  // few rows behind it
}
TEST(ProductGroup, BlocksOfWhatLiesInNoPackets) {
  check_sums<Dtype::bf16, 128>(35, 150, 168, 72, 4, false);
  check_sums<Dtype::bf16, 128>(36, 150, 172, 72, 4, false);
}
// What is multiplied to the sums, or added to what is no sum any more, cannot be there from the beginning.
TEST(ProductGroup, BlocksWhoseRowsAreNotJustAdded) {
  using Scales = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>;
  static_assert(Scales::Bind<2>::kAddends == 1);
  check_blocks<Dtype::bf16, 128, Scales>(
      40, 150, 136, 72, 0, true, {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1), ins(ExprOp::arg_f, 1, 0, 0, 2), ins(ExprOp::mul_f, 0, 0, 1)},
      [](double acc, double bias, double x) { return (acc + bias) * x; });
  using AddsLate = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::relu_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::arg_f, 2, 0, 0, 2>, Ins<ExprOp::add_f, 1, 1, 2, 0>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
  static_assert(AddsLate::Bind<2>::kAddends == 0);
  check_blocks<Dtype::f16, 64, AddsLate>(
      41, 150, 136, 72, 0, true,
      {ins(ExprOp::arg_f, 0), ins(ExprOp::relu_f, 0, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::arg_f, 2, 0, 0, 2), ins(ExprOp::add_f, 1, 1, 2), ins(ExprOp::add_f, 0, 0, 1)},
      [](double acc, double bias, double x) { return std::max(acc, 0.0) + (bias + x); });
  using Twice = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::add_f, 2, 0, 1, 0>, Ins<ExprOp::mul_f, 0, 0, 2, 0>>;
  static_assert(Twice::Bind<2>::kAddends == 0);
  check_blocks<Dtype::bf16, 64, Twice>(42, 130, 64, 72, 0, true, {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 2), ins(ExprOp::add_f, 2, 0, 1), ins(ExprOp::mul_f, 0, 0, 2)},
                                       [](double acc, double, double x) { return acc * (acc + x); });
  using Function = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::gelu_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::mul_f, 0, 0, 1, 0>>;
  static_assert(!kMayBeHeld<Function::Bind<2>>);  // by way of scratch
  check_blocks<Dtype::bf16, 256, Function>(
      43, 150, 264, 72, 0, true,
      {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1), ins(ExprOp::gelu_f, 0, 0), ins(ExprOp::arg_f, 1, 0, 0, 2), ins(ExprOp::mul_f, 0, 0, 1)},
      [](double acc, double bias, double x) { return 0.5 * (acc + bias) * std::erfc(-(acc + bias) / std::sqrt(2.0)) * x; });
  using Chosen = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::const_f, 2, 0, 0, 0>, Ins<ExprOp::lt_f, 3, 2, 1, 0>, Ins<ExprOp::arg_f, 4, 0, 0, 2>,
                      Ins<ExprOp::add_f, 5, 0, 4, 0>, Ins<ExprOp::select_f, 0, 3, 5, 0>>;
  EXPECT_EQ(Chosen::Bind<2>::kAddends, 0u) << "what a select chooses from is its third register, too";
  check_blocks<Dtype::bf16, 64, Chosen>(
      44, 130, 64, 72, 0, true,
      {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::const_f, 2), ins(ExprOp::lt_f, 3, 2, 1), ins(ExprOp::arg_f, 4, 0, 0, 2), ins(ExprOp::add_f, 5, 0, 4), ins(ExprOp::select_f, 0, 3, 5, 0)},
      [](double acc, double bias, double x) { return bias > 0 ? acc + x : acc; });
  using Divided = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::div_f, 0, 0, 1, 0>>;
  EXPECT_FALSE(kMayBeHeld<Divided::Bind<2>>) << "a division calls a function";
  using Tripled = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
  static_assert(Tripled::Bind<2>::kAddends == 0);
}

// What mark_shape says of [rows, depth] times [depth, columns] in bf16, b in columns; `change` makes an op of it that is not for groups.
template <class Change>
wire::u8 flags_of(Change change) {
  Bench b(20);
  const Tensor a = b.tensor(Dtype::bf16, {1, 1, 256, 64}, true), out = b.tensor(Dtype::bf16, {1, 1, 256, 256}, true);
  Tensor w = b.tensor(Dtype::bf16, {1, 1, 256, 64}, true);
  std::swap(w.dim[2], w.dim[3]);
  std::swap(w.stride[2], w.stride[3]);
  b.operands = {a, w, out};
  b.op.dims[wire::kEpilogueDim] = 2;
  b.tiles(out.dim, {1, 1, 128, 256});
  change(b);
  (void)b.run_by(OpCode::matmul, 2, [](const auto&, const auto&) { return FaultCode::none; });
  return b.op.flags;
}

TEST(ProductGroup, OnlyWhatLiesInPacketsOfTilesThatFill) {
  EXPECT_NE(flags_of([](Bench&) {}) & wire::kOpGroups, 0);
  const auto refused = [](auto change) { return (flags_of(change) & wire::kOpGroups) == 0; };
  EXPECT_TRUE(refused([](Bench& b) { b.tiles({1, 1, 256, 256}, {1, 1, 8, 256}); }));
  EXPECT_TRUE(refused([](Bench& b) { b.tiles({1, 1, 256, 256}, {1, 1, 128, 32}); }));
  EXPECT_TRUE(refused([](Bench& b) { b.tiles({1, 1, 256, 256}, {1, 1, 256, 256}); }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[0].stride[2] = 68; }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[1].stride[3] = 1 << 23; }));
  EXPECT_TRUE(refused([](Bench& b) { std::swap(b.operands[1].stride[2], b.operands[1].stride[3]); }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[0].dtype = b.operands[1].dtype = Dtype::f32; }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[1].dtype = Dtype::f16; }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[1].offset += 8; }));
  EXPECT_TRUE(refused([](Bench& b) { b.operands[2].stride[3] = 2; }));
  EXPECT_TRUE(refused([](Bench& b) { b.op.dims[wire::kTwinDim] = 1; }));
}

}  // namespace
}  // namespace ccks::worker::test

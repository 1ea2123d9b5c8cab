// Products whose depth tiles share out: on emulated groups of warps, which do, and on all other machines, where the first chunk's tiles do all.
#include "ccks/worker/product_split.hpp"

#include <numeric>

#include "ccks/worker/grouped_ops.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

struct Size {
  int rows, columns, depth, chunks;
  Index tile;
};

std::vector<u32> tile_order;
template <class Op>
struct InOrder {
  template <class Lanes>
  static FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    return Op::run(lanes, frame, op, tile_order[tile]);
  }
};

template <Dtype D>
struct SplitProduct {
  using Op = GroupedOp<OpCode::matmul, Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>, 0, D, D, D, D>;

  SplitProduct(std::uint32_t seed, const Size& of) : size(of), b(seed) {
    a = b.tensor(D, {1, 1, of.rows, of.depth}, true);
    w = b.tensor(D, {1, 1, of.columns, of.depth}, true);
    added = b.tensor(D, {1, 1, of.rows, of.columns}, true);
    out = b.tensor(D, added.dim, true);
    parts = b.tensor(Dtype::f32, {1, of.chunks, 64, of.columns}, true);
    for (const Tensor& t : {a, w, added}) b.fill(t, -1, 1);
    std::swap(w.dim[2], w.dim[3]);
    std::swap(w.stride[2], w.stride[3]);
    w.flags = 0;
    b.code = {ins(ExprOp::arg_f, 0), ins(ExprOp::arg_f, 1, 0, 0, 1), ins(ExprOp::add_f, 0, 0, 1)};
    b.op.dims[wire::kEpilogueDim] = 2;
    b.tiles({of.chunks, 1, of.rows, of.columns}, of.tile);
    arrived = b.tensor(Dtype::i32, {1, 1, 1, b.op.grid[2] * b.op.grid[3]}, true);
    b.operands = {a, w, added, out, parts, arrived};
  }

  void begin() {
    b.fill(out, 7, 7);
    b.fill(parts, 100, 100);
    b.fill(arrived, 0, 0);
  }
  void expect_right(double arrivals) {
    Bench::each(out.dim, [&](const Index& c) {
      double want = b.get(added, c);
      for (int i = 0; i < size.depth; ++i) want += b.get(a, {0, 0, c[2], i}) * b.get(w, {0, 0, i, c[3]});
      ASSERT_NEAR(b.get(out, c), want, 0.008 * std::abs(want) + 2e-3) << "row " << c[2] << ", column " << c[3] << b.describe();
    });
    Bench::each(arrived.dim, [&](const Index& c) { ASSERT_EQ(b.get(arrived, c), arrivals); });
  }
  void check_groups() {
    tile_order.resize(b.op.tile_count);
    std::iota(tile_order.begin(), tile_order.end(), 0u);
    for (int turn = 0; turn < 3; ++turn) {
      begin();
      const FaultCode fault =
          b.run_by(OpCode::matmul, 3, [&](const auto& frame, const auto& op) { return run_on_warps<InOrder<Op>, GroupWarps>(frame, op, op.tile_count, [](const GroupWarps&) {}); });
      ASSERT_EQ(fault, FaultCode::none);
      EXPECT_NE(b.op.flags & wire::kOpGroups, 0);
      expect_right(size.chunks > 1 ? size.chunks : 0);
      std::shuffle(tile_order.begin(), tile_order.end(), b.rng);
      if (testing::Test::HasFailure()) return;
    }
  }
  void check_others() {
    for (const Machine machine : {Machine::host, Machine::host_small_scratch, Machine::emulated, Machine::emulated_warps}) {
      begin();
      ASSERT_EQ(b.run(machine, OpCode::matmul, 3), FaultCode::none);
      expect_right(0);
    }
  }

  Size size;
  Bench b;
  Tensor a, w, added, out, parts, arrived;
};

TEST(ProductSplit, ChunksTogetherAreTheWhole) {
  SplitProduct<Dtype::bf16>(1, {64, 64, 1024, 4, {1, 1, 64, 64}}).check_groups();
  SplitProduct<Dtype::f16>(2, {16, 200, 1288, 3, {1, 1, 16, 64}}).check_groups();
  SplitProduct<Dtype::bf16>(3, {33, 128, 640, 2, {1, 1, 64, 128}}).check_groups();
  SplitProduct<Dtype::bf16>(4, {60, 96, 1160, 5, {1, 1, 32, 64}}).check_groups();
}
TEST(ProductSplit, MoreChunksThanSteps) { SplitProduct<Dtype::bf16>(5, {20, 64, 200, 4, {1, 1, 32, 64}}).check_groups(); }
TEST(ProductSplit, OneChunkIsTheWhole) { SplitProduct<Dtype::bf16>(6, {64, 64, 256, 1, {1, 1, 64, 64}}).check_groups(); }
TEST(ProductSplit, OthersLeaveItToTheFirstChunk) {
  SplitProduct<Dtype::bf16>(7, {16, 72, 136, 3, {1, 1, 16, 64}}).check_others();
  SplitProduct<Dtype::bf16>(8, {3, 64, 512, 2, {1, 1, 8, 64}}).check_others();  // of few rows, for bodies of vectors
  SplitProduct<Dtype::f16>(9, {1, 64, 520, 4, {1, 1, 8, 64}}).check_others();
}

// A tile that has nothing to do would leave its weights in the ring, and a body that begins early would never be told to go on.
TEST(ProductSplit, NeitherStreamsNorBeginsEarly) {
  SplitProduct<Dtype::bf16> product(10, {1, 64, 512, 2, {1, 1, 1, 64}});
  product.w.flags |= wire::kOperandStreamed;
  product.b.operands[1].flags |= wire::kOperandStreamed;
  const auto flags = [&] {
    wire::u8 found = 0;
    (void)product.b.run_by(OpCode::matmul, 3, [&](const auto&, const auto& op) { return found = op.flags, FaultCode::none; });
    return found;
  };
  EXPECT_EQ(flags() & (wire::kOpVectors | wire::kOpStreams | wire::kOpEarly), wire::kOpVectors);
  product.b.operands.resize(4);
  product.b.tiles(product.out.dim, {1, 1, 1, 64});
  EXPECT_NE(flags() & wire::kOpEarly, 0);
}

}  // namespace
}  // namespace ccks::worker::test

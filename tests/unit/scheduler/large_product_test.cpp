// Products of many rows as an instance sees them: tiles that go in turn, and what a tile is thought to take where a GPU has it on matrix units.
#include <gtest/gtest.h>

#include <array>

#include "scheduler/instance.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::int64_t kRows = 4096, kColumns = 2048, kDepth = 512;

// [kRows, kDepth] times [kDepth, kColumns], b in columns, by tiles of 128 x 256.
struct Product {
  std::vector<plan::DimNode> dims;
  std::vector<plan::OpDesc> ops;
  std::vector<plan::OperandDesc> operands;
  plan::PlanView view;
  PlanTables tables;
  Instance instance;

  // experts: of a product of experts, else 0.
  Product(wire::Dtype dtype, std::int64_t tile_rows, std::uint32_t record_capacity, std::int64_t experts = 0) {
    const auto one = constant(1), zero = constant(0), rows = constant(kRows), columns = constant(kColumns), depth = constant(kDepth);
    plan::OpDesc op{};
    op.name = "product";
    op.kind = experts != 0 ? wire::OpCode::expert_matmul : wire::OpCode::matmul;
    op.groups_body = 5;
    std::fill(std::begin(op.grid), std::end(op.grid), one);
    std::fill(std::begin(op.tile), std::end(op.tile), one);
    std::fill(std::begin(op.dims), std::end(op.dims), zero);
    op.dims[2] = constant(experts);
    op.tile[2] = constant(tile_rows), op.tile[3] = constant(256);
    op.grid[2] = constant(kRows / tile_rows), op.grid[3] = constant(kColumns / 256);
    op.input_count = 2;
    op.output_count = 1;
    op.report = op.dynamic_report = plan::kNone;
    op.bytes_read = constant(2 * (kRows + kColumns) * kDepth);
    op.bytes_written = constant(2 * kRows * kColumns);
    op.operations = constant(2 * kRows * kColumns * kDepth);
    ops = {op};
    const auto operand = [&](std::array<plan::DimId, 4> dim, std::array<plan::DimId, 4> stride) {
      plan::OperandDesc o{};
      o.space = wire::Space::arena;
      o.dtype = dtype;
      o.rank = 2;
      o.tensor = plan::kNone;
      o.offset = zero;
      std::copy_n(dim.data(), 4, o.dim);
      std::copy_n(stride.data(), 4, o.stride);
      operands.push_back(o);
    };
    operand({one, one, rows, depth}, {zero, zero, depth, one});
    operand({one, one, depth, columns}, {zero, zero, one, depth});
    operand({one, one, rows, columns}, {zero, zero, columns, one});
    view.name = "product";
    view.dims = dims;
    view.ops = ops;
    view.operands = operands;
    tables = make_plan_tables(view, 4, Spine::tiles).value();
    tables.record_capacity = record_capacity;
    instance.reserve(tables);
    std::vector<std::int64_t> values;
    for (const plan::DimNode& node : dims) values.push_back(node.value);
    EXPECT_TRUE(instance.rebuild(tables, {}, values, SlotMemory{}, 0, 0, 0).ok());
  }
  plan::DimId constant(std::int64_t value) {
    dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(dims.size() - 1);
  }
  const OpInstance& op() const { return instance.ops()[0]; }
};

TEST(LargeProduct, TilesThatReadTheSameGoInTurn) {
  const Product large(wire::Dtype::bf16, 128, 0);
  EXPECT_TRUE(large.op().in_turn);
  EXPECT_EQ(large.op().chunk, 1u);
  EXPECT_FALSE(Product(wire::Dtype::bf16, 8, 0).op().in_turn) << "no tile for groups of warps";
  EXPECT_FALSE(Product(wire::Dtype::f32, 128, 0).op().in_turn);
}

// Whatever their number: which tiles there are only the counts say, and they come first.
TEST(LargeProduct, TilesOfExpertsGoInTurn) {
  for (const std::int64_t experts : {kRows / 32, kRows / 2, kRows, 16 * kRows}) EXPECT_TRUE(Product(wire::Dtype::bf16, 8, 0, experts).op().in_turn) << experts;
}

TEST(LargeProduct, RunsTheBodyForGroupsWhereItsTilesAreForThem) {
  EXPECT_EQ(Product(wire::Dtype::bf16, 128, 0).instance.op(0).body, 5u);
  EXPECT_EQ(Product(wire::Dtype::bf16, 8, 0).instance.op(0).body, 0u);
  EXPECT_EQ(Product(wire::Dtype::f32, 128, 0).instance.op(0).body, 0u);
}

TEST(LargeProduct, CostsWhatMatrixUnitsTake) {
  const std::uint32_t host = Product(wire::Dtype::bf16, 128, 0).op().tile_cost, units = Product(wire::Dtype::bf16, 128, 1024).op().tile_cost;
  EXPECT_GT(host, 30 * units);
  EXPECT_EQ(Product(wire::Dtype::f32, 128, 1024).op().tile_cost, host);
}

}  // namespace
}  // namespace ccks::scheduler

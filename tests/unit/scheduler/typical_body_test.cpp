// The body that is made for an op's typical shape runs where the op has it, and nowhere else.
#include <gtest/gtest.h>

#include <array>

#include "ccks/plan_eval.hpp"
#include "scheduler/instance.hpp"

namespace ccks::scheduler {
namespace {

using plan::DimId;
using plan::DimOp;

// One op over [n, 8] rows of a place that begins at `at` bytes: made for n = 4.
struct Rows {
  std::vector<plan::SymbolDesc> symbols = {{"n", 1, 64, 4, true}, {"at", 0, 64, 0, true}};
  std::vector<plan::DimNode> dims = {
      {DimOp::constant, 0, 0, 1}, {DimOp::constant, 0, 0, 8}, {DimOp::constant, 0, 0, 0}, {DimOp::symbol, 0, 0, 0}, {DimOp::symbol, 0, 0, 1}};
  std::vector<plan::OpDesc> ops;
  std::vector<plan::OperandDesc> operands;
  plan::PlanView view;
  PlanTables tables;
  Instance instance;

  Rows() {
    const DimId one = 0, eight = 1, zero = 2, n = 3, at = 4;
    plan::OpDesc op{};
    op.name = "rows";
    op.kind = wire::OpCode::map;
    op.body = 3;
    op.typical_body = 7;
    std::fill(std::begin(op.grid), std::end(op.grid), one);
    std::fill(std::begin(op.tile), std::end(op.tile), one);
    std::fill(std::begin(op.dims), std::end(op.dims), zero);
    op.tile[3] = eight;
    op.grid[2] = n;
    op.output_count = 1;
    op.report = op.dynamic_report = plan::kNone;
    op.bytes_read = op.bytes_written = op.operations = one;
    ops = {op};
    plan::OperandDesc operand{};
    operand.space = wire::Space::arena;
    operand.dtype = wire::Dtype::f32;
    operand.rank = 2;
    operand.tensor = plan::kNone;
    operand.offset = at;
    std::copy_n(std::array{one, one, n, eight}.data(), 4, operand.dim);
    std::copy_n(std::array{zero, zero, eight, one}.data(), 4, operand.stride);
    operands = {operand};
    view.name = "rows";
    view.symbols = symbols;
    view.dims = dims;
    view.ops = ops;
    view.operands = operands;
    tables = make_plan_tables(view, 2, Spine::tiles).value();
    instance.reserve(tables);
  }

  unsigned body_at(std::int64_t n, std::int64_t at) {
    const std::array<std::int64_t, 2> values = {n, at};
    std::vector<std::int64_t> all(dims.size());
    EXPECT_TRUE(plan::evaluate_dims(view.dims, values, all));
    EXPECT_TRUE(instance.rebuild(tables, values, all, SlotMemory{}, 0, 0, 0).ok());
    return instance.op(0).body;
  }
};

TEST(TypicalBody, RunsWhereTheShapeIsTypical) {
  Rows rows;
  EXPECT_EQ(rows.body_at(4, 0), 7u);
  EXPECT_EQ(rows.body_at(5, 0), 3u) << "another shape";
  EXPECT_EQ(rows.body_at(4, 32), 7u) << "another place";
  EXPECT_EQ(rows.body_at(4, 8), 3u) << "a place that vectors cannot begin at";
}

TEST(TypicalBody, OneBodyForAllStaysTheOne) {
  Rows rows;
  rows.ops[0].typical_body = 3;
  EXPECT_EQ(rows.body_at(4, 0), 3u);
}

}  // namespace
}  // namespace ccks::scheduler

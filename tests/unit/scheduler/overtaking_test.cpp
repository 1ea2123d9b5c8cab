// Which tiles may take their row by tags, before the events that say that it is there.
#include "scheduler/overtaking.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>

#include "ccks/plan_eval.hpp"
#include "scheduler/instance.hpp"

namespace ccks::scheduler {
namespace {

using plan::DimId;
using plan::DimOp;
using plan::TensorKind;

constexpr std::uint32_t kWidth = 512, kWorkers = 8;
constexpr std::uint64_t kTensorBytes = 16 * kWidth * 2;
enum Op : std::uint32_t { kFirst, kSecond, kThird, kSide, kLast, kOps };
enum Tensor : std::uint32_t { kX, kH0, kH1, kH2, kZ, kY, kWeights, kTensors };

// h0 = x w, h1 = h0 w, h2 = h1 w + h0, z = x w on its own, y = h2 w: 16-bit floats in rows of 512, weights in columns. The second product has four tiles, the others 32.
struct Rows {
  std::vector<plan::DimNode> dims;
  std::vector<plan::TensorDesc> tensors;
  std::vector<plan::OpDesc> ops;
  std::vector<plan::OperandDesc> operands;
  std::vector<plan::WaitDesc> waits;
  std::vector<plan::SignalDesc> signals;
  std::vector<std::int64_t> values, given;
  plan::PlanView view;
  PlanTables tables;
  Instance instance;

  std::vector<plan::SymbolDesc> symbols;

  explicit Rows(std::int64_t rows = 1) : rows_(rows) {
    for (std::uint32_t t = 0; t < kTensors; ++t) {
      const TensorKind kind = t == kWeights ? TensorKind::weight : t == kX ? TensorKind::input : t == kY ? TensorKind::output : TensorKind::intermediate;
      plan::TensorDesc tensor{};
      tensor.name = "t";
      tensor.kind = kind;
      tensor.space = t == kWeights ? wire::Space::weights : wire::Space::arena;
      tensor.dtype = wire::Dtype::bf16;
      tensor.offset = t == kWeights ? 0 : t * kTensorBytes;
      tensor.max_bytes = t == kWeights ? kWidth * kWidth * 2 : kTensorBytes;
      tensors.push_back(tensor);
    }
    add_op(kX, kH0, plan::kNone, 16, {});
    add_op(kH0, kH1, plan::kNone, 128, {kFirst});
    add_op(kH1, kH2, kH0, 16, {kSecond});
    add_op(kX, kZ, plan::kNone, 16, {});
    add_op(kH2, kY, plan::kNone, 16, {kThird});
  }

  DimId constant(std::int64_t value) {
    dims.push_back({DimOp::constant, 0, 0, value});
    return static_cast<DimId>(dims.size() - 1);
  }
  /// Of 1 to 4, here 1.
  DimId symbol() {
    symbols.push_back({"n", 1, 4, 1, true});
    dims.push_back({DimOp::symbol, 0, 0, static_cast<std::int64_t>(symbols.size() - 1)});
    return static_cast<DimId>(dims.size() - 1);
  }
  void add_operand(std::uint32_t tensor) {
    const bool weights = tensor == kWeights;
    plan::OperandDesc operand{};
    operand.space = tensors[tensor].space;
    operand.dtype = wire::Dtype::bf16;
    operand.rank = 2;
    operand.flags = weights ? wire::kOperandStreamed : wire::kOperandContiguous;
    operand.tensor = tensor;
    operand.offset = constant(static_cast<std::int64_t>(tensors[tensor].offset));
    const DimId one = constant(1), none = constant(0), width = constant(kWidth);
    std::copy_n(std::array{one, one, weights ? width : constant(rows_), width}.data(), 4, operand.dim);
    std::copy_n(std::array{none, none, weights ? one : width, weights ? width : one}.data(), 4, operand.stride);
    operands.push_back(operand);
  }
  void add_op(std::uint32_t in, std::uint32_t out, std::uint32_t beside, std::int64_t columns, std::vector<std::uint32_t> producers) {
    const DimId one = constant(1);
    const auto index = static_cast<std::uint32_t>(ops.size());
    plan::OpDesc op{};
    op.name = "product";
    op.kind = wire::OpCode::matmul;
    std::fill(std::begin(op.grid), std::end(op.grid), one);
    std::fill(std::begin(op.tile), std::end(op.tile), one);
    std::fill(std::begin(op.dims), std::end(op.dims), constant(0));
    op.dims[wire::kEpilogueDim] = constant(2);
    op.grid[3] = constant(kWidth / columns);
    op.tile[2] = constant(rows_);
    op.tile[3] = constant(columns);
    op.output_count = 1;
    op.report = op.dynamic_report = plan::kNone;
    op.bytes_read = op.bytes_written = op.operations = one;
    op.operand_first = static_cast<std::uint32_t>(operands.size());
    add_operand(in);
    add_operand(kWeights);
    if (beside != plan::kNone) add_operand(beside);
    add_operand(out);
    op.input_count = static_cast<std::uint16_t>(operands.size() - op.operand_first - 1);
    op.wait_first = static_cast<std::uint32_t>(waits.size());
    ops.push_back(op);
    for (const std::uint32_t producer : producers) add_wait(producer);
    ops.back().signal_first = index;
    ops.back().signal_count = 1;
    signals.push_back({index, index, 1, one, op.grid[3], {-1, -1}, {constant(0), constant(0)}});
  }
  /// Of the op added last.
  void add_wait(std::uint32_t producer) {
    const DimId one = constant(1);
    waits.push_back({producer, producer, {{-1, one, one, one, one, one, one}, {-1, one, one, one, one, one, one}}});
    ++ops.back().wait_count;
  }

  void load() {
    view.name = "rows";
    view.symbols = symbols;
    view.dims = dims;
    view.tensors = tensors;
    view.ops = ops;
    view.operands = operands;
    view.waits = waits;
    view.signals = signals;
    view.event_count = kOps;
    view.max_tasks = 256;
    view.arena_bytes = kWeights * kTensorBytes;
    view.weight_bytes = kWidth * kWidth * 2;
    tables = make_plan_tables(view, kWorkers, Spine::whole, true, false).value();
    find_row_edges(tables);
    instance.reserve(tables);
    rebuild(1);
  }
  /// `n`: of the symbol, if there is one.
  void evaluate(std::int64_t n) {
    given.assign(symbols.size(), n);
    values.assign(dims.size(), 0);
    ASSERT_TRUE(plan::evaluate_dims(view.dims, given, values));
  }
  void rebuild(std::int64_t n) {
    evaluate(n);
    ASSERT_TRUE(instance.rebuild(tables, given, values, SlotMemory{}, 0, 0, 0).ok());
  }
  Result<bool> update(std::int64_t n) {
    evaluate(n);
    return instance.update(tables, given, values);
  }
  const wire::RunFrame& head() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
  /// From the arena's begin; 0: it has none.
  std::uint64_t copy_of(std::uint32_t op, std::uint32_t operand) const {
    const wire::OperandParams& o = reinterpret_cast<const wire::OperandParams*>(instance.frame().data() + head().operands)[ops[op].operand_first + operand];
    return o.tags == 0 ? 0 : o.offset + o.tags;
  }
  struct Count {
    std::uint32_t waiting = 0, early = 0, early_on_others = 0;  // of workers without tiles of the second product
    bool operator==(const Count&) const = default;
  };
  Count count(std::uint32_t op) const {
    Count all;
    for (std::uint32_t list = 0; list < kWorkers; ++list) {
      const wire::ListParams params = instance.lists()[list];
      const auto* records = reinterpret_cast<const wire::TileRecord*>(instance.frame().data() + head().records) + params.first;
      const bool has_second = std::any_of(records, records + params.count, [](const wire::TileRecord& r) { return r.op == kSecond; });
      for (const wire::TileRecord& record : std::span(records, params.count)) {
        if (record.op != op || record.wait_count == 0) continue;
        const bool early = (record.flags & wire::kRecordEarly) != 0;
        ++all.waiting;
        all.early += early;
        all.early_on_others += early && !has_second;
      }
    }
    return all;
  }

 private:
  std::int64_t rows_;
};

void expect_all_early(const Rows& rows, std::uint32_t op) {
  const Rows::Count count = rows.count(op);
  EXPECT_NE(count.waiting, 0u) << "op " << op;
  EXPECT_EQ(count.early, count.waiting) << "op " << op;
}

TEST(Overtaking, ProductsOfOneRowTakeItByTags) {
  Rows rows;
  rows.load();
  ASSERT_EQ(rows.tables.rows.size(), 4u);
  const std::uint64_t h0 = rows.copy_of(kSecond, 0), h1 = rows.copy_of(kThird, 0), h2 = rows.copy_of(kLast, 0);
  EXPECT_EQ(rows.copy_of(kFirst, 2), h0);
  EXPECT_EQ(rows.copy_of(kThird, 2), h0) << "what the epilogue reads";
  EXPECT_EQ(rows.copy_of(kSecond, 2), h1);
  EXPECT_EQ(rows.copy_of(kThird, 3), h2);
  EXPECT_EQ(rows.copy_of(kFirst, 0), 0u) << "an input of the program";
  EXPECT_EQ(rows.copy_of(kLast, 2), 0u) << "an output of the program";
  EXPECT_EQ(std::set({h0, h1, h2}).size(), 3u);
  for (const std::uint64_t copy : {h0, h1, h2}) {
    EXPECT_GE(copy, rows.view.arena_bytes);
    EXPECT_LE(copy + kWidth * 4, rows.tables.arena_bytes);
    EXPECT_EQ(copy % 256, 0u);
  }
  for (const std::uint32_t op : {kSecond, kThird, kLast}) expect_all_early(rows, op);
}

TEST(Overtaking, SeveralRowsHaveNone) {
  Rows rows(2);
  rows.load();
  for (std::uint32_t op = 0; op < kOps; ++op) {
    EXPECT_EQ(rows.count(op).early, 0u);
    EXPECT_EQ(rows.copy_of(op, 0), 0u);
  }
}

TEST(Overtaking, WhatHasNoTagsItsWorkerMustHaveSeen) {
  Rows rows;
  rows.operands[rows.ops[kThird].operand_first + 2].stride[3] = rows.constant(0);  // one value for all
  rows.load();
  ASSERT_EQ(rows.copy_of(kThird, 2), 0u);
  const Rows::Count third = rows.count(kThird);
  EXPECT_GT(third.early, 0u) << "workers that have waited for h0 have seen it";
  EXPECT_LT(third.early, third.waiting);
  EXPECT_EQ(third.early_on_others, 0u);
  expect_all_early(rows, kLast);
}

/// It stores nothing before those have ended, as any tile.
TEST(Overtaking, AWaitForOthersChangesNothing) {
  for (const std::uint32_t other : {kSide, kFirst}) {
    Rows rows;
    rows.add_wait(other);
    rows.load();
    for (const std::uint32_t op : {kThird, kLast}) expect_all_early(rows, op);
  }
}

TEST(Overtaking, OpsOfManyOperandsAreReadWhereTheyLie) {
  Rows rows;
  plan::OpDesc& last = rows.ops[kLast];
  plan::OperandDesc value = rows.operands[last.operand_first + 1];  // one, for all columns
  std::fill_n(value.dim, 4, rows.constant(1));
  std::fill_n(value.stride, 4, rows.constant(0));
  rows.operands.insert(rows.operands.begin() + last.operand_first + 2, 6, value);
  last.input_count = 8;
  rows.load();
  EXPECT_EQ(rows.copy_of(kLast, 0), 0u);
  EXPECT_EQ(rows.count(kLast).early, 0u);
  expect_all_early(rows, kThird);
}

TEST(Overtaking, OfANormsWeightNoBodyFindsTags) {
  Rows rows;
  rows.ops[kThird].dims[wire::kNormDim] = rows.constant(2);
  rows.load();
  EXPECT_EQ(rows.copy_of(kThird, 2), 0u);
  const Rows::Count third = rows.count(kThird);
  EXPECT_LT(third.early, third.waiting);
}

/// Rows of another shape: as where a program made for one has several.
TEST(Overtaking, ListsAreMadeAnewWhereARowIsNotTakenAnyMore) {
  Rows rows;
  const DimId last = rows.symbol();  // rows of what kThird makes
  for (const std::uint32_t operand : {rows.ops[kThird].operand_first + 3, rows.ops[kLast].operand_first}) rows.operands[operand].dim[2] = last;
  rows.load();
  expect_all_early(rows, kLast);
  EXPECT_TRUE(rows.update(1).value());
  expect_all_early(rows, kLast);
  EXPECT_FALSE(rows.update(2).value());
  EXPECT_EQ(rows.copy_of(kLast, 0), 0u);
  rows.rebuild(2);
  EXPECT_EQ(rows.count(kLast).early, 0u);
  expect_all_early(rows, kThird);
  EXPECT_FALSE(rows.update(1).value()) << "nor where it could be taken";
}

TEST(Overtaking, AnOpWithTwoWritersHasNoTags) {
  Rows rows;
  plan::OperandDesc& z = rows.operands[rows.ops[kSide].operand_first + 2];
  z.tensor = kH2;
  z.offset = rows.constant(kH2 * static_cast<std::int64_t>(kTensorBytes));
  rows.load();
  EXPECT_EQ(rows.copy_of(kLast, 0), 0u);
  EXPECT_EQ(rows.count(kLast).early, 0u);
}

}  // namespace
}  // namespace ccks::scheduler

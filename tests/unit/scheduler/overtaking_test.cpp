// Which tiles may take their row by tags, before the events that say that it is there.
#include "scheduler/overtaking.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <set>

#include "tests/unit/scheduler/product_plan.hpp"

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
struct Rows : test::ProductPlan {
  std::vector<std::int64_t> given;

  explicit Rows(std::int64_t rows = 1) : rows_(rows) {
    for (std::uint32_t t = 0; t < kWeights; ++t)
      add_tensor(t == kX ? TensorKind::input : t == kY ? TensorKind::output : TensorKind::intermediate, wire::Dtype::bf16, t * kTensorBytes, kTensorBytes);
    add_tensor(TensorKind::weight, wire::Dtype::bf16, 0, kWidth * kWidth * 2);
    add_op(kX, kH0, plan::kNone, 16, {});
    add_op(kH0, kH1, plan::kNone, 128, {kFirst});
    add_op(kH1, kH2, kH0, 16, {kSecond});
    add_op(kX, kZ, plan::kNone, 16, {});
    add_op(kH2, kY, plan::kNone, 16, {kThird});
  }

  /// Of 1 to 4, here 1.
  DimId symbol() {
    symbols.push_back({"n", 1, 4, 1, true});
    dims.push_back({DimOp::symbol, 0, 0, static_cast<std::int64_t>(symbols.size() - 1)});
    return static_cast<DimId>(dims.size() - 1);
  }
  void add_op(std::uint32_t in, std::uint32_t out, std::uint32_t beside, std::int64_t columns, const std::vector<std::uint32_t>& producers) {
    begin_op(rows_, kWidth, columns).dims[wire::kEpilogueDim] = constant(2);
    add_operand(in, rows_, kWidth, wire::kOperandContiguous);
    add_operand(kWeights, kWidth, kWidth, wire::kOperandStreamed, true);
    if (beside != plan::kNone) add_operand(beside, rows_, kWidth, wire::kOperandContiguous);
    add_operand(out, rows_, kWidth, wire::kOperandContiguous);
    finish_op(producers);
  }

  void load() {
    show("rows", kWeights * kTensorBytes, kWidth * kWidth * 2);
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

// Which products may take their input from a tagged copy, and where the copies lie.
#include "scheduler/tagged_edges.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "tests/unit/scheduler/product_plan.hpp"

namespace ccks::scheduler {
namespace {

using plan::DimId;
using plan::DimOp;
using plan::TensorKind;

constexpr std::uint32_t kWidth = 64, kLayers = 3;
constexpr std::uint64_t kTensorBytes = 1024;

// Three products, one behind the other: h0 = x w, h1 = h0 w, y = h1 w, each of [rows, 64].
struct Chain : test::ProductPlan {  // tensors x, h0, h1, y, then w; of op i operands a 3 i, b, out, and a wait for i - 1
  explicit Chain(std::int64_t rows = 1) {
    for (std::uint32_t i = 0; i <= kLayers; ++i) {
      const bool inner = i > 0 && i < kLayers;
      add_tensor(inner ? TensorKind::intermediate : i == 0 ? TensorKind::input : TensorKind::output, wire::Dtype::f32, i * kTensorBytes, kTensorBytes);
    }
    add_tensor(TensorKind::weight, wire::Dtype::f32, 0, kTensorBytes);
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      begin_op(rows, kWidth, 8);
      add_operand(i, rows, kWidth, wire::kOperandContiguous);
      add_operand(kLayers + 1, kWidth, kWidth, wire::kOperandContiguous | wire::kOperandStreamed);
      add_operand(i + 1, rows, kWidth, wire::kOperandContiguous);
      finish_op(i > 0 ? std::vector<std::uint32_t>{i - 1} : std::vector<std::uint32_t>{});
    }
  }

  void load(bool records = true, bool finds_tags = false, bool chained = false) {
    show("chain", (kLayers + 1) * kTensorBytes, 0);
    view.state_bytes = chained ? 16 : 0;
    tables = make_plan_tables(view, 4, Spine::whole, records, chained).value();
    tables.finds_tags = finds_tags;
    values.assign(dims.size(), 0);
    ASSERT_TRUE(plan::evaluate_dims(view.dims, {}, values));
    instance.reserve(tables);
    ASSERT_TRUE(instance.rebuild(tables, {}, values, SlotMemory{}, 0, 0, 0).ok());
  }
  std::vector<std::uint32_t> consumers() {
    std::vector<std::uint32_t> all;
    for (const TaggedEdge& edge : tables.tagged) all.push_back(edge.consumer);
    return all;
  }
  /// From the arena's begin.
  std::uint64_t copy_of(std::uint32_t operand) const {
    const auto& head = *reinterpret_cast<const wire::RunFrame*>(instance.frame().data());
    const auto* table = reinterpret_cast<const wire::OperandParams*>(instance.frame().data() + head.operands);
    return table[operand].tags == 0 ? 0 : table[operand].offset + table[operand].tags;
  }
  /// Ops whose inputs have tags alone.
  std::vector<std::uint32_t> alone() const {
    std::vector<std::uint32_t> all;
    const auto* table = reinterpret_cast<const wire::OperandParams*>(instance.frame().data() + head().operands);
    for (std::uint32_t op = 0; op < ops.size(); ++op) {
      if ((table[ops[op].operand_first].flags & wire::kOperandTagsAlone) != 0) all.push_back(op);
    }
    return all;
  }
  const wire::RunFrame& head() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
  std::span<const wire::TileRecord> list(std::uint32_t index) const {
    const wire::ListParams list = instance.lists()[index];
    return {reinterpret_cast<const wire::TileRecord*>(instance.frame().data() + head().records) + list.first, list.count};
  }
};

using Consumers = std::vector<std::uint32_t>;

TEST(TaggedEdges, ProductsInAChainHandOverTaggedCopies) {
  for (const std::int64_t rows : {1, 4, 8}) {
    Chain chain(rows);
    chain.load();
    EXPECT_EQ(chain.consumers(), (Consumers{1, 2}));
    const std::uint64_t first = chain.copy_of(3), second = chain.copy_of(6);
    EXPECT_EQ(chain.copy_of(2), first) << "the producer's output";
    EXPECT_EQ(chain.copy_of(5), second);
    EXPECT_EQ(chain.copy_of(0), 0u);
    EXPECT_EQ(chain.copy_of(8), 0u) << "an output of the program";
    EXPECT_GE(first, chain.view.arena_bytes) << "room of its own";
    EXPECT_GE(second, first + 2 * kTensorBytes);
    EXPECT_GE(chain.tables.arena_bytes, second + 2 * kTensorBytes);
    EXPECT_EQ(first % 256, 0u);
  }
}

TEST(TaggedEdges, AnOperandThatBeginsInsideHasItsPartOfTheCopy) {
  Chain chain;
  chain.dims[chain.operands[3].offset].value += 32;
  chain.load();
  EXPECT_EQ(chain.copy_of(3), chain.copy_of(2) + 64);
}

TEST(TaggedEdges, BodiesOfManyRowsHaveNone) {
  Chain chain(16);
  chain.load();
  EXPECT_EQ(chain.consumers(), (Consumers{1, 2}));
  for (std::uint32_t operand = 0; operand < chain.operands.size(); ++operand) EXPECT_EQ(chain.copy_of(operand), 0u);
}

TEST(TaggedEdges, WhatMakesOvertakingWrongForbidsIt) {
  const auto left = [](const std::function<void(Chain&)>& change, bool records = true) {
    Chain chain;
    change(chain);
    chain.load(records);
    return chain.consumers();
  };
  EXPECT_EQ(left([](Chain&) {}), (Consumers{1, 2}));
  EXPECT_EQ(left([](Chain&) {}, false), Consumers{}) << "tasks that workers cut";
  EXPECT_EQ(left([](Chain& c) { c.ops[1].guard_count = 0, c.ops[0].kind = wire::OpCode::map; }), (Consumers{2})) << "no product tags it";
  EXPECT_EQ(left([](Chain& c) { c.tensors[1].dtype = wire::Dtype::bf16; }), (Consumers{2})) << "values that are no words";
  EXPECT_EQ(left([](Chain& c) { c.tensors[1].kind = TensorKind::output; }), (Consumers{2})) << "one that clients see";
  EXPECT_EQ(left([](Chain& c) { c.tensors[2].max_bytes = 1 << 20; }), Consumers{}) << "a large one; it now lies over the next, too";
  EXPECT_EQ(left([](Chain& c) { c.operands[4].space = wire::Space::arena; }), (Consumers{2})) << "weights that the run may write";
  EXPECT_EQ(left([](Chain& c) {
              c.waits.push_back(c.waits.back());
              c.waits.back().producer = c.waits.back().signal = 0;
              c.ops[2].wait_count = 2;
            }), (Consumers{1})) << "a wait for another op beside";
  EXPECT_EQ(left([](Chain& c) { c.tensors[2].offset = 0; }), (Consumers{2})) << "it writes over what an op before it reads";
  EXPECT_EQ(left([](Chain& c) { c.operands[2].tensor = 2; }), Consumers{}) << "two ops write what it reads";
  EXPECT_EQ(left([](Chain& c) { c.operands[8].tensor = 1; }), Consumers{}) << "another op writes over what it reads";
}

TEST(TaggedEdges, AChainFromTheBeginningNeedsNoEventsWhereBodiesFindTags) {
  Chain chain;
  chain.load(true, true);
  EXPECT_EQ(chain.alone(), (Consumers{1, 2}));
  std::uint32_t records = 0;
  for (std::uint32_t list = 0; list < 4; ++list) {
    std::uint32_t last = 0;
    for (const wire::TileRecord& record : chain.list(list)) {
      EXPECT_EQ(record.wait_count, 0u);
      EXPECT_EQ(record.signal_count, 0u) << "nobody waits for it";
      EXPECT_NE(record.flags & wire::kRecordEarly, 0) << "the gate waits for the end of its strand";
      EXPECT_EQ((record.flags & wire::kRecordJoined) != 0, &record != chain.list(list).data());
      EXPECT_LE(last, record.op) << "an op whose tags others of the list wait for stands behind them";
      last = record.op;
      ++records;
    }
  }
  EXPECT_EQ(records, kLayers * kWidth / 8);
}

TEST(TaggedEdges, WhatMakesEventsNecessaryKeepsThem) {
  const auto left = [](const std::function<void(Chain&)>& change, bool finds_tags = true, bool chained = false) {
    Chain chain;
    change(chain);
    chain.load(true, finds_tags, chained);
    std::uint32_t waits = 0;
    for (std::uint32_t list = 0; list < 4; ++list)
      for (const wire::TileRecord& record : chain.list(list)) waits += record.wait_count;
    EXPECT_GT(waits, 0u);
    return chain.alone();
  };
  EXPECT_EQ(left([](Chain&) {}, false), Consumers{}) << "bodies that may find no tags";
  EXPECT_EQ(left([](Chain& c) { c.ops[0].kind = wire::OpCode::map; }), Consumers{}) << "what comes behind waits for an op without tags, and others may rely on that";
  EXPECT_EQ(left([](Chain& c) { c.tensors[1].kind = TensorKind::output; }), Consumers{}) << "the same, of the first edge";
  EXPECT_EQ(left([](Chain& c) { c.ops[2].input_count = 2, c.operands[7].tensor = 1; }), Consumers{}) << "h0 is read by the last op, too";
  EXPECT_EQ(left([](Chain&) {}, true, true), Consumers{}) << "the first op waits for the run's turn";
}

}  // namespace
}  // namespace ccks::scheduler

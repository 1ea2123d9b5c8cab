// Ops that run before their run's turn (PlanTables::early).
#include <filesystem>

#include "tests/unit/scheduler/relay_rig.hpp"

namespace ccks::scheduler::test {
namespace {

std::vector<std::string> names_of_early(const PlanTables& tables) {
  std::vector<std::string> names;
  for (u32 op = 0; op < tables.op_count(); ++op) {
    if (tables.early[op] != 0) names.emplace_back(tables.plan.ops[op].name);
  }
  return names;
}

/// Whether `op` takes the turn or waits, at some remove, for one that does.
bool is_behind_turn(const PlanTables& tables, u32 op) {
  if (tables.takes_turn(op)) return true;
  const plan::OpDesc& desc = tables.plan.ops[op];
  for (const plan::WaitDesc& wait : tables.plan.waits.subspan(desc.wait_first, desc.wait_count)) {
    if (tables.early[wait.producer] == 0 && is_behind_turn(tables, wait.producer)) return true;
  }
  return false;
}

bool is_another_runs(const PlanTables& tables, const plan::OperandDesc& operand) {
  if (operand.space == wire::Space::state) return true;
  const plan::TensorKind kind = tables.plan.tensors[operand.tensor].kind;
  return kind == plan::TensorKind::input || kind == plan::TensorKind::output;
}

TEST(EarlyOps, OfALlamaTheAnglesAndZeros) {
  const RelayRig rig;
  EXPECT_EQ(names_of_early(rig.tables), (std::vector<std::string>{"arrived.zero", "rope.angles.0.pairs", "rope.angles.0"}));
}

TEST(EarlyOps, NoneWhereRunsAreKeptApart) {
  RelayOptions options;
  options.chain = false;
  const RelayRig rig(options);
  EXPECT_TRUE(rig.tables.early.empty());
}

// Of every example that has state.
TEST(EarlyOps, TouchNothingOfOtherRunsAndLeaveNoOtherOpInFrontOfTheTurn) {
  int chained = 0;
  for (const auto& file : std::filesystem::directory_iterator(std::string(CCKS_SOURCE_DIR) + "/spec/examples")) {
    if (file.path().extension() != ".yaml") continue;
    const spec::ParseResult parsed = spec::parse_file(file.path().string(), {});
    ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    codegen::PlanOptions options;
    options.device = "cuda";
    options.workers = 8;
    const auto image = codegen::make_plan(codegen::rewrite_program(parsed.program, options), options).value();
    const PlanTables tables = make_plan_tables(image->view(), options.workers, Spine::whole, true, true).value();
    if (!tables.chained()) continue;
    ++chained;
    for (u32 op = 0; op < tables.op_count(); ++op) {
      const plan::OpDesc& desc = tables.plan.ops[op];
      if (tables.early[op] == 0) {
        EXPECT_TRUE(is_behind_turn(tables, op)) << file.path() << ": " << desc.name;
        continue;
      }
      for (const plan::OperandDesc& operand : tables.plan.operands.subspan(desc.operand_first, desc.input_count + desc.output_count)) {
        EXPECT_FALSE(is_another_runs(tables, operand)) << file.path() << ": " << desc.name;
      }
      for (const plan::WaitDesc& wait : tables.plan.waits.subspan(desc.wait_first, desc.wait_count)) EXPECT_NE(tables.early[wait.producer], 0) << file.path() << ": " << desc.name;
    }
  }
  EXPECT_GE(chained, 3);
}

// What is all that an op of state, or of an input, waits for must take the turn in its place; what another waits for beside such an op need not, unless it waits itself.
TEST(EarlyOps, WhatAloneStandsBeforeAnOpOfStateTakesTheTurn) {
  RelayOptions options;
  options.sizes = {};
  options.text = R"(ccks: 1
program: steps
dims: {w: 64, pos: {range: [0, 7], default: 0}}
tensors:
  a: {shape: [1, w], kind: weight}
  kept: {shape: [8, w], kind: state}
  x: {shape: [1, w], kind: input}
  y: {shape: [1, w], kind: output}
ops:
  - {op: map, expr: a * 2, out: doubled}
  - {op: map, expr: a * 3, out: tripled}
  - {op: map, expr: a * 4, out: beside}
  - {op: map, expr: doubled + 1, out: "kept[pos:pos + 1, :]"}
  - {op: map, expr: tripled + x, out: sum}
  - {op: map, expr: doubled * 5, out: behind}
  - {op: map, expr: sum * beside + behind, out: y}
)";
  const RelayRig rig(options);
  EXPECT_EQ(names_of_early(rig.tables), std::vector<std::string>{"map.beside"});
}

}  // namespace
}  // namespace ccks::scheduler::test

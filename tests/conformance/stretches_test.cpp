// Stretches of a plan, and who gets which tiles of one.
#include <gtest/gtest.h>

#include "scheduler/dims.hpp"
#include "scheduler/instance.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::test {
namespace {

using namespace scheduler;

Instance instance_of(const PlanTables& tables) {
  const std::int64_t n = 1;
  std::vector<std::int64_t> dims(tables.plan.dims.size());
  EXPECT_TRUE(evaluate_plan(tables.plan, {&n, 1}, dims).ok());
  Instance out;
  out.reserve(tables);
  EXPECT_TRUE(out.rebuild(tables, {&n, 1}, dims, SlotMemory{}, 0, 0, 0).ok());
  return out;
}

TEST(Stretches, HeldOpsStandBetweenThem) {
  const GraphPlan plan({{.tiles = 4},
                        {.tiles = 1, .edges = {{0, Reads::all}}, .report = 0},
                        {.tiles = 4, .edges = {{1, Reads::all}}, .dynamic_report = 0},
                        {.tiles = 4, .edges = {{2, Reads::all}}},
                        {.tiles = 4, .edges = {{0, Reads::all}}}});
  const PlanTables tables = make_plan_tables(plan.view(), 4, Spine::stretches).value();
  EXPECT_EQ(tables.stretch_of, (std::vector<std::uint32_t>{0, 0, plan::kNone, 1, 0}));
  ASSERT_EQ(tables.stretch_count(), 2u);
  EXPECT_EQ(tables.stretches[0].inputs, 0u);
  EXPECT_EQ(tables.stretches[1].inputs, 1u);
  EXPECT_EQ(tables.reports_of(tables.stretches[0]).size(), 1u);
  EXPECT_EQ(make_plan_tables(plan.view(), 4, Spine::whole)->stretch_count(), 1u);
  EXPECT_EQ(make_plan_tables(plan.view(), 4, Spine::tiles)->stretch_count(), 0u);
}

TEST(Stretches, IndependentOpsAreSpreadAndAChainStays) {
  const GraphPlan independent(std::vector<GraphOp>(40));
  const PlanTables spread = make_plan_tables(independent.view(), 4, Spine::stretches).value();
  const Instance even = instance_of(spread);
  for (std::uint32_t list = 0; list < 4; ++list) EXPECT_EQ(even.lists()[list].count, 10u) << list;
  EXPECT_FALSE(even.has_idle_workers());
  std::vector<GraphOp> ops(40);
  for (std::uint32_t i = 1; i < 40; ++i) ops[i].edges = {{i - 1, Reads::all}};
  const GraphPlan chain(ops);
  const PlanTables stays = make_plan_tables(chain.view(), 4, Spine::stretches).value();
  const Instance one = instance_of(stays);
  EXPECT_EQ(one.stretches()[0].lists, 1u);
  EXPECT_TRUE(one.has_idle_workers());
}

TEST(Stretches, AutoTakesListsWhereTheySaveMessages) {
  const GraphPlan few({{.tiles = 4}, {.tiles = 4, .edges = {{0, Reads::all}}}});
  const PlanTables tables = make_plan_tables(few.view(), 4, Spine::fitting).value();
  EXPECT_FALSE(instance_of(tables).stretches()[0].listed) << "two tasks a worker";
  const GraphPlan many(std::vector<GraphOp>(8, GraphOp{.tiles = 4}));
  const PlanTables listed = make_plan_tables(many.view(), 4, Spine::fitting).value();
  EXPECT_TRUE(instance_of(listed).stretches()[0].listed);
}

}  // namespace
}  // namespace ccks::test

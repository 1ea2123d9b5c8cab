// Launches of a plan and the edges between them, against reachability found the slow way.
#include "scheduler/op_steps.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ccks::scheduler {
namespace {

// A plan of ops that wait for each other at random; only what make_op_steps looks at is filled.
struct RandomPlan {
  std::vector<plan::OpDesc> ops;
  std::vector<plan::WaitDesc> waits;
  std::vector<std::uint32_t> tiles;
  PlanTables tables;

  explicit RandomPlan(std::uint32_t seed) {
    std::mt19937 random(seed);
    const std::uint32_t count = 1 + random() % 16;
    ops.resize(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      tiles.push_back(random() % 4 == 0 ? 0 : 1 + random() % 9);
      ops[i].wait_first = static_cast<std::uint32_t>(waits.size());
      for (std::uint32_t w = random() % 4; i > 0 && w > 0; --w) {
        plan::WaitDesc wait{};
        wait.producer = random() % i;
        waits.push_back(wait);
      }
      ops[i].wait_count = static_cast<std::uint32_t>(waits.size()) - ops[i].wait_first;
    }
    tables.plan.ops = ops;
    tables.plan.waits = waits;
  }

  // All ops that stand before `op`, by walking every wait.
  std::set<std::uint32_t> before(std::uint32_t op) const {
    std::set<std::uint32_t> out;
    for (std::uint32_t w = 0; w < ops[op].wait_count; ++w) {
      const std::uint32_t producer = waits[ops[op].wait_first + w].producer;
      out.insert(producer);
      out.merge(before(producer));
    }
    return out;
  }
};

std::set<std::uint32_t> ops_before(const OpSteps& steps, std::uint32_t step) {
  std::set<std::uint32_t> out;
  for (std::uint32_t d = 0; d < steps.steps[step].dependency_count; ++d) {
    const std::uint32_t other = steps.dependencies[steps.steps[step].dependency_first + d];
    EXPECT_LT(other, step);
    out.insert(steps.steps[other].op);
    out.merge(ops_before(steps, other));
  }
  return out;
}

TEST(OpSteps, EdgesGiveTheOrderOfTheWaitsAndNoEdgeIsTooMany) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const RandomPlan plan(seed);
    OpSteps steps = make_op_steps(plan.tables, plan.tiles);
    std::size_t launched = 0;
    for (std::uint32_t op = 0; op < plan.tiles.size(); ++op) {
      if (plan.tiles[op] == 0) continue;
      ASSERT_LT(launched, steps.steps.size());
      ASSERT_EQ(steps.steps[launched].op, op);
      ASSERT_EQ(steps.steps[launched].tiles, plan.tiles[op]);
      std::set<std::uint32_t> want;
      for (const std::uint32_t other : plan.before(op)) {
        if (plan.tiles[other] != 0) want.insert(other);
      }
      ASSERT_EQ(ops_before(steps, static_cast<std::uint32_t>(launched)), want) << "op " << op;
      ++launched;
    }
    ASSERT_EQ(launched, steps.steps.size());
    for (const OpStep& step : steps.steps) {  // an edge beside a longer way to the same step
      for (std::uint32_t a = 0; a < step.dependency_count; ++a) {
        for (std::uint32_t b = 0; b < step.dependency_count; ++b) {
          const std::uint32_t from = steps.dependencies[step.dependency_first + a];
          const std::uint32_t to = steps.dependencies[step.dependency_first + b];
          ASSERT_FALSE(ops_before(steps, from).contains(steps.steps[to].op));
        }
      }
    }
  }
}

}  // namespace
}  // namespace ccks::scheduler

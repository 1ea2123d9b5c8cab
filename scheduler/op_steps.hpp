// OpSteps: the ops of an instance as launches, with the edges between them. For arms that launch each op.
#pragma once

#include <span>
#include <vector>

#include "ccks/device.hpp"
#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

struct OpSteps {
  std::vector<OpStep> steps;
  std::vector<std::uint32_t> dependencies;
};

/// One step for each op that has tiles, in plan order. An op without tiles hands its producers on to its consumers; an edge
/// that follows from others is left out.
OpSteps make_op_steps(const PlanTables& tables, std::span<const std::uint32_t> tiles);

}  // namespace ccks::scheduler

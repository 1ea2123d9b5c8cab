// Stretches of a plan: part of make_plan_tables.
#pragma once

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

/// Fills the stretches of `tables`, whose graph and held ops are there.
void build_stretches(PlanTables& tables);

}  // namespace ccks::scheduler

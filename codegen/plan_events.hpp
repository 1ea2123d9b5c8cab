// Events: which groups of counters each op signals, and which of them each kept edge waits for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "codegen/plan_internal.hpp"

namespace ccks::codegen {

/// Grid axes along which a group is split, ascending; -1: none.
using SplitAxes = std::array<int, 2>;

struct SignalGroup {
  OpIndex op = 0;
  SplitAxes axes{-1, -1};
  Expr count, total;
  std::array<Expr, 2> stride;
};

/// An edge's wait on a group, in the order of the group's axes. consumer_axis -1: all blocks of the axis.
struct GroupWait {
  std::uint32_t group = 0;
  OpIndex producer = 0;
  std::array<AxisWindow, 2> axis;
};

struct EventPlan {
  std::vector<SignalGroup> groups;                      // ascending by op
  std::vector<std::array<std::uint32_t, 2>> op_groups;  // per op: first group, count
  std::vector<GroupWait> waits;                         // ascending by consumer
  std::vector<std::array<std::uint32_t, 2>> op_waits;   // per op: first wait, count
};

/// A tile signals at most this many groups: each is one atomic add at its end.
inline constexpr std::size_t kMaxGroups = 3;

/// plan_events fills in Edge::wait of the kept edges.
EventPlan plan_events(Planner& planner);

}  // namespace ccks::codegen

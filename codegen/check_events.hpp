// Ranges of events that waits name, as wire/frame.hpp defines them. For check_events.cpp and check_order.cpp.
#pragma once

#include "codegen/check_model.hpp"

namespace ccks::codegen::check {

/// Half-open range of blocks along one axis of an event group; empty: the tile waits for nothing.
struct Blocks {
  std::int64_t lo = 0, hi = 0;
  bool empty() const { return lo >= hi; }
};

/// What a tile with value `c` of the axis' coordinate waits for along that axis.
Blocks blocks_at(const WaitAxisNow& axis, std::int64_t c);
/// Values that the axis' coordinate takes in `op`: 1 where no coordinate moves it.
std::int64_t coordinate_values(const OpNow& op, const WaitAxisNow& axis);
/// Blocks that every tile of `op` waits for along the axis.
Blocks blocks_always(const OpNow& op, const WaitAxisNow& axis);
/// Whether every tile of `op` waits for something.
bool waits_always(const OpNow& op, const WaitNow& wait);
/// Whether the events of [a) x [b) are all events of the group.
bool covers_group(const WaitNow& wait, const SignalNow& signal, Blocks a, Blocks b);
/// Whether each event of the group is waited for by some tile of `op`.
bool all_waited(const OpNow& op, const WaitNow& wait, const SignalNow& signal);
/// Values of the two coordinates whose tiles signal event `index` of the group.
std::array<std::int64_t, 2> cell_of(const SignalNow& signal, std::int64_t index);

}  // namespace ccks::codegen::check

// Which ops of chained runs need not wait for their run's turn: what they read and write lies in the slot's arena, or is weights, no run feeds it and no client sees it, and it
// follows from such ops alone. The angles of a position are that. Every other op must be behind one that takes the turn: one that waits for early ops alone would not be, so
// those are none either.
#pragma once

#include <cstdint>
#include <vector>

#include "ccks/plan.hpp"

namespace ccks::scheduler {

/// Per op of `plan`: 1 where it is one.
std::vector<std::uint8_t> find_early_ops(const plan::PlanView& plan);

}  // namespace ccks::scheduler

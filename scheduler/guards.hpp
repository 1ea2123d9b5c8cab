// Guards as the host sees them: from reports that have arrived.
#pragma once

#include "scheduler/slot.hpp"

namespace ccks::scheduler {

/// True if a guard of `op` is known to be false in this run; false if all hold or some report has not arrived.
bool guards_known_false(const plan::PlanView& plan, const RunSlot& run, std::uint32_t op);
/// Whether the reports of all guards of `op` have arrived.
bool guards_seen(const plan::PlanView& plan, const RunSlot& run, std::uint32_t op);

}  // namespace ccks::scheduler

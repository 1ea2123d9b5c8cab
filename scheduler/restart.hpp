// Restart: what a new co-pilot needs after the thread of the last one is gone in the middle of a step: rings, lines and
// events as if nothing had been under way. What was under way cannot be told apart from what was not, so every run that the
// lost scheduler had taken is failed; those still in the submission queue go on.
#pragma once

#include "ccks/device.hpp"
#include "scheduler/slot.hpp"

namespace ccks::scheduler {

/// All rings empty at position 0, all lines as before the first launch. All workers have left.
void clear_links(const wire::WorkerParams& params);

/// The run in `run` was sent by its client: it has begun, whether or not the lost scheduler had come to know of it.
void mark_begun(RunSlot& run);

/// The run in `run` is lost: its epoch is spent, and each event of the slot is put where the slot's next run expects it.
Status spend_run(Device& device, const PlanTables& tables, RunSlot& run);

}  // namespace ccks::scheduler

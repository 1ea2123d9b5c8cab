// What worker lines say, as a Status. Shared by all devices.
#pragma once

#include "ccks/result.hpp"
#include "ccks/wire/control.hpp"

namespace ccks::gpu {

/// WorkerState of `line` [W2]: acquires all that the worker wrote before it published the state [W1].
wire::u32 line_state(const wire::WorkerLine* line);
/// Name of a FaultCode, for people.
const char* fault_name(wire::u32 code);
/// ok, or device_fault with worker, op, run and event of the first faulted worker.
Status lines_status(const wire::WorkerParams& params);
/// Host lines: clears (before a launch) or sets the park request of every worker.
void set_park(const wire::WorkerParams& params, wire::u32 request);
/// Before a launch: state absent, so that `running` means this launch.
void clear_states(const wire::WorkerParams& params);
/// Assigns only what differs: a relaunch with the same params may race with a reader of them.
void set_params(wire::WorkerParams& to, const wire::WorkerParams& from);
/// Checks sizes and addresses that every device relies on.
Status check_params(const wire::WorkerParams& params, wire::u32 device_workers);

}  // namespace ccks::gpu

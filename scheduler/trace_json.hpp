// Chrome trace JSON, which Perfetto and chrome://tracing open.
#pragma once

#include <string>
#include <vector>

#include "ccks/engine.hpp"
#include "scheduler/decision_trace.hpp"

namespace ccks::scheduler {

/// write_trace_json writes beside `path` and renames: nobody sees half a file. io_error with the system's words.
Status write_trace_json(const std::string& path, const plan::PlanView& plan, const DeviceInfo& device,
                        const std::vector<TraceEvent>& tasks, const std::vector<TimedDecision>& decisions);

}  // namespace ccks::scheduler

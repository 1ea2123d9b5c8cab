// EngineCore: traces. Reads what workers and scheduler have written, and makes a timeline of it.
#include <algorithm>

#include "ccks/wire/atoms.hpp"
#include "scheduler/decision_trace.hpp"
#include "scheduler/engine_core.hpp"
#include "scheduler/trace_json.hpp"

namespace ccks::scheduler {

std::vector<TraceEvent> EngineCore::trace() const {
  const wire::WorkerParams& p = memory_.params;
  std::vector<TraceEvent> events;
  if (p.trace_slots == 0) return events;
  std::uint64_t host_ns = 0;
  const std::uint64_t device_ns = const_cast<Device&>(*device_).clock_pair(host_ns);
  for (std::uint32_t w = 0; w < p.workers; ++w) {
    const auto& line = reinterpret_cast<const wire::WorkerLine*>(p.worker_lines)[w];
    const auto* records = reinterpret_cast<const wire::TraceRecord*>(p.trace) + std::size_t{w} * p.trace_slots;
    // Relaxed: the done records that the scheduler has taken came after the trace records, and drain() orders the rest.
    const std::uint32_t end = wire::HostAtoms::link_load_relaxed(&line.trace_count);
    const std::uint32_t count = std::min(end, p.trace_slots);
    for (std::uint32_t i = end - count; i != end; ++i) {
      const wire::TraceRecord& r = records[i & (p.trace_slots - 1)];
      const wire::Task task{r.tile, 0, 0, 0, 0};
      events.push_back({w, r.op, r.slot, r.epoch, task.first_tile(), task.tile_count(),
                        r.start_ns - device_ns + host_ns, r.wait_ns, r.run_ns});
    }
  }
  return events;
}

Status EngineCore::write_trace(const std::string& path) const {
  if (decision_trace_ == nullptr) return {ErrorCode::invalid_argument, "the engine keeps no trace: set trace_records"};
  return write_trace_json(path, plan(), device_->info(), trace(), decision_trace_->read());
}

}  // namespace ccks::scheduler

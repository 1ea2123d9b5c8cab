#include "scheduler/restart.hpp"

#include <cstring>
#include <vector>

namespace ccks::scheduler {
namespace {

void clear(std::uint64_t address, std::uint64_t bytes) { std::memset(reinterpret_cast<void*>(address), 0, bytes); }

}  // namespace

void clear_links(const wire::WorkerParams& params) {
  clear(params.inboxes, params.workers * wire::ring_pitch(params.inbox_slots));
  clear(params.outboxes, params.workers * wire::ring_pitch(params.outbox_slots));
  clear(params.worker_lines, std::uint64_t{params.workers} * sizeof(wire::WorkerLine));
  clear(params.host_lines, std::uint64_t{params.workers} * sizeof(wire::HostLine));
}

void mark_begun(RunSlot& run) {
  if (run.state.peek() != static_cast<std::uint32_t>(RunState::queued)) return;
  run.epoch = run.next_epoch;
  run.state.reset(static_cast<std::uint32_t>(RunState::running));
}

// Some of its signals are there and some are not: their sum is known only for a run that has ended.
Status spend_run(Device& device, const PlanTables& tables, RunSlot& run) {
  // A run that waits for its state has no epoch of its own yet.
  const bool begun = run.state.peek() >= static_cast<std::uint32_t>(RunState::running);
  if (begun && run.next_epoch == run.epoch) run.next_epoch = run.epoch + 1;
  const std::byte* bytes = run.instance.frame().data();
  const auto& frame = *reinterpret_cast<const wire::RunFrame*>(bytes);
  const auto* bases = reinterpret_cast<const std::uint32_t*>(bytes + frame.bases);
  const auto* signals = reinterpret_cast<const wire::SignalParams*>(bytes + frame.signals);
  const auto count = (frame.guards - frame.signals) / static_cast<std::uint32_t>(sizeof(wire::SignalParams));
  std::vector<std::uint32_t> values;
  for (std::uint32_t s = 0; s < count; ++s) {
    if (!run.instance.sends(s)) continue;
    const wire::SignalParams& signal = signals[s];
    values.resize(signal.event_count);
    for (std::uint32_t e = 0; e < signal.event_count; ++e) {
      values[e] = bases[signal.event_first + e] + (run.next_epoch - frame.epoch0) * signal.total;
    }
    const std::uint64_t at = run.memory.events + std::uint64_t{signal.event_first} * sizeof(std::uint32_t);
    CCKS_RETURN_IF_ERROR(device.write(at, values.data(), values.size() * sizeof(std::uint32_t)));
  }
  if (!tables.chained()) return {};
  const std::uint32_t turn = bases[tables.turn_event] + (run.next_epoch - frame.epoch0) * tables.workers;
  return device.write(run.memory.events + std::uint64_t{tables.turn_event} * sizeof(turn), &turn, sizeof(turn));
}

}  // namespace ccks::scheduler

#include "gpu/line_status.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <type_traits>

#include "ccks/wire/atoms.hpp"

namespace ccks::gpu {
namespace {

const wire::WorkerLine* line_of(const wire::WorkerParams& params, wire::u32 index) {
  return reinterpret_cast<const wire::WorkerLine*>(params.worker_lines) + index;
}

Status fault_status(const wire::WorkerLine& line, wire::u32 worker) {
  const auto word = [](const wire::u32& w) { return wire::HostAtoms::link_load_relaxed(&w); };  // published by [W1]
  const wire::u32 code = word(line.fault);
  std::string text = fmt::format("worker {}: {} in op {} tile {} of slot {}, epoch {}", worker, fault_name(code),
                                 word(line.fault_op), word(line.fault_tile), word(line.fault_slot),
                                 word(line.fault_epoch));
  if (code == static_cast<wire::u32>(wire::FaultCode::wait_deadline)) {
    text += fmt::format("; event {} stands at {}, waited for {}", word(line.fault_event), word(line.fault_value),
                        word(line.fault_target));
  }
  return {ErrorCode::device_fault, std::move(text)};
}

}  // namespace

wire::u32 line_state(const wire::WorkerLine* line) { return wire::HostAtoms::link_load_acquire(&line->state); }  // [W2]

const char* fault_name(wire::u32 code) {
  switch (static_cast<wire::FaultCode>(code)) {
    case wire::FaultCode::none: return "no fault";
    case wire::FaultCode::wait_deadline: return "an event did not arrive in time";
    case wire::FaultCode::bad_op: return "a task names an op, slot, list or tile that its frame does not have";
    case wire::FaultCode::bad_index: return "an index lies outside its tensor";
    case wire::FaultCode::outbox_full: return "the host did not take records in time";
    case wire::FaultCode::op_fault: return "the op reported a fault";
    case wire::FaultCode::abandoned: return "told to leave in the middle of a task";
  }
  return "unknown fault";
}

Status lines_status(const wire::WorkerParams& params) {
  for (wire::u32 i = 0; i < params.workers; ++i) {
    const wire::WorkerLine* line = line_of(params, i);
    if (line_state(line) == static_cast<wire::u32>(wire::WorkerState::faulted)) return fault_status(*line, i);
  }
  return {};
}

void set_park(const wire::WorkerParams& params, wire::u32 request) {
  wire::HostLine* lines = reinterpret_cast<wire::HostLine*>(params.host_lines);
  // Relaxed: the word publishes nothing but itself.
  for (wire::u32 i = 0; i < params.workers; ++i) wire::HostAtoms::link_store_relaxed(&lines[i].park, request);
}

void clear_states(const wire::WorkerParams& params) {
  wire::WorkerLine* lines = reinterpret_cast<wire::WorkerLine*>(params.worker_lines);
  // Relaxed: no worker is alive; the launch itself orders this before everything they do.
  for (wire::u32 i = 0; i < params.workers; ++i) {
    wire::HostAtoms::link_store_relaxed(&lines[i].state, static_cast<wire::u32>(wire::WorkerState::absent));
  }
}

void set_params(wire::WorkerParams& to, const wire::WorkerParams& from) {
  static_assert(std::has_unique_object_representations_v<wire::WorkerParams>);
  if (std::memcmp(&to, &from, sizeof(to)) != 0) to = from;
}

Status check_params(const wire::WorkerParams& params, wire::u32 device_workers) {
  if (params.workers == 0 || params.workers > device_workers) {
    return {ErrorCode::invalid_argument,
            fmt::format("launch of {} workers on a device of {}", params.workers, device_workers)};
  }
  if (!std::has_single_bit(params.inbox_slots) || !std::has_single_bit(params.outbox_slots)) {
    return {ErrorCode::invalid_argument, fmt::format("ring sizes must be powers of two, not {} and {}",
                                                     params.inbox_slots, params.outbox_slots)};
  }
  if (params.inboxes == 0 || params.outboxes == 0 || params.worker_lines == 0 || params.host_lines == 0) {
    return {ErrorCode::invalid_argument, "rings and lines must be allocated before a launch"};
  }
  return {};
}

}  // namespace ccks::gpu

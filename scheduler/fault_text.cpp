#include "scheduler/fault_text.hpp"

#include <fmt/format.h>

namespace ccks::scheduler {
namespace {

template <class... Args>
void write(std::span<char> out, fmt::format_string<Args...> format, Args&&... args) {
  const auto end = fmt::format_to_n(out.data(), out.size() - 1, format, std::forward<Args>(args)...);
  *end.out = 0;
}

const char* fault_name(wire::FaultCode code) {
  switch (code) {
    case wire::FaultCode::none:
      return "no fault";
    case wire::FaultCode::wait_deadline:
      return "an event did not arrive in time";
    case wire::FaultCode::bad_op:
      return "a task named an op that the frame does not have";
    case wire::FaultCode::bad_index:
      return "an index lies outside its tensor";
    case wire::FaultCode::outbox_full:
      return "its outbox stayed full";
    case wire::FaultCode::op_fault:
      return "the op reported a fault";
    case wire::FaultCode::abandoned:
      return "it was told to leave while it waited";
  }
  return "a fault of unknown code";
}

}  // namespace

void describe_fault(const plan::PlanView& plan, std::uint32_t worker, wire::FaultCode code,
                    const wire::WorkerLine& line, std::span<char> out) {
  const char* name = line.fault_op < plan.ops.size() ? plan.ops[line.fault_op].name : "(none)";
  if (code == wire::FaultCode::wait_deadline && line.fault_event == wire::kVerdictEvent) {
    return write(out, "worker {}: the scheduler did not decide in time about op '{}' tile {}, run {} of slot {}", worker, name,
                 line.fault_tile, line.fault_epoch, line.fault_slot);
  }
  if (code == wire::FaultCode::wait_deadline) {
    return write(out, "worker {}: {}: op '{}' tile {}, run {} of slot {}, event {} stands at {}, wanted {}", worker,
                 fault_name(code), name, line.fault_tile, line.fault_epoch, line.fault_slot, line.fault_event,
                 line.fault_value, line.fault_target);
  }
  write(out, "worker {}: {}: op '{}' tile {}, run {} of slot {}, event {}", worker, fault_name(code), name,
        line.fault_tile, line.fault_epoch, line.fault_slot, line.fault_event);
}

void describe_device_failure(const plan::PlanView& plan, const std::string& message, std::uint32_t worker,
                             const SentTasks* oldest, std::span<char> out) {
  if (oldest == nullptr) return write(out, "{}", message);
  if (oldest->op >= plan.ops.size()) return write(out, "{}; under way, among others: the list of worker {}", message, worker);
  write(out, "{}; under way, among others: op '{}' on worker {}", message, plan.ops[oldest->op].name, worker);
}

void describe_stuck(const plan::PlanView& plan, std::uint32_t worker, const SentTasks& task, std::uint32_t epoch,
                    std::uint64_t limit_ns, std::span<char> out) {
  const double seconds = static_cast<double>(limit_ns) / 1e9;
  const std::uint32_t slot = task.slot_flags & (wire::kMaxSlots - 1);
  if (task.op >= plan.ops.size()) {
    return write(out, "worker {}: its list, run {} of slot {}, has not ended for {:g} s, nor sent a record", worker, epoch,
                 slot, seconds);
  }
  const std::uint32_t first = task.tile & (wire::kMaxTilesPerOp - 1);
  write(out,
        "worker {}: op '{}' tiles {} to {}, run {} of slot {}, has not ended for {:g} s, though all it waits for has: an op "
        "that never ends, and that nobody can stop",
        worker, plan.ops[task.op].name, first, first + (task.tile >> wire::kTileBits), epoch, slot, seconds);
}

void describe_op_fault(const plan::PlanView& plan, wire::FaultCode code, std::uint32_t op, std::uint32_t tile,
                       std::uint32_t slot, std::span<char> out) {
  write(out, "{}: op '{}' tile {} of slot {}", fault_name(code), op < plan.ops.size() ? plan.ops[op].name : "(none)",
        tile, slot);
}

}  // namespace ccks::scheduler

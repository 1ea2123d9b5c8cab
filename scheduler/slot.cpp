#include "scheduler/slot.hpp"

#include <algorithm>
#include <cstring>

namespace ccks::scheduler {
namespace {

bool holds_nothing_else(const RunSlot& run, std::uint32_t report, const std::vector<std::int32_t>& values, const PlanTables& tables) {
  const std::byte* at = run.instance.report_place(report, tables);
  const auto count = static_cast<std::size_t>(run.instance.dims()[tables.plan.reports[report].elements]);
  for (std::size_t i = 0; i < count; ++i, at += sizeof(std::int32_t)) {
    std::int32_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    if (std::find(values.begin(), values.end(), word) == values.end()) return false;
  }
  return count > 0;
}

/// Relaxed, here and below: a cancellation is a lone flag, and one that is not seen now is seen in a later step.
bool is_unwanted(const Unless& unless, const PlanTables& tables) {
  if (unless.run == nullptr) return false;
  const auto state = static_cast<RunState>(unless.run->state.peek());
  if (state == RunState::failed) return unless.run->code == ErrorCode::cancelled;
  // A run that is done was there before whoever asks for its cancellation.
  if (state != RunState::done && unless.run->cancel.load(std::memory_order_relaxed)) return true;
  // What stands in the slot of a run that has not begun is of another.
  return state != RunState::queued && unless.run->progress.report_seen(unless.report) &&
         holds_nothing_else(*unless.run, unless.report, unless.values, tables);
}

}  // namespace

bool is_cancelled(RunSlot& run, const PlanTables& tables) {
  if (run.cancel.load(std::memory_order_relaxed)) return true;
  if (!is_unwanted(run.unless, tables)) return false;
  run.cancel.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace ccks::scheduler

#include "scheduler/policy_static.hpp"

namespace ccks::scheduler {

void StaticPolicy::on_start(RunSlot& run) { run.cursor = 0; }

std::uint32_t StaticPolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  if (started_ != nullptr && started_ != &run) return 0;
  std::uint32_t sent = 0;
  while (run.cursor < tables_.workers && sent < budget && !batch.full()) {
    const std::uint32_t worker = run.cursor;
    const bool empty = run.instance.lists()[worker].count == 0;
    if (!empty && !loads.has_room(worker, loads.inbox_slots())) break;
    ++run.cursor;
    if (empty) continue;
    batch.items[batch.count++] = list_start(run, worker);
    loads.add(worker, batch.items[batch.count - 1].cost);
    ++sent;
  }
  run.all_sent = run.cursor == tables_.workers;
  started_ = run.all_sent || run.cursor == 0 ? nullptr : &run;
  return sent;
}

}  // namespace ccks::scheduler

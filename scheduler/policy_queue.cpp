#include "scheduler/policy_queue.hpp"

namespace ccks::scheduler {

std::uint32_t QueuePolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) {
  std::uint32_t sent = 0;
  while (run.cursor < tables_.workers && sent < budget && !batch.full()) {
    const std::uint32_t worker = run.cursor;
    if (!loads.has_room(worker, loads.inbox_slots())) break;
    ++run.cursor;
    Decision& join = batch.items[batch.count++];
    join = {};
    join.tile = worker;
    join.cost = 1;
    join.op = wire::kOpQueue;
    join.worker = static_cast<std::uint16_t>(worker);
    join.slot_flags = static_cast<std::uint16_t>(run.index);
    loads.add(worker, join.cost);
    ++sent;
  }
  run.all_sent = run.cursor == tables_.workers;
  return sent;
}

}  // namespace ccks::scheduler

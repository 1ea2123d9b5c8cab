// queue: one task per worker starts a run; workers share its tasks out among themselves (wire/queue.hpp). What arm gpu_queue
// runs; no policy for users.
#pragma once

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// Every worker joins every run, whatever becomes of the run: places are counted on all of them.
class QueuePolicy final : public Policy {
 public:
  explicit QueuePolicy(const PlanTables& tables) : tables_(tables) {}
  void on_start(RunSlot& run) override { run.cursor = 0; }
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;

 private:
  const PlanTables& tables_;
};

}  // namespace ccks::scheduler

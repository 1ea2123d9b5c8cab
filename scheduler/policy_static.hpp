// static: one list per worker, all in the frame; one task per worker starts a run. What is sent goes on without the
// host.
#pragma once

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// Lists of one run go out to all workers before those of the next: two runs must start in the same order everywhere,
/// or worker A could wait in run 1 for a tile that worker B only reaches after run 2, which waits for A.
class StaticPolicy final : public Policy {
 public:
  explicit StaticPolicy(const PlanTables& tables) : tables_(tables) {}
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;

 private:
  const PlanTables& tables_;
  RunSlot* started_ = nullptr;  // run whose lists are partly sent
};

}  // namespace ccks::scheduler

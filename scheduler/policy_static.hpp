// static: one list per worker, all in the frame; one task per worker starts a run. What is sent goes on without the
// host.
#pragma once

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// Its plan tables make the whole plan one stretch (Spine::whole).
class StaticPolicy final : public Policy {
 public:
  explicit StaticPolicy(const PlanTables& tables) : tables_(tables) {}
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;

 private:
  const PlanTables& tables_;
};

}  // namespace ccks::scheduler

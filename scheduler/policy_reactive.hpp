// reactive: sends only what is ready, as most runtimes do. Mirrors the run's events on the host from done records.
#pragma once

#include <vector>

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

class ReactivePolicy final : public Policy {
 public:
  ReactivePolicy(const PlanTables& tables, std::uint32_t slots);
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;
  bool wants_done() const override { return true; }
  void on_done(RunSlot& run, const SentTasks& done) override;

 private:
  struct Mirror {
    std::vector<std::uint32_t> events;  // signals of this run, per event
    bool changed = false;               // something finished since the last look
  };
  bool is_ready(const RunSlot& run, std::uint32_t op, std::uint32_t tile) const;
  std::uint32_t ready_tiles(const RunSlot& run, std::uint32_t op, const Piece& piece) const;
  std::uint32_t send_op(RunSlot& run, std::uint32_t op, Batch& batch, WorkerLoads& loads, std::uint32_t budget);

  const PlanTables& tables_;
  std::vector<Mirror> mirrors_;  // per slot
  bool inboxes_full_ = false;    // the last send_op stopped because no worker had room
};

}  // namespace ccks::scheduler

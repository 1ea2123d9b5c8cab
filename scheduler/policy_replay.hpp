// replay: makes the decisions of a record again, in their order. It decides nothing, but it checks everything: a record
// that would send a tile twice, too early or not at all is refused when it comes to that.
#pragma once

#include <array>

#include "scheduler/policy.hpp"
#include "scheduler/record.hpp"

namespace ccks::scheduler {

class ReplayPolicy final : public Policy {
 public:
  ReplayPolicy(const PlanTables& tables, Record record);
  void on_start(RunSlot& run) override;
  std::uint32_t advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t budget) override;
  const char* failure() const override { return failed_ ? message_.data() : nullptr; }
  const char* stall_reason() const override {
    return "replay waits for a run or a report that the recorded program had";
  }

 private:
  enum class Step { sent, wait };
  Step replay_entry(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads);
  Step replay_list(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads);
  Step replay_piece(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads);
  Step replay_draft(RunSlot& run, const RecordEntry& entry, Batch& batch, WorkerLoads& loads);
  Step diverged(const RunSlot& run, const char* what);
  bool is_whole(std::uint32_t stretch, const RunSlot& run) const;

  const PlanTables& tables_;
  Record record_;
  std::vector<std::uint64_t> dims_hash_;  // by ordinal of the run
  std::size_t at_ = 0;
  bool failed_ = false;
  std::array<char, 160> message_{};
};

}  // namespace ccks::scheduler

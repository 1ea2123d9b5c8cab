// A device whose workers answer at once, on the scheduler's own thread: what is timed around Copilot::step() is then
// the scheduler's work and nothing else, whatever the number of cores. No task is executed.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "scheduler/copilot.hpp"
#include "scheduler/memory_map.hpp"

namespace ccks::bench {

/// Memory without workers.
class StubDevice final : public Device {
 public:
  explicit StubDevice(std::uint32_t workers) : workers_(workers) {}
  DeviceInfo info() const override;
  Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind kind) override;
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) override;
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) override;
  Status fill_zero(std::uint64_t to, std::uint64_t bytes) override;
  Status launch(const WorkerImage&, const wire::WorkerParams&) override { return {}; }
  Status join(std::uint64_t) override { return {}; }
  Status health() override { return {}; }
  std::uint64_t clock_pair(std::uint64_t& host_ns) override;
  void scheduler_wait(std::uint64_t) override {}
  void wake_scheduler() override {}

 private:
  std::uint32_t workers_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

struct StubResult {
  std::uint64_t step_ns = 0;  // inside step()
  std::uint64_t decisions = 0;
  std::uint64_t publications = 0;
  std::uint64_t records = 0;
  std::uint64_t tasks = 0;  // those that started lists hold included
};

/// StubScheduler runs a plan through the real Copilot over a StubDevice.
class StubScheduler final : public scheduler::RunEvents {
 public:
  StubScheduler(const plan::PlanView& plan, scheduler::PolicyKind policy, scheduler::Spine spine, std::uint32_t workers,
                std::uint32_t slots);
  /// Runs `runs` runs, `slots` of them in flight.
  StubResult run(std::uint32_t runs);

  void run_ended(scheduler::RunSlot&) override { ++ended_; }
  void run_released(scheduler::RunSlot& run) override { free_.push_back(run.index); }
  void fence_reached(scheduler::StateFence&) override {}
  void engine_failed(ErrorCode, const char* message) override;

 private:
  struct Clock {
    std::uint64_t now_ns() const { return scheduler::now_ns(); }
  };
  static constexpr std::uint32_t kPolledTasks = 32;  // as a warp does
  void submit(scheduler::RunSlot& run);
  void answer();

  StubDevice device_;
  scheduler::PlanTables tables_;
  scheduler::MemoryMap memory_;
  std::deque<scheduler::RunSlot> slots_;
  std::deque<scheduler::StateFence> fences_;
  scheduler::SubmissionQueue submissions_;
  scheduler::SchedulerStats stats_;
  std::unique_ptr<scheduler::Policy> policy_;
  std::unique_ptr<scheduler::Copilot<wire::HostAtoms, Clock>> copilot_;
  std::vector<wire::RingConsumer<wire::Task, wire::HostAtoms>> inboxes_;
  std::vector<wire::RingWriter<wire::Record, wire::HostAtoms>> outboxes_;
  std::vector<std::uint32_t> free_;
  std::uint32_t ended_ = 0;
};

}  // namespace ccks::bench

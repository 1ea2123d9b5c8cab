// EngineCore: what an Engine and its Run handles share. It lives until the last of them is gone.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "ccks/engine.hpp"
#include "scheduler/copilot_setup.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/keeper.hpp"
#include "scheduler/launcher.hpp"
#include "scheduler/memory_map.hpp"
#include "scheduler/queue_memory.hpp"
#include "scheduler/scheduler_thread.hpp"
#include "scheduler/slot_stack.hpp"
#include "scheduler/supervisor.hpp"

namespace ccks::scheduler {

class RecordFile;
class DecisionTrace;

/// Locks are taken by client threads only, and never while the scheduler thread could wait for them.
class EngineCore final : public RunEvents {
 public:
  static Result<std::unique_ptr<EngineCore>> create(std::unique_ptr<Device> device, Program program,
                                                    const EngineOptions& options);
  ~EngineCore() override;

  // ---- clients -----------------------------------------------------------------------------------------------------
  Status bind_weight(std::string_view name, std::span<const std::byte> bytes);
  Status start();
  /// Takes on_done from `request`, and adds to its dims those that follow from its lengths.
  Result<RunSlot*> submit(RunRequest& request);
  /// The slot of a handle of this engine; null for others.
  const RunSlot* slot_of(const Run& run) const;
  Status with_state(std::uint32_t state, const std::function<Status(std::uint64_t address)>& use);
  Status write_state(std::uint32_t state, std::string_view name, std::span<const std::byte> bytes);
  Status read_state(std::uint32_t state, std::string_view name, std::span<std::byte> bytes);
  Status reset_state(std::uint32_t state);
  Status drain(std::uint64_t timeout_ns);
  Result<HandoffTimes> handoff(const Program& program, std::uint64_t timeout_ns);
  Result<RestartOutcome> restart_scheduler(std::uint64_t grace_ns, std::uint64_t timeout_ns);
  /// Cancels what waits, drains, ends the thread, parks the workers. Handles may live on.
  void shut_down();
  EngineStats stats() const;
  Result<std::uint64_t> tasks_per_run(const DimValues& dims) const;
  std::vector<TraceEvent> trace() const;
  Status write_trace(const std::string& path) const;
  const plan::PlanView& plan() const { return tables_.plan; }
  Device& device() { return *device_; }
  const Device& device() const { return *device_; }

  // ---- handles -----------------------------------------------------------------------------------------------------
  Status wait(RunSlot& run, std::uint64_t timeout_ns);
  void cancel(RunSlot& run);
  Status read_output(const RunSlot& run, std::string_view name, std::span<std::byte> bytes) const;
  Result<std::uint64_t> bytes_of(const RunSlot& run, std::string_view name) const;
  Result<std::vector<double>> report(const RunSlot& run, std::string_view name) const;
  /// The handle lets go.
  void release(RunSlot& run);

  /// The engine and each handle hold the core.
  void hold() { holders_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: the caller holds it already
  /// Deletes the core with the last holder.
  static void drop(EngineCore* core);

  // ---- scheduler thread --------------------------------------------------------------------------------------------
  void run_ended(RunSlot& run) override;
  void run_released(RunSlot& run) override;
  void fence_reached(StateFence& fence) override;
  void engine_failed(ErrorCode code, const char* message) override;
  void workers_away() override { keeper_->call(); }
  const char* outside_failure() const override { return keeper_->failure(); }

 private:
  EngineCore(std::unique_ptr<Device> device, Program program, const EngineOptions& options);
  Status set_up();
  Status set_up_policy();
  Status set_up_arm();
  void make_guesses();
  Status check_code(const Program& program) const;
  CopilotSetup copilot_setup();
  Status start_launcher();
  Status start_device();
  void set_up_slots();
  Status start_thread();
  bool hand_over(RunSlot& run);
  void let_go(RunSlot& run, Holder who);
  // engine_restart.cpp
  struct Lost;
  Status can_restart() const;
  Status replace_scheduler(std::uint64_t timeout_ns, Lost& lost, std::uint64_t grace_ns);
  Status take_stock(std::uint64_t timeout_ns, bool workers_left, Lost& lost);
  void sort_runs(const std::vector<Submission>& waiting, Lost& lost);
  void sort_fences(const std::vector<Submission>& waiting);
  void refill_queues(const std::vector<Submission>& waiting, const Lost& lost);
  void report_lost(const Lost& lost);
  Status check_request(const RunRequest& request, std::span<const GivenLengths> lengths, std::span<std::int64_t> symbols,
                       std::span<std::int64_t> dims) const;
  Result<RunSlot*> acquire_slot(std::span<const std::int64_t> symbols);
  bool pop_slot(std::span<const std::int64_t> symbols, std::uint32_t& index);
  Status check_feeds(const RunRequest& request, std::span<const std::int64_t> dims) const;
  Status write_frame(RunSlot& run, const RunRequest& request, std::span<const std::int64_t> symbols,
                     std::span<const std::int64_t> dims);
  bool place_feeds(RunSlot& run, const RunRequest& request);
  Status check_unless(const RunRequest& request) const;
  void place_unless(RunSlot& run, const RunRequest& request);
  /// Keeps the slot of `other` until `run` has ended.
  void hold(RunSlot& run, RunSlot& other);
  const plan::ReportDesc* find_report(std::string_view name) const;
  void let_go_of_feeds(RunSlot& run);
  bool chains() const;
  /// Workers that a run may be on.
  Result<std::uint32_t> run_workers() const;
  Status prepare_slot(RunSlot& run, const RunRequest& request, std::span<const std::int64_t> symbols,
                      std::span<const std::int64_t> dims, std::span<const GivenLengths> lengths);
  Status write_ragged(RunSlot& run, std::span<const std::int64_t> dims, std::span<const GivenLengths> lengths);
  Status ready_to_run() const;
  void push(Submission submission);
  Result<const plan::TensorDesc*> find_tensor(std::string_view name) const;
  Status failure() const;
  static Status size_error(const plan::TensorDesc& tensor, std::uint64_t got, std::uint64_t want);

  std::unique_ptr<Device> device_;
  Program program_;
  EngineOptions options_;
  Arm arm_ = Arm::copilot;
  PolicyKind policy_kind_ = PolicyKind::lookahead;
  Spine spine_ = Spine::fitting;
  PlanTables tables_;
  MemoryMap memory_;
  QueueMemory queues_;  // arm gpu_queue
  std::unordered_map<std::string_view, std::uint32_t> tensor_index_;

  std::deque<RunSlot> slots_;
  std::deque<StateFence> fences_;
  std::unique_ptr<SubmissionQueue> submissions_;
  PrimedRun primed_;
  std::unique_ptr<SlotStack> free_slots_;
  std::unique_ptr<BoundedQueue<std::uint32_t>> free_fences_;
  std::deque<std::atomic<std::uint32_t>> tickets_;  // per state: runs submitted. relaxed: lone counters
  WaitWord slot_freed_;  // counts releases: what submit() waits for
  WaitWord unfinished_;  // runs the scheduler still holds

  std::unique_ptr<Policy> policy_;
  std::unique_ptr<ExpertGuesses> guesses_;  // null: nothing is guessed
  std::unique_ptr<RecordFile> record_;
  std::unique_ptr<DecisionTrace> decision_trace_;
  std::unique_ptr<Keeper> keeper_;  // before the thread that calls it
  std::unique_ptr<SchedulerThread> thread_;   // of arms with workers
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<LauncherThread> launcher_;  // of the others
  std::unique_ptr<OpSequence> loaded_;        // keeps their code on the device
  SchedulerStats stats_;
  std::atomic<std::uint64_t> runs_submitted_{0};

  mutable std::mutex setup_mutex_;  // weights and start
  std::mutex restart_mutex_;        // thread_, from start() on
  std::shared_mutex gate_;          // clients share the queues; who restarts the scheduler has them alone
  bool attended_ = true;            // under gate_: there is a scheduler that will end what is submitted
  std::atomic<std::uint64_t> restarts_{0}, runs_lost_{0};  // relaxed: counters
  std::vector<bool> weight_bound_;
  std::atomic<bool> started_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> holders_{1};

  ErrorCode fail_code_ = ErrorCode::ok;
  char fail_message_[232] = {};
  std::atomic<bool> failed_{false};  // [C1] release after the two above -> [C2] acquire
};

}  // namespace ccks::scheduler

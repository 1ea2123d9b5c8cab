// What a Copilot is made of, and the two small interfaces through which it talks to the clients' side.
#pragma once

#include <cstdint>
#include <deque>

#include "ccks/device.hpp"
#include "scheduler/bounded_queue.hpp"
#include "scheduler/expert_guesses.hpp"
#include "scheduler/policy.hpp"
#include "scheduler/primed_run.hpp"
#include "scheduler/stats.hpp"

namespace ccks::scheduler {

/// Work from client threads. A pop that returns a message has acquired what its pusher wrote before.
struct Submission {
  enum class Kind : std::uint32_t { run = 0, fence = 1, fence_end = 2 };
  Kind kind;
  std::uint32_t index;  // run slot; fence; state instance
};
using SubmissionQueue = BoundedQueue<Submission>;

/// A client that wants a state instance for itself, in order with its runs.
struct StateFence {
  std::uint32_t state = 0;
  WaitWord reached;  // 1: the state is the client's
  enum Phase : std::uint32_t { idle, asked, lost } phase = idle;  // under EngineCore's gate: lost with a scheduler
};

/// Called on the scheduler thread; must not block or allocate.
class RunEvents {
 public:
  virtual ~RunEvents() = default;
  /// The outcome of `run` is complete: publish it and wake whoever waits.
  virtual void run_ended(RunSlot& run) = 0;
  /// The scheduler lets go of the slot: nothing of it is in flight.
  virtual void run_released(RunSlot& run) = 0;
  virtual void fence_reached(StateFence& fence) = 0;
  /// Workers are lost: every run ends with this, now and later. Called once, before the runs are ended.
  virtual void engine_failed(ErrorCode code, const char* message) = 0;
  /// Workers have left that have work: somebody must bring them back. Comes again and again until they are.
  virtual void workers_away() {}
  /// Why that was impossible; null while all is well.
  virtual const char* outside_failure() const { return nullptr; }
};

/// Sees every decision in the order of sending; drafts when they are sent, with kTaskDraft, and their verdicts. Called on the scheduler thread; must not block or allocate.
class DecisionSink {
 public:
  virtual ~DecisionSink() = default;
  virtual void on_run_start(const RunSlot& run) = 0;
  virtual void on_decision(const RunSlot& run, const Decision& decision, std::uint64_t now_ns) = 0;
  /// What has become of a draft: the same decision without kTaskDraft, a task at a time.
  virtual void on_verdict(const RunSlot& /*run*/, const Decision& /*decision*/, std::uint64_t /*now_ns*/) {}
};

/// All borrowed; must outlive the Copilot.
struct CopilotSetup {
  const PlanTables* tables = nullptr;
  std::deque<RunSlot>* slots = nullptr;
  std::deque<StateFence>* fences = nullptr;
  Policy* policy = nullptr;
  ExpertGuesses* guesses = nullptr;  // null: nothing is guessed
  Device* device = nullptr;
  SubmissionQueue* submissions = nullptr;
  PrimedRun* primed = nullptr;  // null: every run is sent by the co-pilot
  RunEvents* events = nullptr;
  SchedulerStats* stats = nullptr;
  DecisionSink* sinks[2] = {nullptr, nullptr};  // record, trace; null: none
  wire::WorkerParams params{};
  std::uint32_t states = 1;
  std::uint64_t task_deadline_ns = 0;  // 0: none
  bool stateful = false;   // runs of one state instance go one after the other
  bool doorbells = false;  // DeviceInfo::workers_sleep
  std::uint64_t link_delay_ns = 0;  // for a Copilot over DelayedLinks
  std::uint32_t first_position = 0;  // of all rings; the workers' lines and slots say the same
};

}  // namespace ccks::scheduler

// SimEngine: an engine without threads, on a simulated device. Co-pilot, policies, links and workers are the real ones. Its
// thread, its clients and its keeper are agents of the explorer here, since a simulation that replays has one thread: what
// SchedulerThread, Keeper and EngineCore do around the co-pilot is said again below, step for step, without their futexes.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/sim/sim_device.hpp"
#include "scheduler/copilot.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/memory_map.hpp"
#include "scheduler/restart.hpp"

namespace ccks::run {

using namespace scheduler;  // SimEngine is a part of it that may see gpu

struct SimEngineOptions {
  PolicyKind policy = PolicyKind::lookahead;
  Spine spine = Spine::fitting;
  std::uint32_t slots = 4;
  std::uint32_t states = 1;          // instances of what the program keeps
  std::uint32_t workers_per_run = 0; // 0: all
  bool chain_states = false;         // EngineOptions::chain_states, for policies that may
  Speculation speculation;           // EngineOptions::speculate_bytes
  std::uint32_t inbox_slots = kInboxSlots;
  std::uint32_t outbox_slots = kOutboxSlots;
  std::uint32_t trace_slots = 0;
  std::uint64_t spin_deadline_ns = 30'000'000'000;
  std::uint64_t heartbeat_limit_ns = 10'000'000'000;
  std::uint64_t idle_limit_ns = 0;
  std::uint64_t task_deadline_ns = 20'000'000'000;
  std::uint32_t first_position = 0;  // of the rings
  std::uint32_t first_epoch = 0;     // of the slots
  gpu::sim::SchedulerCosts costs;    // of the co-pilot, besides its accesses
  std::uint64_t longest_nap_ns = 0;  // between two steps that find nothing; 0: none
  std::uint32_t scratch_bytes = 0;   // of a worker, at least
  std::uint64_t patience_ns = 100'000'000;  // of the keeper
};

/// Counts what the co-pilot decides, so that a step takes its time.
class DecisionCount final : public DecisionSink {
 public:
  /// `each`: every task is decided for itself; else a run of tasks for one worker is.
  DecisionCount(const gpu::sim::SchedulerCosts& costs, bool each) : costs_(costs), each_(each) {}
  void on_run_start(const RunSlot&) override {
    last_worker_ = last_op_ = ~0u;
    due_ns_ += costs_.run_ns;
  }
  void on_decision(const RunSlot&, const Decision& task, std::uint64_t) override {
    due_ns_ += costs_.message_ns + (each_ ? costs_.ready_ns : 0) + (task.worker == last_worker_ && !each_ ? 0 : costs_.decision_ns) + (task.op == last_op_ ? 0 : costs_.op_ns);
    last_worker_ = task.worker;
    last_op_ = task.op;
  }
  std::uint64_t take_due_ns() { return std::exchange(due_ns_, 0); }

 private:
  gpu::sim::SchedulerCosts costs_;
  bool each_;
  std::uint32_t last_worker_ = ~0u, last_op_ = ~0u;
  std::uint64_t due_ns_ = 0;
};

/// What an engine tells about its runs, by the scheduler's agent.
class SimRuns {
 public:
  virtual ~SimRuns() = default;
  virtual void run_ended(const RunSlot& run) = 0;
  virtual void run_released(const RunSlot& run) = 0;
  virtual void engine_failed(ErrorCode code, const char* message) = 0;
};

template <class Atoms>
class SimEngine final : public RunEvents {
 public:
  using Explorer = gpu::sim::Explorer;

  /// All borrowed.
  SimEngine(gpu::sim::Machine& machine, gpu::sim::SimDevice& device, const SimEngineOptions& options, SimRuns& runs)
      : machine_(machine), device_(device), options_(options), runs_(runs), submissions_(options.slots),
        count_(options.costs, options.policy == PolicyKind::reactive) {}

  Status set_up(const plan::PlanView& plan) {
    if (options_.workers_per_run > device_.info().workers) return {ErrorCode::invalid_argument, "workers_per_run is more than there are workers"};
    Result<PlanTables> tables = make_plan_tables(plan, options_.workers_per_run == 0 ? device_.info().workers : options_.workers_per_run,
                                                 spine_of(options_.policy, options_.spine), false,
                                                 options_.chain_states && options_.workers_per_run == 0 && decides_ahead(options_.policy));
    if (!tables.ok()) return tables.status();
    tables_ = std::move(*tables);
    EngineOptions engine;
    engine.slots = options_.slots;
    engine.states = options_.states;
    engine.trace_records = options_.trace_slots;
    engine.spin_deadline = std::chrono::nanoseconds(options_.spin_deadline_ns);
    engine.heartbeat_limit = std::chrono::nanoseconds(options_.heartbeat_limit_ns);
    engine.idle_limit = std::chrono::nanoseconds(options_.idle_limit_ns);
    Result<MemoryMap> memory = reserve_memory(device_, tables_, engine);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    memory_.params.inbox_slots = options_.inbox_slots;
    memory_.params.outbox_slots = options_.outbox_slots;
    slots_.resize(options_.slots);
    for (std::uint32_t i = 0; i < options_.slots; ++i) {
      slots_[i].index = i;
      slots_[i].memory = memory_.slots[i];
      slots_[i].next_epoch = options_.first_epoch;
      slots_[i].instance.reserve(tables_);
      slots_[i].progress.reserve(tables_);
      free_.push_back(i);
    }
    primed_.reserve(tables_, device_.info().workers);
    held_.assign(options_.slots, 0);
    let_go_.assign(options_.slots, false);
    begin_rings();
    memory_.params.scratch_bytes = std::max(memory_.params.scratch_bytes, options_.scratch_bytes);
    make_deciders();
    make_copilot();
    return {};
  }

  /// Launches the workers and starts the scheduler's and the keeper's agents.
  Status start() {
    CCKS_RETURN_IF_ERROR(device_.launch(WorkerImage(), memory_.params));
    scheduler_ = machine_.explorer().add("scheduler", gpu::sim::Side::host, [this] { scheduler_main(); });
    keeper_ = machine_.explorer().add("keeper", gpu::sim::Side::host, [this] { keeper_main(); });
    return {};
  }

  // ---- clients -----------------------------------------------------------------------------------------------------
  bool has_free_slot() const { return !free_.empty(); }
  /// A slot of the client's own, its frame built for `symbols`; inputs may be written until submit(). Only where one is free.
  Result<RunSlot*> acquire(std::span<const std::int64_t> symbols, std::uint32_t state = 0) {
    RunSlot& run = slots_[free_.back()];
    std::vector<std::int64_t> dims(tables_.plan.dims.size());
    CCKS_RETURN_IF_ERROR(evaluate_plan(tables_.plan, symbols, dims));
    if (!run.instance.matches(symbols)) {
      CCKS_RETURN_IF_ERROR(run.instance.rebuild(tables_, symbols, dims, run.memory, memory_.weights, memory_.state(state), run.next_epoch));
      const std::span<const std::byte> frame = run.instance.frame();
      CCKS_RETURN_IF_ERROR(device_.write(run.memory.frame, frame.data(), frame.size()));
      run.written_for = run.next_epoch;
    } else if (const std::uint64_t at = memory_.state(state); run.instance.state() != at) {
      run.instance.set_state(at);
      run.written_for = run.next_epoch;
      CCKS_RETURN_IF_ERROR(device_.write(run.memory.frame + offsetof(wire::RunFrame, state), &at, sizeof(at)));
    }
    run.state_id = state;
    run.unless.run = nullptr;
    free_.pop_back();
    being_made_ = &run;
    return &run;
  }
  /// `run` is acquired and hangs on a report of `on`, whose slot nobody else gets before `run` has ended: RunRequest::unless.
  void hang_on(RunSlot& run, const RunSlot& on, std::uint32_t report, std::vector<std::int32_t> values) {
    run.unless = {&on, report, std::move(values)};
    ++held_[on.index];
  }
  void submit(RunSlot& run, std::uint64_t deadline_ns = 0) {
    run.submit_ns = machine_.now();
    run.deadline_ns = deadline_ns == 0 ? 0 : machine_.clock() + deadline_ns;
    run.code = ErrorCode::ok;
    // Relaxed: the queue orders it before the scheduler's look, or PrimedRun::take does.
    run.cancel.store(false, std::memory_order_relaxed);
    run.state.reset(static_cast<std::uint32_t>(RunState::queued));
    being_made_ = nullptr;
    hand_over(run);
    device_.wake_scheduler();
  }
  void cancel(RunSlot& run) {
    run.cancel.store(true, std::memory_order_relaxed);  // relaxed: no data comes with it
    device_.wake_scheduler();
  }
  /// Asks the keeper to suspend, load and relaunch.
  void hand_off() {
    hand_off_ = true;
    call_keeper();
  }
  /// Whether workers may be about to leave or to come back.
  bool keeper_is_busy() const { return called_ && failure_.empty(); }
  void park(std::uint32_t worker, wire::ParkRequest request) {
    auto* lines = reinterpret_cast<wire::HostLine*>(memory_.params.host_lines);
    Atoms{&machine_}.link_store_relaxed(&lines[worker].park, std::uint32_t{request});  // relaxed: a lone word
    device_.doorbell(worker);
  }
  /// The scheduler is gone, wherever it stood. Its stores that nobody can see yet may be lost with it.
  void crash(bool lose_stores) {
    machine_.explorer().kill(scheduler_);
    if (lose_stores) machine_.memory().drop(scheduler_);
    crashed_ = true;
  }
  /// Another scheduler takes over, by the agent that calls. Runs that the lost one had taken fail.
  Status restart() {
    giving_up_ = true;  // the keeper must not wait for workers that wait for a scheduler
    while (keeper_is_busy()) machine_.work(options_.patience_ns / 16);
    for (std::uint32_t w = 0; w < memory_.params.workers; ++w) park(w, wire::kParkAbandon);
    const Status left = device_.join(20 * options_.patience_ns);
    settle(scheduler_);
    while (sending_) machine_.work(100);
    // What a client has stored before it let go of the gate comes before what is stored there now: one place has one order of its stores.
    if (sender_ != gpu::sim::Explorer::kNobody) settle(sender_);
    std::vector<Submission> waiting;
    for (Submission item; submissions_.pop(item);) waiting.push_back(item);
    const std::vector<bool> lost = lost_runs(waiting);
    if (const std::uint32_t taken = primed_.last_taken(); taken != plan::kNone && lost[taken]) mark_begun(slots_[taken]);
    primed_.reset();
    for (std::uint32_t i = 0; i < options_.slots; ++i) {
      if (lost[i]) lose(slots_[i], left.ok());
    }
    if (!left.ok()) {
      std::erase_if(waiting, [&](const Submission& item) { return bool{lost[item.index]}; });
      return give_up(waiting), left;
    }
    giving_up_ = false;
    clear_links(memory_.params);
    options_.first_position = 0;
    make_deciders();
    make_copilot();
    for (const Submission& item : waiting) {
      if (!lost[item.index]) submissions_.push(item);
    }
    CCKS_RETURN_IF_ERROR(device_.launch(WorkerImage(), memory_.params));
    scheduler_ = machine_.explorer().add("scheduler", gpu::sim::Side::host, [this] { scheduler_main(); }, scheduler_);
    machine_.memory().renew(scheduler_);
    crashed_ = false;
    return {};
  }
  bool crashed() const { return crashed_; }
  /// There will be no scheduler: what is queued fails.
  void fail_queued() {
    std::vector<Submission> waiting;
    for (Submission item; submissions_.pop(item);) waiting.push_back(item);
    give_up(waiting);
  }
  std::uint32_t relaunches() const { return relaunches_; }
  const PlanTables& tables() const { return tables_; }
  const MemoryMap& memory() const { return memory_; }
  std::deque<RunSlot>& slots() { return slots_; }
  const SchedulerStats& stats() const { return stats_; }
  Explorer::Agent scheduler() const { return scheduler_; }
  bool failed() const { return copilot_->failed(); }
  void add_sink(DecisionSink& sink) { sink_ = &sink; }

  // ---- scheduler's agent -------------------------------------------------------------------------------------------
  void run_ended(RunSlot& run) override {
    const bool ok = run.code == ErrorCode::ok;
    run.state.store(static_cast<std::uint32_t>(ok ? RunState::done : RunState::failed));
    runs_.run_ended(run);
  }
  void run_released(RunSlot& run) override {
    runs_.run_released(run);
    if (const RunSlot* on = std::exchange(run.unless.run, nullptr); on != nullptr) --held_[on->index], offer(on->index);
    let_go_[run.index] = true;
    offer(run.index);
  }
  void fence_reached(StateFence&) override {}
  void engine_failed(ErrorCode code, const char* message) override {
    giving_up_ = true;
    runs_.engine_failed(code, message);
  }
  void workers_away() override { call_keeper(); }
  const char* outside_failure() const override { return failure_.empty() ? nullptr : failure_.c_str(); }

 private:
  /// Waits until all that `agent` has stored so far can be seen.
  void settle(gpu::sim::Explorer::Agent agent) {
    while (machine_.memory().settled(agent) > machine_.now()) machine_.work(machine_.memory().settled(agent) - machine_.now());
  }

  // As EngineCore::hand_over; restart() waits for it where that has a gate.
  void hand_over(RunSlot& run) {
    if (primed_.take(run)) {
      sending_ = true;
      sender_ = machine_.explorer().self();
      primed_.send(Atoms{&machine_});
      sending_ = false;
    } else {
      submissions_.push({Submission::Kind::run, run.index});
    }
  }

  // Every slot looks as if the ring had been written round and round up to the first position.
  void begin_rings() {
    if (options_.first_position == 0) return;
    const std::uint32_t first = options_.first_position;
    const wire::WorkerParams& p = memory_.params;
    for (std::uint32_t w = 0; w < p.workers; ++w) {
      auto* tasks = reinterpret_cast<wire::Task*>(wire::inbox_of(p, w));
      auto* records = reinterpret_cast<wire::Record*>(wire::outbox_of(p, w));
      for (std::uint32_t i = 1; i <= p.inbox_slots; ++i) tasks[(first - i) & (p.inbox_slots - 1)].seq = wire::ring_seq(first - i);
      for (std::uint32_t i = 1; i <= p.outbox_slots; ++i) records[(first - i) & (p.outbox_slots - 1)].seq = wire::ring_seq(first - i);
      wire::WorkerLine& line = reinterpret_cast<wire::WorkerLine*>(p.worker_lines)[w];
      line.inbox_position = line.answered_position = line.outbox_position = first;
      reinterpret_cast<wire::HostLine*>(p.host_lines)[w].outbox_consumed = first;
    }
  }

  // Runs that neither wait for a scheduler nor have ended and been let go, and those that wait behind one of them.
  std::vector<bool> lost_runs(const std::vector<Submission>& waiting) const {
    std::vector<bool> lost(options_.slots, true);
    for (const std::uint32_t index : free_) lost[index] = false;
    for (const Submission& item : waiting) lost[item.index] = false;
    for (const RunSlot& run : slots_) lost[run.index] = lost[run.index] && !let_go_[run.index] && !run_is_being_made(run);
    // What a state is after half a run nobody knows: runs behind it must not go on from there.
    std::vector<bool> spoilt(options_.states, false);
    for (const RunSlot& run : slots_) {
      const bool ended = run.state.peek() >= static_cast<std::uint32_t>(RunState::done);
      if (tables_.plan.state_bytes > 0 && lost[run.index] && !ended) spoilt[run.state_id] = true;
    }
    for (const Submission& item : waiting) lost[item.index] = spoilt[slots_[item.index].state_id];
    return lost;
  }
  bool run_is_being_made(const RunSlot& run) const { return being_made_ == &run; }

  void give_up(const std::vector<Submission>& waiting) {
    for (const Submission& item : waiting) lose(slots_[item.index], false);
  }

  void lose(RunSlot& run, bool workers_left) {
    if (workers_left) (void)spend_run(device_, tables_, run);
    if (run.state.peek() < static_cast<std::uint32_t>(RunState::done)) {
      run.code = ErrorCode::internal;
      std::strncpy(run.message, "the scheduler was lost while it had this run", sizeof(run.message) - 1);
      run_ended(run);
    }
    run_released(run);
  }

  /// A slot that the scheduler has let go is free once no run hangs on it.
  void offer(std::uint32_t slot) {
    if (!let_go_[slot] || held_[slot] != 0) return;
    let_go_[slot] = false;
    free_.push_back(slot);
  }

  void make_deciders() {
    policy_ = make_policy(options_.policy, tables_, options_.slots);
    if (options_.speculation.bytes > 0) guesses_ = std::make_unique<ExpertGuesses>(tables_, options_.slots, options_.speculation, stats_);
  }

  void make_copilot() {
    CopilotSetup setup;
    setup.tables = &tables_;
    setup.slots = &slots_;
    setup.fences = &fences_;
    setup.policy = policy_.get();
    setup.guesses = guesses_.get();
    setup.device = &device_;
    setup.submissions = &submissions_;
    setup.primed = &primed_;
    setup.events = this;
    setup.stats = &stats_;
    setup.params = memory_.params;
    setup.task_deadline_ns = options_.task_deadline_ns;
    setup.first_position = options_.first_position;
    setup.states = options_.states;
    setup.stateful = tables_.plan.state_bytes > 0;
    setup.sinks[0] = sink_;
    if (options_.costs.decides()) setup.sinks[1] = &count_;
    copilot_ = std::make_unique<Copilot<Atoms, gpu::sim::SimClock>>(setup, Atoms{&machine_}, gpu::sim::SimClock{&machine_});
  }

  // As SchedulerThread::drive.
  void scheduler_main() {
    std::uint32_t idle = 0;
    for (;;) {
      const bool worked = copilot_->step();
      idle = worked ? 0 : idle + 1;
      if (worked || copilot_->ticks() || options_.longest_nap_ns == 0) {
        machine_.work(options_.costs.step_ns + count_.take_due_ns());
      } else {
        device_.scheduler_wait(std::min(options_.longest_nap_ns, (options_.costs.step_ns + 100) << std::min(idle, 16u)));
      }
    }
  }

  // ---- keeper's agent: as Keeper ------------------------------------------------------------------------------------
  void call_keeper() {
    called_ = true;
    if (keeper_ != Explorer::kNobody) machine_.explorer().wake(keeper_, machine_.now());
  }

  void keeper_main() {
    for (;;) {
      if (!called_) {
        machine_.explorer().sleep(options_.patience_ns);
        continue;
      }
      const bool asked = std::exchange(hand_off_, false);
      Status status;
      if (!giving_up_ && (asked || somebody_is_away())) status = bring_back(asked);
      called_ = hand_off_;
      if (status.ok() || giving_up_) continue;
      failure_ = "workers that had left could not be brought back: " + status.message();
      return;
    }
  }

  bool somebody_is_away() const {
    const auto* lines = reinterpret_cast<const wire::WorkerLine*>(memory_.params.worker_lines);
    for (std::uint32_t w = 0; w < memory_.params.workers; ++w) {
      // [W2] acquire: pairs with [W1].
      const auto state = Atoms{&machine_}.link_load_acquire(&lines[w].state);
      if (state == static_cast<std::uint32_t>(wire::WorkerState::parked)) return true;
    }
    return false;
  }

  Status bring_back(bool new_code) {
    auto* lines = reinterpret_cast<wire::HostLine*>(memory_.params.host_lines);
    for (std::uint32_t w = 0; w < memory_.params.workers; ++w) {
      Atoms{&machine_}.link_store_relaxed(&lines[w].park, std::uint32_t{wire::kParkSuspend});  // relaxed: a lone word
      device_.doorbell(w);
    }
    for (;;) {
      const Status left = device_.join(options_.patience_ns);
      if (giving_up_) return {};
      if (left.ok()) break;
      if (left.code() != ErrorCode::deadline_exceeded) return left;
    }
    CCKS_RETURN_IF_ERROR(device_.health());
    if (new_code) CCKS_RETURN_IF_ERROR(device_.load(WorkerImage()));
    ++relaunches_;
    return device_.launch(WorkerImage(), memory_.params);
  }

  gpu::sim::Machine& machine_;
  gpu::sim::SimDevice& device_;
  SimEngineOptions options_;
  SimRuns& runs_;
  PlanTables tables_;
  MemoryMap memory_;
  std::deque<RunSlot> slots_;
  std::deque<StateFence> fences_ = std::deque<StateFence>(1);
  SubmissionQueue submissions_;
  PrimedRun primed_;
  bool sending_ = false;  // a client is
  gpu::sim::Explorer::Agent sender_ = gpu::sim::Explorer::kNobody;  // the last that did
  SchedulerStats stats_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<ExpertGuesses> guesses_;  // null: nothing is guessed
  std::unique_ptr<Copilot<Atoms, gpu::sim::SimClock>> copilot_;
  DecisionSink* sink_ = nullptr;
  DecisionCount count_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> held_;  // per slot: by how many runs that hang on what it reports
  std::vector<bool> let_go_;         // per slot: the scheduler has, and nobody has it yet
  Explorer::Agent scheduler_ = Explorer::kNobody;
  Explorer::Agent keeper_ = Explorer::kNobody;
  bool called_ = false, hand_off_ = false, giving_up_ = false;
  bool crashed_ = false;
  const RunSlot* being_made_ = nullptr;  // a client has it, and has not submitted it
  std::string failure_;
  std::uint32_t relaunches_ = 0;
};

}  // namespace ccks::run

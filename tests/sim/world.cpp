#include "tests/sim/world.hpp"

#include <algorithm>

#include "scheduler/decision_trace.hpp"
#include "scheduler/tools/sim_engine.hpp"
#include "tests/sim/mutant.hpp"

namespace ccks::test::sim {
namespace {

using gpu::sim::Explorer;
using gpu::sim::Machine;
using gpu::sim::Nanos;
using gpu::sim::Side;
using gpu::sim::SimDevice;
using scheduler::PolicyKind;
using scheduler::RunSlot;
using Engine = run::SimEngine<MutantAtoms>;

constexpr std::uint64_t kMaxSteps = 400'000;         // a history takes some thousands
constexpr Nanos kMaxTime = 1'000'000'000'000;
constexpr Nanos kHungNs = 100'000'000'000'000;       // a body that never ends
constexpr Nanos kLongestJumpNs = 100'000'000'000;
constexpr Nanos kLongestSetBackNs = 50'000'000;
constexpr std::uint32_t kMostStrikes = 64;           // then the history may come to its end
constexpr Nanos kLongestDeadlineNs = 2'000'000;
constexpr Nanos kLongestStallNs = 20'000'000;

gpu::sim::MachineOptions machine_options(const SimCase& c) {
  gpu::sim::MachineOptions out;
  out.seed = c.schedule;
  out.noise = c.noise;
  out.link = c.link;
  if (c.has(Fault::retry)) out.retry_one_in = 100, out.retry_ns = 200'000;
  return out;
}

run::SimEngineOptions engine_options(const SimCase& c) {
  run::SimEngineOptions out;
  out.policy = c.policy;
  out.spine = c.spine;
  out.slots = c.slots;
  out.workers_per_run = c.workers_per_run <= c.workers ? c.workers_per_run : c.workers;  // a case may have been made smaller
  out.states = std::max(c.states, 1u);
  out.chain_states = c.chain;
  out.inbox_slots = c.inbox_slots;
  out.outbox_slots = c.outbox_slots;
  out.trace_slots = c.has(Fault::stuck_trace) ? 4 : 0;
  out.spin_deadline_ns = 3'000'000'000;
  out.task_deadline_ns = 2'000'000'000;
  out.longest_nap_ns = 1'000'000;
  out.patience_ns = 2'000'000;
  out.costs.step_ns = 50;
  if (c.has(Fault::inbox_full)) out.inbox_slots = 4, out.outbox_slots = 4;
  if (c.has(Fault::wrap)) out.first_position = 0u - 40, out.first_epoch = 0u - 3;
  if (c.has(Fault::worker_hang)) out.task_deadline_ns = 100'000'000, out.spin_deadline_ns = 300'000'000;
  if (c.has(Fault::park)) out.idle_limit_ns = c.fault_ns, out.heartbeat_limit_ns = 4'000'000;
  return out;
}

class World final : public run::SimRuns, public gpu::sim::BodyWatch {
 public:
  World(const SimCase& c, bool timeline)
      : case_(c), plan_(c.ops), checker_(plan_, c.slots, plan_.view().state_bytes > 0 ? c.states : 0), machine_(machine_options(c)), device_(machine_, device_options()),
        engine_(machine_, device_, engine_options(c), *this), random_(c.seed ^ 0xc11e47u), trace_(16) {
    machine_.trace(timeline);
    SimOps::wrong_percent = c.has(Fault::wrong_guesses) ? static_cast<u32>(random_.below(5) * 25) : c.wrong_percent;
    if (c.has(Fault::worker_hang) || c.has(Fault::op_fault)) checker_.allow_failures();
  }

  WorldResult play() {
    if (c_stuck()) engine_.add_sink(trace_);
    Status status = engine_.set_up(plan_.view());
    Mutant::params = engine_.memory().params;
    Mutant::resumes = false;
    if (status.ok()) status = engine_.start();
    if (!status.ok()) checker_.complain(status.to_string());
    const std::uint64_t reserved = device_.allocated_bytes();
    Explorer& explorer = machine_.explorer();
    if (machine_.tracing()) machine_.name_memory([this](const void* address) { return name_of(reinterpret_cast<u64>(address)); });
    client_ = explorer.add("client", Side::host, [this] { client(); });
    explorer.add("gremlin", Side::host, [this] { gremlin(); });
    if (status.ok()) explorer.run(kMaxSteps, kMaxTime);
    if (status.ok() && !explorer.stopped()) stands_still();
    if (device_.allocated_bytes() != reserved) checker_.complain("memory was reserved while runs were in flight");
    if (machine_.memory().most_on_their_way() > kMostStores) checker_.complain("stores pile up on the link");
    return result();
  }

  // ---- what the scheduler tells -----------------------------------------------------------------------------------
  void run_ended(const RunSlot& run) override {
    const Outcome outcome = run.code == ErrorCode::ok                  ? Outcome::done
                            : run.code == ErrorCode::cancelled         ? Outcome::cancelled
                            : run.code == ErrorCode::deadline_exceeded ? (engine_.failed() ? Outcome::failed : Outcome::late)
                                                                       : Outcome::failed;
    if (machine_.tracing()) machine_.tell(fmt::format("RUN of slot {} ends: {}", run.index, run.code == ErrorCode::ok ? "done" : run.message));
    const auto* arena = reinterpret_cast<const char*>(run.memory.arena);
    checker_.ended(run.index, outcome, run.message, [&](u32 op, u32 tile) {
      return reinterpret_cast<const u64*>(arena + plan_.view().tensors[op + 1].offset)[tile];
    });
  }
  void run_released(const RunSlot& run) override {
    checker_.released(run.index, engine_.failed());
    const bool given_up = engine_.crashed() && case_.has(Fault::worker_hang);  // somebody may still be at it
    if (!engine_.failed() && !dead_ && !given_up) check_events(run);
    machine_.explorer().wake(client_, machine_.now());
  }
  void engine_failed(ErrorCode, const char* message) override {
    machine_.tell(fmt::format("ENGINE fails: {}", message));
    if (!checker_.failures_allowed()) checker_.complain(fmt::format("the engine failed for no reason: {}", message));
  }

  // ---- what the workers do ----------------------------------------------------------------------------------------
  Nanos begin(u32 worker, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) override {
    const u32 index = op_index(frame, op);
    if (machine_.tracing()) machine_.tell(fmt::format("BEGINS op {} tile {} in slot {}", index, tile, slot_of(frame)));
    checker_.begun(slot_of(frame), index, tile);
    (void)worker;
    Mutant::resumes = true;  // all have been launched
    if (case_.has(Fault::worker_hang) && broken_after() && random_.chance(8)) return kHungNs;
    return random_.below(case_.body_ns);
  }
  u32 end(u32, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) override {
    if (machine_.tracing()) machine_.tell(fmt::format("finishes op {} tile {} in slot {}", op_index(frame, op), tile, slot_of(frame)));
    if (case_.has(Fault::op_fault) && broken_after() && random_.chance(8)) return static_cast<u32>(wire::FaultCode::op_fault);
    checker_.finished(slot_of(frame), op_index(frame, op), tile);
    return 0;
  }

 private:
  static constexpr std::size_t kMostStores = 4096;  // rings and lines of four workers hold no more words

  gpu::sim::SimDeviceOptions device_options() {
    gpu::sim::SimDeviceOptions out;
    out.workers = case_.workers;
    out.entry = &gpu::sim::sim_worker_main<MutantAtoms, SimOps>;
    out.watch = this;
    out.costs.longest_ns = 20'000;
    out.launch_ns = 2'000;
    out.load_ns = 20'000;
    return out;
  }
  bool c_stuck() const { return case_.has(Fault::stuck_trace); }
  bool broken_after() const { return machine_.now() > case_.fault_ns; }
  u32 slot_of(const wire::RunFrame& frame) const {
    for (const RunSlot& run : const_cast<Engine&>(engine_).slots()) {
      if (run.memory.frame == reinterpret_cast<u64>(&frame)) return run.index;
    }
    return ~0u;
  }
  static u32 op_index(const wire::RunFrame& frame, const wire::OpParams& op) {
    return static_cast<u32>(&op - reinterpret_cast<const wire::OpParams*>(reinterpret_cast<const char*>(&frame) + frame.ops));
  }

  // Every event of the slot stands where the next run expects it.
  void check_events(const RunSlot& run) {
    const auto& frame = *reinterpret_cast<const wire::RunFrame*>(run.memory.frame);
    const auto* events = reinterpret_cast<const u32*>(run.memory.events);
    const auto* bases = reinterpret_cast<const u32*>(reinterpret_cast<const char*>(&frame) + frame.bases);
    for (std::size_t s = 0; s < plan_.view().signals.size(); ++s) {
      const wire::SignalParams& signal = run.instance.signals()[s];
      for (u32 e = signal.event_first; e < signal.event_first + signal.event_count; ++e) {
        const u32 wanted = bases[e] + (run.next_epoch - frame.epoch0) * signal.total;
        if (events[e] != wanted) checker_.complain(fmt::format("event {} of op {} stands at {} after a run, not {}", e, s, events[e], wanted));
      }
    }
    const scheduler::PlanTables& tables = engine_.tables();
    if (!tables.chained() || run.code != ErrorCode::ok) return;  // a run that was cancelled may not have waited for its turn
    const u32 wanted = bases[tables.turn_event] + (run.next_epoch - frame.epoch0) * tables.workers;
    if (events[tables.turn_event] != wanted) checker_.complain(fmt::format("the turn stands at {} after a run, not {}", events[tables.turn_event], wanted));
  }

  // ---- the client -------------------------------------------------------------------------------------------------
  void client() {
    const std::uint64_t runs = case_.runs;
    while ((checker_.runs_submitted() < runs || machine_.explorer().steps() < case_.min_steps) && !engine_.failed() && !dead_ &&
           checker_.complaint().empty()) {
      if (repeats_.below(100) < case_.alone_percent && checker_.runs_open() > 0) {
        machine_.explorer().sleep(1 + repeats_.below(5'000));
      } else if (engine_.has_free_slot()) {
        submit();
      } else {
        machine_.explorer().sleep(100'000);
      }
      if (case_.alone_percent > 0 && repeats_.chance(2)) continue;  // the next one at once
      if (!case_.has(Fault::flood)) machine_.explorer().sleep(random_.below(20'000));
      if (random_.below(100) < case_.cancel_percent || (case_.has(Fault::flood) && random_.chance(4))) cancel_one();
    }
    while (checker_.runs_open() > 0) {
      machine_.explorer().sleep(1'000'000);
      if (dead_) engine_.fail_queued();
    }
    if (!case_.has(Fault::worker_hang) && checker_.complaint().empty()) wind_down();
    machine_.explorer().stop();
  }

  void submit() {
    std::int64_t n = 1 + static_cast<std::int64_t>(random_.below(4));
    if (case_.alone_percent > 0) n = 1 + static_cast<std::int64_t>(case_.seed % 4);
    Wish wish;
    if (plan_.view().state_bytes > 0) wish.state = static_cast<u32>(random_.below(case_.states));
    auto slot = engine_.acquire({&n, 1}, wish.state);
    if (!slot.ok()) return checker_.complain(slot.status().to_string());
    RunSlot& run = **slot;
    if (Mutant::active != Mutation::none) break_frame(run);
    (void)device_.fill_zero(run.memory.arena, plan_.view().arena_bytes);
    const u64 seed = random_.next();
    machine_.memory().write(reinterpret_cast<void*>(run.memory.arena), 8, seed);
    if (plan_.view().state_bytes > 0 && !plan_.view().reports.empty() && random_.below(100) < case_.condition_percent) hang_on(run, wish);
    checker_.submitted(run.index, static_cast<u32>(n), seed, SimOps::wrong_percent, wish);
    if (machine_.tracing()) machine_.tell(fmt::format("SUBMITS a run in slot {}, n = {}", run.index, n));
    if (random_.below(100) >= case_.deadline_percent) return engine_.submit(run);
    checker_.may_be_late(run.index);
    engine_.submit(run, 1 + random_.below(kLongestDeadlineNs));
  }
  /// On the run before it, if that is still there: wanted or not, as chance has it.
  void hang_on(RunSlot& run, Wish& wish) {
    wish.on = checker_.newest_of(wish.state);
    if (wish.on == ~0u) return;
    wish.report = static_cast<u32>(random_.below(plan_.view().reports.size()));
    wish.unwanted = random_.chance(2) ? checker_.expected(wish.on).reports[wish.report] : std::vector<wire::i32>{7};
    engine_.hang_on(run, engine_.slots()[wish.on], wish.report, wish.unwanted);
    if (machine_.tracing()) machine_.tell(fmt::format("slot {} hangs on slot {}", run.index, wish.on));
  }
  void break_frame(RunSlot& run) {
    const auto frame = run.instance.frame();
    (void)device_.write(run.memory.frame, frame.data(), frame.size());
    Mutant::break_frame(reinterpret_cast<std::byte*>(run.memory.frame));
  }

  void cancel_one() {
    RunSlot& run = engine_.slots()[random_.below(case_.slots)];
    if (run.state.peek() > static_cast<u32>(RunState::running)) return;
    checker_.cancelled(run.index);
    machine_.tell(fmt::format("CANCELS slot {}", run.index));
    engine_.cancel(run);
  }

  // Workers leave when they are told to.
  void wind_down() {
    winding_down_ = true;
    while (engine_.crashed()) machine_.explorer().sleep(100'000);
    while (engine_.keeper_is_busy()) machine_.explorer().sleep(100'000);
    if (engine_.failed()) {
      if (!device_.join(2'000'000'000).ok()) checker_.complain("a worker does not leave an engine that has failed");
      return;
    }
    for (u32 w = 0; w < case_.workers; ++w) engine_.park(w, wire::kParkAfterTask);
    if (!device_.join(2'000'000'000).ok()) checker_.complain("a worker does not leave though it was told to");
  }

  // ---- what goes wrong --------------------------------------------------------------------------------------------
  void gremlin() {
    for (std::uint32_t strikes = 0; strikes < kMostStrikes;) {
      machine_.explorer().sleep(1 + random_.below(2 * case_.fault_ns));
      if (!machine_.explorer().noisy() || engine_.failed() || winding_down_ || dead_) continue;
      const auto fault = static_cast<Fault>(random_.below(kFaults));
      if (!case_.has(fault)) continue;
      strike(fault);
      ++strikes;
    }
  }
  void strike(Fault fault) {
    switch (fault) {
      case Fault::scheduler_stall: {
        if (machine_.now() < stalled_until_) return;
        const Nanos stall = random_.below(random_.chance(8) ? kLongestStallNs : 200'000);
        stalled_until_ = machine_.now() + stall;
        machine_.tell("FAULT: the scheduler stands still");
        return machine_.explorer().delay(engine_.scheduler(), stall);
      }
      case Fault::scheduler_crash: {
        machine_.tell("FAULT: the scheduler is gone");
        engine_.crash(random_.chance(2));
        machine_.explorer().sleep(random_.below(200'000));
        checker_.losing(true);
        const Status status = engine_.restart();
        checker_.losing(!status.ok());
        machine_.tell(status.ok() ? "another scheduler has begun" : "no scheduler: " + status.to_string());
        dead_ = !status.ok();
        if (dead_ && !case_.has(Fault::worker_hang)) checker_.complain("the scheduler could not be replaced: " + status.to_string());
        return;
      }
      case Fault::park: {
        // Not while the keeper asks for more: who overwrites a request with a weaker one has taken it back.
        if (engine_.keeper_is_busy()) return;
        const u32 worker = static_cast<u32>(random_.below(case_.workers));
        machine_.tell(fmt::format("FAULT: worker {} is told to leave", worker));
        auto* line = reinterpret_cast<wire::HostLine*>(engine_.memory().params.host_lines) + worker;
        return machine_.memory().write(&line->park, 4, random_.chance(2) ? wire::kParkAfterTask : wire::kParkSuspend);
      }
      case Fault::hand_off:
        machine_.tell("FAULT: new code");
        return engine_.hand_off();
      case Fault::clock_jump: {
        const Side side = random_.chance(2) ? Side::host : Side::device;
        machine_.tell("FAULT: a clock jumps");
        // Back by no more than it has shown, and by what a clock that is set is off.
        if (random_.chance(2)) return machine_.set_back(side, random_.below(std::min(machine_.shown(side), kLongestSetBackNs)));
        return machine_.jump_clock(side, random_.below(kLongestJumpNs));
      }
      default:
        return;
    }
  }

  // ---- names of what lies in memory, for timelines -----------------------------------------------------------------
  std::string name_of(u64 at) const {
    const wire::WorkerParams& p = engine_.memory().params;
    const auto in_rings = [&](u64 base, u32 slots, const char* what) {
      const u64 ring = (at - base) / wire::ring_pitch(slots), slot = (at - base) % wire::ring_pitch(slots) / 16;
      return fmt::format("{} {} slot {}{}", what, ring, slot, (at & 8) != 0 ? " (high)" : "");
    };
    const auto inside = [&](u64 base, u64 bytes) { return at >= base && at < base + bytes; };
    if (inside(p.inboxes, p.workers * wire::ring_pitch(p.inbox_slots))) return in_rings(p.inboxes, p.inbox_slots, "inbox");
    if (inside(p.outboxes, p.workers * wire::ring_pitch(p.outbox_slots))) return in_rings(p.outboxes, p.outbox_slots, "outbox");
    const auto in_lines = [&](u64 base, const char* what) {
      return fmt::format("{} line {}, byte {}", what, (at - base) / wire::kCacheLineBytes, (at - base) % wire::kCacheLineBytes);
    };
    if (inside(p.worker_lines, u64{p.workers} * wire::kCacheLineBytes)) return in_lines(p.worker_lines, "worker");
    if (inside(p.host_lines, u64{p.workers} * wire::kCacheLineBytes)) return in_lines(p.host_lines, "host");
    for (u32 s = 0; s < engine_.memory().slots.size(); ++s) {
      const scheduler::SlotMemory& slot = engine_.memory().slots[s];
      if (inside(slot.events, u64{plan_.view().event_count} * 4)) return fmt::format("slot {} event {}", s, (at - slot.events) / 4);
      if (inside(slot.arena, plan_.view().arena_bytes)) return fmt::format("slot {} arena byte {}", s, at - slot.arena);
      if (inside(slot.reports, plan_.view().report_bytes)) return fmt::format("slot {} report byte {}", s, at - slot.reports);
    }
    return fmt::format("{:#x}", at);
  }

  // ---- results ----------------------------------------------------------------------------------------------------
  void stands_still() {
    checker_.complain(fmt::format("{} runs have not ended after {} steps and {:.3f} ms", checker_.runs_open(), machine_.explorer().steps(),
                                  static_cast<double>(machine_.now()) / 1e6));
  }
  WorldResult result() {
    WorldResult out;
    out.complaint = checker_.complaint();
    out.steps = machine_.explorer().steps();
    out.tiles = checker_.tiles();
    out.runs = checker_.runs_submitted();
    out.runs_done = checker_.runs_done();
    out.runs_primed = engine_.stats().runs_primed.get();
    out.relaunches = engine_.relaunches();
    out.virtual_ns = machine_.now();
    for (const gpu::sim::Moment& moment : machine_.moments()) {
      out.timeline.push_back(fmt::format("{:>12.3f} us  {:<10} {}", static_cast<double>(moment.at) / 1e3,
                                         moment.agent == Explorer::kNobody ? "-" : machine_.explorer().name(moment.agent), moment.what));
    }
    return out;
  }

  const SimCase& case_;
  GraphPlan plan_;
  Checker checker_;
  Machine machine_;
  SimDevice device_;
  Engine engine_;
  gpu::sim::Random random_;  // of client and gremlin; the explorer has its own
  gpu::sim::Random repeats_{case_.seed};
  scheduler::DecisionTrace trace_;
  Explorer::Agent client_ = Explorer::kNobody;
  Nanos stalled_until_ = 0;
  bool winding_down_ = false;
  bool dead_ = false;  // no scheduler any more
};

}  // namespace

WorldResult play(const SimCase& sim_case, bool timeline) {
  World world(sim_case, timeline);
  return world.play();
}

}  // namespace ccks::test::sim

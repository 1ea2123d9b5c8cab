// The co-pilot on one thread with workers that take their turns at random: whatever the order, nothing deadlocks, every
// tile runs after what it waits for, and every event gets exactly its total in every run, cancelled runs included.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>

#include "ccks/wire/event.hpp"
#include "scheduler/copilot.hpp"
#include "scheduler/dims.hpp"
#include "scheduler/memory_map.hpp"
#include "tests/support/engine_graph.hpp"
#include "tests/support/sanitized.hpp"

namespace ccks::test {
namespace {

using namespace scheduler;

struct FakeClock {
  std::uint64_t* now;
  std::uint64_t now_ns() const { return *now += 1000; }
};

class FakeDevice final : public Device {
 public:
  explicit FakeDevice(std::uint32_t workers) : workers_(workers) {}
  DeviceInfo info() const override {
    DeviceInfo info;
    info.kind = "host";
    info.workers = workers_;
    return info;
  }
  Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind) override {
    blocks_.push_back(std::make_unique<std::byte[]>(bytes + 256));
    return (reinterpret_cast<std::uint64_t>(blocks_.back().get()) + 255) / 256 * 256;
  }
  Status write(std::uint64_t to, const void* from, std::uint64_t bytes) override {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return {};
  }
  Status read(void* to, std::uint64_t from, std::uint64_t bytes) override {
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return {};
  }
  Status fill_zero(std::uint64_t, std::uint64_t) override { return {}; }
  Status launch(const WorkerImage&, const wire::WorkerParams&) override { return {}; }
  Status join(std::uint64_t) override { return {}; }
  Status health() override { return {}; }
  std::uint64_t clock_pair(std::uint64_t& host_ns) override { return host_ns = 0; }
  void scheduler_wait(std::uint64_t) override {}
  void wake_scheduler() override {}

 private:
  std::uint32_t workers_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// One worker, stepped from outside: at most one tile a step, and it says when it is blocked. Its done records answer one
// task or several.
class FakeWorker {
 public:
  FakeWorker(const wire::WorkerParams& p, std::uint32_t index, std::mt19937& random)
      : params_(p),
        inbox_(reinterpret_cast<const wire::Task*>(wire::inbox_of(p, index)), p.inbox_slots, 0),
        outbox_(reinterpret_cast<wire::Record*>(wire::outbox_of(p, index)), p.outbox_slots, 0),
        random_(random) {}

  /// True if it did something.
  bool step() {
    if (queue_.empty() && !fetch()) return answer();
    wire::Task& task = queue_.front();
    if (task.op == wire::kOpSignal) {
      events()[task.tile] += task.epoch;
    } else {
      if (!run_tile(task, task.first_tile())) return false;
      if (task.tile_count() > 1) {
        task.tile = wire::Task::pack_tiles(task.first_tile() + 1, task.tile_count() - 1);
        return true;
      }
    }
    queue_.pop_front();
    if (queue_.empty()) close();
    return true;
  }

 private:
  // A task is through. Its answer may wait for those of the next ones, but not for ever: they may never come.
  void close() {
    answer_ = inbox_task_;
    unanswered_ = true;
    if (random_() % 2 == 0) answer();
  }
  bool answer() {
    if (!unanswered_) return false;
    unanswered_ = false;
    const auto slot_kind = static_cast<std::uint16_t>(answer_.slot() | static_cast<std::uint32_t>(wire::RecordKind::done));
    outbox_.put_release({inbox_.position(), answer_.epoch, answer_.op, slot_kind, 0});
    return true;
  }

  template <class T>
  const T* table(std::uint32_t offset) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(frame_) + offset);
  }
  std::uint32_t* events() const { return reinterpret_cast<std::uint32_t*>(frame_->events); }

  bool fetch() {
    if (!inbox_.poll(inbox_task_)) return false;
    frame_ = reinterpret_cast<const wire::RunFrame*>(
        reinterpret_cast<const std::uint64_t*>(params_.frames)[inbox_task_.slot()]);
    if (inbox_task_.op != wire::kOpList) return queue_.push_back(inbox_task_), true;
    const wire::ListParams list = table<wire::ListParams>(frame_->lists)[inbox_task_.tile];
    for (std::uint32_t i = 0; i < list.count; ++i) {
      wire::Task task = table<wire::Task>(frame_->list_tasks)[list.first + i];
      task.epoch = inbox_task_.epoch;
      task.slot_flags = inbox_task_.slot_flags;
      queue_.push_back(task);
    }
    return true;
  }

  bool ready(const wire::OpParams& op, const wire::TileCoord& coord, std::uint32_t epoch) const {
    for (std::uint32_t w = 0; w < op.wait_count; ++w) {
      const wire::WaitParams& wait = table<wire::WaitParams>(frame_->waits)[op.wait_first + w];
      const wire::EventRect rect = wire::wait_rect(wait, coord);
      for (std::uint32_t i = 0; i < wire::rect_count(rect); ++i) {
        const std::uint32_t event = wire::rect_event(wait, rect, i);
        const std::uint32_t base = table<std::uint32_t>(frame_->bases)[event];
        if (!wire::event_reached(events()[event], wire::event_target(base, epoch, frame_->epoch0, wait.total)))
          return false;
      }
    }
    return true;
  }

  bool run_tile(const wire::Task& task, std::uint32_t tile) {
    const wire::OpParams& op = table<wire::OpParams>(frame_->ops)[task.op];
    EXPECT_LT(tile, op.tile_count);
    const wire::TileCoord coord = wire::tile_coord(op.grid, tile);
    const bool skip = (task.slot_flags & wire::kTaskSkip) != 0;
    if (!skip && !ready(op, coord, task.epoch)) return false;
    if (!skip && op.report >= 0 && guards_hold(op)) publish(task, op);
    for (std::uint32_t s = 0; s < op.signal_count; ++s) {
      ++events()[wire::signal_event(table<wire::SignalParams>(frame_->signals)[op.signal_first + s], coord)];
    }
    return true;
  }

  bool guards_hold(const wire::OpParams& op) const {
    for (std::uint32_t g = 0; g < op.guard_count; ++g) {
      const wire::GuardParams& guard = table<wire::GuardParams>(frame_->guards)[op.guard_first + g];
      if (*reinterpret_cast<const std::int32_t*>(frame_->arena + guard.offset) == guard.int_value) return false;  // ne
    }
    return true;
  }

  void publish(const wire::Task& task, const wire::OpParams& op) {
    const wire::OperandParams& operand = table<wire::OperandParams>(frame_->operands)[op.report_operand];
    auto* values = reinterpret_cast<std::int32_t*>(frame_->arena + operand.offset);
    for (std::uint32_t i = 0; i < op.report_bytes / 4; ++i) values[i] = static_cast<std::int32_t>(random_() % 4);
    if (op.report_bytes == sizeof(*values)) return post(wire::RecordKind::word, static_cast<std::uint32_t>(values[0]), task.op);
    std::memcpy(reinterpret_cast<void*>(frame_->reports + op.report_offset), values, op.report_bytes);
    post(wire::RecordKind::report, static_cast<std::uint32_t>(op.report), task.op);
  }

  void post(wire::RecordKind kind, std::uint32_t value, std::uint16_t op) {
    const auto slot_kind = static_cast<std::uint16_t>(inbox_task_.slot() | static_cast<std::uint32_t>(kind));
    outbox_.put_release({value, inbox_task_.epoch, op, slot_kind, 0});
  }

  wire::WorkerParams params_;
  wire::RingConsumer<wire::Task, wire::HostAtoms> inbox_;
  wire::RingWriter<wire::Record, wire::HostAtoms> outbox_;
  std::mt19937& random_;
  const wire::RunFrame* frame_ = nullptr;
  wire::Task inbox_task_;
  wire::Task answer_;             // last task that is through, if nobody has been told
  bool unanswered_ = false;
  std::deque<wire::Task> queue_;  // what is left of the inbox task
};

/// Whatever else may happen while the co-pilot looks at an outbox.
class Meanwhile {
 public:
  virtual ~Meanwhile() = default;
  virtual void meanwhile() = 0;
  virtual void stored(const void* slot) = 0;
};

/// The co-pilot's atoms, between whose looks clients and workers go on.
struct InterruptedAtoms : wire::HostAtoms {
  Meanwhile* others = nullptr;
  void store_slot_release(void* slot, const wire::SlotWords& words) const {
    wire::HostAtoms::store_slot_release(slot, words);
    others->stored(slot);
  }
  wire::SlotWords load_slot_acquire(const void* slot) const {
    others->meanwhile();
    return wire::HostAtoms::load_slot_acquire(slot);
  }
};

// Everything but threads.
class World final : public RunEvents, public Meanwhile {
 public:
  /// `repeats`: runs are of one size, and most are submitted once all before them have ended, so that they may be primed.
  World(const plan::PlanView& plan, PolicyKind policy, Spine spine, std::uint32_t workers, std::uint32_t slots,
        std::uint32_t seed, bool repeats = false)
      : random_(seed),
        repeats_(repeats),
        device_(workers),
        tables_(make_plan_tables(plan, workers, spine).value()),
        submissions_(slots) {
    EngineOptions options;
    options.slots = slots;
    memory_ = reserve_memory(device_, tables_, options).value();
    slots_.resize(slots);
    fences_.resize(1);
    for (std::uint32_t i = 0; i < slots; ++i) {
      slots_[i].index = i;
      slots_[i].memory = memory_.slots[i];
      slots_[i].instance.reserve(tables_);
      slots_[i].progress.reserve(tables_);
      free_.push_back(i);
    }
    policy_ = make_policy(policy, tables_, slots);
    CopilotSetup setup;
    setup.tables = &tables_;
    setup.slots = &slots_;
    setup.fences = &fences_;
    setup.policy = policy_.get();
    setup.device = &device_;
    setup.submissions = &submissions_;
    primed_.reserve(tables_, workers);
    setup.primed = &primed_;
    setup.events = this;
    setup.stats = &stats_;
    setup.params = memory_.params;
    InterruptedAtoms atoms;
    atoms.others = this;
    copilot_ = std::make_unique<Copilot<InterruptedAtoms, FakeClock>>(setup, atoms, FakeClock{&now_});
    for (std::uint32_t w = 0; w < workers; ++w) workers_.emplace_back(memory_.params, w, random_);
  }

  /// Runs `runs` runs with random dims, cancelling some at random moments. False: nothing moves any more.
  bool run(std::uint32_t runs) {
    runs_ = runs;
    std::uint32_t idle = 0;
    while (ended_ < runs) {
      if (!repeats_ || random_() % 64 == 0) maybe_submit();
      bool moved = false;
      if (random_() % 3 == 0) {
        moved = copilot_->step();
        step_ends();
      }
      moved |= work();
      if (random_() % 200 == 0) slots_[random_() % slots_.size()].cancel.store(true, std::memory_order_relaxed);
      idle = moved ? 0 : idle + 1;
      if (idle > 100000 || failed_) return false;
    }
    return true;
  }

  void meanwhile() override {
    if (!repeats_) return;
    for (std::uint32_t more = random_() % 4; more > 0; --more) {
      maybe_submit();
      work();
    }
  }
  /// Of what one step sends, lists are seen no sooner than drafts, if it is little.
  void stored(const void* slot) override {
    const auto* task = static_cast<const wire::Task*>(slot);
    ++stores_;
    if (task->op == wire::kOpList) {
      ++lists_;
      drafts_with_lists_ += drafts_ > 0;
    } else if ((task->slot_flags & wire::kTaskDraft) != 0) {
      ++drafts_;
      late_drafts_ += lists_ > 0;
    }
  }
  void step_ends() {
    if (late_drafts_ > 0) {
      EXPECT_GT(stores_, kHeldTasks) << late_drafts_ << " drafts behind " << lists_ << " lists that workers can see";
    }
    stores_ = lists_ = drafts_ = late_drafts_ = 0;
  }
  std::uint64_t drafts_with_lists() const { return drafts_with_lists_; }
  /// Runs of which a client heard before all answers had been booked.
  std::uint32_t ended_early() const { return ended_early_; }
  void run_ended(RunSlot& run) override {
    ++ended_;
    ended_early_ += run.outstanding > 0;
  }
  void run_released(RunSlot& run) override {
    check_events(run);
    free_.push_back(run.index);
  }
  void fence_reached(StateFence&) override {}
  void engine_failed(ErrorCode, const char* message) override {
    ADD_FAILURE() << message;
    failed_ = true;
  }
  const SchedulerStats& stats() const { return stats_; }

  /// The scheduler alone, until it has looked after all workers; of each step, how many of them heard of it.
  std::vector<std::uint32_t> tick() {
    now_ += kTickNs;
    const auto* lines = reinterpret_cast<const wire::HostLine*>(memory_.params.host_lines);
    const std::uint64_t since = now_;
    std::vector<std::uint32_t> heard;
    std::uint32_t all = 0;
    do {
      copilot_->step();
      const auto count = static_cast<std::uint32_t>(
          std::count_if(lines, lines + memory_.params.workers, [&](const wire::HostLine& line) { return line.heartbeat_ns > since; }));
      heard.push_back(count - all);
      all = count;
    } while (copilot_->ticks());
    return heard;
  }

 private:
  void maybe_submit() {
    if (submitted_ == runs_ || free_.empty() || random_() % 4 != 0) return;
    if (repeats_ && ended_ < submitted_ && random_() % 8 != 0) return;
    ++submitted_;
    submit();
  }
  bool work() {
    bool moved = false;
    for (FakeWorker& worker : workers_) {
      for (std::uint32_t burst = random_() % 8; burst > 0; --burst) moved |= worker.step();
    }
    return moved;
  }

  void submit() {
    RunSlot& run = slots_[free_.back()];
    free_.pop_back();
    const std::int64_t n = repeats_ && random_() % 16 != 0 ? 3 : 1 + static_cast<std::int64_t>(random_() % 8);
    std::vector<std::int64_t> dims(tables_.plan.dims.size());
    ASSERT_TRUE(evaluate_plan(tables_.plan, {&n, 1}, dims).ok());
    if (!run.instance.matches({&n, 1})) {
      ASSERT_TRUE(run.instance.rebuild(tables_, {&n, 1}, dims, run.memory, 0, 0, run.next_epoch).ok());
      const auto frame = run.instance.frame();
      std::memcpy(reinterpret_cast<void*>(run.memory.frame), frame.data(), frame.size());
      run.written_for = run.next_epoch;
    }
    run.cancel.store(false, std::memory_order_relaxed);
    run.state.reset(static_cast<std::uint32_t>(RunState::queued));
    if (primed_.take(run)) {
      primed_.send(wire::HostAtoms{});
    } else {
      submissions_.push({Submission::Kind::run, run.index});
    }
  }

  // The slot is idle: every event of its instance stands where the next run expects it.
  void check_events(const RunSlot& run) {
    const auto* frame = reinterpret_cast<const wire::RunFrame*>(run.memory.frame);
    const auto* events = reinterpret_cast<const std::uint32_t*>(run.memory.events);
    const auto* bases = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const char*>(frame) + frame->bases);
    for (std::size_t s = 0; s < tables_.plan.signals.size(); ++s) {
      const wire::SignalParams& signal = run.instance.signals()[s];
      for (std::uint32_t e = signal.event_first; e < signal.event_first + signal.event_count; ++e) {
        ASSERT_EQ(events[e], bases[e] + (run.next_epoch - frame->epoch0) * signal.total)
            << "event " << e << " of op " << s;
      }
    }
  }

  std::mt19937 random_;
  bool repeats_ = false;
  std::uint32_t runs_ = 0, submitted_ = 0;
  std::uint64_t now_ = 0;
  FakeDevice device_;
  PlanTables tables_;
  MemoryMap memory_;
  std::deque<RunSlot> slots_;
  std::deque<StateFence> fences_;
  SubmissionQueue submissions_;
  PrimedRun primed_;
  SchedulerStats stats_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<Copilot<InterruptedAtoms, FakeClock>> copilot_;
  std::deque<FakeWorker> workers_;
  std::vector<std::uint32_t> free_;
  std::uint32_t stores_ = 0, lists_ = 0, drafts_ = 0, late_drafts_ = 0;  // of this step
  std::uint64_t drafts_with_lists_ = 0;
  std::uint32_t ended_ = 0, ended_early_ = 0;
  bool failed_ = false;
};

std::vector<GraphOp> random_graph(std::mt19937& random) {
  std::vector<GraphOp> ops(1);
  ops[0] = {.tiles = 2, .scaled = true, .per_tile_events = true};
  const std::uint32_t count = 3 + random() % 12;
  std::uint32_t reports = 0;
  for (std::uint32_t i = 1; i < count; ++i) {
    GraphOp op;
    op.tiles = 1 + random() % 9;
    op.scaled = random() % 2 == 0;
    op.per_tile_events = random() % 2 == 0;
    for (std::uint32_t e = random() % 4; e > 0; --e)
      op.edges.push_back({static_cast<std::uint32_t>(random() % i), Reads::all});
    const std::uint32_t kind = random() % 6;
    if (kind == 0)
      op.report = static_cast<int>(reports++), op.report_count = 1 + random() % 3, op.tiles = 1, op.scaled = false;
    // Held or guarded by a report of an earlier op, which is among its producers.
    if ((kind == 1 || kind == 2) && reports > 0) {
      const int report = static_cast<int>(random() % reports);
      std::uint32_t producer = 0;
      while (ops[producer].report != report) ++producer;
      op.edges.push_back({producer, Reads::all});
      (kind == 1 ? op.dynamic_report : op.guard_report) = report;
    }
    ops.push_back(op);
  }
  return ops;
}

struct Way {
  const char* name;
  PolicyKind policy;
  Spine spine;
};

/// One thread, in which ThreadSanitizer has nothing to find.
std::uint32_t seeds() { return short_sweeps() ? 100 : 500; }

class CopilotRandom : public testing::TestWithParam<Way> {};

TEST_P(CopilotRandom, EveryEventGetsItsTotalAndNothingDeadlocks) {
  std::uint64_t skipped = 0, drafts_with_lists = 0;
  for (std::uint32_t seed = 1; seed <= seeds(); ++seed) {
    std::mt19937 random(seed);
    const GraphPlan plan(random_graph(random));
    // Now and then more workers than a run's turn has decisions, so that runs take turns in the middle of their ops.
    const std::uint32_t workers = seed % 10 == 0 ? kRunTurn + 8 : 1 + seed % 5;
    World world(plan.view(), GetParam().policy, GetParam().spine, workers, 1 + seed % 4, seed);
    ASSERT_TRUE(world.run(40)) << "seed " << seed << " stands still";
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
    skipped += world.stats().skipped_tiles.get();
    drafts_with_lists += world.drafts_with_lists();
  }
  EXPECT_EQ(drafts_with_lists > 0, GetParam().spine == Spine::stretches || GetParam().spine == Spine::fitting) << drafts_with_lists;
  // A whole plan goes out in one go, before anybody cancels it; the others must have met dynamic ops and cancellations.
  EXPECT_EQ(skipped > 0, GetParam().spine != Spine::whole);
}

// Clients and workers go on between any two looks of the co-pilot at outboxes: a run may be taken, worked at and answered before it is noticed, and
// another be submitted behind it.
TEST_P(CopilotRandom, PrimedRunsAreBookedWheneverTheyAreTaken) {
  std::uint64_t primed = 0, early = 0;
  for (std::uint32_t seed = 1; seed <= seeds(); ++seed) {
    std::mt19937 random(seed);
    const GraphPlan plan(random_graph(random));
    World world(plan.view(), GetParam().policy, GetParam().spine, 1 + seed % 5, 1 + seed % 4, seed, true);
    ASSERT_TRUE(world.run(60)) << "seed " << seed << " stands still";
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
    primed += world.stats().runs_primed.get();
    early += world.ended_early();
  }
  EXPECT_EQ(primed > 0, GetParam().spine != Spine::tiles) << primed;
  // Reactive decides by each answer.
  EXPECT_EQ(early > 0, GetParam().policy != PolicyKind::reactive) << early;
}

// Lines of many workers take microseconds, in which a report would wait.
TEST(CopilotTick, GoesOverAllWorkersAFewInAStep) {
  const GraphPlan plan(std::vector<GraphOp>(1));
  World world(plan.view(), PolicyKind::fixed, Spine::whole, 2 * kWorkersPerTick + 3, 1, 1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(world.tick(), (std::vector<std::uint32_t>{kWorkersPerTick, kWorkersPerTick, 3}));
}

INSTANTIATE_TEST_SUITE_P(Ways, CopilotRandom,
                         testing::Values(Way{"static", PolicyKind::fixed, Spine::whole},
                                         Way{"lookahead_tiles", PolicyKind::lookahead, Spine::tiles},
                                         Way{"lookahead_lists", PolicyKind::lookahead, Spine::stretches},
                                         Way{"lookahead_auto", PolicyKind::lookahead, Spine::fitting},
                                         Way{"reactive", PolicyKind::reactive, Spine::tiles}),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace ccks::test

// Workers that leave and come back, new code for them, and everything that can stop them: nothing is lost, nothing runs
// twice, nothing hangs.
#include <atomic>
#include <functional>
#include <thread>

#include "ccks/worker/host_entry.hpp"
#include "tests/support/graph_engines.hpp"

namespace ccks::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Ops of every kind of dependency, slow enough that workers are caught in the middle of a run.
std::vector<GraphOp> busy_graph(std::uint32_t spin_us) {
  std::vector<GraphOp> ops = layered_graph(3);
  for (GraphOp& op : ops) op.spin_us = spin_us;
  return ops;
}

/// Submits runs from a thread of its own and checks every output, until stopped.
class Load {
 public:
  Load(Engine& engine, const GraphPlan& plan) : thread_([this, &engine, &plan] { main(engine, plan); }) {}
  ~Load() { (void)stop(); }
  /// Runs that were checked.
  std::uint64_t stop() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
    return checked_;
  }

 private:
  void main(Engine& engine, const GraphPlan& plan) {
    std::uint64_t seed = 0;
    while (!stop_.load(std::memory_order_relaxed) && !testing::Test::HasFailure()) {
      std::vector<std::pair<std::uint64_t, ccks::Run>> runs;
      for (int i = 0; i < 3; ++i) {
        ++seed;
        Result<ccks::Run> run = submit_graph(engine, seed, 1 + static_cast<std::int64_t>(seed % 4));
        ASSERT_TRUE(run.ok()) << run.status().to_string();
        runs.emplace_back(seed, std::move(*run));
      }
      for (auto& [number, run] : runs) {
        const Status done = run.wait_for(seconds(60));
        ASSERT_TRUE(done.ok()) << done.to_string();
        expect_graph_outputs(plan, run, number, 1 + static_cast<std::uint32_t>(number % 4));
        ++checked_;
      }
    }
  }
  std::atomic<bool> stop_{false};  // relaxed: joining orders the rest
  std::uint64_t checked_ = 0;
  std::thread thread_;
};

class Residency : public GraphEngines {};

TEST_P(Residency, IdleWorkersLeaveAndComeBackWithTheNextRun) {
  const GraphPlan plan(busy_graph(0));
  EngineOptions idle = options();
  idle.idle_limit = milliseconds(5);
  Engine engine = open(plan, idle);
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    expect_run(engine, plan, seed);
    std::this_thread::sleep_for(milliseconds(120));  // a worker asleep looks at its limits every 20 ms
  }
  EXPECT_GE(engine.stats().relaunches, 3u);
}

TEST_P(Residency, WorkersThatLeaveAllTheTimeLoseNothing) {
  const GraphPlan plan(busy_graph(100));
  EngineOptions idle = options();
  idle.idle_limit = std::chrono::microseconds(200);  // shorter than many a gap inside a run
  Engine engine = open(plan, idle);
  Load load(engine, plan);
  std::this_thread::sleep_for(seconds(2));
  EXPECT_GT(load.stop(), 5u);
}

TEST_P(Residency, ASilentSchedulerLosesItsWorkersAndGetsThemBack) {
  const GraphPlan plan(busy_graph(100));
  EngineOptions watchful = options();
  watchful.heartbeat_limit = milliseconds(20);
  Engine engine = open(plan, watchful);
  const std::uint64_t seed = 7;
  for (int round = 0; round < 5; ++round) {
    // The callback runs on the scheduler thread: it stands still with other runs in flight.
    RunRequest first;
    first.dims = {{"n", 2}};
    first.inputs = {{"seed", as_bytes(seed)}};
    first.on_done = [](const Status&) { std::this_thread::sleep_for(milliseconds(300)); };
    Result<ccks::Run> silent = engine.submit(std::move(first));
    ASSERT_TRUE(silent.ok());
    for (std::uint64_t i = 0; i < 3; ++i) expect_run(engine, plan, seed + i);
    EXPECT_TRUE(silent->wait_for(seconds(20)).ok());
  }
  EXPECT_GE(engine.stats().relaunches, 1u);
}

TEST_P(Residency, HandoffsUnderLoadLoseNothing) {
  const GraphPlan plan(busy_graph(50));
  Engine engine = open(plan, options());
  Load load(engine, plan);
  for (int i = 0; i < 60; ++i) {
    const Result<HandoffTimes> times = engine.handoff(program(plan));
    ASSERT_TRUE(times.ok()) << times.status().to_string();
    EXPECT_GT(times->total().count(), 0);
    std::this_thread::sleep_for(milliseconds(i % 7));
  }
  EXPECT_GT(load.stop(), 5u);
  EXPECT_EQ(engine.stats().relaunches, 60u);
}

// Workers open the next run's list before it comes (wire::kTaskAgain): it may never come, or be of a frame that has been written to since.
TEST_P(Residency, RunsThatComeAgainAndRunsOfOtherDimsAreRight) {
  const GraphPlan plan(layered_graph(3));
  EngineOptions few = options();
  few.slots = 2;
  Engine engine = open(plan, few);
  for (std::uint64_t seed = 1; seed <= 400 && !HasFatalFailure(); ++seed) {
    const std::int64_t n = seed % 9 == 0 ? 1 + static_cast<std::int64_t>(seed % 4) : 2;
    if (seed % 16 == 5) {  // two at a time, of which one is not wanted
      Result<ccks::Run> other = submit_graph(engine, seed + 1000, 3);
      ASSERT_TRUE(other.ok()) << other.status().to_string();
      other->cancel();
    }
    if (seed % 40 == 7) {
      ASSERT_TRUE(engine.handoff(program(plan)).ok());
    }
    if (seed % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(seed));
    Result<ccks::Run> run = submit_graph(engine, seed, n);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Status done = run->wait_for(seconds(60));
    ASSERT_TRUE(done.ok()) << done.to_string();
    expect_graph_outputs(plan, *run, seed, static_cast<std::uint32_t>(n));
  }
}

// ---- handoff --------------------------------------------------------------------------------------------------------

/// Writes 1000 instead of what the plan says, so that one sees whose code ran.
struct OtherOps {
  template <class Lanes>
  static void run(Lanes&, const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tile) {
    const auto* operands =
        reinterpret_cast<const wire::OperandParams*>(reinterpret_cast<const char*>(&frame) + frame.operands) +
        op.operand_first;
    reinterpret_cast<std::uint64_t*>(frame.arena + operands[1].offset)[tile] = 1000;
  }
};
void other_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<OtherOps>(params, index, context);
}

TEST(Handoff, NewCodeRunsFromThenOn) {
  const GraphPlan plan(std::vector<GraphOp>{{.tiles = 4}}, 1);
  Engine engine = open_graph_engine(plan);
  const auto value = [&](std::uint64_t seed) {
    std::vector<std::uint64_t> out(4);
    Result<ccks::Run> run = submit_graph(engine, seed, 1);
    EXPECT_TRUE(run.ok() && run->wait_for(seconds(20)).ok());
    EXPECT_TRUE(run->read_output("t0", std::as_writable_bytes(std::span(out))).ok());
    return out[3];
  };
  EXPECT_EQ(value(3), plan.expected(1, 3)[0][3]);
  ASSERT_TRUE(engine.handoff(plan.program().with_worker({.host = other_entry})).ok());
  EXPECT_EQ(value(3), 1000u);
  ASSERT_TRUE(engine.handoff(plan.program()).ok());
  EXPECT_EQ(value(3), plan.expected(1, 3)[0][3]);
}

TEST(Handoff, OtherPlansAndEarlyCallsAreRefused) {
  const GraphPlan plan(std::vector<GraphOp>{{.tiles = 4}}, 1);
  const GraphPlan other(std::vector<GraphOp>{{.tiles = 5}}, 1);
  Engine engine = open_graph_engine(plan);
  EXPECT_EQ(engine.handoff(other.program()).status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(engine.handoff(Program()).status().code(), ErrorCode::invalid_argument);
  Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = 1});
  Result<Engine> early = Engine::create(std::move(*device), plan.program(), {});
  EXPECT_EQ(early->handoff(plan.program()).status().code(), ErrorCode::invalid_argument);
}

// ---- ops that do not end --------------------------------------------------------------------------------------------

std::atomic<bool> held{false};  // relaxed throughout: a lone word

/// Ops numbered kHeld spin while `held`; all others do nothing.
struct HeldOps {
  static constexpr int kHeld = 1;
  template <class Lanes>
  static void run(Lanes&, const wire::RunFrame&, const wire::OpParams& op, wire::u32) {
    while (op.dims[0] == kHeld && held.load(std::memory_order_relaxed)) std::this_thread::yield();
  }
};
void held_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<HeldOps>(params, index, context);
}

class OpsThatDoNotEnd : public Residency {
 protected:
  void SetUp() override { held.store(true, std::memory_order_relaxed); }
  void TearDown() override { held.store(false, std::memory_order_relaxed); }
  static std::vector<GraphOp> chain() {
    std::vector<GraphOp> ops(4);
    for (std::uint32_t i = 0; i < 4; ++i) {
      ops[i].tiles = 2;
      if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
    }
    return ops;
  }
  static Engine open_held(const GraphPlan& plan, const EngineOptions& options) {
    Result<std::unique_ptr<Device>> device = open_device(four_workers());
    Result<Engine> engine =
        Engine::create(std::move(*device), plan.program().with_worker({.host = held_entry}), options);
    EXPECT_TRUE(engine.ok() && engine->start().ok());
    return std::move(*engine);
  }
};

TEST_P(OpsThatDoNotEnd, AreNamedAndNobodyHangs) {
  const GraphPlan plan(chain(), 1);
  EngineOptions impatient = options();
  impatient.task_deadline = milliseconds(300);
  const auto start = std::chrono::steady_clock::now();
  {
    Engine engine = open_held(plan, impatient);
    Result<ccks::Run> run = submit_graph(engine, 1, 1);
    ASSERT_TRUE(run.ok());
    const Status status = run->wait_for(seconds(20));
    EXPECT_EQ(status.code(), ErrorCode::deadline_exceeded);
    EXPECT_EQ(run->poll(), RunState::failed);
    if (GetParam() != "static" && GetParam() != "lookahead_lists") {  // of a list it is known that it stands still
      EXPECT_NE(status.message().find("op 'op1'"), std::string::npos) << status.message();
    }
    EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(15));
}

TEST_P(OpsThatDoNotEnd, AHandoffGivesUpAndTheOldCodeGoesOn) {
  const GraphPlan plan(chain(), 1);
  Engine engine = open_held(plan, options());
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(engine.handoff(plan.program(), milliseconds(200)).status().code(), ErrorCode::deadline_exceeded);
  held.store(false, std::memory_order_relaxed);
  const Status done = run->wait_for(seconds(20));
  EXPECT_TRUE(done.ok()) << done.to_string();
  EXPECT_TRUE(submit_graph(engine, 2, 1)->wait_for(seconds(20)).ok());
}

INSTANTIATE_TEST_SUITE_P(Policies, Residency,
                         testing::Values("static", "lookahead_lists", "lookahead_tiles", "reactive", "gpu_queue",
                                         "cuda_static", "cuda_lookahead_lists", "cuda_lookahead_tiles", "cuda_reactive"),
                         [](const auto& policy) { return policy.param; });
INSTANTIATE_TEST_SUITE_P(Policies, OpsThatDoNotEnd,
                         testing::Values("static", "lookahead_lists", "lookahead_tiles", "reactive"),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test

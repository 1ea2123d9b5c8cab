// The scheduler is lost, anywhere, again and again: each run is executed exactly once or reported failed, and clients go on.
#include <random>

#include "tests/faults/fault_case.hpp"

namespace ccks::test {
namespace {

std::vector<GraphOp> busy_graph(std::uint32_t spin_us) {
  std::vector<GraphOp> ops = layered_graph(3);
  for (GraphOp& op : ops) op.spin_us = spin_us;
  return ops;
}

Result<ccks::Run> submit_held(Engine& engine, std::uint64_t seed, Hold& hold) {
  const RunRequest::Input input{"seed", as_bytes(seed)};
  RunRequest request;
  request.dims = {{"n", 2}};
  request.inputs = {input};
  request.on_done = hold.callback();
  return engine.submit(std::move(request));
}

/// A client that submits until stopped, and counts what became of its runs.
class Client {
 public:
  Client(Engine& engine, const GraphPlan& plan) : thread_([this, &engine, &plan] { main(engine, plan); }) {}
  ~Client() { stop(); }
  void stop() {
    stop_.store(true, std::memory_order_relaxed);  // relaxed: a lone word; joining orders the rest
    if (thread_.joinable()) thread_.join();
  }
  std::atomic<std::uint64_t> done{0};  // relaxed: a counter
  std::uint64_t failed = 0, callbacks_wrong = 0;

 private:
  void main(Engine& engine, const GraphPlan& plan) {
    std::uint64_t seed = 0;
    while (!stop_.load(std::memory_order_relaxed) && !testing::Test::HasFailure()) {  // relaxed: as above
      std::vector<std::pair<std::uint64_t, ccks::Run>> runs;
      std::atomic<std::uint32_t> ended{0};  // callbacks are through with it before the next round makes another in its place
      for (int i = 0; i < 3; ++i) {
        ++seed;
        RunRequest request;
        const RunRequest::Input input{"seed", as_bytes(seed)};
        request.dims = {{"n", 1 + static_cast<std::int64_t>(seed % 4)}};
        request.inputs = {input};
        request.on_done = [&ended](const Status&) { ended.fetch_add(1, std::memory_order_release); };  // [N1] pairs with [N2]
        Result<ccks::Run> run = engine.submit(std::move(request));
        ASSERT_TRUE(run.ok()) << run.status().to_string();
        runs.emplace_back(seed, std::move(*run));
      }
      for (auto& [number, run] : runs) judge(plan, run, number);
      // Each has told its end once. The last may be about to.
      for (int i = 0; i < 20'000 && ended.load(std::memory_order_acquire) < 3; ++i) {  // [N2] pairs with [N1]
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
      callbacks_wrong += ended.load(std::memory_order_acquire) != 3;  // [N2] pairs with [N1]
    }
  }
  void judge(const GraphPlan& plan, ccks::Run& run, std::uint64_t seed) {
    const Status end = run.wait_for(seconds(60));
    if (end.ok()) {
      done.fetch_add(1, std::memory_order_relaxed);  // relaxed: see there
      return expect_graph_outputs(plan, run, seed, 1 + static_cast<std::uint32_t>(seed % 4));
    }
    EXPECT_EQ(end.code(), ErrorCode::internal) << end.to_string();
    EXPECT_NE(end.message().find("scheduler was lost"), std::string::npos) << end.to_string();
    ++failed;
  }
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class Restart : public FaultCase {};

TEST_P(Restart, AtRandomPointsUnderLoad) {
  const GraphPlan plan(busy_graph(20));
  Engine engine = open(plan, options(8));  // more than both clients hold
  std::mt19937 random(7);
  const std::uint64_t restarts = sanitized() ? 8 : 40;
  std::uint64_t lost = 0;
  {
    Client one(engine, plan), two(engine, plan);
    for (std::uint64_t i = 0; i < restarts && !HasFailure(); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      const Result<RestartOutcome> outcome = engine.restart_scheduler(std::chrono::nanoseconds(0));
      ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
      lost += outcome->runs_lost;
    }
    // A busy machine may have had no time for a whole run between two restarts.
    const auto done = [&] { return one.done.load(std::memory_order_relaxed) + two.done.load(std::memory_order_relaxed); };  // relaxed: see there
    for (int i = 0; i < 30'000 && done() == 0 && !HasFailure(); ++i) std::this_thread::sleep_for(milliseconds(1));
    one.stop(), two.stop();
    EXPECT_GT(done(), 0u);
    EXPECT_EQ(one.callbacks_wrong + two.callbacks_wrong, 0u);
    EXPECT_LE(one.failed + two.failed, lost);
    EXPECT_EQ(one.failed + two.failed, engine.stats().runs_lost);
  }
  EXPECT_EQ(engine.stats().scheduler_restarts, restarts);
  EXPECT_GT(lost, 0u);
  for (std::uint64_t seed = 1; seed < 10; ++seed) expect_right(engine, plan, seed);
}

TEST_P(Restart, RunsThatWaitedForTheSchedulerGoOn) {
  const GraphPlan plan(busy_graph(0));
  Engine engine = open(plan, options(4));
  Hold hold;
  Result<ccks::Run> stuck = submit_held(engine, 1, hold);
  ASSERT_TRUE(stuck.ok());
  hold.await();
  std::vector<ccks::Run> waiting;
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    Result<ccks::Run> run = submit_graph(engine, seed, 2);
    ASSERT_TRUE(run.ok());
    waiting.push_back(std::move(*run));
  }
  const Result<RestartOutcome> outcome = engine.restart_scheduler(milliseconds(20));
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_EQ(outcome->runs_kept, 3u);
  EXPECT_EQ(outcome->runs_lost, 1u);  // held, though it has ended
  EXPECT_TRUE(stuck->wait().ok());    // it had ended before, and stays as it was
  EXPECT_EQ(hold.calls(), 1);
  EXPECT_EQ(engine.stats().runs_lost, 0u);
  for (std::uint64_t seed = 2; seed < 5; ++seed) {
    ASSERT_TRUE(waiting[seed - 2].wait_for(seconds(30)).ok());
    expect_graph_outputs(plan, waiting[seed - 2], seed, 2);
  }
}

TEST_P(Restart, ASupervisorReplacesASchedulerThatStandsStill) {
  const GraphPlan plan(busy_graph(0));
  EngineOptions watched = options(4);
  watched.scheduler_limit = milliseconds(sanitized() ? 1000 : 200);
  Engine engine = open(plan, watched);
  expect_right(engine, plan, 1);
  Hold hold;
  ASSERT_TRUE(submit_held(engine, 2, hold).ok());
  hold.await();
  expect_right(engine, plan, 3);  // nobody has called anything
  EXPECT_EQ(engine.stats().scheduler_restarts, 1u);
  std::this_thread::sleep_for(watched.scheduler_limit * 2);  // idle is not still
  EXPECT_EQ(engine.stats().scheduler_restarts, 1u);
}

TEST_P(Restart, AShortStallIsNoLoss) {
  const GraphPlan plan(busy_graph(0));
  EngineOptions watched = options(4);
  watched.scheduler_limit = seconds(20);
  Engine engine = open(plan, watched);
  Hold hold;
  ASSERT_TRUE(submit_held(engine, 1, hold).ok());
  hold.await();
  std::this_thread::sleep_for(milliseconds(100));
  hold.let_go();
  expect_right(engine, plan, 2);
  EXPECT_EQ(engine.stats().scheduler_restarts, 0u);
}

TEST_P(Restart, AClientWaitingForAStateIsToldAndTheStateLives) {
  std::vector<GraphOp> ops = busy_graph(0);
  GraphOp keeps;  // one tile: several would race for the word
  keeps.state = true;
  keeps.edges = {{static_cast<std::uint32_t>(ops.size() - 1), Reads::all}};
  ops.push_back(keeps);
  const GraphPlan plan(ops);
  Engine engine = open(plan, options(4));
  const std::uint64_t word = 5;
  ASSERT_TRUE(engine.write_state(0, "s", as_bytes(word)).ok());
  Hold hold;
  ASSERT_TRUE(submit_held(engine, 1, hold).ok());
  hold.await();
  Status waited;
  std::thread client([&] { waited = engine.reset_state(0); });
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_TRUE(engine.restart_scheduler(milliseconds(1)).ok());
  client.join();  // taken by the lost scheduler or not: it ends, and says which
  EXPECT_TRUE(waited.ok() || waited.code() == ErrorCode::internal) << waited.to_string();
  ASSERT_TRUE(engine.write_state(0, "s", as_bytes(word)).ok());
  std::uint64_t read = 0;
  ASSERT_TRUE(engine.read_state(0, "s", std::as_writable_bytes(std::span(&read, 1))).ok());
  EXPECT_EQ(read, word);
}

// Each slot's turn stands where its next run waits for it, wherever runs were when they were lost.
TEST_P(Restart, RunsThatFollowEachOtherOnAStateGoOn) {
  std::vector<GraphOp> ops = busy_graph(20);
  ops.push_back({.tiles = 1, .edges = {{static_cast<std::uint32_t>(ops.size() - 1), Reads::all}}, .state = true});
  const GraphPlan plan(ops);
  EngineOptions chained = options(4);
  chained.chain_states = true;
  Engine engine = open(plan, chained);
  std::mt19937 random(11);
  for (int round = 0; round < (sanitized() ? 4 : 20); ++round) {
    std::vector<ccks::Run> runs;
    for (std::uint64_t seed = 1; seed < 4; ++seed) runs.push_back(submit_graph(engine, seed, 2).value());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
    ASSERT_TRUE(engine.restart_scheduler(std::chrono::nanoseconds(0)).ok());
    for (ccks::Run& run : runs) {
      const Status end = run.wait_for(seconds(60));
      EXPECT_TRUE(end.ok() || end.code() == ErrorCode::internal) << end.to_string();
    }
    runs.clear();
    for (std::uint64_t seed = 1; seed < 5; ++seed) {  // in every slot
      ASSERT_TRUE(engine.reset_state(0).ok());
      expect_right(engine, plan, seed);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Restart, WorkersThatDoNotLeaveFailTheEngineAndNobodyHangs) {
  if (on_gpu()) GTEST_SKIP() << "an op without end leaves the GPU's context to the process's end";
  std::vector<GraphOp> ops(1);
  ops[0].spin_us = 3'000'000;
  const GraphPlan plan(ops);
  Engine engine = open(plan, options(2));
  Result<ccks::Run> endless = submit_graph(engine, 1, 1);
  ASSERT_TRUE(endless.ok());
  while (endless->poll() == RunState::queued) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(300));  // until a worker has it for sure
  const Result<RestartOutcome> outcome = engine.restart_scheduler(std::chrono::nanoseconds(0), milliseconds(200));
  EXPECT_EQ(outcome.status().code(), ErrorCode::deadline_exceeded) << outcome.status().to_string();
  EXPECT_FALSE(endless->wait_for(seconds(10)).ok());
  EXPECT_NE(endless->poll(), RunState::running);
  EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
}

TEST(RestartRefused, WhereItCannotBe) {
  const GraphPlan plan(busy_graph(0));
  EngineOptions queue;
  queue.arm = "gpu_queue";
  Engine engine = open_graph_engine(plan, queue);
  EXPECT_EQ(engine.restart_scheduler().status().code(), ErrorCode::unsupported);
  Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = 2});
  ASSERT_TRUE(device.ok());
  Result<Engine> early = Engine::create(std::move(*device), plan.program(), {});
  ASSERT_TRUE(early.ok());
  EXPECT_EQ(early->restart_scheduler().status().code(), ErrorCode::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Ways, Restart, testing::Values("static", "lookahead", "lookahead_tiles", "reactive", "cuda_static", "cuda_lookahead", "played_static", "played_lookahead"),
                         [](const auto& way) { return way.param; });

}  // namespace
}  // namespace ccks::test

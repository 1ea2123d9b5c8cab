// What clients may do to an engine besides running: cancel, deadlines, drain, states, mistakes, going away.
#include <atomic>
#include <thread>

#include "tests/support/engine_runs.hpp"

namespace ccks::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<GraphOp> slow_chain(std::uint32_t length, std::uint32_t spin_us) {
  std::vector<GraphOp> ops(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    ops[i].tiles = 4;
    ops[i].spin_us = spin_us;
    if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return ops;
}

class EngineControl : public testing::TestWithParam<std::string> {
 protected:
  EngineOptions options(std::uint32_t slots = 4) const {
    EngineOptions out = options_of(GetParam());
    out.slots = slots;
    return out;
  }
};

TEST_P(EngineControl, CancelledRunEndsAndItsSlotIsUsedAgain) {
  const GraphPlan plan(slow_chain(100, 200), 1);
  Engine engine = open_graph_engine(plan, options(1));
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  std::this_thread::sleep_for(milliseconds(2));
  run->cancel();
  EXPECT_EQ(run->wait_for(seconds(30)).code(), ErrorCode::cancelled);
  run->cancel();
  *run = ccks::Run();
  Result<ccks::Run> next = submit_graph(engine, 2, 1);
  ASSERT_TRUE(next.ok());
  ASSERT_TRUE(next->wait_for(seconds(30)).ok());
  expect_graph_outputs(plan, *next, 2, 1);
  EXPECT_EQ(engine.stats().runs_cancelled, 1u);
}

TEST_P(EngineControl, DeadlineIsReportedBeforeTheRunHasDrained) {
  const GraphPlan plan(slow_chain(200, 500), 1);
  Engine engine = open_graph_engine(plan, options(1));
  RunRequest request;
  request.deadline = milliseconds(20);
  Result<ccks::Run> run = engine.submit(std::move(request));
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->wait_for(seconds(30)).code(), ErrorCode::deadline_exceeded);
  EXPECT_EQ(run->poll(), RunState::failed);
  EXPECT_LT(run->latency(), seconds(20));
  EXPECT_TRUE(engine.drain(seconds(60)).ok());
  EXPECT_EQ(engine.stats().runs_failed, 1u);
}

TEST_P(EngineControl, EngineGoesAwayWhileRunsAreInFlight) {
  const GraphPlan plan(slow_chain(20, 100), 1);
  std::vector<ccks::Run> runs;
  std::atomic<int> ended{0};
  {
    Engine engine = open_graph_engine(plan, options());
    for (int i = 0; i < 4; ++i) {
      RunRequest request;
      request.on_done = [&](const Status&) { ended.fetch_add(1, std::memory_order_relaxed); };
      Result<ccks::Run> run = engine.submit(std::move(request));
      ASSERT_TRUE(run.ok());
      runs.push_back(std::move(*run));
    }
  }
  EXPECT_EQ(ended.load(std::memory_order_relaxed), 4);
  for (ccks::Run& run : runs) {
    const Status status = run.wait();
    EXPECT_TRUE(status.ok() || status.code() == ErrorCode::cancelled) << status.to_string();
  }
}

TEST_P(EngineControl, RunsOfOneStateGoInOrderAndStatesAreApart) {
  std::vector<GraphOp> ops(2);
  ops[0].tiles = 3;
  ops[1].state = true;
  ops[1].edges = {{0, Reads::all}};
  const GraphPlan plan(ops, 1);
  EngineOptions two = options();
  two.states = 2;
  Engine engine = open_graph_engine(plan, two);
  std::uint64_t one_by_one = 0;
  for (const bool in_flight : {false, true}) {
    for (std::uint32_t state = 0; state < 2; ++state) ASSERT_TRUE(engine.reset_state(state).ok());
    for (std::uint64_t i = 0; i < 40; ++i) {
      // State 1 gets the same runs with other seeds between them: it must not disturb state 0.
      Result<ccks::Run> run = submit_graph(engine, i / 2 + (i % 2) * 1000, 1, i % 2);
      ASSERT_TRUE(run.ok());
      if (in_flight) continue;
      ASSERT_TRUE(run->wait_for(seconds(20)).ok());
    }
    std::uint64_t state0 = 0;
    // GraphPlan has no tensor for the state word; the last output holds the same value.
    Result<ccks::Run> last = submit_graph(engine, 77, 1, 0);
    ASSERT_TRUE(last.ok());
    ASSERT_TRUE(last->wait_for(seconds(20)).ok());
    ASSERT_TRUE(last->read_output("t1", std::as_writable_bytes(std::span(&state0, 1))).ok());
    if (!in_flight) one_by_one = state0;
    EXPECT_EQ(state0, one_by_one);
    EXPECT_TRUE(engine.drain(seconds(10)).ok());
  }
}

TEST_P(EngineControl, StatesAreReadWrittenAndResetInOrderWithRuns) {
  std::vector<GraphOp> ops(1);
  ops[0].state = true;
  ops[0].spin_us = 2000;
  const GraphPlan plan(ops, 1);
  EngineOptions two = options();
  two.states = 2;
  Engine engine = open_graph_engine(plan, two);
  const auto read = [&](std::uint32_t state) {
    std::uint64_t word = 1;
    const Status status = engine.read_state(state, "s", std::as_writable_bytes(std::span(&word, 1)));
    EXPECT_TRUE(status.ok()) << status.to_string();
    return word;
  };
  EXPECT_EQ(read(0), 0u);
  const std::uint64_t preset = 99;
  ASSERT_TRUE(engine.write_state(0, "s", as_bytes(preset)).ok());
  Result<ccks::Run> a = submit_graph(engine, 5, 1, 0);
  Result<ccks::Run> b = submit_graph(engine, 6, 1, 0);
  const std::uint64_t after = read(0);  // waits for both
  EXPECT_EQ(b->poll(), RunState::done);
  EXPECT_NE(after, preset);
  EXPECT_EQ(read(1), 0u);
  ASSERT_TRUE(engine.reset_state(0).ok());
  ASSERT_TRUE(engine.write_state(0, "s", as_bytes(preset)).ok());
  for (const std::uint64_t seed : {5, 6}) ASSERT_TRUE(submit_graph(engine, seed, 1, 0)->wait_for(seconds(20)).ok());
  EXPECT_EQ(read(0), after);
  EXPECT_EQ(engine.reset_state(2).code(), ErrorCode::out_of_range);
  EXPECT_EQ(engine.write_state(0, "t0", as_bytes(preset)).code(), ErrorCode::invalid_argument);
}

TEST_P(EngineControl, CallbacksComeOnceForRunsThatNobodyHolds) {
  const GraphPlan plan(layered_graph(1));
  Engine engine = open_graph_engine(plan, options());
  std::atomic<int> calls{0};
  for (int i = 0; i < 20; ++i) {
    RunRequest request;
    request.on_done = [&](const Status& status) { calls.fetch_add(status.ok() ? 1 : 1000, std::memory_order_relaxed); };
    ASSERT_TRUE(engine.submit(std::move(request)).ok());  // nobody keeps the handle
  }
  ASSERT_TRUE(engine.drain(seconds(20)).ok());
  EXPECT_EQ(calls.load(std::memory_order_relaxed), 20);
}

TEST_P(EngineControl, SeveralEnginesInOneProcess) {
  const GraphPlan plan(layered_graph(2));
  Engine first = open_graph_engine(plan, options());
  Engine second = open_graph_engine(plan, options());
  for (std::uint64_t i = 0; i < 30; ++i) {
    Result<ccks::Run> a = submit_graph(first, i, 2);
    Result<ccks::Run> b = submit_graph(second, i + 100, 3);
    ASSERT_TRUE(a.ok() && b.ok());
    ASSERT_TRUE(a->wait_for(seconds(20)).ok());
    ASSERT_TRUE(b->wait_for(seconds(20)).ok());
    expect_graph_outputs(plan, *a, i, 2);
    expect_graph_outputs(plan, *b, i + 100, 3);
  }
}

TEST_P(EngineControl, LostEventEndsEveryRunWithAMessage) {
  GraphPlan plan(slow_chain(3, 0), 1);
  plan.demand_too_much(0);
  EngineOptions impatient = options();
  impatient.spin_deadline = milliseconds(100);
  Engine engine = open_graph_engine(plan, impatient);
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  const Status status = run->wait_for(seconds(40));
  if (GetParam() == "stream") {  // order comes from the launches: nobody waits for events, and none can be lost
    EXPECT_TRUE(status.ok()) << status.to_string();
    return;
  }
  if (GetParam() == "gpu_queue") {  // no task of op1 is ever ready: what waits is the queue
    EXPECT_EQ(status.code(), ErrorCode::device_fault) << status.to_string();
    EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
    return;
  }
  if (GetParam() == "reactive") {  // the host waits, not the device: the watchdog speaks
    EXPECT_EQ(status.code(), ErrorCode::internal) << status.to_string();
  } else {
    EXPECT_EQ(status.code(), ErrorCode::device_fault) << status.to_string();
    EXPECT_NE(status.message().find("op1"), std::string::npos) << status.message();
  }
  EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
  EXPECT_FALSE(engine.drain(seconds(1)).ok());
}

TEST_P(EngineControl, DynamicTilesAndGuards) {
  std::vector<GraphOp> ops(5);
  ops[0] = {.tiles = 1, .report = 0, .report_count = 3};
  ops[1] = {.tiles = 12, .per_tile_events = true, .edges = {{0, Reads::all}}, .dynamic_report = 0};
  ops[2] = {.tiles = 5, .per_tile_events = true, .edges = {{0, Reads::all}}, .guard_report = 0};
  ops[3] = {.tiles = 2, .edges = {{1, Reads::all}}};
  ops[4] = {.tiles = 2, .edges = {{2, Reads::all}}};
  const GraphPlan plan(ops, 1);
  Engine engine = open_graph_engine(plan, options(2));
  const std::vector<std::uint64_t> zeros(12, 0);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RunRequest request;
    request.inputs = {{"seed", as_bytes(seed)},
                      {"t1", std::as_bytes(std::span(zeros))},
                      {"t2", std::as_bytes(std::span(zeros).first(5))}};
    Result<ccks::Run> run = engine.submit(std::move(request));
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Status done = run->wait_for(seconds(30));
    ASSERT_TRUE(done.ok()) << done.to_string();
    const auto want = plan.expected(1, seed);
    for (std::uint32_t op = 0; op < 5; ++op) {
      std::vector<std::uint64_t> got(want[op].size());
      ASSERT_TRUE(run->read_output(GraphPlan::output(op), std::as_writable_bytes(std::span(got))).ok());
      ASSERT_EQ(got, want[op]) << "op " << op << " seed " << seed;
    }
    Result<std::vector<double>> report = run->report("r0");
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->size(), 3u);
    EXPECT_EQ((*report)[0], static_cast<double>(want[0][0] % 4));
  }
  // Runs one by one: what the report calls for is on its workers before it has come, and some of it was guessed wrong.
  const EngineStats stats = engine.stats();
  const bool drafts = GetParam().starts_with("lookahead");
  EXPECT_EQ(stats.drafts > stats.drafts_dropped, drafts);
  EXPECT_EQ(stats.drafts_dropped > 0, drafts);
}

TEST_P(EngineControl, MistakesAreRefusedAndNothingIsSent) {
  const GraphPlan plan(layered_graph(1));
  Engine engine = open_graph_engine(plan, options());
  EXPECT_EQ(submit_graph(engine, 1, 9).status().code(), ErrorCode::out_of_range);
  EXPECT_EQ(submit_graph(engine, 1, 0).status().code(), ErrorCode::out_of_range);
  EXPECT_EQ(submit_graph(engine, 1, 1, 5).status().code(), ErrorCode::out_of_range);
  RunRequest unknown_dim;
  unknown_dim.dims = {{"m", 1}};
  EXPECT_EQ(engine.submit(std::move(unknown_dim)).status().code(), ErrorCode::invalid_argument);
  const std::byte bytes[16] = {};
  RunRequest wrong_size;
  wrong_size.inputs = {{"seed", bytes}};
  EXPECT_EQ(engine.submit(std::move(wrong_size)).status().code(), ErrorCode::invalid_argument);
  RunRequest no_tensor;
  no_tensor.inputs = {{"nobody", bytes}};
  EXPECT_EQ(engine.submit(std::move(no_tensor)).status().code(), ErrorCode::not_found);
  EXPECT_EQ(engine.stats().tasks_sent, 0u);
  EXPECT_EQ(engine.bind_weight("seed", bytes).code(), ErrorCode::invalid_argument);
  ccks::Run none;
  EXPECT_FALSE(none.wait().ok());
}

TEST(EngineCreation, BadOptionsAreRefused) {
  const GraphPlan plan(layered_graph(1));
  const auto code = [&](EngineOptions options) {
    Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = 1});
    return Engine::create(std::move(*device), plan.program(), options).status().code();
  };
  EngineOptions policy;
  policy.policy = "clairvoyant";
  EXPECT_EQ(code(policy), ErrorCode::invalid_argument);
  EngineOptions spine;
  spine.spine = "bent";
  EXPECT_EQ(code(spine), ErrorCode::invalid_argument);
  EngineOptions slots;
  slots.slots = 0;
  EXPECT_EQ(code(slots), ErrorCode::invalid_argument);
  EngineOptions replay;
  replay.replay_path = "/nonexistent/record";
  EXPECT_EQ(code(replay), ErrorCode::not_found);
  EXPECT_EQ(Engine::create(nullptr, plan.program(), {}).status().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(code({}), ErrorCode::ok);
}

TEST(EngineCreation, SubmitBeforeStartIsRefused) {
  const GraphPlan plan(layered_graph(1));
  Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = 1});
  Result<Engine> engine = Engine::create(std::move(*device), plan.program(), {});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(submit_graph(*engine, 1, 1).status().code(), ErrorCode::invalid_argument);
}

TEST(EngineCreation, SlotsHeldByEndedRunsAreAMessageAndNotAHang) {
  const GraphPlan plan(layered_graph(1));
  EngineOptions options;
  options.slots = 1;
  Engine engine = open_graph_engine(plan, options);
  Result<ccks::Run> held = submit_graph(engine, 1, 1);
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(held->wait_for(seconds(20)).ok());
  EXPECT_EQ(submit_graph(engine, 2, 1).status().code(), ErrorCode::deadline_exceeded);
  *held = ccks::Run();
  EXPECT_TRUE(submit_graph(engine, 2, 1).ok());
}

TEST(EngineStatic, ListsGoOnWithoutTheScheduler) {
  // The scheduler thread stands still in the callback of the first run; the second, whose lists have been sent, goes
  // on.
  const GraphPlan plan(slow_chain(50, 300), 1);
  EngineOptions options;
  options.policy = "static";
  Engine engine = open_graph_engine(plan, options);
  const std::uint64_t before = graph_tiles_run();
  std::atomic<bool> stopped{false}, go_on{false};
  RunRequest first;
  first.on_done = [&](const Status&) {
    stopped.store(true, std::memory_order_relaxed);
    while (!go_on.load(std::memory_order_relaxed)) std::this_thread::sleep_for(milliseconds(1));
  };
  Result<ccks::Run> a = engine.submit(std::move(first));
  Result<ccks::Run> b = engine.submit({});
  ASSERT_TRUE(a.ok() && b.ok());
  while (!stopped.load(std::memory_order_relaxed)) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(b->poll(), RunState::running);
  for (int i = 0; i < 20000 && graph_tiles_run() < before + 2 * 50 * 4; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(graph_tiles_run(), before + 2 * 50 * 4);
  EXPECT_EQ(b->poll(), RunState::running);
  go_on.store(true, std::memory_order_relaxed);
  EXPECT_TRUE(b->wait_for(seconds(20)).ok());
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineControl, testing::ValuesIn(ways_and({"stream", "gpu_queue"})),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test

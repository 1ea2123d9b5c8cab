// Faults that clients, guesses and rings make: on the host's device, and on a GPU where there is one.
#include "tests/faults/fault_case.hpp"

namespace ccks::test {
namespace {

class Faults : public FaultCase {};

// Clients that submit and cancel without a pause, with room for two runs: each ends, done or cancelled, once.
TEST_P(Faults, ClientFlood) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open(plan, options(2));
  const auto until = std::chrono::steady_clock::now() + milliseconds(sanitized() ? 300 : 800);
  std::atomic<std::uint64_t> submitted{0}, ended{0}, wrong{0};  // relaxed throughout: counters; joining orders them
  std::vector<std::thread> clients;
  for (std::uint64_t c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (std::uint64_t i = 0; std::chrono::steady_clock::now() < until; ++i) {
        const std::uint64_t seed = c * 1'000'000 + i;
        Result<ccks::Run> run = submit_graph(engine, seed, 1 + static_cast<std::int64_t>(i % 3));
        if (!run.ok()) {
          wrong.fetch_add(1, std::memory_order_relaxed);
          return;
        }
        submitted.fetch_add(1, std::memory_order_relaxed);
        if (i % 3 == 0) run->cancel();
        if (i % 5 == 0) continue;  // dropped while it runs
        const Status end = run->wait_for(seconds(30));
        if (!end.ok() && end.code() != ErrorCode::cancelled) wrong.fetch_add(1, std::memory_order_relaxed);
        if (end.ok() && i % 8 == 1) expect_graph_outputs(plan, *run, seed, 1 + static_cast<std::uint32_t>(i % 3));
        ended.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ASSERT_TRUE(engine.drain(seconds(60)).ok());
  const EngineStats stats = engine.stats();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_GT(ended.load(), 0u);
  EXPECT_EQ(stats.runs_submitted, submitted.load());
  EXPECT_EQ(stats.runs_done + stats.runs_cancelled + stats.runs_failed, submitted.load());
  EXPECT_EQ(stats.runs_failed, 0u);
  expect_right(engine, plan, 9);
}

// More tasks at once than all inboxes hold: the scheduler waits for answers, nobody else.
TEST_P(Faults, InboxesFull) {
  std::vector<GraphOp> ops(3);
  for (GraphOp& op : ops) op.tiles = on_gpu() && !is_played() ? 60'000 : 3000;
  ops[2].edges = {{0, Reads::same_tile}, {1, Reads::same_tile}};
  const GraphPlan plan(ops, 2);
  Engine engine = open(plan, options(3));
  std::vector<ccks::Run> runs;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Result<ccks::Run> run = submit_graph(engine, seed, 1);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    runs.push_back(std::move(*run));
  }
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Status end = runs[seed - 1].wait_for(seconds(60));
    ASSERT_TRUE(end.ok()) << end.to_string();
    expect_graph_outputs(plan, runs[seed - 1], seed, 1);
  }
}

// Trace areas of four records, and nobody who reads them.
TEST_P(Faults, TraceSinkStuck) {
  const GraphPlan plan(layered_graph(4));
  EngineOptions traced = options(2);
  traced.trace_records = 4;
  Engine engine = open(plan, traced);
  for (std::uint64_t seed = 1; seed <= (sanitized() ? 20 : 40); ++seed) expect_right(engine, plan, seed);
  const std::size_t kept = engine.trace().size();
  EXPECT_GT(kept, 0u);
  EXPECT_LE(kept, 4u * engine.device_info().workers);
}

// Guarded bodies are sent before their guard is known. From no wrong guess to nothing but wrong ones: a body runs if and only if its
// guard holds.
TEST_P(Faults, WrongGuesses) {
  std::vector<GraphOp> ops(4);
  ops[0] = {.tiles = 1, .report = 0, .report_count = 1};
  ops[1] = {.tiles = 6, .per_tile_events = true, .edges = {{0, Reads::all}}, .guard_report = 0};
  ops[2] = {.tiles = 3, .edges = {{1, Reads::all}}};
  ops[3] = {.tiles = 2, .edges = {{2, Reads::all}}};
  const GraphPlan plan(ops, 1);
  std::vector<std::uint64_t> right, wrong;  // seeds whose guard holds, fails
  for (std::uint64_t seed = 0; right.size() < 20 || wrong.size() < 20; ++seed) {
    (plan.expected(1, seed)[1][0] != 0 ? right : wrong).push_back(seed);
  }
  Engine engine = open(plan, options(3));
  const std::vector<std::uint64_t> zeros(6, 0);
  for (std::uint64_t percent : {0u, 20u, 50u, 80u, 100u}) {
    for (std::uint64_t i = 0; i < 20; ++i) {
      const std::uint64_t seed = i * 5 < percent ? wrong[i] : right[i];
      RunRequest request;
      request.inputs = {{"seed", as_bytes(seed)}, {"t1", std::as_bytes(std::span(zeros))}};
      Result<ccks::Run> run = engine.submit(std::move(request));
      ASSERT_TRUE(run.ok()) << run.status().to_string();
      const Status end = run->wait_for(seconds(30));
      ASSERT_TRUE(end.ok()) << end.to_string();
      const auto want = plan.expected(1, seed);
      for (std::uint32_t op = 0; op < 4; ++op) {
        std::vector<std::uint64_t> got(want[op].size());
        ASSERT_TRUE(run->read_output(GraphPlan::output(op), std::as_writable_bytes(std::span(got))).ok());
        ASSERT_EQ(got, want[op]) << "op " << op << " seed " << seed << ", " << percent << " % wrong";
      }
    }
  }
}

std::vector<GraphOp> short_chain() {
  std::vector<GraphOp> ops(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    ops[i].tiles = 3;
    if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return ops;
}

// The run and all others fail with the op's name, nothing more is taken, and everything ends.
TEST_P(Faults, AnOpThatFaultsIsNamed) {
  std::vector<GraphOp> ops = short_chain();
  ops[2].faults = true;
  const GraphPlan plan(ops, 1);
  Engine engine = open(plan, options(3));
  Result<ccks::Run> one = submit_graph(engine, 1, 1), two = submit_graph(engine, 2, 1);
  ASSERT_TRUE(one.ok());
  const Status end = one->wait_for(seconds(30));
  EXPECT_EQ(end.code(), ErrorCode::device_fault) << end.to_string();
  EXPECT_NE(end.message().find("op2"), std::string::npos) << end.to_string();
  if (two.ok()) {
    EXPECT_FALSE(two->wait_for(seconds(30)).ok());
  }
  EXPECT_FALSE(submit_graph(engine, 3, 1).ok());
}

// A worker that hangs in a body: longer than tasks may take, not for ever, so that a GPU's context lives on.
TEST_P(Faults, AnOpBeyondItsDeadlineFailsTheEngine) {
  std::vector<GraphOp> ops = short_chain();
  ops[1].spin_us = 1'500'000;
  const GraphPlan plan(ops, 1);
  EngineOptions impatient = options(3);
  impatient.task_deadline = milliseconds(300);
  Engine engine = open(plan, impatient);
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  const Status end = run->wait_for(seconds(30));
  EXPECT_EQ(end.code(), ErrorCode::deadline_exceeded) << end.to_string();
  EXPECT_EQ(run->poll(), RunState::failed);
  EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, Faults, testing::Values("static", "lookahead", "lookahead_tiles", "reactive", "cuda_static", "cuda_lookahead", "played_static", "played_lookahead"),
                         [](const auto& way) { return way.param; });

}  // namespace
}  // namespace ccks::test

// What is particular to an arm: what it refuses, and how its launches fail. Results are held by the suites that run over all
// arms (examples, differential, engine_graph, engine_control).
#include <atomic>
#include <thread>

#include "ccks/worker/host_entry.hpp"
#include "tests/paths.hpp"
#include "tests/support/engine_runs.hpp"

namespace ccks::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::atomic<bool> held{false};      // relaxed throughout, all three: lone words
std::atomic<bool> faulty{false};
std::atomic<std::uint64_t> tiles{0};

/// Op 1 spins while `held` and reports a fault while `faulty`.
struct TrickyOps {
  template <class Lanes>
  static wire::FaultCode run(Lanes&, const wire::RunFrame&, const wire::OpParams& op, wire::u32) {
    tiles.fetch_add(1, std::memory_order_relaxed);
    if (op.dims[0] != 1) return wire::FaultCode::none;
    while (held.load(std::memory_order_relaxed)) std::this_thread::yield();
    return faulty.load(std::memory_order_relaxed) ? wire::FaultCode::bad_index : wire::FaultCode::none;
  }
};
void tricky_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<TrickyOps>(params, index, context);
}

std::vector<GraphOp> chain(std::uint32_t length) {
  std::vector<GraphOp> ops(length);
  for (std::uint32_t i = 0; i < length; ++i) {
    ops[i].tiles = 5;
    if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return ops;
}

Result<Engine> create(const GraphPlan& plan, const EngineOptions& options) {
  Result<std::unique_ptr<Device>> device = open_device({.kind = "host", .workers = 2});
  return Engine::create(std::move(*device), plan.program().with_worker({.host = tricky_entry}), options);
}

class Arms : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override {
    held.store(false, std::memory_order_relaxed);
    faulty.store(false, std::memory_order_relaxed);
  }
};

TEST_P(Arms, AFaultIsNamed) {
  const GraphPlan plan(chain(3), 1);
  Result<Engine> engine = create(plan, options_of(GetParam()));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  ASSERT_TRUE(submit_graph(*engine, 1, 1)->wait_for(seconds(20)).ok());
  faulty.store(true, std::memory_order_relaxed);
  const Status status = submit_graph(*engine, 2, 1)->wait_for(seconds(20));
  EXPECT_EQ(status.code(), ErrorCode::device_fault);
  EXPECT_NE(status.message().find("an index lies outside its tensor"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("op1"), std::string::npos) << status.message();
}

TEST_P(Arms, EveryTileRunsOnceARun) {
  const GraphPlan plan(chain(7), 1);
  Result<Engine> engine = create(plan, options_of(GetParam()));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  for (std::uint64_t run = 0; run < 20; ++run) {
    const std::uint64_t before = tiles.load(std::memory_order_relaxed);
    ASSERT_TRUE(submit_graph(*engine, run, 1)->wait_for(seconds(20)).ok());
    EXPECT_EQ(tiles.load(std::memory_order_relaxed), before + 7 * 5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Arms, testing::Values("copilot", "static", "gpu_queue", "stream"),
                         [](const auto& arm) { return arm.param; });

TEST(ArmStream, AFaultEndsItsRunAndNoOther) {
  const GraphPlan plan(chain(3), 1);
  Result<Engine> engine = create(plan, options_of("stream"));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  faulty.store(true, std::memory_order_relaxed);
  EXPECT_EQ(submit_graph(*engine, 1, 1)->wait_for(seconds(20)).code(), ErrorCode::device_fault);
  faulty.store(false, std::memory_order_relaxed);
  EXPECT_TRUE(submit_graph(*engine, 2, 1)->wait_for(seconds(20)).ok());
  EXPECT_EQ(engine->stats().runs_failed, 1u);
}

TEST(ArmStream, AnOpThatDoesNotEndIsADeadlineAndNotAHang) {
  const GraphPlan plan(chain(3), 1);
  EngineOptions impatient = options_of("stream");
  impatient.spin_deadline = milliseconds(200);
  held.store(true, std::memory_order_relaxed);
  const auto start = std::chrono::steady_clock::now();
  {
    Result<Engine> engine = create(plan, impatient);
    ASSERT_TRUE(engine.ok() && engine->start().ok());
    Result<ccks::Run> run = submit_graph(*engine, 1, 1);
    ASSERT_TRUE(run.ok());
    EXPECT_EQ(run->wait_for(seconds(20)).code(), ErrorCode::deadline_exceeded);
    EXPECT_FALSE(submit_graph(*engine, 2, 1).ok());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(20));
  held.store(false, std::memory_order_relaxed);  // the thread that was let go ends
}

TEST(ArmGpuQueue, SaysWhatItSpendsOnScheduling) {
  const GraphPlan plan(chain(4), 1);
  Result<Engine> engine = create(plan, options_of("gpu_queue"));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  for (std::uint64_t run = 0; run < 10; ++run) ASSERT_TRUE(submit_graph(*engine, run, 1)->wait_for(seconds(20)).ok());
  ASSERT_TRUE(engine->drain(seconds(20)).ok());
  // At least a claim for each of 4 * 5 tasks and each of two workers past the end, and an add for each task.
  EXPECT_GE(engine->stats().queue_atomics, 10u * (4 * 5 + 2 + 4 * 5));
  EXPECT_EQ(engine->stats().tasks_sent, 10u * 2) << "one task a worker and run";
}

TEST(ArmOptions, WhatAnArmCannotDoIsRefused) {
  const GraphPlan plan(chain(2), 1);
  EXPECT_EQ(create(plan, options_of("telepathy")).status().code(), ErrorCode::invalid_argument);
  for (const char* arm : {"gpu_queue", "stream"}) {
    EngineOptions recorded = options_of(arm);
    recorded.record_path = std::string(CCKS_BINARY_DIR) + "/never.written";
    EXPECT_EQ(create(plan, recorded).status().code(), ErrorCode::invalid_argument) << arm;
  }
  EngineOptions traced = options_of("stream");
  traced.trace_records = 64;
  EXPECT_EQ(create(plan, traced).status().code(), ErrorCode::invalid_argument);
  for (const char* arm : {"graph", "graph_pdl"}) {
    Result<Engine> engine = create(plan, options_of(arm));
    ASSERT_TRUE(engine.ok());
    EXPECT_EQ(engine->start().code(), ErrorCode::unsupported) << arm;
  }
  Result<Engine> engine = create(plan, options_of("stream"));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  EXPECT_EQ(engine->handoff(plan.program()).status().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace ccks::test

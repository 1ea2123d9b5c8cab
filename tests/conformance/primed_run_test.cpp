// Runs that submit() itself sends (EngineOptions::prime_runs): the same values as ever, whatever comes in between.
#include <thread>
#include <vector>

#include "tests/support/graph_engines.hpp"

namespace ccks::test {
namespace {

using std::chrono::seconds;

class Primed : public GraphEngines {};

TEST_P(Primed, ARunThatComesAgainIsSentBySubmit) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open(plan, options());
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    expect_run(engine, plan, seed, 2);
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // where cores are few the co-pilot has to come to its turn, or the next run is there first
  }
  EXPECT_GT(engine.stats().runs_primed, 100u);
  EXPECT_EQ(engine.stats().runs_done, 200u);
}

TEST_P(Primed, OtherDimsAreSentByTheCopilot) {
  const GraphPlan plan(layered_graph(3));
  EngineOptions one_slot = options();
  one_slot.slots = 1;
  Engine engine = open(plan, one_slot);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) expect_run(engine, plan, seed, 1 + static_cast<std::uint32_t>(seed) % 2);
  EXPECT_EQ(engine.stats().runs_primed, 0u);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) expect_run(engine, plan, seed, 1 + static_cast<std::uint32_t>(seed / 10) % 4);
  EXPECT_GT(engine.stats().runs_primed, 0u);
}

TEST_P(Primed, NotWhereNobodyAsksForItOrDecisionsAreKept) {
  const GraphPlan plan(layered_graph(3));
  EngineOptions off = options(), traced = options();
  off.prime_runs = false;
  traced.trace_records = 1024;
  for (const EngineOptions& each : {off, traced}) {
    Engine engine = open(plan, each);
    for (std::uint64_t seed = 1; seed <= 20; ++seed) expect_run(engine, plan, seed, 2);
    EXPECT_EQ(engine.stats().runs_primed, 0u);
  }
}

// A run that was taken is under way when the co-pilot hears of it: it can be cancelled like one that the co-pilot has sent.
TEST_P(Primed, CancelledAtOnce) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open(plan, options());
  std::uint64_t cancelled = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    if (seed % 4 == 0) expect_run(engine, plan, seed, 2);
    Result<ccks::Run> run = submit_graph(engine, seed, 2);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    run->cancel();
    const Status done = run->wait_for(seconds(60));
    ASSERT_TRUE(done.ok() || done.code() == ErrorCode::cancelled) << done.to_string();
    cancelled += done.ok() ? 0 : 1;
  }
  EXPECT_GT(cancelled, 0u);
  EXPECT_GT(engine.stats().runs_primed, 0u);
  EXPECT_EQ(engine.stats().runs_cancelled, cancelled);
}

TEST_P(Primed, ClientsThatMeet) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open(plan, options());
  std::vector<std::thread> clients;
  for (std::uint64_t client = 0; client < 3; ++client) {
    clients.emplace_back([&, client] {
      for (std::uint64_t seed = 1; seed <= 150 && !testing::Test::HasFailure(); ++seed) {
        expect_run(engine, plan, 1000 * client + seed, 2);
        if (seed % (10 + client) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(client));  // so that some are alone
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(engine.stats().runs_done, 450u);
}

INSTANTIATE_TEST_SUITE_P(Ways, Primed, testing::Values("static", "lookahead_lists", "cuda_static", "cuda_lookahead_lists"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace ccks::test

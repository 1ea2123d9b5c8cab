// Engine over hand-made graphs on the host device: every policy gives the results of plain sequential execution.
#include <thread>

#include "tests/support/engine_runs.hpp"

namespace ccks::test {
namespace {

class EngineGraph : public testing::TestWithParam<std::string> {
 protected:
  EngineOptions options() const {
    EngineOptions out = options_of(GetParam());
    out.slots = 4;
    return out;
  }
};

TEST_P(EngineGraph, OneRunMatchesSequentialExecution) {
  const GraphPlan plan(layered_graph(3));
  Engine engine = open_graph_engine(plan, options());
  Result<ccks::Run> run = submit_graph(engine, 42, 3);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  const Status done = run->wait_for(std::chrono::seconds(20));
  ASSERT_TRUE(done.ok()) << done.to_string();
  expect_graph_outputs(plan, *run, 42, 3);
}

TEST_P(EngineGraph, DimsChangeFromRunToRunInOneSlot) {
  const GraphPlan plan(layered_graph(2));
  EngineOptions one_slot = options();
  one_slot.slots = 1;
  Engine engine = open_graph_engine(plan, one_slot);
  const std::uint32_t sizes[] = {3, 3, 8, 1, 1, 5, 5, 5, 2, 8};
  for (std::uint32_t i = 0; i < 200; ++i) {
    const std::uint32_t n = sizes[i % 10];
    Result<ccks::Run> run = submit_graph(engine, i, n);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    ASSERT_TRUE(run->wait_for(std::chrono::seconds(20)).ok());
    expect_graph_outputs(plan, *run, i, n);
  }
}

TEST_P(EngineGraph, ManyRunsInFlightFromManyClients) {
  const GraphPlan plan(layered_graph(2));
  Engine engine = open_graph_engine(plan, options());
  std::vector<std::thread> clients;
  for (std::uint32_t client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (std::uint32_t i = 0; i < 100; ++i) {
        const std::uint64_t seed = client * 1000 + i;
        const std::uint32_t n = 1 + (i * 7 + client) % 8;
        Result<ccks::Run> run = submit_graph(engine, seed, n);
        ASSERT_TRUE(run.ok()) << run.status().to_string();
        ASSERT_TRUE(run->wait_for(std::chrono::seconds(30)).ok());
        expect_graph_outputs(plan, *run, seed, n);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(engine.stats().runs_done, 400u);
  EXPECT_TRUE(engine.drain(std::chrono::seconds(5)).ok());
}

TEST_P(EngineGraph, MoreTilesThanInboxes) {
  std::vector<GraphOp> ops;
  ops.push_back({.tiles = 3000, .per_tile_events = true});
  for (std::uint32_t i = 1; i < 40; ++i)
    ops.push_back({.tiles = 3000, .per_tile_events = true, .edges = {{i - 1, Reads::same_tile}}});
  const GraphPlan plan(ops, 1);
  Engine engine = open_graph_engine(plan, options());
  std::vector<ccks::Run> runs;
  for (std::uint64_t i = 0; i < 4; ++i) {
    Result<ccks::Run> run = submit_graph(engine, i, 1);
    ASSERT_TRUE(run.ok());
    runs.push_back(std::move(*run));
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(runs[i].wait_for(std::chrono::seconds(30)).ok());
    expect_graph_outputs(plan, runs[i], i, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineGraph, testing::ValuesIn(ways_and({"stream", "gpu_queue"})),
                         [](const auto& policy) { return policy.param; });

}  // namespace
}  // namespace ccks::test

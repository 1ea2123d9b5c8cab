// A simulated slow link (EngineOptions::link_delay): later, but the same.
#include <gtest/gtest.h>

#include "tests/support/engine_runs.hpp"

namespace ccks::test {
namespace {

using std::chrono::milliseconds;

class LinkDelay : public ::testing::TestWithParam<const char*> {};

TEST_P(LinkDelay, EachWayTakesThatLongAndNothingElseChanges) {
  const GraphPlan plan(layered_graph(2));
  EngineOptions options = options_of(GetParam());
  options.link_delay = milliseconds(3);
  Engine engine = open_graph_engine(plan, options);
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    RunRequest request;
    request.inputs = {{"seed", as_bytes(seed)}};
    auto run = engine.submit(std::move(request));
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    ASSERT_TRUE(run->wait().ok()) << run->wait().to_string();
    EXPECT_GE(run->latency(), 2 * milliseconds(3));
    const auto want = plan.expected(1, seed);
    for (std::uint32_t op = 0; op < want.size(); ++op) {
      std::vector<std::uint64_t> got(want[op].size());
      ASSERT_TRUE(run->read_output(GraphPlan::output(op), std::as_writable_bytes(std::span(got))).ok());
      EXPECT_EQ(got, want[op]) << "op " << op;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, LinkDelay, ::testing::Values("static", "lookahead", "reactive"));

}  // namespace
}  // namespace ccks::test

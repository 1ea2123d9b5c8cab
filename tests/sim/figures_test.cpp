// The prediction against what was measured on an H200, within 15 %. The stage costs are those of the workers of that file
// (gpu/README.md says where each comes from); a file that is gone is a skip, and new workers need new costs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/sim/figures.hpp"

namespace ccks::test::sim {
namespace {

using scheduler::PolicyKind;
using scheduler::Spine;

constexpr const char* kResults = "2026-11-21.e2c9879b29.intel-r-xeon-r-processor-16c.jsonl";

gpu::sim::StageCosts measured_workers() {
  gpu::sim::StageCosts out;
  out.tile_ns = 880;
  out.wait_ns = 1280;
  return out;
}

/// Field `name` of the arm's line; 0: there is none.
double recorded(const char* file, const std::string& arm, const std::string& name) {
  std::ifstream in(std::string(CCKS_SOURCE_DIR) + "/bench/results/" + file);
  for (std::string line; std::getline(in, line);) {
    const std::size_t field = line.find("\"" + name + "\": ");
    if (line.find("\"arm\": \"" + arm + "\"") == std::string::npos || field == std::string::npos) continue;
    return std::strtod(line.c_str() + field + name.size() + 4, nullptr);
  }
  return 0;
}

struct ChainArm {
  const char* arm;
  PolicyKind policy;
  Spine spine;
  std::uint32_t runs;
};

void PrintTo(const ChainArm& arm, std::ostream* out) { *out << arm.arm; }

class ChainFigures : public testing::TestWithParam<ChainArm> {};

TEST_P(ChainFigures, ALayerTakesWhatItTookWithin15Percent) {
  const ChainArm& arm = GetParam();
  const double measured = recorded(kResults, arm.arm, "ns_per_layer_p50");
  if (measured == 0) GTEST_SKIP() << "no '" << arm.arm << "' in " << kResults;
  DispatchCase dispatch;
  dispatch.policy = arm.policy;
  dispatch.spine = arm.spine;
  dispatch.runs = arm.runs;
  const double predicted = predict_dispatch(dispatch, gpu::sim::LinkModel(), measured_workers()) / dispatch.ops / dispatch.runs;
  RecordProperty("predicted_ns", std::to_string(predicted));
  EXPECT_NEAR(predicted / measured, 1, 0.15) << predicted << " ns predicted, " << measured << " measured";
}

INSTANTIATE_TEST_SUITE_P(
    Sim, ChainFigures,
    testing::Values(ChainArm{"chain, static, one run at a time", PolicyKind::fixed, Spine::whole, 1},
                    ChainArm{"chain, static, runs back to back", PolicyKind::fixed, Spine::whole, 8},
                    ChainArm{"chain, copilot, one run at a time", PolicyKind::lookahead, Spine::fitting, 1},
                    ChainArm{"chain, copilot, runs back to back", PolicyKind::lookahead, Spine::fitting, 8}));

TEST(SimFigures, IndependentTasksOfListsRunAsFastAsTheyDidWithin15Percent) {
  const double measured = recorded(kResults, "independent, copilot, ops of four tasks a worker", "million_tasks_per_second_p50");
  if (measured == 0) GTEST_SKIP() << "not in " << kResults;
  DispatchCase dispatch;
  dispatch.chain = false;
  dispatch.ops = 64;
  dispatch.tiles = 4 * dispatch.workers;
  dispatch.runs = 8;
  const double ns = predict_dispatch(dispatch, gpu::sim::LinkModel(), measured_workers());
  const double predicted = 1e3 * dispatch.ops * dispatch.tiles * dispatch.runs / ns;
  EXPECT_NEAR(predicted / measured, 1, 0.15) << predicted << " M tasks/s predicted, " << measured << " measured";
}

// With workers that take no time what is left of a layer is the hop: a release, an add, and a look that finds it. A probe of one
// release, one relaxed poll loop and 132 blocks took 813 ns a layer (gpu/README.md).
TEST(SimFigures, TheHopAloneIsTheProbesWithin15Percent) {
  const DispatchCase dispatch{.policy = PolicyKind::fixed, .spine = Spine::whole};
  const double predicted = predict_dispatch(dispatch, gpu::sim::LinkModel(), gpu::sim::StageCosts{}) / dispatch.ops;
  EXPECT_NEAR(predicted / 813, 1, 0.15) << predicted << " ns predicted";
}

}  // namespace
}  // namespace ccks::test::sim

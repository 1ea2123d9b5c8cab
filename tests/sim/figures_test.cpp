// The prediction against what was measured on an H200, within 15 %. A file that is gone, or lacks an arm, is a skip.
#include <gtest/gtest.h>

#include <cctype>

#include "tests/sim/figures.hpp"

namespace ccks::test::sim {
namespace {

// What gpu/sim/costs.cpp was made for: new workers need new costs.
constexpr const char* kResults = "2026-11-21.6eaa020ca1.intel-r-xeon-r-processor-16c.jsonl";

class SimFigures : public testing::TestWithParam<std::size_t> {};

TEST_P(SimFigures, ArePredictedWithin15Percent) {
  const Figure& figure = figures()[GetParam()];
  const double measured = recorded(kResults, figure);
  if (measured == 0) GTEST_SKIP() << "no '" << figure.arm << "' in " << kResults;
  const double predicted = figure.predict(Simulated());
  RecordProperty("predicted", std::to_string(predicted));
  EXPECT_NEAR(predicted / measured, 1, 0.15) << figure.arm << ": " << predicted << " predicted, " << measured << " measured";
}

std::string name_of(const testing::TestParamInfo<std::size_t>& info) {
  std::string name = std::string(figures()[info.param].bench) + "_" + figures()[info.param].arm;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

/// The others are shown by sim_figures.
std::vector<std::size_t> held() {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < figures().size(); ++i) {
    if (figures()[i].held) out.push_back(i);
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Sim, SimFigures, testing::ValuesIn(held()), name_of);

// With workers that take no time what is left of a layer is the hop: a release, an add, and a look that finds it. A probe of one
// release, one relaxed poll loop and 132 blocks took 813 ns a layer (gpu/README.md).
TEST(SimFigures, TheHopAloneIsTheProbesWithin15Percent) {
  Simulated nothing;
  nothing.costs = {};
  DispatchCase dispatch;
  dispatch.policy = scheduler::PolicyKind::fixed;
  dispatch.spine = scheduler::Spine::whole;
  const double predicted = predict_dispatch(dispatch, nothing) / dispatch.ops;
  EXPECT_NEAR(predicted / 813, 1, 0.15) << predicted << " ns predicted";
}

}  // namespace
}  // namespace ccks::test::sim

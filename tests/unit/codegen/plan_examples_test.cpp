// Every example is planned, and the checker, which shares no code with the planner, accepts the plan.
#include <gtest/gtest.h>

#include <filesystem>

#include "codegen/check_plan.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"
#include "tests/unit/codegen/plan_fixture.hpp"

namespace ccks::codegen {
namespace {

std::vector<std::string> examples() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(CCKS_SOURCE_DIR "/spec/examples"))
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

class PlanExamples : public testing::TestWithParam<std::string> {
 protected:
  spec::Program parsed() const {
    spec::ParseResult result = spec::parse_file(GetParam());
    EXPECT_TRUE(result.ok) << spec::format_diagnostics(result);
    return result.program;
  }
};

TEST_P(PlanExamples, TheCheckerAcceptsThePlan) {
  const spec::Program program = parsed();
  for (const char* device : {"host", "cuda"}) {
    PlanOptions options;
    options.device = device;
    const test::PlanFixture p(program, options);
    const Status status = check_plan(program, p.view).status();
    EXPECT_TRUE(status.ok()) << device << ": " << status.message();
  }
}

TEST_P(PlanExamples, EveryAblationIsAPlanToo) {
  const spec::Program program = parsed();
  for (const Granularity g : {Granularity::whole, Granularity::row, Granularity::tile}) {
    PlanOptions options;
    options.granularity = g;
    options.drop_implied_waits = g != Granularity::row;
    options.reuse_memory = g != Granularity::tile;
    options.reuse_distance = 0;
    options.causal_windows = g == Granularity::tile;
    const test::PlanFixture p(program, options);
    const Status status = check_plan(program, p.view).status();
    EXPECT_TRUE(status.ok()) << granularity_name(g) << ": " << status.message();
  }
}

TEST_P(PlanExamples, TotalsHoldAndReuseSavesMemory) {
  const spec::Program program = parsed();
  const test::PlanFixture p(program);
  EXPECT_LE(p.view.arena_bytes, p.image->unplanned_arena_bytes);
  for (const auto& point : check_points(program)) EXPECT_TRUE(p.at(point).totals_hold());
}

std::string stem(const testing::TestParamInfo<std::string>& info) {
  return std::filesystem::path(info.param).stem().string();
}
INSTANTIATE_TEST_SUITE_P(Examples, PlanExamples, testing::ValuesIn(examples()), stem);

}  // namespace
}  // namespace ccks::codegen

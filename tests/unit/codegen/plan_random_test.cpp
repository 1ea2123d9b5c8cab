// Random specs: whatever the language allows is planned, under every option, and the checker accepts it.
#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/plan_fold.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"
#include "tests/support/random_program.hpp"

namespace ccks::codegen {
namespace {

/// Between them they take every switch both ways.
std::vector<PlanOptions> variants() {
  std::vector<PlanOptions> all(5);
  all[1].workers = 64;
  all[1].reuse_distance = 0;
  all[2].device = "cuda";
  all[2].reuse_from_bytes = 0;
  all[2].causal_windows = false;
  all[3].granularity = Granularity::row;
  all[3].drop_implied_waits = false;
  all[4].granularity = Granularity::whole;
  all[4].reuse_distance = 0;
  return all;
}

TEST(PlanRandom, EveryPlanIsAccepted) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const test::RandomProgram random = test::random_program(seed);
    const spec::ParseResult parsed = spec::parse_text(random.yaml, "random.yaml");
    ASSERT_TRUE(parsed.ok) << seed << "\n" << spec::format_diagnostics(parsed);
    for (const PlanOptions& options : variants()) {
      const auto plan = make_plan(parsed.program, options);
      ASSERT_TRUE(plan.ok()) << seed << ": " << plan.status().message() << "\n" << random.yaml;
      const Status status = check_plan(parsed.program, (*plan)->view()).status();
      ASSERT_TRUE(status.ok()) << seed << ": " << status.message() << "\n" << random.yaml;
    }
  }
}

TEST(PlanRandom, EveryPlanWithFoldedNormsIsAcceptedToo) {
  std::size_t folded = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const spec::ParseResult parsed = spec::parse_text(test::random_program(seed).yaml, "random.yaml");
    for (const PlanOptions& options : variants()) {
      const spec::Program program = fold_norms(parsed.program, options);
      if (program.ops.size() == parsed.program.ops.size()) continue;
      ++folded;
      const auto plan = make_plan(program, options);
      ASSERT_TRUE(plan.ok()) << seed << ": " << plan.status().message();
      const Status status = check_plan(program, (*plan)->view()).status();
      ASSERT_TRUE(status.ok()) << seed << ": " << status.message();
    }
  }
  EXPECT_GT(folded, 0u) << "none of them has a norm of few rows before a product";
}

TEST(PlanRandom, ParsingAgainGivesTheSameTables) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = test::random_program(seed).yaml;
    const auto first = make_plan(spec::parse_text(text, "random.yaml").program);
    const auto second = make_plan(spec::parse_text(text, "random.yaml").program);
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_EQ((*first)->hash, (*second)->hash) << seed;
  }
}

}  // namespace
}  // namespace ccks::codegen

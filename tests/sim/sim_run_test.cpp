// ccks-run --device sim: the values are right, the prediction is the same each time, and it follows the link.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "scheduler/tools/run_session.hpp"
#include "tests/paths.hpp"
#include "tests/support/random_program.hpp"

namespace ccks::run {
namespace {

Options simulate(const char* spec) {
  Options out;
  out.spec = std::string(CCKS_SOURCE_DIR) + "/spec/examples/" + spec + ".yaml";
  out.device = "sim";
  out.workers = 8;
  out.dims = {{"d", 64}};
  return out;
}

Outcome run(const Options& options, int exit_code = kDone) {
  const std::atomic<bool> interrupted{false};
  Outcome outcome;
  const Failure failure = run_session(options, interrupted, false, outcome);
  EXPECT_EQ(failure.exit_code, exit_code) << failure.message;
  return outcome;
}

TEST(SimRun, ExamplesVerifyUnderEveryPolicy) {
  for (const char* spec : {"mlp", "early_exit"}) {
    for (const char* policy : {"static", "lookahead", "reactive"}) {
      Options options = simulate(spec);
      options.policy = policy;
      options.verify = true;
      const Outcome outcome = run(options);
      EXPECT_TRUE(outcome.verified && outcome.verification.passed) << spec << " " << policy;
    }
  }
}

TEST(SimRun, RandomProgramsVerify) {
  const std::string path = (std::filesystem::temp_directory_path() / "ccks_sim_random.yaml").string();
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const test::RandomProgram program = test::random_program(seed);
    std::ofstream(path) << program.yaml;
    Options options;
    options.spec = path;
    options.device = "sim";
    options.dims = program.set;
    options.workers = 1 + static_cast<std::uint32_t>(seed % 7);
    options.policy = seed % 3 == 0 ? "static" : seed % 3 == 1 ? "lookahead" : "reactive";
    options.spine = seed % 2 == 0 ? "tiles" : "lists";
    options.verify = true;
    const Outcome outcome = run(options);
    EXPECT_TRUE(outcome.verified && outcome.verification.passed) << "seed " << seed << ": " << outcome.verification.worst;
  }
  std::filesystem::remove(path);
}

TEST(SimRun, TheSamePredictionEachTimeAndALongerOneOverALongerLink) {
  Options options = simulate("mlp");
  options.policy = "reactive";  // every decision pays the link
  options.iterations = 3;
  const std::vector<double> first = run(options).us;
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(run(options).us, first);
  options.link = "c2c";
  EXPECT_LT(run(options).us[0], first[0]);
  options.link = "far:read_ns=5000,write_ns=5000";
  EXPECT_GT(run(options).us[0], first[0] + 10);
}

TEST(SimRun, WritesATimeline) {
  Options options = simulate("mlp");
  options.trace = (std::filesystem::temp_directory_path() / "ccks_sim_run_test.json").string();
  run(options);
  std::ifstream file(options.trace);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("\"traceEvents\""), std::string::npos);
  EXPECT_NE(text.find("worker 7"), std::string::npos);
  std::filesystem::remove(options.trace);
}

TEST(SimRun, WhatItCannotSimulateIsWrongUsage) {
  for (const char* link : {"", "pcie9", "x:speed_ns=3", "x:read_ns=fast", "x:read_ns=99999999999"}) {
    Options options = simulate("mlp");
    options.link = link;
    run(options, kUsage);
  }
  Options options = simulate("mlp");
  options.arm = "graph";
  run(options, kUsage);
}

}  // namespace
}  // namespace ccks::run

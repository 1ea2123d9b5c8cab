// Workers compiled at run time: every example becomes code for a GPU, here or where one is, and runs there as it should.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "gpu/jit/jit.hpp"
#include "scheduler/tools/run_session.hpp"
#include "tests/paths.hpp"
#include "tests/support/examples.hpp"
#include "tests/support/no_gpu.hpp"
#include "tests/support/sanitized.hpp"

namespace ccks::test {
namespace {

namespace fs = std::filesystem;

run::Options options_of(const Example& example) {
  run::Options options;
  options.spec = spec_of(example);
  options.dims = example.dims;
  options.verify = true;
  options.iterations = 3;
  return options;
}

run::Failure run_with(const run::Options& options, run::Outcome& outcome) {
  const std::atomic<bool> interrupted{false};
  return run_session(options, interrupted, false, outcome);
}

/// The tests share a cache in the build folder, so that what one has compiled the others find.
class Jit : public testing::Test {
 protected:
  void SetUp() override {
    // Sanitizers take the compiler's inner life for the test's.
    if (sanitized()) GTEST_SKIP() << "not under sanitizers";
    setenv("CCKS_CACHE_DIR", (std::string(CCKS_BINARY_DIR) + "/jit_cache").c_str(), 1);
    const auto compiler = gpu::JitCompiler::open();
    if (!compiler.ok()) GTEST_SKIP() << compiler.status().to_string();
  }
  void TearDown() override {
    unsetenv("CCKS_CACHE_DIR");
    unsetenv("CCKS_NVRTC_DIR");
  }
};

class JitExamples : public Jit, public testing::WithParamInterface<std::size_t> {};

TEST_P(JitExamples, CompileForAGpuThatIsNotHere) {
  run::Options options = options_of(examples()[GetParam()]);
  options.jit_only = "sm_90a";
  run::Outcome outcome;
  const run::Failure failure = run_with(options, outcome);
  ASSERT_EQ(failure.exit_code, run::kDone) << failure.message;
  EXPECT_EQ(outcome.code.kind, "jit");
  EXPECT_EQ(outcome.code.notice, "");
  EXPECT_GT(outcome.code.image_bytes, 10'000u);
  EXPECT_GT(outcome.code.units, 4u);
  run::Outcome again;
  ASSERT_EQ(run_with(options, again).exit_code, run::kDone);
  EXPECT_TRUE(again.code.hit);
  EXPECT_EQ(again.code.image_bytes, outcome.code.image_bytes);
}

TEST_P(JitExamples, MatchTheReferenceOnAGpu) {
  for (const char* code : {"jit", "generic", "jit"}) {
    run::Options options = options_of(examples()[GetParam()]);
    options.device = "cuda";
    options.code = code;
    run::Outcome outcome;
    const run::Failure failure = run_with(options, outcome);
    if (no_gpu(options, failure)) GTEST_SKIP() << failure.message;
    ASSERT_EQ(failure.exit_code, run::kDone) << failure.message;
    EXPECT_EQ(outcome.code.kind, code);
    EXPECT_TRUE(outcome.verified && outcome.verification.passed) << code << ": " << outcome.verification.worst;
  }
}

INSTANTIATE_TEST_SUITE_P(All, JitExamples, testing::Range<std::size_t>(0, 7),
                         [](const auto& p) { return std::string(examples()[p.param].name); });

TEST_F(Jit, AProgramOfFewBodiesIsOneUnit) {
  run::Options options;
  options.spec = std::string(CCKS_SOURCE_DIR) + "/bench/specs/chain200.yaml";
  options.jit_only = "sm_90a";
  run::Outcome outcome;
  const run::Failure failure = run_with(options, outcome);
  ASSERT_EQ(failure.exit_code, run::kDone) << failure.message;
  EXPECT_EQ(outcome.code.units, 1u);
}

TEST_F(Jit, CodeInASpecIsCompiledWhereAllowed) {
  run::Options options;
  options.spec = std::string(CCKS_SOURCE_DIR) + "/tests/golden/specs/inline.yaml";
  options.jit_only = "sm_90a";
  run::Outcome outcome;
  EXPECT_EQ(run_with(options, outcome).exit_code, run::kInputAtFault);
  options.allow_inline = true;
  const run::Failure failure = run_with(options, outcome);
  ASSERT_EQ(failure.exit_code, run::kDone) << failure.message;
  EXPECT_EQ(outcome.code.units, 4u);
  // The generic worker has no body for it, and says so before anything runs.
  options.jit_only.clear();
  options.device = "host";
  const run::Failure generic = run_with(options, outcome);
  EXPECT_EQ(generic.exit_code, run::kInputAtFault);
  EXPECT_NE(generic.message.find("given as code"), std::string::npos) << generic.message;
}

TEST_F(Jit, CodeInASpecThatDoesNotCompileShowsTheLog) {
  std::ifstream file(std::string(CCKS_SOURCE_DIR) + "/tests/golden/specs/inline.yaml");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t at = text.find("out.store(");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 10, "no_such_function(");
  const fs::path path = fs::path(CCKS_BINARY_DIR) / "jit_broken.yaml";
  std::ofstream(path) << text;
  run::Options options;
  options.spec = path.string();
  options.jit_only = "sm_90a";
  options.allow_inline = true;
  run::Outcome outcome;
  const run::Failure failure = run_with(options, outcome);
  fs::remove(path);
  EXPECT_EQ(failure.exit_code, run::kInputAtFault);
  EXPECT_NE(failure.message.find("no_such_function"), std::string::npos) << failure.message;
}

TEST_F(Jit, NoCompilerIsSaidPlainly) {
  const fs::path folder = fs::path(CCKS_BINARY_DIR) / "jit_no_compiler";
  fs::create_directories(folder);
  setenv("CCKS_NVRTC_DIR", folder.c_str(), 1);
  setenv("CCKS_CACHE_DIR", folder.c_str(), 1);
  run::Options options = options_of(examples()[0]);
  options.jit_only = "sm_90a";
  run::Outcome outcome;
  const run::Failure failure = run_with(options, outcome);
  fs::remove_all(folder);
  EXPECT_EQ(failure.exit_code, run::kDeviceError);
  EXPECT_NE(failure.message.find("libnvrtc"), std::string::npos) << failure.message;
}

TEST_F(Jit, MistakesAreToldApart) {
  run::Options options = options_of(examples()[0]);
  run::Outcome outcome;
  options.jit_only = "h200";
  EXPECT_EQ(run_with(options, outcome).exit_code, run::kInputAtFault);
  options.jit_only.clear();
  options.device = "host";
  options.code = "jit";
  const run::Failure failure = run_with(options, outcome);
  EXPECT_EQ(failure.exit_code, run::kInputAtFault);
  EXPECT_NE(failure.message.find("--code jit"), std::string::npos) << failure.message;
  options.code = "auto";
  EXPECT_EQ(run_with(options, outcome).exit_code, run::kDone);
  EXPECT_EQ(outcome.code.kind, "generic");
}

}  // namespace
}  // namespace ccks::test

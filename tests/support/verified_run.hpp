// A run as ccks-run has it, whose outputs must be the reference interpreter's.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>

#include "scheduler/tools/run_session.hpp"
#include "tests/support/no_gpu.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks::test {

/// @DTYPE@ in a spec's text by that type.
inline std::string with_dtype(std::string text, const std::string& dtype) {
  const std::string name = "@DTYPE@";
  return text.replace(text.find(name), name.size(), dtype);
}

/// Of a few runs of a spec that is written to `folder`.
inline run::Options options_of(const TemporaryFolder& folder, const std::string& text, const std::string& device, const std::string& code) {
  run::Options options;
  options.spec = folder / "spec.yaml";
  std::ofstream(options.spec) << text;
  options.device = device;
  options.code = code;
  options.iterations = 3;
  return options;
}

/// Skips the test where it wants a GPU and there is none. `which`: of several, for messages. False: the test has nothing more to do.
inline bool expect_verified(run::Options options, const std::string& which = "") {
  options.verify = true;
  run::Outcome outcome;
  const std::atomic<bool> interrupted{false};
  const run::Failure failure = run_session(options, interrupted, false, outcome);
  const auto look = [&] {
    if (no_gpu(options, failure)) GTEST_SKIP() << failure.message;
    ASSERT_EQ(failure.exit_code, run::kDone) << which << ": " << failure.message;
    ASSERT_TRUE(outcome.verified);
    EXPECT_TRUE(outcome.verification.passed) << which << ": " << outcome.verification.worst;
  };
  look();
  return !testing::Test::IsSkipped() && !testing::Test::HasFatalFailure();
}

}  // namespace ccks::test

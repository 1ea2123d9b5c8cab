// A run as ccks-run has it, whose outputs must be the reference interpreter's.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "scheduler/tools/run_session.hpp"
#include "tests/support/no_gpu.hpp"

namespace ccks::test {

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

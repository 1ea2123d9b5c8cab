// When a run of the tools on a GPU is a skip.
#pragma once

#include "scheduler/tools/run_session.hpp"

namespace ccks::test {

/// Whether a run asked for a GPU and ended because there is none that can be used here. Whatever else ends it is a failure.
inline bool no_gpu(const run::Options& options, const run::Failure& failure) {
  return options.device == "cuda" && failure.exit_code == run::kDeviceError && failure.message.starts_with("unavailable");
}

}  // namespace ccks::test

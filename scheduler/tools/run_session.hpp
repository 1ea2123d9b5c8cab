// One call of ccks-run: from checked options to results.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ccks/engine.hpp"
#include "ccks/generate.hpp"
#include "ccks/serve.hpp"
#include "scheduler/tools/run_code.hpp"
#include "scheduler/tools/run_data.hpp"

namespace ccks::run {

struct Verification {
  double max_rel_err = 0;
  bool passed = true;
  std::string worst;  // output with the largest error against its tolerance
};

/// What a request got; times from its arrival.
struct ServedRequest {
  std::vector<std::int32_t> tokens;
  double first_ms = 0, end_ms = 0;
  Status status;
};
struct Served {
  std::vector<ServedRequest> requests;
  double ms = 0;  // from the first arrival to the last token
  ServeStats stats;
};

struct Outcome {
  std::string program;
  DeviceInfo device;
  CodeReport code;
  std::uint64_t tasks_per_iteration = 0;
  std::vector<double> us;  // latency of each iteration
  // Where iterations are told apart:
  std::vector<double> at_us;      // when each was submitted, from the first on
  std::vector<double> submit_us;  // of its latency, what submit() took, inputs written
  std::map<std::string, std::vector<std::vector<double>>> reports_each;  // empty: not published
  std::vector<std::pair<std::string, std::vector<double>>> reports;
  EngineStats stats;
  bool verified = false;
  Verification verification;
  std::optional<GenerateResult> generated;
  std::optional<Served> served;
  std::vector<std::string> unused_weights;  // tensors of the checkpoint that no weight is
};

/// What went wrong and how the program should end for it.
struct Failure {
  int exit_code = kDone;
  std::string message;
  explicit operator bool() const { return exit_code != kDone; }
};

/// Of what fails once the device is at work. A dim or check that the engine refuses is still the input's fault.
Failure device_failure(const Status& status);

/// Runs everything; `interrupted` is set by a signal handler. Prints nothing but progress (to stderr, if `progress`). `on_token`
/// is told of each token generated.
Failure run_session(const Options& options, const std::atomic<bool>& interrupted, bool progress, Outcome& outcome,
                    const std::function<void(const GeneratedToken&)>& on_token = {});

/// Holds outputs of so many iterations, stacked, against the reference interpreter, which sees the same inputs.
Result<Verification> verify(const RunData& data, const std::map<std::string, std::vector<std::byte>>& outputs, std::uint32_t iterations = 1);

}  // namespace ccks::run

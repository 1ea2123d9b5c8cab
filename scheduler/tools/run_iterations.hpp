// The iterations of a plain call of ccks-run: one at a time or several in flight, of inputs that stay or change.
#pragma once

#include <chrono>

#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

/// What iterations are made of; all of it must outlive them.
struct IterationSetup {
  const Options& options;
  const RunData& data;
  Engine& engine;
  const std::map<std::string, std::vector<std::byte>>& inputs;  // those that stay
  const std::map<std::string, std::vector<std::byte>>& states;
  const std::vector<std::pair<std::string_view, std::int64_t>>& dims;
  const std::atomic<bool>& interrupted;
  bool progress;
};

class Iterations {
 public:
  Iterations(const IterationSetup& setup, Outcome& outcome) : setup_(setup), outcome_(outcome) {}
  /// Runs all of them, and leaves times and reports in the outcome. Ends early, without a failure, if interrupted in between.
  Failure run();
  /// The last one, which keeps its slot until it is dropped.
  Run take_last() { return std::move(last_); }
  /// Where iterations are told apart, and somebody wants them: outputs of all, stacked.
  std::map<std::string, std::vector<std::byte>> take_outputs() { return std::move(outputs_); }

 private:
  struct Flight {
    std::uint32_t iteration;
    Run run;
  };
  bool interrupted() const { return setup_.interrupted.load(std::memory_order_relaxed); }  // relaxed: the flag carries no data
  bool keeps_outputs() const;
  Failure submit(std::uint32_t iteration);
  Status prepare_state();
  void add_inputs(RunRequest& request, std::uint32_t iteration);
  void add_poison(RunRequest& request);
  Failure wait_for_one();
  Failure end(Flight& flight);
  Failure keep(const Flight& flight);
  Failure cancel();
  void show_progress(std::uint32_t done) const;

  const IterationSetup setup_;
  Outcome& outcome_;
  std::vector<Flight> flying_;
  std::chrono::steady_clock::time_point first_;
  std::map<std::string, std::vector<std::byte>> poison_, outputs_;
  Run last_;
};

}  // namespace ccks::run

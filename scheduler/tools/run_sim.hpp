// ccks-run --device sim: what a program would take on a GPU behind a given link. Real co-pilot, policies, rings and worker
// loop; simulated processors, link and time.
#pragma once

#include "gpu/sim/platform.hpp"
#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

/// How long bodies, workers and the scheduler take.
struct SimCosts {
  double bytes_per_ns = 0;       // of one worker: device memory
  double operations_per_ns = 0;  // of one worker: matrix products
  std::uint64_t body_ns = 0;     // every body, on top
  gpu::sim::Costs machine;
};

/// Costs of a GPU of `workers` workers, by its name in codegen/explain_gpu.hpp.
Result<SimCosts> sim_costs(const std::string& gpu, std::uint32_t workers);

/// As run_session, on virtual time.
Failure run_simulated(const Options& options, const spec::Program& program, RunData& data, const std::atomic<bool>& interrupted,
                      Outcome& outcome);

}  // namespace ccks::run

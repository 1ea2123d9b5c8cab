// What bench/bench_dispatch_device.cpp measures on a GPU, predicted: the same plans, on the simulated device.
#pragma once

#include <string>

#include "gpu/sim/link_model.hpp"
#include "gpu/sim/platform.hpp"
#include "scheduler/policy.hpp"

namespace ccks::test::sim {

struct DispatchCase {
  scheduler::PolicyKind policy = scheduler::PolicyKind::lookahead;
  scheduler::Spine spine = scheduler::Spine::fitting;
  std::uint32_t workers = 132;
  std::uint32_t ops = 200;
  std::uint32_t tiles = 132;  // of each op
  bool chain = true;          // each op waits for all of the one before
  std::uint32_t runs = 1;     // in flight
};

/// Nanoseconds of virtual time from the first submission to the end of the last run, with warm frames; 0: it failed.
double predict_dispatch(const DispatchCase& dispatch, const gpu::sim::LinkModel& link, const gpu::sim::StageCosts& costs);

}  // namespace ccks::test::sim

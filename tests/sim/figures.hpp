// What the benches measure on a GPU (bench/bench_dispatch_device.cpp, bench/bench_reaction.cpp), predicted: the same plans, on the
// simulated device. figures() lists the arms by the names that results have.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/sim/costs.hpp"
#include "gpu/sim/link_model.hpp"
#include "scheduler/policy.hpp"

namespace ccks::test::sim {

/// What is simulated: link and costs.
struct Simulated {
  gpu::sim::LinkModel link;
  gpu::sim::Costs costs = gpu::sim::h200_costs();
  std::uint32_t workers = 132;
};

struct DispatchCase {
  scheduler::PolicyKind policy = scheduler::PolicyKind::lookahead;
  scheduler::Spine spine = scheduler::Spine::fitting;
  std::uint32_t ops = 200;
  std::uint32_t tiles = 132;  // of each op
  bool chain = true;          // each op waits for all of the one before
  bool bare = true;           // ops have no operands
  std::uint32_t runs = 1;     // in flight
};

/// Nanoseconds of virtual time from the first submission to the end of the last run, with warm frames; 0: it failed.
double predict_dispatch(const DispatchCase& dispatch, const Simulated& simulated);

/// Median time from the end of a body that wrote a report to the start of the bodies that it called for; 0: it failed.
struct Reaction {
  double same_ns = 0, another_ns = 0;  // on the worker that reported, on another one
};
Reaction predict_reaction(scheduler::PolicyKind policy, const Simulated& simulated);

/// Median round trip of a pair of rings, by the device's clock.
double predict_ping_pong(const Simulated& simulated);

/// One arm of a results file.
struct Figure {
  const char* bench;
  const char* arm;
  const char* field;
  bool held;  // the prediction has to hold; others are shown
  std::function<double(const Simulated&)> predict;
};
const std::vector<Figure>& figures();

/// What the results file of that name in bench/results, or at that path, says of an arm; 0: nothing.
double recorded(const std::string& file, const Figure& figure);

}  // namespace ccks::test::sim

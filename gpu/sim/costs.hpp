// Costs: what the parts of a simulated machine take, in nanoseconds. h200_costs() is the one table that predictions come from; what the
// link takes is in link_model.hpp. gpu/README.md says how to renew both from a new run on a GPU.
#pragma once

#include <cstdint>

namespace ccks::gpu::sim {

/// A worker that is a thread block, its stages side by side (hands.hpp, MachineOptions::side_by_side). All 0: it takes no time.
struct StageCosts {
  std::uint64_t stage_ns = 0;    // its slowest stage, tile after tile
  std::uint64_t contact_ns = 0;  // a task that finds the pipeline empty: its run's frame, op and events, one behind the other
  std::uint64_t begin_ns = 0;    // the last event seen, until the body begins, if no other runs
  std::uint64_t turn_ns = 0;     // a body's end, until the next begins that had been let through before
  std::uint64_t join_ns = 0;     // the same, between two tiles of a strand
  std::uint64_t end_ns = 0;      // the body's end, until its signals are sent
  std::uint64_t report_ns = 0;   // what copying a report takes the warp that posts, beside its stores
  std::uint64_t poll_ns = 100;   // between two looks at an empty inbox
  std::uint64_t spin_ns = 50;    // between two looks at an event
  std::uint64_t longest_ns = 0;  // waits look again only when something changes, or after so long; 0: always look again
};

/// The scheduler's thread, beside its accesses to link memory.
struct SchedulerCosts {
  std::uint64_t step_ns = 10;     // a step that finds nothing
  std::uint64_t decision_ns = 0;  // a run of tasks for one worker; of `reactive`, a task: chosen
  std::uint64_t op_ns = 0;        // another op than the task before: opened, closed
  std::uint64_t message_ns = 0;   // a task sent, and its answer taken in
  std::uint64_t ready_ns = 0;     // of `reactive`, a task besides: found ready, from a mirror of the events
  std::uint64_t run_ns = 0;       // a run begun: what stands between its client and the first decision

  bool decides() const { return decision_ns + op_ns + message_ns + ready_ns + run_ns > 0; }
};

struct Costs {
  StageCosts stages;
  SchedulerCosts scheduler;
};

/// An H200 behind PCIe Gen5 with 132 workers, and the host it was in.
Costs h200_costs();

}  // namespace ccks::gpu::sim

// SimCase: all that one simulated history depends on. Made of a seed; parts of it can be given instead, which is how a failing
// one is made short.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ccks/result.hpp"
#include "gpu/sim/machine.hpp"
#include "scheduler/plan_tables.hpp"
#include "scheduler/policy.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::test::sim {

/// What goes wrong on purpose. What a run may suffer from each stands in README.md's table.
enum class Fault : std::uint8_t {
  worker_hang,      // a body never ends
  op_fault,         // a body reports a fault
  scheduler_stall,  // the scheduler stands still for up to 100 ms, again and again
  scheduler_crash,  // the scheduler is gone at some access, and another one begins
  inbox_full,       // rings of a few slots
  wrap,             // ring positions and epochs cross 2^32
  park,             // workers are told to leave at any point, and brought back
  hand_off,         // the same with new code
  wrong_guesses,    // guards fail in 0 to 100 % of all runs
  retry,            // stores are lost on the link, which sends them again later
  clock_jump,       // the clock of one side jumps ahead by up to 100 s
  flood,            // clients submit and cancel as fast as they can
  stuck_trace,      // nobody takes the traces
  count,
};
inline constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::count);
const char* fault_name(Fault fault);

struct SimCase {
  std::uint64_t seed = 0;
  std::uint64_t schedule = 0;  // seed of the explorer
  std::uint32_t workers = 2, slots = 2, runs = 8;
  std::uint32_t workers_per_run = 0;  // 0: all
  std::uint64_t min_steps = 5000;  // runs go on until so many
  std::vector<GraphOp> ops;
  scheduler::PolicyKind policy = scheduler::PolicyKind::lookahead;
  scheduler::Spine spine = scheduler::Spine::tiles;
  std::uint32_t inbox_slots = 16, outbox_slots = 16, trace_slots = 0;
  std::uint32_t states = 0;          // instances of the program's state; 0: it has none
  bool chain = false;                // runs of one state follow each other on the device
  std::uint32_t cancel_percent = 0, deadline_percent = 0, wrong_percent = 25;
  std::uint32_t condition_percent = 0;  // of runs that hang on what the run before them reports
  std::uint32_t alone_percent = 0;      // of runs that are submitted once all before them have ended, of one size: runs that may be primed
  std::uint64_t body_ns = 2000;
  gpu::sim::LinkModel link;
  gpu::sim::Noise noise;
  std::array<bool, kFaults> faults{};
  std::uint64_t fault_ns = 50'000;  // about when they come

  std::vector<std::uint32_t> kept;   // numbers of the seed's ops that are left

  bool has(Fault fault) const { return faults[static_cast<std::size_t>(fault)]; }
};

/// The case of a seed. Every third seed has no faults at all, the others one to three.
SimCase make_case(std::uint64_t seed);
/// Changes parts as "workers=1;runs=2;ops=0,3,4;faults=park,retry;noise=10-50" say.
Status change_case(SimCase& sim_case, std::string_view text);
/// Drops ops that are not kept, and what refers to them.
std::vector<GraphOp> keep_ops(const std::vector<GraphOp>& ops, const std::vector<bool>& keep);
std::string describe(const SimCase& sim_case);

}  // namespace ccks::test::sim

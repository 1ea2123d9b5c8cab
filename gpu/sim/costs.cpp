#include "gpu/sim/costs.hpp"

namespace ccks::gpu::sim {
namespace {

// Cycles of an SM's clock, as its stages stamp them.
constexpr std::uint64_t cycles(std::uint64_t count) { return count * 1000 / 1980; }

}  // namespace

// F: bench/results/2026-11-21.6eaa020ca1.intel-r-xeon-r-processor-16c.jsonl, arms by name.
// C: stamps of one worker in a chain, R: stages of a reaction (bench/README.md, gpu/README.md).
Costs h200_costs() {
  Costs out;
  out.stages.stage_ns = 132 * 1000 / 322;         // F: "independent, static, ops of four tasks a worker"; which stage that is no stamp says
  out.stages.contact_ns = 5000;                   // R: 6 us from a decision to the gate, less the task's way there
  out.stages.turn_ns = 288;                       // F: "static, same worker", whose body is let through while the one before it runs
  out.stages.join_ns = 20;                        // a barrier of the body warps, some 40 cycles
  out.stages.begin_ns = cycles(140);              // C
  out.stages.end_ns = cycles(36) + cycles(250);   // C: an empty body, and from its end to the add
  out.stages.report_ns = 700;                     // fitted to F: "lookahead, another worker"; a word in its record (1850 when it was copied)
  out.stages.spin_ns = 0;                         // C: a look takes 480 cycles in all, as the link model's read of an event
  // F: the arms of tiles, 56 to 75 ns a task where each decision is one task, 21 where it is four; less what steps take.
  out.scheduler.decision_ns = 57;
  out.scheduler.message_ns = 3;
  out.scheduler.op_ns = 9;  // F: "independent, copilot, tiles, ops of one task", 24.8 ns a task
  return out;
}

}  // namespace ccks::gpu::sim

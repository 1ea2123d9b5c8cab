#include "gpu/sim/costs.hpp"

namespace ccks::gpu::sim {
namespace {

// Cycles of an SM's clock, as its stages stamp them.
constexpr std::uint64_t cycles(std::uint64_t count) { return count * 1000 / 1980; }

}  // namespace

// F: bench/results/2026-11-24.7c25631597.intel-r-xeon-r-processor-16c.jsonl, arms by name.
// C: stamps of one worker in a chain, R: stages of a reaction (bench/README.md, gpu/README.md, include/ccks/worker/README.md).
Costs h200_costs() {
  Costs out;
  out.stages.stage_ns = 75;               // C: a group of eight records is opened in 1,400 to 1,700 cycles; F: "independent, static, ops of four tasks a worker"
  out.stages.join_ns = 20;                // a barrier of the body warps, some 40 cycles
  out.stages.contact_ns = 5600;           // R: 6 us from a decision to the gate, less the task's way there; F: "reactive, ... worker"
  out.stages.turn_ns = 320;               // F: "static, same worker" and "another", whose body is let through while the one before it runs
  out.stages.begin_ns = 20;               // fitted to F: "chain, ..."; C says 140 cycles of workers that also looked for the host's verdict
  out.stages.end_ns = 30;                 // fitted to F: "chain, ..."; C says 36 cycles of an empty body, and 250 to the add in the workers of 6eaa020
  out.stages.report_ns = 850;             // fitted to F: "lookahead, another worker"; a word in its record (1850 when it was copied)
  out.stages.spin_ns = 0;                 // C: a look takes 480 cycles in all, as the link model's read of an event
  // Of the host of the day: F's arms of tiles; less what steps take.
  out.scheduler.decision_ns = 52;
  out.scheduler.message_ns = 4;
  out.scheduler.op_ns = 17;     // F: "independent, copilot, tiles, ops of one task", 29 ns a task
  out.scheduler.ready_ns = 12;  // F: "independent, reactive, ..."
  out.scheduler.run_ns = 300;   // F: "independent, copilot, ops of one task"; 4,000 while every run began anew
  return out;
}

}  // namespace ccks::gpu::sim

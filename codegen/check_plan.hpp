// The plan checker: says whether a plan may run. Independent of the planner: it shares no code with plan_*.cpp, works
// out itself which elements each tile reads and writes, and believes a dependency only where waits and signals, taken
// exactly as wire/frame.hpp defines them, enforce it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "spec/program.hpp"

namespace ccks::codegen {

struct CheckLimits {
  std::uint64_t tile_edges =
      400'000;                  // steps of the tile-level search for one set of dims; beyond it tiles are sampled
  std::size_t max_faults = 20;  // complaints kept
  std::size_t max_points = 6;   // sets of dims tried by check_plan without `dims`
};

/// One reason why the plan may not run.
struct PlanFault {
  std::string code;  // stable: "order.raw", "event.total", ...; the table is in codegen/README.md
  std::string message;
  std::vector<std::int64_t> dims;  // symbol values at which it shows; empty: at all
};

struct CheckReport {
  std::vector<PlanFault> faults;
  std::vector<std::vector<std::int64_t>> points;  // the sets of dims that were checked
  std::uint64_t op_pairs = 0;                     // pairs of ops that had to be ordered
  std::uint64_t whole_pairs = 0;                  // of them, proved for all tiles at once
  std::uint64_t tiles = 0;                        // tiles looked at one by one
  std::uint64_t tile_edges = 0;                   // steps spent on them
  bool sampled = false;                           // some tiles were sampled, not all looked at

  bool ok() const { return faults.empty(); }
  /// ok, or internal with the first faults in the message: a refused plan is a bug of whoever made it.
  Status status() const;
};

/// check_plan checks `plan` against `program` with `dims[id]` for each symbol.
CheckReport check_plan(const spec::Program& program, const plan::PlanView& plan, std::span<const std::int64_t> dims,
                       const CheckLimits& limits = {});
/// The same at every point of check_points().
CheckReport check_plan(const spec::Program& program, const plan::PlanView& plan, const CheckLimits& limits = {});
/// Sets of dims worth checking: least, presets, greatest and values between, where the program's run-time checks hold.
std::vector<std::vector<std::int64_t>> check_points(const spec::Program& program, const CheckLimits& limits = {});

}  // namespace ccks::codegen

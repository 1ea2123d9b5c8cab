// What the scheduler derives from a plan once, when it is loaded: the op graph and the layout of frames.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "ccks/wire/frame.hpp"
#include "ccks/wire/task.hpp"

namespace ccks::scheduler {

/// Byte offsets of a frame's tables: the same for all dims, since only values change.
struct FrameLayout {
  std::uint32_t ops, operands, waits, signals, guards, code, bases, blocks, lists, list_tasks;
  std::uint32_t max_bytes;
};

/// PlanTables is immutable after make_plan_tables and shared by all threads.
struct PlanTables {
  plan::PlanView plan;
  std::uint32_t workers = 0;
  bool with_lists = false;
  FrameLayout layout{};
  // Direct successors and number of direct predecessors of each op, from the waits.
  std::vector<std::uint32_t> successor_first;  // ops + 1
  std::vector<std::uint32_t> successors;
  std::vector<std::uint32_t> predecessors;
  // Ops held back until report r has arrived.
  std::vector<std::uint32_t> held_first;  // reports + 1
  std::vector<std::uint32_t> held;
  std::vector<std::uint32_t> op_report;  // per op: report it publishes, or kNone. Here because OpDesc is many lines
  std::vector<std::uint8_t> op_held;     // per op: waits for a report before it may be sent
  std::vector<std::uint8_t> op_silent;   // per op: neither it nor any op it waits for touches memory (wire::kOpSilent)
  std::vector<wire::BlockRef> blocks;    // per op: its block in a frame

  std::uint32_t op_count() const { return static_cast<std::uint32_t>(plan.ops.size()); }
  std::uint32_t report_count() const { return static_cast<std::uint32_t>(plan.reports.size()); }
  std::span<const std::uint32_t> successors_of(std::uint32_t op) const {
    return std::span(successors).subspan(successor_first[op], successor_first[op + 1] - successor_first[op]);
  }
  std::span<const std::uint32_t> held_by(std::uint32_t report) const {
    return std::span(held).subspan(held_first[report], held_first[report + 1] - held_first[report]);
  }
};

/// make_plan_tables refuses a plan whose indices point outside its tables or whose waits do not follow the op order:
/// plans may come from a file that somebody made.
Result<PlanTables> make_plan_tables(const plan::PlanView& plan, std::uint32_t workers, bool with_lists);

}  // namespace ccks::scheduler

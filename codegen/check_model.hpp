// Model: a plan at one set of dims, every symbolic number evaluated, every index of the tables proved in range.
// What follows may index without asking.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ccks/wire/task.hpp"
#include "codegen/check_box.hpp"
#include "codegen/check_plan.hpp"

namespace ccks::codegen::check {

/// Collects complaints of one set of dims, up to a limit; one op repeats no code.
class Faults {
 public:
  Faults(CheckReport& report, std::span<const std::int64_t> dims, std::size_t limit);
  void add(const std::string& code, std::string message);
  bool full() const { return report_.faults.size() >= limit_; }
  std::size_t count() const { return report_.faults.size() - at_start_; }

 private:
  CheckReport& report_;
  std::vector<std::int64_t> dims_;
  std::size_t limit_, at_start_;
};

struct WaitAxisNow {
  int grid_axis = -1;
  std::int64_t step = 0, offset = 0, length = 0, extent = 0, block = 1, stride = 0;
};

struct WaitNow {
  std::uint32_t signal = 0, producer = 0;
  std::array<WaitAxisNow, 2> axis;
};

/// A group of events: one per pair of values of two tile coordinates. `axis[i]` is -1 where the coordinate does not
/// count.
struct SignalNow {
  std::uint32_t op = 0, event_first = 0, event_max = 0;
  std::int64_t count = 0, total = 0;
  std::array<int, 2> axis{-1, -1};
  std::array<std::int64_t, 2> stride{};
  std::array<std::int64_t, 2> values{1, 1};  // of each coordinate
  std::uint32_t first_id = 0;                // this checker's own number of its first event
};

struct OpNow {
  const plan::OpDesc* desc = nullptr;
  std::uint32_t spec_op = 0;
  std::array<std::int64_t, 4> grid{}, tile{};
  std::array<std::int64_t, 8> dims{};
  std::array<std::int64_t, 4> space{};  // tile space, from the program
  std::int64_t tiles = 0;
  bool exists() const { return tiles > 0; }
};

struct Model {
  const spec::Program* program = nullptr;
  const plan::PlanView* plan = nullptr;
  std::vector<std::int64_t> symbols;
  std::vector<std::int64_t> values;  // of plan->dims
  std::vector<OpNow> ops;
  std::vector<Operand> operands;  // as the plan says
  std::vector<WaitNow> waits;
  std::vector<SignalNow> signals;
  std::uint32_t event_ids = 0;  // events of all groups

  const spec::Op& spec_op(std::size_t op) const { return program->ops[ops[op].spec_op]; }
  std::span<const Operand> operands_of(std::size_t op) const {
    const plan::OpDesc& d = *ops[op].desc;
    return {operands.data() + d.operand_first, static_cast<std::size_t>(d.input_count) + d.output_count};
  }
  std::span<const WaitNow> waits_of(std::size_t op) const {
    return {waits.data() + ops[op].desc->wait_first, ops[op].desc->wait_count};
  }
  std::string name(std::size_t op) const;
};

/// check_tables proves the indices of all tables and the match of plan and program by name. Needs no dims.
bool check_tables(const spec::Program& program, const plan::PlanView& plan, Faults& faults);
/// build_model evaluates the plan; false where some number has no value. Only after check_tables.
bool build_model(const spec::Program& program, const plan::PlanView& plan, std::span<const std::int64_t> dims,
                 Faults& faults, Model& model);

// ---- check_operands.cpp: do operands, shapes and attributes say what the program says -------------------------------
/// Also fills OpNow::space.
void check_operands(Model& model, Faults& faults);
void check_attributes(const Model& model, Faults& faults);
void check_tensors(const Model& model, Faults& faults);
void check_reports(const Model& model, Faults& faults);
void check_guards(const Model& model, Faults& faults);

// ---- check_access.cpp: which elements a tile touches
// -----------------------------------------------------------------
/// A block of tiles: half-open ranges of tile coordinates.
struct TileRange {
  std::array<std::int64_t, 4> lo{}, hi{};
};

/// One way in which the tiles of an op touch memory.
struct Access {
  static constexpr std::uint32_t kGuard = 0xffffffffu;
  std::uint32_t operand = 0;  // within the op; kGuard: the word of a report that the op's tiles compare
  bool write = false;
  std::int64_t guard_offset = 0;
  std::uint32_t condition = spec::kNone;  // touched only where this holds, besides what the op runs under
};

std::vector<Access> accesses_of(const Model& model, std::size_t op);
/// The window of operand `operand` that tiles in `range` touch between them.
Window window_of(const Model& model, std::size_t op, std::size_t operand, const TileRange& range);
/// The bytes of it; nothing there if `empty` is set.
Box box_of(const Model& model, std::size_t op, const Access& access, const TileRange& range, bool& empty);
TileRange all_tiles(const OpNow& op);
/// Products of experts on one route: row tile c of both has the same rows, and no two have one in common. Which ones follows from the counts, from how
/// many experts there are and from how many rows a tile takes; `earlier` <= `later`, and nobody writes the counts in between.
bool same_row_tiles(const Model& model, std::size_t earlier, std::size_t later);
/// Whether operand `mine` of `later` and operand `theirs` of `earlier` are those rows, at the same bytes, so that row tiles meet only themselves.
bool routed_alike(const Model& model, std::size_t later, std::uint32_t mine, std::size_t earlier, std::uint32_t theirs);
/// Bit a: the window moves with tile coordinate a.
unsigned moving_axes(const Model& model, std::size_t op, const Access& access);
void check_coverage(const Model& model, Faults& faults);

// ---- check_order.cpp: what waits and signals enforce
// -----------------------------------------------------------------
void check_events(const Model& model, Faults& faults);
void check_order(const Model& model, const CheckLimits& limits, Faults& faults, CheckReport& report);

}  // namespace ccks::codegen::check

#include "scheduler/plan_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ccks/plan_eval.hpp"
#include "scheduler/early_ops.hpp"
#include "scheduler/stretches.hpp"
#include "scheduler/tagged_edges.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

Status bad_plan(const plan::PlanView& plan, std::string_view what) {
  return {ErrorCode::invalid_data, fmt::format("plan '{}': {}", plan.name, what)};
}

bool inside(std::uint64_t first, std::uint64_t count, std::size_t size) { return first + count <= size; }

Status check_op(const plan::PlanView& plan, const plan::OpDesc& op, std::uint32_t index) {
  const bool ranges = inside(op.operand_first, std::uint64_t{op.input_count} + op.output_count, plan.operands.size()) &&
                      inside(op.wait_first, op.wait_count, plan.waits.size()) &&
                      inside(op.signal_first, op.signal_count, plan.signals.size()) &&
                      inside(op.guard_first, op.guard_count, plan.guards.size()) &&
                      inside(op.code_first, op.code_count, plan.code.size());
  if (!ranges) return bad_plan(plan, fmt::format("op '{}' refers outside the tables", op.name));
  const bool counts =
      op.wait_count <= 0xffff && op.signal_count <= 0xffff && op.guard_count <= 0xffff && op.code_count <= 0xffff;
  if (!counts)
    return bad_plan(plan, fmt::format("op '{}' has too many waits, signals, guards or instructions", op.name));
  for (const plan::DimId dim : op.grid) {
    if (dim >= plan.dims.size()) return bad_plan(plan, fmt::format("op '{}' has no tile grid", op.name));
  }
  const std::size_t reports = plan.reports.size();
  if ((op.report != plan::kNone && op.report >= reports) ||
      (op.dynamic_report != plan::kNone && op.dynamic_report >= reports)) {
    return bad_plan(plan, fmt::format("op '{}' names an unknown report", op.name));
  }
  if (op.counted_rank > 4) return bad_plan(plan, fmt::format("op '{}' counts its tiles along no axis", op.name));
  for (std::uint32_t w = 0; w < op.wait_count; ++w) {
    const plan::WaitDesc& wait = plan.waits[op.wait_first + w];
    if (wait.signal >= plan.signals.size())
      return bad_plan(plan, fmt::format("op '{}' waits for an unknown signal", op.name));
    if (wait.producer >= index) return bad_plan(plan, fmt::format("op '{}' waits for an op that comes later", op.name));
  }
  return {};
}

Status check_plan(const plan::PlanView& plan) {
  if (plan.ops.size() >= wire::kMaxOps) return bad_plan(plan, "too many ops");
  for (std::size_t i = 0; i < plan.dims.size(); ++i) {
    const plan::DimNode& node = plan.dims[i];
    const bool leaf = node.op == plan::DimOp::constant || node.op == plan::DimOp::symbol;
    if (!leaf && (node.a >= i || node.b >= i)) return bad_plan(plan, "a dim refers to a later one");
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    CCKS_RETURN_IF_ERROR(check_op(plan, plan.ops[i], static_cast<std::uint32_t>(i)));
  }
  for (const plan::SignalDesc& signal : plan.signals) {
    if (!inside(signal.event_first, signal.event_max, plan.event_count)) return bad_plan(plan, "a signal has no event");
  }
  for (const plan::ReportDesc& report : plan.reports) {
    if (!inside(report.offset, report.max_bytes, plan.report_bytes))
      return bad_plan(plan, "a report lies outside its area");
  }
  for (const plan::GuardDesc& guard : plan.guards) {
    if (guard.report >= plan.reports.size()) return bad_plan(plan, "a guard names an unknown report");
  }
  return {};
}

std::vector<std::uint32_t> producers_of(const plan::PlanView& plan, const plan::OpDesc& op) {
  std::vector<std::uint32_t> producers;
  for (std::uint32_t w = 0; w < op.wait_count; ++w) producers.push_back(plan.waits[op.wait_first + w].producer);
  std::sort(producers.begin(), producers.end());
  producers.erase(std::unique(producers.begin(), producers.end()), producers.end());
  return producers;
}

void build_graph(PlanTables& tables) {
  const plan::PlanView& plan = tables.plan;
  std::vector<std::vector<std::uint32_t>> successors(plan.ops.size());
  tables.predecessors.assign(plan.ops.size(), 0);
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    for (const std::uint32_t producer : producers_of(plan, plan.ops[i])) {
      successors[producer].push_back(static_cast<std::uint32_t>(i));
      ++tables.predecessors[i];
    }
  }
  tables.successor_first.assign(1, 0);
  for (const auto& list : successors) {
    tables.successors.insert(tables.successors.end(), list.begin(), list.end());
    tables.successor_first.push_back(static_cast<std::uint32_t>(tables.successors.size()));
  }
}

// Whether all tiles that an op whose number only a report says may have are so few for each worker that lists of all of them are as good: which ones there are
// a worker finds out sooner than the report crosses the link and tasks come back. Of counted rows it does not find out: they run, which takes no longer where
// each worker has one.
bool has_few_tiles(const PlanTables& tables, std::span<const std::int64_t> dims, const plan::OpDesc& op) {
  std::int64_t tiles = 1;
  const std::int64_t most = std::int64_t{op.counted_rank == 0 ? kFoundTiles : 1} * tables.workers;
  for (const plan::DimId dim : op.grid) {
    if (dims[dim] <= 0 || dims[dim] > most) return dims[dim] <= 0;
    tiles *= dims[dim];
  }
  return tiles <= most;
}

// Reports whose ops need not wait for them: of none, where some have many tiles at the program's typical sizes.
std::vector<std::uint8_t> find_needless(const PlanTables& tables, bool records) {
  const plan::PlanView& plan = tables.plan;
  std::vector<std::uint8_t> needless(plan.reports.size(), tables.spine == Spine::whole ? 1 : 0);
  if (!records || tables.spine != Spine::fitting) return needless;
  std::vector<std::int64_t> dims(plan.dims.size());
  if (!plan::evaluate_dims(plan.dims, plan::typical_symbols(plan.symbols), dims)) return needless;
  const bool few = std::all_of(plan.ops.begin(), plan.ops.end(), [&](const plan::OpDesc& op) { return (op.flags & wire::kOpDynamic) == 0 || has_few_tiles(tables, dims, op); });
  needless.assign(needless.size(), few ? 1 : 0);
  return needless;
}

void build_held(PlanTables& tables, bool records) {
  const std::vector<std::uint8_t> needless = find_needless(tables, records);
  const plan::PlanView& plan = tables.plan;
  tables.op_held.assign(plan.ops.size(), 0);
  tables.op_holder.assign(plan.ops.size(), plan::kNone);
  for (const plan::OpDesc& op : plan.ops) tables.op_report.push_back(op.report);
  tables.held_first.assign(1, 0);
  for (std::uint32_t report = 0; report < plan.reports.size(); ++report) {
    for (std::uint32_t i = 0; i < plan.ops.size(); ++i) {
      const plan::OpDesc& op = plan.ops[i];
      const bool held = needless[report] == 0 && (op.flags & wire::kOpDynamic) != 0;
      if (!held || op.dynamic_report != report) continue;
      tables.held.push_back(i);
      tables.op_held[i] = 1;
      tables.op_holder[i] = report;
    }
    tables.held_first.push_back(static_cast<std::uint32_t>(tables.held.size()));
  }
}

// Ops come after their producers, so one pass does. An op that takes a run's turn hands on what the run in front has stored.
void build_silent(PlanTables& tables) {
  const plan::PlanView& plan = tables.plan;
  for (const plan::OpDesc& op : plan.ops) {
    bool silent = op.input_count == 0 && op.output_count == 0 && op.report == plan::kNone && op.guard_count == 0;
    silent = silent && !tables.takes_turn(static_cast<std::uint32_t>(tables.op_silent.size()));
    for (std::uint32_t w = 0; w < op.wait_count; ++w) {
      silent = silent && tables.op_silent[plan.waits[op.wait_first + w].producer] != 0;
    }
    tables.op_silent.push_back(silent ? 1 : 0);
  }
}

bool same_test(const plan::GuardDesc& a, const plan::GuardDesc& b) {
  return a.report == b.report && a.compare == b.compare && a.is_float == b.is_float && a.value == b.value;
}
// Whether each report that the op's guards look at is made by an op that has the guards in front.
bool has_nested_guards(const plan::PlanView& plan, const plan::OpDesc& op) {
  const auto guards = plan.guards.subspan(op.guard_first, op.guard_count);
  for (std::size_t i = 0; i < guards.size(); ++i) {
    const std::uint32_t maker = plan.reports[guards[i].report].op;
    if (maker >= plan.ops.size()) return false;
    const auto before = plan.guards.subspan(plan.ops[maker].guard_first, plan.ops[maker].guard_count);
    if (!std::equal(before.begin(), before.end(), guards.begin(), guards.begin() + static_cast<std::ptrdiff_t>(i), same_test)) return false;
  }
  return true;
}
void build_deciders(PlanTables& tables) {
  const plan::PlanView& plan = tables.plan;
  for (const plan::OpDesc& op : plan.ops) {
    std::uint32_t decider = plan::kNone;
    if (op.guard_count > 0 && has_nested_guards(plan, op)) decider = plan.reports[plan.guards[op.guard_first + op.guard_count - 1].report].op;
    const auto waits = plan.waits.subspan(op.wait_first, op.wait_count);
    const bool waited = std::any_of(waits.begin(), waits.end(), [&](const plan::WaitDesc& wait) { return wait.producer == decider; });
    tables.op_decider.push_back(waited ? decider : plan::kNone);
  }
}

// A tile that reads state must have waited for something that follows the run's turn. Windows of convolutions may be clipped to
// nothing, and then wait for nothing.
bool can_chain(const plan::PlanView& plan) {
  if (plan.state_bytes == 0) return false;
  for (const plan::OpDesc& op : plan.ops) {
    if (op.kind == wire::OpCode::conv2d || (op.flags & wire::kOpDynamic) != 0) return false;
  }
  return true;
}

// Finds the dims that follow from a symbol, and among them those that lists, events and reports are built on.
class Varying {
 public:
  explicit Varying(PlanTables& tables) : tables_(tables), plan_(tables.plan), varies_(plan_.dims.size(), 0), fixed_(plan_.dims.size(), 0) {
    for (std::size_t i = 0; i < plan_.dims.size(); ++i) {
      const plan::DimNode& node = plan_.dims[i];
      const bool leaf = node.op == plan::DimOp::constant || node.op == plan::DimOp::symbol;
      varies_[i] = leaf ? node.op == plan::DimOp::symbol : varies_[node.a] | varies_[node.b];
    }
  }

  void find() {
    fix_events();
    tables_.operand_op.assign(plan_.operands.size(), plan::kNone);
    for (std::uint32_t i = 0; i < tables_.op_count(); ++i) {
      add_op(i);
      add_waits(i);
    }
    for (plan::DimId id = 0; id < fixed_.size(); ++id) {
      if (fixed_[id] != 0) tables_.fixed_dims.push_back(id);
    }
  }

 private:
  bool varies(plan::DimId id) const { return id != plan::kNone && varies_[id] != 0; }
  void fix(plan::DimId id) {
    if (varies(id)) fixed_[id] = 1;
  }
  void fix_events() {
    for (const plan::WaitDesc& wait : plan_.waits) fix(wait.axis[0].stride), fix(wait.axis[1].stride);
    for (const plan::SignalDesc& signal : plan_.signals)
      for (const plan::DimId id : {signal.event_count, signal.total, signal.stride[0], signal.stride[1]}) fix(id);
    for (const plan::ReportDesc& report : plan_.reports) fix(report.elements);
  }
  void add_op(std::uint32_t index) {
    const plan::OpDesc& op = plan_.ops[index];
    for (const plan::DimId id : op.grid) fix(id);
    for (const plan::DimId id : op.tile) fix(id);
    begin();
    take(op.dims);
    for (std::uint32_t o = op.operand_first; o < op.operand_first + op.input_count + op.output_count; ++o) {
      const plan::OperandDesc& operand = plan_.operands[o];
      tables_.operand_op[o] = index;
      take({&operand.offset, 1}), take(operand.dim), take(operand.stride);
    }
    end(index, tables_.varying_ops);
  }
  void add_waits(std::uint32_t index) {
    const plan::OpDesc& op = plan_.ops[index];
    begin();
    for (const plan::WaitDesc& wait : plan_.waits.subspan(op.wait_first, op.wait_count)) {
      for (const plan::WaitAxisDesc& axis : wait.axis) take(std::array{axis.step, axis.offset, axis.length, axis.extent, axis.block});
    }
    end(index, tables_.varying_waits);
  }

  void begin() { first_ = tables_.varying_dims.size(); }
  void take(std::span<const plan::DimId> ids) {
    for (const plan::DimId id : ids) {
      if (varies(id)) tables_.varying_dims.push_back(id);
    }
  }
  void end(std::uint32_t op, std::vector<VaryingOp>& to) {
    std::vector<plan::DimId>& all = tables_.varying_dims;
    std::sort(all.begin() + static_cast<std::ptrdiff_t>(first_), all.end());
    all.erase(std::unique(all.begin() + static_cast<std::ptrdiff_t>(first_), all.end()), all.end());
    const std::size_t count = all.size() - first_;
    if (count > 0) to.push_back({op, static_cast<std::uint32_t>(first_), static_cast<std::uint32_t>(count)});
  }

  PlanTables& tables_;
  const plan::PlanView& plan_;
  std::vector<std::uint8_t> varies_, fixed_;
  std::size_t first_ = 0;
};

// What wire::BlockRef says lies in a block; all parts are multiples of 16 bytes.
std::uint32_t block_bytes(const plan::OpDesc& op, bool takes_turn) {
  const std::size_t bytes = sizeof(wire::OpParams) + (op.input_count + op.output_count) * sizeof(wire::OperandParams) +
                            (op.wait_count + (takes_turn ? 1 : 0)) * sizeof(wire::WaitParams) + op.signal_count * sizeof(wire::SignalParams) +
                            op.guard_count * sizeof(wire::GuardParams);
  return static_cast<std::uint32_t>(bytes);
}

// A record a tile, and some for tiles with many events. Lists that need more are made of tasks.
std::uint32_t record_capacity(const plan::PlanView& plan) {
  const std::uint64_t wanted = std::uint64_t{plan.max_tasks} + plan.max_tasks / 2 + plan.event_count;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(wanted, kMostRecords));
}

Result<FrameLayout> build_layout(PlanTables& tables) {
  const plan::PlanView& plan = tables.plan;
  std::uint64_t at = sizeof(wire::RunFrame);
  const auto place = [&at](std::uint64_t count, std::uint64_t bytes) {
    const std::uint64_t offset = (at + 15) / 16 * 16;
    at = offset + count * bytes;
    return static_cast<std::uint32_t>(offset);
  };
  FrameLayout layout{};
  layout.ops = place(plan.ops.size(), sizeof(wire::OpParams));
  layout.operands = place(plan.operands.size(), sizeof(wire::OperandParams));
  layout.waits = place(plan.waits.size() + (tables.chained() ? 1 : 0), sizeof(wire::WaitParams));  // the last one: the turn
  layout.signals = place(plan.signals.size(), sizeof(wire::SignalParams));
  layout.guards = place(plan.guards.size(), sizeof(wire::GuardParams));
  layout.code = place(plan.code.size(), sizeof(wire::ExprInstr));
  layout.bases = place(tables.event_count, sizeof(std::uint32_t));
  layout.blocks = place(plan.ops.size(), sizeof(wire::BlockRef));
  for (std::uint32_t i = 0; i < tables.op_count(); ++i) {
    const std::uint32_t bytes = block_bytes(plan.ops[i], tables.takes_turn(i));
    tables.blocks.push_back({place(1, bytes), bytes});
  }
  layout.lists = place(tables.list_count(), sizeof(wire::ListParams));
  layout.list_tasks = place(tables.list_count() > 0 ? plan.max_tasks : 0, sizeof(wire::Task));
  layout.records = layout.list_tasks;
  at = std::max(at, std::uint64_t{layout.records} + std::uint64_t{tables.record_capacity} * sizeof(wire::TileRecord));
  if (at > 0xffffffffull) return bad_plan(plan, "its run frame would be larger than 4 GiB");
  layout.max_bytes = static_cast<std::uint32_t>((at + 15) / 16 * 16);
  return layout;
}

}  // namespace

Result<PlanTables> make_plan_tables(const plan::PlanView& plan, std::uint32_t workers, Spine spine, bool records,
                                    bool chain) {
  CCKS_RETURN_IF_ERROR(check_plan(plan));
  PlanTables tables;
  tables.plan = plan;
  tables.workers = workers;
  tables.spine = spine;
  build_graph(tables);
  build_held(tables, records);
  build_stretches(tables);
  tables.event_count = plan.event_count;
  if (chain && can_chain(plan)) {
    tables.turn_event = tables.event_count++;
    tables.early = find_early_ops(plan);
  }
  build_silent(tables);
  build_deciders(tables);
  Varying(tables).find();
  tables.typical_dims.resize(plan.dims.size());
  if (!plan::evaluate_dims(plan.dims, plan::typical_symbols(plan.symbols), tables.typical_dims)) tables.typical_dims.clear();
  if (records && tables.list_count() > 0) tables.record_capacity = record_capacity(plan);
  tables.arena_bytes = plan.arena_bytes;
  if (tables.record_capacity > 0) find_tagged_edges(tables);
  Result<FrameLayout> layout = build_layout(tables);
  if (!layout.ok()) return layout.status();
  tables.layout = *layout;
  return tables;
}

Result<Spine> parse_spine(std::string_view name) {
  if (name == "auto") return Spine::fitting;
  if (name == "lists") return Spine::stretches;
  if (name == "tiles") return Spine::tiles;
  return {ErrorCode::invalid_argument, fmt::format("no spine '{}': there are auto, lists and tiles", name)};
}

}  // namespace ccks::scheduler

#include "scheduler/instance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ccks/wire/op_shape.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// A rough time of one tile on one core of either kind of machine: 8 bytes or 16 operations a nanosecond, and what it
// costs to start. Only ratios matter: the policies balance with it.
// On matrix units an SM of an H200 does some 2,500 operations a ns where it has many rows; in these units that is a quarter (kGpuCostScale).
std::uint32_t estimate_tile_cost(std::int64_t bytes, std::int64_t operations, std::uint32_t tiles, bool on_units) {
  const std::int64_t whole = std::max(bytes / 8, operations / (on_units ? 625 : 16));
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(whole / std::max(tiles, 1u), 0, 1 << 24) + 100);
}

// Which state a run has is known later than the frame.
void make_absolute(const wire::RunFrame& frame, wire::OperandParams& operand) {
  if (operand.space == static_cast<std::uint8_t>(wire::Space::arena)) {
    operand.offset += frame.arena;
  } else if (operand.space == static_cast<std::uint8_t>(wire::Space::weights)) {
    operand.offset += frame.weights;
  } else {
    return;
  }
  operand.space = static_cast<std::uint8_t>(wire::Space::absolute);
}

Status too_large(const plan::OpDesc& op, std::string_view what) {
  return {ErrorCode::invalid_data, fmt::format("op '{}' has {} at these dims", op.name, what)};
}

}  // namespace

wire::WaitAxis wait_axis(const plan::WaitAxisDesc& axis, std::span<const std::int64_t> dims) {
  const auto value = [&](plan::DimId id) { return id == plan::kNone ? 0 : static_cast<std::int32_t>(dims[id]); };
  return {axis.grid_axis,     value(axis.step),               value(axis.offset), value(axis.length),
          value(axis.extent), std::max(value(axis.block), 1), value(axis.stride), 0};
}

// FNV-1a over the symbol values.
std::uint64_t hash_symbols(std::span<const std::int64_t> symbols) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::int64_t value : symbols) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash ^= static_cast<std::uint64_t>(value) >> shift & 0xff;
      hash *= 0x100000001b3ull;
    }
  }
  return hash;
}

namespace {

// A tile of an expert with few rows takes what its weights do, eight rows what one does; a popular expert's tiles take many times that, all of them. And which of an
// op's tiles there are only the routed counts say, the first so many of them: by neighbourhoods those were some workers' and none of the others'.
// So do rows of long sequences among those of short ones. Tiles of a large product all take as long, but neighbours read the same rows or columns: at the same
// time they find them in the L2.
bool goes_in_turn(const wire::OpParams& op) {
  if ((op.flags & wire::kOpGroups) != 0) return true;
  if (static_cast<wire::OpCode>(op.kind) == wire::OpCode::attention) return op.input_count >= 4;
  return static_cast<wire::OpCode>(op.kind) == wire::OpCode::expert_matmul;
}

// Whether a GPU has the op's products on matrix units.
bool on_units(const wire::OpParams& op, const wire::OperandParams* operands) {
  const auto kind = static_cast<wire::OpCode>(op.kind);
  return wire::dtype_is_half(static_cast<wire::Dtype>(operands[0].dtype)) && (kind == wire::OpCode::matmul || kind == wire::OpCode::attention);
}

}  // namespace

Cut cut_tiles(std::uint32_t tiles, std::uint32_t workers, bool in_turn) {
  const std::uint32_t tasks = workers * kTasksPerWorker;
  Cut cut;
  cut.in_turn = in_turn && tiles > workers;
  if (cut.in_turn) return cut;
  cut.chunk = std::clamp<std::uint32_t>((tiles + tasks - 1) / tasks, 1, wire::kMaxTilesPerTask);
  cut.affinity = static_cast<float>(workers) / static_cast<float>(std::max(tiles, 1u));
  cut.tasks_each = static_cast<float>((tiles + cut.chunk - 1) / cut.chunk) / static_cast<float>(workers);
  return cut;
}

void Instance::reserve(const PlanTables& tables) {
  staging_.assign(tables.layout.max_bytes / 16, Block{});
  symbols_.assign(tables.plan.symbols.size(), 0);
  dims_.assign(tables.plan.dims.size(), 0);
  ops_.assign(tables.plan.ops.size(), OpInstance{});
  first_tiles_.assign(ops_.size(), 0);
  first_waiting_.assign(ops_.size(), 0);
  first_open_.assign((ops_.size() + 63) / 64, 0);
  stretches_.assign(tables.stretch_count(), StretchInstance{});
  list_fill_.assign(tables.list_count(), 0);
  filled_.reserve(tables.list_count());
  list_cost_.assign(tables.list_count(), 0);
  report_list_.assign(tables.report_count(), plan::kNone);
  signal_sent_.assign(tables.plan.signals.size(), 1);
  taken_rows_.assign(tables.rows.size(), 0);
  if (tables.stretch_count() > 0) dealer_.reserve(tables);
  if (tables.record_capacity > 0) records_.reserve(tables);
  relays_.reserve(tables);
}

bool Instance::matches(std::span<const std::int64_t> symbols) const {
  return built_ && std::equal(symbols.begin(), symbols.end(), symbols_.begin(), symbols_.end());
}

Status Instance::rebuild(const PlanTables& tables, std::span<const std::int64_t> symbols,
                         std::span<const std::int64_t> dims, const SlotMemory& memory, std::uint64_t weights,
                         std::uint64_t state, std::uint32_t epoch) {
  if (built_) advance_bases(tables, epoch);
  built_ = false;
  std::copy(symbols.begin(), symbols.end(), symbols_.begin());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  dims_hash_ = hash_symbols(symbols);
  fill_head(tables, memory, weights, state);
  head().epoch0 = epoch;
  place_ = memory.frame;
  feeds_.clear();
  answered_ = false;
  changes_.clear();
  fill_operands(tables);
  fill_waits(tables);
  fill_guards(tables.plan);
  CCKS_RETURN_IF_ERROR(fill_signals(tables.plan));
  for (std::uint32_t i = 0; i < tables.op_count(); ++i) CCKS_RETURN_IF_ERROR(fill_op(tables, i));
  fill_tags(tables);
  fill_blocks(tables);
  CCKS_RETURN_IF_ERROR(fill_lists(tables));
  fill_beginning(tables);
  built_ = true;
  return {};
}

// Every run of the old instance has added `total` to each event that it signals; the others stand where they stood.
void Instance::advance_bases(const PlanTables& tables, std::uint32_t epoch) {
  const std::uint32_t runs = epoch - head().epoch0;
  std::uint32_t* bases = table<std::uint32_t>(head().bases);
  if (tables.chained()) bases[tables.turn_event] += runs * tables.workers;
  const std::uint32_t count = (head().guards - head().signals) / static_cast<std::uint32_t>(sizeof(wire::SignalParams));
  for (std::uint32_t s = 0; s < count; ++s) {
    const wire::SignalParams& signal = signals()[s];
    if (signal_sent_[s] == 0) continue;
    for (std::uint32_t e = 0; e < signal.event_count; ++e) bases[signal.event_first + e] += runs * signal.total;
  }
}

void Instance::fill_head(const PlanTables& tables, const SlotMemory& memory, std::uint64_t weights,
                         std::uint64_t state) {
  const FrameLayout& layout = tables.layout;
  wire::RunFrame& frame = head();
  frame.arena = memory.arena;
  frame.weights = weights;
  frame.state = state;
  frame.events = memory.events;
  frame.reports = memory.reports;
  frame.op_count = tables.op_count();
  frame.list_count = tables.list_count();
  frame.ops = layout.ops;
  frame.operands = layout.operands;
  frame.waits = layout.waits;
  frame.signals = layout.signals;
  frame.guards = layout.guards;
  frame.code = layout.code;
  frame.bases = layout.bases;
  frame.blocks = layout.blocks;
  frame.lists = layout.lists;
  frame.list_tasks = layout.list_tasks;
  frame.frame_bytes = layout.list_tasks;
  frame.event_count = tables.event_count;
  const auto code = tables.plan.code;
  std::copy(code.begin(), code.end(), table<wire::ExprInstr>(layout.code));
}

void Instance::fill_operands(const PlanTables& tables) {
  for (std::uint32_t i = 0; i < tables.plan.operands.size(); ++i) fill_operand(tables, i);
}

void Instance::fill_operand(const PlanTables& tables, std::uint32_t index) {
  const plan::OperandDesc& from = tables.plan.operands[index];
  wire::OperandParams to{};
  to.offset = static_cast<std::uint64_t>(dim(from.offset));
  for (int i = 0; i < 4; ++i) {
    to.dim[i] = from.dim[i] == plan::kNone ? 1 : dim32(from.dim[i]);
    to.stride[i] = dim(from.stride[i]);
  }
  to.space = static_cast<std::uint8_t>(from.space);
  to.dtype = static_cast<std::uint8_t>(from.dtype);
  to.rank = from.rank;
  to.flags = from.flags;
  // An input may be what the run in front has yet to write, so nobody prefetches it before the run's turn.
  if (tables.chained() && from.space == wire::Space::arena) to.flags &= static_cast<std::uint8_t>(~wire::kOperandStreamed);
  table<wire::OperandParams>(head().operands)[index] = to;
}

void Instance::fill_waits(const PlanTables& tables) {
  const plan::PlanView& plan = tables.plan;
  auto* out = table<wire::WaitParams>(head().waits);
  for (const plan::WaitDesc& from : plan.waits) {
    const plan::SignalDesc& signal = plan.signals[from.signal];
    wire::WaitParams to{};
    to.event_first = signal.event_first;
    to.total = static_cast<std::uint32_t>(dim(signal.total));
    to.producer = from.producer;
    for (int i = 0; i < 2; ++i) to.axis[i] = wait_axis(from.axis[i], dims_);
    *out++ = to;
  }
  for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
    const plan::OpDesc& desc = plan.ops[op];
    for (std::uint32_t w = desc.wait_first; w < desc.wait_first + desc.wait_count; ++w) {
      wire::WaitParams& wait = table<wire::WaitParams>(head().waits)[w];
      wait.decides = wait.producer == tables.op_decider[op] ? 1 : 0;
    }
  }
  if (!tables.chained()) return;
  wire::WaitParams turn{};
  turn.event_first = tables.turn_event;
  turn.total = tables.workers;
  for (wire::WaitAxis& axis : turn.axis) axis = {-1, 0, 0, 1, 1, 1, 0, 0};
  *out = turn;
}

Status Instance::fill_signals(const plan::PlanView& plan) {
  auto* out = table<wire::SignalParams>(head().signals);
  for (const plan::SignalDesc& from : plan.signals) {
    wire::SignalParams to{};
    to.event_first = from.event_first;
    to.total = static_cast<std::uint32_t>(dim(from.total));
    to.event_count = static_cast<std::uint32_t>(dim(from.event_count));
    for (int i = 0; i < 2; ++i) {
      to.grid_axis[i] = from.grid_axis[i];
      to.stride[i] = dim32(from.stride[i]);
    }
    if (to.event_count > from.event_max) return too_large(plan.ops[from.op], "more events than were reserved");
    *out++ = to;
  }
  return {};
}

void Instance::fill_guards(const plan::PlanView& plan) {
  auto* out = table<wire::GuardParams>(head().guards);
  for (const plan::GuardDesc& from : plan.guards) {
    wire::GuardParams to{};
    to.offset = from.offset;
    to.compare = from.compare;
    to.is_float = from.is_float ? 1 : 0;
    if (from.is_float) {
      to.float_value = static_cast<float>(from.value);
    } else {
      to.int_value = static_cast<std::int32_t>(from.value);
    }
    *out++ = to;
  }
}

Status Instance::fill_grid(const plan::OpDesc& from, wire::OpParams& to) const {
  std::uint64_t tiles = 1;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t extent = dim(from.grid[i]);
    if (extent < 0 || extent > wire::kMaxTilesPerOp) return too_large(from, "a bad tile grid");
    tiles = std::min<std::uint64_t>(tiles * static_cast<std::uint64_t>(extent), wire::kMaxTilesPerOp + 1ull);
    to.grid[i] = static_cast<std::int32_t>(extent);
    to.tile[i] = dim32(from.tile[i]);
    to.scalars[i] = from.scalars[i];
  }
  if (tiles > wire::kMaxTilesPerOp) return too_large(from, "more than 2^24 tiles");
  to.tile_count = static_cast<std::uint32_t>(tiles);
  for (int i = 0; i < 8; ++i) to.dims[i] = dim32(from.dims[i]);
  return {};
}

Status Instance::fill_report(const plan::PlanView& plan, const plan::OpDesc& from, wire::OpParams& to) const {
  to.report = -1;
  if (from.report == plan::kNone) return {};
  const plan::ReportDesc& report = plan.reports[from.report];
  to.report = static_cast<std::int32_t>(from.report);
  to.report_operand = report.operand;
  to.report_offset = report.offset;
  to.report_bytes = static_cast<std::uint32_t>(dim(report.elements)) * wire::dtype_bytes(report.dtype);
  return to.report_bytes > report.max_bytes ? too_large(from, "a report larger than was reserved") : Status();
}

// What a body that is made for one shape takes for granted.
bool Instance::has_typical_shape(const PlanTables& tables, const plan::OpDesc& op) const {
  if (op.typical_body == op.body || tables.typical_dims.empty()) return false;
  const auto same = [&](plan::DimId id) { return id == plan::kNone || dims_[id] == tables.typical_dims[id]; };
  if (!std::all_of(op.grid, op.grid + 4, same) || !std::all_of(op.tile, op.tile + 4, same)) return false;
  const auto operands = tables.plan.operands.subspan(op.operand_first, std::size_t{op.input_count} + op.output_count);
  return std::all_of(operands.begin(), operands.end(), [&](const plan::OperandDesc& o) {
    return dim(o.offset) % 16 == 0 && std::all_of(o.dim, o.dim + 4, same) && std::all_of(o.stride, o.stride + 4, same);
  });
}

Status Instance::fill_op(const PlanTables& tables, std::uint32_t index) {
  const plan::OpDesc& from = tables.plan.ops[index];
  wire::OpParams to{};
  to.kind = static_cast<std::uint8_t>(from.kind);
  to.flags = static_cast<std::uint8_t>(from.flags | (tables.op_silent[index] != 0 ? wire::kOpSilent : 0));
  CCKS_RETURN_IF_ERROR(fill_grid(from, to));
  to.operand_first = from.operand_first;
  to.input_count = from.input_count;
  to.output_count = from.output_count;
  to.wait_first = from.wait_first;
  to.wait_count = static_cast<std::uint16_t>(from.wait_count);
  if (tables.takes_turn(index)) {
    to.wait_first = static_cast<std::uint32_t>(tables.plan.waits.size());
    to.wait_count = 1;
  }
  to.signal_first = from.signal_first;
  to.signal_count = static_cast<std::uint16_t>(from.signal_count);
  to.guard_first = from.guard_first;
  to.guard_count = static_cast<std::uint16_t>(from.guard_count);
  to.code_first = from.code_first;
  to.code_count = static_cast<std::uint16_t>(from.code_count);
  CCKS_RETURN_IF_ERROR(fill_report(tables.plan, from, to));
  wire::mark_shape(to, table<wire::OperandParams>(head().operands) + to.operand_first);
  const bool typical = from.groups_body == from.body || (to.flags & wire::kOpGroups) == 0;
  to.body = !typical ? from.groups_body : has_typical_shape(tables, from) ? from.typical_body : from.body;
  table<wire::OpParams>(head().ops)[index] = to;
  OpInstance& op = ops_[index];
  op.tiles = to.tile_count;
  op.goes_in_turn = goes_in_turn(to);
  static_cast<Cut&>(op) = cut_tiles(op.tiles, tables.workers, op.goes_in_turn);
  op.tile_cost = estimate_tile_cost(dim(from.bytes_read) + dim(from.bytes_written), dim(from.operations), op.tiles,
                                    tables.record_capacity > 0 && on_units(to, table<wire::OperandParams>(head().operands) + to.operand_first));
  op.stretch = plan::kNone;
  op.reports = from.report != plan::kNone;
  return {};
}

// Both ends have bodies that know of tags. What is placed here never moves: update() leaves such ops alone, or has its rows filled again, feed() such tensors.
void Instance::fill_tags(const PlanTables& tables) {
  const auto knows_tags = [&](std::uint32_t index) {
    const wire::OpParams& params = op(index);
    const auto body = static_cast<wire::ProductBody>(params.dims[0]);
    return (params.flags & wire::kOpVectors) != 0 && body >= wire::ProductBody::row && body <= wire::ProductBody::eight_rows;
  };
  for (std::size_t i = 0; i < tables.rows.size(); ++i) {
    fill_row(tables.rows[i]);
    taken_rows_[i] = takes_row(tables.rows[i]) ? 1 : 0;
  }
  auto* operands = table<wire::OperandParams>(head().operands);
  for (const TaggedEdge& edge : tables.tagged) {
    if (!knows_tags(edge.producer) || !knows_tags(edge.consumer) || (op(edge.consumer).flags & wire::kOpEarly) == 0) continue;
    for (const std::uint32_t index : {edge.output, edge.input}) {
      wire::OperandParams& operand = operands[index];
      const std::uint64_t elements = (operand.offset - edge.tensor) / sizeof(float);
      operand.tags = static_cast<std::uint32_t>(edge.copy + elements * sizeof(std::uint64_t) - operand.offset);
    }
    const std::uint32_t before = tables.plan.ops[edge.producer].operand_first;  // the producer's own input
    const bool leads = tables.plan.ops[edge.producer].wait_count == 0 || (operands[before].flags & wire::kOperandTagsAlone) != 0;
    const wire::OpParams& reader = op(edge.consumer);
    const bool is_copied = reader.input_count + reader.output_count <= kMostTaggedOperands;  // bodies of ops that are read where they lie find no tags
    if (!tables.finds_tags || !edge.alone || !leads || !is_copied) continue;
    for (const std::uint32_t index : {edge.output, edge.input}) operands[index].flags |= wire::kOperandTagsAlone;
  }
}

void Instance::fill_row(const RowEdge& edge) {
  auto* operands = table<wire::OperandParams>(head().operands);
  wire::OperandParams &output = operands[edge.output], &input = operands[edge.input];
  const bool gives = gives_row(edge, op(edge.producer), output), takes = gives && scheduler::takes_row(edge, op(edge.consumer), input);
  output.tags = gives ? static_cast<std::uint32_t>(edge.copy - output.offset) : 0;
  input.tags = takes ? static_cast<std::uint32_t>(edge.copy - input.offset) : 0;
}

void Instance::fill_beginning(const PlanTables& tables) {
  std::fill(first_open_.begin(), first_open_.end(), 0);
  has_empty_ops_ = false;
  for (std::uint32_t i = 0; i < tables.op_count(); ++i) {
    first_tiles_[i] = ops_[i].tiles;
    first_waiting_[i] = tables.predecessors[i] + tables.op_held[i];
    has_empty_ops_ |= ops_[i].tiles == 0;
    if (first_waiting_[i] == 0 && ops_[i].stretch == plan::kNone) first_open_[i / 64] |= std::uint64_t{1} << (i % 64);
  }
}

// Copies of what stands in the tables, with addresses.
void Instance::fill_blocks(const PlanTables& tables) {
  auto* refs = table<wire::BlockRef>(head().blocks);
  for (std::uint32_t index = 0; index < tables.op_count(); ++index) {
    refs[index] = tables.blocks[index];
    fill_block(tables, index);
  }
}

void Instance::fill_block(const PlanTables& tables, std::uint32_t index) {
  const wire::OpParams& params = op(index);
  std::byte* to = bytes() + tables.blocks[index].offset;
  const auto put = [&to](const auto* from, std::uint32_t count) {
    std::memcpy(to, from, count * sizeof(*from));
    to += count * sizeof(*from);
  };
  put(&params, 1);
  auto* operands = reinterpret_cast<wire::OperandParams*>(to);
  const std::uint32_t operand_count = std::uint32_t{params.input_count} + params.output_count;
  put(table<wire::OperandParams>(head().operands) + params.operand_first, operand_count);
  for (std::uint32_t i = 0; i < operand_count; ++i) make_absolute(head(), operands[i]);
  put(guards() + params.guard_first, params.guard_count);
  put(waits() + params.wait_first, params.wait_count);
  put(signals() + params.signal_first, params.signal_count);
}

}  // namespace ccks::scheduler

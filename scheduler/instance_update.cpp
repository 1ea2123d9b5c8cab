// Instance: what changes in a frame from one run to the next where lists and events stay: a position, an input's address.
#include <algorithm>
#include <cstring>

#include "ccks/wire/event.hpp"
#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// The input itself or another shape of it: nothing else shares its place.
bool is_of_input(const PlanTables& tables, const plan::OperandDesc& operand, std::uint32_t input) {
  const plan::TensorDesc& of = tables.plan.tensors[operand.tensor];
  const plan::TensorDesc& tensor = tables.plan.tensors[input];
  return of.space == tensor.space && of.offset >= tensor.offset && of.offset < tensor.offset + tensor.max_bytes;
}

bool differ(std::span<const plan::DimId> ids, std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  return std::any_of(ids.begin(), ids.end(), [&](plan::DimId id) { return a[id] != b[id]; });
}

bool same_span(const wire::WaitAxis& a, const wire::WaitAxis& b, std::int32_t coordinate) {
  wire::TileCoord coord;
  for (std::int32_t& c : coord.c) c = coordinate;
  const wire::EventSpan x = wire::wait_span(a, coord), y = wire::wait_span(b, coord);
  return x.lo == y.lo && x.hi == y.hi;
}

// Whether tiles wait for the same blocks along an axis of their op's grid.
bool same_spans(const wire::WaitAxis& a, const wire::WaitAxis& b, const wire::OpParams& op) {
  const std::int32_t tiles = a.grid_axis < 0 ? 1 : op.grid[a.grid_axis];
  for (std::int32_t i = 0; i < tiles; ++i) {
    if (!same_span(a, b, i)) return false;
  }
  return true;
}

}  // namespace

Result<bool> Instance::update(const PlanTables& tables, std::span<const std::int64_t> symbols,
                              std::span<const std::int64_t> dims) {
  if (!built_) return false;
  for (const plan::DimId id : tables.fixed_dims) {
    if (dims[id] != dims_[id]) return false;
  }
  if (!waits_stay(tables, dims)) return false;
  place_inputs(tables, {});
  built_ = false;
  const auto touched = [&](const std::vector<VaryingOp>& from, std::vector<std::uint32_t>& to) {
    to.clear();
    for (const VaryingOp& op : from) {
      if (differ(tables.dims_of(op), dims_, dims)) to.push_back(op.op);
    }
  };
  touched(tables.varying_waits, moved_waits_);
  touched(tables.varying_ops, moved_ops_);
  std::copy(symbols.begin(), symbols.end(), symbols_.begin());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  dims_hash_ = hash_symbols(symbols);
  for (const std::uint32_t op : moved_waits_) update_waits(tables, op);
  for (const std::uint32_t op : moved_ops_) CCKS_RETURN_IF_ERROR(update_op(tables, op));
  built_ = true;  // even where it is to be built anew: runs have added to its events
  return rows_stay(tables) && relays_.stay(relay_source(tables), moved_ops_);
}

bool Instance::waits_stay(const PlanTables& tables, std::span<const std::int64_t> dims) const {
  for (const VaryingOp& varying : tables.varying_waits) {
    if (!differ(tables.dims_of(varying), dims_, dims)) continue;
    const std::uint32_t index = varying.op;
    const plan::OpDesc& desc = tables.plan.ops[index];
    for (std::uint32_t w = desc.wait_first; w < desc.wait_first + desc.wait_count; ++w) {
      for (int i = 0; i < 2; ++i) {
        const wire::WaitAxis& now = waits()[w].axis[i];
        if (!same_spans(now, wait_axis(tables.plan.waits[w].axis[i], dims), op(index))) return false;
      }
    }
  }
  return true;
}

// They name the events that they named before.
void Instance::update_waits(const PlanTables& tables, std::uint32_t index) {
  const plan::OpDesc& desc = tables.plan.ops[index];
  for (std::uint32_t w = desc.wait_first; w < desc.wait_first + desc.wait_count; ++w) {
    wire::WaitParams& wait = table<wire::WaitParams>(head().waits)[w];
    for (int i = 0; i < 2; ++i) wait.axis[i] = wait_axis(tables.plan.waits[w].axis[i], dims_);
  }
  changed(head().waits + desc.wait_first * static_cast<std::uint32_t>(sizeof(wire::WaitParams)),
          desc.wait_count * sizeof(wire::WaitParams));
  fill_block(tables, index);
  changed(tables.blocks[index].offset, tables.blocks[index].bytes);
}

// What an op costs and where its tiles go stays as it was when the lists were made.
Status Instance::update_op(const PlanTables& tables, std::uint32_t index) {
  const plan::OpDesc& desc = tables.plan.ops[index];
  const std::uint32_t operands = desc.input_count + std::uint32_t{desc.output_count};
  for (std::uint32_t i = 0; i < operands; ++i) fill_operand(tables, desc.operand_first + i);
  const OpInstance kept = ops_[index];
  CCKS_RETURN_IF_ERROR(fill_op(tables, index));
  ops_[index] = kept;
  update_rows(tables, index);
  fill_block(tables, index);
  changed(head().ops + index * static_cast<std::uint32_t>(sizeof(wire::OpParams)), sizeof(wire::OpParams));
  changed(head().operands + desc.operand_first * static_cast<std::uint32_t>(sizeof(wire::OperandParams)),
          operands * sizeof(wire::OperandParams));
  changed(tables.blocks[index].offset, tables.blocks[index].bytes);
  return {};
}

void Instance::update_rows(const PlanTables& tables, std::uint32_t index) {
  if (tables.row_ends.empty() || tables.row_ends[index] == 0) return;
  for (const RowEdge& edge : tables.rows) {
    if (edge.producer == index || edge.consumer == index) fill_row(edge);
  }
}

bool Instance::takes_row(const RowEdge& edge) const { return table<wire::OperandParams>(head().operands)[edge.input].tags != 0; }

// A row that is not taken any more may be one that a tile which overtakes its events reads beside another.
bool Instance::rows_stay(const PlanTables& tables) const {
  for (std::size_t i = 0; i < tables.rows.size(); ++i) {
    if (takes_row(tables.rows[i]) != (taken_rows_[i] != 0)) return false;
  }
  return true;
}

bool Instance::feed(const PlanTables& tables, std::span<const Feed> feeds) {
  place_inputs(tables, feeds);
  const bool answered = std::any_of(feeds.begin(), feeds.end(), [&](const Feed& feed) { return is_answered_by(tables, feed); });
  if (answered == answered_) return false;
  answered_ = answered;
  for (const Relays::Turn& turn : relays_.turns()) {
    std::uint32_t& from = table<wire::TileRecord>(head().records)[turn.record].wait_from[turn.wait];
    from = answered ? from - tables.workers : from + tables.workers;
  }
  return true;
}

void Instance::place_inputs(const PlanTables& tables, std::span<const Feed> feeds) {
  if (std::equal(feeds.begin(), feeds.end(), feeds_.begin(), feeds_.end())) return;
  for (const Feed& old : feeds_) move_input(tables, {old.tensor});
  for (const Feed& feed : feeds) move_input(tables, feed);
  feeds_.assign(feeds.begin(), feeds.end());
}

bool Instance::is_answered_by(const PlanTables& tables, const Feed& feed) const {
  if (!tables.chained() || feed.word <= feed.address || feed.word - feed.address > 0xffffffffu || !relays_.looks_up()) return false;
  return tables.plan.operands[tables.plan.ops[relays_.first()].operand_first + 1].tensor == feed.tensor;
}

// Offsets count from the arena in either case; arithmetic on addresses wraps.
void Instance::move_input(const PlanTables& tables, const Feed& feed) {
  const std::uint32_t tensor = feed.tensor;
  const std::uint64_t shift = feed.address == 0 ? 0 : feed.address - (head().arena + tables.plan.tensors[tensor].offset);
  if (relays_.looks_up() && tables.plan.operands[tables.plan.ops[relays_.first()].operand_first + 1].tensor == tensor) {
    const bool by_word = feed.address != 0 && is_answered_by(tables, feed);
    wire::OpParams& gather = table<wire::OpParams>(head().ops)[relays_.first()];
    table<wire::OperandParams>(head().operands)[gather.operand_first + 1].tags = by_word ? static_cast<std::uint32_t>(feed.word - feed.address) : 0;
    gather.dims[wire::kLookUpTagDim] = by_word ? static_cast<std::int32_t>(feed.tag) : 0;
  }
  for (std::uint32_t i = 0; i < tables.plan.operands.size(); ++i) {
    const plan::OperandDesc& desc = tables.plan.operands[i];
    if (!is_of_input(tables, desc, tensor) || tables.operand_op[i] == plan::kNone) continue;
    wire::OperandParams& operand = table<wire::OperandParams>(head().operands)[i];
    operand.offset = static_cast<std::uint64_t>(dim(desc.offset)) + shift;
    fill_block(tables, tables.operand_op[i]);
    changed(head().operands + i * static_cast<std::uint32_t>(sizeof(operand)), sizeof(operand));
    changed(tables.blocks[tables.operand_op[i]].offset, tables.blocks[tables.operand_op[i]].bytes);
  }
}

void Instance::changed(std::uint32_t first, std::size_t bytes) {
  changes_.push_back({first, first + static_cast<std::uint32_t>(bytes)});
}

std::span<const FrameRange> Instance::take_changes() {
  taken_.clear();
  std::sort(changes_.begin(), changes_.end(), [](const FrameRange& a, const FrameRange& b) { return a.first < b.first; });
  for (const FrameRange& range : changes_) {
    if (!taken_.empty() && range.first <= taken_.back().end + kFrameGapBytes) {
      taken_.back().end = std::max(taken_.back().end, range.end);
    } else {
      taken_.push_back(range);
    }
  }
  changes_.clear();
  return taken_;
}

}  // namespace ccks::scheduler

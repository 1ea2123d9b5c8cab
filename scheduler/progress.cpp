#include "scheduler/progress.hpp"

#include <algorithm>

#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint32_t kUnknown32 = 0xffffffffu;  // guess: nothing known, so all there may be

}  // namespace

void Progress::reserve(const PlanTables& tables) {
  const std::size_t ops = tables.op_count();
  waiting_.assign(ops, 0);
  next_tile_.assign(ops, 0);
  existing_.assign(ops, 0);
  limited_.assign(ops, Cut{});
  credited_.assign(ops, 0);
  open_.assign((ops + 63) / 64, 0);
  guess_.assign(ops, kUnknown32);
  drafted_.assign(ops, 0);
  candidates_.reserve(ops);
  seen_.assign(tables.report_count(), kUnknown);
  stretch_waiting_.assign(tables.stretch_count(), 0);
  stretch_open_.assign(tables.stretch_count(), 0);
}

void Progress::start(const PlanTables& tables, const Instance& instance) {
  tables_ = &tables;
  instance_ = &instance;
  ops_left_ = tables.op_count();
  skipped_tiles_ = 0;
  turn_ = 0;
  skip_ = false;
  std::fill(seen_.begin(), seen_.end(), kUnknown);
  first_word_ = 0;
  std::fill(open_.begin(), open_.end(), 0);
  candidates_.clear();
  if (tables.held.size() > 0) std::fill(drafted_.begin(), drafted_.end(), 0);
  for (std::uint32_t i = 0; i < tables.stretch_count(); ++i) stretch_waiting_[i] = tables.stretches[i].inputs;
  if (instance.has_tiles()) {
    std::fill(next_tile_.begin(), next_tile_.end(), 0);
    std::fill(credited_.begin(), credited_.end(), 0);
    std::copy(instance.first_tiles().begin(), instance.first_tiles().end(), existing_.begin());
    std::copy(instance.first_waiting().begin(), instance.first_waiting().end(), waiting_.begin());
  }
  open_ready();
}

// Opens what waits for nothing. An op without tiles closes at once and may release ops behind it, which release() opens
// itself; what is to be opened here is what stood at zero before any of that.
void Progress::open_ready() {
  open_stretches_ = 0;
  std::fill(stretch_open_.begin(), stretch_open_.end(), 0);
  for (std::uint32_t i = 0; i < tables_->stretch_count(); ++i) {
    if (tables_->stretches[i].inputs == 0 && instance_->stretches()[i].listed) open_stretch(i);
  }
  if (!instance_->has_tiles()) return;
  const std::span<const std::uint64_t> first = instance_->first_open();
  for (std::size_t word = 0; word < first.size(); ++word) {
    if (!instance_->has_empty_ops()) {
      open_[word] |= first[word];
      continue;
    }
    for (std::uint64_t bits = first[word]; bits != 0; bits &= bits - 1)
      open(static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
  }
}

void Progress::open_stretch(std::uint32_t stretch) {
  stretch_open_[stretch] = 1;
  ++open_stretches_;
  if (instance_->stretches()[stretch].lists == 0) take_stretch(stretch);
}

std::uint32_t Progress::first_stretch() const {
  return static_cast<std::uint32_t>(std::find(stretch_open_.begin(), stretch_open_.end(), 1) - stretch_open_.begin());
}

void Progress::take_stretch(std::uint32_t stretch) {
  stretch_open_[stretch] = 0;
  --open_stretches_;
  const Stretch& taken = tables_->stretches[stretch];
  ops_left_ -= taken.ops;
  if (skip_) skipped_tiles_ += instance_->stretches()[stretch].tiles;
  for (const std::uint32_t next : tables_->outputs_of(taken)) release(next);
}

// Missing tiles are credited by adding to their events, or by a skipped task where that takes fewer messages and hardly longer: a worker goes over
// what it skips tile by tile, a microsecond each on a GPU, and everybody waits for it, while signals go to many workers.
Piece Progress::credit_piece(std::uint32_t op) const {
  const std::uint32_t missing = instance_->ops()[op].tiles - next_tile_[op];
  const std::uint32_t skips = (missing + wire::kMaxTilesPerTask - 1) / wire::kMaxTilesPerTask;
  const std::uint32_t signals = signals_to_credit(op);
  if (signals == 0 || (signals > 2 * skips && missing <= kFewSkipped && credited_[op] == 0)) {
    return {Piece::Kind::skip, next_tile_[op], std::min(missing, wire::kMaxTilesPerTask)};
  }
  return signal_at(op, credited_[op]);
}

void Progress::take_credit(std::uint32_t op, const Piece& piece) {
  const std::uint32_t tiles = instance_->ops()[op].tiles;
  if (piece.kind == Piece::Kind::signal) {
    if (++credited_[op] == signals_to_credit(op)) {
      skipped_tiles_ += tiles - next_tile_[op];
      next_tile_[op] = tiles;
    }
  } else {
    next_tile_[op] += piece.count;
    skipped_tiles_ += piece.count;
  }
  if (next_tile_[op] == tiles) close(op);
}

namespace {

/// The axis along which a report says which tiles there are.
int counted_axis(const plan::OpDesc& op) { return op.counted_rank == 0 ? 2 : 4 - int{op.counted_rank}; }

/// Tiles of one place along `axis`.
std::uint32_t tiles_inside(const wire::OpParams& op, int axis) {
  std::uint32_t tiles = 1;
  for (int inner = axis + 1; inner < 4; ++inner) tiles *= static_cast<std::uint32_t>(std::max(op.grid[inner], 1));
  return tiles;
}

bool is_outermost(const wire::OpParams& op, int axis) {
  return std::all_of(op.grid, op.grid + axis, [](std::int32_t tiles) { return tiles == 1; });
}

// The missing tiles are those from a place along `axis` on, in whole: limit_tiles() sees to that.
struct MissingBox {
  std::uint32_t lo[4];
  std::uint32_t count[4];
};

MissingBox missing_box(const wire::OpParams& op, int along, std::uint32_t next_tile) {
  MissingBox box{};
  for (int axis = 0; axis < 4; ++axis) box.count[axis] = static_cast<std::uint32_t>(op.grid[axis]);
  if (next_tile > 0) {
    box.lo[along] = next_tile / tiles_inside(op, along);
    box.count[along] -= box.lo[along];
  }
  return box;
}

std::uint32_t axis_events(const wire::SignalParams& signal, const MissingBox& box, int i) {
  return signal.grid_axis[i] < 0 ? 1 : box.count[signal.grid_axis[i]];
}

}  // namespace

std::uint32_t Progress::signals_to_credit(std::uint32_t op) const {
  const wire::OpParams& params = instance_->op(op);
  const MissingBox box = missing_box(params, counted_axis(tables_->plan.ops[op]), next_tile_[op]);
  std::uint32_t total = 0;
  for (std::uint32_t s = 0; s < params.signal_count; ++s) {
    const wire::SignalParams& signal = instance_->signals()[params.signal_first + s];
    total += axis_events(signal, box, 0) * axis_events(signal, box, 1);
  }
  return total;
}

Piece Progress::signal_at(std::uint32_t op, std::uint32_t index) const {
  const wire::OpParams& params = instance_->op(op);
  const MissingBox box = missing_box(params, counted_axis(tables_->plan.ops[op]), next_tile_[op]);
  const std::uint32_t missing = box.count[0] * box.count[1] * box.count[2] * box.count[3];
  for (std::uint32_t s = 0; s < params.signal_count; ++s) {
    const wire::SignalParams& signal = instance_->signals()[params.signal_first + s];
    const std::uint32_t width = axis_events(signal, box, 1);
    const std::uint32_t events = axis_events(signal, box, 0) * width;
    if (index >= events) {
      index -= events;
      continue;
    }
    const std::uint32_t at[2] = {index / width, index % width};
    std::uint32_t event = signal.event_first;
    for (int i = 0; i < 2; ++i) {
      if (signal.grid_axis[i] < 0) continue;
      event += (box.lo[signal.grid_axis[i]] + at[i]) * static_cast<std::uint32_t>(signal.stride[i]);
    }
    return {Piece::Kind::signal, event, missing / events};
  }
  return {};
}

void Progress::report_arrived(std::uint32_t report) {
  if (seen_[report] != kUnknown) return;
  seen_[report] = kArrived;
  for (const std::uint32_t op : tables_->held_by(report)) {
    limit_tiles(op, report);
    settle_held(op);
  }
}

// What was drafted and does not exist has been credited by its workers.
void Progress::settle_held(std::uint32_t op) {
  if (next_tile_[op] > existing_[op]) skipped_tiles_ += next_tile_[op] - existing_[op];
  if (drafted_[op] == 0) release(op);
}

void Progress::report_absent(std::uint32_t report) {
  if (seen_[report] != kUnknown) return;
  seen_[report] = kAbsent;
  for (const std::uint32_t op : tables_->held_by(report)) settle_held(op);
}

// A candidate whose report has come meanwhile is one no longer.
std::uint32_t Progress::next_draft() {
  while (!candidates_.empty() && report_settled(tables_->op_holder[candidates_.back()])) candidates_.pop_back();
  return candidates_.empty() ? plan::kNone : candidates_.back();
}

std::uint32_t Progress::draft_tiles(std::uint32_t op) const {
  const std::uint32_t tiles = instance_->ops()[op].tiles;
  const wire::OpParams& params = instance_->op(op);
  const int axis = counted_axis(tables_->plan.ops[op]);
  if (!is_outermost(params, axis)) return tiles;  // as in limit_tiles: no report says less
  const std::uint32_t row = tiles_inside(params, axis);
  return std::min(tiles, (std::min(guess_[op], tiles) + row - 1) / row * row);
}

void Progress::take_draft(std::uint32_t op, std::uint32_t tiles) {
  candidates_.pop_back();
  next_tile_[op] = tiles;
  if (tiles < instance_->ops()[op].tiles) return;
  drafted_[op] = 1;
  close(op);
}

// Expert matmul: row tiles of all experts, expert by expert, ceil(count / tile) each (op_layout.hpp). Rows of a counted dim: the same of their one count.
// Counts are values from the device: negative or huge ones must not lead outside the grid.
void Progress::limit_tiles(std::uint32_t op, std::uint32_t report) {
  const wire::OpParams& params = instance_->op(op);
  const plan::ReportDesc& desc = tables_->plan.reports[report];
  const int axis = counted_axis(tables_->plan.ops[op]);
  const std::int32_t tile = params.tile[axis];
  if (!is_outermost(params, axis) || tile <= 0 || desc.dtype != wire::Dtype::i32) return;
  const auto experts = static_cast<std::uint32_t>(instance_->dims()[desc.elements]);
  const auto* counts = reinterpret_cast<const std::int32_t*>(instance_->reports() + desc.offset);
  std::uint64_t rows = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::int64_t count = std::max(counts[e], 0);
    rows += static_cast<std::uint64_t>((count + tile - 1) / tile);
  }
  rows = std::min<std::uint64_t>(rows, static_cast<std::uint64_t>(params.grid[axis]));
  existing_[op] = static_cast<std::uint32_t>(rows) * tiles_inside(params, axis);
  limited_[op] = cut_tiles(existing_[op], tables_->workers, instance_->ops()[op].goes_in_turn);
  if (limited_[op].in_turn) {
    limited_[op].begin = turn_;
    turn_ = (turn_ + existing_[op]) % tables_->workers;
  }
  guess_[op] = existing_[op];
}

}  // namespace ccks::scheduler

#include "scheduler/overtaking.hpp"

#include <algorithm>

#include "ccks/wire/op_shape.hpp"
#include "scheduler/list_records.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of a copy: as of tensors

std::uint32_t input(const plan::OpDesc& op) { return op.operand_first; }
std::uint32_t output(const plan::OpDesc& op) { return op.operand_first + op.input_count; }

bool overlap(const plan::TensorDesc& a, const plan::TensorDesc& b) {
  return a.space == b.space && a.offset < b.offset + b.max_bytes && b.offset < a.offset + a.max_bytes;
}

class RowEdges {
 public:
  explicit RowEdges(PlanTables& tables) : tables_(tables), plan_(tables.plan), copies_(plan_.tensors.size(), 0) {}

  void find() {
    const auto known = [&](const plan::OperandDesc& operand) { return operand.tensor < plan_.tensors.size(); };
    if (tables_.record_capacity == 0 || tables_.typical_dims.empty() || plan_.ops.size() > kMostOvertakingOps || !std::all_of(plan_.operands.begin(), plan_.operands.end(), known)) return;
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      if (!is_alone(op) || plan_.ops[op].kind != wire::OpCode::matmul || plan_.ops[op].input_count < 2 || !reads_arena_beside(op)) continue;
      const std::uint32_t producer = writer_of(input(plan_.ops[op]));
      if (producer == plan::kNone || producer >= op || !makes_rows(producer)) continue;
      add(producer, op, input(plan_.ops[op]));
      for (std::uint32_t o = input(plan_.ops[op]) + 2; o < output(plan_.ops[op]); ++o) {
        const std::uint32_t other = writer_of(o);
        if (other != plan::kNone && other < op && makes_rows(other)) add(other, op, o);
      }
    }
  }

 private:
  const plan::TensorDesc& tensor_of(std::uint32_t operand) const { return plan_.tensors[plan_.operands[operand].tensor]; }
  bool is_alone(std::uint32_t op) const { return plan_.ops[op].guard_count == 0 && (plan_.ops[op].flags & wire::kOpDynamic) == 0; }
  bool makes_rows(std::uint32_t op) const {
    return is_alone(op) && plan_.ops[op].kind == wire::OpCode::matmul && plan_.ops[op].output_count == 1;
  }
  /// What other inputs an op has lies in weights, or where an op of the run may have written it.
  bool reads_arena_beside(std::uint32_t op) const {
    for (std::uint32_t o = input(plan_.ops[op]) + 1; o < output(plan_.ops[op]); ++o) {
      if (plan_.operands[o].space != wire::Space::weights && plan_.operands[o].space != wire::Space::arena) return false;
    }
    return true;
  }
  /// The one op whose first output is the intermediate that `operand` reads; kNone: there is none, or several write there.
  std::uint32_t writer_of(std::uint32_t operand) const {
    const plan::TensorDesc& tensor = tensor_of(operand);
    if (tensor.kind != plan::TensorKind::intermediate || tensor.space != wire::Space::arena || !wire::dtype_is_half(tensor.dtype)) return plan::kNone;
    std::uint32_t writer = plan::kNone;
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      const std::uint32_t first = output(plan_.ops[op]);
      for (std::uint32_t o = first; o < first + plan_.ops[op].output_count; ++o) {
        if (plan_.operands[o].tensor != plan_.operands[operand].tensor) continue;
        if (writer != plan::kNone || o != first) return plan::kNone;
        writer = op;
      }
    }
    return writer;
  }
  void add(std::uint32_t producer, std::uint32_t consumer, std::uint32_t to) {
    const std::uint32_t from = output(plan_.ops[producer]);
    const plan::DimId depth = plan_.operands[to].dim[3];
    const std::int64_t elements = depth == plan::kNone ? 0 : tables_.typical_dims[depth];
    const std::uint64_t bytes = static_cast<std::uint64_t>(elements) / 2 * sizeof(std::uint64_t);
    if (elements <= 0 || bytes > kMostTaggedBytes) return;
    std::uint64_t& copy = copies_[plan_.operands[to].tensor];
    if (copy == 0) {
      const std::uint64_t begin = (tables_.arena_bytes + kAlignment - 1) / kAlignment * kAlignment;
      if (begin + bytes > 0xffffffffull) return;  // farther than an operand can say
      copy = begin;
      tables_.arena_bytes = begin + bytes;
    }
    tables_.row_ends.resize(tables_.op_count(), 0);
    tables_.row_ends[producer] = tables_.row_ends[consumer] = 1;
    tables_.rows.push_back({producer, consumer, from, to, tensor_of(to).offset, copy, static_cast<std::uint32_t>(elements)});
  }

  PlanTables& tables_;
  const plan::PlanView& plan_;
  std::vector<std::uint64_t> copies_;  // per tensor: where its copy lies; 0: it has none
};

bool is_row(const RowEdge& edge, const wire::OperandParams& o) {
  for (int i = 0; i < 3; ++i) {
    if (o.dim[i] != 1 && o.stride[i] != 0) return false;
  }
  return o.dim[2] == 1 && o.dim[3] == static_cast<std::int32_t>(edge.elements) && o.stride[3] == 1 && o.offset == edge.tensor &&
         o.space == static_cast<std::uint8_t>(wire::Space::arena);
}
// Bodies of ops that are read where they lie find no tags.
bool knows_rows(const wire::OpParams& op) {
  return wire::streams_one_row(op) && std::uint32_t{op.input_count} + op.output_count <= kMostTaggedOperands;
}
bool is_of_epilogue(const RowEdge& edge, const wire::OpParams& op) {
  const bool norms = op.dims[wire::kNormDim] != 0 && edge.input == op.operand_first + static_cast<std::uint32_t>(op.dims[wire::kNormDim]);
  return !norms && op.dims[wire::kRopeDim] == 0 && op.dims[wire::kTwinDim] == 0;
}

}  // namespace

void find_row_edges(PlanTables& tables) { RowEdges(tables).find(); }

bool gives_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& output) {
  return is_row(edge, output) && knows_rows(op) && op.dims[wire::kRopeDim] == 0;
}
bool takes_row(const RowEdge& edge, const wire::OpParams& op, const wire::OperandParams& input) {
  return is_row(edge, input) && knows_rows(op) && (edge.input == op.operand_first || is_of_epilogue(edge, op));
}

void Overtaking::reserve(const PlanTables& tables) {
  producer_.assign(tables.op_count(), plan::kNone);
  beside_.assign(tables.op_count(), {});
  seen_.assign(tables.workers, plan::kNone);
  listed_.assign(tables.op_count(), 0);
  words_ = tables.rows.empty() ? 0 : (tables.op_count() + 63) / 64;
  behind_.assign(words_ * tables.op_count(), 0);
  marked_.assign(tables.event_count, 0);
  const plan::PlanView& plan = tables.plan;
  for (const RowEdge& edge : tables.rows) {
    if (edge.input != input(plan.ops[edge.consumer])) continue;
    std::vector<Beside>& beside = beside_[edge.consumer];
    for (std::uint32_t i = edge.input + 1; i < output(plan.ops[edge.consumer]); ++i) {
      for (std::uint32_t op = 0; op < edge.consumer; ++op) {
        for (std::uint32_t o = output(plan.ops[op]); o < output(plan.ops[op]) + plan.ops[op].output_count; ++o) {
          if (overlap(plan.tensors[plan.operands[o].tensor], plan.tensors[plan.operands[i].tensor])) beside.push_back({i, op});
        }
      }
    }
  }
}

// Ops are in an order of the waits, so what is in front of an op is known when its turn comes.
void Overtaking::begin(const PlanTables& tables, const RecordSource& source) {
  tables_ = &tables;
  source_ = &source;
  if (words_ == 0) return;
  std::fill(producer_.begin(), producer_.end(), plan::kNone);
  for (const RowEdge& edge : tables.rows) {
    if (edge.input == input(tables.plan.ops[edge.consumer]) && source.operands[edge.input].tags != 0) producer_[edge.consumer] = edge.producer;
  }
  std::fill(behind_.begin(), behind_.end(), 0);
  for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
    std::uint64_t* mine = &behind_[op * words_];
    for (std::uint32_t w = source.ops[op].wait_first; w < source.ops[op].wait_first + source.ops[op].wait_count; ++w) {
      if (w >= tables.plan.waits.size()) continue;  // for the run's turn
      const std::uint32_t producer = tables.plan.waits[w].producer;
      if (!waits_for_all(op, w)) continue;
      for (std::size_t i = 0; i < words_; ++i) mine[i] |= behind_[producer * words_ + i];
      mine[producer / 64] |= std::uint64_t{1} << (producer % 64);
    }
  }
}

void Overtaking::begin_stretch() {
  std::fill(seen_.begin(), seen_.end(), plan::kNone);
  std::fill(listed_.begin(), listed_.end(), std::uint8_t{0});
}

void Overtaking::list(std::uint32_t op) { listed_[op] = 1; }

bool Overtaking::may_overtake(std::uint32_t op, std::uint32_t worker) const {
  if (words_ == 0 || producer_[op] == plan::kNone || listed_[producer_[op]] == 0) return false;
  const std::uint32_t seen = seen_[worker];
  return std::all_of(beside_[op].begin(), beside_[op].end(), [&](const Beside& beside) {
    if (source_->operands[beside.operand].tags != 0 && listed_[beside.writer] != 0 && is_implied(op, beside.writer)) return true;
    return seen != plan::kNone && (seen == beside.writer || is_behind(seen, beside.writer));
  });
}

// Once the tile has its row all tiles of `producer` have left their words, or have ended.
bool Overtaking::is_implied(std::uint32_t op, std::uint32_t producer) const {
  const std::uint32_t row = words_ == 0 ? plan::kNone : producer_[op];
  return row != plan::kNone && (row == producer || is_behind(row, producer));
}

// Every tile of an op adds 1 to one event of each signal, so an event to which as many add as there are tiles has them all.
void Overtaking::note(std::uint32_t worker, const wire::WaitParams& wait) {
  if (words_ == 0 || wait.producer >= tables_->op_count() || wait.total != source_->ops[wait.producer].tile_count) return;
  std::uint32_t& seen = seen_[worker];
  if (seen == plan::kNone || seen < wait.producer) seen = wait.producer;
}

// Of an attention whose context is split only tiles of the first part always have something to do.
bool Overtaking::waits_for_all(std::uint32_t op, std::uint32_t index) {
  const wire::OpParams& params = source_->ops[op];
  const wire::WaitParams& wait = source_->waits[index];
  const wire::SignalParams& signal = source_->signals[tables_->plan.waits[index].signal];
  if (params.guard_count != 0 || (params.flags & wire::kOpDynamic) != 0) return false;
  std::uint32_t missing = signal.event_count;
  std::fill_n(marked_.begin() + signal.event_first, signal.event_count, std::uint8_t{0});
  for (std::uint32_t tile = 0; tile < params.tile_count && missing != 0; ++tile) {
    const wire::TileCoord coord = wire::tile_coord(params.grid, tile);
    if (static_cast<wire::OpCode>(params.kind) == wire::OpCode::attention && coord.c[0] != 0) continue;
    const wire::EventRect rect = wire::wait_rect(wait, coord);
    for (std::uint32_t i = 0; i < wire::rect_count(rect); ++i) {
      std::uint8_t& marked = marked_[wire::rect_event(wait, rect, i)];
      if (marked == 0) --missing;
      marked = 1;
    }
  }
  return missing == 0;
}

}  // namespace ccks::scheduler

// Relays: what is found out of a plan once, and the room that is kept for them.
#include <algorithm>

#include "scheduler/relays.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of words: as of tensors

class RelayFinder {
 public:
  RelayFinder(PlanTables& tables, std::uint32_t rows, bool experts) : tables_(tables), plan_(tables.plan), rows_(rows), experts_(experts) {}

  void find() {
    const auto known = [&](const plan::OperandDesc& operand) { return operand.tensor < plan_.tensors.size(); };
    if (tables_.record_capacity == 0 || tables_.typical_dims.empty() || plan_.ops.size() > kMostRelayedOps || !std::all_of(plan_.operands.begin(), plan_.operands.end(), known)) return;
    places_.assign(tables_.op_count(), {});
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) places_[op].fits = is_product(plan_.ops[op]) || is_attention(plan_.ops[op]) || is_pick(plan_.ops[op]) || is_look_up(plan_.ops[op]) || is_norm(plan_.ops[op]) || (experts_ && is_of_experts(plan_.ops[op]));
    if (std::count_if(places_.begin(), places_.end(), [](const RelayPlace& place) { return place.fits; }) < kLeastRelayProducts) return;
    find_writers();
    find_inputs();
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) reserve(op);
    reserve_frame();
    tables_.relay_places = std::move(places_);
    tables_.relay_rows = rows_;
    tables_.relay_experts = experts_;
  }

 private:
  static bool is_alone(const plan::OpDesc& op) { return op.guard_count == 0 && (op.flags & wire::kOpDynamic) == 0 && op.report == plan::kNone; }
  static bool is_product(const plan::OpDesc& op) {
    return op.kind == wire::OpCode::matmul && is_alone(op) && op.output_count == 1 && op.input_count >= 2;
  }
  static bool is_pick(const plan::OpDesc& op) { return op.kind == wire::OpCode::argmax && is_alone(op) && op.input_count == 1; }
  /// Of rows that no other op of the run has a part in.
  static bool is_look_up(const plan::OpDesc& op) { return op.kind == wire::OpCode::gather && is_alone(op) && op.wait_count == 0 && op.input_count == 2 && op.output_count == 1; }
  static bool is_norm(const plan::OpDesc& op) { return op.kind == wire::OpCode::rmsnorm && is_alone(op) && op.input_count == 2 && op.output_count == 1; }
  /// What a route reports is how many rows each expert has, which nobody needs to know where all that hangs on it is part of the relay.
  static bool is_of_experts(const plan::OpDesc& op) {
    const bool kind = op.kind == wire::OpCode::route || op.kind == wire::OpCode::expert_matmul || op.kind == wire::OpCode::combine;
    return kind && op.guard_count == 0 && (op.kind == wire::OpCode::route || op.report == plan::kNone);
  }
  /// Caches are written by one op of the run at most, so that what it is not writing now is there.
  bool is_attention(const plan::OpDesc& op) const {
    if (op.kind != wire::OpCode::attention || !is_alone(op) || op.input_count != 3 || (op.output_count != 1 && op.output_count != 3)) return false;
    return writers(op.operand_first + 1) <= 1 && writers(op.operand_first + 2) <= 1;
  }

  const plan::TensorDesc& tensor_of(std::uint32_t operand) const { return plan_.tensors[plan_.operands[operand].tensor]; }
  bool writes(const plan::OpDesc& op, std::uint32_t operand) const {
    const std::uint32_t first = first_output(op);
    for (std::uint32_t o = first; o < first + op.output_count; ++o) {
      if (share_bytes(tensor_of(o), tensor_of(operand))) return true;
    }
    return false;
  }
  std::ptrdiff_t writers(std::uint32_t operand) const {
    return std::count_if(plan_.ops.begin(), plan_.ops.end(), [&](const plan::OpDesc& op) { return writes(op, operand); });
  }

  void find_writers() {
    tables_.last_writers.assign(plan_.operands.size(), plan::kNone);
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      for (std::uint32_t o = plan_.ops[op].operand_first; o < first_output(plan_.ops[op]); ++o) {
        if (plan_.operands[o].space == wire::Space::weights) continue;
        for (std::uint32_t before = op; before-- > 0 && tables_.last_writers[o] == plan::kNone;) {
          if (writes(plan_.ops[before], o)) tables_.last_writers[o] = before;
        }
      }
    }
  }

  // Only runs of one state feed one another.
  void find_inputs() {
    tables_.operand_fed.assign(plan_.operands.size(), 0);
    for (const plan::TensorDesc& tensor : plan_.tensors) {
      if (tensor.kind != plan::TensorKind::input || plan_.state_bytes == 0) continue;
      for (std::uint32_t o = 0; o < plan_.operands.size(); ++o) {
        if (share_bytes(tensor, tensor_of(o))) tables_.operand_fed[o] = 1;
      }
    }
  }

  std::int64_t typical(plan::DimId id) const { return id == plan::kNone ? 1 : tables_.typical_dims[id]; }
  bool is_taken(std::uint32_t op) const {
    for (std::uint32_t reader = op + 1; reader < tables_.op_count(); ++reader) {
      if (!places_[reader].fits) continue;
      for (std::uint32_t o = plan_.ops[reader].operand_first; o < first_output(plan_.ops[reader]); ++o) {
        if (tables_.last_writers[o] == op) return true;
      }
    }
    return false;
  }

  std::uint64_t take(std::uint64_t words) {
    const std::uint64_t begin = (tables_.arena_bytes + kAlignment - 1) / kAlignment * kAlignment;
    tables_.arena_bytes = begin + words * sizeof(std::uint64_t);
    return begin;
  }
  void reserve(std::uint32_t index) {
    const plan::OpDesc& op = plan_.ops[index];
    RelayPlace& place = places_[index];
    if (!place.fits) return;
    if (is_look_up(op) || is_norm(op) || op.kind == wire::OpCode::route) return;
    if (op.kind == wire::OpCode::expert_matmul) return reserve_chosen(op, place);
    if (is_pick(op)) return reserve_ranks(op, place);
    const plan::OperandDesc& out = plan_.operands[first_output(op)];
    const bool attends = op.kind == wire::OpCode::attention;
    const std::int64_t rows = typical(out.dim[attends ? 1 : 2]), elements = typical(out.dim[0]) * typical(out.dim[1]) * typical(out.dim[2]) * typical(out.dim[3]);
    place.floats = is_routed_by(index);
    const bool row = rows == rows_ && (!attends || typical(out.dim[2]) == 1) && elements > 0 && elements % (2 * rows) == 0 && elements <= kMostRelayElements * rows && (out.dtype == wire::Dtype::bf16 || place.floats);
    if (!row || !is_taken(index)) return;
    place.elements = static_cast<std::uint32_t>(elements);
    place.row = take(place.floats ? place.elements : place.elements / 2);
    if (attends) reserve_parts(op, place);
  }
  /// f32, which a route alone takes.
  bool is_routed_by(std::uint32_t op) const {
    if (!experts_ || plan_.operands[first_output(plan_.ops[op])].dtype != wire::Dtype::f32) return false;
    return std::any_of(plan_.ops.begin(), plan_.ops.end(), [&](const plan::OpDesc& reader) { return reader.kind == wire::OpCode::route && tables_.last_writers[reader.operand_first] == op; });
  }
  /// What all chosen experts make of the rows.
  void reserve_chosen(const plan::OpDesc& op, RelayPlace& place) {
    const plan::OperandDesc& out = plan_.operands[first_output(op)];
    const std::int64_t elements = typical(out.dim[2]) * typical(out.dim[3]);
    if (out.dtype != wire::Dtype::bf16 || elements <= 0 || elements % 2 != 0 || elements > kMostRelayElements * rows_ || typical(out.dim[2]) > std::int64_t{wire::kMostChosenExperts} * rows_) return;
    place.elements = static_cast<std::uint32_t>(elements);
    place.row = take(place.elements / 2);
  }
  void reserve_parts(const plan::OpDesc& op, RelayPlace& place) {
    const std::int64_t heads = typical(op.dims[0]), kv_heads = typical(op.dims[1]), chunks = typical(op.dims[3]);
    if (chunks <= 1 || kv_heads <= 0 || heads < kv_heads) return;
    const auto queries = static_cast<std::uint32_t>(heads / kv_heads), dims = place.elements / rows_ / static_cast<std::uint32_t>(heads);
    place.part_words = static_cast<std::uint64_t>(chunks * kv_heads) * rows_ * wire::relay_part_words(queries, dims);
    place.parts = take(place.part_words);
  }

  /// Of all steps that make its row.
  void reserve_ranks(const plan::OpDesc& op, RelayPlace& place) {
    const std::int64_t columns = typical(plan_.operands[op.operand_first].dim[3]);
    if (columns <= 0) return;
    place.part_words = most_shared_steps(tables_, columns, kMostPlainColumns) * wire::relay_rank_words(rows_);
    place.parts = take(place.part_words + rows_);  // and the indices that are picked of them
  }

  std::uint64_t tiles_of(const plan::OpDesc& op) const {
    std::uint64_t tiles = 1;
    for (const plan::DimId id : op.grid) tiles *= static_cast<std::uint64_t>(std::max<std::int64_t>(typical(id), 0));
    return tiles;
  }
  static bool is_row_shared(const plan::OpDesc& op) { return is_product(op) || op.kind == wire::OpCode::expert_matmul || op.kind == wire::OpCode::combine; }
  /// Of two runs of columns, since it may have them; a list's share of heads, or of chosen experts, ends with each.
  std::uint64_t steps_where_shared(const plan::OpDesc& op) const {
    const plan::OperandDesc& out = plan_.operands[first_output(op)];
    if (op.kind == wire::OpCode::expert_matmul) return most_share_steps(static_cast<std::uint64_t>(std::max<std::int64_t>(typical(out.dim[2]), 0)), tables_.workers);
    if (op.kind == wire::OpCode::combine) return most_shared_steps(tables_, typical(out.dim[3]), wire::kMostRelayExpertColumns);
    const std::int64_t heads = typical(out.dim[1]);
    return most_shared_steps(tables_, 2 * typical(out.dim[3]) * typical(out.dim[0]) * heads, wire::relay_columns(rows_)) + static_cast<std::uint64_t>(std::max<std::int64_t>(heads, 0));
  }
  /// Beside one for each tile.
  std::uint64_t steps_of_wide_tiles(const plan::OpDesc& op) const {
    const plan::OperandDesc& out = plan_.operands[first_output(op)];
    if (op.kind == wire::OpCode::combine) return static_cast<std::uint64_t>(std::max<std::int64_t>(typical(out.dim[3]), 0)) / wire::kMostRelayExpertColumns;
    return static_cast<std::uint64_t>(std::max<std::int64_t>(2 * typical(out.dim[3]) * typical(out.dim[0]) * typical(out.dim[1]), 0)) / wire::relay_columns(rows_);
  }
  /// Steps behind the records, and behind them an op for each list.
  void reserve_frame() {
    std::uint64_t tiles = 0, steps = 0;
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      if (!places_[op].fits) continue;
      const std::uint64_t of_op = tiles_of(plan_.ops[op]);
      tiles += of_op;
      steps += is_pick(plan_.ops[op]) ? 1 : plan_.ops[op].kind == wire::OpCode::route ? 2 * std::uint64_t{tables_.workers} : is_row_shared(plan_.ops[op]) ? std::max(of_op + steps_of_wide_tiles(plan_.ops[op]), steps_where_shared(plan_.ops[op])) : of_op;
    }
    const std::uint64_t bytes = tables_.layout.max_bytes + alignof(wire::RelayStep) + steps * sizeof(wire::RelayStep) + tables_.workers * sizeof(wire::OpParams);
    if (tiles > tables_.record_capacity || bytes > 0xffffffffull) return;
    tables_.relay_steps = static_cast<std::uint32_t>(steps);
    tables_.layout.max_bytes = static_cast<std::uint32_t>((bytes + 15) / 16 * 16);
  }

  PlanTables& tables_;
  const plan::PlanView& plan_;
  std::vector<RelayPlace> places_;
  std::uint32_t rows_;
  bool experts_;
};

}  // namespace

void find_relays(PlanTables& tables, std::uint32_t rows, bool experts) { RelayFinder(tables, rows, experts).find(); }

}  // namespace ccks::scheduler

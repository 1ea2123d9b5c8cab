#include "scheduler/relay_ops.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "ccks/wire/event.hpp"
#include "ccks/wire/op_shape.hpp"
#include "scheduler/relays.hpp"

namespace ccks::scheduler {
namespace {

using wire::Dtype;
using wire::ExprOp;
using wire::OperandParams;
using wire::RelayAct;
using wire::RelayEnd;

// ---- what becomes of a product --------------------------------------------------------------------------------------------

/// What a register of the code that finishes a product holds.
struct Term {
  enum Kind : std::uint8_t { other, product, argument, acted, sum, scaled } kind = other;
  RelayAct act = RelayAct::none;
};

Term act_on(const Term& a, RelayAct act) { return a.kind == Term::product ? Term{Term::acted, act} : Term{}; }
Term join(const Term& a, const Term& b, Term::Kind kind) {
  const bool both = (a.kind == Term::product && b.kind == Term::argument) || (a.kind == Term::argument && b.kind == Term::product);
  return {both ? kind : Term::other};
}

/// Of the product and at most one argument.
Term read_code(std::span<const wire::ExprInstr> code) {
  std::array<Term, wire::kMaxExprRegisters> held{};
  Term last{Term::product};  // no code
  for (const wire::ExprInstr& in : code) {
    if (in.dst >= held.size() || in.a >= held.size() || in.b >= held.size()) return {};
    switch (static_cast<ExprOp>(in.op)) {
      case ExprOp::arg_f:
        last = {in.c == 0 ? Term::product : in.c == 1 ? Term::argument : Term::other};
        break;
      case ExprOp::silu_f:
        last = act_on(held[in.a], RelayAct::silu);
        break;
      case ExprOp::gelu_tanh_f:
        last = act_on(held[in.a], RelayAct::gelu_tanh);
        break;
      case ExprOp::relu_f:
        last = act_on(held[in.a], RelayAct::relu);
        break;
      case ExprOp::add_f:
        last = join(held[in.a], held[in.b], Term::sum);
        break;
      case ExprOp::mul_f:
        last = join(held[in.a], held[in.b], Term::scaled);
        break;
      default:
        return {};
    }
    held[in.dst] = last;
  }
  return last;
}

// ---- rows -----------------------------------------------------------------------------------------------------------------

/// Which axis the rows of a relay's products lie along in an operand of such an op. Attention has them as batches.
int axis_of_rows(const wire::OpParams& op) { return static_cast<wire::OpCode>(op.kind) == wire::OpCode::attention ? 1 : 2; }

bool is_rows(const OperandParams& o, std::uint32_t elements, int axis, std::uint32_t rows) {
  for (int i = 0; i < 3; ++i) {
    if (i != axis && o.dim[i] != 1 && o.stride[i] != 0) return false;
  }
  const bool few = axis == 2 || o.dim[2] == 1;
  return few && o.dim[axis] == static_cast<std::int32_t>(rows) && o.dim[3] == static_cast<std::int32_t>(elements) && o.stride[3] == 1;
}
bool is_row(const OperandParams& o, std::uint32_t elements) { return is_rows(o, elements, 2, 1); }
bool is_in(const OperandParams& o, wire::Space space) { return o.space == static_cast<std::uint8_t>(space); }
bool is_of(const OperandParams& o, Dtype dtype) { return o.dtype == static_cast<std::uint8_t>(dtype); }

/// Elements of each row of an output that is `rows` rows without gaps, heads of each one behind the other and both halves of a head; 0: it is none.
std::uint32_t row_elements(const OperandParams& o, int axis, std::uint32_t rows) {
  if (o.dim[axis] != static_cast<std::int32_t>(rows) || o.stride[3] != 1 || o.dim[0] > 2) return 0;
  if (axis == 1) return o.dim[0] == 1 && o.dim[2] == 1 ? static_cast<std::uint32_t>(o.dim[3]) : 0;
  const std::int64_t head = std::int64_t{o.dim[0]} * o.dim[3];
  if ((o.dim[0] == 2 && o.stride[0] != o.dim[3]) || (o.dim[1] != 1 && o.stride[1] != head)) return 0;
  return static_cast<std::uint32_t>(head * o.dim[1]);
}

class Describer {
 public:
  Describer(const RelaySource& source, std::uint32_t first, std::uint32_t index, RelayOp& to)
      : source_(source), tables_(*source.tables), first_(first), index_(index), op_(source.ops[index]), operands_(source.operands + op_.operand_first), to_(to), rows_(tables_.relay_rows) {}

  bool run() {
    to_ = {};
    if (!tables_.relay_places[index_].fits || op_.tile_count == 0) return false;
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::attention) return is_attention() && fits_scratch();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::argmax) return is_pick();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::gather) return is_look_up();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::rmsnorm) return is_norm();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::route) return is_route();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::expert_matmul) return (op_.dims[1] != 0 ? is_by_one_expert() : is_addend()) && fits_scratch();
    if (static_cast<wire::OpCode>(op_.kind) == wire::OpCode::combine) return is_sum_of_experts() && has_columns() && has_output() && fits_scratch();
    return is_product() && has_end() && has_columns() && has_output() && fits_scratch();
  }

 private:
  bool fits_scratch() const {
    wire::RelayStep step{};
    step.kind = static_cast<std::uint8_t>(to_.kind);
    step.k = to_.k;
    step.n = static_cast<std::uint16_t>(to_.tile);
    step.run = static_cast<std::uint16_t>(to_.width);  // of attention, the only kind that is asked for these
    const bool product = to_.kind == wire::RelayKind::product;
    step.experts = static_cast<std::uint8_t>(to_.experts);
    step.by_pieces = product && rows_ > 1 && to_.experts == wire::RelayExperts::none && to_.norm == 0 && to_.end != RelayEnd::plain ? 1 : 0;  // if need be: Relays::step_goes_by_pieces
    return wire::relay_step_bytes(step, wire::kMarkedLanes / 32, rows_) <= (product && rows_ > 1 ? wire::kMostRelayRowsBytes : wire::kMostRelayStepBytes);
  }

  const OperandParams& input(std::uint32_t i) const { return operands_[i]; }
  const OperandParams& output() const { return operands_[op_.input_count]; }
  std::uint32_t writer_of(std::uint32_t i) const { return tables_.last_writers[op_.operand_first + i]; }
  const OperandParams& output_of(std::uint32_t op) const { return source_.operands[source_.ops[op].operand_first + source_.ops[op].input_count]; }
  bool is_inside(std::uint32_t writer) const { return writer != plan::kNone && writer >= first_; }

  /// Where the words are of a row that op `writer` of the relay leaves at `offset`.
  std::optional<std::uint64_t> words_of(std::uint32_t writer, std::uint8_t space, std::uint64_t offset, std::uint32_t elements) const {
    const RelayPlace& place = tables_.relay_places[writer];
    const OperandParams& out = output_of(writer);
    const bool whole = elements != 0 && elements * std::uint64_t{rows_} <= place.elements && row_elements(out, axis_of_rows(source_.ops[writer]), rows_) == elements;
    if (place.row == 0 || !whole || !is_of(out, Dtype::bf16) || out.space != space || out.offset != offset) return {};
    return source_.arena + place.row;
  }
  /// In the same place in all runs of the frame.
  bool lies_plainly(std::uint32_t i) const { return lies_plainly_at(op_.operand_first + i); }
  bool lies_plainly_at(std::uint32_t operand) const {
    const OperandParams& o = source_.operands[operand];
    return !is_inside(tables_.last_writers[operand]) && is_in(o, wire::Space::arena) && o.offset % 16 == 0 && tables_.operand_fed[operand] == 0;
  }

  /// The first row of the table where op `writer` of the relay is a gather of the rows whose copy would be what is asked for.
  std::optional<std::uint64_t> table_of(std::uint32_t writer, const OperandParams& row, std::uint32_t elements) const {
    if (writer != first_ || static_cast<wire::OpCode>(source_.ops[writer].kind) != wire::OpCode::gather) return {};
    const OperandParams &table = source_.operands[source_.ops[writer].operand_first], &copy = output_of(writer);
    if (table.dim[3] != static_cast<std::int32_t>(elements) || copy.space != row.space || copy.offset != row.offset || row_elements(copy, 2, rows_) != elements) return {};
    return source_.weights + table.offset;
  }
  struct Rows {
    std::uint64_t at = 0;
    std::uint32_t pitch = 0;  // elements from one to the next
    std::uint8_t flags = 0;
  };
  /// Where rows of bf16 are that `writer` has written last. `plain`: the flag that says that they have no words, `looked_up`: that they are a table's.
  std::optional<Rows> rows_of(const OperandParams& o, std::uint32_t writer, int axis, std::uint32_t elements, wire::RelayFlags plain, wire::RelayFlags looked_up) const {
    if (!is_rows(o, elements, axis, rows_) || !is_of(o, Dtype::bf16) || !is_in(o, wire::Space::arena)) return {};
    if (const auto table = table_of(writer, o, elements)) return Rows{*table, elements, static_cast<std::uint8_t>(plain | looked_up)};
    if (!is_inside(writer)) return Rows{source_.arena + o.offset, elements, plain};
    const auto words = words_of(writer, o.space, o.offset, elements);
    return words ? std::optional(Rows{*words, elements}) : std::nullopt;
  }
  bool take_row(std::uint32_t i, std::uint32_t elements, wire::RelayFlags plain, wire::RelayFlags looked_up, std::uint64_t& at, std::uint32_t& pitch) {
    const OperandParams& o = input(i);
    const int axis = axis_of_rows(op_);
    const auto rows = rows_of(o, writer_of(i), axis, elements, plain, looked_up);
    if (!rows) return false;
    at = rows->at, pitch = rows->pitch;
    to_.flags |= rows->flags;
    const bool as_they_lie = (rows->flags & plain) != 0 && (rows->flags & looked_up) == 0;
    return !as_they_lie || (lies_plainly(i) && has_pitch(o, axis, pitch));
  }

  /// Rows that an op of the relay norms: as they are in front of it, by words or a table's, so that nobody has to wait until they have been read.
  bool take_normed(std::uint32_t norm) {
    const wire::OpParams& op = source_.ops[norm];
    const OperandParams *x = source_.operands + op.operand_first, &weight = x[1], &out = x[2];
    if (op_.dims[wire::kNormDim] != 0 || input(0).space != out.space || input(0).offset != out.offset || row_elements(out, 2, rows_) != to_.k || !is_rows(input(0), to_.k, 2, rows_)) return false;
    const auto rows = rows_of(x[0], tables_.last_writers[op.operand_first], 2, to_.k, wire::kRelayPlainRow, wire::kRelayLookedUpRow);
    if (!rows) return false;
    to_.row = rows->at, to_.row_pitch = rows->pitch;
    if (rows->flags == wire::kRelayPlainRow && !(lies_plainly_at(op.operand_first) && has_pitch(x[0], 2, to_.row_pitch))) return false;
    to_.flags |= rows->flags;
    return takes_weight(weight, op.scalars[0]);
  }
  bool takes_weight(const OperandParams& norm, float eps) {
    to_.norm = source_.weights + norm.offset;
    to_.scale = eps;
    if (to_.k > static_cast<std::uint32_t>(wire::kMostRelayNormed)) return false;
    return is_in(norm, wire::Space::weights) && is_of(norm, Dtype::bf16) && norm.stride[3] == 1 && norm.dim[3] == static_cast<std::int32_t>(to_.k) && norm.offset % 16 == 0;
  }
  bool is_op(std::uint32_t writer, wire::OpCode code) const { return is_inside(writer) && static_cast<wire::OpCode>(source_.ops[writer].kind) == code; }
  bool is_norm_of_relay(std::uint32_t writer) const { return is_op(writer, wire::OpCode::rmsnorm); }

  /// In packets of 16 bytes.
  bool has_pitch(const OperandParams& o, int axis, std::uint32_t& pitch) const {
    if (rows_ == 1) return true;
    pitch = static_cast<std::uint32_t>(o.stride[axis]);
    return o.stride[axis] >= 0 && o.stride[axis] % 8 == 0 && o.stride[axis] <= 0xffffffff;
  }

  bool is_product() {
    const OperandParams &a = input(0), &b = input(1);
    const bool turns = op_.dims[wire::kRopeDim] != 0;
    if (!wire::streams_rows(op_) || a.dim[2] != static_cast<std::int32_t>(rows_) || op_.output_count != 1 || op_.report >= 0 || op_.grid[0] != 1 || op_.grid[2] != 1 || (!turns && op_.grid[1] != 1)) return false;
    if (a.dim[3] % wire::kRelayRow != 0 || b.dim[2] != a.dim[3] || b.stride[2] != 1 || !is_of(b, Dtype::bf16) || !is_in(b, wire::Space::weights)) return false;
    to_.k = static_cast<std::uint32_t>(a.dim[3]);
    to_.columns = source_.weights + b.offset;
    to_.column_bytes = static_cast<std::uint32_t>(b.stride[3]) * 2;
    to_.head_bytes = static_cast<std::uint64_t>(b.stride[1]) * 2;
    if (is_norm_of_relay(writer_of(0))) return take_normed(writer_of(0));
    return take_row(0, to_.k, wire::kRelayPlainRow, wire::kRelayLookedUpRow, to_.row, to_.row_pitch) && is_normed();
  }
  bool is_normed() {
    const auto index = static_cast<std::uint32_t>(op_.dims[wire::kNormDim]);
    return index == 0 || takes_weight(input(index), op_.scalars[0]);
  }

  /// Inputs in front of a norm's weight.
  std::uint32_t inputs() const { return op_.input_count - (op_.dims[wire::kNormDim] != 0 ? 1u : 0u); }
  std::span<const wire::ExprInstr> code(std::uint32_t from, std::uint32_t count) const { return tables_.plan.code.subspan(op_.code_first + from, count); }

  bool has_end() {
    if (op_.dims[wire::kRopeDim] != 0) return is_turned();
    if (op_.dims[wire::kTwinDim] != 0) return ends_in_twin(2);
    return is_plain_or_sum(2);
  }
  /// beside: which input is added, if one is; there is none behind it.
  bool is_plain_or_sum(std::uint32_t beside) {
    const Term end = read_code(code(0, op_.code_count));
    if (end.kind == Term::product) return inputs() == beside;
    if (end.kind != Term::sum || inputs() != beside + 1 || op_.dims[wire::kEpilogueDim] != static_cast<std::int32_t>(beside)) return false;
    to_.end = RelayEnd::sum;
    const bool found = take_row(beside, static_cast<std::uint32_t>(output().dim[3]), wire::kRelayPlainBeside, wire::kRelayLookedUpBeside, to_.beside, to_.beside_pitch);
    to_.beside_bytes = (to_.flags & wire::kRelayPlainBeside) != 0 ? 2 : 4;
    return found;
  }
  /// Whose b is the last input.
  bool ends_in_twin(std::uint32_t twin) {
    const auto instructions = static_cast<std::uint32_t>(op_.dims[wire::kTwinDim] - 1);
    const Term acted = read_code(code(0, instructions)), end = read_code(code(instructions, op_.code_count - instructions));
    const bool known = (acted.kind == Term::product || acted.kind == Term::acted) && end.kind == Term::scaled;
    if (!known || inputs() != twin + 1 || op_.dims[wire::kEpilogueDim] != static_cast<std::int32_t>(twin) || !is_of(output(), Dtype::bf16)) return false;
    to_.end = RelayEnd::twin;
    to_.act = acted.act;
    to_.other = input(twin).offset - input(1).offset;
    return true;
  }
  bool is_turned() {
    const OperandParams& table = input(static_cast<std::uint32_t>(op_.dims[wire::kRopeDim]));
    const OperandParams& out = output();
    if (inputs() != 3 || op_.code_count != 0 || out.dim[0] != 2 || !is_of(out, Dtype::bf16)) return false;
    const auto angles = static_cast<std::uint32_t>(out.dim[3]) * 2;
    const bool one = is_row(table, angles);  // of all rows
    if (!lies_plainly(2) || !is_of(table, Dtype::f32) || !(one || (is_rows(table, angles, 2, rows_) && has_pitch(table, 2, to_.beside_pitch)))) return false;
    to_.end = RelayEnd::turned;
    to_.heads = static_cast<std::uint32_t>(op_.grid[1]);
    to_.other = static_cast<std::uint64_t>(input(1).stride[0]) * 2;
    to_.beside = source_.arena + table.offset;
    to_.beside_bytes = sizeof(float);
    to_.second = static_cast<std::uint32_t>(out.stride[0]);
    to_.sines = static_cast<std::uint32_t>(out.dim[3]) * sizeof(float);
    return true;
  }

  bool has_columns() {
    to_.width = static_cast<std::uint32_t>(output().dim[3]);
    to_.tile = std::min(static_cast<std::uint32_t>(op_.tile[3]), to_.width);
    const std::uint32_t last = to_.width - (static_cast<std::uint32_t>(op_.grid[3]) - 1) * to_.tile;
    return to_.tile % wire::kRelayColumns == 0 && last % wire::kRelayColumns == 0;
  }
  bool has_output() {
    const OperandParams& out = output();
    const bool in_state = is_in(out, wire::Space::state), floats = is_of(out, Dtype::f32);
    const std::uint32_t elements = row_elements(out, 2, rows_);
    const RelayPlace& place = tables_.relay_places[index_];
    if ((!in_state && !is_in(out, wire::Space::arena)) || (!floats && !is_of(out, Dtype::bf16)) || elements == 0 || !has_pitch(out, 2, to_.store_pitch)) return false;
    if (floats) to_.flags |= wire::kRelayFloats;
    if (in_state) to_.flags |= wire::kRelayMoves;
    to_.element_bytes = floats ? 4 : 2;
    to_.head_elements = static_cast<std::uint32_t>(out.stride[1]);
    to_.store = in_state ? 0 : source_.arena + out.offset;
    to_.words = words_of(index_, out.space, out.offset, elements).value_or(0);
    if (place.floats && elements * rows_ == place.elements) to_.words = source_.arena + place.row;
    to_.words_pitch = elements;
    return true;
  }

  /// Words of what an op of this run has put behind all positions that a cache had.
  bool take_newest(std::uint32_t i, std::uint64_t& at) const {
    const OperandParams& o = input(i);
    if (!is_inside(writer_of(i)) || !is_of(o, Dtype::bf16) || !is_in(o, wire::Space::state) || o.dim[2] <= 0) return false;
    const std::uint64_t offset = o.offset + static_cast<std::uint64_t>((o.dim[2] - 1) * o.stride[2]) * 2;
    const auto words = words_of(writer_of(i), o.space, offset, static_cast<std::uint32_t>(o.dim[3]));
    at = words.value_or(0);
    return words.has_value();
  }
  bool is_attention() {
    const auto marks = static_cast<std::uint32_t>(op_.dims[4]);
    const std::uint32_t queries = marks & 0xff, dims = marks >> 16, kv_heads = static_cast<std::uint32_t>(op_.grid[3]);
    if (marks == 0 || op_.input_count != 3 || op_.grid[1] != static_cast<std::int32_t>(rows_) || queries > wire::kMostRelayQueries) return false;
    const std::uint32_t elements = queries * dims * kv_heads;
    if (static_cast<std::uint32_t>(input(1).dim[3]) != kv_heads * dims || input(2).dim[3] != input(1).dim[3] || row_elements(output(), 1, rows_) != elements) return false;
    if (input(1).dim[1] != op_.grid[1] || input(2).dim[1] != op_.grid[1] || !has_pitch(output(), 1, to_.store_pitch)) return false;
    if (!is_of(output(), Dtype::bf16) || !is_in(output(), wire::Space::arena)) return false;
    to_.kind = wire::RelayKind::attention;
    to_.width = dims;
    to_.tile = queries;
    to_.column_bytes = kv_heads;
    to_.words_pitch = elements;
    to_.scale = op_.scalars[0];
    to_.store = source_.arena + output().offset;
    to_.words = words_of(index_, output().space, output().offset, elements).value_or(0);
    const bool found = take_row(0, elements, wire::kRelayPlainRow, wire::kRelayLookedUpRow, to_.row, to_.row_pitch) && take_newest(1, to_.columns) && take_newest(2, to_.other);
    return found && (to_.flags & wire::kRelayPlainRow) == 0 && has_parts(queries, dims, kv_heads);
  }
  bool has_parts(std::uint32_t queries, std::uint32_t dims, std::uint32_t kv_heads) {
    if (op_.grid[0] == 1) return true;
    const RelayPlace& place = tables_.relay_places[index_];
    to_.norm = source_.arena + place.parts;
    return place.parts != 0 && static_cast<std::uint64_t>(op_.grid[0]) * kv_heads * rows_ * wire::relay_part_words(queries, dims) <= place.part_words;
  }

  /// Of the whole of each row of floats that a product of the relay makes.
  bool is_pick() {
    const OperandParams& row = input(0);
    const RelayPlace& place = tables_.relay_places[index_];
    if (!is_inside(writer_of(0)) || place.parts == 0 || op_.report >= 0 || !is_of(row, Dtype::f32) || !is_of(output(), Dtype::i32) || !is_in(output(), wire::Space::arena)) return false;
    const OperandParams& made = output_of(writer_of(0));
    const auto elements = static_cast<std::uint32_t>(row.dim[3]);
    if (static_cast<wire::OpCode>(source_.ops[writer_of(0)].kind) != wire::OpCode::matmul || !is_rows(row, elements, 2, rows_) || made.space != row.space || made.offset != row.offset || row_elements(made, 2, rows_) != elements) return false;
    const OperandParams& index = output();
    if (index.dim[0] != 1 || index.dim[1] != 1 || index.dim[2] != static_cast<std::int32_t>(rows_) || index.dim[3] != 1 || (rows_ != 1 && index.stride[2] != 1)) return false;
    to_.kind = wire::RelayKind::pick;
    to_.row = source_.arena + place.parts;
    to_.words = to_.row + place.part_words * sizeof(std::uint64_t);
    to_.store = source_.arena + output().offset;
    return true;
  }

  /// Of the first op alone: rows of weights, by indices that are an input.
  bool is_look_up() {
    const OperandParams &table = input(0), &index = input(1);
    if (index_ != first_ || !is_rows(output(), static_cast<std::uint32_t>(output().dim[3]), 2, rows_) || !is_of(output(), Dtype::bf16)) return false;
    if (rows_ != 1 && (index.dim[3] != static_cast<std::int32_t>(rows_) || index.stride[3] != 1)) return false;
    if (!is_in(table, wire::Space::weights) || !is_of(table, Dtype::bf16) || table.offset % 16 != 0 || table.stride[2] % 8 != 0 || table.stride[3] != 1 || table.dim[3] != output().dim[3]) return false;
    const bool input_alone = tables_.plan.tensors[tables_.plan.operands[op_.operand_first + 1].tensor].kind == plan::TensorKind::input;
    if (!input_alone || !is_in(index, wire::Space::arena) || !is_of(index, Dtype::i32) || index.offset % sizeof(std::int32_t) != 0) return false;
    to_.kind = wire::RelayKind::look_up;
    to_.row = source_.weights + table.offset;
    return true;
  }

  /// What takes its rows says whether it can (take_normed).
  bool is_norm() {
    to_.kind = wire::RelayKind::norm;
    return (is_inside(writer_of(0)) || lies_plainly(0)) && is_of(output(), Dtype::bf16) && is_in(output(), wire::Space::arena);
  }

  // ---- experts: of which a route chooses some for each row --------------------------------------------------------------------

  std::uint32_t writer_of(std::uint32_t op, std::uint32_t i) const { return tables_.last_writers[source_.ops[op].operand_first + i]; }
  const OperandParams& operand_of(std::uint32_t op, std::uint32_t i) const { return source_.operands[source_.ops[op].operand_first + i]; }

  /// Shares are the softmax of the chosen ones' logits.
  bool is_route() {
    const OperandParams& logits = input(0);
    const std::uint32_t writer = writer_of(0);
    if (!tables_.relay_experts || op_.input_count != 1 || !is_op(writer, wire::OpCode::matmul) || (op_.dims[1] != 0 && op_.dims[2] == 0)) return false;
    const auto experts = static_cast<std::uint32_t>(logits.dim[3]), chosen = static_cast<std::uint32_t>(op_.dims[0]);
    if (chosen == 0 || chosen > experts || chosen > wire::kMostChosenExperts || experts > wire::kMostRelayExperts || !is_rows(logits, experts, 2, rows_) || !is_of(logits, Dtype::f32)) return false;
    const OperandParams& made = output_of(writer);
    const RelayPlace& place = tables_.relay_places[writer];
    if (!place.floats || place.elements != experts * rows_ || made.space != logits.space || made.offset != logits.offset || row_elements(made, 2, rows_) != experts) return false;
    to_.kind = wire::RelayKind::route;
    to_.row = source_.arena + place.row;
    to_.width = experts;
    to_.k = chosen;
    to_.routed_by = writer;
    return true;
  }
  /// Whether inputs i and i + 1 of `op` are what a route of the relay has found, which `to_` then names; chosen: as many experts as it chooses.
  bool is_routed(std::uint32_t op, std::uint32_t i, std::uint32_t& chosen) {
    const std::uint32_t route = writer_of(op, i);
    if (!tables_.relay_experts || !is_op(route, wire::OpCode::route) || writer_of(op, i + 1) != route) return false;
    to_.routed_by = route;
    chosen = static_cast<std::uint32_t>(source_.ops[route].dims[0]);
    return source_.ops[op].dims[0] == static_cast<std::int32_t>(chosen) && source_.operands[source_.ops[route].operand_first].dim[3] == operand_of(op, 1).dim[1];
  }
  /// Of b[1, experts, k, n], in columns.
  bool takes_columns(const OperandParams& b, std::uint32_t k, std::uint32_t n) {
    const bool lie = b.dim[2] == static_cast<std::int32_t>(k) && b.dim[3] == static_cast<std::int32_t>(n) && b.stride[2] == 1 && b.stride[3] % 8 == 0 && b.stride[1] % 8 == 0 && b.offset % 16 == 0;
    if (!lie || !is_of(b, Dtype::bf16) || !is_in(b, wire::Space::weights) || b.stride[1] <= 0 || b.stride[1] > 0x7fffffff) return false;
    to_.columns = source_.weights + b.offset;
    to_.column_bytes = static_cast<std::uint32_t>(b.stride[3]) * 2;
    to_.expert_bytes = static_cast<std::uint32_t>(b.stride[1]) * 2;
    return true;
  }
  /// Experts that may be active, since some row has chosen them.
  std::uint32_t most_active(std::uint32_t chosen, std::uint32_t experts) const { return std::min(chosen * rows_, experts); }
  /// Rows by two weights of each chosen expert, results of a row one behind the other.
  bool is_by_one_expert() {
    std::uint32_t chosen = 0;
    const OperandParams &x = input(0), &out = output();
    if (op_.dims[wire::kTwinDim] == 0 || op_.report >= 0 || !ends_in_twin(4) || !is_routed(index_, 2, chosen)) return false;
    const OperandParams &b = input(1), &twin = input(4);
    if (x.dim[3] <= 0 || x.dim[3] % wire::kRelayRow != 0 || out.dim[3] <= 0 || out.dim[3] % wire::kRelayShareColumns != 0 || out.dim[3] > 0xffff) return false;
    to_.k = static_cast<std::uint32_t>(x.dim[3]), to_.width = static_cast<std::uint32_t>(out.dim[3]);
    if (!takes_columns(b, to_.k, to_.width) || !is_of(twin, Dtype::bf16) || !is_in(twin, wire::Space::weights) || twin.offset % 16 != 0) return false;
    if (!std::equal(b.dim, b.dim + 4, twin.dim) || !std::equal(b.stride, b.stride + 4, twin.stride)) return false;
    to_.experts = wire::RelayExperts::share;
    to_.active = most_active(chosen, static_cast<std::uint32_t>(b.dim[1]));
    if (std::uint64_t{to_.active} * to_.width * wire::kMostShareCost > 0xffffffffull) return false;
    const RelayPlace& place = tables_.relay_places[index_];
    const bool rows = out.dim[2] == static_cast<std::int32_t>(chosen * rows_) && out.stride[2] == out.dim[3] && out.stride[3] == 1;
    if (!rows || place.row == 0 || place.elements != chosen * to_.width * rows_) return false;
    to_.words = source_.arena + place.row;
    to_.words_pitch = chosen * to_.width;
    if (is_norm_of_relay(writer_of(0))) return take_normed(writer_of(0));
    return take_row(0, to_.k, wire::kRelayPlainRow, wire::kRelayLookedUpRow, to_.row, to_.row_pitch);
  }
  /// What is_by_one_expert has made, by a weight of its expert each; who adds that up multiplies by it (is_sum_of_experts).
  bool is_addend() {
    std::uint32_t chosen = 0;
    if (op_.input_count != 4 || op_.code_count != 0 || op_.dims[wire::kTwinDim] != 0 || op_.report >= 0 || !is_op(writer_of(0), wire::OpCode::expert_matmul) || !is_routed(index_, 2, chosen)) return false;
    if (source_.ops[writer_of(0)].dims[1] == 0 || writer_of(writer_of(0), 2) != to_.routed_by) return false;
    const OperandParams &x = input(0), &made = output_of(writer_of(0)), &z = output();
    if (x.offset != made.offset || x.space != made.space || x.dim[2] != made.dim[2] || x.dim[3] != made.dim[3] || x.stride[2] != made.stride[2] || x.stride[3] != made.stride[3]) return false;
    to_.kind = wire::RelayKind::addend;
    return x.dim[3] % 8 == 0 && z.dim[2] == x.dim[2] && is_of(z, Dtype::bf16);
  }
  /// One product, of rows of all that chosen experts have made, times their shares, and a weight of each of them.
  bool is_sum_of_experts() {
    const std::uint32_t addend = writer_of(0), route = writer_of(1);
    std::uint32_t chosen = 0;
    if (!is_op(addend, wire::OpCode::expert_matmul) || source_.ops[addend].dims[1] != 0 || op_.report >= 0 || op_.output_count != 1 || !is_routed(addend, 2, chosen)) return false;
    if (to_.routed_by != route || writer_of(2) != route || op_.dims[0] != static_cast<std::int32_t>(chosen) || op_.grid[0] != 1 || op_.grid[1] != 1) return false;
    const OperandParams &u = operand_of(addend, 0), &z = output_of(addend), &x = input(0);
    if (z.offset != x.offset || z.space != x.space || z.dim[3] != output().dim[3] || x.dim[2] != z.dim[2] || x.dim[3] != z.dim[3]) return false;
    to_.k = static_cast<std::uint32_t>(u.dim[3]);
    const bool slices = to_.k % wire::kRelayExpertSlice == 0 && output().dim[3] % wire::kRelayExpertColumns == 0 && op_.tile[3] % wire::kRelayExpertColumns == 0;
    if (!slices || !takes_columns(operand_of(addend, 1), to_.k, static_cast<std::uint32_t>(z.dim[3]))) return false;
    to_.experts = wire::RelayExperts::all;
    const RelayPlace& place = tables_.relay_places[writer_of(addend, 0)];
    if (place.row == 0 || place.elements != to_.k * chosen * rows_) return false;
    to_.row = source_.arena + place.row;
    to_.row_pitch = to_.k * chosen;
    return is_plain_or_sum(3);
  }

  const RelaySource& source_;
  const PlanTables& tables_;
  std::uint32_t first_, index_;
  const wire::OpParams& op_;
  const OperandParams* operands_;
  RelayOp& to_;
  std::uint32_t rows_;
};

// ---- steps ----------------------------------------------------------------------------------------------------------------

void fill_product(const RelayOp& op, const RelayPart& part, wire::RelayStep& step, std::uint64_t& element) {
  const std::uint32_t run = part.count;
  element = std::uint64_t{part.head} * op.head_elements + part.first;
  step.columns = op.columns + part.head * op.head_bytes + std::uint64_t{part.first} * op.column_bytes;
  step.beyond = has_runs(op) ? op.other - std::uint64_t{run} * op.column_bytes : 0;
  step.norm = op.norm;
  step.beside = op.beside + std::uint64_t{part.first} * op.beside_bytes;
  step.column_bytes = op.column_bytes;
  step.k = op.k;
  step.n = static_cast<std::uint16_t>(has_runs(op) ? 2 * run : run);
  step.experts = static_cast<std::uint8_t>(op.experts);
  step.expert_bytes = op.expert_bytes;
  if (op.experts == wire::RelayExperts::none && wire::relay_is_wide(step.k, step.n)) step.flags |= wire::kRelayWide;
  step.run = static_cast<std::uint16_t>(run);
  step.second = op.second;
  step.sines = op.sines;
  step.row_pitch = op.row_pitch, step.words_pitch = op.words_pitch, step.store_pitch = op.store_pitch, step.beside_pitch = op.beside_pitch;
}

/// The part.head-th expert of a list's share.
void fill_share(const RelayOp& op, const RelayPart& part, wire::RelayStep& step) {
  step.columns = op.columns;
  step.beyond = op.other;
  step.norm = op.norm;
  step.column_bytes = op.column_bytes;
  step.expert_bytes = op.expert_bytes;
  step.k = op.k;
  step.experts = static_cast<std::uint8_t>(op.experts);
  step.slot = static_cast<std::uint8_t>(part.head);
  step.n = static_cast<std::uint16_t>(op.width);
  step.row_pitch = op.row_pitch, step.words_pitch = op.words_pitch;
}

// Tiles are numbered part by part, in each row by row and there by kv head. Words of a kv head's parts lie one behind the other.
void fill_attention(const RelayOp& op, const wire::OpParams& params, wire::RelayStep& step, std::uint64_t& element) {
  const std::uint32_t kv_heads = op.column_bytes, heads = kv_heads * static_cast<std::uint32_t>(params.grid[1]), head = step.tile % heads, kv_head = head % kv_heads;
  element = std::uint64_t{head} * op.tile * op.width;
  step.row += element / 2 * sizeof(std::uint64_t);
  step.columns = op.columns + std::uint64_t{head} * op.width / 2 * sizeof(std::uint64_t);
  step.beyond = op.other + std::uint64_t{head} * op.width / 2 * sizeof(std::uint64_t);
  if (op.norm != 0) step.norm = op.norm + std::uint64_t{head} * static_cast<std::uint32_t>(params.grid[0]) * wire::relay_part_words(op.tile, op.width) * sizeof(std::uint64_t);
  step.n = static_cast<std::uint16_t>(op.tile);
  step.run = static_cast<std::uint16_t>(op.width);
  step.part = static_cast<std::uint16_t>(step.tile / heads);
  step.kv_head = static_cast<std::uint16_t>(kv_head);
  step.row_pitch = head / kv_heads;
}

}  // namespace

bool describe(const RelaySource& source, std::uint32_t first, std::uint32_t index, RelayOp& to) { return Describer(source, first, index, to).run(); }

RelayPart part_of_tile(const RelayOp& op, const wire::OpParams& params, std::uint32_t tile) {
  if (op.kind == wire::RelayKind::attention) return {tile};
  const wire::TileCoord coord = wire::tile_coord(params.grid, tile);
  const std::uint32_t at = static_cast<std::uint32_t>(coord.c[3]) * op.tile;
  return {tile, static_cast<std::uint32_t>(coord.c[1]), at, std::min(op.tile, op.width - at)};
}

wire::RelayStep step_of(const RelaySource& source, std::uint32_t index, const RelayOp& op, const RelayPart& part, bool gives, bool stores) {
  wire::RelayStep step{};
  step.row = op.row;
  step.block = source.frame + source.tables->blocks[index].offset;
  step.scale = op.scale;
  step.kind = static_cast<std::uint8_t>(op.kind);
  step.end = static_cast<std::uint8_t>(op.end);
  step.act = static_cast<std::uint8_t>(op.act);
  step.flags = stores ? op.flags : static_cast<std::uint8_t>(op.flags & ~(wire::kRelayMoves | wire::kRelayFloats));
  step.op = index;
  step.tile = part.number;
  std::uint64_t element = 0;
  if (op.kind == wire::RelayKind::pick) {
    step.n = static_cast<std::uint16_t>(part.count);
  } else if (op.kind == wire::RelayKind::route) {
    step.n = static_cast<std::uint16_t>(op.width);
    step.run = static_cast<std::uint16_t>(op.k);
    step.part = static_cast<std::uint16_t>(part.number);
    step.kv_head = static_cast<std::uint16_t>(part.count);
    step.second = part.first;
    return step;
  } else if (op.kind == wire::RelayKind::attention) {
    fill_attention(op, source.ops[index], step, element);
  } else if (op.experts == wire::RelayExperts::share) {
    fill_share(op, part, step);
  } else {
    fill_product(op, part, step, element);
  }
  step.float_words = source.tables->relay_places[index].floats ? 1 : 0;
  if (gives) step.words = op.words + (step.float_words != 0 ? element : element / 2) * sizeof(std::uint64_t);
  if (stores) step.store = op.store + element * op.element_bytes;
  return step;
}

}  // namespace ccks::scheduler

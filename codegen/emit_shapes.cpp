// shape_of_op: what a body is made for that knows one shape (ccks/worker/shaped_ops.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <map>

#include "ccks/plan_eval.hpp"
#include "ccks/wire/op_shape.hpp"
#include "ccks/wire/relay.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "codegen/emit_sources.hpp"

namespace ccks::codegen {
namespace {

/// dims[at] of a matmul, or of an expert_matmul where that has the same there, which is a constant; else 0.
std::int64_t constant_dim(const PlanImage& image, const plan::OpDesc& op, std::uint32_t at, bool of_experts = false) {
  const bool has = op.kind == wire::OpCode::matmul || (of_experts && op.kind == wire::OpCode::expert_matmul);
  const plan::DimId dim = has ? op.dims[at] : plan::kNone;
  return dim != plan::kNone && image.dims[dim].op == plan::DimOp::constant ? image.dims[dim].value : 0;
}

/// The op's frame entries, as far as they tell its shape, at the program's typical sizes.
class Shape {
 public:
  Shape(const PlanImage& image, const plan::OpDesc& op) : image_(image), dims_(image.dims.size()) {
    known_ = plan::evaluate_dims(image.dims, plan::typical_symbols(image.symbols), dims_);
    params.kind = static_cast<std::uint8_t>(op.kind);
    params.input_count = op.input_count;
    params.output_count = op.output_count;
    params.tile_count = 1;
    if (norms_rows(image, op)) params.dims[wire::kNormDim] = op.input_count - 1;
    params.dims[wire::kTwinDim] = twin_dim(image, op) != 0 ? 1 : 0;
    if (turns_heads(image, op)) params.dims[wire::kRopeDim] = op.input_count - (norms_rows(image, op) ? 2 : 1);
    for (int i = 0; i < 4; ++i) {
      params.tile[i] = small(op.tile[i]);
      params.grid[i] = small(op.grid[i]);
    }
    for (std::uint32_t i = 0; i < std::uint32_t{op.input_count} + op.output_count; ++i) add(image.operands[op.operand_first + i]);
  }

  bool known() const { return known_; }
  /// Whether some dim of the program changes it.
  bool varies() const { return varies_; }
  /// Whether bodies for marked ops take it.
  bool marked() const {
    wire::OpParams op = params;
    wire::mark_shape(op, operands.data());
    return (op.flags & (wire::kOpFlat | wire::kOpVectors)) != 0;
  }

  /// Whether they are for groups of warps.
  bool grouped() const {
    wire::OpParams op = params;
    wire::mark_shape(op, operands.data());
    return (op.flags & wire::kOpGroups) != 0;
  }

  /// Of a product whose weights may come through a ring and that has no more than relays take, its rows; 0: it is none.
  std::uint32_t streamed_rows(const plan::OpDesc& from) const {
    if (!known_) return 0;
    wire::OpParams op = params;
    op.guard_count = static_cast<std::uint16_t>(from.guard_count);
    std::vector<wire::OperandParams> all = operands;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const plan::OperandDesc& operand = image_.operands[from.operand_first + i];
      all[i].space = static_cast<std::uint8_t>(operand.space);
      all[i].flags = operand.flags;
    }
    wire::mark_shape(op, all.data());
    const std::uint32_t rows = wire::streams_rows(op) ? static_cast<std::uint32_t>(all[0].dim[2]) : 0;
    return rows <= wire::kMostRelayRows ? rows : 0;
  }

  wire::OpParams params{};
  std::vector<wire::OperandParams> operands;

 private:
  std::int64_t value(plan::DimId id) {
    if (id == plan::kNone) return 1;
    varies_ = varies_ || image_.dims[id].op != plan::DimOp::constant;
    return dims_[id];
  }
  std::int32_t small(plan::DimId id) {
    const std::int64_t v = value(id);
    known_ = known_ && v >= 0 && v <= INT32_MAX;
    return static_cast<std::int32_t>(v);
  }
  void add(const plan::OperandDesc& from) {
    wire::OperandParams to{};
    known_ = known_ && value(from.offset) % 16 == 0;
    for (int i = 0; i < 4; ++i) {
      to.dim[i] = small(from.dim[i]);
      to.stride[i] = value(from.stride[i]);
    }
    to.dtype = static_cast<std::uint8_t>(from.dtype);
    to.flags = from.flags & wire::kOperandContiguous;
    operands.push_back(to);
  }

  const PlanImage& image_;
  std::vector<std::int64_t> dims_;
  bool known_ = true, varies_ = false;
};

bool may_be_shaped(const PlanImage& image, const plan::OpDesc& op) {
  const auto code = std::span(image.code).subspan(op.code_first, op.code_count);
  const bool uses_index = std::any_of(code.begin(), code.end(), [](const wire::ExprInstr& in) {
    return in.op == static_cast<std::uint8_t>(wire::ExprOp::index_i);
  });
  const bool kind = op.kind == wire::OpCode::map || op.kind == wire::OpCode::matmul || op.kind == wire::OpCode::softmax ||
                    op.kind == wire::OpCode::rmsnorm || op.kind == wire::OpCode::layernorm;
  return kind && !uses_index && op.output_count == 1;
}

/// Whether most products of so many rows stand behind one another, with nothing but norms and attention between them: a run has one relay, and where that is short, what makes it possible costs all
/// other tiles more than it gains.
bool follow_one_another(const PlanImage& image, std::uint32_t rows) {
  std::size_t all = 0, run = 0, longest = 0;
  for (const plan::OpDesc& op : image.ops) {
    const bool product = op.kind == wire::OpCode::matmul && op.output_count == 1 && Shape(image, op).streamed_rows(op) == rows;
    const bool between = op.kind == wire::OpCode::rmsnorm || (op.kind == wire::OpCode::attention && op.input_count == 3);
    all += product ? 1 : 0;
    run = product ? run + 1 : between ? run : 0;
    longest = std::max(longest, run);
  }
  return 2 * longest >= all;
}

}  // namespace

bool norms_rows(const PlanImage& image, const plan::OpDesc& op) { return constant_dim(image, op, wire::kNormDim) != 0; }
bool turns_heads(const PlanImage& image, const plan::OpDesc& op) { return constant_dim(image, op, wire::kRopeDim) != 0; }
std::int64_t twin_dim(const PlanImage& image, const plan::OpDesc& op) { return constant_dim(image, op, wire::kTwinDim, true); }

OpShape shape_of_op(const PlanImage& image, const plan::OpDesc& op) {
  if (!may_be_shaped(image, op)) return {};
  const Shape shape(image, op);
  if (!shape.known() || !shape.marked()) return {};
  std::string windows;
  for (const wire::OperandParams& o : shape.operands) {
    windows += fmt::format("{}Window<{}, {}, {}u>", windows.empty() ? "" : ", ", fmt::join(o.dim, ", "),
                           fmt::join(o.stride, ", "), o.flags);
  }
  return {fmt::format("Tiles<{}, {}>, Windows<{}>", fmt::join(shape.params.tile, ", "), fmt::join(shape.params.grid, ", "), windows),
          shape.varies()};
}

std::uint32_t rows_handed_on(const PlanImage& image) {
  std::map<std::uint32_t, std::uint32_t> made;  // tensors, and their rows
  std::uint32_t found = 0;
  for (const plan::OpDesc& op : image.ops) {
    if (op.kind != wire::OpCode::matmul || op.output_count != 1) continue;
    const std::uint32_t rows = Shape(image, op).streamed_rows(op);
    if (rows == 0) continue;
    const auto maker = made.find(image.operands[op.operand_first].tensor);
    if (maker != made.end() && maker->second == rows && (found == 0 || rows == 1)) found = rows;
    made[image.operands[op.operand_first + op.input_count].tensor] = rows;
  }
  return found <= 1 || follow_one_another(image, found) ? found : 0;
}

std::uint32_t routed_rows(const PlanImage& image) {
  for (const plan::OpDesc& op : image.ops) {
    if (op.kind != wire::OpCode::route || op.input_count != 1) continue;
    const Shape shape(image, op);
    if (!shape.known()) continue;
    const wire::OperandParams &logits = shape.operands[0], &weight = shape.operands[1];
    const bool fits = logits.dim[2] > 0 && logits.dim[2] <= static_cast<wire::i32>(wire::kMostRelayRows) && logits.dim[3] <= static_cast<wire::i32>(wire::kMostRelayExperts) && weight.dim[3] <= static_cast<wire::i32>(wire::kMostChosenExperts);
    if (fits) return static_cast<std::uint32_t>(logits.dim[2]);
  }
  return 0;
}

TakesGroups takes_groups(const PlanImage& image, const plan::OpDesc& op) {
  if (op.kind != wire::OpCode::matmul || image.scratch_bytes != worker::kCudaGroupedScratchBytes) return {};
  if (norms_rows(image, op) || turns_heads(image, op) || twin_dim(image, op) != 0) return {};
  const Shape shape(image, op);
  if (!shape.known()) return {};
  const bool half = wire::dtype_is_half(image.operands[op.operand_first].dtype);
  const bool varies = half && shape.varies() && shape.params.tile[2] >= wire::kGroupedLeastRows;
  const bool fixed = op.tile[3] == plan::kNone || image.dims[op.tile[3]].op == plan::DimOp::constant;
  TakesGroups takes{shape.grouped() || varies, shape.grouped() && !shape.varies()};
  if (!fixed) return takes;
  takes.columns = wire::product_columns(static_cast<std::uint32_t>(shape.params.tile[3]));
  for (std::uint32_t i = 2; i < op.input_count && i < 34; ++i) {
    const plan::DimId step = image.operands[op.operand_first + i].stride[2];
    const bool still = step != plan::kNone && image.dims[step].op == plan::DimOp::constant && image.dims[step].value == 0;
    if (!still) takes.moves |= 1u << (i - 2);
  }
  const auto operands = std::span(image.operands).subspan(op.operand_first, op.input_count + 1u);
  takes.blocks = operands.size() <= wire::kBlockOperands && (shape.params.tile[2] > wire::kNarrowTile || shape.params.tile[3] > wire::kGroupedTile) &&
                 std::all_of(operands.begin(), operands.end(), [](const plan::OperandDesc& o) { return wire::dtype_is_half(o.dtype); });
  return takes;
}

}  // namespace ccks::codegen

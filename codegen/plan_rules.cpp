// The agreement of wire/op_layout.hpp, kind by kind: tile space, dims, scalars, and which region a tile reads and
// writes.
#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "codegen/plan_angles.hpp"
#include "codegen/plan_code.hpp"
#include "codegen/plan_lower.hpp"
#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen {
namespace {

using spec::OpKind;

/// Tile space = `view`, right-aligned.
void space_of(OpLowering& l, const spec::View& view) {
  const std::size_t lead = 4 - view.dims.size();
  for (std::size_t i = 0; i < 4; ++i) l.out.extent[i] = i < lead ? Expr(1) : view.dims[i - lead].extent;
}

/// `beyond`: inputs at the end that are no operands of the code.
Status compile_code(OpLowering& l, const spec::ElementExpr& expr, std::size_t first_argument, std::size_t beyond = 0) {
  const bool epilogue = first_argument > 0;
  if (epilogue) l.out.dims[wire::kEpilogueDim] = Expr(static_cast<std::int64_t>(first_argument));
  std::vector<wire::Dtype> args;
  if (epilogue) args.push_back(wire::Dtype::f32);  // the accumulator
  for (std::size_t i = first_argument; i + beyond < l.op.inputs.size(); ++i) args.push_back(l.dtype(i));
  auto code = compile_element_expr(expr, args, l.dtype(l.op.inputs.size()), l.rank(l.op.inputs.size()));
  if (!code) return op_error(l.op, code.status().code(), code.status().message());
  if (code->size() > 0xffff) return op_error(l.op, ErrorCode::unsupported, "its expression is too long");
  l.out.code = std::move(*code);
  return {};
}

/// Of an op that may have a twin, whose code stands in front.
Status compile_epilogue(OpLowering& l, const spec::ElementExpr& epilogue) {
  const std::size_t first = epilogue_first(l.op), beyond = l.op.inputs.size() - epilogue_end(l.op);
  std::vector<wire::ExprInstr> code;
  if (const spec::ElementExpr* twin = twin_of(l.op)) {
    CCKS_RETURN_IF_ERROR(compile_code(l, *twin, first, beyond));
    code = std::move(l.out.code);
    l.out.dims[wire::kTwinDim] = Expr(static_cast<std::int64_t>(1 + code.size()));
  }
  CCKS_RETURN_IF_ERROR(compile_code(l, epilogue, first, beyond));
  l.out.code.insert(l.out.code.begin(), code.begin(), code.end());
  return {};
}

Status describe_reduce(OpLowering& l, const spec::ReduceAttrs& a) {
  space_of(l, l.op.inputs[0]);
  const std::size_t rank = l.rank(0), lead = 4 - rank;
  std::int64_t mask = 0;
  Expr depth = 1;
  for (const std::uint32_t axis : a.axes) {
    mask |= std::int64_t{1} << (axis + lead);
    depth = depth * l.out.extent[axis + lead];
    l.out.extent[axis + lead] = 1;
  }
  l.out.dims[0] = Expr(static_cast<std::int64_t>(a.fn));
  l.out.dims[1] = Expr(mask);
  l.question.depth = l.planner.typical_value(depth);
  OperandShape shape;
  std::uint32_t next = 0;
  for (std::size_t i = lead; i < 4; ++i)
    if (a.keepdims || !(mask >> i & 1)) shape[i] = {next++};
  l.shapes[1] = shape;
  return {};
}

/// Tile space of ops that give one result per row of x: x with a last dim of 1.
void rows_of(OpLowering& l) {
  space_of(l, l.op.inputs[0]);
  l.out.extent[3] = 1;
  l.question.depth = l.planner.typical_value(l.dim_back(0, 0));
}

Status describe_argmax(OpLowering& l) {
  rows_of(l);
  if (shares_rows(l.op)) {
    l.out.extent[3] = sharers_of(l.op);
    l.out.dims[0] = columns_of_sharer(l.op);
  }
  OperandShape shape;
  const std::size_t rank = l.rank(1);
  for (std::size_t i = 0; i < rank; ++i) shape[3 - rank + i] = {static_cast<std::uint32_t>(i)};
  l.shapes[1] = shape;
  return {};
}

Status describe_matmul(OpLowering& l, const spec::MatmulAttrs& a) {
  l.question.depth = l.planner.typical_value(l.dim_back(0, 0));
  l.question.packets = lies_in_packets(l.planner.program, l.op);
  if (is_split(l.op)) l.out.extent[0] = chunks_of(l.op);
  if (a.rope) l.out.dims[wire::kRopeDim] = Expr(static_cast<std::int64_t>(table_input(l.op)));
  if (a.norm) {
    l.out.dims[wire::kNormDim] = Expr(static_cast<std::int64_t>(l.op.inputs.size() - 1));
    l.out.scalars[0] = static_cast<float>(a.norm->eps);
  }
  return compile_epilogue(l, a.epilogue);
}

Status set_heads(OpLowering& l, std::int64_t heads) {
  l.granule = floordiv(l.out.extent[3], heads);
  l.question.granule = std::max<std::int64_t>(1, l.planner.typical_value(l.granule));
  l.out.dims[0] = Expr(heads);
  return {};
}

/// Positions that a row may attend to.
Expr context_of(const OpLowering& l, const spec::AttentionAttrs& a) {
  return a.page > 0 ? l.dim(4, 1) * Expr(std::int64_t{a.page}) : l.dim_back(1, 1);
}

Status describe_attention(OpLowering& l, const spec::AttentionAttrs& a) {
  CCKS_RETURN_IF_ERROR(set_heads(l, a.heads));
  l.out.dims[1] = Expr(static_cast<std::int64_t>(a.kv_heads));
  l.out.dims[2] = Expr(a.causal ? 1 : 0);
  l.out.scalars[0] = static_cast<float>(a.scale);
  l.question.depth = l.planner.typical_value(context_of(l, a));
  l.question.group = a.heads / std::max(1u, a.kv_heads);
  l.question.paged = a.page > 0;
  l.out.dims[wire::kPageDim] = Expr(std::int64_t{a.page});
  if (is_split(l.op)) l.out.dims[3] = l.out.extent[0] = chunks_of(l.op);
  return {};
}

Status describe_rope(OpLowering& l, const spec::RopeAttrs& a) {
  CCKS_RETURN_IF_ERROR(set_heads(l, a.heads));
  l.out.dims[1] = a.position;
  l.out.dims[2] = Expr(a.has_positions ? 1 : has_table(l.op) ? 2 : 0);
  l.out.dims[3] = Expr(a.interleaved ? 1 : 0);
  l.out.scalars[0] = static_cast<float>(a.theta);
  if (const auto head = l.granule.as_constant(); head && *head >= 2) {
    const auto bits = std::bit_cast<std::uint64_t>(-std::log(static_cast<double>(static_cast<float>(a.theta))) / static_cast<double>(*head / 2));
    l.out.dims[5] = Expr(std::int64_t{static_cast<std::int32_t>(bits)});
    l.out.dims[7] = Expr(std::int64_t{static_cast<std::int32_t>(bits >> 32)});
  }
  if (a.scaling.original == 0) return {};
  l.out.dims[4] = Expr(a.scaling.original);
  l.out.scalars[1] = static_cast<float>(a.scaling.factor);
  l.out.scalars[2] = static_cast<float>(a.scaling.low);
  l.out.scalars[3] = static_cast<float>(a.scaling.high);
  return {};
}

Status describe_gather(OpLowering& l) {
  const std::size_t table_rank = l.rank(0), index_rank = l.rank(1);
  OperandShape table, index, out;
  table[2] = {0};
  for (std::uint32_t d = 1; d < table_rank; ++d) table[3].push_back(d);
  for (std::uint32_t d = 0; d < index_rank; ++d) {
    index[3].push_back(d);
    out[2].push_back(d);
  }
  for (auto d = static_cast<std::uint32_t>(index_rank); d < l.rank(2); ++d) out[3].push_back(d);
  Expr rows = 1, columns = 1;
  for (const std::uint32_t d : index[3]) rows = rows * l.dim(1, d);
  for (const std::uint32_t d : table[3]) columns = columns * l.dim(0, d);
  l.out.extent = {Expr(1), Expr(1), rows, columns};
  l.shapes[0] = table;
  l.shapes[1] = index;
  l.shapes[2] = out;
  return {};
}

/// Tiles are of rows of x: where they go is known at run time only.
Status describe_scatter(OpLowering& l) {
  OperandShape rows, index;
  rows[2] = {0};
  index[3] = {0};
  Expr columns = 1;
  for (std::uint32_t d = 1; d < l.rank(0); ++d) {
    rows[3].push_back(d);
    columns = columns * l.dim(0, d);
  }
  l.out.extent = {Expr(1), Expr(1), l.dim(0, 0), columns};
  l.shapes[0] = l.shapes[2] = rows;
  l.shapes[1] = index;
  return {};
}

Status describe_conv2d(OpLowering& l, const spec::Conv2dAttrs& a) {
  for (std::size_t i = 0; i < 2; ++i) {
    l.out.dims[i] = Expr(static_cast<std::int64_t>(a.stride[i]));
    l.out.dims[2 + i] = Expr(static_cast<std::int64_t>(a.padding[i]));
    l.out.dims[4 + i] = Expr(static_cast<std::int64_t>(a.dilation[i]));
  }
  l.question.depth = l.planner.typical_value(l.dim(1, 1) * l.dim(1, 2) * l.dim(1, 3));
  return compile_code(l, a.epilogue, 2);
}

/// A route of what a topk has found (plan_split.cpp): each tile counts all pairs and finds places for those of its own tokens, in less time than it takes one worker to do it for all.
bool has_route_tiles(const OpLowering& l) {
  constexpr std::int64_t kMostExperts = 2048;  // whose counts fit scratch twice, beside a tile's pairs (kMostRouteTokens)
  constexpr std::size_t kCount = 4;
  return l.op.inputs.size() == 2 && l.planner.upper_bound(l.dim(kCount, 0)) <= kMostExperts;
}

Status describe_route(OpLowering& l, const spec::RouteAttrs& a) {
  l.out.dims[0] = Expr(static_cast<std::int64_t>(a.k));
  l.out.dims[1] = Expr(a.softmax_over_all ? 1 : 0);
  l.out.dims[2] = Expr(a.renormalize ? 1 : 0);
  l.whole_axis = {true, true, !has_route_tiles(l), true};
  return {};
}

Status describe_expert_matmul(OpLowering& l, const spec::ExpertMatmulAttrs& a) {
  l.out.flags |= wire::kOpDynamic;
  l.out.dims[0] = Expr(static_cast<std::int64_t>(a.top_k));
  l.out.dims[1] = Expr(a.gather ? 1 : 0);
  l.out.dims[2] = l.dim(1, 0);
  l.question.depth = l.planner.typical_value(l.dim(1, 1));
  l.question.experts = l.planner.typical_value(l.dim(1, 0));
  return compile_epilogue(l, a.epilogue);
}

Status describe_norm(OpLowering& l, double eps, bool layer, bool has_bias) {
  l.out.scalars[0] = static_cast<float>(eps);
  if (layer) l.out.dims[0] = Expr(has_bias ? 1 : 0);
  l.whole_axis[3] = true;
  return {};
}

struct Describe {
  OpLowering& l;
  Status operator()(const spec::MapAttrs& a) { return compile_code(l, a.expr, 0); }
  Status operator()(const spec::ReduceAttrs& a) { return describe_reduce(l, a); }
  Status operator()(const spec::SoftmaxAttrs& a) {
    l.out.scalars[0] = static_cast<float>(a.scale);
    l.whole_axis[3] = true;
    return {};
  }
  Status operator()(const spec::RmsnormAttrs& a) { return describe_norm(l, a.eps, false, false); }
  Status operator()(const spec::LayernormAttrs& a) { return describe_norm(l, a.eps, true, a.has_bias); }
  Status operator()(const spec::MatmulAttrs& a) { return describe_matmul(l, a); }
  Status operator()(const spec::AttentionAttrs& a) { return describe_attention(l, a); }
  Status operator()(const spec::RopeAttrs& a) { return describe_rope(l, a); }
  Status operator()(const spec::GatherAttrs&) { return describe_gather(l); }
  Status operator()(const spec::ScatterAttrs&) { return describe_scatter(l); }
  Status operator()(const spec::ArgmaxAttrs&) { return describe_argmax(l); }
  Status operator()(const spec::TopkAttrs& a) {
    rows_of(l);
    l.out.dims[0] = Expr(static_cast<std::int64_t>(a.k));
    return {};
  }
  Status operator()(const spec::Conv2dAttrs& a) { return describe_conv2d(l, a); }
  Status operator()(const spec::RouteAttrs& a) { return describe_route(l, a); }
  Status operator()(const spec::ExpertMatmulAttrs& a) { return describe_expert_matmul(l, a); }
  Status operator()(const spec::CombineAttrs& a) {
    l.out.dims[0] = Expr(static_cast<std::int64_t>(a.top_k));
    l.question.depth = a.top_k;
    return compile_code(l, a.epilogue, spec::fixed_inputs(l.op));
  }
  Status operator()(const spec::ReportAttrs&) {
    l.whole_axis = {true, true, true, true};
    return {};
  }
  Status operator()(const spec::SelectAttrs&) { return {}; }
  Status operator()(const spec::CustomAttrs&) { return {}; }
};

// ---- windows ------------------------------------------------------------------------------------------------------

void reduce_windows(OpLowering& l, const spec::ReduceAttrs& a) {
  for (const std::uint32_t axis : a.axes) l.make_whole(0, axis);
  if (a.keepdims) return;
  std::size_t kept = 0;
  for (std::uint32_t d = 0; d < l.rank(0); ++d) {
    const bool reduced = std::find(a.axes.begin(), a.axes.end(), d) != a.axes.end();
    if (!reduced) l.windows[1][kept++] = l.along(static_cast<int>(4 - l.rank(0) + d));
  }
}

/// Rows of keys and values that a tile of query rows may look at, and the columns of its heads.
void attention_windows(OpLowering& l, const spec::AttentionAttrs& a) {
  // Which positions rows name is not known: k and v are waited for as ever.
  for (std::size_t operand = 3; operand < l.op.inputs.size(); ++operand) l.windows[operand] = {l.along(2), Window{}};
  for (std::size_t operand = l.op.inputs.size() + 1; operand < l.operand_count(); ++operand) l.make_all_whole(operand);
  const std::size_t row = l.rank(0) - 2, last = row + 1;
  const Expr heads_per_tile = floordiv(l.out.tile[3], l.granule);
  const auto tile_heads = heads_per_tile.as_constant();
  const std::int64_t group = a.heads / std::max(1u, a.kv_heads);
  for (const std::size_t operand : {std::size_t{1}, std::size_t{2}}) {
    const Expr context = l.dim(operand, row);
    // Row i sees context up to i + context - n: the tile's last row bounds what the tile sees. The window is kept as
    // long as the context plus a tile, so that it starts before 0 and is clipped there.
    Window causal{2, l.out.tile[2], Expr(0) - l.out.extent[2], context + l.out.tile[2], true};
    l.windows[operand][row] = a.causal && l.planner.options.causal_windows ? causal : Window{};
    l.make_whole(operand, last);
    if (!tile_heads || *tile_heads % group != 0) continue;
    const Expr columns = Expr(*tile_heads / group) * l.granule;
    l.windows[operand][last] = {3, columns, 0, columns, true};
  }
}

void gather_windows(OpLowering& l) {
  const bool simple_index = l.rank(1) == 1, simple_table = l.rank(0) == 2;
  l.make_all_whole(0);
  l.make_all_whole(1);
  l.make_all_whole(2);
  if (simple_table) l.windows[0][1] = l.windows[2].back() = l.along(3);
  if (simple_index) l.windows[1][0] = l.windows[2][0] = l.along(2);
}

void scatter_windows(OpLowering& l) {
  for (const std::size_t operand : {std::size_t{0}, std::size_t{2}}) {
    l.make_all_whole(operand);
    if (l.rank(0) == 2) l.windows[operand][1] = l.along(3);
  }
  l.windows[0][0] = l.windows[1][0] = l.along(2);
}

void conv2d_windows(OpLowering& l, const spec::Conv2dAttrs& a) {
  l.make_whole(0, 1);
  for (std::size_t i = 0; i < 2; ++i) {
    const Expr& tile = l.out.tile[2 + i];
    const Expr taps = (l.dim(1, 2 + i) - 1) * Expr(static_cast<std::int64_t>(a.dilation[i])) + 1;
    const Expr stride = static_cast<std::int64_t>(a.stride[i]);
    l.windows[0][2 + i] = {static_cast<int>(2 + i), tile * stride, Expr(-static_cast<std::int64_t>(a.padding[i])),
                           (tile - 1) * stride + taps, false};
  }
  l.make_all_whole(1);
  l.windows[1][0] = l.along(1);
}

void expert_matmul_windows(OpLowering& l, const spec::ExpertMatmulAttrs& a) {
  // Which rows a row tile holds depends on values: rows are whole everywhere, to all but products of the same route.
  l.make_all_whole(0);
  if (!a.gather) l.make_routed(0, l.rank(0) - 2);
  l.make_all_whole(2);
  l.make_all_whole(3);
  for (std::size_t i = 4; i < l.operand_count(); ++i)
    if (l.rank(i) >= 2) l.make_routed(i, l.rank(i) - 2);
  for (const std::size_t b : {1, 4}) {
    if (b == 4 && !has_twin(l.op)) break;
    l.make_whole(b, 0);
    l.make_whole(b, 1);
  }
}

struct DescribeWindows {
  OpLowering& l;
  void operator()(const spec::ReduceAttrs& a) { reduce_windows(l, a); }
  void operator()(const spec::MatmulAttrs& a) {
    l.make_whole(0, l.rank(0) - 1);
    l.make_whole(1, l.rank(1) - 2);
    if (a.twin) l.make_whole(2, l.rank(2) - 2);
    if (a.rope) l.make_whole(table_input(l.op), 1);
    if (a.norm) l.make_all_whole(l.op.inputs.size() - 1);
    for (std::size_t operand = l.op.inputs.size() + 1; operand < l.operand_count(); ++operand) l.make_all_whole(operand);
  }
  void operator()(const spec::AttentionAttrs& a) { attention_windows(l, a); }
  void operator()(const spec::RopeAttrs& a) {
    if (a.has_positions) l.windows[1].back() = l.along(2);
    if (has_table(l.op)) l.make_whole(1, 1);
  }
  void operator()(const spec::GatherAttrs&) { gather_windows(l); }
  void operator()(const spec::ScatterAttrs&) { scatter_windows(l); }
  void operator()(const spec::ArgmaxAttrs&) {
    l.make_whole(0, l.rank(0) - 1);
    if (shares_rows(l.op)) {
      const Expr columns = columns_of_sharer(l.op);
      l.windows[0].back() = {3, columns, 0, columns, true};
      l.make_all_whole(2);
      l.make_all_whole(3);
    }
    for (std::size_t d = 0; d < l.rank(1); ++d) l.windows[1][d] = l.along(static_cast<int>(3 - l.rank(1) + d));
  }
  void operator()(const spec::TopkAttrs&) {
    for (const std::size_t operand : {std::size_t{0}, std::size_t{1}, std::size_t{2}})
      l.make_whole(operand, l.rank(operand) - 1);
  }
  void operator()(const spec::Conv2dAttrs& a) { conv2d_windows(l, a); }
  void operator()(const spec::ExpertMatmulAttrs& a) { expert_matmul_windows(l, a); }
  void operator()(const spec::CombineAttrs&) {
    l.make_whole(0, l.rank(0) - 2);
    l.make_whole(1, l.rank(1) - 1);
    l.make_whole(2, l.rank(2) - 1);
  }
  void operator()(const spec::RouteAttrs&) { everything(); }
  void operator()(const spec::ReportAttrs&) { everything(); }
  void operator()(const spec::CustomAttrs&) {
    // A body given as code may read anything of its inputs.
    for (std::size_t i = 0; i < l.op.inputs.size(); ++i) l.make_all_whole(i);
  }
  template <class Elementwise>
  void operator()(const Elementwise&) {}

  void everything() {
    for (std::size_t i = 0; i < l.operand_count(); ++i) l.make_all_whole(i);
  }
};

struct Operations {
  const OpLowering& l;
  Expr outputs() const { return product(l.out.extent); }
  Expr code(Expr per_element) const {
    return outputs() * (per_element + Expr(static_cast<std::int64_t>(l.out.code.size())));
  }
  Expr input() const {
    Expr n = 1;
    for (const spec::ViewDim& d : l.view(0).dims) n = n * d.extent;
    return n;
  }
  /// That a row attends to, at most: of a ragged dim those of a sequence.
  Expr positions(const spec::AttentionAttrs& a) const {
    if (a.reach) {
      for (const spec::RaggedDim& r : l.planner.program.ragged)
        if (r.tables[spec::RaggedDim::reach] == l.op.inputs[3].tensor) return Expr(r.length.hi);
    }
    return context_of(l, a);
  }
  Expr operator()(const spec::MapAttrs&) const { return code(0); }
  Expr operator()(const spec::ReduceAttrs&) const { return input(); }
  Expr operator()(const spec::SoftmaxAttrs&) const { return input() * 5; }
  Expr operator()(const spec::RmsnormAttrs&) const { return input() * 4; }
  Expr operator()(const spec::LayernormAttrs&) const { return input() * 7; }
  Expr operator()(const spec::MatmulAttrs& a) const { return code(l.dim_back(0, 0) * (a.twin ? 4 : 2)); }
  Expr operator()(const spec::AttentionAttrs& a) const { return l.out.extent[1] * l.out.extent[2] * l.out.extent[3] * positions(a) * 4; }
  Expr operator()(const spec::RopeAttrs&) const { return outputs() * 3; }
  Expr operator()(const spec::Conv2dAttrs&) const { return code(l.dim(1, 1) * l.dim(1, 2) * l.dim(1, 3) * 2); }
  Expr operator()(const spec::ExpertMatmulAttrs& a) const { return code(l.dim(1, 1) * (a.twin ? 4 : 2)); }
  Expr operator()(const spec::CombineAttrs& a) const {
    return code(Expr(static_cast<std::int64_t>(a.top_k) * 2));
  }
  Expr operator()(const spec::ArgmaxAttrs&) const { return input(); }
  Expr operator()(const spec::TopkAttrs& a) const { return input() * Expr(static_cast<std::int64_t>(a.k)); }
  Expr operator()(const spec::RouteAttrs& a) const { return input() * Expr(static_cast<std::int64_t>(a.k)); }
  template <class Copies>
  Expr operator()(const Copies&) const {
    return 0;
  }
};

}  // namespace

Status describe_op(OpLowering& lowering) {
  space_of(lowering, lowering.op.outputs[0]);
  return std::visit(Describe{lowering}, lowering.op.attrs);
}

Status describe_windows(OpLowering& lowering) {
  std::visit(DescribeWindows{lowering}, lowering.op.attrs);
  return {};
}

Expr count_operations(const OpLowering& lowering) { return std::visit(Operations{lowering}, lowering.op.attrs); }

}  // namespace ccks::codegen

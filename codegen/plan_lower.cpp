// Lowers ops: tile space and tiles, operands as rank-4 windows, access regions in tensor coordinates, cost figures.
#include "codegen/plan_lower.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ccks/wire/task.hpp"
#include "codegen/plan_rewrite.hpp"
#include "codegen/plan_shares.hpp"
#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen {

std::int64_t Planner::typical_value(const Expr& e) const {
  const auto value = e.evaluate(typical);
  return value ? *value : upper_bound(e);
}

bool Planner::proves_equal(const Expr& a, const Expr& b) const {
  return a == b || spec::prove_equal(a, b, symbols()) == spec::Truth::yes;
}

bool Planner::proves_at_most(const Expr& a, const Expr& b) const {
  const auto ca = a.as_constant(), cb = b.as_constant();
  if (ca && cb) return *ca <= *cb;
  return a == b || spec::prove_less_equal(a, b, symbols()) == spec::Truth::yes;
}

Expr product(std::span<const Expr> factors) {
  Expr total = 1;
  for (const Expr& f : factors) total = total * f;
  return total;
}

Status op_error(const spec::Op& op, ErrorCode code, const std::string& what) {
  return {code, fmt::format("{} '{}': {}", spec::op_kind_name(op.kind()), op.name, what)};
}

namespace {

/// A tile for a dim of unknown extent must suit more than one extent: a power of two, times the granule. Bodies clip
/// it.
Expr fit_tile(const Expr& extent, std::int64_t hint, bool whole) {
  const auto constant = extent.as_constant();
  if (whole) return extent;
  if (constant) return Expr(std::clamp<std::int64_t>(hint, 1, std::max<std::int64_t>(1, *constant)));
  return Expr(worker::hints::ceil_pow2(std::max<std::int64_t>(1, hint)));
}

Expr granular_tile(const OpLowering& l, std::int64_t hint) {
  const std::int64_t units = std::max<std::int64_t>(1, hint / std::max<std::int64_t>(1, l.question.granule));
  return Expr(units) * l.granule;
}

/// Tiles of few heads' pairs: as many columns as a product of all columns of heads would have, which are two runs of one head.
worker::TileHint pairs_hint(worker::TileQuestion q) {
  const std::int64_t pairs = q.extent[3];
  q.extent[3] *= q.extent[0] * q.extent[1];
  q.extent[0] = q.extent[1] = 1;
  worker::TileHint hint = worker::tile_hint(q);
  hint.tile[0] = 2;
  hint.tile[3] = static_cast<std::int32_t>(std::min(pairs, worker::hints::ceil_pow2(std::max(1, hint.tile[3] / 2))));
  return hint;
}

/// Tiles of two products: as many columns of both as a product of twice the columns would have. Of experts on a GPU no fewer than half a block of matrix units,
/// which takes both (worker/expert_product.hpp), and whole such halves.
worker::TileHint twins_hint(worker::TileQuestion q) {
  const std::int64_t columns = q.extent[3];
  q.extent[3] *= 2;
  worker::TileHint hint = worker::tile_hint(q);
  const std::int64_t half = hint.tile[3] / 2, of_block = 64;
  const bool in_blocks = q.kind == wire::OpCode::expert_matmul && q.device == worker::DeviceClass::cuda;
  const std::int64_t wanted = in_blocks ? std::max<std::int64_t>(1, worker::hints::ceil_div(half, of_block)) * of_block : worker::hints::ceil_pow2(half);
  hint.tile[3] = static_cast<std::int32_t>(std::min(columns, wanted));
  return hint;
}

std::uint32_t workers_of(const Planner& planner) {
  // A plan made without knowing the machine is cut for an H200's SMs, or for a desktop's cores.
  return planner.options.workers ? planner.options.workers : planner.options.device == "cuda" ? 132 : 8;
}

bool is_plain_product(const spec::Op& op) {
  const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
  return matmul != nullptr && !matmul->norm && !matmul->rope && !matmul->twin;
}

worker::TileHint ask_hints(const OpLowering& l, bool at_upper_bounds) {
  worker::TileQuestion q = l.question;
  q.kind = l.out.kind;
  // Far beyond what changes a hint; keeps products of all extents and the depth within 64 bits.
  std::int64_t room = std::int64_t{1} << 60;
  const auto take = [&](std::int64_t value) {
    const std::int64_t taken = std::clamp<std::int64_t>(value, 1, std::min(room, std::int64_t{1} << 30));
    room /= taken;
    return taken;
  };
  for (std::size_t i = 4; i-- > 0;) {
    const Expr& e = l.out.extent[i];
    q.extent[i] = take(at_upper_bounds ? l.planner.upper_bound(e) : l.planner.typical_value(e));
  }
  if (is_split(l.op) && l.op.kind() == spec::OpKind::matmul) q.extent[0] = 1;  // tiles that share out a depth are each as large as one that does not
  q.depth = take(q.depth);
  q.rows_vary = !l.out.extent[2].is_constant();
  q.dtype = l.dtype(l.op.inputs.size());
  const bool cuda = l.planner.options.device == "cuda";
  q.device = cuda ? worker::DeviceClass::cuda : worker::DeviceClass::host;
  q.roomy = l.planner.scratch_bytes >= worker::kCudaGroupedScratchBytes;
  q.workers = workers_of(l.planner);
  const auto beside = l.planner.widest_products.find(l.planner.typical_value(l.out.extent[2]));
  if (is_plain_product(l.op) && beside != l.planner.widest_products.end()) q.widest = beside->second;
  if (has_twin(l.op)) return twins_hint(q);
  return turns_heads(l.op) ? pairs_hint(q) : worker::tile_hint(q);
}

/// Of whole rows, which vary, as many as there are for each worker of a GPU, `most` at most.
Expr even_tile(const OpLowering& l, const Expr& most) {
  const Expr workers(std::int64_t{workers_of(l.planner)});
  return max(Expr(1), min(most, ceildiv(l.out.extent[2], workers)));
}

/// The same where a tile's beginning costs as much as some of its rows: all workers have as many tiles, as few as rows of at most kMostNormRows make.
Expr norm_tile(const OpLowering& l) {
  constexpr std::int64_t kMostNormRows = 128;
  const std::int64_t workers = workers_of(l.planner);
  const Expr& rows = l.out.extent[2];
  const Expr tiles = max(Expr(1), ceildiv(rows, Expr(workers * kMostNormRows)));
  return max(Expr(1), ceildiv(rows, Expr(workers) * tiles));
}

/// Tokens of a route's tile: as many as there are for each worker, but no fewer than keep it busy while it counts all pairs.
Expr route_tile(const OpLowering& l) {
  constexpr std::int64_t kLeastRouteTokens = 8, kMostRouteTokens = 64;
  return max(Expr(kLeastRouteTokens), min(Expr(kMostRouteTokens), ceildiv(l.out.extent[2], Expr(std::int64_t{workers_of(l.planner)}))));
}

/// Of rows that a GPU's warps take one by one, so that half as many a tile take little more in all.
bool norms(const OpLowering& l) {
  const spec::OpKind kind = l.op.kind();
  return l.planner.options.device == "cuda" && (kind == spec::OpKind::layernorm || kind == spec::OpKind::rmsnorm || kind == spec::OpKind::softmax);
}

bool norms_many(const OpLowering& l) {
  return norms(l) && l.out.extent[0] == Expr(1) && l.out.extent[1] == Expr(1) && l.planner.typical_value(l.out.extent[2]) > std::int64_t{workers_of(l.planner)};
}

/// Fixed dims take the tile that suits the typical sizes. Dims that vary take one that also suits their largest extent, or is half of that where it makes no great difference:
/// at smaller ones it is clipped, while a tile made for one row would cut a thousand rows into a thousand tiles.
void choose_tiles(OpLowering& l) {
  const worker::TileHint largest = ask_hints(l, true);
  worker::TileHint hint = ask_hints(l, false);
  for (std::size_t i = 0; i < 4; ++i)
    if (!l.out.extent[i].is_constant()) hint.tile[i] = std::max(hint.tile[i], norms(l) ? largest.tile[i] / 2 : largest.tile[i]);
  if (l.columns != 0) hint.tile[3] = static_cast<std::int32_t>(l.columns / (turns_heads(l.op) ? 2 : 1));
  if (is_split(l.op) && l.op.kind() == spec::OpKind::attention) hint.tile[2] = std::max<std::int32_t>(hint.tile[2], kSplitRows);
  if (shares_rows(l.op)) hint = {};
  const std::int64_t scaled = std::int64_t{hint.tile[2]} * std::max(1u, l.planner.options.tile_scale);
  hint.tile[2] = static_cast<std::int32_t>(std::min<std::int64_t>(scaled, std::int64_t{1} << 30));
  for (std::size_t i = 0; i < 4; ++i) l.out.tile[i] = fit_tile(l.out.extent[i], hint.tile[i], l.whole_axis[i]);
  if (l.op.kind() == spec::OpKind::attention || l.op.kind() == spec::OpKind::rope)
    l.out.tile[3] = granular_tile(l, hint.tile[3]);
  const bool varies = l.planner.options.device == "cuda" && !l.out.extent[2].is_constant() && l.out.tile[3] == l.out.extent[3];
  if (l.op.kind() == spec::OpKind::route && !l.whole_axis[2]) l.out.tile[2] = route_tile(l);
  if (varies && l.op.kind() == spec::OpKind::combine) l.out.tile[2] = even_tile(l, l.out.tile[2]);
  if (varies && norms_many(l)) l.out.tile[2] = norm_tile(l);
  if (const auto* custom = std::get_if<spec::CustomAttrs>(&l.op.attrs)) {
    const std::size_t n = std::min<std::size_t>(custom->tile.size(), 4);
    for (std::size_t i = 0; i < n; ++i)
      l.out.tile[4 - n + i] = Expr(static_cast<std::int64_t>(std::max(1u, custom->tile[i])));
  }
}

/// Row tiles of all experts together: each expert's last one may be partly empty.
Expr expert_row_tiles(const OpLowering& l) {
  const Expr& rows = l.out.extent[2];
  const Expr& tile = l.out.tile[2];
  return floordiv(rows + min(l.dim(1, 0), rows) * (tile - 1), tile);
}

Status set_grid(OpLowering& l) {
  LoweredOp& out = l.out;
  const bool experts = l.op.kind() == spec::OpKind::expert_matmul;
  double tiles = 1;
  out.has_tiles = true;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool whole = l.whole_axis[i] || out.tile[i] == out.extent[i];
    out.grid[i] = whole ? Expr(1) : ceildiv(out.extent[i], out.tile[i]);
    if (i == 2 && experts) out.grid[i] = expert_row_tiles(l);
    out.single[i] = out.grid[i] == Expr(1) || (!experts && l.planner.proves_at_most(out.extent[i], out.tile[i]));
    if (!whole) out.has_tiles = out.has_tiles && l.planner.proves_at_most(1, out.extent[i]);
    tiles *= static_cast<double>(l.planner.upper_bound(out.grid[i]));
    if (l.planner.upper_bound(out.tile[i]) > std::numeric_limits<std::int32_t>::max())
      return op_error(l.op, ErrorCode::unsupported, "a dim may exceed 2^31 - 1; bound its symbols");
  }
  if (tiles > wire::kMaxTilesPerOp)
    return op_error(l.op, ErrorCode::unsupported,
                    fmt::format("would have up to {:.0f} tiles; at most {} are possible", tiles, wire::kMaxTilesPerOp));
  return {};
}

/// Dims of the tile space from the one that the result's first is inwards; 0: it is none of them.
std::size_t rank_of_rows(const OpLowering& l) {
  switch (l.op.kind()) {
    case spec::OpKind::reduce:
    case spec::OpKind::argmax:
    case spec::OpKind::topk:
      return l.rank(0);
    case spec::OpKind::gather:
      return l.rank(1) == 1 ? 2 : 0;
    default:
      return l.rank(l.op.inputs.size());
  }
}

/// Tiles of rows behind the count need not run, where they are the op's last ones. Where tiles share out something else they all run.
void count_rows(OpLowering& l) {
  const spec::View& rows = l.op.outputs[0];
  const std::size_t rank = rank_of_rows(l);
  if (rows.dims.empty() || rows.dims[0].counted == spec::kNone || rank == 0 || is_split(l.op) || shares_rows(l.op)) return;
  for (std::size_t axis = 0; axis + rank < 4; ++axis)
    if (!(l.out.grid[axis] == Expr(1))) return;
  l.out.flags |= wire::kOpDynamic;
  l.out.counted_rank = static_cast<std::uint8_t>(rank);
}

void default_windows(OpLowering& l) {
  l.windows.resize(l.operand_count());
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    const int lead = 4 - static_cast<int>(l.rank(i));
    l.windows[i].clear();
    for (int d = lead; d < 4; ++d) l.windows[i].push_back(l.along(d));
  }
}

// ---- operands -----------------------------------------------------------------------------------------------------

std::vector<Expr> row_major_strides(const std::vector<Expr>& shape) {
  std::vector<Expr> strides(shape.size(), Expr(1));
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

OperandShape natural_shape(std::size_t rank) {
  OperandShape shape;
  for (std::size_t d = 0; d < rank; ++d) shape[4 - rank + d] = {static_cast<std::uint32_t>(d)};
  return shape;
}

Expr view_stride(const spec::ViewDim& d, const std::vector<Expr>& base) {
  return d.base_dim == spec::kNone ? Expr(0) : base[d.base_dim] * Expr(d.step);
}

/// One dim out of several view dims: each must lie gapless in the one outside it.
Status flatten(OpLowering& l, const spec::View& view, const std::vector<Expr>& base,
               const std::vector<std::uint32_t>& group, Expr& dim, Expr& stride) {
  dim = 1;
  stride = 0;
  for (std::size_t i = group.size(); i-- > 0;) {
    const spec::ViewDim& d = view.dims[group[i]];
    if (d.extent == Expr(1)) continue;
    const Expr s = view_stride(d, base);
    if (dim == Expr(1)) {
      stride = s;
    } else if (!l.planner.proves_equal(s, stride * dim)) {
      return op_error(l.op, ErrorCode::unsupported,
                      "needs an operand whose leading dims lie without gaps; copy it with a map first");
    }
    dim = dim * d.extent;
  }
  return {};
}

Status resolve_view(OpLowering& l, std::size_t index, LoweredOperand& out) {
  const spec::View& view = l.view(index);
  const spec::Tensor& tensor = l.planner.program.tensor(view.tensor);
  const std::vector<Expr> base = row_major_strides(tensor.shape);
  const OperandShape shape = l.shapes[index] ? *l.shapes[index] : natural_shape(view.dims.size());
  for (std::size_t i = 0; i < 4; ++i) CCKS_RETURN_IF_ERROR(flatten(l, view, base, shape[i], out.dim[i], out.stride[i]));
  std::vector<bool> covered(tensor.shape.size(), false);
  out.offset = 0;
  for (const spec::ViewDim& d : view.dims) {
    if (d.base_dim == spec::kNone) continue;
    covered[d.base_dim] = true;
    out.offset = out.offset + d.offset * base[d.base_dim];
  }
  for (std::size_t b = 0; b < covered.size(); ++b)
    if (!covered[b]) out.offset = out.offset + view.fixed[b] * base[b];
  for (std::size_t i = 0; i < 4; ++i)
    if (l.planner.upper_bound(out.dim[i]) > std::numeric_limits<std::int32_t>::max())
      return op_error(l.op, ErrorCode::unsupported,
                      fmt::format("a dim of '{}' may exceed 2^31 - 1; bound its symbols", tensor.name));
  return {};
}

bool is_contiguous(const Planner& planner, const LoweredOperand& o) {
  Expr next = 1;
  for (std::size_t i = 4; i-- > 0;) {
    if (o.dim[i] == Expr(1)) continue;
    if (!planner.proves_equal(o.stride[i], next)) return false;
    next = next * o.dim[i];
  }
  return true;
}

/// Composes a window on a view dim with the view.
AccessDim compose(const OpLowering& l, const spec::ViewDim& d, const Window& w) {
  AccessDim a;
  const Expr step = d.step;
  a.view_step = d.step;
  a.first = d.offset;
  a.end = d.offset + step * (d.extent - 1) + 1;
  a.gapless = w.gapless;
  a.routed = w.routed;
  if (w.axis < 0 || l.out.single[static_cast<std::size_t>(w.axis)]) {
    a.offset = a.first;
    a.length = a.end - a.first;
    return a;
  }
  a.axis = w.axis;
  a.step = step * w.step;
  a.offset = d.offset + step * w.offset;
  a.length = step * (w.length - 1) + 1;
  return a;
}

/// View dims that share a dim of the tensor, as heads, halves and pairs do: the windows of the outermost, each with all of the others.
AccessDim compose_shared(const OpLowering& l, const spec::View& view, std::size_t index, std::uint32_t base) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < view.dims.size(); ++d)
    if (view.dims[d].base_dim == base) dims.push_back(d);
  std::stable_sort(dims.begin(), dims.end(), [&](std::size_t a, std::size_t b) { return view.dims[a].step > view.dims[b].step; });
  AccessDim a = compose(l, view.dims[dims[0]], l.windows[index][dims[0]]);
  bool dense = true;
  for (std::size_t i = 1; i < dims.size(); ++i) {
    const spec::ViewDim& inner = view.dims[dims[i]];
    const Expr reach = Expr(inner.step) * (inner.extent - 1);
    dense = dense && l.planner.proves_equal(Expr(view.dims[dims[i - 1]].step), Expr(inner.step) * inner.extent);
    a.offset = a.offset + inner.offset;
    a.first = a.first + inner.offset;
    a.end = a.end + inner.offset + reach;
    a.length = a.length + reach;
  }
  if (dims.size() == 1) return a;
  a.gapless = a.gapless && dense && view.dims[dims.back()].step == 1;
  a.view_step = 1;
  a.routed = false;
  return a;
}

std::vector<AccessDim> access_of(const OpLowering& l, std::size_t index) {
  const spec::View& view = l.view(index);
  std::vector<AccessDim> access(l.planner.program.tensor(view.tensor).shape.size());
  for (std::size_t b = 0; b < access.size(); ++b) {
    access[b].offset = access[b].first = view.fixed[b];
    access[b].length = 1;
    access[b].end = view.fixed[b] + 1;
  }
  for (const spec::ViewDim& d : view.dims)
    if (d.base_dim != spec::kNone) access[d.base_dim] = compose_shared(l, view, index, d.base_dim);
  return access;
}

Status lower_operand(OpLowering& l, std::size_t index, LoweredOperand& out) {
  const spec::Tensor& tensor = l.planner.program.tensor(l.view(index).tensor);
  out.tensor = l.view(index).tensor;
  out.root = tensor.alias_of == spec::kNone ? out.tensor : tensor.alias_of;
  out.dtype = tensor.dtype;
  out.write = index >= l.op.inputs.size();
  out.rank = static_cast<std::uint8_t>(l.rank(index));
  CCKS_RETURN_IF_ERROR(resolve_view(l, index, out));
  if (is_contiguous(l.planner, out)) out.flags |= wire::kOperandContiguous;
  const spec::TensorKind kind = l.planner.program.tensor(out.root).kind;
  if (kind == spec::TensorKind::weight || kind == spec::TensorKind::input) out.flags |= wire::kOperandStreamed;
  out.access = access_of(l, index);
  return {};
}

// ---- costs --------------------------------------------------------------------------------------------------------

Expr element_count(const spec::View& view) {
  Expr n = 1;
  for (const spec::ViewDim& d : view.dims)
    if (d.base_dim != spec::kNone) n = n * d.extent;
  return n;
}

/// Bytes of each distinct element once; of a gather's table and a scatter's result only the rows taken, of pools the pages of each row, of experts only those
/// that can be chosen.
Expr operand_bytes(const OpLowering& l, std::size_t index) {
  const Expr size = static_cast<std::int64_t>(wire::dtype_bytes(l.dtype(index)));
  if ((is_split(l.op) || shares_rows(l.op)) && index > l.op.inputs.size()) return 0;  // stays in the caches
  const std::size_t rows_of = l.op.kind() == spec::OpKind::gather ? 0 : 2;
  if ((l.op.kind() == spec::OpKind::gather || l.op.kind() == spec::OpKind::scatter) && index == rows_of) return l.out.extent[2] * l.out.extent[3] * size;
  if (const auto* a = std::get_if<spec::AttentionAttrs>(&l.op.attrs); a && a->page > 0 && (index == 1 || index == 2))
    return min(l.dim(index, 0), l.out.extent[2] * l.dim(4, 1) * Expr(std::int64_t{a->page})) * l.dim(index, 1) * size;
  if (l.op.kind() == spec::OpKind::expert_matmul && (index == 1 || is_twin_operand(l.op, index)))
    return min(l.dim(1, 0), l.out.extent[2]) * l.dim(1, 1) * l.dim(1, 2) * size;
  return element_count(l.view(index)) * size;
}

/// columns: of a tile of a product, as even_shares has it; 0: as suits it.
Status lower_op(Planner& planner, OpIndex index, std::int64_t columns = 0) {
  const spec::Op& op = planner.program.ops[index];
  LoweredOp& out = planner.ops[index] = {};
  OpLowering l{planner, op, out};
  l.columns = columns;
  l.shapes.resize(l.operand_count());
  out.spec_op = index;
  out.kind = static_cast<wire::OpCode>(op.kind());
  out.guarded = op.condition != spec::kNone;
  out.inputs = static_cast<std::uint16_t>(op.inputs.size());
  out.outputs = static_cast<std::uint16_t>(op.outputs.size());
  CCKS_RETURN_IF_ERROR(describe_op(l));
  choose_tiles(l);
  CCKS_RETURN_IF_ERROR(set_grid(l));
  count_rows(l);
  default_windows(l);
  CCKS_RETURN_IF_ERROR(describe_windows(l));
  out.operands.resize(l.operand_count());
  for (std::size_t i = 0; i < l.operand_count(); ++i) {
    CCKS_RETURN_IF_ERROR(lower_operand(l, i, out.operands[i]));
    Expr& bytes = i < op.inputs.size() ? out.bytes_read : out.bytes_written;
    bytes = bytes + operand_bytes(l, i);
  }
  out.operations = count_operations(l);
  return {};
}

/// Of a worker. Products of 16-bit floats want more than a block has anyway, and then there is no room for a ring of weights: those of experts, which read more than all others of
/// such a program, and those of many rows only where the typical run has as many.
std::uint32_t wanted_scratch(const Planner& planner) {
  if (planner.options.device != "cuda") return worker::kHostScratchBytes;
  std::uint32_t bytes = worker::kCudaScratchBytes;
  for (const spec::Op& op : planner.program.ops) {
    if (op.inputs.empty() || wire::dtype_bytes(planner.program.tensor(op.inputs[0].tensor).dtype) != 2) continue;
    if (op.kind() == spec::OpKind::expert_matmul) bytes = std::max(bytes, worker::kCudaGroupedScratchBytes);
    if (op.kind() == spec::OpKind::matmul && takes_groups(planner.program, op)) bytes = std::max(bytes, worker::kCudaGroupedScratchBytes);
  }
  return bytes;
}

void find_widest_products(Planner& planner) {
  planner.widest_products.clear();
  for (const spec::Op& op : planner.program.ops) {
    if (!is_plain_product(op) || !takes_groups(planner.program, op)) continue;
    const auto& rows = op.inputs[0].dims;
    std::int64_t& widest = planner.widest_products[planner.typical_value(rows[rows.size() - 2].extent)];
    widest = std::max(widest, planner.typical_value(op.inputs[1].dims.back().extent));
  }
}

}  // namespace

bool lies_in_packets(const spec::Program& program, const spec::Op& matmul) {
  const auto lies_along = [&](const spec::View& view, std::size_t back) {
    const spec::Tensor& tensor = program.tensor(view.tensor);
    const spec::ViewDim& dim = view.dims[view.dims.size() - back];
    return wire::dtype_is_half(tensor.dtype) && dim.base_dim + 1 == tensor.shape.size() && dim.step == 1;
  };
  return lies_along(matmul.inputs[0], 1) && lies_along(matmul.inputs[1], 2);
}

bool takes_groups(const spec::Program& program, const spec::Op& matmul) {
  const auto& a = matmul.inputs[0].dims;
  worker::TileQuestion q;
  q.roomy = true;
  q.packets = lies_in_packets(program, matmul);
  q.dtype = program.tensor(matmul.outputs[0].tensor).dtype;
  q.depth = typical_value(program, a.back().extent);
  q.extent[2] = typical_value(program, a[a.size() - 2].extent);
  if (a.size() > 2) q.extent[1] = typical_value(program, a[a.size() - 3].extent);
  return worker::hints::takes_groups(q);
}

Status lower_ops(Planner& planner) {
  planner.scratch_bytes = wanted_scratch(planner);
  find_widest_products(planner);
  if (planner.program.ops.size() >= wire::kMaxOps)
    return {ErrorCode::unsupported, fmt::format("the program has {} ops; at most {} are possible",
                                                planner.program.ops.size(), wire::kMaxOps - 1)};
  planner.ops.resize(planner.program.ops.size());
  for (OpIndex i = 0; i < planner.ops.size(); ++i) CCKS_RETURN_IF_ERROR(lower_op(planner, i));
  const std::vector<std::int64_t> columns = even_shares(planner);
  for (OpIndex i = 0; i < planner.ops.size(); ++i)
    if (columns[i] != 0) CCKS_RETURN_IF_ERROR(lower_op(planner, i, columns[i]));
  return {};
}

}  // namespace ccks::codegen

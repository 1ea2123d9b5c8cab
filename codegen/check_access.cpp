// check_access: which elements of its operands a block of tiles reads and writes, from what each op computes.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/check_model.hpp"
#include "codegen/plan_angles.hpp"
#include "codegen/plan_split.hpp"
#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen::check {
namespace {

/// Indices of the tile space that a block of tiles covers.
Window tile_window(const OpNow& op, const TileRange& range) {
  Window w;
  for (std::size_t a = 0; a < 4; ++a) {
    w.lo[a] = std::min(range.lo[a] * op.tile[a], op.space[a]);
    w.hi[a] = std::min(range.hi[a] * op.tile[a], op.space[a]);
  }
  return w;
}

Window whole(const Operand& o) {
  Window w;
  w.hi = o.dim;
  return w;
}

/// Clips to the operand; a dim of extent 1 is read by every tile.
Window clip(Window w, const Operand& o) {
  for (std::size_t a = 0; a < 4; ++a) {
    if (o.dim[a] == 1) {
      const bool any = w.lo[a] < w.hi[a];
      w.lo[a] = 0;
      w.hi[a] = any ? 1 : 0;
    }
    w.lo[a] = std::clamp<std::int64_t>(w.lo[a], 0, o.dim[a]);
    w.hi[a] = std::clamp<std::int64_t>(w.hi[a], 0, o.dim[a]);
  }
  return w;
}

/// Makes dim `a` of `w` whole.
void widen(Window& w, const Operand& o, std::size_t a) {
  w.lo[a] = 0;
  w.hi[a] = o.dim[a];
}

Window attention_window(const spec::AttentionAttrs& attrs, std::span<const Operand> operands, std::size_t k,
                        Window out) {
  const Operand& o = operands[k];
  const std::size_t result = 3u + (attrs.reach ? 1u : 0u) + (attrs.page > 0 ? 1u : 0u);
  if (k > result) return whole(o);  // of a split one: where its tiles meet
  if (k >= 3 && k < result) {  // what each row has of its own: limits, pages
    Window w = out;
    widen(w, o, 3);
    return w;
  }
  if (k != 1 && k != 2) return out;
  const std::int64_t head_dim = std::max<std::int64_t>(1, operands[0].dim[3] / attrs.heads);
  const std::int64_t group = std::max<std::uint32_t>(1, attrs.heads / attrs.kv_heads);
  const std::int64_t rows = operands[0].dim[2], context = o.dim[2];
  Window w = out;
  w.lo[2] = 0;
  w.hi[2] = attrs.causal ? std::clamp<std::int64_t>(out.hi[2] + context - rows, 0, context) : context;
  w.lo[3] = out.lo[3] / head_dim / group * head_dim;
  w.hi[3] = ((out.hi[3] - 1) / head_dim / group + 1) * head_dim;
  return w;
}

Window conv_window(const spec::Conv2dAttrs& attrs, std::span<const Operand> operands, std::size_t k,
                   const Window& out) {
  const Operand& o = operands[k];
  Window w = out;
  if (k == 1) {  // weight[oc, c, kh, kw]
    w = whole(o);
    w.lo[0] = out.lo[1];
    w.hi[0] = out.hi[1];
  } else if (k == 0) {
    widen(w, o, 1);
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t reach = (operands[1].dim[2 + i] - 1) * attrs.dilation[i];
      w.lo[2 + i] = out.lo[2 + i] * attrs.stride[i] - attrs.padding[i];
      w.hi[2 + i] = (out.hi[2 + i] - 1) * attrs.stride[i] - attrs.padding[i] + reach + 1;
    }
  }
  return w;
}

/// Where a routed row lies is known only at run time: any tile of a column may touch any row. A twin's b, input 4, is as b: whole but for columns.
Window expert_window(std::span<const Operand> operands, std::size_t k, std::size_t inputs, Window out) {
  const Operand& o = operands[k];
  Window w = whole(o);
  if (k == 1 || k >= 4 || k >= inputs) {  // b, epilogue operands, out: the tile's columns
    w.lo[3] = out.lo[3];
    w.hi[3] = out.hi[3];
  }
  return w;
}

Window gather_window(const Operand& o, std::size_t k, const Window& out) {
  if (k == 2) return out;
  Window w = whole(o);
  const std::size_t from = k == 0 ? 3 : 2;  // table: columns of the tile; index: its rows
  w.lo[3] = out.lo[from];
  w.hi[3] = out.hi[from];
  return w;
}

/// Any row may be written by any tile. Tiles of one scatter that meet in a row are in no order, and need none.
Window scatter_window(const Operand& o, std::size_t k, Window out) {
  if (k == 2) widen(out, o, 2);
  if (k != 1) return out;
  Window w = whole(o);
  w.lo[3] = out.lo[2];
  w.hi[3] = out.hi[2];
  return w;
}

Window combine_window(const Operand& o, std::size_t k, Window out) {
  if (k == 0) widen(out, o, 2);
  if (k == 1 || k == 2) widen(out, o, 3);
  return out;
}

Window reduce_window(const spec::ReduceAttrs& attrs, const spec::Op& op, const Operand& o, std::size_t k, Window out) {
  if (k != 0) return out;
  const std::size_t shift = 4 - op.inputs[0].dims.size();
  for (const std::uint32_t axis : attrs.axes) widen(out, o, shift + axis);
  return out;
}

Window matmul_window(const spec::Op& op, const Operand& o, std::size_t k, Window out) {
  if (k > op.inputs.size()) return whole(o);  // of a split one: where its tiles meet
  if (turns_heads(op) && k == table_input(op)) widen(out, o, 3);
  if (std::get<spec::MatmulAttrs>(op.attrs).norm && k + 1 == op.inputs.size()) return whole(o);
  if (k == 0) widen(out, o, 3);
  if (k == 1 || (k == 2 && has_twin(op))) widen(out, o, 2);
  return out;
}

Window rope_window(const spec::Op& rope, const Operand& o, std::size_t k, Window out) {
  if (k == 1 && k < rope.inputs.size()) {  // positions [1, 1, 1, n], or a table [1, 1, n, head dim]
    Window w;
    if (has_table(rope)) {
      w.hi = {1, 1, out.hi[2], o.dim[3]};
      w.lo[2] = out.lo[2];
      return w;
    }
    w.hi = {1, 1, 1, out.hi[2]};
    w.lo[3] = out.lo[2];
    return w;
  }
  return out;
}

/// Tiles share out rows of x; the other outputs are where they meet.
Window argmax_window(const spec::Op& op, const Model& m, const Operand& o, std::size_t k, Window out) {
  if (k > 1) return whole(o);
  const std::int64_t columns = columns_of_sharer(op).evaluate(m.symbols).value_or(0);
  out.lo[3] = k == 0 ? out.lo[3] * columns : 0;
  out.hi[3] = k == 0 ? out.hi[3] * columns : 1;
  return out;
}

Window window_before_clip(const Model& m, std::size_t op, std::size_t k, const Window& out) {
  const spec::Op& s = m.spec_op(op);
  const std::span<const Operand> operands = m.operands_of(op);
  const Operand& o = operands[k];
  Window w = out;
  switch (s.kind()) {
    case spec::OpKind::map:
    case spec::OpKind::select:
      return w;
    case spec::OpKind::reduce:
      return reduce_window(std::get<spec::ReduceAttrs>(s.attrs), s, o, k, w);
    case spec::OpKind::softmax:
    case spec::OpKind::rmsnorm:
    case spec::OpKind::layernorm:
      widen(w, o, 3);
      return w;
    case spec::OpKind::argmax:
      if (shares_rows(s)) return argmax_window(s, m, o, k, w);
      widen(w, o, 3);
      return w;
    case spec::OpKind::topk:
      widen(w, o, 3);
      return w;
    case spec::OpKind::matmul:
      return matmul_window(s, o, k, w);
    case spec::OpKind::attention:
      return attention_window(std::get<spec::AttentionAttrs>(s.attrs), operands, k, w);
    case spec::OpKind::rope:
      return rope_window(s, o, k, w);
    case spec::OpKind::gather:
      return gather_window(o, k, w);
    case spec::OpKind::scatter:
      return scatter_window(o, k, w);
    case spec::OpKind::conv2d:
      return conv_window(std::get<spec::Conv2dAttrs>(s.attrs), operands, k, w);
    case spec::OpKind::expert_matmul:
      return expert_window(operands, k, s.inputs.size(), w);
    case spec::OpKind::combine:
      return combine_window(o, k, w);
    case spec::OpKind::custom:
      return k < s.inputs.size() ? whole(o) : w;  // its code may read anything
    case spec::OpKind::route:
    case spec::OpKind::report:
      return whole(o);
  }
  return whole(o);
}

void add_guards(const Model& m, std::uint64_t first, std::uint64_t count, std::vector<Access>& out) {
  for (std::uint64_t g = first; g < first + count && g < m.plan->guards.size(); ++g)
    out.push_back({Access::kGuard, false, static_cast<std::int64_t>(m.plan->guards[g].offset), spec::kNone});
}

}  // namespace

std::vector<Access> accesses_of(const Model& m, std::size_t op) {
  const plan::OpDesc& d = *m.ops[op].desc;
  std::vector<Access> out;
  for (std::uint32_t k = 0; k < std::uint32_t{d.input_count} + d.output_count; ++k)
    out.push_back({k, k >= d.input_count, 0, spec::kNone});
  add_guards(m, d.guard_first, d.guard_count, out);
  const auto* select = std::get_if<spec::SelectAttrs>(&m.spec_op(op).attrs);
  if (!select) return out;
  out[0].condition = select->condition;  // `then` is looked at only where it was made
  const auto& dims = m.ops[op].dims;
  if (dims[0] >= 0 && dims[1] >= 0)
    add_guards(m, static_cast<std::uint64_t>(dims[0]), static_cast<std::uint64_t>(dims[1]), out);
  return out;
}

Window window_of(const Model& m, std::size_t op, std::size_t operand, const TileRange& range) {
  const Window out = tile_window(m.ops[op], range);
  if (out.empty() && m.spec_op(op).kind() != spec::OpKind::expert_matmul) return {};
  return clip(window_before_clip(m, op, operand, out), m.operands_of(op)[operand]);
}

Box box_of(const Model& m, std::size_t op, const Access& access, const TileRange& range, bool& empty) {
  empty = false;
  if (access.operand == Access::kGuard) return Box(wire::Space::arena, access.guard_offset, 4);
  const Window window = window_of(m, op, access.operand, range);
  empty = window.empty();
  return empty ? Box() : Box(m.operands_of(op)[access.operand], window);
}

TileRange all_tiles(const OpNow& op) {
  TileRange range;
  range.hi = op.grid;
  return range;
}

unsigned moving_axes(const Model& m, std::size_t op, const Access& access) {
  if (access.operand == Access::kGuard) return 0;
  const OpNow& now = m.ops[op];
  unsigned axes = 0;
  const TileRange all = all_tiles(now);
  const Window everything = window_of(m, op, access.operand, all);
  for (std::size_t a = 0; a < 4; ++a) {
    TileRange one = all;
    one.hi[a] = 1;
    if (now.grid[a] <= 1) continue;
    TileRange last = all;
    last.lo[a] = now.grid[a] - 1;
    const Window first_window = window_of(m, op, access.operand, one),
                 last_window = window_of(m, op, access.operand, last);
    const bool still = first_window.lo == everything.lo && first_window.hi == everything.hi &&
                       last_window.lo == everything.lo && last_window.hi == everything.hi;
    if (!still) axes |= 1u << a;
  }
  return axes;
}

bool same_row_tiles(const Model& m, std::size_t earlier, std::size_t later) {
  for (const std::size_t op : {earlier, later})
    if (m.spec_op(op).kind() != spec::OpKind::expert_matmul) return false;
  const OpNow &a = m.ops[earlier], &b = m.ops[later];
  const Operand &x = m.operands_of(earlier)[3], &y = m.operands_of(later)[3];
  const auto experts = [&](std::size_t op) { return std::min(m.ops[op].dims[2], m.operands_of(op)[1].dim[1]); };
  if (a.tile[2] != b.tile[2] || a.grid[2] != b.grid[2] || experts(earlier) != experts(later)) return false;
  if (x.space != y.space || x.dtype != y.dtype || x.offset != y.offset || x.dim != y.dim || x.stride != y.stride) return false;
  if (whole(x).empty()) return false;
  const Box counts(x, whole(x));
  for (std::size_t op = earlier; op <= later; ++op)
    for (const Access& access : accesses_of(m, op)) {
      if (!access.write || !m.ops[op].exists()) continue;
      bool empty = false;
      const Box written = box_of(m, op, access, all_tiles(m.ops[op]), empty);
      if (!empty && overlap(written, counts)) return false;
    }
  return true;
}

bool routed_alike(const Model& m, std::size_t later, std::uint32_t mine, std::size_t earlier, std::uint32_t theirs) {
  const auto routed = [&](std::size_t op, std::uint32_t k) {
    const auto* attrs = std::get_if<spec::ExpertMatmulAttrs>(&m.spec_op(op).attrs);
    return attrs != nullptr && k < m.operands_of(op).size() && (k >= (attrs->twin ? 5u : 4u) || (k == 0 && !attrs->gather));
  };
  if (!routed(later, mine) || !routed(earlier, theirs) || !same_row_tiles(m, earlier, later)) return false;
  const Operand &x = m.operands_of(later)[mine], &y = m.operands_of(earlier)[theirs];
  const std::int64_t rows = m.ops[earlier].space[2];
  const auto plain = [&](const Operand& o) {  // a row's bytes are its own
    return o.dim[0] == 1 && o.dim[1] == 1 && o.dim[2] == rows && o.stride[3] >= 0 && o.stride[2] > (o.dim[3] - 1) * o.stride[3];
  };
  return rows == m.ops[later].space[2] && plain(x) && plain(y) && x.space == y.space && x.dtype == y.dtype && x.offset == y.offset && x.stride == y.stride;
}

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Most row tiles that a run can have: every expert with a row may end in a partial tile.
std::int64_t row_tiles_needed(std::int64_t rows, std::int64_t experts, std::int64_t tile) {
  const std::int64_t used = std::min(rows, experts);
  return used + (rows - used) / tile;
}

bool covers(const Model& m, std::size_t op) {
  const OpNow& now = m.ops[op];
  const spec::OpKind kind = m.spec_op(op).kind();
  if (kind == spec::OpKind::report || (kind == spec::OpKind::route && m.spec_op(op).inputs.size() != 2)) return now.tiles == 1;
  const bool nothing = std::any_of(now.space.begin(), now.space.end(), [](std::int64_t e) { return e == 0; });
  for (std::size_t a = 0; a < 4; ++a) {
    if (kind == spec::OpKind::expert_matmul && a == 2) {
      if (!nothing && now.grid[2] < row_tiles_needed(now.space[2], m.operands_of(op)[1].dim[1], now.tile[2]))
        return false;
    } else if (nothing ? (now.grid[a] - 1) * now.tile[a] >= std::max<std::int64_t>(now.space[a], 1)
                       : now.grid[a] != ceil_div(now.space[a], now.tile[a])) {
      return false;
    }
  }
  return true;
}

/// Rows that must not be cut, and heads that must stay whole.
bool whole_where_needed(const Model& m, std::size_t op) {
  const OpNow& now = m.ops[op];
  const spec::Op& s = m.spec_op(op);
  if (turns_heads(s) && now.tile[0] != 2) return false;  // a tile has both of a pair
  if (now.grid[3] <= 1) return true;
  std::int64_t heads = 0;
  if (s.kind() == spec::OpKind::softmax || s.kind() == spec::OpKind::rmsnorm || s.kind() == spec::OpKind::layernorm)
    return false;
  if (const auto* attention = std::get_if<spec::AttentionAttrs>(&s.attrs)) heads = attention->heads;
  if (const auto* rope = std::get_if<spec::RopeAttrs>(&s.attrs)) heads = rope->heads;
  return heads == 0 || now.tile[3] % std::max<std::int64_t>(1, now.space[3] / heads) == 0;
}

}  // namespace

void check_coverage(const Model& m, Faults& faults) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const OpNow& now = m.ops[op];
    if (!covers(m, op))
      faults.add(
          "tile.cover",
          fmt::format("op '{}': a grid of [{} {} {} {}] tiles of [{} {} {} {}] does not cover [{} {} {} {}] once",
                      m.name(op), now.grid[0], now.grid[1], now.grid[2], now.grid[3], now.tile[0], now.tile[1],
                      now.tile[2], now.tile[3], now.space[0], now.space[1], now.space[2], now.space[3]));
    if (!whole_where_needed(m, op))
      faults.add("tile.whole",
                 fmt::format("op '{}': tiles of {} cut rows or heads that must stay whole", m.name(op), now.tile[3]));
  }
}

}  // namespace ccks::codegen::check

// Derives which op must wait for which, and for what part of it, from the regions their tiles read and write.
//
// For each op in text order and each earlier op that touched the same storage, unless both only read or their regions
// are provably apart. A later write that covers an earlier access stands for it: whoever waits for the write's tiles
// waits, through them, for the tiles of that access which touched the same elements.
#include <algorithm>
#include <optional>
#include <unordered_map>

#include "codegen/plan_internal.hpp"

namespace ccks::codegen {
namespace {

struct Touch {
  OpIndex op;
  const LoweredOperand* operand;
};

/// Dims of two tensors over the same storage that index it alike: all of them for one tensor; for a reshape the equal
/// leading dims, not counting dims of one.
struct DimPairs {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  bool all = true;  // every dim of more than one index is paired
};

DimPairs pair_dims(const Planner& planner, TensorIndex a, TensorIndex b) {
  DimPairs out;
  const auto& sa = planner.program.tensors[a].shape;
  const auto& sb = planner.program.tensors[b].shape;
  if (a == b) {
    for (std::size_t d = 0; d < sa.size(); ++d) out.pairs.push_back({d, d});
    return out;
  }
  std::size_t i = 0, j = 0;
  while (true) {
    while (i < sa.size() && sa[i] == Expr(1)) ++i;
    while (j < sb.size() && sb[j] == Expr(1)) ++j;
    if (i == sa.size() || j == sb.size() || !planner.proves_equal(sa[i], sb[j])) break;
    out.pairs.push_back({i++, j++});
  }
  out.all = i == sa.size() && j == sb.size();
  return out;
}

bool apart(const Planner& planner, const AccessDim& a, const AccessDim& b) {
  if (planner.proves_at_most(a.end, b.first) || planner.proves_at_most(b.end, a.first)) return true;
  if (a.view_step == 1 || a.view_step != b.view_step) return false;
  // Interleaved windows: the same stride, never on the same residue.
  const auto distance = (a.first - b.first).as_constant();
  return distance && *distance % a.view_step != 0;
}

bool disjoint(const Planner& planner, const Touch& a, const Touch& b) {
  for (const auto& [i, j] : pair_dims(planner, a.operand->tensor, b.operand->tensor).pairs)
    if (apart(planner, a.operand->access[i], b.operand->access[j])) return true;
  return false;
}

/// Every index of the dim, for a dim that the other side does not share.
bool spans_tensor(const Planner& planner, const LoweredOperand& o, std::size_t d) {
  const AccessDim& a = o.access[d];
  return a.view_step == 1 && a.gapless && planner.proves_at_most(a.first, 0) &&
         planner.proves_at_most(planner.program.tensors[o.tensor].shape[d], a.end);
}

/// Over all its tiles, `outer` touches everything that `inner` touches.
bool covers(const Planner& planner, const LoweredOperand& outer, const LoweredOperand& inner) {
  const DimPairs dims = pair_dims(planner, outer.tensor, inner.tensor);
  std::vector<bool> paired(outer.access.size(), false);
  for (const auto& [i, j] : dims.pairs) {
    paired[i] = true;
    const AccessDim& a = outer.access[i];
    const AccessDim& b = inner.access[j];
    if (a.view_step != 1 || !a.gapless) return false;
    if (!planner.proves_at_most(a.first, b.first) || !planner.proves_at_most(b.end, a.end)) return false;
  }
  for (std::size_t d = 0; d < paired.size(); ++d)
    if (!paired[d] && !spans_tensor(planner, outer, d)) return false;
  return true;
}

/// A write that may stand for what it covers: all its tiles exist and do write, or, of a scatter, have waited as if they did.
bool stands_in(const Planner& planner, const Touch& t) {
  const LoweredOp& op = planner.ops[t.op];
  return t.operand->write && !op.guarded && !op.dynamic() && (op.kind != wire::OpCode::scatter || op.has_tiles);
}

// ---- windows ------------------------------------------------------------------------------------------------------

/// Whether every tile of the consumer needs the producer's whole range along this dim.
bool needs_all(const Planner& planner, const AccessDim& producer, const AccessDim& consumer) {
  return consumer.axis < 0 && planner.proves_at_most(consumer.offset, producer.first) &&
         planner.proves_at_most(producer.end, consumer.offset + consumer.length);
}

AxisWindow window_between(const Planner& planner, const LoweredOp& producer, const AccessDim& p, const AccessDim& c) {
  AxisWindow w;
  w.producer_axis = p.axis;
  // A constant part of the dim is a window that does not move.
  w.consumer_axis = c.axis < 0 ? 0 : c.axis;
  w.step = c.axis < 0 ? Expr(0) : c.step;
  w.block = p.step;
  // Tiles of a reader may overlap: tile i touches [i * step, i * step + step + halo).
  const bool overlapping = !planner.proves_at_most(p.length, p.step);
  const Expr halo = overlapping ? max(p.length - p.step, 0) : Expr(0);
  w.offset = c.offset - p.offset - halo;
  w.length = c.length + halo;
  w.extent = overlapping ? producer.grid[static_cast<std::size_t>(p.axis)] * p.step : p.end - p.offset;
  return w;
}

/// Row tile c of both products of experts has the same rows: these follow from the counts (operand 3), which nobody writes in between, from how many
/// experts there are and from how many rows a tile takes (worker/ops_matmul.hpp, find_expert; worker/expert_warps.hpp, find_expert_together).
bool same_row_tiles(const Planner& planner, OpIndex first, OpIndex second) {
  const LoweredOp &a = planner.ops[first], &b = planner.ops[second];
  if (!a.dynamic() || !b.dynamic() || a.kind != b.kind) return false;
  const LoweredOperand &x = a.operands[3], &y = b.operands[3];
  if (x.tensor != y.tensor || !planner.proves_equal(x.offset, y.offset)) return false;
  for (std::size_t d = 0; d < 4; ++d)
    if (!planner.proves_equal(x.dim[d], y.dim[d]) || !planner.proves_equal(x.stride[d], y.stride[d])) return false;
  for (OpIndex op = first; op <= second; ++op)
    for (const LoweredOperand& o : planner.ops[op].operands)
      if (o.write && o.root == x.root) return false;
  return planner.proves_equal(a.dims[2], b.dims[2]) && planner.proves_equal(a.tile[2], b.tile[2]) && planner.proves_equal(a.grid[2], b.grid[2]);
}

/// Tile c of the consumer needs tile c of the producer.
AxisWindow row_tile_window(const LoweredOp& producer) {
  AxisWindow w;
  w.producer_axis = w.consumer_axis = 2;
  w.step = w.length = w.block = 1;
  w.offset = 0;
  w.extent = producer.grid[2];
  return w;
}

/// Between row tiles of experts only whole rows of the grid: events that no tile is there for are credited one by one.
std::vector<AxisWindow> candidate_windows(const Planner& planner, const Touch& from, const Touch& to) {
  const LoweredOp& producer = planner.ops[from.op];
  const LoweredOperand &p = *from.operand, &c = *to.operand;
  std::vector<AxisWindow> windows;
  for (const auto& [i, j] : pair_dims(planner, p.tensor, c.tensor).pairs) {
    const AccessDim& pd = p.access[i];
    if (pd.routed && c.access[j].routed && pd.view_step == c.access[j].view_step && planner.proves_equal(pd.first, c.access[j].first) &&
        planner.proves_equal(pd.end, c.access[j].end) && same_row_tiles(planner, from.op, to.op))
      return {row_tile_window(producer)};
    if (pd.axis < 0 || needs_all(planner, pd, c.access[j])) continue;
    windows.push_back(window_between(planner, producer, pd, c.access[j]));
  }
  return windows;
}

double events_of(const Planner& planner, const LoweredOp& producer, std::span<const AxisWindow> windows) {
  double n = 1;
  for (const AxisWindow& w : windows)
    n *= static_cast<double>(planner.upper_bound(producer.grid[static_cast<std::size_t>(w.producer_axis)]));
  return n;
}

/// Keeps the axes with most tiles, as many as options and the number of events allow.
void choose_windows(const Planner& planner, Edge& edge, std::vector<AxisWindow> candidates) {
  const LoweredOp& producer = planner.ops[edge.producer];
  const Granularity wish = planner.options.granularity;
  if (candidates.empty() || wish == Granularity::whole) {
    edge.why = candidates.empty() ? "every tile needs all of it" : "asked for whole events";
    return;
  }
  const auto tiles = [&](const AxisWindow& w) {
    return planner.upper_bound(producer.grid[static_cast<std::size_t>(w.producer_axis)]);
  };
  if (wish == Granularity::row)
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](auto& a, auto& b) { return a.producer_axis < b.producer_axis; });
  else
    std::stable_sort(candidates.begin(), candidates.end(), [&](auto& a, auto& b) { return tiles(a) > tiles(b); });
  const std::size_t limit = wish == Granularity::row ? 1 : 2;
  bool refused = false;
  for (AxisWindow& w : candidates) {
    if (edge.windows.size() == limit) break;
    edge.windows.push_back(std::move(w));
    if (events_of(planner, producer, edge.windows) <= planner.options.max_group_events) continue;
    edge.windows.pop_back();
    refused = true;
  }
  std::sort(edge.windows.begin(), edge.windows.end(),
            [](auto& a, auto& b) { return a.producer_axis < b.producer_axis; });
  edge.why = refused                     ? "a finer split would need too many events"
             : candidates.size() > limit ? "two axes at most"
                                         : "aligned regions";
}

Edge make_edge(const Planner& planner, const Touch& producer, const Touch& consumer, DependencyKind kind) {
  Edge e;
  e.producer = producer.op;
  e.consumer = consumer.op;
  e.tensor = consumer.operand->tensor;
  e.kind = kind;
  // A reading tile may have touched nothing at all (padding), so nobody need have waited for it.
  e.covers = producer.operand->write && covers(planner, *consumer.operand, *producer.operand);
  choose_windows(planner, e, candidate_windows(planner, producer, consumer));
  return e;
}

DependencyKind kind_of(const Touch& producer, const Touch& consumer) {
  if (!consumer.operand->write) return DependencyKind::raw;
  return producer.operand->write ? DependencyKind::waw : DependencyKind::war;
}

/// Edges of one access to the earlier ones of its storage, latest first.
void edges_of_access(Planner& planner, const Touch& access, const std::vector<Touch>& earlier) {
  std::vector<const LoweredOperand*> covering;
  for (std::size_t i = earlier.size(); i-- > 0;) {
    const Touch& t = earlier[i];
    if (t.op == access.op || (!t.operand->write && !access.operand->write)) continue;
    if (disjoint(planner, t, access)) continue;
    const bool covered =
        std::any_of(covering.begin(), covering.end(), [&](auto* w) { return covers(planner, *w, *t.operand); });
    if (covered) continue;
    planner.edges.push_back(make_edge(planner, t, access, kind_of(t, access)));
    if (stands_in(planner, t)) covering.push_back(t.operand);
  }
}

bool never_written(const spec::Tensor& tensor) {
  return tensor.kind == spec::TensorKind::weight || tensor.kind == spec::TensorKind::input;
}

// ---- guards and reuse ---------------------------------------------------------------------------------------------

Edge whole_edge(OpIndex producer, OpIndex consumer, TensorIndex tensor, DependencyKind kind, const char* why) {
  Edge e;
  e.producer = producer;
  e.consumer = consumer;
  e.tensor = tensor;
  e.kind = kind;
  e.covers = true;
  e.why = why;
  return e;
}

void guard_edges(Planner& planner, OpIndex op, std::uint32_t condition) {
  for (std::uint32_t c = condition; c != spec::kNone; c = planner.program.conditions[c].parent) {
    const spec::Report& report = planner.program.reports[planner.program.conditions[c].report];
    planner.edges.push_back(whole_edge(report.op, op, report.tensor, DependencyKind::guard, "a guard needs the value"));
  }
}

/// Tensors that share arena space, by when they were last used.
class SpaceOwners {
 public:
  explicit SpaceOwners(const Planner& planner) : planner_(planner) {
    for (TensorIndex id = 0; id < planner.memory.placements.size(); ++id)
      if (planner.memory.placements[id].shared && planner.memory.live[id].root == id) by_last_.push_back(id);
    std::sort(by_last_.begin(), by_last_.end(), [&](auto a, auto b) { return live(a).last < live(b).last; });
  }

  /// Earlier owners of space of `id` that its writers must wait for. An owner behind another one is left out where the
  /// nearer one's writers waited for it.
  std::vector<TensorIndex> predecessors(TensorIndex id) const {
    std::vector<TensorIndex> out, sound;
    auto it = std::lower_bound(by_last_.begin(), by_last_.end(), live(id).first,
                               [&](TensorIndex t, OpIndex op) { return live(t).last < op; });
    std::uint64_t hidden = 0;  // bytes of `id` behind sound owners; those do not overlap one another in space and time
    while (it != by_last_.begin() && hidden < place(id).bytes) {
      const TensorIndex owner = *--it;
      if (!overlap(owner, id)) continue;
      const bool behind = std::any_of(sound.begin(), sound.end(), [&](TensorIndex s) {
        return overlap(owner, s) && live(owner).last < live(s).first;
      });
      if (behind) continue;
      out.push_back(owner);
      if (!is_sound(owner)) continue;
      hidden += std::min(end(owner), end(id)) - std::max(place(owner).offset, place(id).offset);
      sound.push_back(owner);
    }
    return out;
  }

 private:
  const LiveRange& live(TensorIndex id) const { return planner_.memory.live[id]; }
  const Placement& place(TensorIndex id) const { return planner_.memory.placements[id]; }
  std::uint64_t end(TensorIndex id) const { return place(id).offset + std::max<std::uint64_t>(1, place(id).bytes); }
  bool overlap(TensorIndex a, TensorIndex b) const { return place(a).offset < end(b) && place(b).offset < end(a); }
  /// One of its writers surely ran all of its waits.
  bool is_sound(TensorIndex id) const {
    for (const OpIndex op : planner_.memory.users[id]) {
      const LoweredOp& lowered = planner_.ops[op];
      if (lowered.guarded || lowered.dynamic() || !lowered.has_tiles) continue;
      for (const LoweredOperand& o : lowered.operands)
        if (o.write && o.root == id) return true;
    }
    return false;
  }

  const Planner& planner_;
  std::vector<TensorIndex> by_last_;
};

/// Per op the edges to the former users of the space it writes.
void reuse_edges(Planner& planner, const SpaceOwners& owners,
                 std::unordered_map<TensorIndex, std::vector<OpIndex>>& known, OpIndex op) {
  for (const LoweredOperand& o : planner.ops[op].operands) {
    if (!o.write || !planner.memory.placements[o.root].shared) continue;
    const auto [it, fresh] = known.try_emplace(o.root);
    if (fresh)
      for (const TensorIndex owner : owners.predecessors(o.root))
        it->second.insert(it->second.end(), planner.memory.users[owner].begin(), planner.memory.users[owner].end());
    for (const OpIndex user : it->second)
      planner.edges.push_back(whole_edge(user, op, o.root, DependencyKind::reuse, "its tensor lay in the same space"));
  }
}

}  // namespace

void derive_edges(Planner& planner) {
  std::vector<std::vector<Touch>> touched(planner.program.tensors.size());
  std::unordered_map<TensorIndex, std::vector<OpIndex>> known;
  const SpaceOwners owners(planner);
  for (OpIndex op = 0; op < planner.ops.size(); ++op) {
    const LoweredOp& lowered = planner.ops[op];
    for (const LoweredOperand& o : lowered.operands)
      if (!never_written(planner.program.tensors[o.root])) edges_of_access(planner, {op, &o}, touched[o.root]);
    const spec::Op& source = planner.program.ops[lowered.spec_op];
    guard_edges(planner, op, source.condition);
    if (const auto* select = std::get_if<spec::SelectAttrs>(&source.attrs)) guard_edges(planner, op, select->condition);
    reuse_edges(planner, owners, known, op);
    for (const LoweredOperand& o : lowered.operands)
      if (!never_written(planner.program.tensors[o.root])) touched[o.root].push_back({op, &o});
  }
}

}  // namespace ccks::codegen

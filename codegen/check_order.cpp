// check_order: every two accesses to the same bytes, one of them a write, are ordered by events.
//
// First between whole ops (check_reach). What that leaves is searched tile by tile: backwards from a tile over the
// events it waits for and, since an event is complete only when all its tiles are, over everything those tiles waited
// for.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "codegen/check_reach.hpp"
#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen::check {
namespace {

struct OpAccesses {
  std::vector<Access> list;
  std::vector<Box> boxes;  // of all tiles together
  std::vector<bool> empty;
};

/// A pair of accesses that needs an order which whole ops do not give.
struct Conflict {
  std::size_t earlier;
  Access mine, theirs;
  std::size_t context;  // conditions under which the earlier access happens, and what else is known to hold
  bool settled;
  bool by_row_tiles;  // of experts: tiles meet only where their coordinate on axis 2 is the same (routed_alike)
};

class OrderCheck {
 public:
  OrderCheck(const Model& m, const CheckLimits& limits, Faults& faults, CheckReport& report)
      : m_(m),
        limits_(limits),
        faults_(faults),
        report_(report),
        guards_(m),
        stamp_(m.event_ids),
        op_stamp_(m.ops.size()) {
    for (std::size_t op = 0; op < m.ops.size(); ++op) accesses_.push_back(collect(op));
  }

  void run() {
    std::vector<std::vector<Conflict>> conflicts(m_.ops.size());
    for (std::size_t op = 0; op < m_.ops.size(); ++op)
      if (m_.ops[op].exists()) {
        conflicts[op] = conflicts_of(op);
        if (!conflicts[op].empty()) ++searched_ops_;
        check_within(op);
      }
    for (std::size_t op = 0; op < m_.ops.size() && !faults_.full(); ++op) search_contexts(op, conflicts[op]);
    check_text_order();
    check_streamed();
    report_.tile_edges += edges_;
  }

 private:
  OpAccesses collect(std::size_t op) const {
    OpAccesses a{accesses_of(m_, op), {}, {}};
    for (const Access& access : a.list) {
      bool empty = false;
      a.boxes.push_back(box_of(m_, op, access, all_tiles(m_.ops[op]), empty));
      a.empty.push_back(empty || !m_.ops[op].exists());
    }
    return a;
  }

  template <class Visit>
  void each_overlap(std::size_t i, std::size_t j, Visit visit) const {
    const OpAccesses &a = accesses_[i], &b = accesses_[j];
    for (std::size_t x = 0; x < a.list.size(); ++x)
      for (std::size_t y = 0; y < b.list.size(); ++y)
        if ((a.list[x].write || b.list[y].write) && !a.empty[x] && !b.empty[y] && overlap(a.boxes[x], b.boxes[y]))
          visit(x, y);
  }

  const Reach& reach(std::size_t context) {
    while (reach_.size() <= context) reach_.emplace_back();
    if (!reach_[context]) reach_[context].emplace(m_, guards_, context);
    return *reach_[context];
  }

  std::vector<Conflict> conflicts_of(std::size_t j) {
    std::vector<Conflict> out;
    for (std::size_t i = 0; i < j; ++i) {
      if (!m_.ops[i].exists()) continue;
      ++report_.op_pairs;
      if (reach(guards_.context(i)).before.get(i, j)) {
        ++report_.whole_pairs;
        continue;
      }
      each_overlap(i, j, [&](std::size_t x, std::size_t y) {
        const Access &theirs = accesses_[i].list[x], &mine = accesses_[j].list[y];
        const std::size_t context = guards_.context_with(i, theirs.condition, mine.condition);
        if (!reach(context).before.get(i, j)) out.push_back({i, mine, theirs, context, false, routed_alike(m_, j, mine.operand, i, theirs.operand)});
      });
    }
    return out;
  }

  // ---- within one op ----
  /// An op may rewrite what it reads only element by element in place.
  void check_within(std::size_t op) {
    const spec::Op& s = m_.spec_op(op);
    const std::size_t inputs = s.inputs.size();
    const bool pointwise = s.kind() == spec::OpKind::map || s.kind() == spec::OpKind::select;
    const std::size_t epilogue = has_twin(s) ? inputs : s.kind() == spec::OpKind::matmul || s.kind() == spec::OpKind::conv2d ? 2 : inputs;
    const std::size_t end = epilogue_end(s);  // the weight of a norm and a table are read whole
    const std::span<const Operand> operands = m_.operands_of(op);
    for (std::size_t k = 0; k < operands.size(); ++k) {
      for (std::size_t w = inputs; w < operands.size(); ++w) {
        const OpAccesses& a = accesses_[op];
        if (k == w || a.empty[k] || a.empty[w] || !overlap(a.boxes[k], a.boxes[w])) continue;
        const Operand &x = operands[k], &y = operands[w];
        if (k < inputs && (pointwise || (k >= epilogue && k < end)) && x.offset == y.offset && x.stride == y.stride &&
            x.dim == y.dim)
          continue;
        faults_.add("order.within",
                    fmt::format("op '{}' reads or writes bytes that another of its tiles writes", m_.name(op)));
      }
    }
    for (std::size_t w = inputs; w < operands.size(); ++w)
      for (std::size_t d = 0; d < 4; ++d)
        if (operands[w].dim[d] > 1 && operands[w].stride[d] == 0)
          faults_.add("order.within", fmt::format("op '{}' writes elements more than once", m_.name(op)));
  }

  // ---- tile by tile ----
  unsigned axes_of(std::size_t op, const std::vector<Conflict>& conflicts) const {
    unsigned axes = 0;
    for (const WaitNow& w : m_.waits_of(op))
      for (const WaitAxisNow& a : w.axis)
        if (a.grid_axis >= 0) axes |= 1u << a.grid_axis;
    for (const Conflict& c : conflicts) axes |= moving_axes(m_, op, c.mine) | (c.by_row_tiles ? 1u << 2 : 0);
    return axes;
  }

  /// What a guarded op on the way proves depends on what the earlier op runs under.
  void search_contexts(std::size_t op, const std::vector<Conflict>& conflicts) {
    for (context_ = 0; context_ < guards_.contexts(); ++context_) {
      std::vector<Conflict> some;
      for (const Conflict& c : conflicts)
        if (c.context == context_) some.push_back(c);
      if (!some.empty() && !faults_.full()) search_op(op, some);
    }
  }

  /// Tiles that differ along `axes` only; the others wait and touch alike, so one stands for all.
  void search_op(std::size_t op, std::vector<Conflict>& conflicts) {
    const unsigned axes = axes_of(op, conflicts);
    const OpNow& now = m_.ops[op];
    std::array<std::int64_t, 4> count{1, 1, 1, 1};
    std::int64_t tiles = 1;
    for (std::size_t a = 0; a < 4; ++a) {
      if (axes >> a & 1) count[a] = now.grid[a];
      tiles *= count[a];
    }
    std::int64_t most = static_cast<std::int64_t>(limits_.tile_edges / (8 * searched_ops_) + 16);
    if (edges_ > limits_.tile_edges) most = 8;
    const bool sample = tiles > most;
    if (sample) report_.sampled = true;
    std::uint64_t random = 0x9e3779b97f4a7c15u * (op + 1);
    for (std::int64_t i = 0; i < (sample ? most : tiles) && !faults_.full(); ++i) {
      std::int64_t index = i;
      if (sample && i % 2) index = tiles - 1 - i / 2;  // ends and a seeded spread between
      if (sample && i >= 8) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        index = static_cast<std::int64_t>((random >> 20) % static_cast<std::uint64_t>(tiles));
      }
      TileRange tile;
      for (std::size_t a = 4; a-- > 0; index /= count[a]) tile.lo[a] = index % count[a];
      for (std::size_t a = 0; a < 4; ++a) tile.hi[a] = tile.lo[a] + 1;
      search_tile(op, tile, conflicts);
      if (faults_.count() > 0) return;
    }
  }

  void search_tile(std::size_t op, const TileRange& tile, std::vector<Conflict>& conflicts) {
    ++report_.tiles;
    ++now_;
    queue_.clear();
    for (Conflict& c : conflicts) c.settled = false;
    for (const WaitNow& w : m_.waits_of(op))
      mark(w, blocks_at(w.axis[0], at(w.axis[0], tile)), blocks_at(w.axis[1], at(w.axis[1], tile)));
    for (Conflict& c : conflicts) c.settled = ordered(op, tile, c, nullptr);
    expand(op, conflicts);
    for (Conflict& c : conflicts) {
      TileRange culprit;
      if (c.settled || ordered(op, tile, c, &culprit)) continue;
      complain(op, tile, c, culprit);
      return;
    }
  }

  static std::int64_t at(const WaitAxisNow& a, const TileRange& tile) {
    return a.grid_axis < 0 ? 0 : tile.lo[static_cast<std::size_t>(a.grid_axis)];
  }

  void mark(const WaitNow& w, Blocks a, Blocks b) {
    if (a.empty() || b.empty()) return;
    const SignalNow& s = m_.signals[w.signal];
    if (!m_.ops[s.op].exists()) return;
    for (std::int64_t i = a.lo; i < a.hi; ++i) {
      for (std::int64_t j = b.lo; j < b.hi; ++j) {
        const std::int64_t event = i * w.axis[0].stride + j * w.axis[1].stride;
        std::uint32_t& stamp = stamp_[s.first_id + static_cast<std::size_t>(event)];
        ++edges_;
        if (stamp == now_) continue;
        stamp = now_;
        queue_.push_back({w.signal, event});
      }
    }
  }

  /// Adds all events that are complete because those marked so far are.
  void expand(std::size_t op, std::vector<Conflict>& conflicts) {
    for (std::size_t q = 0; q < queue_.size(); ++q) {
      const auto [signal, event] = queue_[q];
      const SignalNow& s = m_.signals[signal];
      const bool runs = guards_.runs_with(s.op, op, context_);
      if (op_stamp_[s.op] != now_) settle(op, s.op, runs, conflicts);
      op_stamp_[s.op] = now_;
      const bool needed = runs && std::any_of(conflicts.begin(), conflicts.end(),
                                              [&](const Conflict& c) { return !c.settled && c.earlier < s.op; });
      if (needed) expand_event(s, cell_of(s, event));
    }
  }

  /// Marks what a finished tile of `done` proves by itself.
  void settle(std::size_t op, std::size_t done, bool runs, std::vector<Conflict>& conflicts) {
    for (Conflict& c : conflicts) {
      if (runs) c.settled = c.settled || reach(context_).before.get(c.earlier, done);
      for (const std::uint32_t report : guards_.reports(done))
        if (guards_.runs_with(report, op, context_))
          c.settled = c.settled || c.earlier == report || reach(context_).before.get(c.earlier, report);
    }
  }

  void expand_event(const SignalNow& s, std::array<std::int64_t, 2> cell) {
    const OpNow& op = m_.ops[s.op];
    const auto range = [&](const WaitAxisNow& a) -> std::pair<std::int64_t, std::int64_t> {
      for (std::size_t i = 0; i < 2; ++i)
        if (a.grid_axis >= 0 && s.axis[i] == a.grid_axis) return {cell[i], cell[i] + 1};
      return {0, coordinate_values(op, a)};
    };
    for (const WaitNow& w : m_.waits_of(s.op)) {
      const auto [first0, end0] = range(w.axis[0]);
      const auto [first1, end1] = range(w.axis[1]);
      const bool together = w.axis[0].grid_axis >= 0 && w.axis[0].grid_axis == w.axis[1].grid_axis;
      for (std::int64_t c = first0; c < end0; ++c)
        for (std::int64_t d = together ? c : first1; d < (together ? c + 1 : end1); ++d)
          mark(w, blocks_at(w.axis[0], c), blocks_at(w.axis[1], d));
    }
  }

  /// Whether all tiles of the earlier op that meet this tile's bytes are known to be done.
  bool ordered(std::size_t op, const TileRange& tile, const Conflict& c, TileRange* culprit) {
    bool empty = false;
    const Box box = box_of(m_, op, c.mine, tile, empty);
    TileRange theirs = all_tiles(m_.ops[c.earlier]);
    if (c.by_row_tiles) theirs.lo[2] = tile.lo[2], theirs.hi[2] = tile.hi[2];  // grids are the same
    return empty || ordered_below(box, c, theirs, culprit);
  }

  bool ordered_below(const Box& box, const Conflict& c, const TileRange& range, TileRange* culprit) {
    ++edges_;
    if (all_done(c.earlier, range)) return true;
    bool empty = false;
    const Box theirs = box_of(m_, c.earlier, c.theirs, range, empty);
    if (empty || !overlap(box, theirs)) return true;
    std::size_t widest = 0;
    for (std::size_t a = 1; a < 4; ++a)
      if (range.hi[a] - range.lo[a] > range.hi[widest] - range.lo[widest]) widest = a;
    if (range.hi[widest] - range.lo[widest] <= 1) {
      if (culprit) *culprit = range;
      return false;
    }
    TileRange low = range, high = range;
    low.hi[widest] = high.lo[widest] = (range.lo[widest] + range.hi[widest]) / 2;
    return ordered_below(box, c, low, culprit) && ordered_below(box, c, high, culprit);
  }

  bool all_done(std::size_t op, const TileRange& range) {
    const plan::OpDesc& d = *m_.ops[op].desc;
    for (std::uint32_t g = d.signal_first; g < d.signal_first + d.signal_count; ++g)
      if (group_done(m_.signals[g], range)) return true;
    return false;
  }

  bool group_done(const SignalNow& s, const TileRange& range) {
    std::array<std::int64_t, 2> lo{}, hi{1, 1};
    for (std::size_t i = 0; i < 2; ++i) {
      if (s.axis[i] < 0) continue;
      lo[i] = range.lo[static_cast<std::size_t>(s.axis[i])];
      hi[i] = range.hi[static_cast<std::size_t>(s.axis[i])];
    }
    for (std::int64_t i = lo[0]; i < hi[0]; ++i)
      for (std::int64_t j = lo[1]; j < hi[1]; ++j, ++edges_)
        if (stamp_[s.first_id + static_cast<std::size_t>(i * s.stride[0] + j * s.stride[1])] != now_) return false;
    return true;
  }

  void complain(std::size_t op, const TileRange& tile, const Conflict& c, const TileRange& culprit) {
    const bool guard = c.mine.operand == Access::kGuard;
    const char* code = guard ? "order.guard" : !c.theirs.write ? "order.war" : c.mine.write ? "order.waw" : "order.raw";
    const auto coords = [](const TileRange& t) {
      return fmt::format("[{} {} {} {}]", t.lo[0], t.lo[1], t.lo[2], t.lo[3]);
    };
    faults_.add(code, fmt::format("tile {} of op '{}' {} what tile {} of op '{}' {}, and no event orders them",
                                  coords(tile), m_.name(op),
                                  c.mine.write ? "writes"
                                  : guard      ? "tests"
                                               : "reads",
                                  coords(culprit), m_.name(c.earlier), c.theirs.write ? "writes" : "reads"));
  }

  // ---- the rest ----
  /// Ops that meet in a tensor keep the order of the program.
  void check_text_order() {
    bool same = true;
    for (std::size_t op = 1; op < m_.ops.size(); ++op) same = same && m_.ops[op].spec_op > m_.ops[op - 1].spec_op;
    for (std::size_t j = 0; j < m_.ops.size() && !same; ++j)
      for (std::size_t i = 0; i < j; ++i)
        if (m_.ops[i].spec_op > m_.ops[j].spec_op) check_swapped(i, j);
  }

  void check_swapped(std::size_t i, std::size_t j) {
    const auto root = [&](std::size_t op, const Access& a) {
      if (a.operand == Access::kGuard) return spec::kNone;
      const std::uint32_t t = m_.operands_of(op)[a.operand].tensor, alias = m_.program->tensors[t].alias_of;
      return alias == spec::kNone ? t : alias;
    };
    bool told = false;
    each_overlap(i, j, [&](std::size_t x, std::size_t y) {
      if (told || root(i, accesses_[i].list[x]) != root(j, accesses_[j].list[y])) return;
      told = true;
      faults_.add("order.program", fmt::format("ops '{}' and '{}' have changed places", m_.name(i), m_.name(j)));
    });
  }

  /// What is fetched before the waits must not be written by this run.
  void check_streamed() {
    std::vector<bool> written(m_.program->tensors.size());
    const auto root = [&](std::uint32_t t) {
      const auto a = m_.program->tensors[t].alias_of;
      return a == spec::kNone ? t : a;
    };
    for (std::size_t op = 0; op < m_.ops.size(); ++op)
      for (std::size_t k = m_.ops[op].desc->input_count; k < m_.operands_of(op).size(); ++k)
        written[root(m_.operands_of(op)[k].tensor)] = true;
    for (std::size_t op = 0; op < m_.ops.size(); ++op)
      for (const Operand& o : m_.operands_of(op)) {
        const spec::TensorKind kind = m_.program->tensors[root(o.tensor)].kind;
        const bool given = kind == spec::TensorKind::weight || kind == spec::TensorKind::input;
        if ((o.flags & wire::kOperandStreamed) && (!given || written[root(o.tensor)]))
          faults_.add("operand.flags", fmt::format("op '{}' fetches '{}' ahead of its waits, but ops write it",
                                                   m_.name(op), m_.program->tensors[o.tensor].name));
      }
  }

  const Model& m_;
  const CheckLimits& limits_;
  Faults& faults_;
  CheckReport& report_;
  Guards guards_;
  std::deque<std::optional<Reach>> reach_;  // by context; made when asked for
  std::size_t context_ = 0;                 // of the search under way
  std::vector<OpAccesses> accesses_;
  std::vector<std::uint32_t> stamp_, op_stamp_;  // equal to now_: seen in this search
  std::uint32_t now_ = 0;
  std::vector<std::pair<std::uint32_t, std::int64_t>> queue_;
  std::uint64_t edges_ = 0;
  std::uint64_t searched_ops_ = 0;
};

}  // namespace

void check_order(const Model& model, const CheckLimits& limits, Faults& faults, CheckReport& report) {
  OrderCheck(model, limits, faults, report).run();
}

}  // namespace ccks::codegen::check

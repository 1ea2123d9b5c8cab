// Drops edges that others imply. "D is complete" implies "P is complete" if D's tiles between them wait for all of P:
// then whoever waits for all of D need not wait for P.
//
// A guarded op whose guards fail is passed over without its other waits. What it waited for counts where it is sure to have run:
// its condition is one of those that the consumer runs under, or the producer that must be waited for (which, if it did not run, has
// done nothing to wait for).
#include <algorithm>

#include "codegen/plan_internal.hpp"

namespace ccks::codegen {
namespace {

// How far back implications are remembered: 2,048 ops are many layers; one bit for each.
constexpr OpIndex kHorizon = 2048;

/// Set of ops before `op`, none further back than the horizon.
class OpSet {
 public:
  OpSet() = default;
  explicit OpSet(OpIndex op) : base_(op > kHorizon ? (op - kHorizon) / 64 * 64 : 0), words_((op - base_ + 63) / 64) {}
  bool has(OpIndex op) const {
    if (op < base_ || (op - base_) / 64 >= words_.size()) return false;
    return words_[(op - base_) / 64] >> ((op - base_) % 64) & 1;
  }
  void add(OpIndex op) {
    if (op >= base_) words_[(op - base_) / 64] |= std::uint64_t{1} << ((op - base_) % 64);
  }
  void add(const OpSet& other) {
    for (std::size_t w = 0; w < other.words_.size(); ++w) {
      const OpIndex first = other.base_ + static_cast<OpIndex>(w) * 64;
      if (first >= base_) words_[(first - base_) / 64] |= other.words_[w];
    }
  }

 private:
  OpIndex base_ = 0;
  std::vector<std::uint64_t> words_;
};

void drop(Edge& edge, const char* why) {
  edge.kept = false;
  edge.why = why;
}

/// Edges of one consumer on one producer: a wait for all of it makes the others needless.
void keep_dominant(std::span<Edge> group) {
  const auto whole = std::find_if(group.begin(), group.end(), [](const Edge& e) { return e.windows.empty(); });
  if (whole == group.end()) return;
  for (Edge& e : group)
    if (&e != &*whole) drop(e, "the whole op is waited for anyway");
}

class Pruner {
 public:
  explicit Pruner(Planner& planner) : planner_(planner), implied_(planner.ops.size()), if_run_(planner.ops.size()) { number_conditions(); }

  void consumer(OpIndex op, std::span<Edge> edges) {
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.producer > b.producer; });
    std::vector<OpIndex> complete;  // waited for as a whole
    implied_[op] = if_run_[op] = OpSet(op);
    for (std::size_t i = 0, end; i < edges.size(); i = end) {
      end = i;
      while (end < edges.size() && edges[end].producer == edges[i].producer) ++end;
      group(op, edges.subspan(i, end - i), complete);
      note(op, edges.subspan(i, end - i));
    }
  }

 private:
  void group(OpIndex op, std::span<Edge> edges, std::vector<OpIndex>& complete) {
    const OpIndex producer = edges[0].producer;
    const bool implied =
        std::any_of(complete.begin(), complete.end(), [&](OpIndex d) { return known(d, op, producer).has(producer); });
    // A guard reads its report directly, so its own wait stays, as wire/frame.hpp promises.
    const bool guard =
        std::any_of(edges.begin(), edges.end(), [](const Edge& e) { return e.kind == DependencyKind::guard; });
    if (implied && !guard && planner_.options.drop_implied_waits) {
      for (Edge& e : edges) drop(e, "another wait implies it");
      return;
    }
    keep_dominant(edges);
    const bool whole =
        std::any_of(edges.begin(), edges.end(), [](const Edge& e) { return e.kept && e.windows.empty(); });
    if (whole) complete.push_back(producer);
  }

  /// What the consumer's own completion tells. Nothing where it may have no tiles, or where tiles that do not exist are signalled for
  /// it; no more than that its reports are published, where it may have been passed over.
  void note(OpIndex op, std::span<const Edge> edges) {
    const LoweredOp& lowered = planner_.ops[op];
    if (!lowered.has_tiles || lowered.dynamic()) return;
    const OpIndex producer = edges[0].producer;
    const auto some = [&](auto&& is) { return std::any_of(edges.begin(), edges.end(), is); };
    if (some([](const Edge& e) { return e.windows.empty() || e.covers; })) {
      if_run_[op].add(producer);
      if_run_[op].add(known(producer, op, op));
    }
    if (lowered.guarded && !some([](const Edge& e) { return e.kind == DependencyKind::guard; })) return;
    if (!lowered.guarded && !if_run_[op].has(producer)) return;
    implied_[op].add(producer);
    implied_[op].add(implied_[producer]);
  }

  /// What "`done` is complete" tells where `a` and `b` run.
  const OpSet& known(OpIndex done, OpIndex a, OpIndex b) const { return runs_with(done, a) || runs_with(done, b) ? if_run_[done] : implied_[done]; }
  /// Whether `op` runs wherever `other` does: under its condition, or one that holds wherever that does.
  bool runs_with(OpIndex op, OpIndex other) const {
    const std::uint32_t wanted = condition(op), given = condition(other);
    if (wanted == spec::kNone || given == spec::kNone) return wanted == spec::kNone;
    return first_[wanted] <= first_[given] && first_[given] < end_[wanted];
  }
  /// In the order in which a walk from parents to children meets them: those below condition c are [first_[c], end_[c]).
  void number_conditions() {
    const std::vector<spec::Condition>& conditions = planner_.program.conditions;
    std::vector<std::uint32_t> below(conditions.size(), 1);
    for (std::size_t c = conditions.size(); c-- > 0;)  // a parent stands before its children
      if (conditions[c].parent != spec::kNone) below[conditions[c].parent] += below[c];
    first_.resize(conditions.size());
    end_.resize(conditions.size());
    std::vector<std::uint32_t> next(conditions.size());  // number of the next child
    std::uint32_t root = 0;
    for (std::size_t c = 0; c < conditions.size(); ++c) {
      std::uint32_t& free = conditions[c].parent == spec::kNone ? root : next[conditions[c].parent];
      first_[c] = free;
      end_[c] = free += below[c];
      next[c] = first_[c] + 1;
    }
  }
  std::uint32_t condition(OpIndex op) const { return planner_.program.ops[planner_.ops[op].spec_op].condition; }

  Planner& planner_;
  std::vector<OpSet> implied_;  // by the op's completion, whether it ran or was passed over
  std::vector<OpSet> if_run_;   // where it ran
  std::vector<std::uint32_t> first_, end_;  // per condition: see number_conditions
};

}  // namespace

void prune_edges(Planner& planner) {
  Pruner pruner(planner);
  std::size_t begin = 0;
  for (OpIndex op = 0; op < planner.ops.size(); ++op) {
    std::size_t end = begin;
    while (end < planner.edges.size() && planner.edges[end].consumer == op) ++end;
    pruner.consumer(op, std::span(planner.edges).subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace ccks::codegen

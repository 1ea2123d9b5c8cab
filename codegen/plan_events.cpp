#include "codegen/plan_events.hpp"

#include <algorithm>
#include <map>

namespace ccks::codegen {
namespace {

SplitAxes axes_of(const Edge& edge) {
  SplitAxes axes{-1, -1};
  for (std::size_t i = 0; i < edge.windows.size(); ++i) axes[i] = edge.windows[i].producer_axis;
  return axes;
}

bool has_axis(const SplitAxes& axes, int axis) { return axis < 0 || axes[0] == axis || axes[1] == axis; }
bool is_subset(const SplitAxes& part, const SplitAxes& of) { return has_axis(of, part[0]) && has_axis(of, part[1]); }
int rank_of(const SplitAxes& axes) { return (axes[0] >= 0) + (axes[1] >= 0); }

/// The splits an op offers: what its consumers ask for, the most wanted first, and `whole` where others must do with
/// less.
std::vector<SplitAxes> choose_splits(const std::map<SplitAxes, std::uint32_t>& wanted) {
  std::vector<std::pair<SplitAxes, std::uint32_t>> order(wanted.begin(), wanted.end());
  std::stable_sort(order.begin(), order.end(), [](auto& a, auto& b) { return a.second > b.second; });
  std::vector<SplitAxes> chosen;
  for (const auto& [axes, uses] : order)
    if (chosen.size() < kMaxGroups) chosen.push_back(axes);
  const auto served = [&](const SplitAxes& axes) {
    return std::any_of(chosen.begin(), chosen.end(), [&](const SplitAxes& c) { return is_subset(c, axes); });
  };
  const bool all = std::all_of(order.begin(), order.end(), [&](auto& o) { return served(o.first); });
  if (!all) chosen.back() = {-1, -1};
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

SignalGroup make_group(const Planner& planner, OpIndex op, const SplitAxes& axes) {
  const LoweredOp& lowered = planner.ops[op];
  SignalGroup g;
  g.op = op;
  g.axes = axes;
  g.count = 1;
  g.total = 1;
  for (int a = 0; a < 4; ++a) {
    const bool split = a == axes[0] || a == axes[1];
    Expr& part = split ? g.count : g.total;
    part = part * lowered.grid[static_cast<std::size_t>(a)];
  }
  g.stride[0] = axes[0] < 0 ? Expr(0) : axes[1] < 0 ? Expr(1) : lowered.grid[static_cast<std::size_t>(axes[1])];
  g.stride[1] = axes[1] < 0 ? Expr(0) : Expr(1);
  return g;
}

/// The whole axis: every tile of the producer along it.
AxisWindow all_blocks(const LoweredOp& producer, int axis) {
  AxisWindow w;
  w.producer_axis = axis;
  w.step = 0;
  w.offset = 0;
  w.block = 1;
  w.extent = w.length = axis < 0 ? Expr(1) : producer.grid[static_cast<std::size_t>(axis)];
  return w;
}

class EventPlanner {
 public:
  explicit EventPlanner(Planner& planner) : planner_(planner) {
    plan_.op_groups.resize(planner.ops.size());
    plan_.op_waits.resize(planner.ops.size());
  }

  EventPlan run() {
    make_groups();
    std::size_t begin = 0;
    for (OpIndex op = 0; op < planner_.ops.size(); ++op) {
      const auto first = static_cast<std::uint32_t>(plan_.waits.size());
      for (; begin < planner_.edges.size() && planner_.edges[begin].consumer == op; ++begin)
        if (planner_.edges[begin].kept) add_wait(planner_.edges[begin], first);
      plan_.op_waits[op] = {first, static_cast<std::uint32_t>(plan_.waits.size()) - first};
    }
    return std::move(plan_);
  }

 private:
  void make_groups() {
    std::vector<std::map<SplitAxes, std::uint32_t>> wanted(planner_.ops.size());
    for (const Edge& e : planner_.edges)
      if (e.kept) ++wanted[e.producer][axes_of(e)];
    for (OpIndex op = 0; op < planner_.ops.size(); ++op) {
      const auto first = static_cast<std::uint32_t>(plan_.groups.size());
      if (!wanted[op].empty())
        for (const SplitAxes& axes : choose_splits(wanted[op])) plan_.groups.push_back(make_group(planner_, op, axes));
      plan_.op_groups[op] = {first, static_cast<std::uint32_t>(plan_.groups.size()) - first};
    }
  }

  /// The finest group that splits no other axes than the edge does.
  std::uint32_t best_group(const Edge& edge) const {
    const auto [first, count] = plan_.op_groups[edge.producer];
    const SplitAxes axes = axes_of(edge);
    std::uint32_t best = plan::kNone;
    for (std::uint32_t g = first; g < first + count; ++g) {
      if (!is_subset(plan_.groups[g].axes, axes)) continue;
      if (best == plan::kNone || rank_of(plan_.groups[g].axes) > rank_of(plan_.groups[best].axes)) best = g;
    }
    return best;
  }

  void add_wait(Edge& edge, std::uint32_t first) {
    GroupWait wait;
    wait.producer = edge.producer;
    wait.group = best_group(edge);
    const SplitAxes& axes = plan_.groups[wait.group].axes;
    for (std::size_t i = 0; i < 2; ++i) {
      wait.axis[i] = all_blocks(planner_.ops[edge.producer], axes[i]);
      for (const AxisWindow& w : edge.windows)
        if (w.producer_axis == axes[i]) wait.axis[i] = w;
    }
    for (auto w = first; w < plan_.waits.size(); ++w)
      if (same(plan_.waits[w], wait)) {
        edge.wait = w;
        return;
      }
    edge.wait = static_cast<std::uint32_t>(plan_.waits.size());
    plan_.waits.push_back(std::move(wait));
  }

  static bool same(const GroupWait& a, const GroupWait& b) {
    if (a.group != b.group) return false;
    for (std::size_t i = 0; i < 2; ++i) {
      const AxisWindow &x = a.axis[i], &y = b.axis[i];
      if (x.consumer_axis != y.consumer_axis || !(x.step == y.step) || !(x.offset == y.offset) ||
          !(x.length == y.length) || !(x.extent == y.extent) || !(x.block == y.block))
        return false;
    }
    return true;
  }

  Planner& planner_;
  EventPlan plan_;
};

}  // namespace

EventPlan plan_events(Planner& planner) { return EventPlanner(planner).run(); }

}  // namespace ccks::codegen

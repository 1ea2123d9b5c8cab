// A tile of few rows takes as long as its weights take to come, and then some: its rows are fetched and normed, sums are brought together, and code that
// another product has used last is no longer in the caches. Alone each product gets tiles as narrow as suits it, and where together
// they are more than there are workers, some have two or three. Fewer and wider ones, a tile each, end sooner.
#include "codegen/plan_shares.hpp"

#include <algorithm>
#include <queue>

#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {
namespace {

// Of an H200's worker, which has 35 KB of weights a microsecond: a second tile of 64 KB took 3.9 us where the bytes take 1.8 (a
// Llama's keys, bench/llama_decode.py --trace at 3a423fd).
constexpr std::int64_t kTileBytes = 64 * 1024;
constexpr std::int64_t kMostColumns = 128, kFewRows = 8;  // worker/tile_hints.hpp
constexpr std::size_t kMostProducts = 4;
constexpr int kDoublings = 2;

/// One of a group.
struct Share {
  OpIndex op;
  std::int64_t all = 0, columns = 0, most = 0, column_bytes = 0;  // of the product, of a tile, that a tile may have
};

class Shares {
 public:
  explicit Shares(const Planner& planner) : planner_(planner), columns_(planner.ops.size(), 0) {
    workers_ = planner.options.workers != 0 ? planner.options.workers : 132;
  }

  std::vector<std::int64_t> run() {
    if (planner_.options.device != "cuda") return std::move(columns_);
    std::vector<Share> group;
    for (OpIndex i = 0; i < planner_.ops.size(); ++i) {
      if (!group.empty() && !joins(group, i)) settle(std::exchange(group, {}));
      if (takes(i)) group.push_back(share_of(i));
    }
    settle(group);
    return std::move(columns_);
  }

 private:
  const spec::Op& source(OpIndex i) const { return planner_.program.ops[planner_.ops[i].spec_op]; }
  spec::TensorId root(const spec::View& v) const {
    const spec::TensorId alias = planner_.program.tensors[v.tensor].alias_of;
    return alias == spec::kNone ? v.tensor : alias;
  }

  /// A product of few rows by weights in columns.
  bool takes(OpIndex i) const {
    const spec::Op& op = source(i);
    const LoweredOp& lowered = planner_.ops[i];
    if (op.kind() != spec::OpKind::matmul || op.condition != spec::kNone || !lowered.tile[3].as_constant()) return false;
    const LoweredOperand& b = lowered.operands[1];
    if (planner_.program.tensors[b.root].kind != spec::TensorKind::weight || !(b.stride[2] == Expr(1))) return false;
    return planner_.typical_value(lowered.extent[2]) <= kFewRows && all_columns(lowered).has_value() && b.dim[2].as_constant().has_value();
  }
  static std::optional<std::int64_t> all_columns(const LoweredOp& op) {
    return (op.extent[0] * op.extent[1] * op.extent[3]).as_constant();
  }
  /// It reads the rows that those of the group read, and nothing that they make.
  bool joins(const std::vector<Share>& group, OpIndex i) const {
    if (group.size() == kMostProducts || !takes(i)) return false;
    const spec::Op &op = source(i), &first = source(group[0].op);
    const spec::View &a = op.inputs[0], &of_first = first.inputs[0];
    const std::size_t rank = a.dims.size(), other = of_first.dims.size();
    if (a.tensor != of_first.tensor) return false;
    for (const std::size_t back : {1, 2}) {
      const spec::ViewDim &x = a.dims[rank - back], &y = of_first.dims[other - back];
      if (!(x.extent == y.extent) || !(x.offset == y.offset) || x.base_dim != y.base_dim) return false;
    }
    for (const Share& s : group)
      for (const spec::View& in : op.inputs)
        if (root(in) == root(source(s.op).outputs[0])) return false;
    return true;
  }

  Share share_of(OpIndex i) const {
    const LoweredOp& op = planner_.ops[i];
    const std::int64_t runs = turns_heads(source(i)) ? 2 : 1, extent = *op.extent[3].as_constant();
    const LoweredOperand& b = op.operands[1];
    const std::int64_t weights = has_twin(source(i)) ? 2 : 1;
    return {i, *all_columns(op), *op.tile[3].as_constant() * runs, std::min(kMostColumns / weights, extent * runs),
            *b.dim[2].as_constant() * static_cast<std::int64_t>(wire::dtype_bytes(b.dtype)) * weights};
  }

  /// Bytes, and what tiles cost beside them, of the worker that has most, if each tile goes to who has least, the largest first.
  std::int64_t longest(std::vector<Share> group) const {
    const auto cost = [](const Share& s) { return kTileBytes + s.columns * s.column_bytes; };
    std::stable_sort(group.begin(), group.end(), [&](const Share& a, const Share& b) { return cost(a) > cost(b); });
    std::priority_queue<std::int64_t, std::vector<std::int64_t>, std::greater<>> loads;
    for (std::int64_t w = 0; w < workers_; ++w) loads.push(0);
    std::int64_t most = 0;
    for (const Share& s : group) {
      for (std::int64_t tile = 0; tile < (s.all + s.columns - 1) / s.columns; ++tile) {
        const std::int64_t load = loads.top() + cost(s);
        loads.pop();
        loads.push(load);
        most = std::max(most, load);
      }
    }
    return most;
  }

  /// Tries each tile at one, two and four times its columns.
  void settle(const std::vector<Share>& group) {
    if (group.size() < 2) return;
    std::vector<Share> best = group;
    std::int64_t least = longest(group);
    const auto ways = static_cast<std::size_t>(1) << (kDoublings * group.size());
    for (std::size_t way = 1; way < ways; ++way) {
      std::vector<Share> tried = group;
      bool fits = true;
      for (std::size_t i = 0; i < tried.size(); ++i) {
        const std::size_t doublings = way >> (kDoublings * i) & ((1u << kDoublings) - 1);
        tried[i].columns <<= doublings;
        fits = fits && doublings <= kDoublings && (doublings == 0 || tried[i].columns <= tried[i].most);
      }
      if (!fits) continue;
      const std::int64_t now = longest(tried);
      if (now >= least) continue;
      least = now;
      best = tried;
    }
    for (std::size_t i = 0; i < best.size(); ++i)
      if (best[i].columns != group[i].columns) columns_[best[i].op] = best[i].columns;
  }

  const Planner& planner_;
  std::vector<std::int64_t> columns_;
  std::int64_t workers_ = 0;
};

}  // namespace

std::vector<std::int64_t> even_shares(const Planner& planner) { return Shares(planner).run(); }

}  // namespace ccks::codegen

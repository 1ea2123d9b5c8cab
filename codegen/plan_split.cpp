// Splits attention over its context. A decode step has a tile for each kv head: eight, where a GPU has 132 workers, and each walks
// the whole context. Here further tiles take parts of it; the last of them to be done brings the parts together, so that no op, and no
// wait, comes behind. How many parts there are is the body's business (worker/attention_split.hpp): the context grows from run to
// run, while tiles and events stay as they are.
//
// Likewise a matmul of as many rows as matrix units take at once (worker/product_split.hpp): the second product of a feed-forward has a tile for every 64
// columns, 32 where a GPU has 132 workers, and each walks a depth of thousands.
#include "codegen/plan_split.hpp"

#include <algorithm>

#include "ccks/worker/tile_hints.hpp"
#include "codegen/plan_angles.hpp"
#include "codegen/plan_internal.hpp"
#include "codegen/plan_lower.hpp"
#include "codegen/plan_rewrite.hpp"
#include "codegen/plan_turn.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {
namespace {

// Of one context: what is brought together at the end grows with them, and below 128 positions a part is not worth it.
constexpr std::int64_t kMostChunks = 32;
constexpr std::int64_t kLeastContext = 128;
// Of an argmax: fewer columns are found sooner than they are brought together; with more rows there are tiles enough.
constexpr std::int64_t kLeastColumns = 1024, kSharedRows = 32;
// Of a product: below a depth of 512 a chunk takes less than bringing sums together. Its tiles have 64 columns, or as few as a plan may cut them to.
constexpr std::int64_t kMostDepthChunks = 8, kLeastDepth = 512, kChunkColumns = 64, kNarrowestColumns = 32, kLowestRows = 16;

class Splitter {
 public:
  Splitter(const spec::Program& program, const PlanOptions& options, std::uint32_t chunks)
      : out_(program), options_(options), wanted_(chunks) {}

  spec::Program run() {
    if (wanted_ == 1 || (options_.device != "cuda" && wanted_ == 0)) return std::move(out_);
    for (spec::Op& op : out_.ops)
      if (const auto* attention = std::get_if<spec::AttentionAttrs>(&op.attrs))
        split(op, *attention);
      else if (op.kind() == spec::OpKind::argmax)
        share_rows(op);
    find_before_routes();
    share_angles(out_);
    fold_ropes(out_, options_);
    split_products();
    if (arrivals_ > 0) count_from_zero();
    return std::move(out_);
  }

 private:
  std::int64_t upper(const Expr& e) const { return e.bounds(out_.symbols).hi; }
  std::int64_t typical(const Expr& e) const { return typical_value(out_, e); }
  std::int64_t workers() const { return wanted_ != 0 ? std::int64_t{wanted_} : options_.workers != 0 ? std::int64_t{options_.workers} : 132; }

  void split(spec::Op& op, const spec::AttentionAttrs& attention) {
    const spec::View& q = op.inputs[0];
    const std::size_t rank = q.dims.size();
    const Expr rows = q.dims[rank - 2].extent, columns = q.dims[rank - 1].extent, batch = rank == 3 ? q.dims[0].extent : Expr(1);
    const std::int64_t heads = attention.heads, kv_heads = attention.kv_heads;
    std::int64_t most = std::min(kMostChunks, upper(op.inputs[1].dims[rank - 2].extent) / kLeastContext);
    const Expr free = wanted_ != 0 ? Expr(std::int64_t{wanted_}) : floordiv(workers(), batch * Expr(kv_heads));
    most = std::min(most, typical(free));
    if (attention.reach || most < 2 || typical(rows) > kSplitRows) return;
    // None for more rows than kSplitRows, and no more than workers are left.
    const Expr chunks = max(1, min(min(Expr(most), free), floordiv(kSplitRows, rows) * Expr(most)));
    const std::string name = op.name;
    add_parts(op, {batch, chunks, Expr(std::int64_t{kSplitRows}), columns + Expr(2 * heads)});
    add_arrivals(op, upper(batch) * kv_heads);
  }

  /// What tiles leave for the one that brings all together.
  void add_parts(spec::Op& op, const std::vector<Expr>& shape) {
    spec::View all;
    all.tensor = tensor(op.name + ".parts", wire::Dtype::f32, shape);
    for (std::uint32_t d = 0; d < shape.size(); ++d) all.dims.push_back({shape[d], d, 0, 1});
    op.outputs.push_back(std::move(all));
  }

  /// Whether its depth may be split at all.
  bool splits(const spec::Op& op) const {
    const auto* a = std::get_if<spec::MatmulAttrs>(&op.attrs);
    if (a == nullptr || a->norm || a->rope || a->twin || op.outputs.size() != 1 || op.inputs[0].dims.size() != 2) return false;
    const auto &rows = op.inputs[0].dims[0].extent, &depth = op.inputs[0].dims[1].extent;
    if (!depth.is_constant() || !op.inputs[1].dims[1].extent.is_constant() || !takes_groups(out_, op)) return false;
    return typical(rows) <= kSplitProductRows && typical(depth) >= 2 * kLeastDepth;
  }
  static std::int64_t tiles_of(const spec::Op& op) {
    return (op.inputs[1].dims[1].extent.as_constant().value_or(1) + kChunkColumns - 1) / kChunkColumns;
  }

  /// Products of the same rows are made at the same time: they share the workers.
  void split_products() {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < out_.ops.size(); ++i)
      if (splits(out_.ops[i])) found.push_back(i);
    for (const std::size_t i : found) {
      std::int64_t tiles = 0;
      for (const std::size_t k : found)
        if (spec::views_equal(out_.ops[k].inputs[0], out_.ops[i].inputs[0])) tiles += tiles_of(out_.ops[k]);
      split_depth(out_.ops[i], wanted_ != 0 ? std::int64_t{wanted_} : workers() / tiles);
    }
  }
  void split_depth(spec::Op& op, std::int64_t chunks) {
    const Expr rows = op.inputs[0].dims[0].extent, columns = op.inputs[1].dims[1].extent;
    chunks = std::min({chunks, kMostDepthChunks, typical(op.inputs[0].dims[1].extent) / kLeastDepth});
    if (chunks < 2) return;
    // With more rows there are as many more tiles of each chunk. From two on as many rows as that leaves.
    const std::int64_t most_rows = kSplitProductRows * chunks / 2;
    add_parts(op, {Expr(1), max(1, min(Expr(chunks), floordiv(kSplitProductRows * chunks, rows))), Expr(most_rows), columns});
    add_arrivals(op, most_rows / kLowestRows * ((upper(columns) + kNarrowestColumns - 1) / kNarrowestColumns));
  }

  /// As many counts, of the tensor that all such ops share.
  void add_arrivals(spec::Op& op, std::int64_t count) {
    if (arrivals_ == 0) counts_ = tensor("arrived", wire::Dtype::i32, {Expr(0)});
    spec::View own;
    own.tensor = counts_;
    own.dims.push_back({Expr(count), 0, Expr(arrivals_), 1});
    op.outputs.push_back(std::move(own));
    arrivals_ += count;
  }

  /// argmax of few long rows of floats: a tile of each worker's.
  void share_rows(spec::Op& op) {
    const spec::View& x = op.inputs[0];
    const auto columns = x.dims.back().extent.as_constant();
    Expr rows = 1;
    for (std::size_t d = 0; d + 1 < x.dims.size(); ++d) rows = rows * x.dims[d].extent;
    if (!columns || !wire::dtype_is_float(out_.tensors[x.tensor].dtype) || upper(rows) > kSharedRows) return;
    const std::int64_t sharers = std::min(workers() / std::max<std::int64_t>(1, typical(rows)), *columns / kLeastColumns);
    if (sharers < 2) return;
    std::vector<Expr> shape;
    for (std::size_t d = 0; d + 1 < x.dims.size(); ++d) shape.push_back(x.dims[d].extent);
    shape.push_back(Expr(sharers));
    spec::View all;
    all.tensor = tensor(op.name + ".found", wire::Dtype::i64, shape);
    for (std::uint32_t d = 0; d < shape.size(); ++d) all.dims.push_back({shape[d], d, 0, 1});
    const std::int64_t counts = upper(rows);
    op.outputs.push_back(std::move(all));
    add_arrivals(op, counts);
  }

  spec::TensorId tensor(std::string name, wire::Dtype dtype, std::vector<Expr> shape) {
    spec::Tensor t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.shape = std::move(shape);
    out_.tensors.push_back(std::move(t));
    return static_cast<spec::TensorId>(out_.tensors.size() - 1);
  }

  /// A route that has all tokens in one tile leaves it to a topk in front, of as many tiles as there are workers, to find their experts: a tile's work
  /// is then what must know all of them. Weights must follow from the values found. Of few tokens the one tile finds them as soon.
  void find_before_routes() {
    for (std::size_t at = 0; at < out_.ops.size(); ++at) {
      const auto* route = std::get_if<spec::RouteAttrs>(&out_.ops[at].attrs);
      if (route == nullptr || takes_found(out_.ops[at]) || (route->softmax_over_all && !route->renormalize)) continue;
      const std::uint32_t k = route->k;
      const spec::View logits = out_.ops[at].inputs[0];
      if (typical(logits.dims[0].extent) <= worker::kFewRouted) continue;
      const std::string name = out_.ops[at].name;
      spec::Op found;
      found.name = name + ".found";
      found.attrs = spec::TopkAttrs{k};
      found.condition = out_.ops[at].condition;
      found.location = out_.ops[at].location;
      found.inputs = {logits};
      for (const wire::Dtype dtype : {out_.tensors[logits.tensor].dtype, wire::Dtype::i32}) {
        const bool values = found.outputs.empty();
        const spec::TensorId id = tensor(name + (values ? ".values" : ".indices"), dtype, {logits.dims[0].extent, Expr(std::int64_t{k})});
        spec::View all;
        all.tensor = id;
        for (std::uint32_t d = 0; d < 2; ++d) all.dims.push_back({out_.tensors[id].shape[d], d, 0, 1});
        found.outputs.push_back(std::move(all));
      }
      out_.ops[at].inputs = found.outputs;
      out_.ops.insert(out_.ops.begin() + static_cast<std::ptrdiff_t>(at), std::move(found));
      for (spec::Report& report : out_.reports) report.op += report.op >= at ? 1 : 0;
      ++at;
    }
  }

  /// All counts of arrivals, by one op in front of all others: a run may have been left in the middle before.
  void count_from_zero() {
    out_.tensors[counts_].shape = {Expr(arrivals_)};
    spec::Op zero;
    zero.name = "arrived.zero";
    spec::ExprNode nothing;
    nothing.type = spec::ScalarType::i64;
    zero.attrs = spec::MapAttrs{{{nothing}}};
    spec::View all;
    all.tensor = counts_;
    all.dims.push_back({Expr(arrivals_), 0, 0, 1});
    zero.outputs.push_back(std::move(all));
    out_.ops.insert(out_.ops.begin(), std::move(zero));
    for (spec::Report& report : out_.reports) ++report.op;
  }

  spec::Program out_;
  const PlanOptions& options_;
  std::uint32_t wanted_;
  spec::TensorId counts_ = spec::kNone;
  std::int64_t arrivals_ = 0;
};

}  // namespace

spec::Program split_attention(const spec::Program& program, const PlanOptions& options, std::uint32_t chunks) {
  return Splitter(program, options, chunks).run();
}

}  // namespace ccks::codegen

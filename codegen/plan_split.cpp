// Splits attention over its context. A decode step has a tile for each kv head: eight, where a GPU has 132 workers, and each walks
// the whole context. Here further tiles take parts of it; the last of them to be done brings the parts together, so that no op, and no
// wait, comes behind. How many parts there are is the body's business (worker/attention_split.hpp): the context grows from run to
// run, while tiles and events stay as they are.
#include "codegen/plan_split.hpp"

#include <algorithm>

#include "codegen/plan_angles.hpp"
#include "codegen/plan_internal.hpp"
#include "codegen/plan_turn.hpp"

namespace ccks::codegen {
namespace {

// Of one context: what is brought together at the end grows with them, and below 128 positions a part is not worth it.
constexpr std::int64_t kMostChunks = 32;
constexpr std::int64_t kLeastContext = 128;
// Of an argmax: fewer columns are found sooner than they are brought together; with more rows there are tiles enough.
constexpr std::int64_t kLeastColumns = 1024, kSharedRows = 32;

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
    if (arrivals_ > 0) count_from_zero();
    find_before_routes();
    share_angles(out_);
    fold_ropes(out_, options_);
    return std::move(out_);
  }

 private:
  std::int64_t upper(const Expr& e) const { return e.bounds(out_.symbols).hi; }
  std::int64_t typical(const Expr& e) const {
    std::vector<std::int64_t> values;
    for (const spec::Symbol& s : out_.symbols) values.push_back(s.preset.value_or(s.range.hi));
    return e.evaluate(values).value_or(upper(e));
  }

  void split(spec::Op& op, const spec::AttentionAttrs& attention) {
    const spec::View& q = op.inputs[0];
    const std::size_t rank = q.dims.size();
    const Expr rows = q.dims[rank - 2].extent, columns = q.dims[rank - 1].extent, batch = rank == 3 ? q.dims[0].extent : Expr(1);
    const std::int64_t heads = attention.heads, kv_heads = attention.kv_heads;
    std::int64_t most = std::min(kMostChunks, upper(op.inputs[1].dims[rank - 2].extent) / kLeastContext);
    const std::int64_t workers = options_.workers != 0 ? options_.workers : 132;
    const Expr free = wanted_ != 0 ? Expr(std::int64_t{wanted_}) : floordiv(workers, batch * Expr(kv_heads));
    most = std::min(most, typical(free));
    if (attention.reach || most < 2 || typical(rows) > kSplitRows) return;
    // None for more rows than kSplitRows, and no more than workers are left.
    const Expr chunks = max(1, min(min(Expr(most), free), floordiv(kSplitRows, rows) * Expr(most)));
    const std::string name = op.name;
    const spec::TensorId parts = tensor(name + ".parts", wire::Dtype::f32,
                                        {batch, chunks, Expr(std::int64_t{kSplitRows}), columns + Expr(2 * heads)});
    spec::View all;
    all.tensor = parts;
    for (std::uint32_t d = 0; d < 4; ++d) all.dims.push_back({out_.tensors[parts].shape[d], d, 0, 1});
    op.outputs.push_back(std::move(all));
    add_arrivals(op, upper(batch) * kv_heads);
  }

  /// As many counts, of the tensor that all such ops share.
  void add_arrivals(spec::Op& op, std::int64_t count) {
    spec::View own;
    own.dims.push_back({Expr(count), 0, Expr(arrivals_), 1});
    op.outputs.push_back(std::move(own));
    split_.push_back(&op);
    arrivals_ += count;
  }

  /// argmax of few long rows of floats: a tile of each worker's.
  void share_rows(spec::Op& op) {
    const spec::View& x = op.inputs[0];
    const auto columns = x.dims.back().extent.as_constant();
    const std::int64_t workers = wanted_ != 0 ? std::int64_t{wanted_} : options_.workers != 0 ? options_.workers : 132;
    Expr rows = 1;
    for (std::size_t d = 0; d + 1 < x.dims.size(); ++d) rows = rows * x.dims[d].extent;
    if (!columns || !wire::dtype_is_float(out_.tensors[x.tensor].dtype) || upper(rows) > kSharedRows) return;
    const std::int64_t sharers = std::min(workers / std::max<std::int64_t>(1, typical(rows)), *columns / kLeastColumns);
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
  /// is then what must know all of them. Weights must follow from the values found.
  void find_before_routes() {
    for (std::size_t at = 0; at < out_.ops.size(); ++at) {
      const auto* route = std::get_if<spec::RouteAttrs>(&out_.ops[at].attrs);
      if (route == nullptr || takes_found(out_.ops[at]) || (route->softmax_over_all && !route->renormalize)) continue;
      const std::uint32_t k = route->k;
      const spec::View logits = out_.ops[at].inputs[0];
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
    const spec::TensorId counts = tensor("arrived", wire::Dtype::i32, {Expr(arrivals_)});
    for (spec::Op* op : split_) op->outputs.back().tensor = counts;
    spec::Op zero;
    zero.name = "arrived.zero";
    spec::ExprNode nothing;
    nothing.type = spec::ScalarType::i64;
    zero.attrs = spec::MapAttrs{{{nothing}}};
    spec::View all;
    all.tensor = counts;
    all.dims.push_back({Expr(arrivals_), 0, 0, 1});
    zero.outputs.push_back(std::move(all));
    out_.ops.insert(out_.ops.begin(), std::move(zero));
    for (spec::Report& report : out_.reports) ++report.op;
  }

  spec::Program out_;
  const PlanOptions& options_;
  std::uint32_t wanted_;
  std::vector<spec::Op*> split_;
  std::int64_t arrivals_ = 0;
};

}  // namespace

spec::Program split_attention(const spec::Program& program, const PlanOptions& options, std::uint32_t chunks) {
  return Splitter(program, options, chunks).run();
}

}  // namespace ccks::codegen

// Splits attention over its context. A decode step has a tile for each kv head: eight, where a GPU has 132 workers, and each walks
// the whole context. Here further tiles take parts of it; the last of them to be done brings the parts together, so that no op, and no
// wait, comes behind. How many parts there are is the body's business (worker/attention_split.hpp): the context grows from run to
// run, while tiles and events stay as they are.
#include "codegen/plan_split.hpp"

#include <algorithm>

#include "codegen/plan_internal.hpp"


namespace ccks::codegen {
namespace {

// Of one context: what is brought together at the end grows with them, and below 128 positions a part is not worth it.
constexpr std::int64_t kMostChunks = 32;
constexpr std::int64_t kLeastContext = 128;

class Splitter {
 public:
  Splitter(const spec::Program& program, const PlanOptions& options, std::uint32_t chunks)
      : out_(program), options_(options), wanted_(chunks) {}

  spec::Program run() {
    if (wanted_ == 1 || (options_.device != "cuda" && wanted_ == 0)) return std::move(out_);
    for (spec::Op& op : out_.ops)
      if (const auto* attention = std::get_if<spec::AttentionAttrs>(&op.attrs)) split(op, *attention);
    if (arrivals_ > 0) count_from_zero();
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
    if (most < 2 || typical(rows) > kSplitRows) return;
    // None for more rows than kSplitRows, and no more than workers are left.
    const Expr chunks = max(1, min(min(Expr(most), free), floordiv(kSplitRows, rows) * Expr(most)));
    const std::string name = op.name;
    const spec::TensorId parts = tensor(name + ".parts", wire::Dtype::f32,
                                        {batch, chunks, Expr(std::int64_t{kSplitRows}), columns + Expr(2 * heads)});
    spec::View all;
    all.tensor = parts;
    for (std::uint32_t d = 0; d < 4; ++d) all.dims.push_back({out_.tensors[parts].shape[d], d, 0, 1});
    op.outputs.push_back(std::move(all));
    const std::int64_t groups = upper(batch) * kv_heads;
    spec::View own;
    own.dims.push_back({Expr(groups), 0, Expr(arrivals_), 1});
    op.outputs.push_back(std::move(own));
    split_.push_back(&op);
    arrivals_ += groups;
  }

  spec::TensorId tensor(std::string name, wire::Dtype dtype, std::vector<Expr> shape) {
    spec::Tensor t;
    t.name = std::move(name);
    t.dtype = dtype;
    t.shape = std::move(shape);
    out_.tensors.push_back(std::move(t));
    return static_cast<spec::TensorId>(out_.tensors.size() - 1);
  }

  /// All counts of arrivals, by one op in front of all others: a run may have been left in the middle before.
  void count_from_zero() {
    const spec::TensorId counts = tensor("attention.arrived", wire::Dtype::i32, {Expr(arrivals_)});
    for (spec::Op* op : split_) op->outputs.back().tensor = counts;
    spec::Op zero;
    zero.name = "attention.arrived.zero";
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

// A rope is folded where that changes no value and no order: between product and rope nobody touches what either writes, the product's
// own result is not seen by anybody else, and rounding stays where it was.
//
// The product then is one of a batch: tile space and operands are [halves of a head, heads, rows, pairs], windows on the same tensors. A tile
// has both halves, so both of each pair, and whoever waits for a head waits for its tiles.
#include "codegen/plan_turn.hpp"

#include <algorithm>

#include "codegen/plan_angles.hpp"
#include "codegen/plan_rewrite.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {
namespace {

using spec::Expr;

// What bodies for few rows take (worker/tile_hints.hpp). With more, what a rope costs is little beside the product.
constexpr std::int64_t kFewRows = 8;
constexpr std::int64_t kLeastPairs = 8;  // a vector of 16-bit floats

spec::ViewDim still(Expr extent) { return {std::move(extent), spec::kNone, 0, 1}; }

class Turner {
 public:
  Turner(spec::Program& program, const PlanOptions& options) : out_(program), options_(options) {}

  void run() {
    std::vector<bool> gone(out_.ops.size(), false);
    for (std::size_t r = 0; r < out_.ops.size(); ++r) {
      if (!has_table(out_.ops[r]) || out_.ops[r].condition != spec::kNone) continue;
      const std::size_t product = producer(r);
      if (product == r || !foldable(product, r)) continue;
      fold(out_.ops[product], out_.ops[r]);
      gone[r] = true;
    }
    drop_ops(out_, gone);
  }

 private:
  std::int64_t typical(const Expr& e) const { return typical_value(out_, e); }
  spec::TensorId root(spec::TensorId t) const {
    const spec::TensorId alias = out_.tensors[t].alias_of;
    return alias == spec::kNone ? t : alias;
  }
  bool touches(const std::vector<spec::View>& views, spec::TensorId t) const {
    return std::any_of(views.begin(), views.end(), [&](const spec::View& v) { return root(v.tensor) == t; });
  }
  bool touches(const spec::Op& op, spec::TensorId t) const { return touches(op.inputs, t) || touches(op.outputs, t); }

  /// Every element of its tensor, row by row.
  bool is_whole(const spec::View& v) const {
    const std::vector<Expr>& shape = out_.tensors[v.tensor].shape;
    if (v.dims.size() != shape.size()) return false;
    for (std::uint32_t d = 0; d < shape.size(); ++d)
      if (v.dims[d].base_dim != d || v.dims[d].step != 1 || !(v.dims[d].offset == Expr(0)) || !(v.dims[d].extent == shape[d])) return false;
    return true;
  }

  /// The op before `r` that touched its rows last; r itself: none.
  std::size_t producer(std::size_t r) const {
    const spec::TensorId rows = root(out_.ops[r].inputs[0].tensor);
    for (std::size_t i = r; i-- > 0;)
      if (touches(out_.ops[i], rows)) return i;
    return r;
  }

  /// Rows of `v`, the input or output of a rope of rows [n, width], or of [n, 1, width].
  static bool has_rows(const spec::View& v, const Expr& n) {
    return v.dims[0].extent == n && (v.dims.size() == 2 || (v.dims.size() == 3 && v.dims[1].extent == Expr(1)));
  }

  bool is_plain(const spec::Op& op) const {
    const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
    return matmul != nullptr && !matmul->rope && matmul->epilogue.empty() && op.condition == spec::kNone &&
           op.inputs.size() == (matmul->norm ? 3u : 2u) && op.inputs[0].dims.size() == 2;
  }

  bool foldable(std::size_t i, std::size_t r) const {
    const spec::Op &product = out_.ops[i], &rope = out_.ops[r];
    if (!is_plain(product)) return false;
    const spec::View &made = product.outputs[0], &x = rope.inputs[0], &turned = rope.outputs[0];
    const spec::TensorId between = root(made.tensor), to = root(turned.tensor);
    const Expr& n = made.dims[0].extent;
    if (!is_whole(made) || !is_whole(x) || !has_rows(x, n) || !has_rows(turned, n)) return false;
    const std::int64_t pairs = *rope.inputs[1].dims[1].extent.as_constant() / 2;
    if (typical(n) > kFewRows || pairs < kLeastPairs || out_.tensors[made.tensor].dtype != out_.tensors[turned.tensor].dtype) return false;
    if (turned.dims.back().base_dim == spec::kNone || product.inputs[1].dims[1].base_dim == spec::kNone || in_rows(product.inputs[1]))
      return false;
    if (out_.tensors[between].kind != spec::TensorKind::intermediate || touches(product.inputs, between) || touches(product.inputs, to)) return false;
    for (std::size_t k = i + 1; k < r; ++k)
      if (touches(out_.ops[k], to)) return false;
    return between == to || unseen_behind(between, r);
  }
  /// On a GPU bodies for few rows that end in the way turned heads do want b in columns.
  bool in_rows(const spec::View& b) const {
    return options_.device == "cuda" && (b.dims[0].step != 1 || b.dims[0].base_dim + 1 != out_.tensors[b.tensor].shape.size());
  }
  /// Whoever touches `t` next writes all of it before anybody reads it.
  bool unseen_behind(spec::TensorId t, std::size_t r) const {
    for (std::size_t k = r + 1; k < out_.ops.size(); ++k) {
      const spec::Op& op = out_.ops[k];
      if (!touches(op, t)) continue;
      return op.condition == spec::kNone && !touches(op.inputs, t) && is_plain(op) && is_whole(op.outputs[0]);
    }
    return true;
  }

  /// [halves, heads, rows, pairs] of columns that `columns` says, rows as `rows` says.
  static spec::View by_heads(const spec::View& v, const spec::ViewDim& rows, const spec::ViewDim& columns, std::int64_t heads, std::int64_t pairs) {
    spec::View out = v;
    spec::ViewDim half{2, columns.base_dim, 0, columns.step * pairs}, pair{pairs, columns.base_dim, 0, columns.step};
    spec::ViewDim head{heads, columns.base_dim, columns.offset, columns.step * pairs * 2};
    out.dims = {std::move(half), std::move(head), rows, std::move(pair)};
    return out;
  }

  static void fold(spec::Op& product, const spec::Op& rope) {
    const spec::View& turned = rope.outputs[0];
    const std::int64_t heads = std::get<spec::RopeAttrs>(rope.attrs).heads, pairs = *rope.inputs[1].dims[1].extent.as_constant() / 2;
    auto& attrs = std::get<spec::MatmulAttrs>(product.attrs);
    attrs.rope = true;
    spec::View &a = product.inputs[0], &b = product.inputs[1];
    const Expr n = a.dims[0].extent;
    a.dims.insert(a.dims.begin(), {still(2), still(heads)});
    b = by_heads(b, b.dims[0], b.dims[1], heads, pairs);
    spec::View out = by_heads(turned, turned.dims[0], turned.dims.back(), heads, pairs);
    spec::View table = rope.inputs[1];
    if (turned.dims.size() == 3) {  // rows are a batch's, all at one position
      if (turned.dims[1].base_dim != spec::kNone) out.fixed[turned.dims[1].base_dim] = turned.dims[1].offset;
      table.dims[0] = still(n);
    }
    product.outputs[0] = std::move(out);
    product.inputs.insert(product.inputs.end() - (attrs.norm ? 1 : 0), std::move(table));
  }

  spec::Program& out_;
  const PlanOptions& options_;
};

}  // namespace

void fold_ropes(spec::Program& program, const PlanOptions& options) {
  if (options.fold_norms) Turner(program, options).run();
}

}  // namespace ccks::codegen

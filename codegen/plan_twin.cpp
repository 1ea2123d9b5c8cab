// A twin is folded where that changes no value and no order: nobody but the other product reads what it makes, what it reads is still the same
// when the other runs, and its results, where they are kept in the output for a moment (worker/twin_products.hpp), write over nothing
// that either still reads.
#include "codegen/plan_twin.hpp"

#include <algorithm>

#include "ccks/wire/op_shape.hpp"
#include "codegen/plan_rewrite.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {
namespace {

using spec::Expr;

// What bodies for few rows take (worker/tile_hints.hpp). With more, a tile is long beside what lies between two.
constexpr std::int64_t kHostRows = 4, kCudaRows = 8;
constexpr std::int64_t kPacket = 8;  // 16-bit floats of 16 bytes

class TwinFolder {
 public:
  TwinFolder(spec::Program program, const PlanOptions& options) : out_(std::move(program)), options_(options) {}

  spec::Program run() {
    std::vector<bool> gone(out_.ops.size(), false);
    for (std::size_t i = 0; i < out_.ops.size(); ++i) {
      const std::size_t other = reader_of(i);
      if (other == i || !foldable(i, other)) continue;
      fold(out_.ops[i], out_.ops[other]);
      gone[i] = true;
    }
    drop_ops(out_, gone);
    return std::move(out_);
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
  wire::Dtype dtype(const spec::View& v) const { return out_.tensors[v.tensor].dtype; }

  static bool is_plain(const spec::Op& op) {
    const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
    if (matmul == nullptr && op.kind() != spec::OpKind::expert_matmul) return false;
    return !(matmul != nullptr && matmul->rope) && !has_twin(op) && op.condition == spec::kNone && op.inputs[0].dims.size() == 2;
  }
  static const std::optional<spec::RmsnormAttrs>& norm(const spec::Op& op) {
    static const std::optional<spec::RmsnormAttrs> kNoNorm;
    const auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
    return matmul != nullptr ? matmul->norm : kNoNorm;
  }
  static spec::ElementExpr& epilogue(spec::Op& op) {
    auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
    return matmul != nullptr ? matmul->epilogue : std::get<spec::ExpertMatmulAttrs>(op.attrs).epilogue;
  }
  static std::optional<spec::ElementExpr>& twin_in(spec::Op& op) {
    auto* matmul = std::get_if<spec::MatmulAttrs>(&op.attrs);
    return matmul != nullptr ? matmul->twin : std::get<spec::ExpertMatmulAttrs>(op.attrs).twin;
  }
  /// Behind the operands of the epilogue.
  static std::size_t end_of(const spec::Op& op) { return op.inputs.size() - (norm(op) ? 1 : 0); }

  /// The only op that touches the result of op `i`, later; i itself: there is none.
  std::size_t reader_of(std::size_t i) const {
    if (!is_plain(out_.ops[i])) return i;
    const spec::TensorId made = out_.ops[i].outputs[0].tensor;
    const spec::Tensor& tensor = out_.tensors[made];
    if (tensor.kind != spec::TensorKind::intermediate || tensor.alias_of != spec::kNone) return i;
    for (const spec::Tensor& other : out_.tensors)
      if (other.alias_of == made) return i;
    std::size_t reader = i;
    for (std::size_t k = 0; k < out_.ops.size(); ++k) {
      const spec::Op& op = out_.ops[k];
      if (k == i || (!touches(op.inputs, made) && !touches(op.outputs, made))) continue;
      if (reader != i || k < i || touches(op.outputs, made)) return i;
      reader = k;
    }
    return reader;
  }

  bool same_rows(const spec::Op& a, const spec::Op& b) const {
    if (a.kind() != b.kind() || !spec::views_equal(a.inputs[0], b.inputs[0]) || norm(a).has_value() != norm(b).has_value()) return false;
    if (const auto* experts = std::get_if<spec::ExpertMatmulAttrs>(&a.attrs)) {
      const auto& others = std::get<spec::ExpertMatmulAttrs>(b.attrs);
      return experts->gather == others.gather && experts->top_k == others.top_k && spec::views_equal(a.inputs[2], b.inputs[2]) &&
             spec::views_equal(a.inputs[3], b.inputs[3]);
    }
    return !norm(a) || (norm(a)->eps == norm(b)->eps && spec::views_equal(a.inputs.back(), b.inputs.back()));
  }
  bool same_form(const spec::View& a, const spec::View& b) const {
    if (dtype(a) != dtype(b) || a.dims.size() != b.dims.size()) return false;
    for (std::size_t d = 0; d < a.dims.size(); ++d)
      if (!(a.dims[d].extent == b.dims[d].extent) || a.dims[d].base_dim != b.dims[d].base_dim || a.dims[d].step != b.dims[d].step) return false;
    return true;
  }
  /// On a GPU only where both stream, or weights of experts go through matrix units in one walk, of any number of rows: else they are two products in one
  /// tile, one after the other, and nothing is gained.
  bool pays(const spec::Op& op) const {
    const spec::View &a = op.inputs[0], &b = op.inputs[1];
    if (options_.device != "cuda") return typical(a.dims[0].extent) <= kHostRows;
    const spec::ViewDim& along = b.dims[b.dims.size() - 2];
    const std::int64_t depth = typical(a.dims[1].extent);
    const bool columns = along.step == 1 && along.base_dim + 1 == out_.tensors[b.tensor].shape.size();
    if (!wire::dtype_is_half(dtype(b)) || dtype(a) != dtype(b) || !columns) return false;
    if (op.kind() == spec::OpKind::expert_matmul) return depth % kPacket == 0;
    return typical(a.dims[0].extent) <= kCudaRows && depth >= wire::kStreamedDepth;
  }

  bool foldable(std::size_t i, std::size_t r) const {
    const spec::Op &twin = out_.ops[i], &op = out_.ops[r];
    if (!is_plain(op) || !same_rows(twin, op) || !same_form(twin.inputs[1], op.inputs[1]) || !pays(op)) return false;
    for (const spec::View* b : {&twin.inputs[1], &op.inputs[1]})
      if (out_.tensors[root(b->tensor)].kind != spec::TensorKind::weight) return false;
    const spec::View &made = twin.outputs[0], &out = op.outputs[0];
    if (!wire::dtype_is_float(dtype(out)) || dtype(made) != dtype(out) || dtype(out) != dtype(op.inputs[1])) return false;
    const auto reads = [&](const spec::View& v) { return v.tensor == made.tensor; };
    const auto first = op.inputs.begin() + static_cast<std::ptrdiff_t>(epilogue_first(op)), end = op.inputs.begin() + static_cast<std::ptrdiff_t>(end_of(op));
    if (std::count_if(op.inputs.begin(), op.inputs.end(), reads) != 1) return false;
    const auto at = std::find_if(first, end, reads);
    if (at == end || !spec::views_equal(*at, made) || op.inputs.size() + end_of(twin) + 2 - epilogue_first(op) > wire::kMostTwinOperands) return false;
    if (touches(op.inputs, root(out.tensor)) || touches(twin.inputs, root(out.tensor))) return false;
    for (std::size_t k = i + 1; k < r; ++k)
      for (const spec::View& in : twin.inputs)
        if (touches(out_.ops[k].outputs, root(in.tensor))) return false;
    return true;
  }

  /// Argument `i` becomes now[i].
  static void rename(spec::ElementExpr& expr, const std::vector<std::uint32_t>& now) {
    for (spec::ExprNode& n : expr.nodes)
      if (n.fn == spec::ExprFn::argument) n.index = now[n.index];
  }
  /// Inputs of the product that is left: a, its b, what routes rows, the twin's b, the other operands of its epilogue, those of the twin's, the norm's weight.
  static void fold(spec::Op& twin, spec::Op& op) {
    const std::size_t first = epilogue_first(op);
    const spec::TensorId made = twin.outputs[0].tensor;
    std::vector<spec::View> inputs(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(first));
    inputs.push_back(twin.inputs[1]);
    std::vector<std::uint32_t> own{0}, others{0};
    const auto take = [&](const spec::View& v) {
      inputs.push_back(v);
      return static_cast<std::uint32_t>(inputs.size() - first);
    };
    for (std::size_t k = first; k < end_of(op); ++k) own.push_back(op.inputs[k].tensor == made ? 1 : take(op.inputs[k]));
    for (std::size_t k = first; k < end_of(twin); ++k) others.push_back(take(twin.inputs[k]));
    if (norm(op)) inputs.push_back(op.inputs.back());
    twin_in(op) = epilogue(twin);
    rename(epilogue(op), own);
    rename(*twin_in(op), others);
    op.inputs = std::move(inputs);
  }

  spec::Program out_;
  const PlanOptions& options_;
};

}  // namespace

spec::Program fold_twins(spec::Program program, const PlanOptions& options) {
  if (!options.fold_norms) return program;
  return TwinFolder(std::move(program), options).run();
}

}  // namespace ccks::codegen

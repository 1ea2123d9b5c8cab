// A norm is folded where that changes no value and costs little: all who read it are products of its rows as they stand, what it
// reads is still the same when they run, nobody else sees its result, and rows are few, since every tile norms all of its rows.
#include "codegen/plan_fold.hpp"

#include <algorithm>

#include "codegen/plan_internal.hpp"
#include "codegen/plan_rewrite.hpp"
#include "spec/view.hpp"

namespace ccks::codegen {
namespace {

// What the bodies for few rows take (worker/tile_hints.hpp), and on a GPU keep in scratch beside their sums.
constexpr std::int64_t kHostRows = 4, kCudaRows = 8, kCudaBytes = 24 * 1024;

class Folder {
 public:
  Folder(const spec::Program& program, const PlanOptions& options) : out_(program), options_(options) {}

  spec::Program run() {
    std::vector<bool> gone(out_.ops.size(), false);
    for (std::size_t i = 0; i < out_.ops.size(); ++i) {
      const std::vector<std::size_t> readers = foldable(i);
      for (const std::size_t r : readers) fold(out_.ops[i], out_.ops[r]);
      gone[i] = !readers.empty();
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
  bool writes(const spec::Op& op, spec::TensorId to) const {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](const spec::View& v) { return root(v.tensor) == to; });
  }
  bool reads(const spec::Op& op, spec::TensorId from) const {
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const spec::View& v) { return root(v.tensor) == from; });
  }
  /// Neighbours along dim `d` of the view are neighbours in memory.
  bool contiguous(const spec::View& v, std::size_t d) const {
    const std::size_t rank = out_.tensors[v.tensor].shape.size();
    return v.dims[d].base_dim + 1 == rank && v.dims[d].step == 1;
  }

  bool takes(const spec::Op& product, const spec::View& normed) const {
    const auto* matmul = std::get_if<spec::MatmulAttrs>(&product.attrs);
    if (!matmul || matmul->norm || product.condition != spec::kNone || product.inputs[0].dims.size() != 2) return false;
    if (!spec::views_equal(product.inputs[0], normed)) return false;
    for (std::size_t k = 1; k < product.inputs.size(); ++k)
      if (root(product.inputs[k].tensor) == normed.tensor) return false;
    return options_.device != "cuda" || contiguous(product.inputs[1], 0);
  }
  bool few_rows(const spec::View& x) const {
    const std::int64_t rows = typical(x.dims[0].extent), width = typical(x.dims[1].extent);
    if (options_.device != "cuda") return rows <= kHostRows;
    return rows <= kCudaRows && width % 8 == 0 && contiguous(x, 1) &&
           rows * width * wire::dtype_bytes(out_.tensors[x.tensor].dtype) <= kCudaBytes;
  }
  /// Nobody but ops of this program sees it, and none but `norm` writes it.
  bool own(const spec::Op& norm, spec::TensorId t) const {
    const spec::Tensor& tensor = out_.tensors[t];
    if (tensor.kind != spec::TensorKind::intermediate || tensor.alias_of != spec::kNone) return false;
    for (const spec::Tensor& other : out_.tensors)
      if (other.alias_of == t) return false;
    return std::all_of(out_.ops.begin(), out_.ops.end(), [&](const spec::Op& op) { return &op == &norm || !writes(op, t); });
  }

  /// The products that op `i`, a norm, goes into; none: it stays.
  std::vector<std::size_t> foldable(std::size_t i) const {
    const spec::Op& norm = out_.ops[i];
    if (norm.kind() != spec::OpKind::rmsnorm || norm.condition != spec::kNone) return {};
    const spec::View &x = norm.inputs[0], &result = norm.outputs[0];
    if (x.dims.size() != 2 || out_.tensors[x.tensor].dtype != out_.tensors[result.tensor].dtype) return {};
    if (!few_rows(x) || !own(norm, result.tensor)) return {};
    std::vector<std::size_t> readers;
    for (std::size_t r = i + 1; r < out_.ops.size(); ++r) {
      if (!reads(out_.ops[r], result.tensor)) continue;
      if (!takes(out_.ops[r], result)) return {};
      readers.push_back(r);
    }
    for (std::size_t r = i + 1; !readers.empty() && r <= readers.back(); ++r)
      if (writes(out_.ops[r], root(x.tensor)) || writes(out_.ops[r], root(norm.inputs[1].tensor))) return {};
    return readers;
  }

  static void fold(const spec::Op& norm, spec::Op& product) {
    std::get<spec::MatmulAttrs>(product.attrs).norm = std::get<spec::RmsnormAttrs>(norm.attrs);
    product.inputs[0] = norm.inputs[0];
    product.inputs.push_back(norm.inputs[1]);
  }

  spec::Program out_;
  const PlanOptions& options_;
};

}  // namespace

spec::Program fold_norms(const spec::Program& program, const PlanOptions& options) {
  if (!options.fold_norms) return program;
  return Folder(program, options).run();
}

}  // namespace ccks::codegen

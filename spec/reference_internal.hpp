// Inside of the reference interpreter: strided windows on f64 storage, and one function per op kind. Private to spec.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ccks/result.hpp"
#include "spec/program.hpp"

namespace ccks::spec::reference {

/// Window is a View with numbers in it: a strided piece of one tensor's storage. Borrowed, the Machine outlives it.
struct Window {
  double* data = nullptr;  // element at index (0, ..., 0)
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> strides;  // in elements; 0 for a broadcast

  std::size_t rank() const { return extents.size(); }
  std::int64_t count() const;
  /// Extent of a dim counted from the innermost: back(0) is the last.
  std::int64_t back(std::size_t i) const { return extents[extents.size() - 1 - i]; }
};

/// read copies a window into row-major order.
std::vector<double> read(const Window& window);
/// write rounds row-major `values` to the window's dtype and stores them.
void write(const Window& window, std::span<const double> values);
/// First element of the `block`-th of the row-major blocks that the last `inner_rank` dims form.
double* block_at(const Window& window, std::int64_t block, std::size_t inner_rank);
/// Product of all extents but the last `inner_rank`.
std::int64_t block_count(const Window& window, std::size_t inner_rank);

/// What one op sees when it runs: windows for its views, in the order of Op::inputs and Op::outputs.
struct Call {
  const Op& op;
  std::span<const std::int64_t> dims;  // by SymbolId
  std::vector<Window> in;
  std::vector<Window> out;
  bool taken = true;  // select: whether its condition held

  Status misshapen(const std::string& what) const;
};

/// evaluate_elements gives the value of `expr` for each element of a row-major array of `extents`; `arguments[k]` are
/// the row-major values of operand k, as many as the array has. An empty expression copies argument 0.
Result<std::vector<double>> evaluate_elements(const ElementExpr& expr,
                                              std::span<const std::span<const double>> arguments,
                                              std::span<const std::int64_t> extents);
/// store_epilogue applies `epilogue` to (acc, call.in[first_operand...]) and writes call.out[0].
Status store_epilogue(const Call& call, const ElementExpr& epilogue, std::span<const double> acc,
                      std::size_t first_operand);

/// multiply_add adds a[m, k] (row-major) times b[k, n] (any strides) to out[m, n] (row-major).
struct Strided {
  const double* data;
  std::int64_t row_stride, column_stride;
};
void multiply_add(std::span<const double> a, Strided b, std::span<double> out, std::int64_t m, std::int64_t k,
                  std::int64_t n);

/// The two products of an op with a twin, its second b being input `second`: the twin's result, rounded as a tensor between them would be, is an operand of the
/// other's epilogue.
struct TwinCalls {
  TwinCalls(const Call& call, std::size_t second);
  TwinCalls(const TwinCalls&) = delete;
  Call twin, product;
  std::vector<double> values;
};

/// Indices of the k largest of `row`, largest first, the first of equals first.
std::vector<std::int64_t> largest(std::span<const double> row, std::int64_t k);
/// softmax_in_place replaces `row` by softmax(row * scale).
void softmax_in_place(std::span<double> row, double scale);

Status run_map(const Call& call, const ElementExpr& expr);
Status run_reduce(const Call& call, const ReduceAttrs& attrs);
Status run_softmax(const Call& call, const SoftmaxAttrs& attrs);
Status run_rmsnorm(const Call& call, const RmsnormAttrs& attrs);
Status run_layernorm(const Call& call, const LayernormAttrs& attrs);
Status run_rope(const Call& call, const RopeAttrs& attrs);
Status run_gather(const Call& call);
Status run_scatter(const Call& call);
Status run_argmax(const Call& call);
Status run_topk(const Call& call, const TopkAttrs& attrs);
Status run_matmul(const Call& call, const MatmulAttrs& attrs);
Status run_attention(const Call& call, const AttentionAttrs& attrs);
Status run_conv2d(const Call& call, const Conv2dAttrs& attrs);
Status run_route(const Call& call, const RouteAttrs& attrs);
Status run_expert_matmul(const Call& call, const ExpertMatmulAttrs& attrs);
Status run_combine(const Call& call, const CombineAttrs& attrs);
Status run_report(const Call& call);
Status run_select(const Call& call);

}  // namespace ccks::spec::reference

#include <fmt/format.h>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

/// Both operands as views of equal rank, their batch dims broadcast against each other.
std::optional<Shape> align_batches(OpReader& r, View& a, View& b) {
  const Shape sa = shape_of(a), sb = shape_of(b);
  const auto batch = broadcast_shapes(r.b, Shape(sa.begin(), sa.end() - 2), Shape(sb.begin(), sb.end() - 2), r.where(),
                                      r.label() + ": batch dims");
  if (!batch) return std::nullopt;
  for (View* v : {&a, &b}) {
    Shape target = *batch;
    target.push_back(v->dims[v->dims.size() - 2].extent);
    target.push_back(v->dims.back().extent);
    auto wide = broadcast(r.b, *v, target, r.where(), "an operand of " + r.label());
    if (!wide) return std::nullopt;
    *v = std::move(*wide);
  }
  return batch;
}

Dtype float_result(OpReader& r, const View& x) {
  const Dtype d = r.dtype(r.b.dtype_of(x));
  if (!r.failed() && !wire::dtype_is_float(d))
    r.error(code::kDtypeMismatch, r.where("dtype"), r.kind() + " gives floats");
  return d;
}

}  // namespace

void build_matmul(OpReader& r) {
  View a = r.operand("a"), b = r.operand("b");
  const bool transpose_a = r.flag("transpose_a", false), transpose_b = r.flag("transpose_b", false);
  if (!r.expect_rank(a, "a", 2, kMaxRank) || !r.expect_rank(b, "b", 2, kMaxRank)) return;
  if (!r.expect_float(a, "a") || !r.expect_float(b, "b") || !r.expect_same_dtype(a, b, "b")) return;
  if (transpose_a) a = swap_last(std::move(a));
  if (transpose_b) b = swap_last(std::move(b));
  r.equal(a.dims.back().extent, b.dims[b.dims.size() - 2].extent, "inner dims of a and b differ", "b");
  if (r.failed()) return;
  auto shape = align_batches(r, a, b);
  if (!shape) return r.fail();
  shape->push_back(a.dims[a.dims.size() - 2].extent);
  shape->push_back(b.dims.back().extent);
  const Dtype dtype = float_result(r, a);
  std::vector<View> inputs{std::move(a), std::move(b)};
  MatmulAttrs attrs{r.epilogue(*shape, inputs)};
  r.finish(std::move(attrs), std::move(inputs), *shape, dtype);
}

namespace {

/// Extent of one spatial dim of the result: how often the window fits.
Expr window_count(OpReader& r, const Expr& size, const Expr& kernel, std::uint32_t stride, std::uint32_t padding,
                  std::uint32_t dilation) {
  const Expr reach = Expr(dilation) * (kernel - Expr(1)) + Expr(1);
  const Expr room = size + Expr(2 * std::int64_t{padding}) - reach;
  r.less_equal(Expr(0), room, "the kernel is larger than the padded image", "weight");
  return floordiv(room, Expr(stride)) + Expr(1);
}

}  // namespace

void build_conv2d(OpReader& r) {
  const View x = r.operand("x"), weight = r.operand("weight");
  const auto stride = r.pair("stride", 1, 1), padding = r.pair("padding", 0, 0), dilation = r.pair("dilation", 1, 1);
  if (!r.expect_rank(x, "x", 4, 4) || !r.expect_rank(weight, "weight", 4, 4)) return;
  if (!r.expect_float(x, "x") || !r.expect_float(weight, "weight") || !r.expect_same_dtype(x, weight, "weight")) return;
  r.equal(x.dims[1].extent, weight.dims[1].extent, "channels of x and weight differ", "weight");
  Shape shape{x.dims[0].extent, weight.dims[0].extent};
  for (std::size_t i = 0; i < 2; ++i)
    shape.push_back(
        window_count(r, x.dims[2 + i].extent, weight.dims[2 + i].extent, stride[i], padding[i], dilation[i]));
  if (r.failed()) return;
  const Dtype dtype = float_result(r, x);
  std::vector<View> inputs{x, weight};
  Conv2dAttrs attrs{stride, padding, dilation, r.epilogue(shape, inputs)};
  r.finish(std::move(attrs), std::move(inputs), shape, dtype);
}

}  // namespace ccks::spec

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

/// What a map stores by default: floats and ints in the widest type of their operands.
Dtype natural_dtype(const Builder& b, ScalarType type, const std::vector<View>& operands) {
  if (type == ScalarType::boolean) return Dtype::boolean;
  std::optional<Dtype> wide;
  for (const View& v : operands) {
    const Dtype d = b.dtype_of(v);
    if (scalar_type(d) == type) wide = wide ? promote(*wide, d) : d;
  }
  return wide.value_or(type == ScalarType::f32 ? Dtype::f32 : Dtype::i32);
}

/// The shape of a map's result: of the window it writes, as given, or that of its operands together.
std::optional<Shape> map_shape(OpReader& r, const OutTarget& target, const std::vector<View>& operands) {
  if (const Yaml* given = r.find("shape")) return r.b.shape(*given);
  if (target.window) return shape_of(*target.window);
  if (operands.empty()) {
    r.error(code::kMissingKey, r.where(), "a map of no tensors needs 'shape'");
    return std::nullopt;
  }
  Shape shape = shape_of(operands[0]);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    auto wider = broadcast_shapes(r.b, shape, shape_of(operands[i]), r.where("expr"), r.label());
    if (!wider) return std::nullopt;
    shape = std::move(*wider);
  }
  return shape;
}

void check_indices(OpReader& r, const ElementExpr& e, std::size_t rank) {
  for (const ExprNode& n : e.nodes)
    if (n.fn == ExprFn::index && n.index >= rank)
      r.error(code::kExprFunction, r.where("expr"), fmt::format("index({}) of a result with {} dims", n.index, rank));
}

}  // namespace

void build_map(OpReader& r) {
  std::vector<View> operands;
  ElementExpr e = r.element("expr", false, kMaxRank, operands);
  if (r.failed()) return;
  const auto target = r.out_target();
  if (!target) return;
  const auto shape = map_shape(r, *target, operands);
  if (!shape) return r.fail();
  check_indices(r, e, shape->size());
  const ScalarType type = e.nodes.back().type;
  const Dtype natural = natural_dtype(r.b, type, operands);
  Dtype dtype = r.dtype(natural);
  if (!r.failed() && scalar_type(dtype) != type)
    r.error(code::kExprType, r.where("dtype"),
            fmt::format("the expression gives {}, not {}", scalar_type_name(type), wire::dtype_name(dtype)),
            "convert inside the expression: float(x), int(x) or bool(x)");
  std::vector<View> wide;
  for (const View& v : operands) {
    auto w = broadcast(r.b, v, *shape, r.where("expr"), "an operand of " + r.label());
    if (!w) return r.fail();
    wide.push_back(std::move(*w));
  }
  if (r.failed()) return;
  const auto out = r.open(*target, *shape, dtype, DtypeRule::same_category);
  if (out) r.emit(MapAttrs{std::move(e)}, std::move(wide), {*out}, target->name);
}

namespace {

std::vector<std::uint32_t> read_axes(OpReader& r, std::size_t rank) {
  std::set<std::uint32_t> axes;
  const Yaml* node = r.require("axes");
  if (!node || r.failed()) return {};
  const std::vector<Yaml> one{*node};
  for (const Yaml& child : node->is_sequence() ? node->children : one) {
    const auto n = static_cast<std::int64_t>(rank);
    const auto axis = r.b.constant(child, INT64_MIN / 2, INT64_MAX / 2);
    if (!axis) {
      r.fail();
    } else if (*axis < -n || *axis >= n) {
      r.error(code::kBadAxis, child.span, fmt::format("axis {} of a tensor with {} dims", *axis, rank));
    } else if (!axes.insert(static_cast<std::uint32_t>(*axis < 0 ? *axis + n : *axis)).second) {
      r.error(code::kBadAxis, child.span, fmt::format("axis {} stands twice", *axis));
    }
  }
  if (axes.empty() && !r.failed()) r.error(code::kBadAxis, node->span, "at least one axis is reduced");
  return {axes.begin(), axes.end()};
}

}  // namespace

void build_reduce(OpReader& r) {
  const View x = r.operand("x");
  r.require("fn");
  const auto fn = static_cast<ReduceFn>(r.choice("fn", {"sum", "mean", "max", "min", "prod"}, 0));
  const bool keepdims = r.flag("keepdims", false);
  if (r.failed()) return;
  ReduceAttrs attrs{fn, read_axes(r, x.dims.size()), keepdims};
  const Dtype dtype = r.dtype(r.b.dtype_of(x));
  if (r.b.dtype_of(x) == Dtype::boolean)
    r.error(code::kDtypeMismatch, r.where("x"), "a reduction takes numbers, not bool", "convert with a map: int(x)");
  if (fn == ReduceFn::mean) r.expect_float(x, "x");
  if (!r.failed() && scalar_type(dtype) != scalar_type(r.b.dtype_of(x)))
    r.error(code::kDtypeMismatch, r.where("dtype"), "a reduction keeps floats floats and ints ints");
  Shape shape;
  for (std::uint32_t i = 0; i < x.dims.size(); ++i) {
    const bool reduced = std::find(attrs.axes.begin(), attrs.axes.end(), i) != attrs.axes.end();
    if (!reduced)
      shape.push_back(x.dims[i].extent);
    else if (keepdims)
      shape.push_back(Expr(1));
  }
  r.finish(std::move(attrs), {x}, shape, dtype);
}

namespace {

Dtype float_dtype(OpReader& r, const View& x) {
  if (r.failed()) return Dtype::f32;
  const Dtype d = r.dtype(r.b.dtype_of(x));
  if (!r.failed() && !wire::dtype_is_float(d))
    r.error(code::kDtypeMismatch, r.where("dtype"), r.kind() + " gives floats");
  return d;
}

void expect_row(OpReader& r, const View& v, const View& x, const char* key) {
  if (r.expect_rank(v, key, 1, 1) && r.expect_float(v, key))
    r.equal(v.dims[0].extent, x.dims.back().extent, fmt::format("'{}' and the last dim of x differ", key), key);
}

double positive(OpReader& r, const char* key, double fallback) {
  const double value = r.number(key, fallback);
  if (!r.failed() && !(value >= 0))
    r.error(code::kBadAttribute, r.where(key), fmt::format("'{}' must not be negative", key));
  return value;
}

constexpr double kDefaultEps = 1e-5;  // as in the papers of both norms' common implementations

}  // namespace

void build_softmax(OpReader& r) {
  const View x = r.operand("x");
  const double scale = r.number("scale", 1);
  if (!r.expect_rank(x, "x", 1, kMaxRank) || !r.expect_float(x, "x")) return;
  const Dtype dtype = float_dtype(r, x);
  r.finish(SoftmaxAttrs{scale}, {x}, shape_of(x), dtype);
}

void build_rmsnorm(OpReader& r) {
  const View x = r.operand("x"), weight = r.operand("weight");
  const double eps = positive(r, "eps", kDefaultEps);
  if (!r.expect_rank(x, "x", 1, kMaxRank) || !r.expect_float(x, "x")) return;
  expect_row(r, weight, x, "weight");
  const Dtype dtype = float_dtype(r, x);
  r.finish(RmsnormAttrs{eps}, {x, weight}, shape_of(x), dtype);
}

void build_layernorm(OpReader& r) {
  const View x = r.operand("x"), weight = r.operand("weight");
  std::vector<View> inputs{x, weight};
  const bool has_bias = r.has("bias");
  if (has_bias) inputs.push_back(r.operand("bias"));
  const double eps = positive(r, "eps", kDefaultEps);
  if (!r.expect_rank(x, "x", 1, kMaxRank) || !r.expect_float(x, "x")) return;
  expect_row(r, weight, x, "weight");
  if (has_bias) expect_row(r, inputs[2], x, "bias");
  const Dtype dtype = float_dtype(r, x);
  r.finish(LayernormAttrs{eps, has_bias}, std::move(inputs), shape_of(x), dtype);
}

}  // namespace ccks::spec

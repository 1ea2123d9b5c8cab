// Ops that only name a view, and concat, which copies.
#include <fmt/format.h>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {

void build_slice(OpReader& r) {
  View x = r.operand("x");
  if (r.failed()) return;
  if (const Yaml* range = r.find("range")) {
    const auto text = r.b.text(*range);
    auto narrowed = text ? parse_slice(r.b, x, *text) : std::nullopt;
    if (!narrowed) return r.fail();
    x = std::move(*narrowed);
  }
  r.bind_view(x);
}

void build_transpose(OpReader& r) {
  const View x = r.operand("x");
  if (!r.expect_rank(x, "x", 2, kMaxRank)) return;
  const Yaml* axes = r.find("axes");
  if (!axes) return r.bind_view(swap_last(x));
  if (!r.b.expect(*axes, Yaml::Kind::sequence, "'axes'")) return r.fail();
  std::vector<std::uint32_t> order;
  std::vector<bool> seen(x.dims.size(), false);
  for (const Yaml& child : axes->children) {
    const auto i = r.b.constant(child, 0, static_cast<std::int64_t>(x.dims.size()) - 1);
    if (!i) return r.fail();
    if (seen[static_cast<std::size_t>(*i)])
      return r.error(code::kBadAxis, child.span, fmt::format("axis {} stands twice", *i));
    seen[static_cast<std::size_t>(*i)] = true;
    order.push_back(static_cast<std::uint32_t>(*i));
  }
  if (order.size() != x.dims.size())
    return r.error(code::kBadAxis, axes->span, fmt::format("transpose takes each of the {} dims once", x.dims.size()));
  r.bind_view(permute(x, order));
}

void build_reshape(OpReader& r) {
  const View x = r.operand("x");
  const Yaml* node = r.require("shape");
  const auto shape = node ? r.b.shape(*node) : std::nullopt;
  if (!shape || r.failed()) return r.fail();
  const auto v = reshape(r.b, x, *shape, node->span);
  if (!v) return r.fail();
  r.bind_view(*v);
}

void build_broadcast(OpReader& r) {
  const View x = r.operand("x");
  const Yaml* node = r.require("shape");
  const auto shape = node ? r.b.shape(*node) : std::nullopt;
  if (!shape || r.failed()) return r.fail();
  const auto v = broadcast(r.b, x, *shape, node->span, "x");
  if (!v) return r.fail();
  r.bind_view(*v);
}

namespace {

std::vector<View> concat_inputs(OpReader& r) {
  std::vector<View> inputs;
  const Yaml* node = r.require("inputs");
  if (!node || !r.b.expect(*node, Yaml::Kind::sequence, "'inputs'")) {
    r.fail();
    return inputs;
  }
  for (const Yaml& child : node->children) inputs.push_back(r.operand_in(child));
  if (inputs.empty()) r.error(code::kBadAttribute, node->span, "concat needs at least one input");
  for (const View& v : inputs) {
    if (r.failed()) break;
    r.expect_same_dtype(inputs[0], v, "inputs");
    if (!r.failed() && v.dims.size() != inputs[0].dims.size())
      r.error(code::kWrongRank, node->span, "the inputs of concat have different numbers of dims");
  }
  return inputs;
}

}  // namespace

void build_concat(OpReader& r) {
  const std::vector<View> inputs = concat_inputs(r);
  if (r.failed()) return;
  const auto rank = static_cast<std::int64_t>(inputs[0].dims.size());
  std::int64_t axis = r.integer("axis", -64, 64);
  if (r.failed()) return;
  if (axis < -rank || axis >= rank)
    return r.error(code::kBadAxis, r.where("axis"), fmt::format("axis {} of tensors with {} dims", axis, rank));
  const auto along = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  Shape shape = shape_of(inputs[0]);
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (d != along) r.equal(shape[d], inputs[i].dims[d].extent, "inputs differ beside the axis", "inputs");
    shape[along] = shape[along] + inputs[i].dims[along].extent;
  }
  const auto target = r.failed() ? std::nullopt : r.out_target();
  const auto out = target ? r.open(*target, shape, r.b.dtype_of(inputs[0]), DtypeRule::same_category) : std::nullopt;
  if (!out) return;
  Expr at = 0;
  for (std::size_t i = 0; i < inputs.size() && !r.failed(); ++i) {
    const Expr end = at + inputs[i].dims[along].extent;
    const auto window = narrow(r.b, *out, along, at, end, r.where(), r.label());
    if (!window) return r.fail();
    r.emit(MapAttrs{}, {inputs[i]}, {*window}, fmt::format("concat.{}.{}", target->name, i));
    at = end;
  }
}

}  // namespace ccks::spec

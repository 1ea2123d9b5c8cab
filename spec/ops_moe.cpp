#include <fmt/format.h>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

constexpr std::int64_t kMaxChosen = 64;  // experts of one token

/// The route named under `route`, or null after a complaint.
const RouteInfo* find_route(OpReader& r) {
  const Yaml* node = r.require("route");
  const auto text = node ? r.b.text(*node) : std::nullopt;
  if (!text) {
    r.fail();
    return nullptr;
  }
  const RouteInfo* route = r.b.scopes.find_route(text->text);
  if (route && !route->poisoned) {
    for (const View* v : {&route->weight, &route->source, &route->row, &route->count}) r.b.mark_read(v->tensor);
    return route;
  }
  r.fail();
  if (!route) {
    const Binding* broken = r.b.scopes.find(text->text);
    if (!broken || !broken->poisoned)
      r.b.diagnostics.error(code::kUnknownRoute, node->span, "no op 'route' made " + in_quotes(text->text),
                            did_you_mean(text->text, r.b.scopes.route_names()));
  }
  return nullptr;
}

struct Result {
  const char* part;
  Shape shape;
  Dtype dtype;
};

}  // namespace

void build_route(OpReader& r) {
  const View logits = r.operand("logits");
  const auto k = static_cast<std::uint32_t>(r.integer("k", 1, kMaxChosen));
  const bool over_all = r.choice("softmax", {"all", "chosen"}, 1) == 0;
  const bool renormalize = r.flag("renormalize", false);
  if (!r.expect_rank(logits, "logits", 2, 2) || !r.expect_float(logits, "logits")) return;
  const Expr t = logits.dims[0].extent, e = logits.dims[1].extent;
  r.less_equal(Expr(k), e, "k exceeds the number of experts", "k");
  const auto target = r.out_target();
  if (r.failed()) return;
  if (target->window) return r.error(code::kReadOnly, target->where, "'out' of route is a new name");
  const Result results[] = {{".weight", {t, Expr(k)}, Dtype::f32},
                            {".expert", {t, Expr(k)}, Dtype::i32},
                            {".count", {e}, Dtype::i32},
                            {".row", {t, Expr(k)}, Dtype::i32},
                            {".source", {t * Expr(k)}, Dtype::i32}};
  std::vector<View> outputs;
  for (const Result& result : results) {
    OutTarget part = *target;
    part.name += result.part;
    const auto v = open_out(r.b, part, result.shape, result.dtype, DtypeRule::exact);
    if (!v) return r.fail();
    r.b.mark_read(v->tensor);
    outputs.push_back(*v);
  }
  RouteInfo info;
  info.k = k;
  info.tokens = t;
  info.experts = e;
  info.weight = outputs[0];
  info.count = outputs[2];
  info.row = outputs[3];
  info.source = outputs[4];
  r.b.scopes.top().routes[target->name] = std::move(info);
  r.emit(RouteAttrs{k, over_all, renormalize}, {logits}, std::move(outputs), target->name);
}

void build_expert_matmul(OpReader& r) {
  const View x = r.operand("x");
  View b = r.operand("b");
  const bool transpose_b = r.flag("transpose_b", false);
  r.require("input");
  const bool gather = r.choice("input", {"tokens", "rows"}, 0) == 0;
  const RouteInfo* route = find_route(r);
  if (!r.expect_rank(x, "x", 2, 2) || !r.expect_rank(b, "b", 3, 3) || !route) return;
  if (!r.expect_float(x, "x") || !r.expect_float(b, "b") || !r.expect_same_dtype(x, b, "b")) return;
  if (transpose_b) b = swap_last(std::move(b));
  const Expr rows = route->tokens * Expr(route->k);
  r.equal(x.dims[0].extent, gather ? route->tokens : rows,
          gather ? "x has not one row a token" : "x has not one row a routed pair", "x");
  r.equal(b.dims[0].extent, route->experts, "b has not one matrix an expert", "b");
  r.equal(x.dims[1].extent, b.dims[1].extent, "inner dims of x and b differ", "b");
  if (r.failed()) return;
  const Shape shape{rows, b.dims[2].extent};
  const Dtype dtype = r.dtype(r.b.dtype_of(x));
  if (!r.failed() && !wire::dtype_is_float(dtype))
    r.error(code::kDtypeMismatch, r.where("dtype"), "expert_matmul gives floats");
  std::vector<View> inputs{x, b, route->source, route->count};
  ExpertMatmulAttrs attrs{route->k, gather, r.epilogue(shape, inputs)};
  r.finish(std::move(attrs), std::move(inputs), shape, dtype);
}

void build_combine(OpReader& r) {
  const View x = r.operand("x");
  const RouteInfo* route = find_route(r);
  if (!r.expect_rank(x, "x", 2, 2) || !r.expect_float(x, "x") || !route) return;
  r.equal(x.dims[0].extent, route->tokens * Expr(route->k), "x has not one row a routed pair", "x");
  const Dtype dtype = r.failed() ? Dtype::f32 : r.dtype(r.b.dtype_of(x));
  if (!r.failed() && !wire::dtype_is_float(dtype))
    r.error(code::kDtypeMismatch, r.where("dtype"), "combine gives floats");
  if (r.failed()) return;
  const Shape shape{route->tokens, x.dims[1].extent};
  std::vector<View> inputs{x, route->weight, route->row};
  CombineAttrs attrs{route->k, r.epilogue(shape, inputs)};
  r.finish(std::move(attrs), std::move(inputs), shape, dtype);
}

}  // namespace ccks::spec

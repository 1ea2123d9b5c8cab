#include <fmt/format.h>

#include <cmath>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxPage = 1 << 16;

struct Heads {
  std::uint32_t heads = 1, kv_heads = 1;
  Expr head_dim;
};

Heads read_heads(OpReader& r, const View& q) {
  Heads h;
  h.heads = static_cast<std::uint32_t>(r.integer("heads", 1, kMaxHeads));
  h.kv_heads = static_cast<std::uint32_t>(r.integer_or("kv_heads", h.heads, 1, kMaxHeads));
  if (r.failed()) return h;
  h.head_dim = floordiv(q.dims.back().extent, Expr(h.heads));
  r.equal(q.dims.back().extent, Expr(h.heads) * h.head_dim, "the last dim is not a multiple of heads", "heads");
  if (h.heads % h.kv_heads != 0)
    r.error(code::kBadAttribute, r.where("kv_heads"),
            fmt::format("{} heads cannot share {} kv_heads evenly", h.heads, h.kv_heads));
  return h;
}

/// `cache` as a view that may be written, or nothing after a complaint.
std::optional<View> writable(OpReader& r, const Yaml& append, const char* key) {
  const Yaml* node = append.find(key);
  if (!node) {
    r.error(code::kMissingKey, append.span, fmt::format("'append' needs '{}'", key));
    return std::nullopt;
  }
  const auto text = r.b.text(*node);
  const auto target = text ? parse_out(r.b, *text) : std::nullopt;
  if (!target) {
    r.fail();
    return std::nullopt;
  }
  if (target->window) return target->window;
  r.error(code::kUnknownTensor, node->span, "unknown tensor " + in_quotes(text->text),
          did_you_mean(text->text, r.b.scopes.tensor_names()));
  return std::nullopt;
}

/// Writes `rows` into `cache` from row `at`; gives back the rows up to the last one written.
std::optional<View> append_rows(OpReader& r, const View& rows, const View& cache, const Expr& at, const Span& where,
                                const char* key) {
  const std::size_t axis = rows.dims.size() - 2;
  if (cache.dims.size() != rows.dims.size()) {
    r.error(code::kWrongRank, where,
            fmt::format("the cache has {} dims, the rows have {}", cache.dims.size(), rows.dims.size()));
    return std::nullopt;
  }
  for (std::size_t i = 0; i < rows.dims.size(); ++i)
    if (i != axis) r.equal(cache.dims[i].extent, rows.dims[i].extent, "cache and appended rows differ", "append");
  const Expr end = at + rows.dims[axis].extent;
  auto window = narrow(r.b, cache, axis, at, end, where, r.label() + ": the appended window");
  auto context = narrow(r.b, cache, axis, Expr(0), end, where, r.label() + ": the context");
  if (!window || !context) r.fail();
  if (r.failed()) return std::nullopt;
  const Yaml* out = r.find("out");
  Op copy;
  copy.attrs = MapAttrs{};
  copy.inputs = {rows};
  copy.outputs = {*window};
  const std::string name = r.b.scopes.top().prefix + "append." + (out && out->is_scalar() ? out->text + "." : "") + key;
  if (!r.b.emit(std::move(copy), name, r.where())) r.fail();
  r.b.mark_read(cache.tensor);
  return context;
}

/// Replaces new keys and values by the caches that they were appended to.
void read_append(OpReader& r, View& k, View& v) {
  const Yaml* append = r.find("append");
  if (!append || r.failed()) return;
  if (!r.b.expect(*append, Yaml::Kind::mapping, "'append'")) return r.fail();
  const std::size_t errors = r.b.diagnostics.errors();
  r.b.check_keys(*append, {"k", "v", "at"}, "'append'");
  if (r.b.diagnostics.errors() != errors) return r.fail();
  const auto kcache = writable(r, *append, "k"), vcache = writable(r, *append, "v");
  const Yaml* at_node = append->find("at");
  if (!at_node) return r.error(code::kMissingKey, append->span, "'append' needs 'at'");
  const auto at = r.b.dim(*at_node);
  if (!at || r.failed()) return r.fail();
  const auto keys = append_rows(r, k, *kcache, *at, at_node->span, "k");
  const auto values = r.failed() ? std::nullopt : append_rows(r, v, *vcache, *at, at_node->span, "v");
  if (!keys || !values) return r.fail();
  k = *keys;
  v = *values;
}

void check_operands(OpReader& r, const View& q, const View& k, const View& v, const Heads& h, bool causal) {
  const std::size_t row = q.dims.size() - 2;
  if (row == 1) {
    r.equal(q.dims[0].extent, k.dims[0].extent, "batch dims of q and k differ", "k");
    r.equal(q.dims[0].extent, v.dims[0].extent, "batch dims of q and v differ", "v");
  }
  const Expr width = Expr(h.kv_heads) * h.head_dim;
  r.equal(k.dims.back().extent, width, "the last dim of k is not kv_heads * head_dim", "k");
  r.equal(v.dims.back().extent, width, "the last dim of v is not kv_heads * head_dim", "v");
  r.equal(k.dims[row].extent, v.dims[row].extent, "k and v have contexts of different length", "v");
  if (causal) r.less_equal(q.dims[row].extent, k.dims[row].extent, "causal: more queries than context", "q");
}

double read_scale(OpReader& r, const Heads& h) {
  if (r.has("scale") || r.failed()) return r.number("scale", 1);
  if (const auto d = h.head_dim.as_constant(); d && *d > 0) return 1 / std::sqrt(static_cast<double>(*d));
  r.error(code::kMissingKey, r.where(), "attention needs 'scale' where the size of a head is not constant");
  return 1;
}

Dtype float_result(OpReader& r, const View& x) {
  const Dtype d = r.dtype(r.b.dtype_of(x));
  if (!r.failed() && !wire::dtype_is_float(d))
    r.error(code::kDtypeMismatch, r.where("dtype"), r.kind() + " gives floats");
  return d;
}

// A number, or a constant dim: what a checkpoint says.
double number_or_dim(OpReader& r, const Yaml& node) {
  const Text text = node.as_text();
  const char first = text.text.empty() ? '0' : text.text[0];
  const bool literal = first != '_' && (first < 'A' || (first > 'Z' && first < 'a') || first > 'z');
  const std::optional<double> number = literal ? r.b.number(node) : std::nullopt;
  if (number) return *number;
  const std::optional<std::int64_t> dim = literal ? std::nullopt : r.b.constant(node, 0, std::int64_t{1} << 40);
  if (!dim) r.fail();
  return static_cast<double>(dim.value_or(1));
}

RopeScaling read_scaling(OpReader& r) {
  RopeScaling out;
  const Yaml* node = r.find("scaling");
  if (!node || r.failed()) return out;
  if (!r.b.expect(*node, Yaml::Kind::mapping, "'scaling'")) return r.fail(), out;
  const std::size_t errors = r.b.diagnostics.errors();
  r.b.check_keys(*node, {"factor", "low", "high", "original"}, "'scaling'");
  if (r.b.diagnostics.errors() != errors) return r.fail(), out;
  const auto read = [&](const char* key, double fallback) {
    const Yaml* value = node->find(key);
    return value ? number_or_dim(r, *value) : fallback;
  };
  out.factor = read("factor", 1);
  out.low = read("low", 1);
  out.high = read("high", 4);
  out.original = static_cast<std::int64_t>(read("original", 0));
  const bool sound = out.factor > 0 && out.low > 0 && out.high > out.low && out.original >= 0 && out.original < INT32_MAX;
  if (!r.failed() && !sound) r.error(code::kBadAttribute, node->span, "'scaling' needs factor > 0 and 0 < low < high");
  return out;
}

/// An operand of i32 with a row for each row of q.
bool read_row_table(OpReader& r, const View& q, const char* key, std::vector<View>& inputs) {
  View table = r.operand(key);
  if (!r.expect_rank(q, "q", 2, 2) || !r.expect_rank(table, key, 2, 2)) return false;
  if (r.b.dtype_of(table) != Dtype::i32) r.error(code::kDtypeMismatch, r.where(key), in_quotes(key) + " holds i32");
  r.equal(table.dims[0].extent, q.dims[0].extent, in_quotes(key) + " has a row for each row of q", key);
  inputs.push_back(std::move(table));
  return !r.failed();
}

/// Rows of a page, where k and v are pools of pages; else 0.
std::uint32_t read_pages(OpReader& r, const View& q, bool causal, std::vector<View>& inputs) {
  if (r.failed() || (!r.has("pages") && !r.has("page"))) return 0;
  if (!r.has("pages") || !r.has("page")) return r.error(code::kMissingKey, r.where(), "attention has 'pages' and 'page', or neither of them"), 0;
  if (!r.has("reach"))
    return r.error(code::kMissingKey, r.where("pages"), "attention with 'pages' needs 'reach'", "how many positions of its pages a row attends to"), 0;
  for (const char* key : {"causal", "append"})
    if (key[0] == 'a' ? r.has(key) : causal)
      return r.error(code::kBadAttribute, r.where(key), fmt::format("attention with 'pages' has no '{}'", key), "'reach' says what a row sees, and scatter writes into pools"), 0;
  const auto page = static_cast<std::uint32_t>(r.integer("page", 1, kMaxPage));
  read_row_table(r, q, "pages", inputs);
  return page;
}

}  // namespace

void build_attention(OpReader& r) {
  const View q = r.operand("q");
  View k = r.operand("k"), v = r.operand("v");
  const bool causal = r.flag("causal", false);
  if (!r.expect_rank(q, "q", 2, 3) || !r.expect_float(q, "q")) return;
  if (!r.expect_rank(k, "k", q.dims.size(), q.dims.size()) || !r.expect_rank(v, "v", q.dims.size(), q.dims.size()))
    return;
  if (!r.expect_float(k, "k") || !r.expect_float(v, "v")) return;
  const Heads h = read_heads(r, q);
  if (r.failed()) return;
  read_append(r, k, v);
  if (!r.expect_same_dtype(q, k, "k") || !r.expect_same_dtype(q, v, "v")) return;
  check_operands(r, q, k, v, h, causal);
  const double scale = read_scale(r, h);
  if (r.failed()) return;
  std::vector<View> inputs{q, k, v};
  if (r.has("reach")) {
    if (!read_row_table(r, q, "reach", inputs)) return;
    r.equal(inputs.back().dims[1].extent, Expr(2), "'reach' has two columns, where the positions that a row attends to begin and end", "reach");
  }
  const auto page = read_pages(r, q, causal, inputs);
  if (r.failed()) return;
  const Dtype dtype = float_result(r, q);
  const bool limited = inputs.size() > 3;
  r.finish(AttentionAttrs{h.heads, h.kv_heads, causal, scale, limited, page}, std::move(inputs), shape_of(q), dtype);
}

void build_rope(OpReader& r) {
  const View x = r.operand("x");
  const Yaml* theta_node = r.find("theta");
  const double theta = theta_node ? number_or_dim(r, *theta_node) : 10000;
  const RopeScaling scaling = read_scaling(r);
  const bool interleaved = r.choice("style", {"half", "interleaved"}, 0) == 1;
  if (!r.failed() && !(theta > 0)) r.error(code::kBadAttribute, r.where("theta"), "'theta' must be positive");
  if (!r.expect_rank(x, "x", 2, 3) || !r.expect_float(x, "x")) return;
  const Heads h = read_heads(r, x);
  if (r.failed()) return;
  if (!r.b.require_equal(floormod(h.head_dim, Expr(2)), Expr(0), code::kShapeMismatch, r.where("x"),
                         r.label() + ": the size of a head is odd"))
    r.fail();
  RopeAttrs attrs{h.heads, theta, Expr(0), r.has("positions"), interleaved, scaling};
  std::vector<View> inputs{x};
  if (attrs.has_positions && r.has("position"))
    r.error(code::kBadAttribute, r.where("positions"), "give 'position' or 'positions', not both");
  if (const Yaml* node = r.find("position")) {
    const auto e = r.b.dim(*node);
    if (!e) return r.fail();
    attrs.position = *e;
  }
  if (attrs.has_positions) {
    const View positions = r.operand("positions");
    if (!r.expect_rank(positions, "positions", 1, 1)) return;
    if (r.b.dtype_of(positions) != Dtype::i32)
      r.error(code::kDtypeMismatch, r.where("positions"), "'positions' holds i32");
    r.equal(positions.dims[0].extent, x.dims[x.dims.size() - 2].extent, "one position for each row", "positions");
    inputs.push_back(positions);
  }
  if (r.failed()) return;
  const Dtype dtype = float_result(r, x);
  r.finish(std::move(attrs), std::move(inputs), shape_of(x), dtype);
}

}  // namespace ccks::spec

#include <fmt/format.h>

#include <algorithm>

#include "spec/ops.hpp"
#include "spec/view.hpp"

namespace ccks::spec {
namespace {

constexpr std::int64_t kMaxReportElements = 1024;
constexpr std::size_t kMaxCodeBytes = 64 * 1024;
constexpr std::int64_t kMaxTile = 4096;

bool is_integer(Dtype d) { return d == Dtype::i32 || d == Dtype::i64; }

Expr elements(const View& v) {
  Expr n = 1;
  for (const ViewDim& d : v.dims) n = n * d.extent;
  return n;
}

void expect_index(OpReader& r, const View& index) {
  if (is_integer(r.b.dtype_of(index))) return;
  r.error(code::kDtypeMismatch, r.where("index"), fmt::format("'index' is {}, not i32 or i64", wire::dtype_name(r.b.dtype_of(index))));
}

/// Rows that are not written keep what they hold, so there must be something.
bool holds_something(const Builder& b, const View& v) {
  const TensorKind kind = b.program.tensors[b.root_of(v.tensor)].kind;
  return kind == TensorKind::state || (b.scopes.top().condition == kNone ? b.is_always_written(v.tensor) : b.is_written(v.tensor));
}

}  // namespace

void build_gather(OpReader& r) {
  const View table = r.operand("table");
  View index = r.operand("index");
  if (!r.expect_rank(table, "table", 1, kMaxRank)) return;
  expect_index(r, index);
  if (const auto masked = r.failed() ? std::nullopt : mask_index(r.b, index, r.where())) index = *masked;
  Shape shape = shape_of(index);
  for (std::size_t i = 1; i < table.dims.size(); ++i) shape.push_back(table.dims[i].extent);
  if (shape.size() > kMaxRank) r.error(code::kWrongRank, r.where(), "the result has more than 4 dims");
  r.finish(GatherAttrs{}, {table, index}, shape, r.failed() ? Dtype::f32 : r.b.dtype_of(table), DtypeRule::exact);
}

void build_scatter(OpReader& r) {
  const View x = r.operand("x"), index = r.operand("index");
  if (!r.expect_rank(x, "x", 1, kMaxRank) || !r.expect_rank(index, "index", 1, 1)) return;
  expect_index(r, index);
  r.equal(index.dims[0].extent, x.dims[0].extent, "one index for each row of x", "index");
  const auto target = r.out_target();
  if (r.failed() || !target) return;
  if (!target->window)
    return r.error(code::kReadOnly, r.where("out"), "scatter writes rows of a declared tensor, and " + in_quotes(target->name) + " is none",
                   "declare it under tensors with kind: state");
  if (target->window->dims.empty())
    return r.error(code::kWrongRank, r.where("out"), fmt::format("'{}' has no rows", target->name));
  if (!holds_something(r.b, *target->window))
    return r.error(code::kUsedBeforeWritten, r.where("out"), fmt::format("rows of '{}' that scatter does not write hold nothing yet", target->name),
                   "write all of it first, or declare it with kind: state");
  Shape shape = shape_of(x);
  shape[0] = target->window->dims[0].extent;
  const auto out = r.open(*target, shape, r.b.dtype_of(x), DtypeRule::same_category);
  if (out) r.emit(ScatterAttrs{}, {x, index}, {*out}, target->name);
}

void build_argmax(OpReader& r) {
  const View x = r.operand("x");
  if (!r.expect_rank(x, "x", 1, kMaxRank)) return;
  Shape shape = shape_of(x);
  shape.pop_back();
  r.finish(ArgmaxAttrs{}, {x}, shape, Dtype::i32, DtypeRule::exact);
}

namespace {

/// The two names under `out: [values, indices]`.
std::vector<OutTarget> two_targets(OpReader& r) {
  std::vector<OutTarget> targets;
  const Yaml* out = r.require("out");
  if (!out) return targets;
  if (!out->is_sequence() || out->children.size() != 2) {
    r.error(code::kWrongNode, out->span, "'out' of topk is a list of two names, [values, indices]");
    return targets;
  }
  for (const Yaml& child : out->children) {
    const auto text = r.b.text(child);
    auto target = text ? parse_out(r.b, *text) : std::nullopt;
    if (!target)
      r.fail();
    else
      targets.push_back(std::move(*target));
  }
  if (targets.size() == 2 && targets[0].name == targets[1].name)
    r.error(code::kDefinedTwice, out->span, "values and indices need two names");
  return targets;
}

}  // namespace

void build_topk(OpReader& r) {
  const View x = r.operand("x");
  const auto k = static_cast<std::uint32_t>(r.integer("k", 1, 1024));
  if (!r.expect_rank(x, "x", 1, kMaxRank)) return;
  r.less_equal(Expr(k), x.dims.back().extent, "k exceeds the last dim", "k");
  const auto targets = two_targets(r);
  if (r.failed()) return;
  Shape shape = shape_of(x);
  shape.back() = Expr(k);
  const auto values = r.open(targets[0], shape, r.b.dtype_of(x), DtypeRule::exact);
  const auto indices = r.open(targets[1], shape, Dtype::i32, DtypeRule::exact);
  if (!values || !indices) return;
  r.b.mark_read(values->tensor);
  r.b.mark_read(indices->tensor);
  r.emit(TopkAttrs{k}, {x}, {*values, *indices}, targets[0].name);
}

std::uint32_t make_report(Builder& b, const View& x, const Text& name, const Span& where) {
  const std::string full = name.substituted ? name.text : b.scopes.top().prefix + name.text;
  const bool taken =
      std::any_of(b.program.reports.begin(), b.program.reports.end(), [&](const Report& p) { return p.name == full; });
  if (taken || b.tensor_name_taken("report." + full)) {
    const bool counted = std::any_of(b.program.counted.begin(), b.program.counted.end(), [&](const CountedDim& c) { return c.name == full; });
    b.diagnostics.error(code::kDefinedTwice, name.span, "report " + in_quotes(full) + " exists already", counted ? "a counted dim is reported under its own name" : "");
    return kNone;
  }
  Tensor tensor;
  tensor.name = "report." + full;
  tensor.dtype = b.dtype_of(x) == Dtype::f32 ? Dtype::f32 : Dtype::i32;
  tensor.shape = shape_of(x);
  tensor.location = where.location;
  const TensorId id = b.add_tensor(std::move(tensor));
  const auto report = static_cast<std::uint32_t>(b.program.reports.size());
  b.program.reports.push_back({full, id, static_cast<OpId>(b.program.ops.size())});
  b.mark_read(id);
  bind_name(b, "report." + name.text, b.whole_view(id), where);
  b.scopes.top().reports[name.text] = report;
  Op op;
  op.attrs = ReportAttrs{report};
  op.inputs = {x};
  op.outputs = {b.whole_view(id)};
  return b.emit(std::move(op), b.scopes.top().prefix + "report." + full, where) ? report : kNone;
}

void build_report(OpReader& r) {
  Builder& b = r.b;
  const View x = r.operand("x");
  const Yaml* name_node = r.require("name");
  const auto name = name_node ? b.text(*name_node) : std::nullopt;
  if (!name || !b.check_name(*name)) r.fail();
  if (r.failed()) return;
  const Dtype dtype = b.dtype_of(x);
  if (dtype == Dtype::f16 || dtype == Dtype::bf16)
    return r.error(code::kDtypeMismatch, r.where("x"),
                   fmt::format("a report is f32, i32, i64 or bool, not {}", wire::dtype_name(dtype)),
                   "convert with a map and 'dtype: f32'");
  r.less_equal(elements(x), Expr(kMaxReportElements), "a report has at most 1024 elements", "x");
  if (r.failed() || make_report(b, x, *name, r.where()) == kNone) r.fail();
}

namespace {

std::vector<std::uint32_t> read_tile(OpReader& r, std::size_t rank) {
  std::vector<std::uint32_t> tile;
  const Yaml* node = r.require("tile");
  if (!node || !r.b.expect(*node, Yaml::Kind::sequence, "'tile'")) {
    r.fail();
    return tile;
  }
  for (const Yaml& child : node->children) {
    const auto n = r.b.constant(child, 1, kMaxTile);
    if (!n)
      r.fail();
    else
      tile.push_back(static_cast<std::uint32_t>(*n));
  }
  if (!r.failed() && tile.size() != rank)
    r.error(code::kBadAttribute, node->span, fmt::format("'tile' has {} sizes for {} dims", tile.size(), rank));
  return tile;
}

void read_custom_inputs(OpReader& r, CustomAttrs& attrs, std::vector<View>& inputs) {
  const Yaml* node = r.require("inputs");
  if (!node || !r.b.expect(*node, Yaml::Kind::mapping, "'inputs'")) return r.fail();
  for (std::size_t i = 0; i + 1 < node->children.size(); i += 2) {
    const Text name = node->children[i].as_text();
    if (!r.b.check_name(name)) return r.fail();
    if (name.text.find('.') != std::string::npos)
      return r.error(code::kBadName, name.span, "an input of custom code has no '.' in its name");
    attrs.input_names.push_back(name.text);
    inputs.push_back(r.operand_in(node->children[i + 1]));
  }
}

/// The reference of custom code. Where there is one, the op sees its inputs broadcast to the result, as a map would.
void read_reference(OpReader& r, CustomAttrs& attrs, std::vector<View>& inputs, const Shape& shape) {
  const Yaml* node = r.find("reference");
  const auto text = node ? r.b.text(*node) : std::nullopt;
  if (!text) return node ? r.fail() : void();
  ElementNames names;
  names.rank = shape.size();
  names.find = [&](const std::string& name, const Span&, bool&) -> std::optional<ElementName> {
    const auto it = std::find(attrs.input_names.begin(), attrs.input_names.end(), name);
    if (it == attrs.input_names.end()) return std::nullopt;
    const auto k = static_cast<std::uint32_t>(it - attrs.input_names.begin());
    return ElementName{scalar_type(r.b.dtype_of(inputs[k])), k, 0};
  };
  names.all = [&] { return attrs.input_names; };
  auto e = parse_element(*text, names, r.b.diagnostics);
  if (!e) return r.fail();
  for (View& v : inputs) {
    auto wide = broadcast(r.b, v, shape, node->span, "an input of the reference");
    if (!wide) return r.fail();
    v = std::move(*wide);
  }
  attrs.reference = std::move(*e);
}

}  // namespace

void build_custom(OpReader& r) {
  Builder& b = r.b;
  if (!b.options.allow_inline)
    return r.error(code::kInlineRefused, r.where("op"), "op 'custom' carries code, which is refused by default",
                   "pass --allow-inline for specs that you trust");
  CustomAttrs attrs;
  std::vector<View> inputs;
  read_custom_inputs(r, attrs, inputs);
  const Yaml* shape_node = r.require("shape");
  const auto shape = shape_node ? b.shape(*shape_node) : std::nullopt;
  const Yaml* code_node = r.require("code");
  if (!shape || !code_node || !b.expect(*code_node, Yaml::Kind::scalar, "'code'")) return r.fail();
  if (code_node->text.size() > kMaxCodeBytes)
    return r.error(code::kTooLarge, code_node->span, "this code is longer than 64 KiB");
  attrs.code = code_node->text;
  attrs.tile = read_tile(r, shape->size());
  if (r.failed()) return;
  read_reference(r, attrs, inputs, *shape);
  const Dtype dtype = r.dtype(inputs.empty() ? Dtype::f32 : b.dtype_of(inputs[0]));
  r.finish(std::move(attrs), std::move(inputs), *shape, dtype, DtypeRule::exact);
}

}  // namespace ccks::spec

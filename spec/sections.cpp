#include "spec/sections.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ccks/ragged.hpp"
#include "spec/ops.hpp"

namespace ccks::spec {
namespace {

constexpr std::int64_t kMaxDim = std::int64_t{1} << 40;  // as extents: past any memory, far from overflow

std::optional<std::int64_t> override_of(const Builder& b, const std::string& name) {
  std::optional<std::int64_t> value;
  for (const auto& [key, v] : b.options.constants)
    if (key == name) value = v;
  return value;
}

std::optional<Expr> read_symbol(Builder& b, const std::string& name, const Yaml& node) {
  b.check_keys(node, {"range", "default"}, "the symbol " + in_quotes(name));
  const Yaml* range = node.find("range");
  if (!range || !range->is_sequence() || range->children.size() != 2) {
    b.diagnostics.error(code::kDimValue, range ? range->span : node.span, "a symbol needs 'range: [low, high]'",
                        "quote a bound that holds a comma");
    return std::nullopt;
  }
  const auto lo = b.constant(range->children[0], 0, kMaxDim), hi = b.constant(range->children[1], 0, kMaxDim);
  if (!lo || !hi) return std::nullopt;
  if (*lo > *hi) {
    b.diagnostics.error(code::kDimValue, range->span, fmt::format("the range [{}, {}] is empty", *lo, *hi));
    return std::nullopt;
  }
  Symbol symbol{name, {*lo, *hi}, std::nullopt};
  Span place = node.span;
  if (const Yaml* preset = node.find("default")) {
    place = preset->span;
    symbol.preset = b.constant(*preset, INT64_MIN / 2, INT64_MAX / 2);
    if (!symbol.preset) return std::nullopt;
  }
  if (const auto given = override_of(b, name)) symbol.preset = given;
  if (symbol.preset && (*symbol.preset < *lo || *symbol.preset > *hi)) {
    b.diagnostics.error(code::kDimValue, place,
                        fmt::format("'{}' is {}, outside its range [{}, {}]", name, *symbol.preset, *lo, *hi));
    return std::nullopt;
  }
  b.program.symbols.push_back(std::move(symbol));
  return Expr::symbol(static_cast<SymbolId>(b.program.symbols.size() - 1));
}

/// Rows that `count` sequences of `length` rows take.
std::int64_t padded_rows(std::int64_t count, std::int64_t length, const RaggedDim& r) {
  return std::max<std::int64_t>(1, RaggedRows::up(count * RaggedRows::up(length, r.pad), r.round));
}

// A symbol of its own, whose range and default follow from those of a sequence where they are not given.
std::optional<Expr> read_ragged_dim(Builder& b, const std::string& name, const Yaml& node) {
  b.check_keys(node, {"ragged", "length", "default", "most", "pad", "round"}, "the ragged dim " + in_quotes(name));
  constexpr std::int64_t kMaxCount = 1 << 20, kMaxLength = 1 << 20, kMaxPad = 4096;  // tables of i32 say where rows lie
  const auto constant_or = [&](const char* key, std::int64_t fallback, std::int64_t lo, std::int64_t hi) -> std::optional<std::int64_t> {
    const Yaml* value = node.find(key);
    return value ? b.constant(*value, lo, hi) : fallback;
  };
  RaggedDim r;
  const auto count = b.dim(*node.find("ragged"));
  const Yaml* length = node.find("length");
  if (!length || !length->is_sequence() || length->children.size() != 2) {
    b.diagnostics.error(code::kDimValue, length ? length->span : node.span, "a ragged dim needs 'length: [low, high]'",
                        "the rows that one sequence may have");
    return std::nullopt;
  }
  const auto lo = b.constant(length->children[0], 0, kMaxLength), hi = b.constant(length->children[1], 0, kMaxLength);
  const auto pad = constant_or("pad", 1, 1, kMaxPad), round = constant_or("round", 1, 1, kMaxPad);
  if (!count || !lo || !hi || !pad || !round) return std::nullopt;
  if (mentions_counted(b, *count)) {
    b.diagnostics.error(code::kCountedRows, node.find("ragged")->span, fmt::format("{} is counted at run time, and sequences are there when a run is submitted", in_quotes(b.print(*count))));
    return std::nullopt;
  }
  const Interval counts = count->bounds(b.program.symbols);
  if (*lo > *hi || counts.lo < 0 || counts.hi > kMaxCount) {
    b.diagnostics.error(code::kDimValue, *lo > *hi ? length->span : node.span,
                        *lo > *hi ? fmt::format("the range [{}, {}] is empty", *lo, *hi) : std::string("0 to 2^20 sequences are possible"));
    return std::nullopt;
  }
  r.count = *count;
  r.length = {*lo, *hi};
  r.pad = *pad;
  r.round = *round;
  const std::int64_t all = padded_rows(counts.hi, *hi, r);
  const auto most = constant_or("most", std::min<std::int64_t>(all, INT32_MAX), 1, INT32_MAX);
  if (!most) return std::nullopt;
  Symbol symbol{name, {std::min(padded_rows(counts.lo, *lo, r), *most), *most}, std::nullopt};
  if (const Yaml* preset = node.find("default")) {
    const auto each = b.constant(*preset, *lo, *hi);
    std::vector<std::int64_t> values;
    for (const Symbol& s : b.program.symbols) values.push_back(s.preset.value_or(s.range.hi));
    const auto sequences = count->evaluate(values);
    if (!each || !sequences) return std::nullopt;
    symbol.preset = std::clamp(padded_rows(*sequences, *each, r), symbol.range.lo, symbol.range.hi);
  }
  if (const auto given = override_of(b, name)) {
    if (*given < symbol.range.lo || *given > symbol.range.hi) {
      b.diagnostics.error(code::kDimValue, node.span,
                          fmt::format("'{}' is {}, outside its range [{}, {}]", name, *given, symbol.range.lo, symbol.range.hi));
      return std::nullopt;
    }
    symbol.preset = *given;
  }
  b.program.symbols.push_back(std::move(symbol));
  r.rows = static_cast<SymbolId>(b.program.symbols.size() - 1);
  b.program.ragged.push_back(r);
  return Expr::symbol(r.rows);
}

std::optional<Expr> read_fixed_dim(Builder& b, const std::string& name, const Yaml& node) {
  auto e = b.dim(node);
  if (!e) return std::nullopt;
  if (const auto given = override_of(b, name)) {
    if (!e->is_constant()) {
      b.diagnostics.error(code::kUnknownOverride, node.span,
                          fmt::format("'{}' follows from other dims and cannot be set", name));
      return std::nullopt;
    }
    e = Expr(*given);
  }
  const Interval range = e->bounds(b.program.symbols);
  if (range.lo >= -kMaxDim && range.hi <= kMaxDim) return e;
  b.diagnostics.error(code::kDimValue, node.span, fmt::format("'{}' may lie outside +-2^40", name));
  return std::nullopt;
}

// "a.b | c": names with bars between them.
std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t bar = std::min(text.find('|', at), text.size());
    const std::size_t first = text.find_first_not_of(' ', at), last = text.find_last_not_of(' ', bar == 0 ? 0 : bar - 1);
    if (first < bar && last != std::string::npos && last >= first) out.push_back(text.substr(first, last - first + 1));
    at = bar + 1;
  }
  return out;
}

std::optional<Expr> read_config_dim(Builder& b, const std::string& name, const Yaml& node) {
  b.check_keys(node, {"value", "from", "absent", "values"}, "the dim " + in_quotes(name));
  ConfigDim config{name, {}, std::nullopt, {}};
  if (const Yaml* from = node.find("from"); from && from->is_scalar()) config.from = split_names(from->text);
  if (config.from.empty()) {
    b.diagnostics.error(code::kMissingKey, node.span, "a dim with 'value' needs 'from': a key of config.json");
    return std::nullopt;
  }
  if (const Yaml* absent = node.find("absent")) config.absent = b.constant(*absent, -kMaxDim, kMaxDim);
  if (const Yaml* values = node.find("values"); values && b.expect(*values, Yaml::Kind::mapping, "'values'")) {
    for (std::size_t i = 0; i + 1 < values->children.size(); i += 2) {
      const auto value = b.constant(values->children[i + 1], -kMaxDim, kMaxDim);
      if (value) config.values.emplace_back(values->children[i].text, *value);
    }
  }
  auto e = read_fixed_dim(b, name, *node.find("value"));
  if (e && !e->is_constant()) {
    b.diagnostics.error(code::kDimValue, node.span, "a dim from config.json is a constant");
    return std::nullopt;
  }
  b.program.config_dims.push_back(std::move(config));
  return e;
}

void read_dim_entry(Builder& b, const Yaml& key, const Yaml& value) {
  const Text name = key.as_text();
  if (!b.check_name(name)) return;
  if (name.text.find('.') != std::string::npos)
    return b.diagnostics.error(code::kBadName, name.span, "a dim has no '.' in its name");
  static constexpr std::string_view kFunctions[] = {"ceildiv", "floordiv", "floormod", "min", "max"};
  if (std::find(std::begin(kFunctions), std::end(kFunctions), name.text) != std::end(kFunctions))
    return b.diagnostics.error(code::kBadName, name.span, in_quotes(name.text) + " is a function of dim expressions");
  const auto known = b.dim_places.find(name.text);
  const bool same_place = known != b.dim_places.end() && known->second.location.file == name.span.location.file &&
                          known->second.location.line == name.span.location.line &&
                          known->second.location.column == name.span.location.column;
  if (same_place) return;  // an include inside a repeat block meets its own dims again
  if (known != b.dim_places.end() || b.scopes.find_index(name.text) || b.scopes.find(name.text))
    return b.diagnostics.error(code::kDefinedTwice, name.span, in_quotes(name.text) + " is defined already");
  b.dim_places[name.text] = name.span;
  auto e = !value.is_mapping()   ? read_fixed_dim(b, name.text, value)
           : value.find("value")  ? read_config_dim(b, name.text, value)
           : value.find("ragged") ? read_ragged_dim(b, name.text, value)
           : value.find("counted") ? read_counted_dim(b, name.text, value)
                                  : read_symbol(b, name.text, value);
  // A bad dim still gets a value, so that its uses are not complained about as well.
  if (!e) e = Expr(1);
  b.program.named_dims.emplace_back(name.text, *e);
  b.dims.emplace(name.text, std::move(*e));
}

}  // namespace

void read_dims(Builder& b, const Yaml& dims) {
  if (dims.is_null() || !b.expect(dims, Yaml::Kind::mapping, "'dims'")) return;
  for (std::size_t i = 0; i + 1 < dims.children.size(); i += 2)
    if (dims.children[i].is_scalar()) read_dim_entry(b, dims.children[i], dims.children[i + 1]);
}

namespace {

Init read_init_pair(Builder& b, Init::Kind kind, const Yaml& value, bool& ok) {
  Init init;
  init.kind = kind;
  if (!value.is_sequence() || value.children.size() != 2) {
    b.diagnostics.error(code::kBadInit, value.span, "two numbers should stand here, [low, high]");
    ok = false;
    return init;
  }
  const auto read = [&](const Yaml& node) -> std::optional<double> {
    if (kind != Init::Kind::integers) return b.number(node);
    const auto n = b.constant(node, -kMaxDim, kMaxDim);
    return n ? std::optional(static_cast<double>(*n)) : std::nullopt;
  };
  const auto lo = read(value.children[0]), hi = read(value.children[1]);
  ok = lo && hi;
  init.a = lo.value_or(0);
  init.b = hi.value_or(0);
  const bool ordered = kind == Init::Kind::integers ? init.a < init.b : init.a <= init.b;
  if (ok && !ordered) {
    b.diagnostics.error(code::kBadInit, value.span, "the range is empty");
    ok = false;
  }
  return init;
}

Init read_init(Builder& b, const Yaml& node) {
  const char* hint = "zeros, ones, {normal: sd}, {uniform: [low, high]}, {integers: [low, high]} or {count: dim}";
  Init init;
  if (node.is_scalar() && (node.text == "zeros" || node.text == "ones")) {
    init.kind = node.text == "zeros" ? Init::Kind::zeros : Init::Kind::ones;
    return init;
  }
  if (!node.is_mapping() || node.children.size() != 2) {
    b.diagnostics.error(code::kBadInit, node.span, "not a way to fill a tensor", hint);
    return init;
  }
  const std::string& kind = node.children[0].text;
  const Yaml& value = node.children[1];
  bool ok = true;
  if (kind == "normal") {
    const auto sd = b.number(value);
    if (sd && *sd < 0) b.diagnostics.error(code::kBadInit, value.span, "a standard deviation is not negative");
    init.kind = Init::Kind::normal;
    init.a = sd.value_or(0);
  } else if (kind == "uniform") {
    init = read_init_pair(b, Init::Kind::uniform, value, ok);
  } else if (kind == "integers") {
    init = read_init_pair(b, Init::Kind::integers, value, ok);
  } else if (kind == "count") {
    init.kind = Init::Kind::count;
    init.a = static_cast<double>(b.constant(value, 0, static_cast<std::int64_t>(kMaxRank) - 1).value_or(0));
  } else {
    b.diagnostics.error(code::kBadInit, node.children[0].span, "unknown way to fill a tensor: " + in_quotes(kind),
                        hint);
  }
  return init;
}

std::optional<TensorKind> read_kind(Builder& b, const Yaml* node, const Span& where) {
  static const std::vector<std::string> kNames{"input", "weight", "state", "output", "intermediate"};
  if (!node) {
    b.diagnostics.error(code::kMissingKey, where, "a tensor needs 'kind'",
                        "one of input, weight, state, output, intermediate");
    return std::nullopt;
  }
  const auto it = std::find(kNames.begin(), kNames.end(), node->text);
  if (node->is_scalar() && it != kNames.end()) return static_cast<TensorKind>(it - kNames.begin());
  const std::string hint = did_you_mean(node->text, kNames);
  b.diagnostics.error(code::kWrongKind, node->span, "unknown kind " + in_quotes(node->text),
                      hint.empty() ? "one of input, weight, state, output, intermediate" : hint);
  return std::nullopt;
}

// Weights are bound once and states live on, so what varies from run to run cannot shape them.
bool shape_fits_kind(Builder& b, TensorKind kind, const std::vector<Expr>& shape, const Span& where) {
  if (kind != TensorKind::weight && kind != TensorKind::state) return true;
  for (const Expr& extent : shape) {
    if (extent.is_constant()) continue;
    b.diagnostics.error(code::kVaryingShape, where,
                        std::string("a ") + (kind == TensorKind::weight ? "weight" : "state") + " of varying extent " +
                            in_quotes(b.print(extent)),
                        "use the dim's largest value and a view of the part in use, or kind: input");
    return false;
  }
  return true;
}

std::optional<Tensor> read_tensor_body(Builder& b, const Text& name, const Yaml& node) {
  b.check_keys(node, {"shape", "dtype", "kind", "from", "init"}, "tensor " + in_quotes(name.text));
  Tensor tensor;
  tensor.location = name.span.location;
  tensor.dtype = b.default_dtype;
  const auto kind = read_kind(b, node.find("kind"), name.span);
  const Yaml* shape_node = node.find("shape");
  if (!shape_node)
    b.diagnostics.error(code::kMissingKey, name.span, "tensor " + in_quotes(name.text) + " needs 'shape'");
  const auto shape = shape_node ? b.shape(*shape_node) : std::nullopt;
  bool ok = kind && shape && shape_fits_kind(b, *kind, *shape, shape_node->span);
  if (const Yaml* dtype = node.find("dtype")) {
    const auto d = b.dtype(*dtype);
    ok = ok && d;
    tensor.dtype = d.value_or(tensor.dtype);
  }
  if (const Yaml* from = node.find("from")) {
    const auto text = b.text(*from);
    ok = ok && text;
    if (text) tensor.from = text->text;
    if (kind && *kind != TensorKind::weight)
      b.diagnostics.error(code::kWrongKind, from->span, "only weights come 'from' a checkpoint");
  }
  if (const Yaml* init = node.find("init")) {
    tensor.init = read_init(b, *init);
    if (tensor.init.kind == Init::Kind::count && shape && tensor.init.a >= static_cast<double>(shape->size()))
      b.diagnostics.error(code::kBadInit, init->span, "'count' names a dim of the tensor, from 0 on");
    if (kind && (*kind == TensorKind::output || *kind == TensorKind::intermediate))
      b.diagnostics.error(code::kWrongKind, init->span,
                          "ops fill this tensor; 'init' is for inputs, weights and states");
  }
  if (!ok) return std::nullopt;
  tensor.kind = *kind;
  tensor.shape = *shape;
  return tensor;
}

void read_tensor_entry(Builder& b, const Yaml& key, const Yaml& value) {
  const auto name = b.text(key);
  if (!name || !b.check_name(*name)) return;
  if (name->text.rfind("report.", 0) == 0)
    return b.diagnostics.error(code::kBadName, name->span, "names that begin with 'report.' belong to reports");
  if (!b.expect(value, Yaml::Kind::mapping, "tensor " + in_quotes(name->text)))
    return poison(b, name->text, name->span);
  const std::string full = name->substituted ? name->text : b.scopes.top().prefix + name->text;
  if (b.scopes.find(name->text) || b.find_dim(name->text) || b.tensor_name_taken(full))
    return b.diagnostics.error(code::kDefinedTwice, name->span, in_quotes(name->text) + " is defined already");
  auto tensor = read_tensor_body(b, *name, value);
  if (!tensor) return poison(b, name->text, name->span);
  tensor->name = full;
  Binding binding;
  binding.declared = true;
  binding.defined = name->span;
  binding.view = b.whole_view(b.add_tensor(std::move(*tensor)));
  Scope& scope = name->substituted ? b.scopes.scope_to_bind(name->text, true) : b.scopes.top();
  scope.names[name->text] = std::move(binding);
}

}  // namespace

void read_tensors(Builder& b, const Yaml& tensors) {
  if (tensors.is_null() || !b.expect(tensors, Yaml::Kind::mapping, "'tensors'")) return;
  for (std::size_t i = 0; i + 1 < tensors.children.size(); i += 2)
    if (tensors.children[i].is_scalar()) read_tensor_entry(b, tensors.children[i], tensors.children[i + 1]);
}

void read_ops(Builder& b, const Yaml& ops) {
  if (ops.is_null() || !b.expect(ops, Yaml::Kind::sequence, "'ops'")) return;
  if (b.scopes.depth() == 1) report_counts(b, ops.span);  // of tensors that no op makes
  for (const Yaml& item : ops.children) {
    if (b.diagnostics.full() || b.exhausted() || !b.count_work(item.span)) return;
    if (!b.expect(item, Yaml::Kind::mapping, "an op")) continue;
    if (item.find("op"))
      read_op(b, item);
    else if (item.find("repeat"))
      read_repeat(b, item);
    else if (item.find("if"))
      read_if(b, item);
    else if (item.find("while"))
      read_while(b, item);
    else if (const Yaml* file = item.find("include")) {
      b.check_keys(item, {"include"}, "an include");
      read_include(b, *file);
    } else {
      b.diagnostics.error(code::kMissingKey, item.span,
                          "an entry of 'ops' has one of 'op', 'repeat', 'if', 'while' and 'include'");
    }
    if (b.scopes.depth() == 1) report_counts(b, item.span);
  }
}

}  // namespace ccks::spec

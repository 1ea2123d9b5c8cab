#include "spec/op_reader.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "spec/view.hpp"

namespace ccks::spec {

void OpReader::error(Code code, const Span& where, std::string message, std::string hint) {
  failed_ = true;
  b.diagnostics.error(code, where, std::move(message), std::move(hint));
}

Span OpReader::where(std::string_view key) const {
  const Yaml* value = find(key);
  return value ? value->span : node_.span;
}

std::string OpReader::label() const {
  const Yaml* out = find("out");
  return out && out->is_scalar() ? fmt::format("{} {}", kind_, in_quotes(out->text)) : kind_;
}

const Yaml* OpReader::require(std::string_view key) {
  const Yaml* value = find(key);
  if (!value) error(code::kMissingKey, node_.span, fmt::format("{} needs '{}'", kind_, key));
  return value;
}

View OpReader::operand_in(const Yaml& node) {
  const auto text = b.text(node);
  auto v = text ? parse_operand(b, *text) : std::nullopt;
  if (!v) failed_ = true;
  return v ? std::move(*v) : View{};
}

View OpReader::operand(std::string_view key) {
  const Yaml* value = require(key);
  return value ? operand_in(*value) : View{};
}

double OpReader::number(std::string_view key, double fallback) {
  const Yaml* value = find(key);
  if (!value) return fallback;
  const auto n = b.number(*value);
  if (!n) failed_ = true;
  return n.value_or(fallback);
}

bool OpReader::flag(std::string_view key, bool fallback) {
  const Yaml* value = find(key);
  if (!value) return fallback;
  if (value->is_scalar() && (value->text == "true" || value->text == "false")) return value->text == "true";
  error(code::kWrongValue, value->span, fmt::format("'{}' is true or false", key));
  return fallback;
}

std::int64_t OpReader::integer(std::string_view key, std::int64_t lo, std::int64_t hi) {
  const Yaml* value = require(key);
  const auto n = value ? b.constant(*value, lo, hi) : std::nullopt;
  if (!n) failed_ = true;
  return n.value_or(lo);
}

std::int64_t OpReader::integer_or(std::string_view key, std::int64_t fallback, std::int64_t lo, std::int64_t hi) {
  return has(key) ? integer(key, lo, hi) : fallback;
}

std::size_t OpReader::choice(std::string_view key, const std::vector<std::string>& words, std::size_t fallback) {
  const Yaml* value = find(key);
  if (!value) return fallback;
  const auto it = std::find(words.begin(), words.end(), value->text);
  if (value->is_scalar() && it != words.end()) return static_cast<std::size_t>(it - words.begin());
  error(code::kBadAttribute, value->span, fmt::format("'{}' is one of {}", key, fmt::join(words, ", ")),
        did_you_mean(value->text, words));
  return fallback;
}

std::string OpReader::word(std::string_view key) {
  const Yaml* value = require(key);
  const auto text = value ? b.text(*value) : std::nullopt;
  if (!text || !b.check_name(*text)) failed_ = true;
  return text ? text->text : std::string();
}

Dtype OpReader::dtype(Dtype fallback) {
  const Yaml* value = find("dtype");
  if (!value) return fallback;
  const auto d = b.dtype(*value);
  if (!d) failed_ = true;
  return d.value_or(fallback);
}

std::array<std::uint32_t, 2> OpReader::pair(std::string_view key, std::uint32_t fallback, std::uint32_t lo) {
  constexpr std::int64_t kLargest = 1 << 16;
  const Yaml* value = find(key);
  if (!value) return {fallback, fallback};
  std::array<std::uint32_t, 2> out{fallback, fallback};
  if (value->is_sequence() && value->children.size() != 2) {
    error(code::kBadAttribute, value->span, fmt::format("'{}' is one number or two", key));
    return out;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const auto n = b.constant(value->is_sequence() ? value->children[i] : *value, lo, kLargest);
    if (!n)
      failed_ = true;
    else
      out[i] = static_cast<std::uint32_t>(*n);
  }
  return out;
}

bool OpReader::expect_rank(const View& v, std::string_view key, std::size_t lo, std::size_t hi) {
  if (failed_) return false;
  if (v.dims.size() >= lo && v.dims.size() <= hi) return true;
  const std::string range = lo == hi ? std::to_string(lo) : fmt::format("{} to {}", lo, hi);
  error(code::kWrongRank, where(key),
        fmt::format("'{}' of {} has {} dims {}, not {}", key, label(), v.dims.size(), b.print_shape(v), range));
  return false;
}

bool OpReader::expect_float(const View& v, std::string_view key) {
  if (failed_ || wire::dtype_is_float(b.dtype_of(v))) return !failed_;
  error(code::kDtypeMismatch, where(key),
        fmt::format("'{}' of {} is {}, not a float", key, label(), wire::dtype_name(b.dtype_of(v))),
        "convert with a map: float(x)");
  return false;
}

bool OpReader::expect_same_dtype(const View& x, const View& y, std::string_view key) {
  if (failed_ || b.dtype_of(x) == b.dtype_of(y)) return !failed_;
  error(code::kDtypeMismatch, where(key),
        fmt::format("operands of {} are {} and {}", label(), wire::dtype_name(b.dtype_of(x)),
                    wire::dtype_name(b.dtype_of(y))),
        "convert one with a map and 'dtype:'");
  return false;
}

void OpReader::equal(const Expr& x, const Expr& y, const std::string& what, std::string_view key) {
  if (!failed_ && !b.require_equal(x, y, code::kShapeMismatch, where(key), label() + ": " + what)) failed_ = true;
}

void OpReader::less_equal(const Expr& x, const Expr& y, const std::string& what, std::string_view key) {
  if (!failed_ && !b.require_less_equal(x, y, code::kShapeMismatch, where(key), label() + ": " + what)) failed_ = true;
}

std::optional<ElementName> OpReader::resolve(const std::string& name, const Span& at, bool has_acc,
                                             std::vector<View>& operands, bool& said) {
  if (has_acc && name == "acc") return ElementName{ScalarType::f32, 0, 0};
  const Yaml* with = find("with");
  const Yaml* given = with ? with->find(name) : nullptr;
  std::optional<View> v;
  if (given) {
    v = operand_in(*given);
    said = failed_;
  } else if (b.scopes.find(name) || b.later_names.count(name)) {
    v = parse_operand(b, Text{name, at, true});
    said = !v;
  } else if (const auto e = b.find_dim(name)) {
    if (e->is_constant()) return ElementName{ScalarType::i64, kNone, static_cast<double>(e->constant_value())};
    error(code::kExprName, at, fmt::format("dim '{}' is not constant, and an expression cannot hold it", name),
          "pass it as an input tensor of one element");
    said = true;
  }
  if (!v || said) return std::nullopt;
  std::size_t k = 0;
  while (k < operands.size() && !views_equal(operands[k], *v)) ++k;
  if (k == operands.size()) operands.push_back(*v);
  return ElementName{scalar_type(b.dtype_of(*v)), static_cast<std::uint32_t>(k + has_acc), 0};
}

ElementExpr OpReader::element(std::string_view key, bool has_acc, std::size_t rank, std::vector<View>& operands) {
  const Yaml* value = require(key);
  const Yaml* with = find("with");
  if (with && !b.expect(*with, Yaml::Kind::mapping, "'with'")) failed_ = true;
  const auto text = value ? b.text(*value) : std::nullopt;
  if (!text || failed_) {
    failed_ = true;
    return {};
  }
  ElementNames names;
  names.rank = rank;
  names.find = [&](const std::string& name, const Span& at, bool& said) {
    return resolve(name, at, has_acc, operands, said);
  };
  names.all = [&] {
    std::vector<std::string> all = b.scopes.tensor_names();
    for (std::size_t i = 0; with && i + 1 < with->children.size(); i += 2) all.push_back(with->children[i].text);
    if (has_acc) all.push_back("acc");
    return all;
  };
  auto e = parse_element(*text, names, b.diagnostics);
  if (!e) failed_ = true;
  return e ? std::move(*e) : ElementExpr{};
}

ElementExpr OpReader::epilogue(const Shape& shape, std::vector<View>& inputs) {
  if (failed_ || !has("epilogue")) {
    if (has("with") && !has("epilogue"))
      error(code::kUnknownKey, where("with"), "'with' names operands of an epilogue, and there is none");
    return {};
  }
  std::vector<View> operands;
  ElementExpr e = element("epilogue", true, shape.size(), operands);
  if (failed_) return {};
  if (e.nodes.back().type != ScalarType::f32) {
    error(code::kExprType, where("epilogue"),
          fmt::format("an epilogue gives a float, not {}", scalar_type_name(e.nodes.back().type)));
    return {};
  }
  for (const View& v : operands) {
    auto wide = broadcast(b, v, shape, where("epilogue"), "an operand of the epilogue");
    if (!wide)
      failed_ = true;
    else
      inputs.push_back(std::move(*wide));
  }
  return e;
}

std::optional<OutTarget> OpReader::out_target() {
  const Yaml* value = require("out");
  const auto text = value ? b.text(*value) : std::nullopt;
  auto target = text ? parse_out(b, *text) : std::nullopt;
  if (!target) failed_ = true;
  return target;
}

std::optional<View> OpReader::open(const OutTarget& target, const Shape& shape, Dtype dtype, DtypeRule rule) {
  if (has("dtype") && target.window && b.dtype_of(*target.window) != dtype) {
    error(code::kDtypeMismatch, where("dtype"),
          fmt::format("'{}' is declared as {}", target.name, wire::dtype_name(b.dtype_of(*target.window))),
          "leave 'dtype' out: a declared tensor has its own");
    return std::nullopt;
  }
  auto v = open_out(b, target, shape, dtype, rule);
  if (!v) failed_ = true;
  return v;
}

bool OpReader::emit(OpAttrs attrs, std::vector<View> inputs, std::vector<View> outputs, const std::string& out_name) {
  Op op;
  op.attrs = std::move(attrs);
  op.inputs = std::move(inputs);
  op.outputs = std::move(outputs);
  std::string name = b.scopes.top().prefix + op_kind_name(op.kind()) + (out_name.empty() ? "" : "." + out_name);
  if (const Yaml* given = find("name"); given && op.kind() != OpKind::report) {
    const auto text = b.text(*given);
    if (!text || !b.check_name(*text))
      failed_ = true;
    else
      name = text->substituted ? text->text : b.scopes.top().prefix + text->text;
  }
  if (!failed_ && !b.emit(std::move(op), name, node_.span)) failed_ = true;
  return !failed_;
}

void OpReader::finish(OpAttrs attrs, std::vector<View> inputs, const Shape& shape, Dtype wanted, DtypeRule rule) {
  if (failed_) return;
  const auto target = out_target();
  if (!target) return;
  const auto out = open(*target, shape, wanted, rule);
  if (out) emit(std::move(attrs), std::move(inputs), {*out}, target->name);
}

void OpReader::bind_view(const View& v) {
  if (failed_) return;
  const auto target = out_target();
  if (!target) return;
  if (!target->window) {
    bind_name(b, target->name, v, target->where, target->global);
    return;
  }
  error(code::kReadOnly, target->where,
        fmt::format("'{}' is a declared tensor; {} makes a view and writes nothing", target->name, kind_),
        "copy into it with a map");
}

void OpReader::poison_outputs() {
  const Yaml* out = find("out");
  if (!out) return;
  if (out->is_scalar()) poison(b, out->text, out->span);
  for (const Yaml& child : out->children)
    if (out->is_sequence() && child.is_scalar()) poison(b, child.text, child.span);
}

}  // namespace ccks::spec

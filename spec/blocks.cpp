// repeat and if.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "spec/blocks.hpp"
#include "spec/op_reader.hpp"
#include "spec/ops.hpp"
#include "spec/sections.hpp"

namespace ccks::spec {
namespace {

constexpr std::size_t kMaxBlockDepth = 24;

struct Range {
  std::string index, label;
  std::int64_t from = 0, to = 0;
};

}  // namespace

std::optional<std::string> read_index(Builder& b, const Yaml& node) {
  const Text name = node.as_text();
  if (!b.expect(node, Yaml::Kind::scalar, "'index'") || !b.check_name(name)) return std::nullopt;
  if (name.text.find('.') != std::string::npos || b.find_dim(name.text) || b.scopes.find(name.text)) {
    b.diagnostics.error(code::kBadRepeat, node.span, in_quotes(name.text) + " cannot be an index: it is a dim or a tensor, or has a '.'");
    return std::nullopt;
  }
  return name.text;
}

namespace {

std::optional<Range> read_range(Builder& b, const Yaml& node) {
  if (!b.expect(node, Yaml::Kind::mapping, "'repeat'")) return std::nullopt;
  b.check_keys(node, {"index", "from", "to", "name"}, "'repeat'");
  const Yaml* index = node.find("index");
  const Yaml* to = node.find("to");
  if (!index || !to) {
    b.diagnostics.error(code::kMissingKey, node.span, "'repeat' needs 'index' and 'to'",
                        "repeat: {index: l, from: 0, to: layers}");
    return std::nullopt;
  }
  const auto name = read_index(b, *index);
  if (!name) return std::nullopt;
  Range range;
  range.index = range.label = *name;
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  const Yaml* from = node.find("from");
  const auto first = from ? b.constant(*from, -kLimit, kLimit) : std::optional<std::int64_t>(0);
  const auto last = b.constant(*to, -kLimit, kLimit);
  if (!first || !last) return std::nullopt;
  if (*first > *last) {
    b.diagnostics.error(code::kBadRepeat, to->span, fmt::format("repeat from {} to {} runs backwards", *first, *last));
    return std::nullopt;
  }
  range.from = *first;
  range.to = *last;
  if (const Yaml* label = node.find("name")) {
    const auto text = b.text(*label);
    if (!text || !b.check_name(*text)) return std::nullopt;
    range.label = text->text;
  }
  return range;
}

}  // namespace

bool enter_block(Builder& b, const Yaml& node) {
  if (b.scopes.depth() <= kMaxBlockDepth) return true;
  b.diagnostics.error(code::kTooLarge, node.span, "blocks nested too deeply", "at most 24 levels of repeat, if and while");
  return false;
}

void read_repeat(Builder& b, const Yaml& node) {
  b.check_keys(node, {"repeat", "tensors", "ops"}, "a repeat block");
  const auto range = read_range(b, *node.find("repeat"));
  if (!range || !enter_block(b, node)) return;
  for (std::int64_t i = range->from; i < range->to; ++i) {
    if (b.diagnostics.full() || b.exhausted() || !b.count_work(node.span)) return;
    // The first faulty pass has said what there is to say; thousands more would only repeat it.
    const std::size_t errors = b.diagnostics.errors();
    b.scopes.push(Scope::Kind::repeat);
    b.scopes.top().prefix += fmt::format("{}.{}.", range->label, i < 0 ? "m" + std::to_string(-i) : std::to_string(i));
    b.scopes.top().indices[range->index] = i;
    if (const Yaml* tensors = node.find("tensors")) read_tensors(b, *tensors);
    if (const Yaml* ops = node.find("ops")) read_ops(b, *ops);
    b.scopes.pop();
    if (b.diagnostics.errors() != errors) return;
  }
}

std::optional<Condition> read_condition(Builder& b, const Yaml& node) {
  const auto text = b.text(node);
  if (!text) return std::nullopt;
  static constexpr std::pair<std::string_view, Condition::Cmp> kSigns[] = {
      {"==", Condition::Cmp::eq}, {"!=", Condition::Cmp::ne}, {"<=", Condition::Cmp::le},
      {">=", Condition::Cmp::ge}, {"<", Condition::Cmp::lt},  {">", Condition::Cmp::gt}};
  const std::string_view s = text->text;
  const std::size_t at = s.find_first_of("=!<>");
  std::size_t end = at;
  Condition condition{};
  for (const auto& [sign, cmp] : kSigns) {
    if (at == std::string_view::npos || s.substr(at, sign.size()) != sign) continue;
    condition.cmp = cmp;
    end = at + sign.size();
    break;
  }
  std::string_view value = end == at ? std::string_view() : s.substr(end);
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  const auto [rest, failure] = std::from_chars(value.data(), value.data() + value.size(), condition.value);
  if (value.empty() || failure != std::errc() || rest != value.data() + value.size() ||
      !std::isfinite(condition.value)) {
    b.diagnostics.error(code::kBadCondition, node.span, in_quotes(s) + " is not a condition",
                        "a report, a comparison and a number: exit == 0");
    return std::nullopt;
  }
  std::string name(s.substr(0, at));
  while (!name.empty() && name.back() == ' ') name.pop_back();
  const auto report = b.scopes.find_report(name);
  if (!report) {
    b.diagnostics.error(code::kUnknownReport, text->at(0, name.size()),
                        "no report " + in_quotes(name) + " has been made here",
                        did_you_mean(name, b.scopes.report_names()));
    return std::nullopt;
  }
  condition.report = *report;
  condition.parent = b.scopes.top().condition;
  return condition;
}

namespace {

std::optional<View> operand_at(Builder& b, const Yaml* node, const Yaml& key) {
  if (!node) return parse_operand(b, key.as_text());
  const auto text = b.text(*node);
  return text ? parse_operand(b, *text) : std::nullopt;
}

/// The `then` sides, read where the block's own names can be seen.
void read_then_sides(Builder& b, const Yaml& out, std::vector<Joined>& joined) {
  for (std::size_t i = 0; i + 1 < out.children.size(); i += 2) {
    const Yaml& key = out.children[i];
    const Yaml& value = out.children[i + 1];
    if (!key.is_scalar() || (!value.is_null() && !b.expect(value, Yaml::Kind::mapping, "an 'out' of an if"))) continue;
    b.check_keys(value, {"then", "else"}, "an 'out' of an if");
    const auto v = operand_at(b, value.find("then"), key);
    if (v)
      joined.push_back({key.text, *v, {}, &value});
    else
      poison(b, key.text, key.span);
  }
}

}  // namespace

void emit_select(Builder& b, const Yaml& key, const Joined& j, std::uint32_t condition) {
  const auto name = b.text(key);
  const auto target = name ? parse_out(b, *name) : std::nullopt;
  if (!target) return;
  const Shape shape = shape_of(j.then_view), other = shape_of(j.else_view);
  if (b.dtype_of(j.then_view) != b.dtype_of(j.else_view))
    return b.diagnostics.error(code::kDtypeMismatch, key.span,
                               "the two sides of " + in_quotes(j.name) + " have different dtypes");
  if (shape.size() != other.size())
    return b.diagnostics.error(
        code::kWrongRank, key.span,
        fmt::format("the two sides of '{}' are {} and {}", j.name, b.print(shape), b.print(other)));
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (!b.require_equal(shape[i], other[i], code::kShapeMismatch, key.span,
                         fmt::format("the two sides of '{}' are {} and {}", j.name, b.print(shape), b.print(other))))
      return;
  const auto out = open_out(b, *target, shape, b.dtype_of(j.then_view), DtypeRule::exact);
  if (!out) return;
  Op op;
  op.attrs = SelectAttrs{condition};
  op.inputs = {j.then_view, j.else_view};
  op.outputs = {*out};
  b.emit(std::move(op), b.scopes.top().prefix + "select." + target->name, key.span);
}

void read_if(Builder& b, const Yaml& node) {
  b.check_keys(node, {"if", "ops", "out"}, "an if block");
  auto condition = read_condition(b, *node.find("if"));
  if (!enter_block(b, node)) return;
  const Yaml* out = node.find("out");
  if (out && !b.expect(*out, Yaml::Kind::mapping, "'out' of an if")) out = nullptr;
  // A bad condition is said once; the body is still read, for what else is wrong in it.
  std::uint32_t index = b.scopes.top().condition;
  if (condition) {
    index = static_cast<std::uint32_t>(b.program.conditions.size());
    b.program.conditions.push_back(*condition);
  }
  std::vector<Joined> joined;
  b.scopes.push(Scope::Kind::condition);
  b.scopes.top().condition = index;
  if (const Yaml* ops = node.find("ops")) read_ops(b, *ops);
  if (out) read_then_sides(b, *out, joined);
  b.scopes.pop();
  for (Joined& j : joined) {
    const auto it =
        std::find_if(out->children.begin(), out->children.end(), [&](const Yaml& c) { return &c == j.place; });
    const Yaml& key = *(it - 1);
    const auto v = operand_at(b, j.place->find("else"), key);
    if (!v) {
      poison(b, j.name, key.span);
      continue;
    }
    j.else_view = *v;
    emit_select(b, key, j, index);
  }
}

}  // namespace ccks::spec

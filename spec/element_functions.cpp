#include "spec/element_functions.hpp"

#include <algorithm>

namespace ccks::spec {
namespace {

constexpr ElementFunction kFunctions[] = {
    {"exp", ExprFn::exp, 1},      {"log", ExprFn::log, 1},           {"sqrt", ExprFn::sqrt, 1},
    {"rsqrt", ExprFn::rsqrt, 1},  {"sin", ExprFn::sin, 1},           {"cos", ExprFn::cos, 1},
    {"tanh", ExprFn::tanh, 1},    {"erf", ExprFn::erf, 1},           {"sigmoid", ExprFn::sigmoid, 1},
    {"silu", ExprFn::silu, 1},    {"gelu", ExprFn::gelu, 1},         {"gelu_tanh", ExprFn::gelu_tanh, 1},
    {"relu", ExprFn::relu, 1},    {"softplus", ExprFn::softplus, 1}, {"abs", ExprFn::abs, 1},
    {"floor", ExprFn::floor, 1},  {"ceil", ExprFn::ceil, 1},         {"round", ExprFn::round, 1},
    {"sign", ExprFn::sign, 1},    {"float", ExprFn::to_f32, 1},      {"int", ExprFn::to_i64, 1},
    {"bool", ExprFn::to_bool, 1}, {"index", ExprFn::index, 1},       {"min", ExprFn::min, 2},
    {"max", ExprFn::max, 2},      {"pow", ExprFn::pow, 2},           {"select", ExprFn::select, 3},
};

bool keeps_type(ExprFn fn) { return fn == ExprFn::neg || fn == ExprFn::abs || fn == ExprFn::sign; }
bool rounds(ExprFn fn) { return fn == ExprFn::floor || fn == ExprFn::ceil || fn == ExprFn::round; }
bool compares(ExprFn fn) { return fn >= ExprFn::lt && fn <= ExprFn::ne; }

}  // namespace

const ElementFunction* find_element_function(std::string_view name) {
  const auto* it =
      std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const auto& f) { return f.name == name; });
  return it == std::end(kFunctions) ? nullptr : it;
}

std::vector<std::string> element_function_names() {
  std::vector<std::string> names;
  for (const auto& f : kFunctions) names.push_back(f.name);
  return names;
}

std::uint32_t ElementBuilder::add(ExprFn fn, ScalarType type, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  ExprNode n;
  n.fn = fn;
  n.type = type;
  n.a = a;
  n.b = b;
  n.c = c;
  nodes_.push_back(n);
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::uint32_t ElementBuilder::constant(ScalarType type, double value) {
  const std::uint32_t i = add(ExprFn::constant, type);
  nodes_[i].value = value;
  return i;
}

std::uint32_t ElementBuilder::argument(ScalarType type, std::uint32_t operand) {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].fn == ExprFn::argument && nodes_[i].index == operand) return i;
  const std::uint32_t i = add(ExprFn::argument, type);
  nodes_[i].index = operand;
  return i;
}

std::uint32_t ElementBuilder::index(std::uint32_t dim) {
  const std::uint32_t i = add(ExprFn::index, ScalarType::i64);
  nodes_[i].index = dim;
  return i;
}

std::uint32_t ElementBuilder::convert(std::uint32_t node, ScalarType type) {
  if (nodes_[node].type == type) return node;
  if (nodes_[node].fn == ExprFn::constant && type != ScalarType::boolean && nodes_[node].type != ScalarType::f32)
    return constant(type, nodes_[node].value);
  return add(type == ScalarType::f32   ? ExprFn::to_f32
             : type == ScalarType::i64 ? ExprFn::to_i64
                                       : ExprFn::to_bool,
             type, node);
}

void ElementBuilder::unify(std::uint32_t& a, std::uint32_t& b) {
  const ScalarType wider = type(a) == ScalarType::f32 || type(b) == ScalarType::f32   ? ScalarType::f32
                           : type(a) == ScalarType::i64 || type(b) == ScalarType::i64 ? ScalarType::i64
                                                                                      : ScalarType::boolean;
  a = convert(a, wider);
  b = convert(b, wider);
}

std::optional<std::uint32_t> ElementBuilder::arithmetic(ExprFn fn, std::uint32_t a, std::uint32_t b) {
  unify(a, b);
  if (fn == ExprFn::pow) {
    a = as_float(a);
    b = as_float(b);
  } else if (type(a) == ScalarType::boolean) {
    a = convert(a, ScalarType::i64);
    b = convert(b, ScalarType::i64);
  }
  return add(fn, type(a), a, b);
}

std::optional<std::uint32_t> ElementBuilder::unary(ExprFn fn, std::uint32_t a) {
  if (fn == ExprFn::to_f32) return convert(a, ScalarType::f32);
  if (fn == ExprFn::to_i64) return convert(a, ScalarType::i64);
  if (fn == ExprFn::to_bool) return convert(a, ScalarType::boolean);
  if (fn == ExprFn::neg && nodes_[a].fn == ExprFn::constant && type(a) != ScalarType::boolean)
    return constant(type(a), -nodes_[a].value);
  if (rounds(fn) && type(a) != ScalarType::f32) return convert(a, ScalarType::i64);
  if (!keeps_type(fn)) return add(fn, ScalarType::f32, as_float(a));
  if (type(a) == ScalarType::boolean) a = convert(a, ScalarType::i64);
  return add(fn, type(a), a);
}

std::optional<std::uint32_t> ElementBuilder::apply(ExprFn fn, std::initializer_list<std::uint32_t> operands,
                                                   std::string& why) {
  const auto is_bool = [&](std::uint32_t n) { return type(n) == ScalarType::boolean; };
  std::uint32_t a = operands.begin()[0];
  if (fn == ExprFn::select) {
    std::uint32_t yes = operands.begin()[1], no = operands.begin()[2];
    if (!is_bool(a)) {
      why = "the first argument of select is a condition, e.g. select(x > 0, x, 0)";
      return std::nullopt;
    }
    unify(yes, no);
    return add(fn, type(yes), a, yes, no);
  }
  if (fn == ExprFn::logical_not || fn == ExprFn::logical_and || fn == ExprFn::logical_or) {
    if (!std::all_of(operands.begin(), operands.end(), is_bool)) {
      why = "'and', 'or' and 'not' take conditions, not numbers; compare first, or write bool(x)";
      return std::nullopt;
    }
    return add(fn, ScalarType::boolean, a, operands.size() > 1 ? operands.begin()[1] : kNone);
  }
  if (operands.size() == 1) return unary(fn, a);
  std::uint32_t b = operands.begin()[1];
  if (!compares(fn)) return arithmetic(fn, a, b);
  unify(a, b);
  if (is_bool(a)) {
    a = convert(a, ScalarType::i64);
    b = convert(b, ScalarType::i64);
  }
  return add(fn, ScalarType::boolean, a, b);
}

ElementExpr ElementBuilder::take(std::uint32_t root) {
  std::vector<bool> used(nodes_.size(), false);
  used[root] = true;
  for (std::size_t i = root + 1; i-- > 0;)
    for (std::uint32_t child : {nodes_[i].a, nodes_[i].b, nodes_[i].c})
      if (used[i] && child != kNone) used[child] = true;
  std::vector<std::uint32_t> moved(nodes_.size(), kNone);
  ElementExpr e;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!used[i]) continue;
    ExprNode n = nodes_[i];
    for (std::uint32_t* child : {&n.a, &n.b, &n.c})
      if (*child != kNone) *child = moved[*child];
    moved[i] = static_cast<std::uint32_t>(e.nodes.size());
    e.nodes.push_back(n);
  }
  return e;
}

}  // namespace ccks::spec

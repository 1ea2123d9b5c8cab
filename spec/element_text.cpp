#include "spec/element_text.hpp"

#include <charconv>
#include <cmath>

#include "spec/dim_text.hpp"
#include "spec/element_functions.hpp"

namespace ccks::spec {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxNodes = 512;  // a tile body of this size is already far past what pays to fuse

/// Recursive descent, loosest first: or, and, not, comparison, sum, product, sign, power, primary.
class ElementParser {
 public:
  ElementParser(const Text& text, const ElementNames& names, Diagnostics& diagnostics)
      : text_(text), names_(names), diagnostics_(diagnostics) {}

  std::optional<ElementExpr> run() {
    const auto root = disjunction();
    if (!root) return std::nullopt;
    skip_blanks();
    if (position_ < text_.text.size()) {
      fail(code::kExprSyntax, position_, 1, "unexpected text after the expression");
      return std::nullopt;
    }
    return builder_.take(*root);
  }

 private:
  using Node = std::optional<std::uint32_t>;

  void skip_blanks() {
    while (position_ < text_.text.size() &&
           std::string_view(" \t\n").find(text_.text[position_]) != std::string_view::npos)
      ++position_;
  }
  bool accept(std::string_view symbol) {
    skip_blanks();
    if (std::string_view(text_.text).substr(position_, symbol.size()) != symbol) return false;
    position_ += symbol.size();
    return true;
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    const std::size_t end = position_ + word.size();
    if (std::string_view(text_.text).substr(position_, word.size()) != word) return false;
    if (end < text_.text.size() && is_name_part(text_.text[end])) return false;
    position_ = end;
    return true;
  }
  std::nullopt_t fail(Code code, std::size_t at, std::size_t length, std::string message, std::string hint = {}) {
    diagnostics_.error(code, text_.at(at, length), std::move(message), std::move(hint));
    return std::nullopt;
  }
  /// Applies `fn`, and says what is wrong with the operands' types if anything is.
  Node apply(ExprFn fn, std::size_t at, std::initializer_list<std::uint32_t> operands) {
    if (builder_.size() > kMaxNodes)
      return fail(code::kExprSyntax, at, 1, "this expression is too large", "split it over two maps");
    std::string why;
    const Node node = builder_.apply(fn, operands, why);
    if (!node) return fail(code::kExprType, at, position_ - at, why);
    return node;
  }

  Node disjunction() {
    Node a = conjunction();
    while (a) {
      const std::size_t at = position_;
      if (!accept_word("or")) return a;
      const Node b = conjunction();
      if (!b) return b;
      a = apply(ExprFn::logical_or, at, {*a, *b});
    }
    return a;
  }
  Node conjunction() {
    Node a = negation();
    while (a) {
      const std::size_t at = position_;
      if (!accept_word("and")) return a;
      const Node b = negation();
      if (!b) return b;
      a = apply(ExprFn::logical_and, at, {*a, *b});
    }
    return a;
  }
  Node negation() {
    skip_blanks();
    const std::size_t at = position_;
    if (!accept_word("not")) return comparison();
    if (++depth_ > kMaxDepth) return fail(code::kExprSyntax, at, 1, "nested too deeply");
    const Node a = negation();
    --depth_;
    return a ? apply(ExprFn::logical_not, at, {*a}) : a;
  }
  Node comparison() {
    static constexpr std::pair<const char*, ExprFn> kSigns[] = {{"<=", ExprFn::le}, {">=", ExprFn::ge},
                                                                {"==", ExprFn::eq}, {"!=", ExprFn::ne},
                                                                {"<", ExprFn::lt},  {">", ExprFn::gt}};
    const Node a = sum();
    if (!a) return a;
    skip_blanks();
    const std::size_t at = position_;
    for (const auto& [sign, fn] : kSigns) {
      if (!accept(sign)) continue;
      const Node b = sum();
      return b ? apply(fn, at, {*a, *b}) : b;
    }
    return a;
  }
  Node sum() {
    Node a = product();
    while (a) {
      skip_blanks();
      const std::size_t at = position_;
      const bool plus = accept("+");
      if (!plus && !accept("-")) return a;
      const Node b = product();
      if (!b) return b;
      a = apply(plus ? ExprFn::add : ExprFn::sub, at, {*a, *b});
    }
    return a;
  }
  Node product() {
    Node a = sign();
    while (a) {
      skip_blanks();
      const std::size_t at = position_;
      if (std::string_view(text_.text).substr(at, 2) == "**") return a;
      enum { kTimes, kFloor, kDivide, kModulo } op;
      if (accept("*"))
        op = kTimes;
      else if (accept("//"))
        op = kFloor;
      else if (accept("/"))
        op = kDivide;
      else if (accept("%"))
        op = kModulo;
      else
        return a;
      const Node b = sign();
      if (!b) return b;
      if (op == kTimes)
        a = apply(ExprFn::mul, at, {*a, *b});
      else if (op == kModulo)
        a = apply(ExprFn::mod, at, {*a, *b});
      else if (op == kDivide)
        a = apply(ExprFn::div, at, {builder_.as_float(*a), builder_.as_float(*b)});
      else
        a = floor_divide(at, *a, *b);
    }
    return a;
  }
  Node floor_divide(std::size_t at, std::uint32_t a, std::uint32_t b) {
    const Node quotient = apply(ExprFn::div, at, {a, b});
    return quotient && builder_.type(*quotient) == ScalarType::f32 ? apply(ExprFn::floor, at, {*quotient}) : quotient;
  }
  Node sign() {
    skip_blanks();
    const std::size_t at = position_;
    if (!accept("-")) return power();
    if (++depth_ > kMaxDepth) return fail(code::kExprSyntax, at, 1, "nested too deeply");
    const Node a = sign();
    --depth_;
    return a ? apply(ExprFn::neg, at, {*a}) : a;
  }
  Node power() {
    const Node a = primary();
    if (!a) return a;
    skip_blanks();
    const std::size_t at = position_;
    if (!accept("**")) return a;
    if (++depth_ > kMaxDepth) return fail(code::kExprSyntax, at, 1, "nested too deeply");
    const Node b = sign();
    --depth_;
    return b ? apply(ExprFn::pow, at, {*a, *b}) : b;
  }

  Node primary() {
    skip_blanks();
    const std::size_t at = position_;
    if (at >= text_.text.size()) return fail(code::kExprSyntax, at, 1, "the expression ends too early");
    const char c = text_.text[at];
    if ((c >= '0' && c <= '9') || c == '.') return number();
    if (is_name_start(c)) return name_or_call();
    if (!accept("("))
      return fail(code::kExprSyntax, at, 1, "unexpected " + in_quotes(text_.text.substr(at, 1)) + " in an expression");
    if (++depth_ > kMaxDepth) return fail(code::kExprSyntax, at, 1, "nested too deeply");
    const Node inner = disjunction();
    --depth_;
    if (inner && !accept(")")) return fail(code::kExprSyntax, position_, 1, "')' is missing");
    return inner;
  }

  Node number() {
    const std::size_t at = position_;
    double value = 0;
    const char* begin = text_.text.data() + at;
    const auto [end, error] = std::from_chars(begin, text_.text.data() + text_.text.size(), value);
    position_ += static_cast<std::size_t>(end - begin);
    const std::string digits = text_.text.substr(at, position_ - at);
    const bool is_float = digits.find_first_of(".eE") != std::string::npos;
    const double limit = is_float ? 3.4e38 : 9007199254740992.0;  // f32's largest; 2^53, the largest exact integer
    if (end == begin || error != std::errc() || !(value <= limit) ||
        (position_ < text_.text.size() && is_name_part(text_.text[position_])))
      return fail(code::kExprSyntax, at, std::max<std::size_t>(1, digits.size()), "not a number that can be used here");
    return builder_.constant(is_float ? ScalarType::f32 : ScalarType::i64, value);
  }

  Node name_or_call() {
    const std::size_t at = position_;
    while (position_ < text_.text.size() && (is_name_part(text_.text[position_]) || text_.text[position_] == '.'))
      ++position_;
    const std::string name = text_.text.substr(at, position_ - at);
    if (accept("(")) return call(name, at);
    if (name == "true" || name == "false") return builder_.constant(ScalarType::boolean, name == "true");
    bool said = false;
    if (const auto found = names_.find(name, text_.at(at, name.size()), said)) {
      if (found->argument == kNone) return builder_.constant(found->type, found->constant);
      return builder_.argument(found->type, found->argument);
    }
    if (said) return std::nullopt;
    return fail(code::kExprName, at, name.size(), "unknown name " + in_quotes(name) + " in an expression",
                did_you_mean(name, names_.all()));
  }

  Node call(const std::string& name, std::size_t at) {
    const ElementFunction* function = find_element_function(name);
    if (!function)
      return fail(code::kExprFunction, at, name.size(), "unknown function " + in_quotes(name),
                  did_you_mean(name, element_function_names()));
    if (++depth_ > kMaxDepth) return fail(code::kExprSyntax, at, 1, "nested too deeply");
    std::vector<std::uint32_t> arguments;
    do {
      const Node a = disjunction();
      if (!a) return a;
      arguments.push_back(*a);
    } while (accept(","));
    --depth_;
    if (!accept(")")) return fail(code::kExprSyntax, position_, 1, "')' is missing");
    if (arguments.size() != function->arity)
      return fail(
          code::kExprFunction, at, name.size(),
          name + " takes " + std::to_string(function->arity) + " argument(s), not " + std::to_string(arguments.size()));
    if (function->fn == ExprFn::index) return index_of(arguments[0], at);
    if (arguments.size() == 1) return apply(function->fn, at, {arguments[0]});
    if (arguments.size() == 2) return apply(function->fn, at, {arguments[0], arguments[1]});
    return apply(function->fn, at, {arguments[0], arguments[1], arguments[2]});
  }

  Node index_of(std::uint32_t argument, std::size_t at) {
    const ExprNode& n = builder_.node(argument);
    if (n.fn != ExprFn::constant || n.type != ScalarType::i64 || n.value < 0 ||
        n.value >= static_cast<double>(names_.rank))
      return fail(code::kExprFunction, at, position_ - at, "index(k) takes the number of an output dim, from 0");
    return builder_.index(static_cast<std::uint32_t>(n.value));
  }

  const Text& text_;
  const ElementNames& names_;
  Diagnostics& diagnostics_;
  ElementBuilder builder_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<ElementExpr> parse_element(const Text& text, const ElementNames& names, Diagnostics& diagnostics) {
  return ElementParser(text, names, diagnostics).run();
}

ScalarType scalar_type(Dtype dtype) {
  if (wire::dtype_is_float(dtype)) return ScalarType::f32;
  return dtype == Dtype::boolean ? ScalarType::boolean : ScalarType::i64;
}

const char* scalar_type_name(ScalarType type) {
  return type == ScalarType::f32 ? "float" : type == ScalarType::i64 ? "int" : "bool";
}

}  // namespace ccks::spec

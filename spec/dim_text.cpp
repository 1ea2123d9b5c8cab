#include "spec/dim_text.hpp"

#include <algorithm>
#include <charconv>

namespace ccks::spec {
namespace {

constexpr int kMaxParenthesisDepth = 64;

}  // namespace

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_part(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

void DimParser::skip_blanks() {
  while (position_ < text_.text.size() && (text_.text[position_] == ' ' || text_.text[position_] == '\t')) ++position_;
}

bool DimParser::accept(char c) {
  skip_blanks();
  if (position_ >= text_.text.size() || text_.text[position_] != c) return false;
  ++position_;
  return true;
}

bool DimParser::accept_word(std::string_view word) {
  skip_blanks();
  if (std::string_view(text_.text).substr(position_, word.size()) != word) return false;
  position_ += word.size();
  return true;
}

bool DimParser::at_end() {
  skip_blanks();
  return position_ >= text_.text.size();
}

std::nullopt_t DimParser::fail(Code code, std::size_t at, std::size_t length, std::string message, std::string hint) {
  diagnostics_.error(code, text_.at(at, length), std::move(message), std::move(hint));
  return std::nullopt;
}

std::optional<Expr> DimParser::checked(Expr e, std::size_t at) {
  if (e.weight() > Expr::kMaxWeight)
    return fail(code::kDimTooComplex, at, position_ - at, "this expression grows too large",
                "give the parts dims of their own");
  return e;
}

std::optional<Expr> DimParser::expression() {
  skip_blanks();
  const std::size_t at = position_;
  auto sum = product();
  while (sum) {
    const bool plus = accept('+');
    if (!plus && !accept('-')) return sum;
    const auto next = product();
    if (!next) return std::nullopt;
    sum = checked(plus ? *sum + *next : *sum - *next, at);
  }
  return sum;
}

std::optional<Expr> DimParser::product() {
  skip_blanks();
  const std::size_t at = position_;
  auto result = unary();
  while (result) {
    skip_blanks();
    const std::size_t sign = position_;
    const char* function = nullptr;
    if (accept('*')) {
    } else if (accept_word("//")) {
      function = "floordiv";
    } else if (accept('%')) {
      function = "floormod";
    } else if (accept('/')) {
      return fail(code::kDimSyntax, sign, 1, "'/' is not an integer division",
                  "write '//' to round down, or ceildiv(a, b)");
    } else {
      return result;
    }
    const auto next = unary();
    if (!next) return std::nullopt;
    result = function ? divide(function, *result, *next, sign) : checked(*result * *next, at);
  }
  return result;
}

std::optional<Expr> DimParser::divide(std::string_view function, const Expr& a, const Expr& b, std::size_t at) {
  const Interval range = b.bounds(names_.symbols());
  if (range.lo <= 0 && range.hi >= 0)
    return fail(code::kDimValue, at, position_ - at,
                b.is_constant() ? "division by zero" : "the divisor " + b.to_string(names_.symbols()) + " may be zero",
                b.is_constant() ? "" : "give its symbol a range that begins at 1");
  if (function == "floordiv") return checked(floordiv(a, b), at);
  if (function == "floormod") return checked(floormod(a, b), at);
  return checked(ceildiv(a, b), at);
}

std::optional<Expr> DimParser::unary() {
  bool negative = false;
  while (accept('-')) negative = !negative;
  auto e = primary();
  if (e && negative) return Expr(0) - *e;
  return e;
}

std::optional<Expr> DimParser::primary() {
  skip_blanks();
  const std::size_t at = position_;
  if (at >= text_.text.size()) return fail(code::kDimSyntax, at, 1, "an expression ends too early");
  const char c = text_.text[at];
  if (c >= '0' && c <= '9') return number();
  if (is_name_start(c)) return name_or_call();
  if (!accept('(')) return fail(code::kDimSyntax, at, 1, std::string("unexpected '") + c + "' in a dim expression");
  if (++depth_ > kMaxParenthesisDepth) return fail(code::kDimTooComplex, at, 1, "parentheses nested too deeply");
  auto inner = expression();
  --depth_;
  if (inner && !accept(')')) return fail(code::kDimSyntax, position_, 1, "')' is missing");
  return inner;
}

std::optional<Expr> DimParser::number() {
  const std::size_t at = position_;
  std::int64_t value = 0;
  const char* begin = text_.text.data() + at;
  const auto [end, error] = std::from_chars(begin, text_.text.data() + text_.text.size(), value);
  position_ += static_cast<std::size_t>(end - begin);
  // 2^53: everything downstream can hold the value exactly, JSON and f64 included.
  if (error != std::errc() || value > (std::int64_t{1} << 53))
    return fail(code::kDimValue, at, position_ - at, "this number is too large", "dims are at most 2^53");
  if (position_ < text_.text.size() && (text_.text[position_] == '.' || is_name_part(text_.text[position_])))
    return fail(code::kDimSyntax, at, position_ - at + 1, "a dim is an integer");
  return Expr(value);
}

std::optional<Expr> DimParser::name_or_call() {
  const std::size_t at = position_;
  while (position_ < text_.text.size() && is_name_part(text_.text[position_])) ++position_;
  const std::string name = text_.text.substr(at, position_ - at);
  if (accept('(')) return call(name, at);
  if (auto e = names_.find_dim(name)) return e;
  return fail(code::kUnknownDim, at, name.size(), "unknown dim " + in_quotes(name),
              did_you_mean(name, names_.dim_names()));
}

std::optional<Expr> DimParser::call(std::string_view function, std::size_t at) {
  static const std::vector<std::string> kFunctions{"ceildiv", "floordiv", "floormod", "min", "max"};
  if (std::find(kFunctions.begin(), kFunctions.end(), function) == kFunctions.end())
    return fail(code::kDimSyntax, at, function.size(), "unknown function " + in_quotes(function),
                did_you_mean(function, kFunctions));
  if (++depth_ > kMaxParenthesisDepth) return fail(code::kDimTooComplex, at, 1, "parentheses nested too deeply");
  const auto a = expression();
  if (!a) return std::nullopt;
  if (!accept(',')) return fail(code::kDimSyntax, position_, 1, std::string(function) + " takes two arguments");
  const auto b = expression();
  if (!b) return std::nullopt;
  if (!accept(')')) return fail(code::kDimSyntax, position_, 1, "')' is missing");
  --depth_;
  if (function == "min") return checked(min(*a, *b), at);
  if (function == "max") return checked(max(*a, *b), at);
  return divide(function, *a, *b, at);
}

std::optional<Expr> parse_dim(const Text& text, const DimNames& names, Diagnostics& diagnostics) {
  DimParser parser(text, 0, names, diagnostics);
  auto e = parser.expression();
  if (e && !parser.at_end()) {
    diagnostics.error(code::kDimSyntax, text.at(parser.position()), "unexpected text after the expression");
    return std::nullopt;
  }
  return e;
}

}  // namespace ccks::spec

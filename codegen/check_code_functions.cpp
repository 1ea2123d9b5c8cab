#include "codegen/check_code_functions.hpp"

#include <cmath>

namespace ccks::codegen::check {

std::int64_t truncated(double v) {
  return std::isnan(v) ? 0 : v >= 9.2e18 ? INT64_MAX : v <= -9.2e18 ? INT64_MIN : static_cast<std::int64_t>(v);
}

namespace {

/// Integers wrap, as both sides are defined to.
std::int64_t wrap(std::uint64_t v) { return static_cast<std::int64_t>(v); }
std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == 0 || b == -1) return b == 0 ? 0 : wrap(0 - static_cast<std::uint64_t>(a));
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
}

double float_unary(Fn fn, double a) {
  switch (fn) {
    case Fn::neg:
      return -a;
    case Fn::abs:
      return std::abs(a);
    case Fn::floor:
      return std::floor(a);
    case Fn::ceil:
      return std::ceil(a);
    case Fn::round:
      return std::nearbyint(a);
    case Fn::sign:
      return a > 0 ? 1 : a < 0 ? -1 : a;
    case Fn::exp:
      return std::exp(a);
    case Fn::log:
      return std::log(a);
    case Fn::sqrt:
      return std::sqrt(a);
    case Fn::rsqrt:
      return 1 / std::sqrt(a);
    case Fn::sin:
      return std::sin(a);
    case Fn::cos:
      return std::cos(a);
    case Fn::tanh:
      return std::tanh(a);
    case Fn::erf:
      return std::erf(a);
    case Fn::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Fn::silu:
      return a / (1 + std::exp(-a));
    case Fn::gelu:
      return 0.5 * a * (1 + std::erf(a / std::sqrt(2.0)));
    case Fn::gelu_tanh:
      return 0.5 * a * (1 + std::tanh(std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
    case Fn::relu:
      return a > 0 ? a : 0;
    case Fn::softplus:
      return a > 0 ? a + std::log1p(std::exp(-a)) : std::log1p(std::exp(a));
    default:
      return 0;
  }
}

Number float_binary(Fn fn, double a, double b) {
  switch (fn) {
    case Fn::add:
      return of(a + b);
    case Fn::sub:
      return of(a - b);
    case Fn::mul:
      return of(a * b);
    case Fn::div:
      return of(a / b);
    case Fn::mod:
      return of(a - std::floor(a / b) * b);
    case Fn::min:
      return of(a < b ? a : b);
    case Fn::max:
      return of(a > b ? a : b);
    case Fn::pow:
      return of(std::pow(a, b));
    case Fn::lt:
      return of_int(a < b);
    case Fn::le:
      return of_int(a <= b);
    case Fn::eq:
      return of_int(a == b);
    default:
      return of_int(a != b);
  }
}

Number int_binary(Fn fn, std::int64_t a, std::int64_t b) {
  const auto ua = static_cast<std::uint64_t>(a), ub = static_cast<std::uint64_t>(b);
  switch (fn) {
    case Fn::add:
      return of_int(wrap(ua + ub));
    case Fn::sub:
      return of_int(wrap(ua - ub));
    case Fn::mul:
      return of_int(wrap(ua * ub));
    case Fn::div:
      return of_int(floor_div(a, b));
    case Fn::mod:
      return of_int(b == 0 ? 0 : wrap(ua - static_cast<std::uint64_t>(floor_div(a, b)) * ub));
    case Fn::min:
      return of_int(a < b ? a : b);
    case Fn::max:
      return of_int(a > b ? a : b);
    case Fn::lt:
      return of_int(a < b);
    case Fn::le:
      return of_int(a <= b);
    case Fn::eq:
      return of_int(a == b);
    default:
      return of_int(a != b);
  }
}

Number int_unary(Fn fn, std::int64_t a) {
  switch (fn) {
    case Fn::neg:
      return of_int(wrap(0 - static_cast<std::uint64_t>(a)));
    case Fn::abs:
      return of_int(a < 0 ? wrap(0 - static_cast<std::uint64_t>(a)) : a);
    case Fn::sign:
      return of_int(a > 0 ? 1 : a < 0 ? -1 : 0);
    case Fn::floor:
    case Fn::ceil:
    case Fn::round:
      return of_int(a);
    default:
      return of(float_unary(fn, static_cast<double>(a)));
  }
}

}  // namespace

Number apply(Fn fn, bool unary, Number a, Number b) {
  if (fn == Fn::lnot) return of_int(!a.truth());
  if (fn == Fn::land) return of_int(a.truth() && b.truth());
  if (fn == Fn::lor) return of_int(a.truth() || b.truth());
  if (unary) return a.is_float ? of(float_unary(fn, a.f)) : int_unary(fn, a.i);
  if (a.is_float || b.is_float || fn == Fn::pow) return float_binary(fn, a.as_float(), b.as_float());
  return int_binary(fn, a.i, b.i);
}

}  // namespace ccks::codegen::check

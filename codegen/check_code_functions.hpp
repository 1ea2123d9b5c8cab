// Scalar functions as element expressions define them, on numbers of two classes. For check_code.cpp.
#pragma once

#include <cstdint>

namespace ccks::codegen::check {

/// A number of either class; integers are exact.
struct Number {
  bool is_float = true;
  double f = 0;
  std::int64_t i = 0;
  double as_float() const { return is_float ? f : static_cast<double>(i); }
  bool truth() const { return is_float ? f != 0 : i != 0; }
};

inline Number of(double v) { return {true, v, 0}; }
inline Number of_int(std::int64_t v) { return {false, 0, v}; }

/// The functions both forms share. One name for each meaning, whatever the form calls it.
// clang-format off
enum class Fn {
  add, sub, mul, div, mod, min, max, pow, neg, abs, floor, ceil, round, sign, exp, log, sqrt, rsqrt, sin, cos, tanh, erf,
  sigmoid, silu, gelu, gelu_tanh, relu, softplus, lt, le, eq, ne, land, lor, lnot,
};
// clang-format on

/// `fn` of one or two numbers; floats where one of them is.
Number apply(Fn fn, bool unary, Number a, Number b);
/// Towards zero; NaN is 0, what does not fit saturates.
std::int64_t truncated(double v);

}  // namespace ccks::codegen::check

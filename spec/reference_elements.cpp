// Element expressions: evaluated a block of elements at a time, floats in f64, ints and bools in i64.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "spec/reference_internal.hpp"

namespace ccks::spec::reference {
namespace {

constexpr std::size_t kBlock = 256;  // elements per pass: keeps all registers of a usual expression in L1

using Float = double;
using Int = std::int64_t;

Int wrap(std::uint64_t v) { return static_cast<Int>(v); }
std::uint64_t bits(Int v) { return static_cast<std::uint64_t>(v); }

// Division by zero gives 0 and INT64_MIN / -1 wraps: no int operation may trap.
Int floor_divide(Int a, Int b) {
  if (b == 0) return 0;
  if (b == -1) return wrap(0 - bits(a));
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int floor_modulo(Int a, Int b) {
  if (b == 0 || b == -1) return 0;
  const Int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Int int_power(Int base, Int exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  std::uint64_t result = 1, square = bits(base);
  for (; exponent != 0; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return wrap(result);
}

Int truncate(Float v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return std::numeric_limits<Int>::max();
  if (v < -0x1p63) return std::numeric_limits<Int>::min();
  return static_cast<Int>(v);
}

Float float_modulo(Float a, Float b) {
  const Float rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// NaN wins, so that an element nobody wrote stays visible.
Float float_min(Float a, Float b) { return std::isnan(a) || a < b ? a : b; }
Float float_max(Float a, Float b) { return std::isnan(a) || a > b ? a : b; }
Float float_sign(Float x) { return std::isnan(x) ? x : static_cast<Float>((x > 0) - (x < 0)); }

Float sigmoid(Float x) { return 1 / (1 + std::exp(-x)); }
Float gelu(Float x) { return 0.5 * x * (1 + std::erf(x * 0.70710678118654752440)); }
Float gelu_tanh(Float x) {
  constexpr Float kSqrtTwoOverPi = 0.79788456080286535588;
  return 0.5 * x * (1 + std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x)));
}
Float softplus(Float x) { return float_max(x, 0) + std::log1p(std::exp(-std::abs(x))); }

class BlockEvaluator {
 public:
  BlockEvaluator(const ElementExpr& expr, std::span<const std::span<const double>> arguments,
                 std::span<const std::int64_t> extents)
      : nodes_(expr.nodes), arguments_(arguments), extents_(extents), registers_(expr.nodes.size()) {}

  void run(std::size_t begin, std::size_t count, double* out) {
    begin_ = begin;
    count_ = count;
    for (std::uint32_t n = 0; n < nodes_.size(); ++n) evaluate(n);
    const Float* result = floats(static_cast<std::uint32_t>(nodes_.size()) - 1);
    for (std::size_t i = 0; i < count; ++i) out[i] = result[i];
  }

 private:
  struct Register {
    std::array<Float, kBlock> f;
    std::array<Int, kBlock> i;
  };

  bool is_float(std::uint32_t n) const { return nodes_[n].type == ScalarType::f32; }

  // Value of node n as floats or ints, converted in its register where it is the other.
  const Float* floats(std::uint32_t n) {
    Register& r = registers_[n];
    if (!is_float(n))
      for (std::size_t i = 0; i < count_; ++i) r.f[i] = static_cast<Float>(r.i[i]);
    return r.f.data();
  }
  const Int* ints(std::uint32_t n) {
    Register& r = registers_[n];
    if (is_float(n))
      for (std::size_t i = 0; i < count_; ++i) r.i[i] = truncate(r.f[i]);
    return r.i.data();
  }
  // Truth of node n, kept beside the registers because n may be needed as a number too.
  const Int* truths(std::uint32_t n, std::size_t slot) {
    const Register& r = registers_[n];
    for (std::size_t i = 0; i < count_; ++i) truths_[slot][i] = is_float(n) ? r.f[i] != 0 : r.i[i] != 0;
    return truths_[slot].data();
  }

  template <class F>
  void unary(std::uint32_t n, F f) {
    const Float* a = floats(nodes_[n].a);
    for (std::size_t i = 0; i < count_; ++i) registers_[n].f[i] = f(a[i]);
  }
  template <class F>
  void binary(std::uint32_t n, F f) {
    const Float *a = floats(nodes_[n].a), *b = floats(nodes_[n].b);
    for (std::size_t i = 0; i < count_; ++i) registers_[n].f[i] = f(a[i], b[i]);
  }
  template <class F>
  void int_unary(std::uint32_t n, F f) {
    const Int* a = ints(nodes_[n].a);
    for (std::size_t i = 0; i < count_; ++i) registers_[n].i[i] = f(a[i]);
  }
  template <class F>
  void int_binary(std::uint32_t n, F f) {
    const Int *a = ints(nodes_[n].a), *b = ints(nodes_[n].b);
    for (std::size_t i = 0; i < count_; ++i) registers_[n].i[i] = f(a[i], b[i]);
  }
  template <class F>
  void compare(std::uint32_t n, F f) {
    if (!is_float(nodes_[n].a) && !is_float(nodes_[n].b)) return int_binary(n, f);
    const Float *a = floats(nodes_[n].a), *b = floats(nodes_[n].b);
    for (std::size_t i = 0; i < count_; ++i) registers_[n].i[i] = f(a[i], b[i]);
  }

  void evaluate(std::uint32_t n) {
    if (evaluate_leaf(n) || evaluate_comparison(n) || evaluate_selection(n)) return;
    if (!is_float(n)) return evaluate_int(n);
    if (!evaluate_arithmetic(n)) evaluate_function(n);
  }

  bool evaluate_leaf(std::uint32_t n) {
    const ExprNode& node = nodes_[n];
    if (node.fn == ExprFn::constant) {
      fill(n, [&](std::size_t) { return node.value; });
    } else if (node.fn == ExprFn::argument) {
      const double* from = arguments_[node.index].data() + begin_;
      fill(n, [&](std::size_t i) { return from[i]; });
    } else if (node.fn == ExprFn::index) {
      std::size_t inner = 1;
      for (std::size_t d = node.index + 1; d < extents_.size(); ++d) inner *= static_cast<std::size_t>(extents_[d]);
      const auto extent = static_cast<std::size_t>(extents_[node.index]);
      fill(n, [&](std::size_t i) { return static_cast<double>((begin_ + i) / inner % extent); });
    } else {
      return false;
    }
    return true;
  }

  template <class F>
  void fill(std::uint32_t n, F f) {
    Register& r = registers_[n];
    for (std::size_t i = 0; i < count_; ++i) {
      if (is_float(n))
        r.f[i] = f(i);
      else
        r.i[i] = truncate(f(i));
    }
  }

  bool evaluate_comparison(std::uint32_t n) {
    switch (nodes_[n].fn) {
      case ExprFn::lt:
        compare(n, [](auto a, auto b) { return a < b; });
        return true;
      case ExprFn::le:
        compare(n, [](auto a, auto b) { return a <= b; });
        return true;
      case ExprFn::gt:
        compare(n, [](auto a, auto b) { return a > b; });
        return true;
      case ExprFn::ge:
        compare(n, [](auto a, auto b) { return a >= b; });
        return true;
      case ExprFn::eq:
        compare(n, [](auto a, auto b) { return a == b; });
        return true;
      case ExprFn::ne:
        compare(n, [](auto a, auto b) { return a != b; });
        return true;
      default:
        return false;
    }
  }

  bool evaluate_selection(std::uint32_t n) {
    const ExprNode& node = nodes_[n];
    Register& r = registers_[n];
    if (node.fn == ExprFn::select) {
      const Int* condition = truths(node.a, 0);
      const Float *a = floats(node.b), *b = floats(node.c);
      if (is_float(n)) {
        for (std::size_t i = 0; i < count_; ++i) r.f[i] = condition[i] ? a[i] : b[i];
        return true;
      }
      const Int *x = ints(node.b), *y = ints(node.c);
      for (std::size_t i = 0; i < count_; ++i) r.i[i] = condition[i] ? x[i] : y[i];
      return true;
    }
    if (node.fn != ExprFn::logical_and && node.fn != ExprFn::logical_or && node.fn != ExprFn::logical_not &&
        node.fn != ExprFn::to_bool)
      return false;
    const Int* a = truths(node.a, 0);
    const Int* b = node.b == kNone ? a : truths(node.b, 1);
    for (std::size_t i = 0; i < count_; ++i) {
      r.i[i] = node.fn == ExprFn::logical_and  ? a[i] && b[i]
               : node.fn == ExprFn::logical_or ? a[i] || b[i]
                                               : (node.fn == ExprFn::to_bool) == (a[i] != 0);
    }
    return true;
  }

  void evaluate_int(std::uint32_t n) {
    switch (nodes_[n].fn) {
      case ExprFn::add:
        return int_binary(n, [](Int a, Int b) { return wrap(bits(a) + bits(b)); });
      case ExprFn::sub:
        return int_binary(n, [](Int a, Int b) { return wrap(bits(a) - bits(b)); });
      case ExprFn::mul:
        return int_binary(n, [](Int a, Int b) { return wrap(bits(a) * bits(b)); });
      case ExprFn::div:
        return int_binary(n, floor_divide);
      case ExprFn::mod:
        return int_binary(n, floor_modulo);
      case ExprFn::min:
        return int_binary(n, [](Int a, Int b) { return a < b ? a : b; });
      case ExprFn::max:
        return int_binary(n, [](Int a, Int b) { return a > b ? a : b; });
      case ExprFn::pow:
        return int_binary(n, int_power);
      case ExprFn::neg:
        return int_unary(n, [](Int a) { return wrap(0 - bits(a)); });
      case ExprFn::abs:
        return int_unary(n, [](Int a) { return a < 0 ? wrap(0 - bits(a)) : a; });
      case ExprFn::sign:
        return int_unary(n, [](Int a) { return Int{a > 0} - Int{a < 0}; });
      case ExprFn::relu:
        return int_unary(n, [](Int a) { return a > 0 ? a : 0; });
      default:
        return int_unary(n, [](Int a) { return a; });  // to_i64; floor, ceil, round of an int
    }
  }

  bool evaluate_arithmetic(std::uint32_t n) {
    switch (nodes_[n].fn) {
      case ExprFn::add:
        binary(n, [](Float a, Float b) { return a + b; });
        return true;
      case ExprFn::sub:
        binary(n, [](Float a, Float b) { return a - b; });
        return true;
      case ExprFn::mul:
        binary(n, [](Float a, Float b) { return a * b; });
        return true;
      case ExprFn::div:
        binary(n, [](Float a, Float b) { return a / b; });
        return true;
      case ExprFn::mod:
        binary(n, float_modulo);
        return true;
      case ExprFn::min:
        binary(n, float_min);
        return true;
      case ExprFn::max:
        binary(n, float_max);
        return true;
      case ExprFn::pow:
        binary(n, [](Float a, Float b) { return std::pow(a, b); });
        return true;
      case ExprFn::neg:
        unary(n, [](Float a) { return -a; });
        return true;
      case ExprFn::abs:
        unary(n, [](Float a) { return std::abs(a); });
        return true;
      case ExprFn::floor:
        unary(n, [](Float a) { return std::floor(a); });
        return true;
      case ExprFn::ceil:
        unary(n, [](Float a) { return std::ceil(a); });
        return true;
      case ExprFn::round:
        unary(n, [](Float a) { return std::nearbyint(a); });
        return true;
      case ExprFn::sign:
        unary(n, float_sign);
        return true;
      default:
        return false;
    }
  }

  void evaluate_function(std::uint32_t n) {
    switch (nodes_[n].fn) {
      case ExprFn::exp:
        return unary(n, [](Float a) { return std::exp(a); });
      case ExprFn::log:
        return unary(n, [](Float a) { return std::log(a); });
      case ExprFn::sqrt:
        return unary(n, [](Float a) { return std::sqrt(a); });
      case ExprFn::rsqrt:
        return unary(n, [](Float a) { return 1 / std::sqrt(a); });
      case ExprFn::sin:
        return unary(n, [](Float a) { return std::sin(a); });
      case ExprFn::cos:
        return unary(n, [](Float a) { return std::cos(a); });
      case ExprFn::tanh:
        return unary(n, [](Float a) { return std::tanh(a); });
      case ExprFn::erf:
        return unary(n, [](Float a) { return std::erf(a); });
      case ExprFn::sigmoid:
        return unary(n, sigmoid);
      case ExprFn::silu:
        return unary(n, [](Float a) { return a * sigmoid(a); });
      case ExprFn::gelu:
        return unary(n, gelu);
      case ExprFn::gelu_tanh:
        return unary(n, gelu_tanh);
      case ExprFn::relu:
        return unary(n, [](Float a) { return float_max(a, 0); });
      case ExprFn::softplus:
        return unary(n, softplus);
      default:
        return unary(n, [](Float a) { return a; });  // to_f32
    }
  }

  const std::vector<ExprNode>& nodes_;
  std::span<const std::span<const double>> arguments_;
  std::span<const std::int64_t> extents_;
  std::vector<Register> registers_;
  std::array<std::array<Int, kBlock>, 2> truths_;
  std::size_t begin_ = 0, count_ = 0;
};

bool well_formed(const ElementExpr& expr, std::size_t arguments, std::size_t rank) {
  for (std::uint32_t n = 0; n < expr.nodes.size(); ++n) {
    const ExprNode& node = expr.nodes[n];
    for (const std::uint32_t child : {node.a, node.b, node.c})
      if (child != kNone && child >= n) return false;
    const bool leaf = node.fn == ExprFn::constant || node.fn == ExprFn::argument || node.fn == ExprFn::index;
    const bool two = (node.fn >= ExprFn::add && node.fn <= ExprFn::pow) ||
                     (node.fn >= ExprFn::lt && node.fn <= ExprFn::logical_or) || node.fn == ExprFn::select;
    if ((!leaf && node.a == kNone) || (two && node.b == kNone)) return false;
    if (node.fn == ExprFn::select && node.c == kNone) return false;
    if (node.fn == ExprFn::argument && node.index >= arguments) return false;
    if (node.fn == ExprFn::index && node.index >= rank) return false;
  }
  return !expr.nodes.empty() || arguments > 0;
}

}  // namespace

Result<std::vector<double>> evaluate_elements(const ElementExpr& expr,
                                              std::span<const std::span<const double>> arguments,
                                              std::span<const std::int64_t> extents) {
  std::size_t count = 1;
  for (const std::int64_t extent : extents) count *= static_cast<std::size_t>(extent);
  if (!well_formed(expr, arguments.size(), extents.size()))
    return Status(ErrorCode::internal, "malformed element expression");
  for (const auto& argument : arguments)
    if (argument.size() != count)
      return Status(ErrorCode::invalid_argument, "an operand of an element expression has not the output's shape");
  if (expr.empty()) return std::vector<double>(arguments[0].begin(), arguments[0].end());
  std::vector<double> out(count);
  BlockEvaluator evaluator(expr, arguments, extents);
  for (std::size_t begin = 0; begin < count; begin += kBlock)
    evaluator.run(begin, std::min(kBlock, count - begin), out.data() + begin);
  return out;
}

Status store_epilogue(const Call& call, const ElementExpr& epilogue, std::span<const double> acc,
                      std::size_t first_operand) {
  std::vector<std::vector<double>> operands;
  std::vector<std::span<const double>> arguments{acc};
  for (std::size_t k = first_operand; k < call.in.size(); ++k) {
    if (call.in[k].extents != call.out[0].extents)
      return call.misshapen("an epilogue operand has not the output's shape");
    operands.push_back(read(call.in[k]));
  }
  for (const auto& operand : operands) arguments.emplace_back(operand);
  auto values = evaluate_elements(epilogue, arguments, call.out[0].extents);
  if (!values.ok()) return call.misshapen(values.status().message());
  write(call.out[0], *values);
  return {};
}

Status run_map(const Call& call, const ElementExpr& expr) {
  std::vector<std::vector<double>> operands;
  for (const Window& in : call.in) {
    if (in.extents != call.out[0].extents) return call.misshapen("an operand has not the output's shape");
    operands.push_back(read(in));
  }
  const std::vector<std::span<const double>> arguments(operands.begin(), operands.end());
  auto values = evaluate_elements(expr, arguments, call.out[0].extents);
  if (!values.ok()) return call.misshapen(values.status().message());
  write(call.out[0], *values);
  return {};
}

}  // namespace ccks::spec::reference

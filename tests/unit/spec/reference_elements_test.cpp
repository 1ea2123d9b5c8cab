// Element expressions of the reference interpreter, each function against a value worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/program_builder.hpp"

namespace ccks::spec {
namespace {

using test::ElementBuilder;
using test::ProgramBuilder;
using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr auto kFloat = ScalarType::f32;
constexpr auto kInt = ScalarType::i64;
constexpr auto kBool = ScalarType::boolean;

// Runs out[i] = expr(operands[0][i], operands[1][i], ...).
std::vector<double> evaluate(const ElementExpr& expr, const std::vector<std::vector<double>>& operands,
                             Dtype in = Dtype::f32, Dtype out = Dtype::f32) {
  ProgramBuilder b;
  const auto size = static_cast<std::int64_t>(operands[0].size());
  TensorMap bound;
  std::vector<View> views;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const std::string name = "x" + std::to_string(k);
    views.push_back(b.all(b.input(name, {size}, in)));
    bound[name] = {{size}, operands[k]};
  }
  const TensorId y = b.output("y", {size}, out);
  b.op(MapAttrs{expr}, views, {b.all(y)});
  const auto result = interpret(b.program, {}, bound);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->at("y").values : std::vector<double>();
}

double float_function(ExprFn fn, double a, double b = 0) {
  ElementBuilder e;
  const auto x = e.argument(0), y = e.argument(1);
  e.node(fn, kFloat, x, y);
  return evaluate(e.expr, {{a}, {b}})[0];
}

double int_function(ExprFn fn, double a, double b = 0) {
  ElementBuilder e;
  const auto x = e.argument(0, kInt), y = e.argument(1, kInt);
  e.node(fn, kInt, x, y);
  return evaluate(e.expr, {{a}, {b}}, Dtype::i64, Dtype::i64)[0];
}

TEST(ReferenceElements, FloatArithmetic) {
  EXPECT_EQ(float_function(ExprFn::add, 1.5, 2), 3.5);
  EXPECT_EQ(float_function(ExprFn::sub, 1.5, 2), -0.5);
  EXPECT_EQ(float_function(ExprFn::mul, 1.5, 2), 3);
  EXPECT_EQ(float_function(ExprFn::div, 3, 2), 1.5);
  EXPECT_EQ(float_function(ExprFn::mod, 7.5, 2), 1.5);
  EXPECT_EQ(float_function(ExprFn::mod, -7.5, 2), 0.5);
  EXPECT_EQ(float_function(ExprFn::mod, 7.5, -2), -0.5);
  EXPECT_EQ(float_function(ExprFn::min, -1, 2), -1);
  EXPECT_EQ(float_function(ExprFn::max, -1, 2), 2);
  EXPECT_TRUE(std::isnan(float_function(ExprFn::min, kNan, 2)));
  EXPECT_TRUE(std::isnan(float_function(ExprFn::max, 2, kNan)));
  EXPECT_EQ(float_function(ExprFn::pow, 2, 10), 1024);
  EXPECT_EQ(float_function(ExprFn::neg, 2), -2);
  EXPECT_EQ(float_function(ExprFn::abs, -2), 2);
  EXPECT_EQ(float_function(ExprFn::floor, -1.5), -2);
  EXPECT_EQ(float_function(ExprFn::ceil, -1.5), -1);
  EXPECT_EQ(float_function(ExprFn::round, 2.5), 2);
  EXPECT_EQ(float_function(ExprFn::round, 3.5), 4);
  EXPECT_EQ(float_function(ExprFn::sign, -0.25), -1);
  EXPECT_EQ(float_function(ExprFn::sign, 0), 0);
}

TEST(ReferenceElements, Functions) {
  const double tolerance = 1e-7;  // of rounding the result to f32
  EXPECT_NEAR(float_function(ExprFn::exp, 1), 2.718281828459045, tolerance * 4);
  EXPECT_NEAR(float_function(ExprFn::log, 2), 0.6931471805599453, tolerance);
  EXPECT_NEAR(float_function(ExprFn::sqrt, 2), 1.4142135623730951, tolerance);
  EXPECT_NEAR(float_function(ExprFn::rsqrt, 4), 0.5, tolerance);
  EXPECT_NEAR(float_function(ExprFn::sin, 1), 0.8414709848078965, tolerance);
  EXPECT_NEAR(float_function(ExprFn::cos, 1), 0.5403023058681398, tolerance);
  EXPECT_NEAR(float_function(ExprFn::tanh, 1), 0.7615941559557649, tolerance);
  EXPECT_NEAR(float_function(ExprFn::erf, 1), 0.8427007929497149, tolerance);
  EXPECT_NEAR(float_function(ExprFn::sigmoid, 1), 0.7310585786300049, tolerance);
  EXPECT_NEAR(float_function(ExprFn::silu, 2), 1.7615941559557649, tolerance * 2);
  EXPECT_NEAR(float_function(ExprFn::gelu, 1), 0.8413447460685429, tolerance);
  EXPECT_NEAR(float_function(ExprFn::gelu_tanh, 1), 0.8411919906082768, tolerance);
  EXPECT_EQ(float_function(ExprFn::relu, -3), 0);
  EXPECT_EQ(float_function(ExprFn::relu, 3), 3);
  EXPECT_NEAR(float_function(ExprFn::softplus, 0), 0.6931471805599453, tolerance);
  EXPECT_EQ(float_function(ExprFn::softplus, 1000), 1000);
}

TEST(ReferenceElements, IntArithmeticFloorsAndNeverTraps) {
  EXPECT_EQ(int_function(ExprFn::div, -7, 2), -4);
  EXPECT_EQ(int_function(ExprFn::div, 7, 2), 3);
  EXPECT_EQ(int_function(ExprFn::mod, -7, 3), 2);
  EXPECT_EQ(int_function(ExprFn::mod, 7, -3), -2);
  EXPECT_EQ(int_function(ExprFn::div, 7, 0), 0);
  EXPECT_EQ(int_function(ExprFn::mod, 7, 0), 0);
  EXPECT_EQ(int_function(ExprFn::div, -0x1p63, -1), -0x1p63);
  EXPECT_EQ(int_function(ExprFn::pow, 3, 5), 243);
  EXPECT_EQ(int_function(ExprFn::pow, -1, -3), -1);
  EXPECT_EQ(int_function(ExprFn::min, 3, 5), 3);
  EXPECT_EQ(int_function(ExprFn::max, 3, 5), 5);
  EXPECT_EQ(int_function(ExprFn::neg, 3), -3);
  EXPECT_EQ(int_function(ExprFn::abs, -3), 3);
  EXPECT_EQ(int_function(ExprFn::sign, -3), -1);
  EXPECT_EQ(int_function(ExprFn::relu, -3), 0);
}

TEST(ReferenceElements, IntsAreExactInsideAnExpressionBeyondFloats) {
  ElementBuilder e;  // (x * x) mod 1000 with x * x near 2^62
  const auto x = e.argument(0, kInt);
  e.node(ExprFn::mod, kInt, e.node(ExprFn::mul, kInt, x, x), e.constant(1000, kInt));
  EXPECT_THAT(evaluate(e.expr, {{2147483647}}, Dtype::i64, Dtype::i64), ElementsAre(609));
}

TEST(ReferenceElements, ComparisonsLogicAndSelect) {
  ElementBuilder e;  // select(a < b and not (a == 1), a, b * 10)
  const auto a = e.argument(0), b = e.argument(1);
  const auto less = e.node(ExprFn::lt, kBool, a, b);
  const auto one = e.node(ExprFn::eq, kBool, a, e.constant(1));
  const auto both = e.node(ExprFn::logical_and, kBool, less, e.node(ExprFn::logical_not, kBool, one));
  e.node(ExprFn::select, kFloat, both, a, e.node(ExprFn::mul, kFloat, b, e.constant(10)));
  EXPECT_THAT(evaluate(e.expr, {{0, 1, 2, 3}, {2, 2, 2, 2}}), ElementsAre(0, 20, 20, 20));
}

TEST(ReferenceElements, EachComparison) {
  const std::vector<std::pair<ExprFn, std::vector<double>>> expected{{ExprFn::lt, {1, 0, 0}}, {ExprFn::le, {1, 1, 0}},
                                                                     {ExprFn::gt, {0, 0, 1}}, {ExprFn::ge, {0, 1, 1}},
                                                                     {ExprFn::eq, {0, 1, 0}}, {ExprFn::ne, {1, 0, 1}}};
  for (const auto& [fn, want] : expected)
    for (const ScalarType type : {kFloat, kInt}) {
      ElementBuilder e;
      const auto a = e.argument(0, type), b = e.argument(1, type);
      e.node(fn, kBool, a, b);
      EXPECT_EQ(evaluate(e.expr, {{1, 2, 3}, {2, 2, 2}}, type == kInt ? Dtype::i32 : Dtype::f32, Dtype::boolean), want);
    }
}

TEST(ReferenceElements, Conversions) {
  ElementBuilder truncated;
  truncated.node(ExprFn::to_i64, kInt, truncated.argument(0));
  EXPECT_THAT(evaluate(truncated.expr, {{-1.75, 1.75, 1e30}}, Dtype::f32, Dtype::i32), ElementsAre(-1, 1, 2147483647));
  ElementBuilder truth;
  truth.node(ExprFn::to_bool, kBool, truth.argument(0));
  EXPECT_THAT(evaluate(truth.expr, {{-1.75, 0}}, Dtype::f32, Dtype::boolean), ElementsAre(1, 0));
  ElementBuilder number;  // a truth used as a number as well as a condition
  const auto x = number.argument(0, kInt);
  const auto picked = number.node(ExprFn::select, kInt, x, x, number.constant(-1, kInt));
  number.node(ExprFn::add, kFloat, number.node(ExprFn::to_f32, kFloat, picked), number.constant(0.5));
  EXPECT_THAT(evaluate(number.expr, {{0, 7}}, Dtype::i32), ElementsAre(-0.5, 7.5));
  ElementBuilder logic;
  const auto l = logic.argument(0, kInt), r = logic.argument(1, kInt);
  logic.node(ExprFn::logical_or, kBool, l, r);
  EXPECT_THAT(evaluate(logic.expr, {{0, 2, 0}, {0, 0, 3}}, Dtype::i32, Dtype::boolean), ElementsAre(0, 1, 1));
}

TEST(ReferenceElements, IndexCountsOutputDimsAcrossBlocks) {
  ProgramBuilder b;
  const TensorId y = b.output("y", {3, 700}, Dtype::i32);
  ElementBuilder e;
  const auto scaled = e.node(ExprFn::mul, kInt, e.index(0), e.constant(1000, kInt));
  e.node(ExprFn::add, kInt, scaled, e.index(1));
  b.op(MapAttrs{e.expr}, {}, {b.all(y)});
  const auto result = interpret(b.program, {}, {});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const auto& values = result->at("y").values;
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<double>(i / 700 * 1000 + i % 700)) << i;
}

TEST(ReferenceElements, MalformedExpressionIsRefused) {
  ProgramBuilder b;
  const TensorId y = b.output("y", {2});
  ElementExpr forward;
  forward.nodes.push_back({.fn = ExprFn::neg, .a = 0});
  b.op(MapAttrs{forward}, {}, {b.all(y)});
  EXPECT_FALSE(interpret(b.program, {}, {}).ok());
}

}  // namespace
}  // namespace ccks::spec

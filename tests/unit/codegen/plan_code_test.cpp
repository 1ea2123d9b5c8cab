// Element expressions as register code, run by a small interpreter of its own and compared with the tree.
#include "codegen/plan_code.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/program_builder.hpp"

namespace ccks::codegen {
namespace {

using namespace ccks::test;
using wire::ExprInstr;
using wire::ExprOp;

struct Register {
  double f = 0;
  std::int64_t i = 0;
};

/// The few instructions that these tests use.
Register run(const std::vector<ExprInstr>& code, const std::vector<double>& args) {
  std::array<Register, wire::kMaxExprRegisters> r{};
  for (const ExprInstr& in : code) {
    Register &d = r[in.dst], a = r[in.a], b = r[in.b];
    switch (static_cast<ExprOp>(in.op)) {
      case ExprOp::const_f:
        d.f = std::bit_cast<float>(in.c);
        break;
      case ExprOp::const_i:
        d.i = static_cast<std::int32_t>(in.c);
        break;
      case ExprOp::arg_f:
        d.f = args[in.c];
        break;
      case ExprOp::arg_i:
        d.i = static_cast<std::int64_t>(args[in.c]);
        break;
      case ExprOp::index_i:
        d.i = in.c;
        break;
      case ExprOp::add_f:
        d.f = a.f + b.f;
        break;
      case ExprOp::sub_f:
        d.f = a.f - b.f;
        break;
      case ExprOp::mul_f:
        d.f = a.f * b.f;
        break;
      case ExprOp::add_i:
        d.i = a.i + b.i;
        break;
      case ExprOp::lt_f:
        d.i = a.f < b.f;
        break;
      case ExprOp::le_i:
        d.i = a.i <= b.i;
        break;
      case ExprOp::ne_f:
        d.i = a.f != b.f;
        break;
      case ExprOp::ne_i:
        d.i = a.i != b.i;
        break;
      case ExprOp::select_f:
        d.f = a.i ? b.f : r[in.c].f;
        break;
      case ExprOp::f_from_i:
        d.f = static_cast<double>(a.i);
        break;
      case ExprOp::i_from_f:
        d.i = static_cast<std::int64_t>(a.f);
        break;
      default:
        ADD_FAILURE() << "unexpected instruction " << int(in.op);
    }
  }
  return r[code.back().dst];
}

TEST(PlanCode, ComparisonsSwapAndSelectTakesThreeRegisters) {
  ElementBuilder e;
  const auto x = e.argument(0), y = e.argument(1);
  const auto greater = e.node(ExprFn::gt, ScalarType::boolean, x, y);
  e.node(ExprFn::select, ScalarType::f32, greater, e.node(ExprFn::sub, ScalarType::f32, x, y), e.constant(7));
  const std::vector<Dtype> args{Dtype::f32, Dtype::f32};
  const auto code = compile_element_expr(e.expr, args, Dtype::f32, 2);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(run(*code, {5, 2}).f, 3);
  EXPECT_EQ(run(*code, {2, 5}).f, 7);
}

TEST(PlanCode, IntegersAreConvertedWhereFloatsAreWanted) {
  ElementBuilder e;
  e.node(ExprFn::add, ScalarType::f32, e.argument(0, ScalarType::i64), e.constant(0.5));
  const std::vector<Dtype> args{Dtype::i32};
  const auto as_float = compile_element_expr(e.expr, args, Dtype::bf16, 1);
  const auto as_int = compile_element_expr(e.expr, args, Dtype::i32, 1);
  ASSERT_TRUE(as_float.ok() && as_int.ok());
  EXPECT_EQ(run(*as_float, {3}).f, 3.5);
  EXPECT_EQ(run(*as_int, {3}).i, 3);
  EXPECT_EQ(as_int->back().op, static_cast<std::uint8_t>(ExprOp::i_from_f));
}

TEST(PlanCode, IndexCountsDimsOfRankFour) {
  ElementBuilder e;
  e.index(1);
  const auto code = compile_element_expr(e.expr, {}, Dtype::i64, 2);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(run(*code, {}).i, 3);
}

TEST(PlanCode, IdentityNeedsCodeOnlyBetweenClasses) {
  const std::vector<Dtype> f{Dtype::f32}, i{Dtype::i32};
  EXPECT_TRUE(compile_element_expr({}, f, Dtype::bf16, 1)->empty());
  EXPECT_TRUE(compile_element_expr({}, i, Dtype::i64, 1)->empty());
  EXPECT_EQ(run(*compile_element_expr({}, f, Dtype::i32, 1), {2.9}).i, 2);
  EXPECT_EQ(run(*compile_element_expr({}, i, Dtype::boolean, 1), {9}).i, 1);
}

/// A balanced tree of 2^depth arguments, all of them loaded first: needs 2^depth registers.
ElementBuilder wide(std::uint32_t values) {
  ElementBuilder e;
  std::vector<std::uint32_t> level;
  for (std::uint32_t k = 0; k < values; ++k) level.push_back(e.argument(k));
  std::uint32_t sum = level[values - 1];
  for (std::uint32_t k = values - 1; k-- > 0;) sum = e.node(ExprFn::add, ScalarType::f32, level[k], sum);
  return e;
}

TEST(PlanCode, RegistersAreReusedAndTheirEndIsSaid) {
  const std::vector<Dtype> args(40, Dtype::f32);
  const auto fits = compile_element_expr(wide(32).expr, args, Dtype::f32, 1);
  ASSERT_TRUE(fits.ok());
  std::vector<double> values(40);
  double total = 0;
  for (std::size_t k = 0; k < 32; ++k) total += values[k] = static_cast<double>(k * k);
  EXPECT_EQ(run(*fits, values).f, total);
  const auto too_wide = compile_element_expr(wide(33).expr, args, Dtype::f32, 1);
  ASSERT_FALSE(too_wide.ok());
  EXPECT_EQ(too_wide.status().code(), ErrorCode::unsupported);
}

TEST(PlanCode, ALongSumStaysInFewRegisters) {
  ElementBuilder e;
  std::uint32_t sum = e.argument(0);
  for (std::uint32_t k = 1; k < 200; ++k) sum = e.node(ExprFn::add, ScalarType::f32, sum, e.argument(k % 4));
  const std::vector<Dtype> args(4, Dtype::f32);
  const auto code = compile_element_expr(e.expr, args, Dtype::f32, 1);
  ASSERT_TRUE(code.ok());
  for (const ExprInstr& in : *code) EXPECT_LT(in.dst, 3);
}

TEST(PlanCode, WhatFollowsFromIntegerConstantsIsOne) {
  ElementBuilder e;
  const auto place = e.node(ExprFn::add, ScalarType::i64, e.constant(4, ScalarType::i64), e.node(ExprFn::neg, ScalarType::i64, e.constant(1, ScalarType::i64)));
  e.node(ExprFn::add, ScalarType::i64, e.argument(0, ScalarType::i64), e.node(ExprFn::mul, ScalarType::i64, place, e.constant(5, ScalarType::i64)));
  const std::vector<Dtype> args{Dtype::i32};
  const auto code = compile_element_expr(e.expr, args, Dtype::i32, 1);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(code->size(), 3u);  // argument, 15, sum
  EXPECT_EQ(run(*code, {2}).i, 17);
}

// An element is computed with 64 bits, a constant has 32.
TEST(PlanCode, WhatNeedsMoreThanAConstantHasIsComputed) {
  ElementBuilder e;
  const auto large = e.node(ExprFn::mul, ScalarType::i64, e.constant(2'000'000'000, ScalarType::i64), e.constant(3, ScalarType::i64));
  e.node(ExprFn::sub, ScalarType::i64, large, e.constant(1, ScalarType::i64));
  const auto code = compile_element_expr(e.expr, {}, Dtype::i64, 1);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(code->size(), 5u);  // three constants, product, difference
}

TEST(PlanCode, BigIntegerConstantsAreRefused) {
  ElementBuilder e;
  e.constant(5e9, ScalarType::i64);
  EXPECT_FALSE(compile_element_expr(e.expr, {}, Dtype::i64, 1).ok());
}

}  // namespace
}  // namespace ccks::codegen

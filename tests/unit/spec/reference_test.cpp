// What surrounds the ops: views, storage types, states, guards, checks, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/program_builder.hpp"

namespace ccks::spec {
namespace {

using test::ElementBuilder;
using test::ProgramBuilder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<double> kTwelve{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

// Copies a view of x[3, 4] to y and returns y.
std::vector<double> copy_view(std::vector<ViewDim> dims, std::vector<Expr> shape,
                              std::array<Expr, kMaxRank> fixed = {}) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {3, 4}), y = b.output("y", std::move(shape));
  b.op(MapAttrs{}, {View{x, std::move(dims), fixed}}, {b.all(y)});
  const auto result = interpret(b.program, {}, {{"x", {{3, 4}, kTwelve}}});
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->at("y").values : std::vector<double>();
}

TEST(ReferenceViews, SlicesStepsBroadcastsTransposesAndFixedIndices) {
  using B = ProgramBuilder;
  EXPECT_THAT(copy_view({B::window(0, 2, 1), B::window(1, 2, 1)}, {2, 2}), ElementsAre(5, 6, 9, 10));
  EXPECT_THAT(copy_view({B::window(0, 2, 0, 2), B::window(1, 2, 1, 2)}, {2, 2}), ElementsAre(1, 3, 9, 11));
  EXPECT_THAT(copy_view({B::window(1, 2), B::window(0, 3)}, {2, 3}), ElementsAre(0, 4, 8, 1, 5, 9));
  EXPECT_THAT(copy_view({B::window(0, 3)}, {3}, {0, 2}), ElementsAre(2, 6, 10));
  EXPECT_THAT(copy_view({B::broadcast(2), B::window(1, 4)}, {2, 4}, {1}), ElementsAre(4, 5, 6, 7, 4, 5, 6, 7));
  EXPECT_THAT(copy_view({B::window(1, 2, 0, 2), B::window(0, 3), B::window(1, 2)}, {2, 3, 2}), ElementsAre(0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11));
  EXPECT_THAT(copy_view({}, {}, {2, 3}), ElementsAre(11));
  EXPECT_THAT(copy_view({B::window(0, 0, 3), B::window(1, 4)}, {0, 4}), ElementsAre());
}

Status view_status(std::vector<ViewDim> dims, std::vector<Expr> shape, std::array<Expr, kMaxRank> fixed = {}) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {3, 4}), y = b.output("y", std::move(shape));
  b.op(MapAttrs{}, {View{x, std::move(dims), fixed}}, {b.all(y)});
  return interpret(b.program, {}, {{"x", {{3, 4}, kTwelve}}}).status();
}

TEST(ReferenceViews, WindowsThatLeaveTheTensorAreRefused) {
  using B = ProgramBuilder;
  EXPECT_EQ(view_status({B::window(0, 3, 1)}, {3}).code(), ErrorCode::out_of_range);
  EXPECT_EQ(view_status({B::window(1, 3, 0, 2)}, {3}).code(), ErrorCode::out_of_range);
  EXPECT_EQ(view_status({B::window(1, 2, -1)}, {2}).code(), ErrorCode::out_of_range);
  EXPECT_EQ(view_status({B::window(0, 3)}, {3}, {0, 4}).code(), ErrorCode::out_of_range);
  EXPECT_EQ(view_status({B::window(1, 3, 0, 2), B::window(1, 2)}, {3, 2}).code(), ErrorCode::out_of_range) << "together";
  EXPECT_EQ(view_status({B::window(2, 3)}, {3}).code(), ErrorCode::internal);
  EXPECT_EQ(view_status({B::window(0, 3), B::window(1, 4)}, {4, 3}).code(), ErrorCode::invalid_argument);
}

TEST(ReferenceViews, WritesGoThroughWindowsAndAliases) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2}), y = b.output("y", {2, 3});
  const TensorId flat = b.alias("flat", y, {6}, TensorKind::output);
  b.op(MapAttrs{}, {b.all(x)}, {View{flat, {b.window(0, 2, 0, 5)}, {}}});
  b.op(MapAttrs{}, {View{x, {b.window(0, 2), b.broadcast(2)}, {}}}, {View{y, {b.window(0, 2), b.window(1, 2, 0)}, {}}});
  b.op(MapAttrs{}, {b.all(x)}, {View{flat, {b.window(0, 2, 2, 3)}, {}}});
  const auto result = interpret(b.program, {}, {{"x", {{2}, {7, 9}}}});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_THAT(result->at("y").values, ElementsAre(7, 7, 7, 9, 9, 9));
  EXPECT_EQ(result->at("flat").values, result->at("y").values);
  EXPECT_EQ(result->at("flat").shape, (std::vector<std::int64_t>{6}));
}

TEST(ReferenceStorage, EveryStoredTensorIsRounded) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    ProgramBuilder b;
    const TensorId x = b.input("x", {1}), h = b.tensor("h", {1}, TensorKind::intermediate, dtype),
                   y = b.output("y", {1});
    ElementBuilder third;
    third.node(ExprFn::div, ScalarType::f32, third.argument(0), third.constant(3));
    b.op(MapAttrs{third.expr}, {b.all(x)}, {b.all(h)});
    b.copy(h, y);
    const auto result = interpret(b.program, {}, {{"x", {{1}, {1}}}});
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->at("y").values[0], round_to(dtype, 1.0 / 3));
    EXPECT_NE(result->at("y").values[0], 1.0 / 3);
  }
}

TEST(ReferenceStorage, InputsAreRoundedToo) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {1}, Dtype::bf16), y = b.output("y", {1});
  b.copy(x, y);
  const auto result = interpret(b.program, {}, {{"x", {{1}, {1 + 0x1p-10}}}});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->at("y").values[0], 1);
}

TEST(ReferenceStates, StartAtZeroComeOutAndGoBackIn) {
  ProgramBuilder b;
  const Expr at = b.symbol("at", 0, 3);
  const TensorId x = b.input("x", {1});
  const TensorId cache = b.tensor("cache", {4}, TensorKind::state), y = b.output("y", {4});
  b.op(MapAttrs{}, {b.all(x)}, {View{cache, {b.window(0, 1, at)}, {}}});
  b.copy(cache, y);
  std::vector<std::int64_t> dims{1};
  auto result = interpret(b.program, dims, {{"x", {{1}, {5}}}});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_THAT(result->at("y").values, ElementsAre(0, 5, 0, 0));
  dims[0] = 3;
  result = interpret(b.program, dims, {{"x", {{1}, {6}}}, {"cache", result->at("cache")}});
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->at("cache").values, ElementsAre(0, 5, 0, 6));
}

TEST(ReferencePoison, ReadingWhatNobodyWroteShows) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2}), h = b.tensor("h", {4}), y = b.output("y", {4});
  b.op(MapAttrs{}, {b.all(x)}, {View{h, {b.window(0, 2)}, {}}});
  b.copy(h, y);
  const auto result = interpret(b.program, {}, {{"x", {{2}, {1, 2}}}});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->at("y").values[1], 2);
  EXPECT_TRUE(std::isnan(result->at("y").values[2]));
  for (Tensor& tensor : b.program.tensors) tensor.dtype = Dtype::i32;
  const Status status = interpret(b.program, {}, {{"x", {{2}, {1, 2}}}}).status();
  EXPECT_EQ(status.code(), ErrorCode::internal);
  EXPECT_THAT(status.message(), HasSubstr("'h'"));
}

// if flag >= 1 then y = 2 x, and z = -x where flag > 5 too; else y = x.
ProgramBuilder guarded(std::uint32_t* inner = nullptr) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2}), flag = b.input("flag", {1}, Dtype::i64);
  const TensorId then = b.tensor("then", {2}), y = b.output("y", {2}), z = b.output("z", {2});
  const std::uint32_t report = b.report("flag", flag, Dtype::i32);
  const std::uint32_t condition = b.condition(Condition::Cmp::ge, report, 1);
  const std::uint32_t nested = b.condition(Condition::Cmp::gt, report, 5, condition);
  if (inner) *inner = nested;
  ElementBuilder twice, negated;
  const auto doubled = twice.argument(0);
  twice.node(ExprFn::add, ScalarType::f32, doubled, doubled);
  negated.node(ExprFn::neg, ScalarType::f32, negated.argument(0));
  b.op(MapAttrs{twice.expr}, {b.all(x)}, {b.all(then)}).condition = condition;
  b.op(MapAttrs{negated.expr}, {b.all(x)}, {b.all(z)}).condition = nested;
  b.op(SelectAttrs{condition}, {b.all(then), b.all(x)}, {b.all(y)});
  return b;
}

TEST(ReferenceGuards, SkippedOpsWriteNothingAndSelectReadsTheTakenSide) {
  const ProgramBuilder b = guarded();
  for (const double flag : {0.0, 1.0, 6.0}) {
    const auto result = interpret(b.program, {}, {{"x", {{2}, {3, 4}}}, {"flag", {{1}, {flag}}}});
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_THAT(result->at("report.flag").values, ElementsAre(flag));
    const auto& y = result->at("y").values;
    if (flag >= 1)
      EXPECT_THAT(y, ElementsAre(6, 8));
    else
      EXPECT_THAT(y, ElementsAre(3, 4));
    if (flag > 5)
      EXPECT_THAT(result->at("z").values, ElementsAre(-3, -4));
    else
      EXPECT_TRUE(std::isnan(result->at("z").values[0]));
  }
}

TEST(ReferenceGuards, EachComparison) {
  using Cmp = Condition::Cmp;
  const std::vector<std::pair<Cmp, std::vector<bool>>> expected{
      {Cmp::lt, {true, false, false}}, {Cmp::le, {true, true, false}},  {Cmp::gt, {false, false, true}},
      {Cmp::ge, {false, true, true}},  {Cmp::eq, {false, true, false}}, {Cmp::ne, {true, false, true}}};
  for (const auto& [cmp, held] : expected)
    for (std::size_t i = 0; i < 3; ++i) {
      ProgramBuilder b = guarded();
      b.program.conditions[0] = {cmp, 0, 2, kNone};
      const double flag = static_cast<double>(i + 1);
      const auto result = interpret(b.program, {}, {{"x", {{2}, {3, 4}}}, {"flag", {{1}, {flag}}}});
      ASSERT_TRUE(result.ok());
      EXPECT_EQ(result->at("y").values[0] == 6, held[i]) << i;
    }
}

TEST(ReferenceGuards, ParentIsHeldFirst) {
  std::uint32_t inner = 0;
  ProgramBuilder b = guarded(&inner);
  b.program.conditions[inner].cmp = Condition::Cmp::lt;  // flag < 5 would hold at 0, but its parent does not
  const auto result = interpret(b.program, {}, {{"x", {{2}, {3, 4}}}, {"flag", {{1}, {0}}}});
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(std::isnan(result->at("z").values[0]));
}

TEST(ReferenceGuards, ConditionBeforeItsReportIsRefused) {
  ProgramBuilder b = guarded();
  std::swap(b.program.ops[0], b.program.ops[1]);
  EXPECT_EQ(interpret(b.program, {}, {{"x", {{2}, {3, 4}}}, {"flag", {{1}, {0}}}}).status().code(),
            ErrorCode::internal);
}

ProgramBuilder sized() {
  ProgramBuilder b;
  const Expr n = b.symbol("n", 1, 8), m = b.symbol("m", 1, 8);
  const TensorId x = b.input("x", {n}), y = b.output("y", {m});
  b.op(MapAttrs{}, {View{x, {b.window(0, m)}, {}}}, {b.all(y)});
  b.program.checks.push_back({RuntimeCheck::Relation::less_equal, m, n, "copy: m is not at most n", {}});
  b.program.checks.push_back({RuntimeCheck::Relation::equal, floormod(n, 2), 0, "n is not even", {}});
  return b;
}

TEST(ReferenceChecks, DimsAndRelations) {
  const ProgramBuilder b = sized();
  const auto code = [&](std::vector<std::int64_t> dims) {
    DenseTensor x{{dims[0]}, std::vector<double>(static_cast<std::size_t>(std::max<std::int64_t>(dims[0], 0)))};
    return interpret(b.program, dims, {{"x", x}}).status().code();
  };
  EXPECT_EQ(code({4, 3}), ErrorCode::ok);
  EXPECT_EQ(code({4, 5}), ErrorCode::out_of_range);
  EXPECT_EQ(code({3, 3}), ErrorCode::out_of_range);
  EXPECT_EQ(code({0, 0}), ErrorCode::out_of_range);
  EXPECT_EQ(code({10, 2}), ErrorCode::out_of_range);
  EXPECT_EQ(code({4}), ErrorCode::invalid_argument);
}

TEST(ReferenceChecks, MessageNamesTheRelationAndItsValues) {
  const std::vector<std::int64_t> dims{4, 5};
  const Status status = interpret(sized().program, dims, {}).status();
  EXPECT_THAT(status.message(), HasSubstr("copy: m is not at most n (5 against 4)"));
}

TEST(ReferenceChecks, MissingAndMisshapenTensors) {
  ProgramBuilder b;
  b.copy(b.input("x", {2, 2}), b.output("y", {2, 2}));
  EXPECT_THAT(interpret(b.program, {}, {}).status().message(), HasSubstr("'x' is missing"));
  const Status misshapen = interpret(b.program, {}, {{"x", {{4}, {1, 2, 3, 4}}}}).status();
  EXPECT_EQ(misshapen.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(misshapen.message(), HasSubstr("[4], the program says [2, 2]"));
  EXPECT_FALSE(interpret(b.program, {}, {{"x", {{2, 2}, {1, 2, 3}}}}).ok());
}

TEST(ReferenceChecks, TooLargeIsAStatus) {
  ProgramBuilder b;
  b.output("y", {Expr(1) * 1000000, 1000000, 1000000});
  EXPECT_EQ(interpret(b.program, {}, {}).status().code(), ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace ccks::spec

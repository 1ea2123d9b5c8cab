// Every op kind of the reference interpreter against values worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/program_builder.hpp"

namespace ccks::spec {
namespace {

using test::ElementBuilder;
using test::ProgramBuilder;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::Pointwise;

std::vector<double> run(const ProgramBuilder& b, const TensorMap& bound, const std::string& name = "y") {
  const auto result = interpret(b.program, {}, bound);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->at(name).values : std::vector<double>();
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance = 1e-6) {
  EXPECT_THAT(got, Pointwise(DoubleNear(tolerance), want));
}

// acc * 2 + operand, where the operand is argument 1.
ElementExpr twice_plus() {
  ElementBuilder e;
  const auto acc = e.argument(0), operand = e.argument(1);
  e.node(ExprFn::add, ScalarType::f32, e.node(ExprFn::mul, ScalarType::f32, acc, e.constant(2)), operand);
  return e.expr;
}

std::vector<double> reduce(ReduceFn fn, std::vector<std::uint32_t> axes, std::vector<Expr> out, bool keepdims = false) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 2, 3}), y = b.output("y", std::move(out));
  b.op(ReduceAttrs{fn, std::move(axes), keepdims}, {b.all(x)}, {b.all(y)});
  return run(b, {{"x", {{2, 2, 3}, {1, 2, 3, 4, 5, 6, -1, -2, -3, 7, 8, 9}}}});
}

TEST(ReferenceOps, Reduce) {
  EXPECT_THAT(reduce(ReduceFn::sum, {2}, {2, 2}), ElementsAre(6, 15, -6, 24));
  EXPECT_THAT(reduce(ReduceFn::sum, {2}, {2, 2, 1}, true), ElementsAre(6, 15, -6, 24));
  EXPECT_THAT(reduce(ReduceFn::mean, {1, 2}, {2}), ElementsAre(3.5, 3));
  EXPECT_THAT(reduce(ReduceFn::max, {0}, {2, 3}), ElementsAre(1, 2, 3, 7, 8, 9));
  EXPECT_THAT(reduce(ReduceFn::min, {0, 2}, {2}), ElementsAre(-3, 4));
  EXPECT_THAT(reduce(ReduceFn::prod, {0, 1}, {3}), ElementsAre(-28, -160, -486));
  EXPECT_THAT(reduce(ReduceFn::sum, {0, 1, 2}, {}), ElementsAre(39));
}

TEST(ReferenceOps, Softmax) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 2}), y = b.output("y", {2, 2});
  b.op(SoftmaxAttrs{0.5}, {b.all(x)}, {b.all(y)});
  const double third = std::log(3.0) * 2;  // exp(0.5 * third) = 3
  expect_near(run(b, {{"x", {{2, 2}, {0, third, 1000, 1000}}}}), {0.25, 0.75, 0.5, 0.5});
}

TEST(ReferenceOps, Rmsnorm) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {1, 2}), w = b.input("w", {2}), y = b.output("y", {1, 2});
  b.op(RmsnormAttrs{3.5}, {b.all(x), b.all(w)}, {b.all(y)});
  // mean square 12.5, with eps 16: divided by 4
  expect_near(run(b, {{"x", {{1, 2}, {3, 4}}}, {"w", {{2}, {2, 10}}}}), {1.5, 10});
}

TEST(ReferenceOps, Layernorm) {
  for (const bool bias : {false, true}) {
    ProgramBuilder b;
    const TensorId x = b.input("x", {1, 2}), w = b.input("w", {2}), c = b.input("c", {2}), y = b.output("y", {1, 2});
    std::vector<View> inputs{b.all(x), b.all(w)};
    if (bias) inputs.push_back(b.all(c));
    b.op(LayernormAttrs{0, bias}, inputs, {b.all(y)});
    const auto got = run(b, {{"x", {{1, 2}, {1, 5}}}, {"w", {{2}, {2, 10}}}, {"c", {{2}, {0.5, 1}}}});
    expect_near(got, bias ? std::vector<double>{-1.5, 11} : std::vector<double>{-2, 10});
  }
}

TEST(ReferenceOps, MatmulBatchedWithEpilogue) {
  ProgramBuilder b;
  const TensorId a = b.input("a", {2, 2, 3}), m = b.input("b", {3, 2}), c = b.input("c", {2}),
                 y = b.output("y", {2, 2, 2});
  View shared = b.all(m);
  shared.dims.insert(shared.dims.begin(), b.broadcast(2));
  View bias = b.all(c);
  bias.dims.insert(bias.dims.begin(), {b.broadcast(2), b.broadcast(2)});
  b.op(MatmulAttrs{twice_plus()}, {b.all(a), shared, bias}, {b.all(y)});
  const auto got = run(b, {{"a", {{2, 2, 3}, {1, 2, 3, 4, 5, 6, 1, 0, 0, 0, 0, 1}}},
                           {"b", {{3, 2}, {1, 2, 3, 4, 5, 6}}},
                           {"c", {{2}, {100, 200}}}});
  EXPECT_THAT(got, ElementsAre(144, 256, 198, 328, 102, 204, 110, 212));
}

// Sizes past every panel of the blocked loop, the second operand transposed, against the textbook sum.
TEST(ReferenceOps, MatmulLargeTransposed) {
  constexpr std::int64_t kM = 5, kK = 300, kN = 531;
  ProgramBuilder b;
  const TensorId a = b.input("a", {kM, kK}), w = b.input("w", {kN, kK}), y = b.output("y", {kM, kN});
  b.op(MatmulAttrs{}, {b.all(a), b.permuted(w, {1, 0})}, {b.all(y)});
  const auto av = seeded_values(b.program, a, {}, 1), wv = seeded_values(b.program, w, {}, 1);
  const auto got = run(b, {{"a", av}, {"w", wv}});
  std::vector<double> want;
  for (std::int64_t i = 0; i < kM; ++i)
    for (std::int64_t j = 0; j < kN; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < kK; ++k) sum += av.values[i * kK + k] * wv.values[j * kK + k];
      want.push_back(sum);
    }
  EXPECT_LT(max_relative_error(got, want), 1e-6);
}

TEST(ReferenceOps, AttentionCausalOverALongerContext) {
  ProgramBuilder b;
  const TensorId q = b.input("q", {2, 1}), k = b.input("k", {3, 1}), v = b.input("v", {3, 1}),
                 y = b.output("y", {2, 1});
  b.op(AttentionAttrs{1, 1, true, 1}, {b.all(q), b.all(k), b.all(v)}, {b.all(y)});
  // Row 0 sees positions 0 and 1 with equal scores; row 1 sees all three, weighted 1 : 1 : 2.
  const auto got =
      run(b, {{"q", {{2, 1}, {0, 1}}}, {"k", {{3, 1}, {0, 0, std::log(2.0)}}}, {"v", {{3, 1}, {1, 3, 10}}}});
  expect_near(got, {2, 6});
}

TEST(ReferenceOps, AttentionGroupsHeadsAndBatches) {
  ProgramBuilder b;  // 4 query heads on 2 kv heads, head_dim 1, 2 batches, no causal mask
  const TensorId q = b.input("q", {2, 1, 4}), k = b.input("k", {2, 2, 2}), v = b.input("v", {2, 2, 2});
  const TensorId y = b.output("y", {2, 1, 4});
  b.op(AttentionAttrs{4, 2, false, 0.5}, {b.all(q), b.all(k), b.all(v)}, {b.all(y)});
  const double two = std::log(3.0) * 2;  // against key 1 with scale 0.5: weight 3
  const auto got = run(b, {{"q", {{2, 1, 4}, {0, two, 0, two, two, 0, two, 0}}},
                           {"k", {{2, 2, 2}, {0, 0, 1, 1, 0, 0, 1, 1}}},
                           {"v", {{2, 2, 2}, {0, 4, 8, 12, 1, 2, 5, 6}}}});
  expect_near(got, {4, 6, 8, 10, 4, 3, 5, 4});
}

TEST(ReferenceOps, RopeBothPairings) {
  for (const bool interleaved : {false, true}) {
    ProgramBuilder b;
    const TensorId x = b.input("x", {2, 8}), y = b.output("y", {2, 8});
    b.op(RopeAttrs{2, 100, Expr(3), false, interleaved}, {b.all(x)}, {b.all(y)});
    // Head 0 is (1, 0, 0, 0) and head 1 (0, 0, 0, 1); positions 3 and 4; angles pos and pos / 10.
    const auto got = run(b, {{"x", {{2, 8}, {1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1}}}});
    std::vector<double> want;
    for (const double pos : {3.0, 4.0}) {
      const double c0 = std::cos(pos), s0 = std::sin(pos), c1 = std::cos(pos / 10), s1 = std::sin(pos / 10);
      const std::vector<double> row = interleaved ? std::vector<double>{c0, s0, 0, 0, 0, 0, -s1, c1}
                                                  : std::vector<double>{c0, 0, s0, 0, 0, -s1, 0, c1};
      want.insert(want.end(), row.begin(), row.end());
    }
    expect_near(got, want);
  }
}

TEST(ReferenceOps, RopeWithPositionsAndSymbolicStart) {
  ProgramBuilder b;
  const Expr start = b.symbol("pos", 0, 100);
  const TensorId x = b.input("x", {1, 2}), p = b.input("p", {1}, Dtype::i32);
  const TensorId y = b.output("y", {1, 2}), z = b.output("z", {1, 2});
  b.op(RopeAttrs{1, 10000, Expr(0), true, false}, {b.all(x), b.all(p)}, {b.all(y)});
  b.op(RopeAttrs{1, 10000, start, false, false}, {b.all(x)}, {b.all(z)});
  const std::vector<std::int64_t> dims{7};
  const auto result = interpret(b.program, dims, {{"x", {{1, 2}, {1, 2}}}, {"p", {{1}, {7}}}});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  expect_near(result->at("y").values, {std::cos(7) - 2 * std::sin(7), std::sin(7) + 2 * std::cos(7)});
  EXPECT_EQ(result->at("y").values, result->at("z").values);
}

TEST(ReferenceOps, GatherRowsAndScalars) {
  ProgramBuilder b;
  const TensorId table = b.input("t", {3, 2}), line = b.input("l", {4}), index = b.input("i", {2, 2}, Dtype::i64);
  const TensorId y = b.output("y", {2, 2, 2}), z = b.output("z", {2, 2});
  b.op(GatherAttrs{}, {b.all(table), b.all(index)}, {b.all(y)});
  b.op(GatherAttrs{}, {b.all(line), b.all(index)}, {b.all(z)});
  const TensorMap bound{
      {"t", {{3, 2}, {1, 2, 3, 4, 5, 6}}}, {"l", {{4}, {7, 8, 9, 10}}}, {"i", {{2, 2}, {2, 0, 1, 1}}}};
  EXPECT_THAT(run(b, bound), ElementsAre(5, 6, 1, 2, 3, 4, 3, 4));
  EXPECT_THAT(run(b, bound, "z"), ElementsAre(9, 7, 8, 8));
}

TEST(ReferenceOps, GatherOutsideTheTableIsRefused) {
  for (const double bad : {-1.0, 3.0}) {
    ProgramBuilder b;
    const TensorId table = b.input("t", {3, 2}), index = b.input("i", {1}, Dtype::i32), y = b.output("y", {1, 2});
    b.op(GatherAttrs{}, {b.all(table), b.all(index)}, {b.all(y)});
    const auto result = interpret(b.program, {}, {{"t", {{3, 2}, {1, 2, 3, 4, 5, 6}}}, {"i", {{1}, {bad}}}});
    EXPECT_EQ(result.status().code(), ErrorCode::out_of_range);
  }
}

TEST(ReferenceOps, ArgmaxAndTopkTakeTheFirstOfEquals) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 4}), y = b.output("y", {2}, Dtype::i32);
  const TensorId v = b.output("v", {2, 3}), i = b.output("i", {2, 3}, Dtype::i32);
  b.op(ArgmaxAttrs{}, {b.all(x)}, {b.all(y)});
  b.op(TopkAttrs{3}, {b.all(x)}, {b.all(v), b.all(i)});
  const TensorMap bound{{"x", {{2, 4}, {1, 5, 5, 2, -1, -1, -3, -1}}}};
  EXPECT_THAT(run(b, bound), ElementsAre(1, 0));
  EXPECT_THAT(run(b, bound, "v"), ElementsAre(5, 5, 2, -1, -1, -1));
  EXPECT_THAT(run(b, bound, "i"), ElementsAre(1, 2, 3, 0, 1, 3));
}

TEST(ReferenceOps, Conv2dStridePaddingEpilogue) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {1, 1, 3, 3}), w = b.input("w", {2, 1, 2, 2}), c = b.input("c", {2});
  const TensorId y = b.output("y", {1, 2, 2, 2});
  View bias{c, {b.broadcast(1), b.window(0, 2), b.broadcast(2), b.broadcast(2)}, {}};
  b.op(Conv2dAttrs{{2, 2}, {1, 1}, {1, 1}, twice_plus()}, {b.all(x), b.all(w), bias}, {b.all(y)});
  const auto got = run(b, {{"x", {{1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}},
                           {"w", {{2, 1, 2, 2}, {1, 10, 100, 1000, 0, 0, 0, 1}}},
                           {"c", {{2}, {0.5, -1}}}});
  // Windows start at -1 and 1: (., ., ., 1), (., ., 2, 3), (., 4, ., 7), (5, 6, 8, 9).
  EXPECT_THAT(got, ElementsAre(2000.5, 6400.5, 14080.5, 19730.5, 1, 5, 13, 17));
}

TEST(ReferenceOps, Conv2dDilationChannelsAndImages) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 2, 1, 3}), w = b.input("w", {1, 2, 1, 2}), y = b.output("y", {2, 1, 1, 1});
  b.op(Conv2dAttrs{{1, 1}, {0, 0}, {1, 2}, {}}, {b.all(x), b.all(w)}, {b.all(y)});
  const auto got = run(
      b, {{"x", {{2, 2, 1, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}}, {"w", {{1, 2, 1, 2}, {1, 10, 100, 1000}}}});
  EXPECT_THAT(got, ElementsAre(1 + 30 + 400 + 6000, 7 + 90 + 1000 + 12000));
}

// Two tokens, three experts, two choices each.
ProgramBuilder routing(bool over_all, bool renormalize) {
  ProgramBuilder b;
  const TensorId logits = b.input("logits", {2, 3});
  const std::vector<TensorId> out{b.output("weight", {2, 2}), b.output("expert", {2, 2}, Dtype::i32),
                                  b.output("count", {3}, Dtype::i32), b.output("row", {2, 2}, Dtype::i32),
                                  b.output("source", {4}, Dtype::i32)};
  std::vector<View> views;
  for (const TensorId id : out) views.push_back(b.all(id));
  b.op(RouteAttrs{2, over_all, renormalize}, {b.all(logits)}, views);
  return b;
}
// Probabilities 1/8, 5/8, 2/8 and 6/8, 1/8, 1/8.
TensorMap routing_logits() { return {{"logits", {{2, 3}, {0, std::log(5.0), std::log(2.0), std::log(6.0), 0, 0}}}}; }

TEST(ReferenceOps, RouteSortsPairsByExpert) {
  const ProgramBuilder b = routing(false, false);
  const TensorMap logits = routing_logits();
  EXPECT_THAT(run(b, logits, "expert"), ElementsAre(1, 2, 0, 1));  // equal logits: the first
  EXPECT_THAT(run(b, logits, "count"), ElementsAre(1, 2, 1));
  EXPECT_THAT(run(b, logits, "source"), ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(run(b, logits, "row"), ElementsAre(1, 3, 0, 2));
}

TEST(ReferenceOps, RouteWeights) {
  const TensorMap logits = routing_logits();
  expect_near(run(routing(false, false), logits, "weight"), {5.0 / 7, 2.0 / 7, 6.0 / 7, 1.0 / 7});
  expect_near(run(routing(true, false), logits, "weight"), {5.0 / 8, 2.0 / 8, 6.0 / 8, 1.0 / 8});
  expect_near(run(routing(true, true), logits, "weight"), {5.0 / 7, 2.0 / 7, 6.0 / 7, 1.0 / 7});
}

TEST(ReferenceOps, ExpertMatmulGathersThenStays) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 1}), w = b.input("w", {3, 2, 1}), c = b.input("c", {4, 2});
  const TensorId source = b.input("source", {4}, Dtype::i32), count = b.input("count", {3}, Dtype::i32);
  const TensorId h = b.tensor("h", {4, 2}), y = b.output("y", {4, 2});
  const View columns = b.permuted(w, {0, 2, 1});  // stored [expert, n, k]
  b.op(ExpertMatmulAttrs{2, true, {}}, {b.all(x), columns, b.all(source), b.all(count)}, {b.all(h)});
  const TensorId square = b.input("s", {3, 2, 2});
  b.op(ExpertMatmulAttrs{2, false, twice_plus()}, {b.all(h), b.all(square), b.all(source), b.all(count), b.all(c)},
       {b.all(y)});
  const auto got = run(b, {{"x", {{2, 1}, {1, 10}}},
                           {"w", {{3, 2, 1}, {1, 2, 3, 4, 5, 6}}},
                           {"source", {{4}, {2, 0, 3, 1}}},
                           {"count", {{3}, {1, 2, 1}}},
                           {"s", {{3, 2, 2}, {1, 0, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1}}},
                           {"c", {{4, 2}, {0, 0, 0, 0, 0, 0, 0, 0.5}}}});
  // h: token 1 on expert 0, token 0 and 1 on expert 1, token 0 on expert 2; then keep, swap, swap, add up.
  EXPECT_THAT(got, ElementsAre(20, 40, 8, 6, 80, 60, 22, 22.5));
}

TEST(ReferenceOps, ExpertMatmulWithATwin) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2, 1}), w = b.input("w", {2, 1, 2}), v = b.input("v", {2, 1, 2}), c = b.input("c", {2, 2});
  const TensorId source = b.input("source", {2}, Dtype::i32), count = b.input("count", {2}, Dtype::i32), y = b.output("y", {2, 2});
  ElementBuilder product, twin;  // acc - twin; of that acc + c
  product.node(ExprFn::sub, ScalarType::f32, product.argument(0), product.argument(1));
  twin.node(ExprFn::add, ScalarType::f32, twin.argument(0), twin.argument(2));
  b.op(ExpertMatmulAttrs{1, true, product.expr, twin.expr}, {b.all(x), b.all(w), b.all(source), b.all(count), b.all(v), b.all(c)}, {b.all(y)});
  const auto got = run(b, {{"x", {{2, 1}, {1, 10}}},
                           {"w", {{2, 1, 2}, {1, 2, 3, 4}}},
                           {"v", {{2, 1, 2}, {5, 6, 7, 8}}},
                           {"source", {{2}, {1, 0}}},
                           {"count", {{2}, {1, 1}}},
                           {"c", {{2, 2}, {0.5, 0, 0, 1}}}});
  EXPECT_THAT(got, ElementsAre(10 - 50.5, 20 - 60, 3 - 7, 4 - 9));
}

TEST(ReferenceOps, ExpertMatmulRefusesCountsThatDoNotAddUp) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {1, 1}), w = b.input("w", {2, 1, 1});
  const TensorId source = b.input("source", {2}, Dtype::i32), count = b.input("count", {2}, Dtype::i32);
  const TensorId y = b.output("y", {2, 1});
  b.op(ExpertMatmulAttrs{2, true, {}}, {b.all(x), b.all(w), b.all(source), b.all(count)}, {b.all(y)});
  TensorMap bound{
      {"x", {{1, 1}, {1}}}, {"w", {{2, 1, 1}, {1, 1}}}, {"source", {{2}, {0, 1}}}, {"count", {{2}, {1, 0}}}};
  EXPECT_FALSE(interpret(b.program, {}, bound).ok());
  bound["count"].values = {1, 1};
  EXPECT_TRUE(interpret(b.program, {}, bound).ok());
  bound["source"].values = {0, 2};
  EXPECT_EQ(interpret(b.program, {}, bound).status().code(), ErrorCode::out_of_range);
}

TEST(ReferenceOps, CombineSumsWeightedRows) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {4, 2}), w = b.input("w", {2, 2}), row = b.input("row", {2, 2}, Dtype::i32);
  const TensorId y = b.output("y", {2, 2});
  b.op(CombineAttrs{2}, {b.all(x), b.all(w), b.all(row)}, {b.all(y)});
  const auto got = run(
      b,
      {{"x", {{4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}}, {"w", {{2, 2}, {1, 10, 0.5, 2}}}, {"row", {{2, 2}, {1, 3, 0, 2}}}});
  EXPECT_THAT(got, ElementsAre(73, 84, 10.5, 13));
}
TEST(ReferenceOps, CombineHasAnEpilogue) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {4, 2}), w = b.input("w", {2, 2}), row = b.input("row", {2, 2}, Dtype::i32), c = b.input("c", {2, 2});
  const TensorId y = b.output("y", {2, 2});
  b.op(CombineAttrs{2, twice_plus()}, {b.all(x), b.all(w), b.all(row), b.all(c)}, {b.all(y)});
  const auto got = run(b, {{"x", {{4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}}, {"w", {{2, 2}, {1, 10, 0.5, 2}}}, {"row", {{2, 2}, {1, 3, 0, 2}}}, {"c", {{2, 2}, {1, 2, 3, 4}}}});
  EXPECT_THAT(got, ElementsAre(147, 170, 24, 30));
}

TEST(ReferenceOps, CustomNeedsAReference) {
  ProgramBuilder b;
  const TensorId x = b.input("x", {2}), y = b.output("y", {2});
  b.op(CustomAttrs{{"x"}, "out = x;", {2}, {}}, {b.all(x)}, {b.all(y)});
  const TensorMap bound{{"x", {{2}, {1, -2}}}};
  EXPECT_EQ(interpret(b.program, {}, bound).status().code(), ErrorCode::unsupported);
  ElementBuilder e;
  e.node(ExprFn::neg, ScalarType::f32, e.argument(0));
  std::get<CustomAttrs>(b.program.ops[0].attrs).reference = e.expr;
  EXPECT_THAT(run(b, bound), ElementsAre(-1, 2));
}

}  // namespace
}  // namespace ccks::spec

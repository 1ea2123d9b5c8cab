// When a norm is folded into the products that read it, when not, and that nothing changes by it but the ops.
#include "codegen/plan_fold.hpp"

#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/emit_sources.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kFolds = R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: w.T, out: q}
  - {op: matmul, a: a, b: u.T, epilogue: silu(acc) * q, with: {q: q}, out: y}
  - {op: argmax, x: y, out: best}
  - {op: report, x: best, name: token}
)";

spec::Program program_of(const std::string& ops, const std::string& n = "1", const std::string& more = "") {
  const std::string text = "ccks: 1\nprogram: p\ndtype: bf16\ndims: {n: " + n + R"(}
tensors:
  x: {shape: [n, 64], kind: input}
  g: {shape: [64], kind: weight}
  w: {shape: [32, 64], kind: weight}
  u: {shape: [32, 64], kind: weight}
  y: {shape: [n, 32], kind: output}
)" + more + "ops:" + ops;
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  return parsed.program;
}

PlanOptions options_of(const char* device) {
  PlanOptions options;
  options.device = device;
  return options;
}

std::size_t norms(const spec::Program& p) {
  return static_cast<std::size_t>(std::count_if(p.ops.begin(), p.ops.end(), [](const spec::Op& op) { return op.kind() == spec::OpKind::rmsnorm; }));
}
bool folds(const spec::Program& p, const char* device = "host") { return norms(fold_norms(p, options_of(device))) < norms(p); }

class PlanFold : public testing::TestWithParam<const char*> {};

TEST_P(PlanFold, ProductsTakeTheNormOfTheirRows) {
  const spec::Program given = program_of(kFolds), folded = fold_norms(given, options_of(GetParam()));
  ASSERT_EQ(folded.ops.size(), given.ops.size() - 1);
  for (std::size_t i : {0, 1}) {
    const spec::Op& op = folded.ops[i];
    ASSERT_EQ(op.kind(), spec::OpKind::matmul);
    ASSERT_TRUE(std::get<spec::MatmulAttrs>(op.attrs).norm.has_value());
    EXPECT_EQ(std::get<spec::MatmulAttrs>(op.attrs).norm->eps, 1e-5);
    EXPECT_EQ(folded.tensors[op.inputs[0].tensor].name, "x");
    EXPECT_EQ(folded.tensors[op.inputs.back().tensor].name, "g") << "the last input";
  }
  EXPECT_EQ(folded.ops[1].inputs.size(), 4u) << "the epilogue keeps its operand";
  EXPECT_EQ(folded.ops[folded.reports[0].op].kind(), spec::OpKind::report);
}

TEST_P(PlanFold, TheCheckerAcceptsThePlanAndItsProductsWaitForWhoMakesTheRows) {
  const spec::Program folded = fold_norms(program_of(std::string("\n  - {op: map, expr: x * 2, out: x2}") + R"(
  - {op: rmsnorm, x: x2, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: w.T, out: y}
)"), options_of(GetParam()));
  const auto image = make_plan(folded, options_of(GetParam()));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const Status sound = check_plan(folded, (*image)->view()).status();
  EXPECT_TRUE(sound.ok()) << sound.message();
  const plan::PlanView view = (*image)->view();
  ASSERT_EQ(view.ops.size(), 2u);
  ASSERT_EQ(view.ops[1].wait_count, 1u);
  EXPECT_EQ(view.waits[view.ops[1].wait_first].producer, 0u);
  EXPECT_TRUE(norms_rows(**image, view.ops[1]));
  EXPECT_FALSE(norms_rows(**image, view.ops[0]));
  const auto bodies = emit_bodies(folded, **image, false);
  ASSERT_TRUE(bodies.ok());
  EXPECT_NE(bodies->list[bodies->of_op[1]].type.find("TypedOp<OpCode::matmul, Normed<Code<>>, "), std::string::npos);
  spec::Program other = folded;
  std::get<spec::MatmulAttrs>(other.ops[1].attrs).norm->eps = 1e-3;
  EXPECT_FALSE(check_plan(other, view).status().ok()) << "another eps";
  std::get<spec::MatmulAttrs>(other.ops[1].attrs).norm.reset();
  EXPECT_FALSE(check_plan(other, view).status().ok()) << "no norm";
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanFold, testing::Values("host", "cuda"));

TEST(PlanFold, GivesTheSameValues) {
  for (const char* n : {"1", "3"}) {
    const spec::Program given = program_of(kFolds, n), folded = fold_norms(given, options_of("host"));
    ASSERT_LT(folded.ops.size(), given.ops.size());
    spec::TensorMap bound;
    for (const char* name : {"x", "g", "w", "u"}) bound[name] = spec::seeded_values(given, *given.find_tensor(name), {}, 1);
    const auto want = spec::interpret(given, {}, bound), have = spec::interpret(folded, {}, bound);
    ASSERT_TRUE(want.ok() && have.ok()) << have.status().to_string();
    EXPECT_EQ(have->at("y").values, want->at("y").values);
  }
}

TEST(PlanFold, NotWhereSomebodyElseSeesTheNorm) {
  EXPECT_TRUE(folds(program_of(kFolds)));
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: w.T, out: y}
)", "1", "  a: {shape: [n, 64], kind: output}\n"))) << "an output";
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: map, expr: a + 1, out: h}
  - {op: matmul, a: h, b: w.T, out: q}
  - {op: matmul, a: a, b: w.T, epilogue: acc + q, with: {q: q}, out: y}
)"))) << "read by a map";
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: "a[:, 0:32]", b: "w[:, 0:32].T", out: y}
)"))) << "read in part";
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: w, b: a.T, out: t}
  - {op: matmul, a: a, b: w.T, out: y}
)"))) << "read as b";
}

TEST(PlanFold, NotWhereTheRowsHaveChanged) {
  const char* state = "  s: {shape: [n, 64], kind: state}\n";
  EXPECT_TRUE(folds(program_of(R"(
  - {op: rmsnorm, x: s, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: w.T, out: y}
  - {op: map, expr: s + x, out: s}
)", "1", state)));
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: s, weight: g, eps: 1e-5, out: a}
  - {op: map, expr: s + x, out: s}
  - {op: matmul, a: a, b: w.T, out: y}
)", "1", state)));
  EXPECT_FALSE(folds(program_of(R"(
  - {op: rmsnorm, x: s, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: v.T, out: s}
  - {op: matmul, a: s, b: w.T, out: y}
)", "1", std::string(state) + "  v: {shape: [64, 64], kind: weight}\n"))) << "by the product itself";
}

TEST(PlanFold, OnlyOfFewRows) {
  EXPECT_TRUE(folds(program_of(kFolds, "4")));
  EXPECT_FALSE(folds(program_of(kFolds, "5")));
  EXPECT_TRUE(folds(program_of(kFolds, "8"), "cuda"));
  EXPECT_FALSE(folds(program_of(kFolds, "9"), "cuda"));
  EXPECT_TRUE(folds(program_of(kFolds, "{range: [1, 512], default: 1}"), "cuda")) << "the typical number counts";
  EXPECT_FALSE(folds(program_of(kFolds, "{range: [1, 512], default: 100}"), "cuda"));
}

TEST(PlanFold, OnAGpuOnlyIntoProductsOfColumns) {
  const char* ops = R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: r, out: y}
)";
  const char* rows = "  r: {shape: [64, 32], kind: weight}\n";
  EXPECT_TRUE(folds(program_of(ops, "1", rows)));
  EXPECT_FALSE(folds(program_of(ops, "1", rows), "cuda"));
}

TEST(PlanFold, NotWhereItIsTurnedOff) {
  PlanOptions options = options_of("host");
  options.fold_norms = false;
  EXPECT_EQ(norms(fold_norms(program_of(kFolds), options)), 1u);
}

}  // namespace
}  // namespace ccks::codegen

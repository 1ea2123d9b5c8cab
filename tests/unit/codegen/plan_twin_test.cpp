// When a product is folded into another of the same rows, when not, and that nothing changes by it but the ops.
#include "codegen/plan_twin.hpp"

#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/emit_sources.hpp"
#include "codegen/plan_fold.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kGated = R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: w.T, epilogue: silu(acc) + e * 2, out: q}
  - {op: matmul, a: a, b: u.T, epilogue: (acc + f) * q - e, out: y}
)";

spec::Program program_of(const std::string& ops, const std::string& n = "1", const std::string& more = "", const std::string& dtype = "bf16") {
  const std::string text = "ccks: 1\nprogram: p\ndtype: " + dtype + "\ndims: {n: " + n + R"(}
tensors:
  x: {shape: [n, 512], kind: input}
  e: {shape: [n, 32], kind: input}
  f: {shape: [32], kind: input}
  g: {shape: [512], kind: weight}
  w: {shape: [32, 512], kind: weight}
  u: {shape: [32, 512], kind: weight}
  y: {shape: [n, 32], kind: output}
)" + more + "ops:" + ops;
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  return parsed.program;
}
PlanOptions options_of(const char* device, bool fold = true) {
  PlanOptions options;
  options.device = device;
  options.fold_norms = fold;
  return options;
}
spec::Program changed(const spec::Program& p, const PlanOptions& options) { return fold_twins(fold_norms(p, options), options); }
std::size_t twins(const spec::Program& p, const char* device = "host") {
  const spec::Program folded = changed(p, options_of(device));
  return static_cast<std::size_t>(std::count_if(folded.ops.begin(), folded.ops.end(), [](const spec::Op& op) { return has_twin(op); }));
}
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class PlanTwin : public testing::TestWithParam<const char*> {};

TEST_P(PlanTwin, OneOpMultipliesByBoth) {
  const spec::Program p = changed(program_of(kGated), options_of(GetParam()));
  ASSERT_EQ(p.ops.size(), 1u);
  const spec::Op& op = p.ops[0];
  ASSERT_TRUE(has_twin(op));
  std::vector<std::string> names;
  for (const spec::View& v : op.inputs) names.push_back(p.tensors[v.tensor].name);
  EXPECT_EQ(names, (std::vector<std::string>{"x", "u", "w", "f", "e", "e", "g"}));
  EXPECT_EQ(changed(program_of(kGated), options_of(GetParam(), false)).ops.size(), 3u) << "turned off";
}

TEST_P(PlanTwin, TheCheckerAcceptsThePlanAndNoOther) {
  const spec::Program p = changed(program_of(kGated, "{range: [1, 40], default: 1}"), options_of(GetParam()));
  const auto image = make_plan(p, options_of(GetParam()));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const plan::PlanView view = (*image)->view();
  const Status sound = check_plan(p, view).status();
  EXPECT_TRUE(sound.ok()) << sound.message();
  const auto bodies = emit_bodies(p, **image, false);
  ASSERT_TRUE(bodies.ok());
  EXPECT_NE(bodies->list[0].type.find("Normed<Twinned<Code<Ins<ExprOp::arg_f, "), std::string::npos) << bodies->list[0].type;
  const auto refused = [&](const char* what, auto&& change) {
    PlanImage other = **image;
    change(other);
    EXPECT_FALSE(check_plan(p, other.view()).status().ok()) << what;
  };
  const auto dim = [](PlanImage& plan) -> std::int64_t& { return plan.dims[plan.ops[0].dims[wire::kTwinDim]].value; };
  refused("another end of the twin's code", [&](PlanImage& plan) { dim(plan) -= 1; });
  refused("more code than there is", [&](PlanImage& plan) { dim(plan) += 100; });
  refused("the twin's weights are the other's", [](PlanImage& plan) { std::swap(plan.operands[1], plan.operands[2]); });
  refused("a twin that reads itself", [](PlanImage& plan) {
    for (wire::ExprInstr& in : plan.code)
      if (in.op == static_cast<std::uint8_t>(wire::ExprOp::arg_f) && in.c == 4) in.c = 1;
  });
  spec::Program single = p;
  std::get<spec::MatmulAttrs>(single.ops[0].attrs).twin.reset();
  EXPECT_FALSE(check_plan(single, view).status().ok()) << "no twin";
}

TEST_P(PlanTwin, GivesTheSameValues) {
  for (const std::int64_t n : {1, 3}) {
    const spec::Program given = program_of(kGated, "{range: [1, 8], default: 1}"), folded = changed(given, options_of(GetParam()));
    ASSERT_EQ(folded.ops.size(), 1u);
    spec::TensorMap bound;
    const std::vector<std::int64_t> dims{n};
    for (const char* name : {"x", "e", "f", "g", "w", "u"}) bound[name] = spec::seeded_values(given, *given.find_tensor(name), dims, 1);
    const auto want = spec::interpret(given, dims, bound), have = spec::interpret(folded, dims, bound);
    ASSERT_TRUE(want.ok() && have.ok()) << want.status().to_string() << have.status().to_string();
    EXPECT_EQ(have->at("y").values, want->at("y").values);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PlanTwin, testing::Values("host", "cuda"));

TEST(PlanTwins, NotWhereSomebodyElseSeesTheProduct) {
  EXPECT_EQ(twins(program_of(kGated)), 1u);
  EXPECT_EQ(twins(program_of(std::string(kGated) + "  - {op: map, expr: q + 1, out: z}\n", "1", "  z: {shape: [n, 32], kind: output}\n")), 0u);
  EXPECT_EQ(twins(program_of(kGated, "1", "  q: {shape: [n, 32], kind: output}\n")), 0u) << "an output";
  EXPECT_EQ(twins(program_of(with(kGated, "epilogue: (acc + f) * q - e", "epilogue: (acc + f) * q - q"))), 1u) << "one operand, twice";
}

TEST(PlanTwins, NotWhereRowsOrWeightsDiffer) {
  EXPECT_EQ(twins(program_of(with(kGated, "a: a, b: u.T", "a: x, b: u.T"))), 0u) << "one is normed";
  EXPECT_EQ(twins(program_of(with(kGated, "b: u.T", "b: r"), "1", "  r: {shape: [512, 32], kind: weight}\n")), 0u) << "b in rows";
  EXPECT_EQ(twins(program_of(with(kGated, "b: u.T", "b: r.T"), "1", "  r: {shape: [32, 512], kind: input}\n")), 0u) << "no weights";
  EXPECT_EQ(twins(program_of(kGated, "1", "  q: {shape: [n, 32], kind: intermediate, dtype: f32}\n")), 0u) << "not as b";
}

TEST(PlanTwins, NotWhereTheOutputIsReadBesides) {
  const std::string own = "\n  - {op: map, expr: e * 2, out: t}" + with(with(kGated, "* q - e", "* q - t"), "out: y", "out: t") + "  - {op: map, expr: t, out: y}\n";
  EXPECT_EQ(twins(program_of(own, "1", "  t: {shape: [n, 32], kind: intermediate}\n")), 0u);
}

TEST(PlanTwins, OnlyOfFewRowsAndOnAGpuWhereBothStream) {
  EXPECT_EQ(twins(program_of(kGated, "6"), "cuda"), 1u);
  EXPECT_EQ(twins(program_of(kGated, "9"), "cuda"), 0u);
  EXPECT_EQ(twins(program_of(kGated, "6")), 0u);
  EXPECT_EQ(twins(program_of(kGated, "1", "", "f32"), "cuda"), 0u);
  EXPECT_EQ(twins(program_of(kGated, "1", "", "f32")), 1u);
}

}  // namespace
}  // namespace ccks::codegen

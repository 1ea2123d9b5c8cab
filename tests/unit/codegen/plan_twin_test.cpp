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

// ---- experts' ----

constexpr const char* kExperts = R"(
  - {op: route, logits: logits, k: 2, out: r}
  - {op: route, logits: others, k: 2, out: s}
  - {op: expert_matmul, x: x, route: r, b: w, transpose_b: true, input: tokens, epilogue: silu(acc) + e * 2, out: q}
  - {op: expert_matmul, x: x, route: r, b: u, transpose_b: true, input: tokens, epilogue: (acc + f) * q - e, out: h}
  - {op: expert_matmul, x: h, route: r, b: d, transpose_b: true, input: rows, out: y}
)";

spec::Program experts_of(const std::string& ops, const std::string& t = "{range: [1, 40], default: 2}", const std::string& more = "", const std::string& dtype = "bf16") {
  const std::string text = "ccks: 1\nprogram: p\ndtype: " + dtype + "\ndims: {t: " + t + R"(}
tensors:
  x: {shape: [t, 64], kind: input}
  logits: {shape: [t, 4], kind: input}
  others: {shape: [t, 4], kind: input}
  e: {shape: [2 * t, 32], kind: input}
  f: {shape: [32], kind: input}
  w: {shape: [4, 32, 64], kind: weight}
  u: {shape: [4, 32, 64], kind: weight}
  d: {shape: [4, 64, 32], kind: weight}
  y: {shape: [2 * t, 64], kind: output}
)" + more + "ops:" + ops;
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  return parsed.program;
}
const spec::Op* twin_among(const spec::Program& p) {
  const auto found = std::find_if(p.ops.begin(), p.ops.end(), [](const spec::Op& op) { return has_twin(op); });
  return found == p.ops.end() ? nullptr : &*found;
}

TEST_P(PlanTwin, OneOpMultipliesByBothWeightsOfExperts) {
  const spec::Program p = changed(experts_of(kExperts), options_of(GetParam()));
  ASSERT_EQ(p.ops.size(), experts_of(kExperts).ops.size() - 1);
  const spec::Op* op = twin_among(p);
  ASSERT_NE(op, nullptr);
  std::vector<std::string> names;
  for (const spec::View& v : op->inputs) names.push_back(p.tensors[v.tensor].name);
  EXPECT_EQ(names, (std::vector<std::string>{"x", "u", "r.source", "r.count", "w", "f", "e", "e"}));
  EXPECT_EQ(twin_among(changed(experts_of(kExperts), options_of(GetParam(), false))), nullptr) << "turned off";
}

TEST_P(PlanTwin, TheCheckerAcceptsThePlanOfExpertsAndNoOther) {
  const spec::Program p = changed(experts_of(kExperts), options_of(GetParam()));
  ASSERT_NE(twin_among(p), nullptr);
  const auto at = static_cast<std::size_t>(twin_among(p) - p.ops.data());
  const auto image = make_plan(p, options_of(GetParam()));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const plan::PlanView view = (*image)->view();
  const Status sound = check_plan(p, view).status();
  EXPECT_TRUE(sound.ok()) << sound.message();
  std::size_t op = 0;
  while ((*image)->spec_ops[op] != at) ++op;
  const auto bodies = emit_bodies(p, **image, false);
  ASSERT_TRUE(bodies.ok());
  EXPECT_EQ(bodies->list[bodies->of_op[op]].type.rfind("TypedOp<OpCode::expert_matmul, Twinned<Code<Ins<ExprOp::arg_f, ", 0), 0u) << bodies->list[bodies->of_op[op]].type;
  const auto refused = [&](const char* what, auto&& change) {
    PlanImage other = **image;
    change(other, other.ops[op]);
    EXPECT_FALSE(check_plan(p, other.view()).status().ok()) << what;
  };
  const auto dim = [](PlanImage& plan, plan::OpDesc& o) -> std::int64_t& { return plan.dims[o.dims[wire::kTwinDim]].value; };
  refused("another end of the twin's code", [&](PlanImage& plan, plan::OpDesc& o) { dim(plan, o) -= 1; });
  refused("more code than there is", [&](PlanImage& plan, plan::OpDesc& o) { dim(plan, o) += 100; });
  refused("the twin's weights are the other's", [](PlanImage& plan, plan::OpDesc& o) { std::swap(plan.operands[o.operand_first + 1], plan.operands[o.operand_first + 4]); });
  refused("a twin that reads itself", [](PlanImage& plan, plan::OpDesc& o) {
    for (std::size_t i = o.code_first; i < o.code_first + std::size_t{o.code_count}; ++i)
      if (plan.code[i].op == static_cast<std::uint8_t>(wire::ExprOp::arg_f) && plan.code[i].c == 4) plan.code[i].c = 1;
  });
  refused("other operands of the epilogue", [](PlanImage& plan, plan::OpDesc& o) { plan.dims.push_back({plan::DimOp::constant, 0, 0, 5}), o.dims[wire::kEpilogueDim] = static_cast<plan::DimId>(plan.dims.size() - 1); });
  spec::Program single = p;
  std::get<spec::ExpertMatmulAttrs>(single.ops[at].attrs).twin.reset();
  EXPECT_FALSE(check_plan(single, view).status().ok()) << "no twin";
}

TEST_P(PlanTwin, GivesTheSameValuesOfExperts) {
  for (const std::int64_t t : {1, 7}) {
    const spec::Program given = experts_of(kExperts), folded = changed(given, options_of(GetParam()));
    ASSERT_NE(twin_among(folded), nullptr);
    spec::TensorMap bound;
    const std::vector<std::int64_t> dims{t};
    for (const char* name : {"x", "logits", "others", "e", "f", "w", "u", "d"}) bound[name] = spec::seeded_values(given, *given.find_tensor(name), dims, 1);
    const auto want = spec::interpret(given, dims, bound), have = spec::interpret(folded, dims, bound);
    ASSERT_TRUE(want.ok() && have.ok()) << want.status().to_string() << have.status().to_string();
    EXPECT_EQ(have->at("y").values, want->at("y").values);
  }
}

/// Whether kExperts with `to` in place of `from` has a twin.
bool folds(const std::string& from, const std::string& to, const std::string& more = "", const char* device = "cuda") {
  return twin_among(changed(experts_of(with(kExperts, from, to), "2", more), options_of(device))) != nullptr;
}

TEST(PlanTwins, NotWhereExpertsHaveOtherRowsOrWeights) {
  EXPECT_TRUE(folds("- e,", "- q,")) << "one operand, twice";
  EXPECT_FALSE(folds("route: r, b: u", "route: s, b: u")) << "another route";
  EXPECT_FALSE(folds("x: x, route: r, b: u", "x: z, route: r, b: u", "  z: {shape: [t, 64], kind: input}\n")) << "other rows";
  EXPECT_FALSE(folds("b: u, transpose_b: true", "b: v", "  v: {shape: [4, 64, 32], kind: weight}\n")) << "b in rows";
  EXPECT_FALSE(folds("b: u", "b: v", "  v: {shape: [4, 32, 64], kind: input}\n")) << "no weights";
  EXPECT_FALSE(folds("b: d, transpose_b: true, input: rows, out: y", "b: d, transpose_b: true, input: rows, epilogue: acc + p, with: {p: \"q[:, 0:1]\"}, out: y"))
      << "somebody else sees it";
  EXPECT_FALSE(folds("out: q}", "out: q, dtype: f32}")) << "not as b";
}

TEST(PlanTwins, OfExpertsOfAnyNumberOfRowsOnAGpuInPackets) {
  const auto has = [](const spec::Program& p, const char* device) { return twin_among(changed(p, options_of(device))) != nullptr; };
  EXPECT_TRUE(has(experts_of(kExperts, "512"), "cuda"));
  EXPECT_FALSE(has(experts_of(kExperts, "512"), "host"));
  EXPECT_FALSE(has(experts_of(kExperts, "2", "", "f32"), "cuda"));
  EXPECT_TRUE(has(experts_of(kExperts, "2", "", "f32"), "host"));
  const spec::Program rows = experts_of(with(with(kExperts, "b: w, transpose_b: true", "b: a"), "b: u, transpose_b: true", "b: b"), "2",
                                        "  a: {shape: [4, 64, 32], kind: weight}\n  b: {shape: [4, 64, 32], kind: weight}\n");
  EXPECT_FALSE(has(rows, "cuda"));
  EXPECT_TRUE(has(rows, "host"));
}

TEST(PlanTwins, TilesOfExpertsHaveHalfABlockOfColumnsOfEach) {
  const std::string wide = R"(ccks: 1
program: p
dtype: bf16
dims: {t: {range: [1, 512], default: 1}}
tensors:
  x: {shape: [t, 2048], kind: input}
  logits: {shape: [t, 16], kind: input}
  w: {shape: [16, 768, 2048], kind: weight}
  u: {shape: [16, 768, 2048], kind: weight}
  y: {shape: [2 * t, 768], kind: output}
ops:
  - {op: route, logits: logits, k: 2, out: r}
  - {op: expert_matmul, x: x, route: r, b: w, transpose_b: true, input: tokens, epilogue: silu(acc), out: q}
  - {op: expert_matmul, x: x, route: r, b: u, transpose_b: true, input: tokens, epilogue: acc * q, out: y}
)";
  const spec::ParseResult parsed = spec::parse_text(wide, "p.yaml");
  ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  const spec::Program p = changed(parsed.program, options_of("cuda"));
  ASSERT_NE(twin_among(p), nullptr);
  const auto image = make_plan(p, options_of("cuda"));
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const plan::OpDesc& op = (*image)->ops.back();
  EXPECT_EQ((*image)->dims[op.tile[3]].value, 64);
}

}  // namespace
}  // namespace ccks::codegen

// When a rope is folded into the product that makes its rows, when not, and that nothing changes by it but the ops.
#include "codegen/plan_turn.hpp"

#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/emit_sources.hpp"
#include "codegen/plan_fold.hpp"
#include "codegen/plan_image.hpp"
#include "codegen/plan_split.hpp"
#include "spec/parse.hpp"
#include "spec/reference.hpp"

namespace ccks::codegen {
namespace {

/// Two heads of queries and one of keys, 32 wide, and attention over what has been kept.
constexpr const char* kStep = R"(
  - {op: rmsnorm, x: x, weight: g, eps: 1e-5, out: a}
  - {op: matmul, a: a, b: wq.T, out: q}
  - {op: matmul, a: a, b: wk.T, out: k}
  - {op: matmul, a: a, b: wv.T, out: "v_cache[pos:pos + n, :]"}
  - {op: rope, x: q, heads: 2, theta: 10000, position: pos, out: q}
  - {op: rope, x: k, heads: 1, theta: 10000, position: pos, out: "k_cache[pos:pos + n, :]"}
  - {op: attention, q: q, k: "k_cache[0:pos + n, :]", v: "v_cache[0:pos + n, :]", heads: 2, kv_heads: 1, causal: true, out: y}
)";

spec::Program program_of(const std::string& ops, const std::string& n = "{range: [1, 8], default: 1}", const std::string& more = "") {
  const std::string text = "ccks: 1\nprogram: p\ndtype: bf16\ndims: {n: " + n + R"(, pos: {range: [0, 8], default: 3}}
tensors:
  x: {shape: [n, 64], kind: input}
  g: {shape: [64], kind: weight}
  wq: {shape: [64, 64], kind: weight}
  wk: {shape: [32, 64], kind: weight}
  wv: {shape: [32, 64], kind: weight}
  k_cache: {shape: [16, 32], kind: state}
  v_cache: {shape: [16, 32], kind: state}
  y: {shape: [n, 64], kind: output}
)" + more + "ops:" + ops;
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  return parsed.program;
}

PlanOptions on_gpu(bool fold = true) {
  PlanOptions options;
  options.device = "cuda";
  options.fold_norms = fold;
  return options;
}
spec::Program changed(const spec::Program& given, const PlanOptions& options) { return split_attention(fold_norms(given, options), options); }

/// Ropes other than that which makes a table.
std::size_t ropes(const spec::Program& p) {
  return static_cast<std::size_t>(std::count_if(p.ops.begin(), p.ops.end(), [](const spec::Op& op) {
    return op.kind() == spec::OpKind::rope && op.name.find("angles") == std::string::npos;
  }));
}
std::size_t left(const spec::Program& p) { return ropes(changed(p, on_gpu())); }
std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanTurn, ProductsTurnTheHeadsThatTheyMake) {
  const spec::Program p = changed(program_of(kStep), on_gpu());
  EXPECT_EQ(ropes(p), 0u);
  const auto found = std::find_if(p.ops.begin(), p.ops.end(), [](const spec::Op& op) { return turns_heads(op); });
  ASSERT_NE(found, p.ops.end());
  ASSERT_EQ(found->inputs.size(), 4u);
  EXPECT_EQ(p.tensors[found->inputs[table_input(*found)].tensor].name, "rope.angles.0");
  EXPECT_EQ(p.tensors[found->inputs.back().tensor].name, "g") << "the last input";
  EXPECT_EQ(p.tensors[found->outputs[0].tensor].name.front(), 'q');
  EXPECT_EQ(p.tensors[(found + 1)->outputs[0].tensor].name, "k_cache");
  EXPECT_EQ(left(program_of(kStep, "8")), 0u);
  EXPECT_EQ(ropes(changed(program_of(kStep), on_gpu(false))), 2u) << "turned off";
}

TEST(PlanTurn, TheCheckerAcceptsThePlanAndNoOther) {
  const spec::Program p = changed(program_of(kStep), on_gpu());
  const auto image = make_plan(p, on_gpu());
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const plan::PlanView view = (*image)->view();
  const Status sound = check_plan(p, view).status();
  EXPECT_TRUE(sound.ok()) << sound.message();
  std::size_t q = 0;
  while (!turns_heads(p.ops[q])) ++q;
  EXPECT_TRUE(turns_heads(**image, view.ops[q]));
  EXPECT_FALSE(turns_heads(**image, view.ops[q + 2])) << "the values";
  const auto bodies = emit_bodies(p, **image, false);
  ASSERT_TRUE(bodies.ok());
  EXPECT_NE(bodies->list[bodies->of_op[q]].type.find("TypedOp<OpCode::matmul, Roped<Normed<Code<>>>, "), std::string::npos);
  spec::Program other = p;
  std::get<spec::MatmulAttrs>(other.ops[q].attrs).rope = false;
  EXPECT_FALSE(check_plan(other, view).status().ok()) << "no rope";
  PlanImage halves = **image;
  halves.ops[q].tile[0] = halves.ops[q].grid[1 + 1];  // one
  EXPECT_FALSE(check_plan(p, halves.view()).status().ok()) << "tiles of half a pair";
}

TEST(PlanTurn, WhoWantsAHeadWaitsForItsTilesAlone) {
  const std::string four = with(with(with(kStep, "heads: 2, theta", "heads: 4, theta"), "heads: 1, theta", "heads: 2, theta"), "heads: 2, kv_heads: 1", "heads: 4, kv_heads: 2");
  const spec::Program p = changed(program_of(four), on_gpu());
  ASSERT_EQ(ropes(p), 0u);
  const auto image = make_plan(p, on_gpu());
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  ASSERT_TRUE(check_plan(p, (*image)->view()).ok());
  int found = 0;
  for (const Dependency& d : (*image)->dependencies) {
    if (p.ops[d.consumer].kind() != spec::OpKind::attention || !turns_heads(p.ops[d.producer])) continue;
    EXPECT_NE(d.granularity, Granularity::whole) << p.tensors[d.tensor].name;
    ++found;
  }
  EXPECT_EQ(found, 2);
}

TEST(PlanTurn, GivesTheSameValues) {
  for (const std::int64_t n : {1, 3}) {
    const spec::Program given = program_of(kStep), folded = changed(given, on_gpu());
    spec::TensorMap bound;
    const std::vector<std::int64_t> dims{n, 2};
    for (const char* name : {"x", "g", "wq", "wk", "wv", "k_cache", "v_cache"})
      bound[name] = spec::seeded_values(given, *given.find_tensor(name), dims, 1);
    const auto want = spec::interpret(given, dims, bound), have = spec::interpret(folded, dims, bound);
    ASSERT_TRUE(want.ok() && have.ok()) << want.status().to_string() << have.status().to_string();
    for (const char* name : {"y", "k_cache", "v_cache"}) {
      ASSERT_EQ(have->at(name).values.size(), want->at(name).values.size());
      for (std::size_t i = 0; i < want->at(name).values.size(); ++i)  // the angles pass through f32
        ASSERT_NEAR(have->at(name).values[i], want->at(name).values[i], 0.01 * std::abs(want->at(name).values[i]) + 1e-6) << name << " " << i;
    }
  }
}

TEST(PlanTurn, PositionsThatAreGivenMakeATableToo) {
  const std::string ropes = R"(
  - {op: rope, x: x, heads: 2, theta: 10000, positions: at, out: q}
  - {op: rope, x: x, heads: 2, theta: 10000, positions: at, out: k}
  - {op: map, expr: q + k, out: y}
)";
  const auto program = [&](const char* kind) { return program_of(ropes, "{range: [1, 8], default: 3}", std::string("  at: {shape: [n], dtype: i32, kind: ") + kind + ", init: {integers: [0, 900]}}\n"); };
  const spec::Program given = program("input"), shared = changed(given, on_gpu());
  const auto table = std::find_if(shared.ops.begin(), shared.ops.end(), [](const spec::Op& op) { return op.name == "rope.angles.0"; });
  ASSERT_NE(table, shared.ops.end());
  EXPECT_TRUE(std::get<spec::RopeAttrs>(table->attrs).has_positions);
  EXPECT_EQ(shared.tensors[table->inputs.at(1).tensor].name, "at");
  for (const spec::Op& op : shared.ops) {
    if (op.kind() != spec::OpKind::rope || &op == &*table) continue;
    EXPECT_FALSE(std::get<spec::RopeAttrs>(op.attrs).has_positions);
    EXPECT_EQ(shared.tensors[op.inputs.at(1).tensor].name, "rope.angles.0");
  }
  const auto image = make_plan(shared, on_gpu());
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_TRUE(check_plan(shared, (*image)->view()).ok());
  spec::TensorMap bound;
  const std::vector<std::int64_t> dims{3, 0};
  for (const char* name : {"x", "at", "g", "wq", "wk", "wv", "k_cache", "v_cache"}) bound[name] = spec::seeded_values(given, *given.find_tensor(name), dims, 1);
  const auto want = spec::interpret(given, dims, bound).value().at("y").values, have = spec::interpret(shared, dims, bound).value().at("y").values;
  EXPECT_LE(spec::max_relative_error(have, want), spec::default_tolerance(wire::Dtype::bf16)) << "angles pass through f32";
}

TEST(PlanTurn, NotWhereSomebodyElseSeesTheProduct) {
  EXPECT_EQ(left(program_of(std::string(kStep) + "  - {op: map, expr: k + 1, out: z}\n", "1", "  z: {shape: [n, 32], kind: output}\n")), 1u);
  EXPECT_EQ(left(program_of(std::string(kStep) + "  - {op: map, expr: q + 1, out: z}\n", "1", "  z: {shape: [n, 64], kind: output}\n")), 0u)
      << "which is what the rope has made";
  EXPECT_EQ(left(program_of(with(kStep, "  - {op: rope, x: q", "  - {op: map, expr: q + 1, out: z}\n  - {op: rope, x: q"), "1",
                            "  z: {shape: [n, 64], kind: output}\n")), 1u) << "between";
  EXPECT_EQ(left(program_of(kStep, "1", "  k: {shape: [n, 32], kind: output}\n")), 1u) << "an output";
}

TEST(PlanTurn, NotWhereSomebodyTouchesWhatTheRopeWritesBetween) {
  EXPECT_EQ(left(program_of(with(kStep, "  - {op: rope, x: k", "  - {op: map, expr: c * 2, with: {c: \"k_cache[0:8, :]\"}, out: z}\n  - {op: rope, x: k"),
                            "1", "  z: {shape: [8, 32], kind: output}\n")), 1u);
}

TEST(PlanTurn, OnlyOfFewRowsAndNoOtherEpilogue) {
  EXPECT_EQ(left(program_of(kStep, "{range: [1, 12], default: 9}")), 2u);
  EXPECT_EQ(left(program_of(with(kStep, "wq.T,", "wq.T, epilogue: acc * 2,"))), 1u);
  EXPECT_EQ(left(program_of(with(kStep, "b: wk.T", "b: \"wk2\""), "1", "  wk2: {shape: [64, 32], kind: weight}\n")), 1u) << "b in rows";
}

}  // namespace
}  // namespace ccks::codegen

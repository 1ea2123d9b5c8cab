// Bodies made for one shape: that of ops that no dim changes, or the typical one beside the body for all; only where asked for.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "codegen/emit_sources.hpp"
#include "codegen/plan_image.hpp"
#include "codegen/plan_rewrite.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"

namespace ccks::codegen {
namespace {

struct Types {
  std::vector<std::string> any, typical;  // by op
};

Bodies bodies_of(const std::string& text, BodyShapes shapes) {
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  PlanOptions options;
  options.device = "cuda";
  const auto image = make_plan(parsed.program, options);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  return emit_bodies(parsed.program, **image, false, shapes).value();
}

Types types_of(const std::string& n, BodyShapes shapes) {
  const std::string text = "ccks: 1\nprogram: p\ndtype: f32\ndims: {n: " + n + R"(}
tensors:
  x: {shape: [n, 64], kind: input}
  w: {shape: [64, 64], kind: weight}
  y: {shape: [n, 64], kind: output}
ops:
  - {op: map, expr: x + 1, out: h}
  - {op: matmul, a: h, b: w.T, out: s}
  - {op: map, expr: index(1) + s, out: y}
)";
  const Bodies bodies = bodies_of(text, shapes);
  Types types;
  for (const std::uint16_t body : bodies.of_op) types.any.push_back(bodies.list[body].type);
  for (const std::uint16_t body : bodies.typical_of_op) types.typical.push_back(bodies.list[body].type);
  return types;
}

TEST(EmitShapes, OpsThatNoDimChanges) {
  const Types both = types_of("16", BodyShapes::fixed);
  const auto& types = both.any;
  ASSERT_EQ(types.size(), 3u);
  EXPECT_EQ(both.typical, types) << "they have no other shape";
  EXPECT_NE(types[0].find("ShapedOp<OpCode::map, Code<"), std::string::npos) << types[0];
  EXPECT_NE(types[0].find("Tiles<1, 1, 4, 64, 1, 1, 4, 1>, Windows<Window<1, 1, 16, 64, 0, 0, 64, 1, 1u>"), std::string::npos) << types[0];
  EXPECT_NE(types[1].find("Window<1, 1, 64, 64, 0, 0, 1, 64, 0u>"), std::string::npos) << types[1];
  EXPECT_EQ(types[2].find("ShapedOp"), std::string::npos) << "bodies that are marked know no indices: " << types[2];
}

TEST(EmitShapes, ADimThatVariesHasABodyForAllAndOneForThePreset) {
  const Types types = types_of("{range: [1, 64], default: 4}", BodyShapes::fixed);
  for (const std::string& type : types.any) EXPECT_EQ(type.find("ShapedOp"), std::string::npos) << type;
  ASSERT_EQ(types.typical.size(), 3u);
  EXPECT_NE(types.typical[0].find("Window<1, 1, 4, 64, 0, 0, 64, 1, 1u>"), std::string::npos) << types.typical[0];
  EXPECT_NE(types.typical[1].find("ShapedOp<OpCode::matmul, "), std::string::npos) << types.typical[1];
  EXPECT_EQ(types.typical[2], types.any[2]) << "bodies that are marked know no indices";
}

// [n, 512] times 64 columns along depth, in bf16: what each body of the one product is.
std::array<std::string, 3> bodies_of_halves(const std::string& n) {
  const std::string text = R"(
ccks: 1
program: p
dtype: bf16
dims: {n: )" + n + R"(}
tensors:
  x: {shape: [n, 512], kind: input}
  w: {shape: [64, 512], kind: weight}
  y: {shape: [n, 64], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, epilogue: silu(acc), out: y}
)";
  const Bodies bodies = bodies_of(text, BodyShapes::fixed);
  const auto kind = [&](std::uint16_t body) { return bodies.list[body].type.substr(0, bodies.list[body].type.find('<')); };
  return {kind(bodies.of_op[0]), kind(bodies.typical_of_op[0]), kind(bodies.groups_of_op[0])};
}

TEST(EmitShapes, ProductsForGroupsOfWarpsHaveOneBodyForAllShapes) {
  using Kinds = std::array<std::string, 3>;
  EXPECT_EQ(bodies_of_halves("16"), (Kinds{"GroupedOp", "GroupedOp", "GroupedOp"}));
  EXPECT_EQ(bodies_of_halves("{range: [1, 64], default: 32}"), (Kinds{"TypedOp", "ShapedOp", "GroupedOp"})) << "one row is not for groups";
  EXPECT_EQ(bodies_of_halves("8"), (Kinds{"ShapedOp", "ShapedOp", "ShapedOp"}));
  EXPECT_EQ(bodies_of_halves("{range: [1, 64], default: 1}"), (Kinds{"TypedOp", "ShapedOp", "TypedOp"})) << "workers have no room for stages";
}

TEST(EmitShapes, ProductsForGroupsOfWarpsKnowHowWideTheirBlocksAre) {
  const std::string text = R"(
ccks: 1
program: p
dtype: bf16
dims: {n: {range: [1, 4096], default: 1446}}
tensors:
  x: {shape: [n, 512], kind: input}
  w: {shape: [1536, 512], kind: weight}
  v: {shape: [512, 512], kind: weight}
  y: {shape: [n, 1536], kind: output}
  z: {shape: [n, 512], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: y}
  - {op: matmul, a: x, b: v.T, out: z}
)";
  const Bodies bodies = bodies_of(text, BodyShapes::fixed);
  const auto blocks = [&](std::size_t op) { return bodies.list[bodies.groups_of_op[op]].type; };
  EXPECT_NE(blocks(0).find(", 192u, 0u, Dtype"), std::string::npos) << blocks(0);
  EXPECT_NE(blocks(1).find(", 64u, 0u, Dtype"), std::string::npos) << blocks(1);
}

TEST(EmitShapes, BlocksKnowWhichOperandsRowsHaveTheirOwnOf) {
  const auto body = [](const std::string& dtype, const std::string& epilogue) {
    const Bodies bodies = bodies_of(R"(
ccks: 1
program: p
dtype: bf16
dims: {n: {range: [1, 4096], default: 1446}}
tensors:
  x: {shape: [n, 512], kind: input}
  w: {shape: [512, 512], kind: weight}
  b: {shape: [512], kind: weight, dtype: )" + dtype + R"(}
  y: {shape: [n, 512], kind: output}
ops: [{op: matmul, a: x, b: w.T, epilogue: ")" + epilogue + R"(", out: y}]
)", BodyShapes::fixed);
    return bodies.list[bodies.groups_of_op[0]].type;
  };
  EXPECT_TRUE(body("bf16", "acc + b").starts_with("BlocksOp<"));
  EXPECT_NE(body("bf16", "acc + b").find(", 64u, 0u, Dtype"), std::string::npos);
  EXPECT_NE(body("bf16", "acc + b + x").find(", 64u, 2u, Dtype"), std::string::npos);
  EXPECT_NE(body("bf16", "acc + x + b").find(", 64u, 1u, Dtype"), std::string::npos);
  EXPECT_TRUE(body("f32", "acc + b").starts_with("GroupedOp<")) << "a bias of four bytes lies in no such packets";
}

/// By what the program was made for.
TEST(EmitShapes, RowsAreHandedOnWhereProductsThatStreamHaveFew) {
  const auto rows_handed_on = [](const std::string& n, const std::string& dtype = "bf16", BodyShapes shapes = BodyShapes::fixed) {
    return bodies_of("ccks: 1\nprogram: p\ndtype: " + dtype + "\ndims: {n: " + n + R"(}
tensors:
  x: {shape: [n, 512], kind: input}
  w: {shape: [1024, 512], kind: weight}
  v: {shape: [512, 1024], kind: weight}
  y: {shape: [n, 512], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: h}
  - {op: matmul, a: h, b: v.T, out: y}
)", shapes).rows_handed_on;
  };
  EXPECT_EQ(rows_handed_on("1"), 1u);
  EXPECT_EQ(rows_handed_on("2"), 2u);
  EXPECT_EQ(rows_handed_on("8"), 8u);
  EXPECT_EQ(rows_handed_on("9"), 0u);
  EXPECT_EQ(rows_handed_on("{range: [1, 64], default: 1}"), 1u);
  EXPECT_EQ(rows_handed_on("{range: [1, 64], default: 2}"), 2u);
  EXPECT_EQ(rows_handed_on("1", "f32"), 0u);
  EXPECT_EQ(rows_handed_on("1", "bf16", BodyShapes::read), 0u);
}

TEST(EmitShapes, RoutesAsManyRowsAsRelaysHaveAmongFewExperts) {
  const auto routed_rows = [](const std::string& t, const std::string& experts, const std::string& top) {
    return bodies_of("ccks: 1\nprogram: p\ndtype: bf16\ndims: {t: " + t + ", e: " + experts + ", top: " + top + R"(}
tensors:
  x: {shape: [t, 512], kind: input}
  w: {shape: [e, 512], kind: weight}
  y: {shape: [t, top], dtype: f32, kind: output}
ops:
  - {op: matmul, a: x, b: w.T, dtype: f32, out: logits}
  - {op: route, logits: logits, k: top, out: rt}
  - {op: map, expr: rt.weight * 1.0, out: y}
)", BodyShapes::fixed).routed_rows;
  };
  EXPECT_EQ(routed_rows("1", "256", "16"), 1u);
  EXPECT_EQ(routed_rows("{range: [1, 64], default: 8}", "16", "2"), 8u);
  EXPECT_EQ(routed_rows("{range: [1, 64], default: 9}", "16", "2"), 0u);
  EXPECT_EQ(routed_rows("1", "260", "2"), 0u);
  EXPECT_EQ(routed_rows("1", "256", "17"), 0u);
}

/// Pages, scatters of keys and values: what most products hand on goes by events, so there is no relay to make workers for.
TEST(EmitShapes, SeveralRowsAreHandedOnWhereMostProductsFollowOneAnother) {
  const auto rows_of = [](const std::string& name, std::vector<std::pair<std::string, std::int64_t>> sizes) {
    sizes.insert(sizes.end(), {{"layers", 4}, {"d", 512}, {"heads", 8}, {"kv_heads", 2}, {"ffn", 1024}, {"vocab", 1024}});
    std::ifstream in(std::string(CCKS_SOURCE_DIR) + "/spec/examples/" + name + ".yaml");
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const spec::ParseResult parsed = spec::parse_text(text, name, {.constants = sizes});
    EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    PlanOptions options;
    options.device = "cuda";
    const spec::Program program = rewrite_program(parsed.program, options);
    return emit_bodies(program, **make_plan(program, options), false, BodyShapes::fixed).value().rows_handed_on;
  };
  EXPECT_EQ(rows_of("llama_batch", {{"batch", 4}}), 4u);
  EXPECT_EQ(rows_of("llama", {}), 1u);
  EXPECT_EQ(rows_of("llama_serve", {}), 0u);
}

TEST(EmitShapes, OnlyWhereAskedFor) {
  for (const std::string n : {"16", "{range: [1, 64], default: 16}"}) {
    const Types types = types_of(n, BodyShapes::read);
    EXPECT_EQ(types.typical, types.any);
    for (const std::string& type : types.any) EXPECT_EQ(type.find("ShapedOp"), std::string::npos) << type;
  }
}

}  // namespace
}  // namespace ccks::codegen

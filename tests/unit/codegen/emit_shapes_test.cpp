// Bodies made for one shape: only of ops that no dim changes, and only where asked for.
#include <gtest/gtest.h>

#include "codegen/emit_sources.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"

namespace ccks::codegen {
namespace {

std::vector<std::string> types_of(const std::string& n, BodyShapes shapes) {
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
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  PlanOptions options;
  options.device = "cuda";
  const auto image = make_plan(parsed.program, options);
  EXPECT_TRUE(image.ok()) << image.status().to_string();
  const auto bodies = emit_bodies(parsed.program, **image, false, shapes);
  EXPECT_TRUE(bodies.ok());
  std::vector<std::string> types;
  for (const std::uint16_t body : bodies->of_op) types.push_back(bodies->list[body].type);
  return types;
}

TEST(EmitShapes, OpsThatNoDimChanges) {
  const auto types = types_of("16", BodyShapes::fixed);
  ASSERT_EQ(types.size(), 3u);
  EXPECT_NE(types[0].find("ShapedOp<OpCode::map, Code<"), std::string::npos) << types[0];
  EXPECT_NE(types[0].find("Tiles<1, 1, 4, 64, 1, 1, 4, 1>, Windows<Window<1, 1, 16, 64, 0, 0, 64, 1, 1u>"), std::string::npos) << types[0];
  EXPECT_NE(types[1].find("Window<1, 1, 64, 64, 0, 0, 1, 64, 0u>"), std::string::npos) << types[1];
  EXPECT_EQ(types[2].find("ShapedOp"), std::string::npos) << "bodies that are marked know no indices: " << types[2];
}

TEST(EmitShapes, ADimThatVariesLeavesShapesToTheFrame) {
  for (const std::string& type : types_of("{range: [1, 64], default: 16}", BodyShapes::fixed))
    EXPECT_EQ(type.find("ShapedOp"), std::string::npos) << type;
}

TEST(EmitShapes, OnlyWhereAskedFor) {
  for (const std::string& type : types_of("16", BodyShapes::read)) EXPECT_EQ(type.find("ShapedOp"), std::string::npos) << type;
}

}  // namespace
}  // namespace ccks::codegen

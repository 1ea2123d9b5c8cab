// A route leaves finding experts to a topk in front of it where its weights follow from what that finds, and nothing else changes.
#include "codegen/plan_split.hpp"

#include <gtest/gtest.h>

#include "codegen/check_plan.hpp"
#include "codegen/plan_image.hpp"
#include "spec/parse.hpp"

namespace ccks::codegen {
namespace {

spec::Program program_of(const std::string& route, const std::string& typical = "40") {
  const std::string text = R"(
ccks: 1
program: p
dims: {t: {range: [1, 600], default: )" + typical + R"(}}
tensors:
  l: {shape: [t, 16], kind: input}
  x: {shape: [t, 32], kind: input}
  w: {shape: [16, 32, 32], kind: weight}
  y: {shape: [t, 32], kind: output}
ops:
  - {op: route, logits: l, k: 4, )" + route + R"(, out: rt}
  - {op: expert_matmul, x: x, route: rt, b: w, input: tokens, out: z}
  - {op: reduce, fn: sum, x: x, axes: [0, 1], out: s}
  - {op: report, x: s, name: seen}
  - {op: combine, x: z, route: rt, out: y}
)";
  const spec::ParseResult parsed = spec::parse_text(text, "p.yaml");
  EXPECT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
  return parsed.program;
}
PlanOptions on(const char* device) {
  PlanOptions options;
  options.device = device;
  return options;
}

TEST(FoundBeforeRoute, WhereWeightsFollowFromValues) {
  for (const char* route : {"softmax: all, renormalize: true", "softmax: chosen"}) {
    const spec::Program given = program_of(route), p = split_attention(given, on("cuda"));
    ASSERT_EQ(p.ops.size(), given.ops.size() + 1) << route;
    EXPECT_EQ(p.ops[0].kind(), spec::OpKind::topk);
    EXPECT_TRUE(takes_found(p.ops[1]));
    for (std::size_t r = 0; r < p.reports.size(); ++r) EXPECT_EQ(p.ops[p.reports[r].op].name, given.ops[given.reports[r].op].name);
    const auto image = make_plan(p, on("cuda"));
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    const Status sound = check_plan(p, (*image)->view()).status();
    EXPECT_TRUE(sound.ok()) << sound.to_string();
    EXPECT_FALSE(check_plan(given, (*image)->view()).ok()) << "of another program";
  }
}

TEST(FoundBeforeRoute, NotOtherwise) {
  const spec::Program all = program_of("softmax: all");
  EXPECT_EQ(split_attention(all, on("cuda")).ops.size(), all.ops.size());
  const spec::Program chosen = program_of("softmax: chosen");
  EXPECT_EQ(split_attention(chosen, on("host")).ops.size(), chosen.ops.size());
  const spec::Program few = program_of("softmax: chosen", "8"), more = program_of("softmax: chosen", "9");
  EXPECT_EQ(split_attention(few, on("cuda")).ops.size(), few.ops.size());
  EXPECT_EQ(split_attention(more, on("cuda")).ops.size(), more.ops.size() + 1);
}

}  // namespace
}  // namespace ccks::codegen

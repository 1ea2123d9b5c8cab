// explain and viz: the numbers add up, and labels cannot break out.
#include <gtest/gtest.h>

#include <cstdlib>

#include "codegen/explain_plan.hpp"
#include "codegen/viz_graph.hpp"
#include "tests/unit/codegen/check_programs.hpp"

namespace ccks::codegen {
namespace {

Explanation explain_small(std::size_t which, std::int64_t value, const std::string& gpu = "h200") {
  const spec::Program program = testing::parse_small(testing::kSmallPrograms[which]);
  const auto image = make_plan(program);
  EXPECT_TRUE(image.ok());
  const std::vector<std::int64_t> dims(program.symbols.size(), value);
  const auto explanation = explain_plan(program, **image, dims, *gpu_figures(gpu));
  EXPECT_TRUE(explanation.ok()) << explanation.status().to_string();
  return *explanation;
}

TEST(ExplainPlan, CountsTheWorkOfAnMlp) {
  const Explanation e = explain_small(0, 10);
  ASSERT_EQ(e.ops.size(), 4u);
  EXPECT_EQ(e.ops[1].operations, 2 * 10 * 64 * 192);
  EXPECT_EQ(e.ops[3].bytes_written, 10 * 64 * 4);
  // x and y, g, wu, wd: each once, whatever lies between.
  EXPECT_EQ(e.compulsory_bytes, 4 * (10 * 64 + 10 * 64 + 64 + 192 * 64 + 64 * 96));
  EXPECT_NEAR(e.floor_us, 1e6 * static_cast<double>(e.compulsory_bytes) / 4.67e12, 1e-9);
  EXPECT_GE(e.op_by_op_us, e.floor_us);
}

TEST(ExplainPlan, EveryWaitHasItsPlaceAndReason) {
  const Explanation e = explain_small(1, 100);
  ASSERT_FALSE(e.waits.empty());
  for (const ExplainedWait& w : e.waits) {
    EXPECT_LT(w.producer, w.consumer);
    EXPECT_GE(w.events, w.waited);
    EXPECT_GE(w.waited, 1);
    EXPECT_GE(w.total, 1);
    EXPECT_FALSE(w.reasons.empty());
  }
}

TEST(ExplainPlan, SaysWhoDecides) {
  EXPECT_NE(explain_small(3, 5).advice.find("routed experts"), std::string::npos);
  EXPECT_NE(explain_small(4, 5).advice.find("conditions"), std::string::npos);
  EXPECT_NE(explain_small(0, 5).advice.find("CUDA"), std::string::npos);
}

// Under conditions, what is not wanted costs; the host's way costs by decision. Which is more is said.
TEST(ExplainPlan, SaysWhereGraphsBetweenDecisionsAreFaster) {
  const auto advice_of = [](int maps) {
    std::string text = "ccks: 1\nprogram: p\ntensors:\n  x: {shape: [8], kind: input}\n  y: {shape: [8], kind: output}\nops:\n  - {op: reduce, fn: max, x: x, axes: [0], out: peak}\n"
                       "  - {op: report, x: peak, name: peak}\n  - {op: map, expr: x, out: h}\n  - if: peak > 0.5\n    ops:\n";
    for (int i = 0; i < maps; ++i) text += "      - {op: map, expr: h + 1, out: h}\n";
    text += "    out: {h: {then: h, else: h}}\n  - {op: map, expr: h, out: y}\n";
    const spec::Program program = testing::parse_small({"conditions", text.c_str()});
    const auto image = make_plan(program);
    EXPECT_TRUE(image.ok());
    return explain_plan(program, **image, {}, *gpu_figures("h200"))->advice;
  };
  EXPECT_NE(advice_of(3).find("Worth it"), std::string::npos) << advice_of(3);
  EXPECT_NE(advice_of(30).find("graphs between decisions are faster"), std::string::npos) << advice_of(30);
}

TEST(ExplainPlan, TextAndJsonNameEveryOp) {
  const Explanation e = explain_small(4, 7);
  const std::string text = explanation_to_text(e), json = explanation_to_json(e);
  for (const ExplainedOp& op : e.ops) {
    EXPECT_NE(text.find(op.name), std::string::npos);
    EXPECT_NE(json.find('"' + op.name + '"'), std::string::npos);
  }
  EXPECT_NE(text.find("if peak < 3"), std::string::npos) << text;
}

TEST(ExplainGpu, KnowsNamesAndPairs) {
  EXPECT_DOUBLE_EQ(gpu_figures("b200")->bytes_per_s, 8e12);
  EXPECT_DOUBLE_EQ(gpu_figures("1.5,300")->operations_per_s, 3e14);
  for (const char* bad : {"", "h900", "1.5", "1.5,", ",3", "-1,3", "1,2,3", "nan,1"})
    EXPECT_FALSE(gpu_figures(bad).ok()) << bad;
}

TEST(ExplainDims, TakesPresetsAndRefusesWhatIsOutside) {
  const spec::Program program = testing::parse_small(testing::kSmallPrograms[0]);
  EXPECT_EQ(*choose_dims(program, {}), std::vector<std::int64_t>{1});
  EXPECT_EQ(*choose_dims(program, {{"n", 9}}), std::vector<std::int64_t>{9});
  EXPECT_EQ(choose_dims(program, {{"n", 91}}).status().code(), ErrorCode::out_of_range);
}

TEST(VizGraph, LabelsStayInTheirQuotes) {
  Explanation e = explain_small(0, 3);
  e.ops[0].name = "a\"]; evil [label=\"b\\";
  const std::string dot = graph_to_dot(e);
  EXPECT_NE(dot.find("a\\\"]; evil [label=\\\"b\\\\"), std::string::npos) << dot;
}

TEST(VizGraph, RepeatsAreClusters) {
  Explanation e = explain_small(0, 3);
  e.ops[1].name = "layers.3.matmul.u";
  e.ops[2].name = "layers.3.map.v";
  const std::string dot = graph_to_dot(e);
  EXPECT_NE(dot.find("label=\"layers.3\""), std::string::npos);
  EXPECT_EQ(dot.find("cluster1"), std::string::npos) << "one cluster for both";
  EXPECT_NE(dot.find("op1 -> op2"), std::string::npos);
}

TEST(VizGraph, DrawsOrSaysWhatIsMissing) {
  const auto svg = dot_to_svg(graph_to_dot(explain_small(0, 3)));
  if (!svg) {
    EXPECT_EQ(svg.status().code(), ErrorCode::unavailable) << svg.status().to_string();
    EXPECT_NE(svg.status().message().find("graphviz"), std::string::npos);
    return;
  }
  EXPECT_NE(svg->find("<svg"), std::string::npos);
  EXPECT_NE(svg->find("rmsnorm"), std::string::npos);
  EXPECT_FALSE(dot_to_svg("not a graph").ok());
}

TEST(VizGraph, WithoutGraphvizSaysSo) {
  const std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
  setenv("PATH", "/nowhere", 1);
  const auto svg = dot_to_svg("digraph {}");
  setenv("PATH", path.c_str(), 1);
  ASSERT_FALSE(svg.ok());
  EXPECT_EQ(svg.status().code(), ErrorCode::unavailable);
}

}  // namespace
}  // namespace ccks::codegen

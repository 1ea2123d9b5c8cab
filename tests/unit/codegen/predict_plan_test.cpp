// predict_plan: the arithmetic of the model, on costs that a person can add up.
#include "codegen/predict_plan.hpp"

#include <gtest/gtest.h>

#include "codegen/explain_plan.hpp"
#include "spec/parse.hpp"

namespace ccks::test {
namespace {

// A product of one row, then another of its result: 4 and 2 tiles of 16 columns on a GPU.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: two
dtype: bf16
dims: {k: 256}
tensors:
  x: {shape: [1, k], kind: input}
  wide: {shape: [64, k], kind: weight}
  narrow: {shape: [32, 64], kind: weight}
  y: {shape: [1, 32], kind: output}
ops:
  - {op: matmul, a: x, b: wide.T, out: h}
  - {op: matmul, a: h, b: narrow.T, out: y}
)yaml";

struct Planned {
  explicit Planned(std::uint32_t workers) : program(spec::parse_text(kSpec, "two.yaml").program) {
    codegen::PlanOptions options;
    options.device = "cuda";
    options.workers = workers;
    image = *codegen::make_plan(program, options);
    view = image->view();
    codegen::CheckReport report;
    codegen::check::Faults faults(report, {}, 5);
    EXPECT_TRUE(codegen::check::check_tables(program, view, faults) && codegen::check::build_model(program, view, {}, faults, model));
  }
  spec::Program program;
  std::shared_ptr<const codegen::PlanImage> image;
  plan::PlanView view;
  codegen::check::Model model;
};

codegen::PredictCosts costs() {
  codegen::PredictCosts c;
  c.source = "a person";
  c.bytes_per_us = 1e9;
  c.hop_us = 1;
  c.next_us = 0.25;
  c.ends_us = 2;
  c.few_rows = {3, 0, 0};
  return c;
}

TEST(PredictPlan, BodiesHopsAndEnds) {
  const Planned planned(4);
  ASSERT_EQ(planned.model.ops[0].tiles, 4);
  ASSERT_EQ(planned.model.ops[1].tiles, 2);
  const codegen::Prediction p = predict_plan(planned.model, costs(), 4);
  // One tile a worker; the second op waits for all of the first, on other workers too.
  EXPECT_DOUBLE_EQ(p.ops[0].begin_us, 0.25);
  EXPECT_DOUBLE_EQ(p.ops[0].end_us, 3.25);
  EXPECT_DOUBLE_EQ(p.ops[1].begin_us, 4.25);
  EXPECT_DOUBLE_EQ(p.run_us, 4.25 + 3 + 2);
  EXPECT_DOUBLE_EQ(p.busy_us, (4 * 3.0 + 2 * 3.0) / 4);
  codegen::PredictCosts c = costs();
  c.spread = 0.5;
  EXPECT_DOUBLE_EQ(predict_plan(planned.model, c, 4).ops[1].begin_us, 4.25 + 1.5) << "the last of the first op";
}

TEST(PredictPlan, FewerWorkersTakeTurns) {
  const Planned planned(4);
  const codegen::Prediction p = predict_plan(planned.model, costs(), 1);
  // On one worker nothing hops, and every tile is behind the one before.
  EXPECT_DOUBLE_EQ(p.run_us, 6 * (3 + 0.25) + 2);
}

TEST(PredictPlan, BytesAtTheRateOfAWorkerOrOfAll) {
  const Planned planned(4);
  codegen::PredictCosts c = costs();
  const auto& op = *planned.model.ops[0].desc;
  const double bytes = static_cast<double>(planned.model.values[op.bytes_read] + planned.model.values[op.bytes_written]) / 4;
  c.few_rows = {3, bytes / 2, 0};
  EXPECT_DOUBLE_EQ(predict_plan(planned.model, c, 4).ops[0].body_us, 3 + 2);
  c.bytes_per_us = bytes * 4 / 10;  // all four at once
  EXPECT_DOUBLE_EQ(predict_plan(planned.model, c, 4).ops[0].body_us, 10);
}

TEST(PredictPlan, NothingIsSaidOfAGpuThatWasNotMeasured) {
  const Planned planned(132);
  for (const char* name : {"h200", "a100"}) {
    const auto e = codegen::explain_plan(planned.program, *planned.image, {}, codegen::gpu_figures(name).value());
    ASSERT_TRUE(e.ok());
    EXPECT_EQ(e->predicted_us > 0, std::string(name) == "h200");
    EXPECT_EQ(codegen::explanation_to_text(*e).find("prediction for") != std::string::npos, std::string(name) == "h200");
  }
}

}  // namespace
}  // namespace ccks::test

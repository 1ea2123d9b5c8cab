// predict_plan: the arithmetic of the model, on costs that a person can add up.
#include "codegen/predict_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "codegen/explain_plan.hpp"
#include "codegen/plan_rewrite.hpp"
#include "codegen/predict_bodies.hpp"
#include "codegen/predict_relay.hpp"
#include "spec/parse.hpp"
#include "tests/paths.hpp"

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
  explicit Planned(std::uint32_t workers, const char* text = kSpec) : Planned(workers, spec::parse_text(text, "two.yaml").program, {}) {}
  Planned(std::uint32_t workers, const spec::Program& given, const std::map<std::string, std::int64_t>& symbols) {
    codegen::PlanOptions options;
    options.device = "cuda";
    options.workers = workers;
    program = codegen::rewrite_program(given, options);
    image = *codegen::make_plan(program, options);
    view = image->view();
    std::vector<std::int64_t> values;
    for (const plan::SymbolDesc& symbol : view.symbols) values.push_back(symbols.at(symbol.name));
    codegen::CheckReport report;
    codegen::check::Faults faults(report, {}, 5);
    EXPECT_TRUE(codegen::check::check_tables(program, view, faults) && codegen::check::build_model(program, view, values, faults, model));
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

// ---- relays -----------------------------------------------------------------------------------------------------------------

constexpr const char* kChain = R"yaml(
ccks: 1
program: chain
dtype: bf16
dims: {k: 512}
tensors:
  x: {shape: [1, k], kind: input}
  a: {shape: [k, k], kind: weight}
  b: {shape: [k, k], kind: weight}
  c: {shape: [k, k], kind: weight}
  d: {shape: [k, k], kind: weight}
  y: {shape: [1, k], kind: output}
ops:
  - {op: matmul, a: x, b: a.T, out: h}
  - {op: matmul, a: h, b: b.T, out: i}
  - {op: matmul, a: i, b: c.T, out: j}
  - {op: matmul, a: j, b: d.T, out: y}
)yaml";

codegen::StepCost step_cost() {
  codegen::StepCost c;
  c.piece_bytes = 16384;
  c.stages = 2;
  c.piece_us = 1;
  c.fixed_us = 2;
  c.hop_us = 5;
  c.begin_us = 3;
  return c;
}

TEST(PredictRelay, PiecesComeAsMemoryBringsThemAndStagesHaveRoom) {
  codegen::StepCost cost = step_cost();
  codegen::PieceStream slow(cost, 16384 / 4.0);  // a piece in 4 us
  EXPECT_DOUBLE_EQ(slow.multiply(0, 3 * 16384), 3 * 4 + 1);
  // Two came meanwhile, and the third only once the first of these had been multiplied.
  EXPECT_DOUBLE_EQ(slow.multiply(100, 3 * 16384), 101 + 4 + 1);
  cost.ahead = 1;
  codegen::PieceStream ahead(cost, 16384 / 4.0);
  EXPECT_DOUBLE_EQ(ahead.multiply(100, 3 * 16384), 103) << "the third waits in the L2";
  cost.latency_us = 5;
  codegen::PieceStream far(cost, 16384 / 4.0);
  EXPECT_DOUBLE_EQ(far.multiply(100, 3 * 16384), 101 + 5 + 1);
}

TEST(PredictRelay, FromRowToRow) {
  const Planned planned(4, kChain);
  codegen::PredictCosts c = costs();
  c.step = step_cost();
  const codegen::Prediction p = predict_plan(planned.model, c, 4);
  const auto tiles = static_cast<double>(planned.model.ops[0].tiles);
  const auto pieces = static_cast<int>((512 * 512 * 2 / tiles + 16383) / 16384);  // of a tile, with its row
  const int of_worker = static_cast<int>(tiles) / 4;
  EXPECT_NEAR(p.ops[1].begin_us - p.ops[0].end_us, 5, 1e-9);
  EXPECT_NEAR(p.ops[3].begin_us - p.ops[2].end_us, 5, 1e-9);
  EXPECT_GE(p.ops[1].end_us - p.ops[1].begin_us, of_worker * (2 + pieces) - 1e-6);
}

TEST(PredictRelay, ThreeProductsAreNoRelay) {
  std::string text = kChain;
  text.replace(text.find("  - {op: matmul, a: j"), std::string::npos, "  - {op: map, expr: j * 2.0, out: y}\n");
  const Planned planned(4, text.c_str());
  const std::vector<bool> steps = codegen::find_steps(planned.model);
  EXPECT_EQ(std::count(steps.begin(), steps.end(), true), 0);
  const Planned four(4, kChain);
  const std::vector<bool> all = codegen::find_steps(four.model);
  EXPECT_EQ(std::count(all.begin(), all.end(), true), 4);
}

// A step of a Llama of 1B: what an H200 took at 365756a, whose workers multiply a piece in 0.27 us and ask for none ahead, at bd37f93, at 86bc0f6 and with eleven stages, and an H100, which
// reads 3.03 TB/s, at 365756a and at 51becb5 (bench/README.md, 2026-11-27).
TEST(PredictRelay, IsWithinTenPercentOfWhatWasMeasured) {
  struct Case {
    double bytes_per_us, piece_us, fixed_us;
    int stages, ahead;
    std::int64_t pos;
    double measured_us;
  };
  for (const Case& c : {Case{4.67e6, 0.27, 1.1, 9, 0, 64, 731}, Case{4.67e6, 0.175, 1.3, 9, 12, 64, 697}, Case{4.67e6, 0.175, 1.3, 9, 12, 512, 725}, Case{4.67e6, 0.175, 1.3, 9, 12, 64, 672},
                        Case{4.67e6, 0.175, 1.3, 9, 12, 512, 702}, Case{4.67e6, 0.175, 1.3, 11, 12, 64, 658}, Case{3.03e6, 0.27, 1.1, 9, 0, 64, 922}, Case{3.03e6, 0.27, 1.1, 9, 0, 512, 969},
                        Case{3.03e6, 0.175, 1.2, 9, 12, 64, 910}, Case{3.03e6, 0.175, 1.2, 9, 12, 512, 961}, Case{3.03e6, 0.175, 1.2, 9, 0, 64, 915}}) {
    const spec::Program program = spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/llama.yaml", {}).program;
    const Planned planned(132, program, {{"n", 1}, {"pos", c.pos}});
    codegen::PredictCosts costs = codegen::predict_costs("h200");
    costs.bytes_per_us = c.bytes_per_us;
    costs.step.piece_us = c.piece_us;
    costs.step.fixed_us = c.fixed_us;
    costs.step.stages = c.stages;
    costs.step.ahead = c.ahead;
    EXPECT_NEAR(predict_plan(planned.model, costs, 132).run_us / c.measured_us, 1, 0.1) << c.measured_us << " us at " << c.pos;
  }
}

// The same of several rows, an H200 (include/ccks/worker/README.md, 2026-11-28).
TEST(PredictRelay, IsWithinTenPercentOfWhatWasMeasuredOfSeveralRows) {
  for (const auto& [rows, measured_us] : {std::pair<std::int64_t, double>{2, 706}, {3, 752}, {4, 799}, {8, 1046}}) {
    const spec::Program program = spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/llama_batch.yaml", {.constants = {{"batch", rows}}}).program;
    const Planned planned(132, program, {{"pos", 64}});
    EXPECT_NEAR(predict_plan(planned.model, codegen::predict_costs("h200"), 132).run_us / measured_us, 1, 0.1) << rows << " rows";
  }
}

// A layer of experts of few tokens, which begins the run: what an H200 took of one and eight at 6a9f6e3, of two and four at 3f05f2f; of nine there is no relay.
TEST(PredictRelay, IsWithinTenPercentOfWhatWasMeasuredOfExperts) {
  const auto steps_of = [](const Planned& planned) {
    const std::vector<bool> steps = codegen::find_steps(planned.model);
    return std::count(steps.begin(), steps.end(), true);
  };
  const auto planned_of = [](std::int64_t tokens) {
    return Planned(132, spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/moe_layer.yaml", {.constants = {{"t", tokens}}}).program, {{"t", tokens}});
  };
  for (const auto& [tokens, us] : std::vector<std::pair<std::int64_t, double>>{{1, 46.3}, {2, 64.5}, {4, 90.1}, {8, 130.4}}) {
    const Planned planned = planned_of(tokens);
    EXPECT_NEAR(predict_plan(planned.model, codegen::predict_costs("h200"), 132).run_us / us, 1, 0.1) << tokens << " tokens";
    EXPECT_EQ(steps_of(planned), 6) << "but for gate, whose product is up's twin";
  }
  EXPECT_EQ(steps_of(planned_of(9)), 0);
}

// ---- tiles of many rows -------------------------------------------------------------------------------------------------------

// What an H200 took (bench/README.md, 2026-12-01).
TEST(PredictGroups, LayersOfExpertsAreWithinTenPercentOfWhatWasMeasured) {
  for (const auto& [tokens, us] : std::vector<std::pair<std::int64_t, double>>{{64, 320.5}, {512, 407.1}, {2048, 625.4}}) {
    const Planned planned(132, spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/moe_layer.yaml", {.constants = {{"t", tokens}}}).program, {{"t", tokens}});
    EXPECT_NEAR(predict_plan(planned.model, codegen::predict_costs("h200"), 132).run_us / us, 1, 0.1) << tokens << " tokens";
  }
}

// The same of an encoder's layer; how long each sequence is a plan does not know, so attention counts as if all were as long as they may be.
TEST(PredictGroups, AnEncoderIsWithinAFifthOfWhatWasMeasured) {
  struct Case {
    std::int64_t sequences, rows;
    double us;
  };
  for (const Case& c : {Case{32, 1'446, 69.0}, {128, 5'364, 141.0}, {32, 6'403, 168.8}, {128, 24'006, 514.0}, {32, 11'905, 296.7}, {128, 44'055, 1'000.9}}) {
    const std::map<std::string, std::int64_t> dims{{"sequences", c.sequences}, {"rows", c.rows}};
    const Planned planned(132, spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/ragged_encoder.yaml", {.constants = {dims.begin(), dims.end()}}).program, dims);
    EXPECT_NEAR(predict_plan(planned.model, codegen::predict_costs("h200"), 132).run_us / c.us, 1, 0.2) << c.rows << " rows";
  }
}

// Products of n rows, the second by what the first makes.
Planned rows_planned(std::uint32_t workers, std::int64_t typical, std::int64_t n) {
  const std::string text = "ccks: 1\nprogram: p\ndtype: bf16\ndims: {n: {range: [1, 4096], default: " + std::to_string(typical) + R"(}}
tensors:
  x: {shape: [n, 512], kind: input}
  w: {shape: [512, 512], kind: weight}
  v: {shape: [512, 512], kind: weight}
  y: {shape: [n, 512], kind: output}
ops:
  - {op: matmul, a: x, b: w.T, out: h}
  - {op: matmul, a: h, b: v.T, out: y}
)";
  return {workers, spec::parse_text(text, "p.yaml").program, {{"n", n}}};
}

TEST(PredictGroups, ATileOfAPlanForManyRowsMayHaveFew) {
  const codegen::PredictCosts costs = codegen::predict_costs("h200");
  const auto body_us = [&](std::int64_t n) { return predict_plan(rows_planned(132, 1446, n).model, costs, 132).ops[0].body_us; };
  EXPECT_DOUBLE_EQ(body_us(1446), costs.groups.fixed_us + 64 * costs.groups.column_us + 8 * costs.groups.step_us[0]);
  EXPECT_DOUBLE_EQ(body_us(64), costs.groups.narrow_fixed_us + 8 * costs.groups.narrow_us);
}

TEST(PredictGroups, TilesWaitForTheirRowsAlone) {
  const Planned planned = rows_planned(4, 700, 640);  // five tiles of 128 rows and 512 columns at most, in two or more turns
  const codegen::Prediction p = predict_plan(planned.model, codegen::predict_costs("h200"), 4);
  ASSERT_EQ(planned.model.ops[0].grid[2], 5);
  ASSERT_GT(planned.model.ops[0].grid[3], 1);
  EXPECT_LT(p.ops[1].begin_us, p.ops[0].end_us) << "rows that are there are gone on with";
}

TEST(PredictGroups, ExpertsWithoutRowsHaveNoTiles) {
  const auto there = [](std::int64_t tokens) {
    const Planned planned(132, spec::parse_file(std::string(CCKS_SOURCE_DIR) + "/spec/examples/moe_layer.yaml", {.constants = {{"t", tokens}}}).program, {{"t", tokens}});
    const auto& ops = planned.model.ops;
    const auto op = static_cast<std::size_t>(std::find_if(ops.begin(), ops.end(), [](const auto& o) { return o.desc->kind == wire::OpCode::expert_matmul && o.exists(); }) - ops.begin());
    return std::pair(codegen::tiles_there(planned.model, op) / ops[op].grid[3], ops[op].grid[2]);
  };
  EXPECT_EQ(there(16), std::pair(std::int64_t{82}, std::int64_t{128})) << "128 pairs, some of whose experts are the same";
  EXPECT_EQ(there(2048), std::pair(std::int64_t{160}, std::int64_t{191})) << "all experts, and half a tile more for each 256 pairs";
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

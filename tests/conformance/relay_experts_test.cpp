// Relays by experts (wire/relay.hpp): layers whose weights a route names, run from row to row where there are few rows. What they give beside the reference interpreter. Only GPUs have
// them; other devices, and runs of more rows, run the same programs without.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/support/residency.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// A layer between two ops that are none of its relay. What experts make is as large as what it is added to, so that it counts.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: relay_experts
dtype: bf16
dims: {t: {range: [1, 24], default: @ROWS@}, experts: @EXPERTS@, top: @TOP@, d: @D@, ffn: @FFN@}
tensors:
  x0: {shape: [t, d], kind: input}
  norm: {shape: [d], kind: weight, init: ones}
  router: {shape: [experts, d], kind: weight}
  w_gate: {shape: [experts, ffn, d], kind: weight}
  w_up: {shape: [experts, ffn, d], kind: weight}
  w_down: {shape: [experts, d, ffn], kind: weight, init: {normal: 0.5}}
  y: {shape: [t, d], kind: output}
ops:
  - {op: map, expr: x0 * 1.0, out: x}
  - {op: rmsnorm, x: x, weight: norm, eps: 1e-6, out: h}
  - {op: matmul, a: h, b: router.T, dtype: f32, out: logits}
  - {op: route, logits: logits, k: top, softmax: @SOFTMAX@, renormalize: true, out: rt}
  - {op: expert_matmul, x: h, route: rt, b: w_gate, transpose_b: true, input: tokens, epilogue: "@ACT@(acc)", out: gate}
  - {op: expert_matmul, x: h, route: rt, b: w_up, transpose_b: true, input: tokens, epilogue: acc * gate, out: u}
  - {op: expert_matmul, x: u, route: rt, b: w_down, transpose_b: true, input: rows, out: z}
  - {op: combine, x: z, route: rt, @ADDS@out: s}
  - {op: map, expr: s * 1.0, out: y}
)yaml";

struct Shape {
  const char* name;
  int experts, top, d, ffn;
  const char *act, *softmax;
  bool adds = true;
  int rows = 1;  // that workers are made for
};
constexpr Shape kShapes[] = {
    {"narrow", 16, 3, 512, 256, "silu", "all"},
    {"all_chosen", 8, 8, 512, 768, "silu", "chosen", false},
    {"wide", 8, 2, 768, 1280, "relu", "chosen"},
    {"many_to_a_stage", 20, 4, 1024, 192, "gelu_tanh", "chosen"},
    {"rows_of_two_passes", 8, 1, 2304, 512, "silu", "chosen"},
    {"two_rows", 16, 3, 512, 256, "silu", "all", true, 2},
    {"three_rows_of_two_passes", 8, 2, 2304, 1280, "silu", "chosen", true, 3},
    {"five_rows_all_chosen", 8, 8, 512, 768, "silu", "chosen", false, 5},
    {"eight_rows", 40, 4, 2048, 192, "gelu_tanh", "chosen", true, 8},
    {"many_experts", 200, 12, 256, 192, "silu", "chosen", true, 4},
    {"many_experts_of_a_row", 256, 16, 256, 192, "silu", "all"},
};

std::string spec_of(const Shape& shape) {
  std::string text = kSpec;
  const auto put = [&](const std::string& name, const std::string& value) {
    for (std::size_t at; (at = text.find(name)) != std::string::npos;) text.replace(at, name.size(), value);
  };
  put("@EXPERTS@", std::to_string(shape.experts));
  put("@TOP@", std::to_string(shape.top));
  put("@ROWS@", std::to_string(shape.rows));
  put("@D@", std::to_string(shape.d));
  put("@FFN@", std::to_string(shape.ffn));
  put("@ACT@", shape.act);
  put("@SOFTMAX@", shape.softmax);
  put("@ADDS@", shape.adds ? "epilogue: x + acc, " : "");
  return text;
}

using Param = std::tuple<std::string, Shape, std::string>;  // device, shape, way

class RelayExperts : public testing::TestWithParam<Param> {};

TEST_P(RelayExperts, MatchTheReference) {
  const auto& [device, shape, way] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(shape), device, device == "cuda" ? "jit" : "generic");
  set_way(options, way);
  for (const std::int64_t tokens : {shape.rows, shape.rows + 4}) {
    if (tokens != shape.rows && short_sweeps()) continue;
    options.dims = {{"t", tokens}};
    if (!expect_verified(options, "t = " + std::to_string(tokens))) return;
  }
}

std::vector<Param> params() {
  std::vector<Param> out = {{"host", kShapes[0], "static"}, {"cuda", kShapes[0], "lookahead"}};
  for (const Shape& shape : kShapes) out.emplace_back("cuda", shape, "static");
  return out;
}

std::string name_of(const testing::TestParamInfo<Param>& p) {
  const auto& [device, shape, way] = p.param;
  return device + "_" + shape.name + "_" + way;
}

INSTANTIATE_TEST_SUITE_P(All, RelayExperts, testing::ValuesIn(params()), name_of);

class RelayExpertsResidency : public ResidencyTest, public testing::WithParamInterface<Shape> {};

// Rows of each run go to other experts; workers leave wherever they stand.
TEST_P(RelayExpertsResidency, HandoffsInTheMiddleChangeNoBit) {
  const Shape& shape = GetParam();
  open(spec_of(shape));
  if (!engine_) return;
  const auto step = [&](std::uint32_t seed) {
    return run<std::uint16_t>({{"t", shape.rows}}, "x0", values(static_cast<std::size_t>(shape.rows * shape.d), seed), "y");
  };
  std::vector<std::vector<std::uint16_t>> want;
  for (std::uint32_t seed = 0; seed < 4; ++seed) want.push_back(step(77 + seed));
  EXPECT_NE(want[0], want[1]);
  std::uint64_t runs = 0;
  hand_off_while([&] {
    for (std::uint32_t seed = 0; seed < 4; ++seed, ++runs) EXPECT_EQ(step(77 + seed), want[seed]) << "run " << runs;
  });
  EXPECT_GT(runs, 50u);
}

INSTANTIATE_TEST_SUITE_P(All, RelayExpertsResidency, testing::Values(kShapes[0], kShapes[8]), [](const testing::TestParamInfo<Shape>& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace ccks::test

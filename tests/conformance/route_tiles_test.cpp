// Routes of many tokens, whose tiles each place their own where a plan is made for a GPU: on a GPU, on the simulated one, and on the host's workers with such a plan. The first tile alone
// publishes how many rows experts have, whoever has the others, and whichever ends first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ccks/engine.hpp"
#include "tests/support/residency.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

constexpr const char* kSpec = R"yaml(
ccks: 1
program: route_tiles
dtype: f32
dims: {t: {range: [1, 600], default: 300}, e: 16, d: 32, f: 48}
tensors:
  x: {shape: [t, d], kind: input}
  router: {shape: [e, d], kind: weight}
  w1: {shape: [e, f, d], kind: weight}
  w2: {shape: [e, d, f], kind: weight}
  y: {shape: [t, d], kind: output}
ops:
  - {op: matmul, a: x, b: router.T, out: logits}
  - {op: route, logits: logits, k: 3, softmax: all, renormalize: true, out: r}
  - {op: expert_matmul, x: x, route: r, b: w1, transpose_b: true, input: tokens, epilogue: relu(acc), out: h}
  - {op: expert_matmul, x: h, route: r, b: w2, transpose_b: true, input: rows, out: z}
  - {op: combine, x: z, route: r, epilogue: x + acc, out: y}
)yaml";

using Param = std::tuple<const char*, const char*, const char*>;  // device, arm, code

class RouteTiles : public testing::TestWithParam<Param> {};

TEST_P(RouteTiles, MatchTheReference) {
  const auto& [device, arm, code] = GetParam();
  if (std::strcmp(device, "sim") == 0 && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  const TemporaryFolder folder;
  run::Options options = options_of(folder, kSpec, device, code);
  options.arm = arm;
  options.iterations = 4;
  for (const std::int64_t t : {300, 600, 9, 1}) {
    options.dims = {{"t", t}};
    if (!expect_verified(options, "t = " + std::to_string(t))) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RouteTiles,
                         testing::Values(Param{"sim", "copilot", "generic"}, Param{"cuda", "copilot", "generic"}, Param{"cuda", "copilot", "jit"}, Param{"cuda", "static", "jit"},
                                         Param{"cuda", "gpu_queue", "jit"}, Param{"cuda", "stream", "jit"}, Param{"cuda", "graph_pdl", "jit"}),
                         [](const testing::TestParamInfo<Param>& p) { return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param); });

// ---- experts with several tiles a worker, which it runs in turn (ccks/worker/body_turns.cuh) ----------------------------

std::string many_tiles() {
  std::string spec = kSpec;
  const std::pair<const char*, const char*> changes[] = {{"dtype: f32", "dtype: bf16"}, {"e: 16, d: 32, f: 48", "e: 64, d: 256, f: 1024"}, {"b: router.T, ", "b: router.T, dtype: f32, "}};
  for (const auto& [from, to] : changes) spec.replace(spec.find(from), std::strlen(from), to);
  return spec;
}

class ExpertTilesInTurn : public testing::TestWithParam<const char*> {};

TEST_P(ExpertTilesInTurn, MatchTheReference) {
  const TemporaryFolder folder;
  run::Options options = options_of(folder, many_tiles(), "cuda", "jit");
  options.arm = GetParam();
  options.iterations = 4;
  for (const std::int64_t t : {300, 40}) {
    options.dims = {{"t", t}};
    if (!expect_verified(options, "t = " + std::to_string(t))) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertTilesInTurn, testing::Values("copilot", "static", "gpu_queue", "graph"), [](const auto& p) { return std::string(p.param); });

// Rows of each run go to other experts; workers leave wherever they stand.
TEST_F(ResidencyTest, TilesOfExpertsInTurnAndHandoffsChangeNoBit) {
  open(many_tiles());
  if (!engine_) return;
  const auto step = [&](std::uint32_t seed) { return run<std::uint16_t>({{"t", 300}}, "x", values(std::size_t{300} * 256, seed), "y"); };
  std::vector<std::vector<std::uint16_t>> want;
  for (std::uint32_t seed = 0; seed < 3; ++seed) want.push_back(step(77 + seed));
  EXPECT_NE(want[0], want[1]);
  std::uint64_t runs = 0;
  hand_off_while([&] {
    for (std::uint32_t seed = 0; seed < 3; ++seed, ++runs) EXPECT_EQ(step(77 + seed), want[seed]) << "run " << runs;
  });
  EXPECT_GT(runs, 50u);
}

// ---- a GPU's plan on the host's workers ---------------------------------------------------------------------------------

using Arm = std::tuple<const char*, const char*, const char*>;  // arm, policy, spine

std::vector<float> values_of(std::size_t count, std::uint32_t seed) {
  std::vector<float> values(count);
  for (float& v : values) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / 16777216.0f - 0.5f;
  }
  return values;
}

Result<Engine> open_engine(const char* planned_for, const Arm& arm) {
  SpecOptions spec;
  spec.device = planned_for;
  spec.workers_hint = 132;
  Result<Program> program = Program::from_spec_text(kSpec, "route_tiles.yaml", spec);
  if (!program.ok()) return program.status();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions options;
  options.arm = std::get<0>(arm);
  options.policy = std::get<1>(arm);
  options.spine = std::get<2>(arm);
  Result<Engine> engine = Engine::create(open_device(device).value(), *program, options);
  if (!engine.ok()) return engine;
  const std::pair<const char*, std::size_t> weights[] = {{"router", 16 * 32}, {"w1", 16 * 48 * 32}, {"w2", 16 * 48 * 32}};
  for (const auto& [name, count] : weights) {
    const std::vector<float> values = values_of(count, 7);
    CCKS_RETURN_IF_ERROR(engine->bind_weight(name, std::as_bytes(std::span(values))));
  }
  CCKS_RETURN_IF_ERROR(engine->start());
  return engine;
}

struct Outcome {
  std::vector<float> y;
  std::vector<double> counts;
};
Outcome run_once(Engine& engine, std::int64_t t) {
  const std::vector<float> x = values_of(static_cast<std::size_t>(t) * 32, static_cast<std::uint32_t>(t));
  RunRequest request;
  request.dims = {{"t", t}};
  request.inputs.push_back({"x", std::as_bytes(std::span(x))});
  Result<ccks::Run> run = engine.submit(std::move(request));
  EXPECT_TRUE(run.ok() && run->wait().ok());
  Outcome outcome{std::vector<float>(x.size()), run->report("route.r.count").value()};
  EXPECT_TRUE(run->read_output("y", std::as_writable_bytes(std::span(outcome.y))).ok());
  return outcome;
}

class RouteTilesOnHost : public testing::TestWithParam<Arm> {};

TEST_P(RouteTilesOnHost, GiveWhatOneTileGives) {
  Result<Engine> whole = open_engine("host", {"copilot", "lookahead", "auto"}), split = open_engine("cuda", GetParam());
  ASSERT_TRUE(whole.ok() && split.ok()) << whole.status().message() << split.status().message();
  const auto has_tiles = [](const Engine& engine) {
    const plan::PlanView& plan = engine.plan();
    return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const plan::OpDesc& op) { return op.kind == wire::OpCode::route && plan.dims[op.grid[2]].op != plan::DimOp::constant; });
  };
  ASSERT_TRUE(has_tiles(*split));
  ASSERT_FALSE(has_tiles(*whole));
  for (const std::int64_t t : {300, 600, 9, 1, 300}) {
    const Outcome want = run_once(*whole, t), got = run_once(*split, t);
    EXPECT_EQ(want.counts, got.counts) << "t = " << t;
    ASSERT_EQ(want.y.size(), got.y.size());
    for (std::size_t i = 0; i < want.y.size(); ++i) ASSERT_NEAR(want.y[i], got.y[i], 1e-5) << "t = " << t << ", element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RouteTilesOnHost,
                         testing::Values(Arm{"copilot", "lookahead", "auto"}, Arm{"copilot", "lookahead", "tiles"}, Arm{"static", "static", "auto"}, Arm{"copilot", "reactive", "auto"},
                                         Arm{"gpu_queue", "lookahead", "auto"}, Arm{"stream", "lookahead", "auto"}),
                         [](const auto& p) { return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param); });

}  // namespace
}  // namespace ccks::test

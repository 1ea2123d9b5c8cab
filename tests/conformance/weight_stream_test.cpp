// Products of few rows whose weights come to a GPU's workers through a ring in shared memory: what they give, in every way to run,
// and that workers which leave with a ring half full lose nothing. Other devices run the same program without a ring.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "ccks/engine.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/seeded_halves.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// Depths that are no multiple of a stage's, tiles of a few columns and of many, a product in between that does not stream (too
// shallow), two products that one op makes.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: weight_stream
dtype: @DTYPE@
dims: {n: {range: [1, 12], default: 1}, d: 1032, h: 4200, few: 72}
tensors:
  x: {shape: [n, d], kind: input}
  up: {shape: [h, d], kind: weight}
  gate: {shape: [h, d], kind: weight}
  down: {shape: [d, h], kind: weight}
  narrow: {shape: [few, d], kind: weight}
  wide: {shape: [h, few], kind: weight}
  y: {shape: [n, h], kind: output}
  z: {shape: [n, few], kind: output}
ops:
  - {op: matmul, a: x, b: up.T, epilogue: relu(acc) * 0.03, out: h1}
  - {op: matmul, a: h1, b: down.T, epilogue: acc * 0.03 + x, out: x1}
  - {op: matmul, a: x1, b: gate.T, epilogue: sigmoid(acc), out: g2}
  - {op: matmul, a: x1, b: up.T, epilogue: relu(acc) * 0.03 * g2, out: h2}
  - {op: matmul, a: h2, b: down.T, epilogue: acc * 0.03 + x1, out: x2}
  - {op: matmul, a: x2, b: narrow.T, epilogue: acc * 0.03, out: z}
  - {op: matmul, a: z, b: wide.T, epilogue: acc * 0.03 + h2, out: y}
)yaml";

std::string spec_of(const char* dtype) { return with_dtype(kSpec, dtype); }

using Param = std::tuple<std::string, std::string, std::string, std::string>;  // device, code, dtype, way

class WeightStream : public testing::TestWithParam<Param> {};

TEST_P(WeightStream, MatchesTheReference) {
  const auto& [device, code, dtype, way] = GetParam();
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(dtype.c_str()), device, code);
  set_way(options, way);
  for (const std::int64_t n : {1, 3, 8, 9, 12}) {
    if (n != 3 && n != 9 && short_sweeps()) continue;
    options.dims = {{"n", n}};
    if (!expect_verified(options, "n = " + std::to_string(n))) return;
  }
}

std::vector<Param> params() {
  std::vector<Param> out = {{"host", "generic", "bf16", "static"}};
  for (const char* dtype : {"bf16", "f16"})
    for (const char* code : {"generic", "jit"}) out.emplace_back("cuda", code, dtype, "static");
  for (const std::string& way : ways_and({"gpu_queue", "graph"}))
    if (way != "static") out.emplace_back("cuda", "generic", "bf16", way);
  return out;
}

std::string name_of(const testing::TestParamInfo<Param>& p) {
  const auto& [device, code, dtype, way] = p.param;
  return device + "_" + code + "_" + dtype + "_" + way;
}

INSTANTIATE_TEST_SUITE_P(All, WeightStream, testing::ValuesIn(params()), name_of);

// ---- workers that leave -------------------------------------------------------------------------------------------------

constexpr std::uint32_t kRuns = 6;  // whose handles are held until all have ended

Result<Engine> open_engine(const char* kind, std::chrono::nanoseconds idle_limit) {
  Result<std::unique_ptr<Device>> device = open_device({.kind = kind});
  if (!device.ok()) return device.status();
  SpecOptions spec;
  spec.device = kind;
  spec.workers_hint = (*device)->info().workers;
  Result<Program> program = Program::from_spec_text(spec_of("bf16"), "weight_stream.yaml", spec);
  if (!program.ok()) return program.status();
  EngineOptions options;
  options.idle_limit = idle_limit;
  options.slots = kRuns;
  Result<Engine> engine = Engine::create(std::move(*device), std::move(*program), options);
  if (!engine.ok()) return engine;
  std::uint32_t seed = 0;
  for (const auto& [name, count] : std::vector<std::pair<const char*, std::size_t>>{
           {"up", 4200 * 1032}, {"gate", 4200 * 1032}, {"down", 4200 * 1032}, {"narrow", 72 * 1032}, {"wide", 4200 * 72}}) {
    const std::vector<std::uint16_t> weight = seeded_halves(count, ++seed);
    if (const Status bound = engine->bind_weight(name, std::as_bytes(std::span(weight))); !bound.ok()) return bound;
  }
  if (const Status started = engine->start(); !started.ok()) return started;
  return engine;
}

/// The outputs of runs that are in flight together.
std::vector<std::vector<std::uint16_t>> run_all(Engine& engine, std::uint32_t count) {
  std::vector<std::vector<std::uint16_t>> inputs, out;
  std::vector<ccks::Run> runs;
  for (std::uint32_t i = 0; i < count; ++i) {
    inputs.push_back(seeded_halves((1 + i % 3) * 1032, 100 + i));
    RunRequest request;
    request.dims = {{"n", 1 + i % 3}};
    request.inputs.push_back({"x", std::as_bytes(std::span(inputs.back()))});
    Result<ccks::Run> run = engine.submit(std::move(request));
    EXPECT_TRUE(run.ok()) << run.status().to_string();
    if (run.ok()) runs.push_back(std::move(*run));
  }
  for (ccks::Run& run : runs) {
    const Status done = run.wait_for(std::chrono::seconds(60));
    EXPECT_TRUE(done.ok()) << done.to_string();
    out.emplace_back(run.tensor_bytes("y").value() / 2);
    EXPECT_TRUE(run.read_output("y", std::as_writable_bytes(std::span(out.back()))).ok());
  }
  return out;
}

class WeightStreamResidency : public testing::TestWithParam<const char*> {};

TEST_P(WeightStreamResidency, WorkersThatLeaveAllTheTimeGiveTheSame) {
  std::vector<std::vector<std::uint16_t>> want;
  {
    Result<Engine> steady = open_engine(GetParam(), std::chrono::seconds(5));
    if (steady.status().code() == ErrorCode::unavailable) GTEST_SKIP() << steady.status().to_string();
    ASSERT_TRUE(steady.ok()) << steady.status().to_string();
    want = run_all(*steady, kRuns);
  }
  Result<Engine> restless = open_engine(GetParam(), std::chrono::microseconds(200));
  ASSERT_TRUE(restless.ok()) << restless.status().to_string();
  const int rounds = sanitized() ? 3 : 20;
  for (int round = 0; round < rounds; ++round) ASSERT_EQ(run_all(*restless, kRuns), want) << "round " << round;
}

INSTANTIATE_TEST_SUITE_P(All, WeightStreamResidency, testing::Values("host", "cuda"),
                         [](const testing::TestParamInfo<const char*>& p) { return std::string(p.param); });

}  // namespace
}  // namespace ccks::test

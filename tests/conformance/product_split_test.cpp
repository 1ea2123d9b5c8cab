// Products of few columns and a long depth, whose tiles share it where a plan is made for a GPU: on a GPU, on the simulated one, and on the host's workers with such a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ccks/engine.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

// The third product reads what the first makes: both of them are split, and so are both of those that read x.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: product_split
dtype: @DTYPE@
dims: {n: {range: [1, 200], default: 48}, d: 1024, f: 256}
tensors:
  x: {shape: [n, d], kind: input}
  wide: {shape: [d, d], kind: input}
  narrow: {shape: [f, d], kind: input}
  down: {shape: [f, d], kind: input}
  y: {shape: [n, f], kind: output}
  z: {shape: [n, f], kind: output}
ops:
  - {op: matmul, a: x, b: wide.T, epilogue: relu(acc), out: h}
  - {op: matmul, a: x, b: narrow.T, out: y}
  - {op: matmul, a: h, b: down.T, epilogue: acc + y, out: z}
)yaml";

std::string spec_of(const char* dtype) { return with_dtype(kSpec, dtype); }

using Param = std::tuple<const char*, const char*, const char*, const char*>;  // device, arm, code, dtype

class ProductSplit : public testing::TestWithParam<Param> {};

TEST_P(ProductSplit, MatchesTheReference) {
  const auto& [device, arm, code, dtype] = GetParam();
  if (std::strcmp(device, "sim") == 0 && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(dtype), device, code);
  options.arm = arm;
  options.iterations = 4;
  for (const std::int64_t n : {48, 64, 9, 1, 65, 96, 150, 200}) {
    options.dims = {{"n", n}};
    if (!expect_verified(options, "n = " + std::to_string(n))) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, ProductSplit,
                         testing::Values(Param{"sim", "copilot", "generic", "bf16"}, Param{"cuda", "copilot", "generic", "bf16"}, Param{"cuda", "copilot", "jit", "bf16"},
                                         Param{"cuda", "static", "jit", "f16"}, Param{"cuda", "gpu_queue", "jit", "bf16"}, Param{"cuda", "graph_pdl", "jit", "bf16"}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param) + "_" + std::get<3>(p.param);
                         });

// ---- a GPU's plan on the host's workers ---------------------------------------------------------------------------------

Result<Engine> open_engine(const char* planned_for, const char* arm, const char* policy) {
  SpecOptions spec;
  spec.device = planned_for;
  spec.workers_hint = 132;
  Result<Program> program = Program::from_spec_text(spec_of("bf16"), "product_split.yaml", spec);
  if (!program.ok()) return program.status();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions options;
  options.arm = arm;
  options.policy = policy;
  Result<Engine> engine = Engine::create(open_device(device).value(), *program, options);
  if (engine.ok()) CCKS_RETURN_IF_ERROR(engine->start());
  return engine;
}

std::vector<std::uint16_t> run_once(Engine& engine, std::int64_t n) {
  std::vector<std::vector<std::uint16_t>> inputs;
  RunRequest request;
  request.dims = {{"n", n}};
  std::uint32_t seed = 3;
  inputs.reserve(4);
  for (const auto& [name, rows] : {std::pair{"x", n}, std::pair{"wide", std::int64_t{1024}}, std::pair{"narrow", std::int64_t{256}}, std::pair{"down", std::int64_t{256}}}) {
    std::vector<std::uint16_t>& values = inputs.emplace_back(static_cast<std::size_t>(rows) * 1024);
    for (std::uint16_t& v : values) {
      seed = seed * 1664525u + 1013904223u;
      v = static_cast<std::uint16_t>(0x3c00 | (seed >> 31) << 15 | (seed >> 20 & 0x1ff));  // bf16, 0.0078 to 0.12, of either sign
    }
    request.inputs.push_back({name, std::as_bytes(std::span(values))});
  }
  Result<ccks::Run> run = engine.submit(std::move(request));
  EXPECT_TRUE(run.ok() && run->wait().ok());
  std::vector<std::uint16_t> z(static_cast<std::size_t>(n) * 256);
  EXPECT_TRUE(run->read_output("z", std::as_writable_bytes(std::span(z))).ok());
  return z;
}

class ProductSplitOnHost : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(ProductSplitOnHost, GivesWhatOneTileGives) {
  Result<Engine> whole = open_engine("host", "copilot", "lookahead"), split = open_engine("cuda", GetParam().first, GetParam().second);
  ASSERT_TRUE(whole.ok() && split.ok()) << whole.status().message() << split.status().message();
  const auto parts = [](const Engine& engine) {
    return std::count_if(engine.plan().tensors.begin(), engine.plan().tensors.end(), [](const auto& t) { return std::string(t.name).ends_with(".parts"); });
  };
  ASSERT_EQ(parts(*split), 3);
  ASSERT_EQ(parts(*whole), 0);
  for (const std::int64_t n : {48, 64, 5, 65, 96, 150, 200}) EXPECT_EQ(run_once(*whole, n), run_once(*split, n)) << "n = " << n;
}

INSTANTIATE_TEST_SUITE_P(All, ProductSplitOnHost,
                         testing::Values(std::pair{"copilot", "lookahead"}, std::pair{"static", "static"}, std::pair{"copilot", "reactive"},
                                         std::pair{"gpu_queue", "lookahead"}, std::pair{"stream", "lookahead"}),
                         [](const auto& p) { return std::string(p.param.first) + "_" + p.param.second; });

}  // namespace
}  // namespace ccks::test

// attention of few rows over a long context and argmax of long rows, whose tiles share them where a plan is made for a GPU, and ropes
// that share their angles there: on a GPU, on the simulated one, and on the host's workers with such a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ccks/engine.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {
namespace {

constexpr const char* kSpec = R"yaml(
ccks: 1
program: attention_split
dtype: @DTYPE@
dims: {heads: 8, kv: 2, context: 900, n: {range: [1, 40], default: 1}, pos: {range: [0, 859], default: 700}}
tensors:
  q: {shape: [n, heads * 64], kind: input}
  keys: {shape: [context, kv * 64], kind: input}
  values: {shape: [context, kv * 64], kind: input}
  wide: {shape: [3, heads * 128], kind: input}
  wide_keys: {shape: [300, kv * 128], kind: input}
  many: {shape: [2, 1, 96], kind: input}
  many_keys: {shape: [2, 520, 96], kind: input}
  scores: {shape: [1, 20000], dtype: f32, kind: input, init: {integers: [0, 300]}}
  out: {shape: [n, heads * 64], kind: output}
  again: {shape: [n, heads * 64], kind: output}
  wide_out: {shape: [3, heads * 128], kind: output}
  many_out: {shape: [2, 1, 96], kind: output}
  turned: {shape: [n, heads * 64], kind: output}
  turned_again: {shape: [n, heads * 64], kind: output}
  best: {shape: [1], dtype: i32, kind: output}
ops:
  - {op: attention, q: q, k: "keys[0:pos + n, :]", v: "values[0:pos + n, :]", heads: heads, kv_heads: kv, causal: true, out: out}
  - {op: attention, q: out, k: "keys[0:pos + n, :]", v: "values[0:pos + n, :]", heads: heads, kv_heads: kv, out: again}
  - {op: attention, q: wide, k: wide_keys, v: wide_keys, heads: heads, kv_heads: kv, causal: true, out: wide_out}
  - {op: attention, q: many, k: many_keys, v: many_keys, heads: 3, out: many_out}
  - {op: rope, x: q, heads: heads, theta: 10000, position: pos, out: turned}
  - {op: rope, x: turned, heads: heads, theta: 10000, position: pos, out: turned_again}
  - {op: argmax, x: scores, out: best}
)yaml";

std::string spec_of(const char* dtype) { return with_dtype(kSpec, dtype); }

using Param = std::tuple<const char*, const char*, const char*>;  // device, code, dtype

class AttentionSplit : public testing::TestWithParam<Param> {};

TEST_P(AttentionSplit, MatchesTheReference) {
  const auto& [device, code, dtype] = GetParam();
  if (std::strcmp(device, "sim") == 0 && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  const TemporaryFolder folder;
  run::Options options = options_of(folder, spec_of(dtype), device, code);
  for (const auto& [n, pos] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 700}, {1, 0}, {1, 128}, {8, 300}, {9, 400}, {40, 859}}) {
    options.dims = {{"n", n}, {"pos", pos}};
    if (!expect_verified(options, "n = " + std::to_string(n) + ", pos = " + std::to_string(pos))) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionSplit,
                         testing::Values(Param{"sim", "generic", "f32"}, Param{"cuda", "generic", "f32"}, Param{"cuda", "generic", "bf16"},
                                         Param{"cuda", "jit", "f32"}, Param{"cuda", "jit", "bf16"}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param);
                         });

// ---- a GPU's plan on the host's workers ---------------------------------------------------------------------------------

Engine open_engine(const char* planned_for, const char* arm, const char* policy) {
  SpecOptions spec;
  spec.device = planned_for;
  spec.workers_hint = 12;
  Result<Program> program = Program::from_spec_text(spec_of("f32"), "attention_split.yaml", spec);
  EXPECT_TRUE(program.ok()) << program.status().message();
  DeviceOptions device;
  device.kind = "host";
  device.workers = 3;
  EngineOptions options;
  options.arm = arm;
  options.policy = policy;
  Result<Engine> engine = Engine::create(open_device(device).value(), *program, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  EXPECT_TRUE(engine->start().ok());
  return std::move(*engine);
}

std::vector<float> values(std::size_t count, std::uint32_t seed) {
  std::vector<float> out(count);
  for (float& v : out) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return out;
}

std::vector<float> run_once(Engine& engine, std::int64_t n, std::int64_t pos) {
  std::vector<std::vector<float>> inputs;
  RunRequest request;
  request.dims = {{"n", n}, {"pos", pos}};
  const auto give = [&](const char* name, std::size_t count) {
    inputs.push_back(values(count, static_cast<std::uint32_t>(inputs.size() + 1)));
    request.inputs.push_back({name, std::as_bytes(std::span(inputs.back()))});
  };
  inputs.reserve(8);
  give("q", static_cast<std::size_t>(n) * 512);
  give("keys", 900 * 128);
  give("values", 900 * 128);
  give("wide", 3 * 1024);
  give("wide_keys", 300 * 256);
  give("many", 2 * 96);
  give("many_keys", 2 * 520 * 96);
  give("scores", 20000);
  Result<ccks::Run> run = engine.submit(std::move(request));
  EXPECT_TRUE(run.ok() && run->wait().ok());
  std::vector<float> all;
  for (const char* name : {"out", "again", "wide_out", "many_out", "turned", "turned_again"}) {
    std::vector<float> part(run->tensor_bytes(name).value() / sizeof(float));
    EXPECT_TRUE(run->read_output(name, std::as_writable_bytes(std::span(part))).ok());
    all.insert(all.end(), part.begin(), part.end());
  }
  std::int32_t best = -1;
  EXPECT_TRUE(run->read_output("best", std::as_writable_bytes(std::span(&best, 1))).ok());
  all.push_back(static_cast<float>(best));
  return all;
}

class AttentionSplitOnHost : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(AttentionSplitOnHost, GivesWhatOneTileGives) {
  Engine whole = open_engine("host", "copilot", "lookahead"), split = open_engine("cuda", GetParam().first, GetParam().second);
  const auto has = [](const Engine& engine, const char* tensor) {
    return std::any_of(engine.plan().tensors.begin(), engine.plan().tensors.end(), [&](const auto& t) { return std::strcmp(t.name, tensor) == 0; });
  };
  ASSERT_TRUE(has(split, "arrived") && has(split, "rope.angles.0"));
  ASSERT_FALSE(has(whole, "arrived"));
  for (const auto& [n, pos] : std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 700}, {1, 0}, {1, 127}, {1, 128}, {8, 300}, {9, 400}, {1, 859}}) {
    const std::vector<float> want = run_once(whole, n, pos), got = run_once(split, n, pos);
    ASSERT_EQ(want.size(), got.size());
    float worst = 0;
    for (std::size_t i = 0; i < want.size(); ++i) worst = std::max(worst, std::abs(want[i] - got[i]));
    EXPECT_LE(worst, 2e-6f) << "n = " << n << ", pos = " << pos;
  }
}

// A run that was left in the middle must leave no count behind: the next one begins from zero.
TEST_P(AttentionSplitOnHost, CancelledRunsLeaveNothing) {
  Engine whole = open_engine("host", "copilot", "lookahead"), split = open_engine("cuda", GetParam().first, GetParam().second);
  const std::vector<float> want = run_once(whole, 1, 859);
  for (int i = 0; i < 20; ++i) {
    RunRequest request;
    request.dims = {{"n", 1}, {"pos", 859}};
    Result<ccks::Run> run = split.submit(std::move(request));
    ASSERT_TRUE(run.ok());
    run->cancel();
    (void)run->wait();
    const std::vector<float> got = run_once(split, 1, 859);
    for (std::size_t at = 0; at < want.size(); ++at) ASSERT_NEAR(want[at], got[at], 2e-6f);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionSplitOnHost,
                         testing::Values(std::pair{"copilot", "lookahead"}, std::pair{"static", "static"}, std::pair{"copilot", "reactive"},
                                         std::pair{"gpu_queue", "lookahead"}, std::pair{"stream", "lookahead"}),
                         [](const auto& p) { return std::string(p.param.first) + "_" + p.param.second; });

}  // namespace
}  // namespace ccks::test

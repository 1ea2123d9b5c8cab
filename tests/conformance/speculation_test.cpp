// Weights of experts asked for before their router has run (EngineOptions::speculate_bytes): however many of the guesses are wrong, every run gives the same
// bits as one that guesses nothing, and no tile is lost or run twice.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include "ccks/tensor_file.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/verified_run.hpp"
#include "tests/support/ways.hpp"

namespace ccks::test {
namespace {

// Two routers one behind the other, the first of which has twins; experts of several tiles of columns, on a GPU too.
constexpr const char* kSpec = R"yaml(
ccks: 1
program: speculation
dtype: @DTYPE@
dims: {t: {range: [1, 16], default: 3}, experts: 16, d: 64, ffn: 160}
tensors:
  x: {shape: [t, d], kind: input}
  router: {shape: [experts, d], kind: weight}
  second: {shape: [experts, d], kind: weight}
  w_gate: {shape: [experts, ffn, d], kind: weight}
  w_up: {shape: [experts, ffn, d], kind: weight}
  w_down: {shape: [experts, d, ffn], kind: weight}
  y: {shape: [t, d], kind: output}
ops:
  - {op: matmul, a: x, b: router.T, dtype: f32, out: logits}
  - {op: route, logits: logits, k: 2, out: rt}
  - {op: expert_matmul, x: x, route: rt, b: w_gate, transpose_b: true, input: tokens, epilogue: silu(acc), out: gate}
  - {op: expert_matmul, x: x, route: rt, b: w_up, transpose_b: true, input: tokens, epilogue: acc * gate, out: u}
  - {op: expert_matmul, x: u, route: rt, b: w_down, transpose_b: true, input: rows, out: z}
  - {op: combine, x: z, route: rt, out: c}
  - {op: map, expr: x + c, out: h}
  - {op: matmul, a: h, b: second.T, dtype: f32, out: logits}
  - {op: route, logits: logits, k: 3, out: again}
  - {op: expert_matmul, x: h, route: again, b: w_up, transpose_b: true, input: tokens, epilogue: relu(acc), out: u}
  - {op: expert_matmul, x: u, route: again, b: w_down, transpose_b: true, input: rows, out: z}
  - {op: combine, x: z, route: again, out: y}
)yaml";

constexpr std::uint32_t kIterations = 24, kDifferent = 6;
constexpr std::int64_t kTokens = 3, kWidth = 64;

using Param = std::tuple<std::string, std::string, std::string>;  // device, code, way

class Speculation : public testing::TestWithParam<Param> {
 protected:
  static bool on_gpu() { return std::get<0>(GetParam()) == "cuda"; }
  void SetUp() override {
    if (std::get<0>(GetParam()) == "sim" && sanitized()) GTEST_SKIP() << "fibers: not under sanitizers";
  }
  /// Of all iterations; `each`: with inputs of their own.
  std::string bits(double mib, double wrong, bool each) {
    const auto& [device, code, way] = GetParam();
    run::Options options = options_of(folder_, with_dtype(kSpec, on_gpu() ? "bf16" : "f32"), device, code);
    set_way(options, way);
    if (options.arm == "static") options.policy = "static";
    options.dims = {{"t", kTokens}};
    options.iterations = kIterations;
    options.speculate_mib = mib;
    options.wrong_guesses = wrong;
    const std::string path = folder_ / "y.npy";
    if (each) {
      options.in_flight = 3;
      options.inputs_each = {{"x", inputs()}};
      options.outputs_each = {{"y", path}};
    } else {
      options.keep_inputs = device != "sim";
      options.outputs = {{"y", path}};
    }
    outcome_ = {};
    const std::atomic<bool> interrupted{false};
    options.verify = true;
    const run::Failure failure = run_session(options, interrupted, false, outcome_);
    if (failure.exit_code == run::kDeviceError && no_gpu(options, failure)) return {};
    EXPECT_EQ(failure.exit_code, run::kDone) << failure.message;
    EXPECT_TRUE(outcome_.verification.passed) << outcome_.verification.worst;
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
  run::Outcome outcome_;

 private:
  std::string inputs() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> values(kDifferent * kTokens * kWidth);
    for (float& value : values) value = normal(random);
    const std::string path = folder_ / "x.npy";
    constexpr std::int64_t kShape[] = {kDifferent, kTokens, kWidth};
    std::vector<std::byte> bytes;
    for (const float value : values) {  // a bf16 is the upper half
      const auto four = std::bit_cast<std::array<std::byte, sizeof(float)>>(value);
      bytes.insert(bytes.end(), four.begin() + (on_gpu() ? 2 : 0), four.end());
    }
    EXPECT_TRUE(write_npy(path, {on_gpu() ? wire::Dtype::bf16 : wire::Dtype::f32, kShape, bytes}).ok());
    return path;
  }
};

TEST_P(Speculation, WrongGuessesChangeNoBit) {
  const bool stepwise = std::get<0>(GetParam()) == "sim";  // which tells no iterations apart
  for (const bool each : {false, true}) {
    if (each && stepwise) continue;
    const std::string right = bits(0, 0, each);
    if (right.empty()) GTEST_SKIP() << "no GPU";
    const EngineStats plain = outcome_.stats;
    EXPECT_EQ(plain.guesses + plain.guess_tasks + plain.guess_bytes, 0u);
    for (const double wrong : {0.0, 25.0, 50.0, 75.0, 100.0}) {
      if (wrong != 50 && short_sweeps()) continue;
      ASSERT_TRUE(bits(1, wrong, each) == right) << wrong << " % wrong, inputs " << each;
      const EngineStats& stats = outcome_.stats;
      EXPECT_EQ(stats.skipped_tiles, plain.skipped_tiles);
      if (std::get<2>(GetParam()) == "static") {
        EXPECT_EQ(stats.tasks_sent - stats.guess_tasks, plain.tasks_sent);  // others send what suits the moment
      }
      ASSERT_GT(stats.guesses, kIterations);
      if (each) continue;
      const double share = static_cast<double>(stats.guesses_right) / static_cast<double>(stats.guesses);
      EXPECT_NEAR(share, 1 - wrong / 100, 1.5 / static_cast<double>(stats.guesses));
      EXPECT_NEAR(static_cast<double>(stats.guess_bytes_wrong), static_cast<double>(stats.guess_bytes) * (1 - share), static_cast<double>(stats.guess_bytes) * 0.01);  // the routers' experts differ
    }
  }
}

// A budget of less than an expert is spent on some of its columns, one of nothing on none.
TEST_P(Speculation, AsksForNoMoreThanItMay) {
  const double budget = 0.05;
  if (bits(budget, 0, false).empty()) GTEST_SKIP() << "no GPU";
  const EngineStats& stats = outcome_.stats;
  EXPECT_GT(stats.guess_bytes, 0u);
  EXPECT_LE(static_cast<double>(stats.guess_bytes), 2 * kIterations * budget * (1 << 20));  // two routers
}

std::vector<Param> params() {
  std::vector<Param> out;
  for (const std::string& way : ways_and({})) out.emplace_back("host", "generic", way);
  for (const char* way : {"static", "lookahead", "reactive"}) out.emplace_back("sim", "generic", way);
  for (const char* way : {"static", "lookahead"}) out.emplace_back("cuda", "jit", way);
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, Speculation, testing::ValuesIn(params()), [](const auto& p) {
  return std::get<0>(p.param) + "_" + std::get<1>(p.param) + "_" + std::get<2>(p.param);
});

}  // namespace
}  // namespace ccks::test

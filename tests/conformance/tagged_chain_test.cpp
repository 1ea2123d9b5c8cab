// Chains of small products, which on a GPU go from tag to tag without events (wire::kOperandTagsAlone), while workers leave in their middle: idle, or for new code.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "ccks/engine.hpp"
#include "scheduler/tools/run_code.hpp"
#include "spec/parse.hpp"
#include "tests/support/no_gpu.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks::test {
namespace {

constexpr std::uint32_t kWidth = 256, kLayers = 5;

std::string spec_of(std::uint32_t rows) {
  std::string text = "ccks: 1\nprogram: tagged_chain\ndtype: f32\ndims: {n: " + std::to_string(rows) + ", d: " + std::to_string(kWidth) + "}\ntensors:\n";
  text += "  x: {shape: [n, d], kind: input}\n  y: {shape: [n, d], kind: output}\n";
  for (std::uint32_t i = 0; i < kLayers; ++i) text += "  w" + std::to_string(i) + ": {shape: [d, d], kind: weight}\n";
  text += "ops:\n";
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    const std::string from = i == 0 ? "x" : "h" + std::to_string(i), to = i + 1 == kLayers ? "y" : "h" + std::to_string(i + 1);
    text += "  - {op: matmul, a: " + from + ", b: w" + std::to_string(i) + ", epilogue: relu(acc), out: " + to + "}\n";
  }
  return text;
}

std::vector<float> values(std::size_t count, std::uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::vector<float> out(count);
  for (float& v : out) v = (static_cast<float>(random() % 2001) / 1000 - 1) * scale;
  return out;
}

std::vector<float> layer(const std::vector<float>& x, const std::vector<float>& w, std::uint32_t rows) {
  std::vector<float> out(std::size_t{rows} * kWidth);
  for (std::uint32_t i = 0; i < rows; ++i) {
    for (std::uint32_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (std::uint32_t k = 0; k < kWidth; ++k) sum += double{x[i * kWidth + k]} * w[k * kWidth + j];
      out[i * kWidth + j] = static_cast<float>(std::max(sum, 0.0));
    }
  }
  return out;
}

using Param = std::tuple<const char*, const char*, std::uint32_t>;  // device, arm, rows

class TaggedChain : public testing::TestWithParam<Param> {
 protected:
  void open(std::chrono::microseconds idle_limit) {
    const auto& [kind, arm, rows] = GetParam();
    auto device = open_device({.kind = kind});
    if (device.status().code() == ErrorCode::unavailable) GTEST_SKIP() << device.status().to_string();
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    const DeviceInfo info = (*device)->info();
    run::Options options;
    options.spec = folder_ / "spec.yaml";
    options.device = kind;
    options.arm = arm;
    options.code = info.kind == "cuda" ? "jit" : "generic";
    std::ofstream(options.spec) << spec_of(rows);
    spec::ParseResult parsed = spec::parse_file(options.spec, {});
    ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    run::CodeReport code;
    auto program = run::load_program(options, parsed.program, {info.kind, info.architecture, info.workers}, code);
    ASSERT_TRUE(program.ok()) << program.status().to_string();
    program_.emplace(std::move(*program));
    EngineOptions engine;
    engine.arm = arm;
    engine.slots = 3;
    engine.idle_limit = idle_limit;
    auto made = Engine::create(std::move(*device), *program_, engine);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    engine_.emplace(std::move(*made));
    for (std::uint32_t i = 0; i < kLayers; ++i) {
      weights_.push_back(values(std::size_t{kWidth} * kWidth, i + 1, 0.15f));
      ASSERT_TRUE(engine_->bind_weight("w" + std::to_string(i), std::as_bytes(std::span(weights_.back()))).ok());
    }
    ASSERT_TRUE(engine_->start().ok());
    for (std::uint32_t i = 0; i < 4; ++i) {
      inputs_.push_back(values(std::size_t{rows} * kWidth, 100 + i, 1));
      wanted_.push_back(inputs_.back());
      for (const auto& w : weights_) wanted_.back() = layer(wanted_.back(), w, rows);
    }
  }
  ccks::Run submit(std::uint32_t which) {
    RunRequest request;
    request.inputs = {{"x", std::as_bytes(std::span(inputs_[which]))}};
    auto run = engine_->submit(std::move(request));
    EXPECT_TRUE(run.ok()) << run.status().to_string();
    return run.ok() ? std::move(*run) : ccks::Run();
  }
  void expect_right(ccks::Run& run, std::uint32_t which) {
    const Status done = run.wait_for(std::chrono::seconds(30));
    ASSERT_TRUE(done.ok()) << done.to_string();
    std::vector<float> got(wanted_[which].size());
    ASSERT_TRUE(run.read_output("y", std::as_writable_bytes(std::span(got))).ok());
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted_[which][i], 1e-3) << i;
  }

  TemporaryFolder folder_;
  std::optional<Program> program_;
  std::optional<Engine> engine_;
  std::vector<std::vector<float>> weights_, inputs_, wanted_;
};

TEST_P(TaggedChain, RunsAreRightWhileWorkersLeave) {
  open(std::chrono::microseconds(60));  // as long as a few runs: some workers leave while others wait for their tags
  if (IsSkipped() || HasFatalFailure()) return;
  for (std::uint32_t i = 0; i < 400 && !HasFailure(); ++i) {
    ccks::Run first = submit(i % 4);
    if (i % 3 == 0) {
      ccks::Run second = submit((i + 1) % 4);
      expect_right(second, (i + 1) % 4);
    }
    expect_right(first, i % 4);
    std::this_thread::sleep_for(std::chrono::microseconds(i * 7 % 120));
  }
}

TEST_P(TaggedChain, HandoffsInTheMiddleOfRunsLoseNothing) {
  open(std::chrono::seconds(1));
  if (IsSkipped() || HasFatalFailure()) return;
  std::atomic<bool> over{false};  // relaxed: joining orders the rest
  std::thread handoffs([&] {
    for (std::uint32_t i = 0; i < 100; ++i) {
      const auto times = engine_->handoff(*program_);
      EXPECT_TRUE(times.ok()) << times.status().to_string();
      std::this_thread::sleep_for(std::chrono::microseconds(i * 37 % 900));
    }
    over.store(true, std::memory_order_relaxed);
  });
  for (std::uint32_t i = 0; !over.load(std::memory_order_relaxed) && !HasFailure(); ++i) {
    ccks::Run first = submit(i % 4), second = submit((i + 1) % 4);
    expect_right(first, i % 4);
    expect_right(second, (i + 1) % 4);
  }
  handoffs.join();
}

INSTANTIATE_TEST_SUITE_P(All, TaggedChain,
                         testing::Values(Param{"host", "static", 1}, Param{"host", "copilot", 3}, Param{"cuda", "static", 1}, Param{"cuda", "copilot", 1}, Param{"cuda", "static", 3},
                                         Param{"cuda", "copilot", 8}),
                         [](const testing::TestParamInfo<Param>& p) {
                           return std::string(std::get<0>(p.param)) + "_" + std::get<1>(p.param) + "_" + std::to_string(std::get<2>(p.param));
                         });

}  // namespace
}  // namespace ccks::test

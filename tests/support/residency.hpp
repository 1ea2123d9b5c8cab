// Tests of engines that a test makes itself, and whose workers leave time and again while they run.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ccks/engine.hpp"
#include "scheduler/tools/run_code.hpp"
#include "spec/parse.hpp"
#include "tests/support/seeded_halves.hpp"
#include "tests/support/verified_run.hpp"

namespace ccks::test {

class ResidencyTest : public testing::Test {
 protected:
  static std::vector<std::uint16_t> values(std::size_t count, std::uint32_t seed) { return seeded_halves(count, seed, 0.2f); }

  /// Compiles the program of options.spec for a device of the kind `kind` and makes an engine of it, which is not started. Skips the test, and makes none, where there is no such device.
  void create(const std::string& kind, const run::Options& options, const spec::ParseOptions& parse = {}, const EngineOptions& engine_options = {}) {
    Result<std::unique_ptr<Device>> device = open_device({.kind = kind});
    if (device.status().code() == ErrorCode::unavailable) GTEST_SKIP() << device.status().to_string();
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    const spec::ParseResult parsed = spec::parse_file(options.spec, parse);
    ASSERT_TRUE(parsed.ok) << spec::format_diagnostics(parsed);
    const DeviceInfo info = (*device)->info();
    run::CodeReport report;
    Result<Program> program = run::load_program(options, parsed.program, {info.kind, info.architecture, info.workers}, report);
    ASSERT_TRUE(program.ok()) << program.status().to_string();
    other_.emplace(*program);
    Result<Engine> engine = Engine::create(std::move(*device), std::move(*program), engine_options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    engine_.emplace(std::move(*engine));
  }
  /// The same of a spec's text for a GPU, and starts it, weights and states of bf16 made up.
  void open(const std::string& spec) {
    create("cuda", options_of(folder_, spec, "cuda", "jit"));
    if (engine_) bind();
  }

  /// The output of a run, as its elements lie.
  template <class Element>
  std::vector<Element> run(decltype(RunRequest::dims) dims, const std::string& input, std::span<const std::uint16_t> values, const std::string& output) {
    RunRequest request;
    request.dims = std::move(dims);
    request.inputs.push_back({input, std::as_bytes(values)});
    Result<ccks::Run> run = engine_->submit(std::move(request));
    EXPECT_TRUE(run.ok()) << run.status().to_string();
    if (!run.ok()) return {};
    const Status done = run->wait_for(std::chrono::seconds(60));
    EXPECT_TRUE(done.ok()) << done.to_string();
    std::vector<Element> out(run->tensor_bytes(output).value() / sizeof(Element));
    EXPECT_TRUE(run->read_output(output, std::as_writable_bytes(std::span(out))).ok());
    return out;
  }

  /// work(), while workers leave for others of the same program wherever they stand.
  template <class Work>
  void hand_off_during(const Work& work) {
    std::atomic<bool> stop{false};
    std::thread handoffs([&] {
      while (!stop) {
        const Result<HandoffTimes> times = engine_->handoff(*other_);
        EXPECT_TRUE(times.ok()) << times.status().to_string();
        if (!times.ok()) return;
      }
    });
    work();
    stop = true;
    handoffs.join();
    EXPECT_GT(engine_->stats().relaunches, 20u);
  }
  /// The same of check() over and over, for four seconds.
  template <class Check>
  void hand_off_while(const Check& check) {
    hand_off_during([&] {
      for (const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(4); std::chrono::steady_clock::now() < until && !HasFailure();) check();
    });
  }

  TemporaryFolder folder_;
  std::optional<Engine> engine_;

 private:
  void bind() {
    std::uint32_t seed = 0;
    for (const plan::TensorDesc& tensor : engine_->plan().tensors) {
      const std::vector<std::uint16_t> bytes = values(tensor.max_bytes / 2, ++seed);
      if (tensor.kind == plan::TensorKind::weight) {
        ASSERT_TRUE(engine_->bind_weight(tensor.name, std::as_bytes(std::span(bytes))).ok()) << tensor.name;
      }
    }
    ASSERT_TRUE(engine_->start().ok());
    for (const plan::TensorDesc& tensor : engine_->plan().tensors) {
      const std::vector<std::uint16_t> bytes = values(tensor.max_bytes / 2, ++seed);
      if (tensor.kind == plan::TensorKind::state) {
        ASSERT_TRUE(engine_->write_state(0, tensor.name, std::as_bytes(std::span(bytes))).ok()) << tensor.name;
      }
    }
  }

  std::optional<Program> other_;
};

}  // namespace ccks::test

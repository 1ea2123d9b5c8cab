// Tests of engines that run a graph in every way, on the host device and on a GPU. For programs that embed graph_worker.cu.
#pragma once

#include "tests/support/engine_runs.hpp"

#if defined(CCKS_HAVE_CUDA)
extern "C" const unsigned char ccks_image_graph_worker[];  // tests/support/graph_worker.cu
#endif

namespace ccks::test {

/// The parameter is a way to run (ways.hpp), with "cuda_" before it on a GPU: there a test is skipped where none is.
class GraphEngines : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!on_gpu()) return;
    const Status gpu = open_device({.kind = "cuda"}).status();
    if (gpu.code() == ErrorCode::unavailable) GTEST_SKIP() << gpu.to_string();
    ASSERT_TRUE(gpu.ok()) << gpu.to_string();
  }
  static bool on_gpu() { return GetParam().starts_with("cuda_"); }
  EngineOptions options() const {
    EngineOptions out;
    set_way(out, GetParam().substr(on_gpu() ? 5 : 0));
    out.slots = 4;
    return out;
  }
  static DeviceOptions four_workers() { return {.kind = "host", .workers = 4}; }
  static Program program(const GraphPlan& plan) {
#if defined(CCKS_HAVE_CUDA)
    if (on_gpu()) return plan.program(ccks_image_graph_worker);
#endif
    return plan.program();
  }
  static Engine open(const GraphPlan& plan, const EngineOptions& options) {
    Result<std::unique_ptr<Device>> device = on_gpu() ? open_device({.kind = "cuda"}) : open_device(four_workers());
    if (!device.ok()) throw std::runtime_error(device.status().to_string());
    Result<Engine> engine = Engine::create(std::move(*device), program(plan), options);
    if (!engine.ok()) throw std::runtime_error(engine.status().to_string());
    if (const Status started = engine->start(); !started.ok()) throw std::runtime_error(started.to_string());
    return std::move(*engine);
  }
  /// A run that is right.
  static void expect_run(Engine& engine, const GraphPlan& plan, std::uint64_t seed, std::uint32_t n = 2) {
    Result<ccks::Run> run = submit_graph(engine, seed, n);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Status done = run->wait_for(std::chrono::seconds(60));
    ASSERT_TRUE(done.ok()) << done.to_string();
    expect_graph_outputs(plan, *run, seed, n);
  }
};

}  // namespace ccks::test

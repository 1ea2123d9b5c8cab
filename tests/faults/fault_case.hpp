// What the tests of faults share: an engine on the host's device or on a GPU, and clients that hold it to its word.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/support/engine_runs.hpp"
#include "tests/support/sanitized.hpp"

#if defined(CCKS_FAKE_CUDA_LIBRARY)
#include "tests/support/fake_cuda/fake_cuda.hpp"
#endif
#if defined(CCKS_HAVE_CUDA)
extern "C" const unsigned char ccks_image_graph_worker[];  // tests/support/graph_worker.cu
#endif

namespace ccks::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A way to run (ways.hpp), with "cuda_" before it on a GPU, "played_" on one that is played on threads; skipped where there is none.
class FaultCase : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!on_gpu()) return;
    if (is_played()) {
#if defined(CCKS_FAKE_CUDA_LIBRARY)
      setenv("CCKS_CUDA_DRIVER", CCKS_FAKE_CUDA_LIBRARY, 1);
#else
      GTEST_SKIP() << "built without CUDA";
#endif
    }
    const Status gpu = open_device({.kind = "cuda"}).status();
    if (!gpu.ok()) GTEST_SKIP() << gpu.to_string();
  }
  static bool is_played() { return GetParam().starts_with("played_"); }
  static bool on_gpu() { return is_played() || GetParam().starts_with("cuda_"); }
  static EngineOptions options(std::uint32_t slots) {
    EngineOptions out = options_of(on_gpu() ? GetParam().substr(GetParam().find('_') + 1) : GetParam());
    out.slots = slots;
    out.pin_scheduler = false;  // looking for a core takes a new thread longer than it is to live here
    return out;
  }
  static Engine open(const GraphPlan& plan, const EngineOptions& options) {
    DeviceOptions device{.kind = on_gpu() ? "cuda" : "host"};
    if (!on_gpu()) device.workers = 3;
    Result<std::unique_ptr<Device>> opened = open_device(device);
    if (!opened.ok()) throw std::runtime_error(opened.status().to_string());
    Result<Engine> engine = Engine::create(std::move(*opened), program(plan), options);
    if (!engine.ok()) throw std::runtime_error(engine.status().to_string());
    if (const Status started = engine->start(); !started.ok()) throw std::runtime_error(started.to_string());
    return std::move(*engine);
  }
  static Program program(const GraphPlan& plan) {
#if defined(CCKS_FAKE_CUDA_LIBRARY)
    static const FakeImage image{.entry = graph_worker().host};
    if (is_played()) return plan.program().with_worker({nullptr, &image, sizeof(image)});
#endif
#if defined(CCKS_HAVE_CUDA)
    if (on_gpu()) return plan.program(ccks_image_graph_worker);
#endif
    return plan.program();
  }
  static void expect_right(Engine& engine, const GraphPlan& plan, std::uint64_t seed) {
    Result<ccks::Run> run = submit_graph(engine, seed, 2);
    ASSERT_TRUE(run.ok()) << run.status().to_string();
    const Status done = run->wait_for(seconds(60));
    ASSERT_TRUE(done.ok()) << done.to_string();
    expect_graph_outputs(plan, *run, seed, 2);
  }
};

/// Where a client's callback holds the scheduler's thread.
class Hold {
 public:
  std::function<void(const Status&)> callback() {
    return [this](const Status&) {
      calls_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a counter
      held_.store(true, std::memory_order_release);    // [H1] pairs with [H2]
      while (!free_.load(std::memory_order_relaxed)) std::this_thread::sleep_for(milliseconds(1));  // relaxed: a lone word
    };
  }
  void await() const {
    while (!held_.load(std::memory_order_acquire)) std::this_thread::sleep_for(milliseconds(1));  // [H2] pairs with [H1]
  }
  void let_go() { free_.store(true, std::memory_order_relaxed); }  // relaxed: as above
  int calls() const { return calls_.load(std::memory_order_relaxed); }  // relaxed: as above

 private:
  std::atomic<int> calls_{0};
  std::atomic<bool> held_{false}, free_{false};
};

}  // namespace ccks::test

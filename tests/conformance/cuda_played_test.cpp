// The cuda device on a played GPU (tests/support/fake_cuda): launches, handoffs and everything that goes wrong with drivers
// and GPUs, on machines that have neither.
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "ccks/worker/host_entry.hpp"
#include "tests/support/engine_runs.hpp"
#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace ccks::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const FakeCuda& fake_cuda() {
  static const FakeCuda* kFake = [] {
    setenv("CCKS_CUDA_DRIVER", CCKS_FAKE_CUDA_LIBRARY, 1);
    void* library = dlopen(CCKS_FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<FakeCudaEntry>(dlsym(library, "ccks_fake_cuda"))();
  }();
  return *kFake;
}

Program played(const GraphPlan& plan, const FakeImage& image) {
  return plan.program().with_worker({nullptr, &image, sizeof(image)});
}

const FakeImage& graph_image() {
  static const FakeImage kImage{.entry = graph_worker().host};
  return kImage;
}

std::vector<GraphOp> slow_graph() {
  std::vector<GraphOp> ops = layered_graph(2);
  for (GraphOp& op : ops) op.spin_us = 100;
  return ops;
}

/// Half a second's: whoever looks at it is in time, on any machine.
std::vector<GraphOp> long_graph() {
  std::vector<GraphOp> ops(60);
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    ops[i].spin_us = 10'000;
    if (i > 0) ops[i].edges = {{i - 1, Reads::all}};
  }
  return ops;
}

class PlayedGpu : public testing::Test {
 protected:
  void SetUp() override { fake_cuda().reset(); }
  static void set(const char* name, long value) { ASSERT_TRUE(fake_cuda().set(name, value)) << name; }
  static Result<std::unique_ptr<Device>> device() { return open_device({.kind = "cuda"}); }
  static Result<Engine> create(const Program& program, const EngineOptions& options = {}) {
    auto opened = device();
    if (!opened.ok()) return opened.status();
    return Engine::create(std::move(*opened), program, options);
  }
  static Engine start(const GraphPlan& plan, const EngineOptions& options = {}) {
    Result<Engine> engine = create(played(plan, graph_image()), options);
    if (!engine.ok()) throw std::runtime_error(engine.status().to_string());
    if (const Status started = engine->start(); !started.ok()) throw std::runtime_error(started.to_string());
    return std::move(*engine);
  }
  static void expect_old_code_goes_on(const FakeImage& image, long load_error, const char* call);
  static void expect_runs(Engine& engine, const GraphPlan& plan, std::uint64_t count) {
    for (std::uint64_t seed = 0; seed < count; ++seed) {
      Result<ccks::Run> run = submit_graph(engine, seed, 2);
      ASSERT_TRUE(run.ok()) << run.status().to_string();
      const Status done = run->wait_for(seconds(30));
      ASSERT_TRUE(done.ok()) << done.to_string();
      expect_graph_outputs(plan, *run, seed, 2);
    }
  }
};

TEST_F(PlayedGpu, TheSchedulerThreadMakesNoCudaCall) {
  const GraphPlan plan(layered_graph(3));
  for (const char* policy : {"static", "lookahead", "reactive"}) {
    EngineOptions options;
    options.policy = policy;
    Engine engine = start(plan, options);
    expect_runs(engine, plan, 30);
  }
  char name[16];
  pthread_getname_np(pthread_self(), name, sizeof(name));
  EXPECT_GT(fake_cuda().calls(name), 100u);
  EXPECT_GT(fake_cuda().calls("ccks-watch"), 0u);
  EXPECT_EQ(fake_cuda().calls("ccks-scheduler"), 0u);
  EXPECT_EQ(fake_cuda().modules_loaded(), 0u) << "a module was left behind";
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u);
}

TEST_F(PlayedGpu, ManyHandoffsKeepFewModules) {
  const GraphPlan plan(layered_graph(1));
  static FakeImage images[2] = {graph_image(), graph_image()};
  Engine engine = start(plan);
  std::jthread load([&](std::stop_token stop) {
    while (!stop.stop_requested() && !HasFailure()) expect_runs(engine, plan, 3);
  });
  std::uint64_t most = 0;
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    const auto times = engine.handoff(played(plan, images[i % 2]));
    ASSERT_TRUE(times.ok()) << times.status().to_string();
    most = std::max(most, fake_cuda().modules_loaded());
  }
  load.request_stop();
  load.join();
  EXPECT_LE(most, 2u) << "the worker's and the clock's";
  EXPECT_EQ(engine.stats().relaunches, 200u);
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u) << "a load, unload or free behind resident workers";
}

/// Where that waits for nobody, new code is opened before workers are asked to leave: code that cannot be opened does not disturb them.
TEST_F(PlayedGpu, WhereCodeIsLoadedLazilyAHandoffOpensItBeforeWorkersLeave) {
  set("lazy", 1);
  const GraphPlan plan(layered_graph(1));
  static FakeImage images[2] = {graph_image(), graph_image()};
  Engine engine = start(plan);
  for (int i = 0; i < 20; ++i) {
    const auto times = engine.handoff(played(plan, images[i % 2]));
    ASSERT_TRUE(times.ok()) << times.status().to_string();
    EXPECT_LE(fake_cuda().modules_loaded(), 2u) << "the worker's and the clock's";
    expect_runs(engine, plan, 2);
  }
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u);
  const std::uint64_t launches = fake_cuda().launches();
  set("load_error", 200);
  const Status refused = engine.handoff(played(plan, images[0])).status();
  EXPECT_NE(refused.message().find("cuLibraryLoadData"), std::string::npos) << refused.to_string();
  EXPECT_EQ(fake_cuda().launches(), launches) << "the workers had to leave for it";
  expect_runs(engine, plan, 2);
}

Program apart(const GraphPlan& plan, const FakeImage& loop, const FakeImage& bodies) {
  return plan.program().with_worker({.cuda_image = &bodies, .cuda_image_bytes = sizeof(bodies), .cuda_loop = &loop});
}

/// What only runs if bodies are not found.
void no_bodies(const wire::WorkerParams*, wire::u32, void*) { std::abort(); }

/// Of workers in two images a handoff loads bodies; the loop stays, whether code is opened ahead or not.
TEST_F(PlayedGpu, WhereBodiesAreAnImageOfTheirOwnAHandoffLoadsNothingElse) {
  const GraphPlan plan(layered_graph(1));
  static FakeImage loop = graph_image(), other_loop = graph_image(), bodies[2] = {graph_image(), graph_image()};
  loop.entry = other_loop.entry = no_bodies;
  for (const long lazy : {0, 1}) {
    set("lazy", lazy);
    Result<Engine> engine = create(apart(plan, loop, bodies[0]));
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ASSERT_TRUE(engine->start().ok());
    for (int i = 1; i < 20; ++i) {
      expect_runs(*engine, plan, 2);
      const std::uint64_t before = fake_cuda().loads();
      const auto times = engine->handoff(apart(plan, loop, bodies[i % 2]));
      ASSERT_TRUE(times.ok()) << times.status().to_string();
      EXPECT_EQ(fake_cuda().loads(), before + 1);
      EXPECT_LE(fake_cuda().modules_loaded(), 3u) << "the loop's, the bodies' and the clock's";
    }
    // Another loop is loaded too, and a worker in one image takes the place of both.
    std::uint64_t before = fake_cuda().loads();
    ASSERT_TRUE(engine->handoff(apart(plan, other_loop, bodies[0])).ok());
    EXPECT_EQ(fake_cuda().loads(), before + 2);
    expect_runs(*engine, plan, 2);
    static const FakeImage whole = graph_image();
    ASSERT_TRUE(engine->handoff(played(plan, whole)).ok());
    EXPECT_EQ(fake_cuda().modules_loaded(), 2u) << "the worker's and the clock's";
    expect_runs(*engine, plan, 2);
    ASSERT_TRUE(engine->handoff(apart(plan, loop, bodies[1])).ok());
    expect_runs(*engine, plan, 2);
  }
  EXPECT_EQ(fake_cuda().modules_loaded(), 0u);
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u);
}

TEST_F(PlayedGpu, BodiesThatWantMoreThanTheirLoopHasAreRefused) {
  const GraphPlan plan(layered_graph(1));
  static FakeImage loop = graph_image(), bodies = graph_image(), greedy = graph_image();
  loop.entry = no_bodies;
  greedy.registers = loop.registers + 1;
  Result<Engine> engine = create(apart(plan, loop, bodies));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  const Status refused = engine->handoff(apart(plan, loop, greedy)).status();
  EXPECT_EQ(refused.code(), ErrorCode::invalid_data) << refused.to_string();
  expect_runs(*engine, plan, 2);
  EXPECT_EQ(fake_cuda().modules_loaded(), 3u) << "what is refused goes";
}

/// The stack of a loop that calls by address is the context's limit, which covers both before anyone is called.
TEST_F(PlayedGpu, BodiesOfADeepStackHaveItBeforeTheyRun) {
  const GraphPlan plan(layered_graph(1));
  static FakeImage loop = graph_image(), bodies = graph_image(), deep = graph_image();
  loop.entry = no_bodies;
  loop.stack_bytes = 300;
  deep.stack_bytes = 900;
  Result<Engine> engine = create(apart(plan, loop, bodies));
  ASSERT_TRUE(engine.ok() && engine->start().ok());
  EXPECT_EQ(fake_cuda().stack_limit(), 1024u) << "that is enough";
  ASSERT_TRUE(engine->handoff(apart(plan, loop, deep)).ok());
  EXPECT_EQ(fake_cuda().stack_limit(), 1200u);
  expect_runs(*engine, plan, 2);
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u);
}

TEST_F(PlayedGpu, BodiesOfTheirOwnAreNotForArmsOfSingleOps) {
  const GraphPlan plan(layered_graph(1));
  static const FakeImage loop = graph_image(), bodies = graph_image();
  EngineOptions options;
  options.arm = "stream";
  Result<Engine> engine = create(apart(plan, loop, bodies), options);
  const Status refused = engine.ok() ? engine->start() : engine.status();
  EXPECT_EQ(refused.code(), ErrorCode::unsupported) << refused.to_string();
}

/// A handoff to `image`, with the load of every module failing if `load_error` says so, fails in `call`: the run under way and those behind it
/// have the old code.
void PlayedGpu::expect_old_code_goes_on(const FakeImage& image, long load_error, const char* call) {
  const GraphPlan plan(slow_graph());
  Engine engine = start(plan);
  Result<ccks::Run> run = submit_graph(engine, 1, 2);
  set("load_error", load_error);
  const Status status = engine.handoff(played(plan, image)).status();
  EXPECT_EQ(status.code(), ErrorCode::device_fault);
  EXPECT_NE(status.message().find(call), std::string::npos) << status.message();
  EXPECT_TRUE(run->wait_for(seconds(30)).ok());
  expect_graph_outputs(plan, *run, 1, 2);
  expect_runs(engine, plan, 3);
}

TEST_F(PlayedGpu, CodeThatDoesNotLoadLeavesTheOldCodeRunning) {
  static FakeImage broken = graph_image();
  broken.entry = nullptr;
  expect_old_code_goes_on(broken, 0, "cuModuleGetFunction");
}

TEST_F(PlayedGpu, WhereNoCodeLoadsAnyMoreTheOldCodeGoesOn) {
  static const FakeImage image = graph_image();
  expect_old_code_goes_on(image, 200, "cuModuleLoadData");
}

TEST_F(PlayedGpu, WhereNoCodeStartsAnyMoreRunsFail) {
  const GraphPlan plan(long_graph(), 1);
  static const FakeImage image = graph_image();
  Engine engine = start(plan);
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  set("launch_error", 719);
  const Status status = engine.handoff(played(plan, image)).status();
  EXPECT_EQ(status.code(), ErrorCode::device_fault);
  EXPECT_NE(status.message().find("; and the old code: "), std::string::npos) << status.message();
  EXPECT_EQ(run->wait_for(seconds(30)).code(), ErrorCode::device_fault);
}

TEST_F(PlayedGpu, WorkersMadeWithoutQueuesAreNotForTheArmThatHasSome) {
  const GraphPlan plan(layered_graph(2), 2);
  const Program without = plan.program().with_worker({nullptr, &graph_image(), sizeof(FakeImage), false});
  EngineOptions options;
  EXPECT_TRUE(create(without, options).ok());
  options.arm = "gpu_queue";
  EXPECT_EQ(create(without, options).status().code(), ErrorCode::unsupported);
  Engine engine = start(plan, options);
  EXPECT_EQ(engine.handoff(without, seconds(5)).status().code(), ErrorCode::unsupported);
  expect_runs(engine, plan, 2);
}

TEST_F(PlayedGpu, IdleWorkersLeaveTheGpuAndComeBack) {
  const GraphPlan plan(layered_graph(1));
  EngineOptions options;
  options.idle_limit = milliseconds(20);
  Engine engine = start(plan, options);
  for (int i = 0; i < 4; ++i) {
    expect_runs(engine, plan, 2);
    std::this_thread::sleep_for(milliseconds(100));
  }
  EXPECT_GE(engine.stats().relaunches, 2u);
  EXPECT_EQ(fake_cuda().launches(), engine.stats().relaunches + 1);
}

TEST_F(PlayedGpu, WorkersThatCannotComeBackAreAMessage) {
  const GraphPlan plan(layered_graph(1));
  EngineOptions options;
  options.idle_limit = milliseconds(10);
  Engine engine = start(plan, options);
  expect_runs(engine, plan, 1);
  std::this_thread::sleep_for(milliseconds(200));
  set("launch_error", 719);
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  const Status status = run->wait_for(seconds(30));
  EXPECT_EQ(status.code(), ErrorCode::device_fault);
  EXPECT_NE(status.message().find("could not be brought back"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("cuLaunchCooperativeKernel"), std::string::npos) << status.message();
  EXPECT_FALSE(submit_graph(engine, 2, 1).ok());
}

TEST_F(PlayedGpu, AStickyErrorEndsRunsAndTheDevice) {
  const GraphPlan plan(slow_graph());
  Engine engine = start(plan);
  set("sticky_after_ms", 0);
  set("sticky_error", 700);
  // Found by whoever looks first: the copy of the inputs, or the watch thread while the run waits.
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  const Status status = run.ok() ? run->wait_for(seconds(30)) : run.status();
  EXPECT_EQ(status.code(), ErrorCode::device_fault) << status.to_string();
  EXPECT_NE(status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << status.message();
  std::this_thread::sleep_for(milliseconds(100));
  const Status later = submit_graph(engine, 2, 1).status();
  EXPECT_EQ(later.code(), ErrorCode::device_fault) << later.to_string();
}

TEST_F(PlayedGpu, AStickyErrorReachesARunThatWaits) {
  const GraphPlan plan(long_graph(), 1);
  Engine engine = start(plan, options_of("lookahead_tiles"));  // of a list no op is named
  Result<ccks::Run> run = submit_graph(engine, 1, 1);
  ASSERT_TRUE(run.ok());
  set("sticky_error", 700);
  const Status status = run->wait_for(seconds(30));
  EXPECT_EQ(status.code(), ErrorCode::device_fault) << status.to_string();
  EXPECT_NE(status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("op 'op"), std::string::npos) << status.message();
}

std::atomic<bool> held{false};  // relaxed throughout: a lone word
struct HeldOps {
  template <class Lanes>
  static void run(Lanes&, const wire::RunFrame&, const wire::OpParams& op, wire::u32) {
    while (op.dims[0] == 1 && held.load(std::memory_order_relaxed)) std::this_thread::yield();
  }
};
const FakeImage& held_image() {
  static const FakeImage kImage{
      .entry = [](const wire::WorkerParams* params, std::uint32_t index, void* context) {
        worker::host_worker_main<HeldOps>(params, index, context);
      }};
  return kImage;
}

TEST_F(PlayedGpu, AnOpThatNeverEndsIsNamedAndItsContextLeft) {
  std::vector<GraphOp> ops(3);
  for (std::uint32_t i = 1; i < 3; ++i) ops[i].edges = {{i - 1, Reads::all}};
  const GraphPlan plan(ops, 1);
  held.store(true, std::memory_order_relaxed);
  {
    EngineOptions options;
    options.task_deadline = milliseconds(200);
    Result<Engine> engine = create(played(plan, held_image()), options);
    ASSERT_TRUE(engine.ok() && engine->start().ok());
    Result<ccks::Run> run = submit_graph(*engine, 1, 1);
    ASSERT_TRUE(run.ok());
    const Status status = run->wait_for(seconds(30));
    EXPECT_EQ(status.code(), ErrorCode::deadline_exceeded);
    EXPECT_NE(status.message().find("op 'op1'"), std::string::npos) << status.message();
  }
  EXPECT_EQ(fake_cuda().calls_that_blocked(), 0u);
  held.store(false, std::memory_order_relaxed);
  std::this_thread::sleep_for(milliseconds(200));  // the worker leaves, before another test opens the GPU
}

TEST_F(PlayedGpu, WhatAGpuMayLack) {
  const GraphPlan plan(layered_graph(1));
  const auto status = [&](const char* name, long value) {
    fake_cuda().reset();
    set(name, value);
    Result<Engine> engine = create(played(plan, graph_image()));
    return engine.ok() ? engine->start() : engine.status();
  };
  const auto expect = [](const Status& got, ErrorCode code, const char* words) {
    EXPECT_EQ(got.code(), code) << got.to_string();
    EXPECT_NE(got.message().find(words), std::string::npos) << got.to_string();
  };
  expect(status("devices", 0), ErrorCode::unavailable, "the CUDA driver finds no GPU");
  expect(status("cooperative", 0), ErrorCode::unsupported, "cannot launch cooperative grids");
  expect(status("shared_bytes", 1000), ErrorCode::unsupported, "bytes of shared memory; Played GPU has 0 left a block");
  expect(status("memory_bytes", 5000), ErrorCode::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY");
  expect(status("load_error", 200), ErrorCode::device_fault, "cuModuleLoadData");
  expect(status("launch_error", 719), ErrorCode::device_fault, "CUDA_ERROR_LAUNCH_FAILED");
  EXPECT_TRUE(status("start_delay_ms", 200).ok());
}

TEST_F(PlayedGpu, MoreWorkersThanFitAreRefused) {
  const GraphPlan plan(layered_graph(1));
  auto opened = open_device({.kind = "cuda", .workers = 9});
  ASSERT_TRUE(opened.ok());
  Result<Engine> engine = Engine::create(std::move(*opened), played(plan, graph_image()), {});
  ASSERT_TRUE(engine.ok());
  const Status status = engine->start();
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_NE(status.message().find("only 4 of 256 threads fit on Played GPU"), std::string::npos) << status.message();
}

TEST_F(PlayedGpu, ACoherentMachineGetsTheCoherentTransport) {
  const GraphPlan plan(layered_graph(2));
  EXPECT_EQ(device().value()->info().transport, "pinned");
  EXPECT_EQ(open_device({.kind = "cuda", .transport = "coherent"}).status().code(), ErrorCode::unavailable);
  set("coherent", 1);
  EXPECT_EQ(device().value()->info().transport, "coherent");
  Engine engine = start(plan);
  expect_runs(engine, plan, 20);
}

TEST_F(PlayedGpu, AutoFallsToTheHostWithANotice) {
  auto gpu = open_device({});
  ASSERT_TRUE(gpu.ok());
  EXPECT_EQ(gpu.value()->info().kind, "cuda");
  EXPECT_EQ(gpu.value()->info().notice, "");
  set("devices", 0);
  auto host = open_device({});
  ASSERT_TRUE(host.ok());
  EXPECT_EQ(host.value()->info().kind, "host");
  EXPECT_EQ(host.value()->info().notice, "the CUDA driver finds no GPU");
}

}  // namespace
}  // namespace ccks::test

// Question: how long do the workers stand still while they are given new code, and does a run under way notice?
// A client keeps up a given part of the rate of runs that the engine can do; every few milliseconds the workers leave, load
// another copy of their code and go on. Every run has inputs of its own and every value of its last layer is compared.
// Two kinds of workers: those whose op bodies are an image of their own, of which a handoff loads nothing else, and those that are one image. Beside each what the same loads
// take where nobody is at work: a host that loads slowly hands over slowly.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "bench/bench_gpu.hpp"
#include "bench/bench_report.hpp"

#if defined(CCKS_HAVE_CUDA)

#include "bench/images/images.hpp"
#include "ccks/engine.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {
namespace {

constexpr std::uint32_t kLayers = 4;
constexpr std::uint32_t kTaskUs = 10;
constexpr std::uint32_t kInFlight = 4;
constexpr std::uint32_t kRateRuns = 2000;
constexpr std::chrono::seconds kPatience{2};

test::GraphPlan layers(std::uint32_t workers) {
  std::vector<test::GraphOp> ops(kLayers);
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    ops[i].tiles = workers;
    ops[i].spin_us = ops[i].estimated_us = kTaskUs;
    if (i > 0) ops[i].edges = {{i - 1, test::Reads::same_tile}};
  }
  return test::GraphPlan(ops, 1);
}

/// The client: submits at its pace, waits for the oldest, compares.
class Client {
 public:
  Client(Engine& engine, const test::GraphPlan& plan) : engine_(engine), plan_(plan) {}

  /// Submits run after run, one every `period_ns`, until `enough()`.
  template <class Enough>
  Status go_on(std::uint64_t period_ns, Enough enough) {
    std::uint64_t next = now_ns();
    while (!enough()) {
      while (now_ns() < next) {
      }
      next = std::max(next + period_ns, now_ns() - 50 * period_ns);  // what a handoff held up is made good, within reason
      if (runs_.size() == kInFlight) CCKS_RETURN_IF_ERROR(finish_oldest());
      CCKS_RETURN_IF_ERROR(submit());
    }
    while (!runs_.empty()) CCKS_RETURN_IF_ERROR(finish_oldest());
    return {};
  }
  std::uint64_t submitted() const { return submitted_; }
  std::uint64_t right() const { return right_; }

 private:
  struct InFlight {
    Run run;
    std::uint64_t seed;
  };

  Status submit() {
    RunRequest request;
    const std::uint64_t seed = ++submitted_;
    request.inputs = {{"seed", std::as_bytes(std::span(&seed, 1))}};
    auto run = engine_.submit(std::move(request));
    if (!run.ok()) return run.status();
    runs_.push_back({std::move(*run), seed});
    return {};
  }
  Status finish_oldest() {
    InFlight oldest = std::move(runs_.front());
    runs_.pop_front();
    CCKS_RETURN_IF_ERROR(oldest.run.wait());
    values_.resize(plan_.tiles(kLayers - 1, 1));
    CCKS_RETURN_IF_ERROR(oldest.run.read_output(test::GraphPlan::output(kLayers - 1), std::as_writable_bytes(std::span(values_))));
    right_ += values_ == plan_.expected(1, oldest.seed).back();
    return {};
  }

  Engine& engine_;
  const test::GraphPlan& plan_;
  std::deque<InFlight> runs_;
  std::vector<std::uint64_t> values_;
  std::uint64_t submitted_ = 0, right_ = 0;
};

struct Times {
  std::vector<double> total, park, load, relaunch;  // microseconds
};

/// What a handoff loads, and the loop that it is for; null: none but its own.
struct Code {
  const char* name;
  std::span<const unsigned char> image;
  const void* loop;

  Program program(const test::GraphPlan& plan, const void* bytes) const {
    WorkerImage worker = plan.program().worker();
    worker.cuda_image = bytes;
    worker.cuda_image_bytes = image.size();
    worker.cuda_loop = loop;
    return plan.program().with_worker(worker);
  }
};

/// Machine code alone, as the JIT makes it, where it is this GPU's; else what every GPU takes.
std::vector<Code> codes_for(const DeviceInfo& info) {
  if (info.architecture != CCKS_CUDA_NATIVE) return {{"", {ccks_image_graph_worker, ccks_image_graph_worker_end}, nullptr}};
  return {{"", {ccks_image_graph_bodies, ccks_image_graph_bodies_end}, ccks_image_graph_loop},
          {", whole workers", {ccks_image_handoff_worker, ccks_image_handoff_worker_end}, nullptr}};
}

Status hand_off(Engine& engine, const test::GraphPlan& plan, const Code& code, const HandoffOptions& options, Times& times) {
  // Two copies, so that each handoff loads code that is not there.
  const std::vector<unsigned char> copy(code.image.begin(), code.image.end());
  for (std::uint32_t i = 0; i < options.handoffs; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(options.every_ms));
    const auto done = engine.handoff(code.program(plan, i % 2 == 0 ? copy.data() : code.image.data()), kPatience);
    if (!done.ok()) return done.status();
    const auto us = [](std::chrono::nanoseconds t) { return static_cast<double>(t.count()) / 1e3; };
    times.total.push_back(us(done->total()));
    times.park.push_back(us(done->park));
    times.load.push_back(us(done->load));
    times.relaunch.push_back(us(done->relaunch));
  }
  // The workers go back to code that outlives them.
  return engine.handoff(code.program(plan, code.image.data()), kPatience).status();
}

/// Microseconds that the same loads take with no worker there and nobody at work, the old code's going included: how much of a handoff is the host's. Without the
/// millisecond for which a handoff keeps its core awake in front.
Result<std::vector<double>> loads_alone(Device& device, const test::GraphPlan& plan, const Code& code, const HandoffOptions& options) {
  const std::vector<unsigned char> copy(code.image.begin(), code.image.end());
  std::vector<double> out;
  for (std::uint32_t i = 0; i <= options.handoffs; ++i) {
    const Program program = code.program(plan, i % 2 == 0 ? copy.data() : code.image.data());
    std::this_thread::sleep_for(std::chrono::milliseconds(options.every_ms));
    CCKS_RETURN_IF_ERROR(device.prepare(program.worker()));
    const std::uint64_t start = now_ns();
    CCKS_RETURN_IF_ERROR(device.load(program.worker()));
    if (i > 0) out.push_back(static_cast<double>(now_ns() - start) / 1e3);  // the first finds no old code
  }
  CCKS_RETURN_IF_ERROR(device.load(code.program(plan, code.image.data()).worker()));  // the copy goes
  return out;
}

Status measure(const HandoffOptions& options, std::unique_ptr<Device> device, const Code& code) {
  const DeviceInfo info = device->info();
  const test::GraphPlan plan = layers(info.workers);
  const auto alone = loads_alone(*device, plan, code, options);
  if (!alone.ok()) return alone.status();
  auto engine = Engine::create(std::move(device), code.program(plan, code.image.data()), {});
  if (!engine.ok()) return engine.status();
  CCKS_RETURN_IF_ERROR(engine->start());
  Client client(*engine, plan);
  CCKS_RETURN_IF_ERROR(client.go_on(0, [&] { return client.submitted() >= kRateRuns / 4; }));
  const std::uint64_t start = now_ns();
  const std::uint64_t before = client.submitted();
  CCKS_RETURN_IF_ERROR(client.go_on(0, [&] { return client.submitted() >= before + kRateRuns; }));
  const double run_ns = static_cast<double>(now_ns() - start) / kRateRuns;

  std::atomic<bool> over{false};
  Status loaded;
  std::thread load([&] {
    // Relaxed: the flag carries no data, and joining orders the rest.
    loaded = client.go_on(static_cast<std::uint64_t>(run_ns / options.load), [&] { return over.load(std::memory_order_relaxed); });
  });
  Times times;
  const Status handed = hand_off(*engine, plan, code, options, times);
  over.store(true, std::memory_order_relaxed);
  load.join();
  CCKS_RETURN_IF_ERROR(handed);
  CCKS_RETURN_IF_ERROR(loaded);
  CCKS_RETURN_IF_ERROR(engine->drain(std::chrono::seconds(10)));
  const std::uint64_t lost = client.submitted() - client.right();
  Line line("handoff", fmt::format("{:.0f} % load{}", options.load * 100, code.name));
  line.text("device", info.name).number("workers", info.workers).number("image_bytes", static_cast<double>(code.image.size())).text("loading", std::getenv("CUDA_MODULE_LOADING"));
  line.number("runs_under_load", static_cast<double>(client.submitted())).number("lost", static_cast<double>(lost));
  const std::pair<const char*, const std::vector<double>*> parts[] = {
      {"park", &times.park}, {"load", &times.load}, {"relaunch", &times.relaunch}};
  for (const auto& [part, samples] : parts) {
    line.number(fmt::format("{}_us_p50", part), quantile(*samples, 0.5)).number(fmt::format("{}_us_p99", part), quantile(*samples, 0.99));
  }
  line.samples("us", times.total).print();
  Line("handoff", fmt::format("load alone{}", code.name)).text("device", info.name).number("image_bytes", static_cast<double>(code.image.size())).samples("us", *alone).print();
  if (lost != 0) return {ErrorCode::invalid_data, fmt::format("{} runs gave wrong values", lost)};
  return {};
}

Status measure_all(const HandoffOptions& options) {
  // As CUDA has it unless told otherwise, and as a process may have it that launches no kernels of others beside the workers: the device then opens
  // code ahead of the handoff (gpu/README.md). CUDA_MODULE_LOADING=EAGER in the environment measures the other way.
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 0);
  std::vector<Code> codes;
  for (std::size_t i = 0; i == 0 || i < codes.size(); ++i) {
    auto device = open_device({.kind = "cuda"});
    if (!device.ok()) return device.status();
    if (i == 0) codes = codes_for((*device)->info());
    CCKS_RETURN_IF_ERROR(measure(options, std::move(*device), codes[i]));
  }
  return {};
}

}  // namespace

int bench_handoff(const HandoffOptions& options) {
  const Status status = measure_all(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "handoff: {}\n", status.to_string());
  return status.code() == ErrorCode::unavailable ? kNoGpu : status.code() == ErrorCode::invalid_data ? 3 : 4;
}

}  // namespace ccks::bench

#else

namespace ccks::bench {
int bench_handoff(const HandoffOptions&) {
  fmt::print(stderr, "handoff: built without CUDA\n");
  return kNoGpu;
}
}  // namespace ccks::bench

#endif

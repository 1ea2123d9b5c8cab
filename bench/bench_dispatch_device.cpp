// dispatch, end to end: real workers, empty ops. What one thread keeps going on a device, and what a layer costs that
// every worker waits for.
#include <fmt/format.h>

#include "bench/bench_dispatch.hpp"
#include "bench/bench_report.hpp"
#include "ccks/engine.hpp"
#include "ccks/worker/host_entry.hpp"
#include "tests/support/engine_graph.hpp"
#if defined(CCKS_HAVE_CUDA)
#include "bench/images/images.hpp"
#endif

namespace ccks::bench {
namespace {

constexpr std::uint32_t kLayers = 1000;
constexpr std::uint32_t kSlots = 8;       // runs in flight in the back-to-back arms
constexpr std::uint32_t kWarmUps = 2;     // of kSlots runs: each slot gets its frame with its first run
constexpr auto kPatience = std::chrono::seconds(20);
constexpr std::uint64_t kPatienceNs = std::chrono::nanoseconds(kPatience).count();

struct EmptyOps {
  template <class Lanes>
  static void run(Lanes&, const wire::RunFrame&, const wire::OpParams&, wire::u32) {}
};

void empty_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<EmptyOps>(params, index, context);
}

WorkerImage empty_image() {
  WorkerImage image;
  image.host = empty_entry;
#if defined(CCKS_HAVE_CUDA)
  image.cuda_image = ccks_image_empty_worker;
#endif
  return image;
}

/// One engine on its own device, with its workers resident.
class Arm {
 public:
  static Result<Arm> open(const DispatchOptions& options, const test::GraphPlan& plan, const EngineOptions& engine) {
    Result<std::unique_ptr<Device>> device = open_device({.kind = options.device, .workers = options.workers});
    if (!device.ok()) return device.status();
    Result<Engine> made = Engine::create(std::move(*device), Program(nullptr, plan.view(), empty_image()), engine);
    if (!made.ok()) return made.status();
    CCKS_RETURN_IF_ERROR(made->start());
    return Arm(std::move(*made));
  }

  /// Nanoseconds from the submission of the first of `runs` runs to the end of the last.
  Result<std::uint64_t> time_runs(std::uint32_t runs) {
    const std::uint64_t start = now_ns();
    for (std::uint32_t i = 0; i < runs; ++i) {
      Result<Run> run = engine_.submit({});
      if (!run.ok()) return run.status();
      if (runs == 1) {
        CCKS_RETURN_IF_ERROR(await(*run));
        return now_ns() - start;
      }
    }
    CCKS_RETURN_IF_ERROR(engine_.drain(kPatience));
    return now_ns() - start;
  }
  /// As `micro` does, a client that looks: to wake one that sleeps takes up to 0.1 ms, which is the operating system's.
  static Status await(Run& run) {
    const std::uint64_t start = now_ns();
    while (run.poll() < RunState::done) {
      if (now_ns() - start > kPatienceNs) break;
    }
    return run.wait_for(std::chrono::nanoseconds(0));
  }
  /// One sample per repetition, after warm-up.
  Result<std::vector<double>> sample(std::uint32_t samples, std::uint32_t runs) {
    for (std::uint32_t i = 0; i < kWarmUps; ++i) {
      if (Result<std::uint64_t> warm = time_runs(kSlots); !warm.ok()) return warm.status();
    }
    std::vector<double> out;
    for (std::uint32_t i = 0; i < samples; ++i) {
      Result<std::uint64_t> ns = time_runs(runs);
      if (!ns.ok()) return ns.status();
      out.push_back(static_cast<double>(*ns));
    }
    return out;
  }
  Line line(const std::string& arm) const {
    const DeviceInfo info = engine_.device_info();
    const EngineStats stats = engine_.stats();
    Line out("dispatch", arm);
    out.text("device", info.kind).text("device_name", info.name).text("transport", info.transport);
    out.number("workers", info.workers);
    out.number("messages_per_record",
               static_cast<double>(stats.tasks_sent) / static_cast<double>(stats.records_received));
    out.number("scheduler_busy_ns_per_message",
               static_cast<double>(stats.scheduler_busy_ns) / static_cast<double>(stats.tasks_sent));
    return out;
  }

 private:
  explicit Arm(Engine engine) : engine_(std::move(engine)) {}
  Engine engine_;
};

bool complain(const std::string& arm, const Status& status) {
  fmt::print(stderr, "ccks-bench: {}: {}\n", arm, status.to_string());
  return false;
}

// `layers` layers of a task per worker; every task of a layer waits for all tasks of the layer before. Bare ops have no
// operands, as an empty kernel of a graph has none; others may have stored something, which their signals must release.
test::GraphPlan layer_chain(std::uint32_t layers, std::uint32_t width, bool bare) {
  std::vector<test::GraphOp> ops(layers);
  for (test::GraphOp& op : ops) op.bare = bare;
  for (std::uint32_t i = 0; i < layers; ++i) {
    ops[i].tiles = width;
    if (i > 0) ops[i].edges = {{i - 1, test::Reads::all}};
  }
  return test::GraphPlan(ops, 1);
}

test::GraphPlan independent_ops(std::uint32_t count, std::uint32_t width) {
  std::vector<test::GraphOp> ops(count);
  for (test::GraphOp& op : ops) {
    op.tiles = width;
    op.bare = true;
  }
  return test::GraphPlan(ops, 1);
}

bool chain_arm(const DispatchOptions& options, const test::GraphPlan& plan, const DispatchArm& arm, const char* shape) {
  Result<Arm> opened = Arm::open(options, plan, arm.engine);
  if (!opened.ok()) return complain(arm.name, opened.status());
  for (const std::uint32_t runs : {1u, kSlots}) {
    Result<std::vector<double>> samples = opened->sample(options.runs, runs);
    if (!samples.ok()) return complain(arm.name, samples.status());
    for (double& ns : *samples) ns /= double{kLayers} * runs;
    const char* how = runs == 1 ? "one run at a time" : "runs back to back";
    opened->line(fmt::format("{}, {}, {}", shape, arm.name, how)).samples("ns_per_layer", *samples).print();
  }
  return true;
}

bool throughput_arm(const DispatchOptions& options, const test::GraphPlan& plan, const DispatchArm& arm,
                    const char* shape) {
  constexpr std::uint32_t kRuns = 32;
  Result<Arm> opened = Arm::open(options, plan, arm.engine);
  if (!opened.ok()) return complain(arm.name, opened.status());
  Result<std::vector<double>> samples = opened->sample(options.runs, kRuns);
  if (!samples.ok()) return complain(arm.name, samples.status());
  double tasks = 0;
  for (std::uint32_t op = 0; op < plan.ops().size(); ++op) tasks += plan.tiles(op, 1);
  for (double& ns : *samples) ns = tasks * kRuns * 1e3 / ns;
  opened->line(fmt::format("independent, {}, {}", arm.name, shape)).samples("million_tasks_per_second", *samples).print();
  return true;
}

}  // namespace

bool dispatch_device_arms(const DispatchOptions& options) {
  std::uint32_t workers = options.workers;
  if (workers == 0) {
    Result<std::unique_ptr<Device>> device = open_device({.kind = options.device});
    if (!device.ok()) return complain(options.device, device.status());
    workers = (*device)->info().workers;
  }
  bool ok = true;
  for (const bool bare : {true, false}) {
    const test::GraphPlan chain = layer_chain(kLayers, workers, bare);
    for (const DispatchArm& arm : dispatch_arms()) {
      if (arm.chain) ok = chain_arm(options, chain, arm, bare ? "chain" : "chain of ops with operands") && ok;
    }
  }
  const test::GraphPlan wide = independent_ops(64, 4 * workers);
  const test::GraphPlan single = independent_ops(1024, 1);
  for (const DispatchArm& arm : dispatch_arms()) {
    ok = throughput_arm(options, wide, arm, "ops of four tasks a worker") && ok;
    if (arm.single) ok = throughput_arm(options, single, arm, "ops of one task") && ok;
  }
  return ok;
}

std::vector<DispatchArm> dispatch_arms() {
  std::vector<DispatchArm> arms(4);
  arms[0] = {"static", {}, true, false};
  arms[0].engine.policy = "static";
  arms[1] = {"copilot", {}, true, true};
  arms[2] = {"copilot, tiles", {}, true, true};
  arms[2].engine.spine = "tiles";
  arms[3] = {"reactive", {}, false, true};
  arms[3].engine.policy = "reactive";
  for (DispatchArm& arm : arms) arm.engine.slots = kSlots;
  return arms;
}

}  // namespace ccks::bench

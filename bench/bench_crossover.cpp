// Question: over which link, and for tasks of which length, does deciding on the host pay?
// Arms: every way to run one plan, over tasks of a given length and a link that is made slower by a given time each way.
// Programs: `fixed`, layers of one task a worker; `dynamic`, layers of which a report says how many of their tiles exist, a
// small part of what might. Arms that decide nothing on the host do not feel the link: they are measured once.
//
// `ideal_us` is what the bodies alone take on the critical path; the rest of a run is scheduling, wherever it happens.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <span>

#include "bench/bench_gpu.hpp"
#include "bench/bench_report.hpp"

namespace ccks::bench {
namespace {

struct Arm {
  const char* name;
  const char* arm;
  const char* policy;
  bool feels_link;
};
constexpr Arm kArms[] = {
    {"static", "static", "static", true},         {"lookahead", "copilot", "lookahead", true},
    {"reactive", "copilot", "reactive", true},    {"gpu_queue", "gpu_queue", "lookahead", false},
    {"stream", "stream", "lookahead", false},     {"graph", "graph", "lookahead", false},
};

}  // namespace

std::vector<std::string> crossover_arms() {
  std::vector<std::string> names;
  for (const Arm& arm : kArms) names.emplace_back(arm.name);
  return names;
}

}  // namespace ccks::bench

#if defined(CCKS_HAVE_CUDA)

#include "bench/images/images.hpp"
#include "ccks/engine.hpp"
#include "ccks/wire/atoms.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {
namespace {

constexpr std::uint32_t kLayers = 6;
constexpr std::uint32_t kMaxRows = 1024;     // tiles that a dynamic layer might have
constexpr std::uint32_t kReportValues = 80;  // each 0 to 3: about 120 rows exist
constexpr std::uint32_t kWarmRuns = 5;

struct Point {
  const char* program;
  std::uint32_t task_us;
  std::uint32_t delay_us;
};

test::GraphPlan fixed_plan(std::uint32_t workers, std::uint32_t task_us) {
  std::vector<test::GraphOp> ops(kLayers);
  for (std::uint32_t i = 0; i < kLayers; ++i) {
    ops[i].tiles = workers;
    ops[i].spin_us = task_us;
    if (i > 0) ops[i].edges = {{i - 1, test::Reads::same_tile}};
  }
  return test::GraphPlan(ops, 1);
}

/// A report of one short task, the layer that it counts, the next report, ...
test::GraphPlan dynamic_plan(std::uint32_t task_us) {
  std::vector<test::GraphOp> ops(2 * kLayers);
  for (std::uint32_t i = 0; i < ops.size(); i += 2) {
    ops[i].report = static_cast<int>(i / 2);
    ops[i].report_count = kReportValues;
    if (i > 0) ops[i].edges = {{i - 1, test::Reads::same_tile}};
    ops[i + 1].tiles = kMaxRows;
    ops[i + 1].dynamic_report = static_cast<int>(i / 2);
    ops[i + 1].spin_us = task_us;
    ops[i + 1].edges = {{i, test::Reads::all}};
  }
  return test::GraphPlan(ops, 1);
}

class Measurement {
 public:
  Measurement(const Arm& arm, const Point& point, const CrossoverOptions& options)
      : arm_(arm), point_(point), options_(options) {}

  Status run() {
    auto device = open_device({.kind = "cuda", .workers = options_.workers});
    if (!device.ok()) return device.status();
    info_ = (*device)->info();
    const bool dynamic = std::string_view(point_.program) == "dynamic";
    const test::GraphPlan plan = dynamic ? dynamic_plan(point_.task_us) : fixed_plan(info_.workers, point_.task_us);
    EngineOptions options;
    options.arm = arm_.arm;
    options.policy = arm_.policy;
    options.slots = 2;
    options.link_delay = std::chrono::microseconds(point_.delay_us);
    const bool timeline = !options_.trace.empty() && std::string_view(arm_.arm) != "stream" && std::string_view(arm_.arm) != "graph";
    options.trace_records = timeline ? 4096 : 0;
    auto engine = Engine::create(std::move(*device), plan.program(ccks_image_graph_worker), options);
    if (!engine.ok()) return engine.status();
    CCKS_RETURN_IF_ERROR(engine->start());
    for (std::uint32_t i = 0; i < kWarmRuns + options_.runs; ++i) {
      if (i == kWarmRuns) before_ = engine->stats();
      CCKS_RETURN_IF_ERROR(sample(*engine, i >= kWarmRuns));
    }
    after_ = engine->stats();
    const auto tasks = engine->tasks_per_run({});
    if (!tasks.ok()) return tasks.status();
    tasks_a_run_ = static_cast<double>(*tasks);
    CCKS_RETURN_IF_ERROR(check(plan));
    print();
    last_ = Run();
    if (!timeline) return {};
    CCKS_RETURN_IF_ERROR(engine->drain(std::chrono::seconds(10)));
    return engine->write_trace(fmt::format("{}.{}.{}.json", options_.trace, point_.program, arm_.name));
  }

 private:
  Status sample(Engine& engine, bool keep) {
    last_ = Run();
    const std::uint64_t start = now_ns();
    auto run = engine.submit({});
    if (!run.ok()) return run.status();
    while (run->poll() < RunState::done) {
    }
    if (keep) us_.push_back(static_cast<double>(now_ns() - start) / 1e3);
    last_ = std::move(*run);
    return last_.wait();
  }

  std::string_view arm() const { return arm_.arm; }
  /// Read-modify-writes in GPU memory. Of an op with one event each task adds to it once, however many tiles it has.
  double atomics_a_run(double decisions) const {
    if (arm() == "gpu_queue") return static_cast<double>(after_.queue_atomics - before_.queue_atomics) / options_.runs;
    return arm() == "static" ? tasks_a_run_ : arm() == "copilot" ? decisions : 0;
  }

  /// All values of all ops, and the time that their bodies take at least.
  Status check(const test::GraphPlan& plan) {
    const auto want = plan.expected(1, 0);
    ideal_us_ = body_us_ = 0;
    for (std::uint32_t op = 0; op < want.size(); ++op) {
      std::vector<std::uint64_t> got(want[op].size());
      CCKS_RETURN_IF_ERROR(last_.read_output(test::GraphPlan::output(op), std::as_writable_bytes(std::span(got))));
      if (got != want[op]) return {ErrorCode::invalid_data, fmt::format("wrong values of op {}", op)};
      const auto ran = static_cast<std::uint32_t>(got.size() - static_cast<std::size_t>(std::count(got.begin(), got.end(), 0)));
      ideal_us_ += (ran + info_.workers - 1) / info_.workers * plan.ops()[op].spin_us;
      body_us_ += ran * plan.ops()[op].spin_us;
    }
    return {};
  }

  void print() const {
    const double runs = options_.runs;
    const auto a_run = [&](std::uint64_t EngineStats::*count) { return static_cast<double>(after_.*count - before_.*count) / runs; };
    const double publications = a_run(&EngineStats::publications);
    const double decisions = a_run(&EngineStats::decisions);
    Line line("crossover", arm_.name);
    line.text("device", info_.name).number("workers", info_.workers).text("program", point_.program);
    line.number("task_us", point_.task_us).number("delay_us", point_.delay_us).number("ideal_us", ideal_us_);
    line.number("sent_a_run", a_run(&EngineStats::tasks_sent)).number("records_a_run", a_run(&EngineStats::records_received));
    line.number("decisions_a_publication", publications > 0 ? decisions / publications : 0);
    line.number("scheduler_us_a_run", a_run(&EngineStats::scheduler_busy_ns) / 1e3);
    line.number("atomics_a_run", atomics_a_run(decisions));
    // Of all workers: time in which a body might have run and none did, and for a queue what it spent on itself.
    line.number("gpu_us_outside_bodies_a_run", median(us_) * info_.workers - body_us_);
    if (arm() == "gpu_queue") {
      line.number("queue_us_a_run", a_run(&EngineStats::queue_ns) / 1e3).number("queue_polls_a_run", a_run(&EngineStats::queue_polls));
    }
    line.number("scheduling_us_a_run", median(us_) - ideal_us_);
    line.samples("us", us_).print();
  }

  const Arm& arm_;
  const Point& point_;
  const CrossoverOptions& options_;
  DeviceInfo info_;
  EngineStats before_, after_;
  Run last_;
  double ideal_us_ = 0;  // on the critical path
  double body_us_ = 0;   // of all tiles
  double tasks_a_run_ = 0;
  std::vector<double> us_;
};

/// How many 64-byte lines the link carries for each decision, by how many go to one worker at once.
void link_writes() {
  for (const std::uint32_t batch : {1u, 2u, 4u, 8u, 16u, 32u}) {
    std::vector<wire::Task> slots(256);
    wire::RingProducer<wire::Task, wire::HostAtoms> ring(slots.data(), static_cast<wire::u32>(slots.size()));
    for (int publication = 0; publication < 1000; ++publication) {
      for (std::uint32_t i = 0; i < batch; ++i) (void)ring.push({});
      ring.publish();
      ring.credit(ring.position());
    }
    Line("link_writes", "one worker's inbox")
        .number("decisions_a_publication", batch)
        .number("lines_a_decision", static_cast<double>(ring.traffic().link_writes) / static_cast<double>(ring.traffic().items))
        .print();
  }
}

}  // namespace

int bench_crossover(const CrossoverOptions& options) {
  link_writes();
  const auto keeps_context = open_device({.kind = "cuda"});  // making one takes longer than many a point
  if (!keeps_context.ok()) return kNoGpu;
  int worst = 0;
  for (const std::string& program : options.programs) {
    for (const std::uint32_t task_us : options.task_us) {
      for (const Arm& arm : kArms) {
        if (!options.arms.empty() && std::find(options.arms.begin(), options.arms.end(), arm.name) == options.arms.end()) continue;
        for (const std::uint32_t delay_us : options.delay_us) {
          if (!arm.feels_link && delay_us != options.delay_us.front()) continue;
          const Point point{program.c_str(), task_us, delay_us};
          const Status status = Measurement(arm, point, options).run();
          if (status.ok()) continue;
          fmt::print(stderr, "crossover, {} {}, {} us, {} us each way: {}\n", arm.name, program, task_us, delay_us, status.to_string());
          if (status.code() == ErrorCode::unavailable) return kNoGpu;
          if (status.code() == ErrorCode::unsupported) break;
          worst = std::max(worst, status.code() == ErrorCode::invalid_data ? 3 : 4);
        }
      }
    }
  }
  return worst;
}

}  // namespace ccks::bench

#else

namespace ccks::bench {
int bench_crossover(const CrossoverOptions&) {
  fmt::print(stderr, "crossover: built without CUDA\n");
  return kNoGpu;
}
}  // namespace ccks::bench

#endif

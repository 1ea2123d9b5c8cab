// Question: what does a decision cost the scheduler thread, and how many tasks a second does one thread keep going?
// Arms: the policies over chains and over independent tasks, all empty, with workers that answer at once on the same
// thread (the scheduler's own cost). bench_dispatch_device.cpp has the arms with real workers.
#include "bench/bench_dispatch.hpp"

#include <fmt/format.h>

#include "bench/bench_report.hpp"
#include "bench/bench_stub.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {
namespace {

using scheduler::PolicyKind;
using scheduler::Spine;

struct Shape {
  std::string name;
  std::uint32_t ops;
  std::uint32_t tiles;  // of each op
  bool chain;           // every op waits for all of the one before
};

struct Way {
  const char* name;
  PolicyKind policy;
  Spine spine;
};

constexpr Way kWays[] = {{"static", PolicyKind::fixed, Spine::whole},
                         {"lookahead, lists", PolicyKind::lookahead, Spine::stretches},
                         {"lookahead, tiles", PolicyKind::lookahead, Spine::tiles},
                         {"reactive", PolicyKind::reactive, Spine::tiles}};

test::GraphPlan empty_tasks(const Shape& shape) {
  std::vector<test::GraphOp> ops(shape.ops);
  for (std::uint32_t i = 0; i < shape.ops; ++i) {
    ops[i].tiles = shape.tiles;
    if (shape.chain && i > 0) ops[i].edges = {{i - 1, test::Reads::all}};
  }
  return test::GraphPlan(ops, 1);
}

void stub_arm(const test::GraphPlan& plan, const Shape& shape, const Way& way, std::uint32_t workers,
              const DispatchOptions& options) {
  constexpr std::uint32_t kRuns = 16;
  StubScheduler stub(plan.view(), way.policy, way.spine, workers, 8);
  std::vector<double> per_message;
  std::vector<double> per_task;
  StubResult last;
  (void)stub.run(kRuns);
  for (std::uint32_t i = 0; i < options.runs; ++i) {
    last = stub.run(kRuns);
    per_message.push_back(static_cast<double>(last.step_ns) / static_cast<double>(last.decisions));
    per_task.push_back(static_cast<double>(last.step_ns) / static_cast<double>(last.tasks));
  }
  Line line("dispatch", fmt::format("stub workers, {}, {}", way.name, shape.name));
  line.number("workers", workers)
      .number("tasks_a_run", static_cast<double>(last.tasks) / kRuns)
      .number("messages_a_run", static_cast<double>(last.decisions) / kRuns)
      .number("messages_per_record", static_cast<double>(last.decisions) / static_cast<double>(last.records))
      .number("messages_per_publication", static_cast<double>(last.decisions) / static_cast<double>(last.publications));
  line.samples("ns_per_task", per_task).samples("ns_per_message", per_message).print();
}

}  // namespace

int bench_dispatch(const DispatchOptions& options) {
  const std::uint32_t many = options.workers == 0 ? 128 : options.workers;
  for (const std::uint32_t workers : {2u, many}) {
    const Shape shapes[] = {
        {"1024 independent tasks", 1024, 1, false},
        {"a chain of 1024 tasks", 1024, 1, true},
        {"64 independent ops of four tasks a worker", 64, 4 * workers, false},
        {"a chain of 64 layers of a task a worker", 64, workers, true},
    };
    for (const Shape& shape : shapes) {
      const test::GraphPlan plan = empty_tasks(shape);
      for (const Way& way : kWays) stub_arm(plan, shape, way, workers, options);
    }
  }
  return dispatch_device_arms(options) ? 0 : 4;
}

}  // namespace ccks::bench

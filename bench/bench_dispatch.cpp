// Question: what does a decision cost the scheduler thread, and how many tasks a second does one thread keep going?
// Arms: lists and lookahead (and reactive) over a chain and over independent tasks, all empty; with workers that answer
// at once on the same thread (the scheduler's own cost). bench_dispatch_device.cpp has the arms with real workers.
#include "bench/bench_dispatch.hpp"

#include <fmt/format.h>

#include "bench/bench_report.hpp"
#include "bench/bench_stub.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {
namespace {

using scheduler::PolicyKind;

constexpr std::uint32_t kTasks = 1024;

test::GraphPlan empty_tasks(bool chain) {
  std::vector<test::GraphOp> ops(kTasks);
  for (std::uint32_t i = 1; chain && i < kTasks; ++i) ops[i].edges = {{i - 1, test::Reads::all}};
  return test::GraphPlan(ops, 1);
}

void stub_arm(const test::GraphPlan& plan, const char* shape, PolicyKind policy, std::uint32_t workers,
              const DispatchOptions& options) {
  StubScheduler stub(plan.view(), policy, workers, 8);
  std::vector<double> per_decision;
  std::vector<double> per_task;
  StubResult last;
  (void)stub.run(16);
  for (std::uint32_t i = 0; i < options.runs; ++i) {
    last = stub.run(16);
    const std::uint64_t tasks = policy == PolicyKind::fixed ? last.list_tasks : last.decisions;
    per_decision.push_back(static_cast<double>(last.step_ns) / static_cast<double>(last.decisions));
    per_task.push_back(static_cast<double>(last.step_ns) / static_cast<double>(tasks));
  }
  Line line("dispatch", fmt::format("stub workers, {} {}", scheduler::policy_name(policy), shape));
  line.number("workers", workers)
      .number("decisions_per_publication",
              static_cast<double>(last.decisions) / static_cast<double>(last.publications));
  line.samples("ns_per_decision", per_decision);
  Line tasks("dispatch", fmt::format("stub workers, {} {}, per task", scheduler::policy_name(policy), shape));
  tasks.number("workers", workers).samples("ns_per_task", per_task);
  line.print();
  tasks.print();
}

}  // namespace

int bench_dispatch(const DispatchOptions& options) {
  const std::uint32_t stub_workers = options.workers == 0 ? 128 : options.workers;
  for (const bool chain : {true, false}) {
    const test::GraphPlan plan = empty_tasks(chain);
    const char* shape = chain ? "chain" : "independent";
    for (const PolicyKind policy : {PolicyKind::fixed, PolicyKind::lookahead, PolicyKind::reactive}) {
      stub_arm(plan, shape, policy, 2, options);
      stub_arm(plan, shape, policy, stub_workers, options);
    }
  }
  return dispatch_device_arms(options) ? 0 : 4;
}

}  // namespace ccks::bench

// sim_figures: every arm of a results file beside its prediction. For whoever renews gpu/sim/costs.cpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "tests/sim/figures.hpp"

int main(int argc, char** argv) {
  using namespace ccks;
  CLI::App app("What the simulated device predicts, beside what a GPU took. All times in nanoseconds.");
  std::string file, only;
  test::sim::Simulated simulated;
  gpu::sim::StageCosts& stages = simulated.costs.stages;
  gpu::sim::SchedulerCosts& scheduler = simulated.costs.scheduler;
  app.add_option("results", file, "A file of bench/results, or a path")->required();
  app.add_option("--only", only, "Arms whose name has this");
  app.add_option("--stage", stages.stage_ns, "The slowest stage of a worker")->capture_default_str();
  app.add_option("--contact", stages.contact_ns, "A task that finds the pipeline empty")->capture_default_str();
  app.add_option("--release", simulated.link.link_release_ns, "A release across the link")->capture_default_str();
  app.add_option("--look", simulated.link.event_read_ns, "A look at an event")->capture_default_str();
  app.add_option("--add", simulated.link.event_write_ns, "An add, until others see it")->capture_default_str();
  app.add_option("--event-release", simulated.link.release_ns, "A release to device memory")->capture_default_str();
  app.add_option("--read", simulated.link.read_ns, "A read across the link")->capture_default_str();
  app.add_option("--crowd", simulated.link.crowd_ns, "On top, while 132 workers poll")->capture_default_str();
  app.add_option("--turn", stages.turn_ns, "From a body to the next")->capture_default_str();
  app.add_option("--join", stages.join_ns, "From a body to the next of a strand")->capture_default_str();
  app.add_option("--begin", stages.begin_ns, "From an event seen to the body")->capture_default_str();
  app.add_option("--end", stages.end_ns, "From the body to its signal")->capture_default_str();
  app.add_option("--report", stages.report_ns, "Copying a report")->capture_default_str();
  app.add_option("--spin", stages.spin_ns, "Between two looks at an event")->capture_default_str();
  app.add_option("--decision", scheduler.decision_ns, "The scheduler, a decision")->capture_default_str();
  app.add_option("--op", scheduler.op_ns, "The scheduler, another op")->capture_default_str();
  app.add_option("--ready", scheduler.ready_ns, "The scheduler, a task of `reactive` besides")->capture_default_str();
  app.add_option("--run", scheduler.run_ns, "The scheduler, a run begun")->capture_default_str();
  app.add_option("--message", scheduler.message_ns, "The scheduler, a task and its answer")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  fmt::print("{:<64} {:>10} {:>10} {:>7}\n", "arm", "recorded", "predicted", "off");
  for (const test::sim::Figure& figure : test::sim::figures()) {
    if (std::string(figure.arm).find(only) == std::string::npos) continue;
    const double measured = recorded(file, figure), predicted = figure.predict(simulated);
    const std::string off = measured == 0 ? "-" : fmt::format("{:+.0f} %", 100 * (predicted / measured - 1));
    fmt::print("{:<64} {:>10.4g} {:>10.4g} {:>7}{}\n", figure.arm, measured, predicted, off, figure.held ? "" : "  (not held)");
  }
  return 0;
}

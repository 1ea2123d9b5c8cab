// ccks-bench: benchmarks as subcommands. Each prints JSON lines; redirect them to bench/results/.
#include <CLI/CLI.hpp>
#include <iostream>

#include "bench/bench_dispatch.hpp"
#include "bench/bench_gpu.hpp"
#include "bench/bench_micro.hpp"
#include "bench/bench_report.hpp"

int bench_matmul_main();

int main(int argc, char** argv) {
  CLI::App app("Benchmarks. Each prints JSON lines with commit and machine.", "ccks-bench");
  app.require_subcommand(1);
  app.footer(std::string("Results are kept as bench/results/<date>.") + ccks::bench::commit() + "." +
             ccks::bench::machine_name() + ".jsonl");
  ccks::bench::DispatchOptions dispatch;
  CLI::App* dispatch_app =
      app.add_subcommand("dispatch", "Cost of a decision, tasks per second of one scheduler thread");
  dispatch_app->add_option("--device", dispatch.device, "Device of the end-to-end arms")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  dispatch_app->add_option("--workers", dispatch.workers, "Workers; 0: the device's default, 128 stub workers");
  dispatch_app->add_option("--runs", dispatch.runs, "Samples per arm")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_subcommand("matmul", "Host matmul on one core against OpenBLAS, where it is installed");
  ccks::bench::MemoryOptions memory;
  CLI::App* memory_app = app.add_subcommand("memory", "Resident memory over many runs");
  memory_app->add_option("--device", memory.device, "Device")->check(CLI::IsMember({"host"}))->capture_default_str();
  memory_app->add_option("--runs", memory.runs, "Runs")->check(CLI::Range(100, 1'000'000'000))->capture_default_str();
  ccks::bench::ReactionOptions reaction;
  CLI::App* reaction_app = app.add_subcommand("reaction", "Value on the GPU to decision to another worker's start");
  reaction_app->add_option("--runs", reaction.runs, "Runs")->check(CLI::Range(30, 1'000'000))->capture_default_str();
  reaction_app->add_option("--workers", reaction.workers, "Workers; 0: one a multiprocessor");
  reaction_app->add_option("--trace", reaction.trace, "Where timelines go: FILE.<policy>.json");
  ccks::bench::MicroOptions micro;
  micro.specs = CCKS_BENCH_SPECS;
  CLI::App* micro_app = app.add_subcommand("micro", "Programs of many small ops, from submit to done");
  micro_app->add_option("--device", micro.device, "Device")->check(CLI::IsMember({"auto", "host", "cuda"}))->capture_default_str();
  micro_app->add_option("--code", micro.code, "Worker code: auto, generic, jit")->check(CLI::IsMember({"auto", "generic", "jit"}))->capture_default_str();
  micro_app->add_option("--runs", micro.runs, "Samples per arm")->check(CLI::Range(30, 1'000'000))->capture_default_str();
  micro_app->add_option("--pause-us", micro.pause_us, "Between two runs, on average: each pause is from half of it to one and a half")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  micro_app->add_flag("--no-prime", micro.no_prime, "Every run is sent by the scheduler's thread (EngineOptions::prime_runs)");
  micro_app->add_option("--only", micro.only, "Workloads")->check(CLI::IsMember(ccks::bench::micro_workloads()));
  micro_app->add_option("--arms", micro.arms, "Arms, one word each")->check(CLI::IsMember(ccks::bench::micro_arms()));
  micro_app->add_option("--specs", micro.specs, "Folder of the specs");
  ccks::bench::CrossoverOptions crossover;
  CLI::App* crossover_app = app.add_subcommand("crossover", "Arms against length of tasks and delay of the link");
  crossover_app->add_option("--task-us", crossover.task_us, "Lengths of tasks")->capture_default_str();
  crossover_app->add_option("--delay-us", crossover.delay_us, "Delays each way; arms without a link take the first")->capture_default_str();
  crossover_app->add_option("--runs", crossover.runs, "Samples per point")->check(CLI::Range(30, 1'000'000))->capture_default_str();
  crossover_app->add_option("--workers", crossover.workers, "Workers; 0: one a multiprocessor");
  crossover_app->add_option("--programs", crossover.programs, "Programs")->check(CLI::IsMember({"fixed", "dynamic"}))->capture_default_str();
  crossover_app->add_option("--arms", crossover.arms, "Arms, one word each; all if none is named")->check(CLI::IsMember(ccks::bench::crossover_arms()));
  crossover_app->add_option("--trace", crossover.trace, "Where timelines go: FILE.<program>.<arm>.json; tracing costs time");
  ccks::bench::HandoffOptions handoff;
  CLI::App* handoff_app = app.add_subcommand("handoff", "How long the workers stand still for new code, under load");
  handoff_app->add_option("--handoffs", handoff.handoffs, "Handoffs")->check(CLI::Range(30, 100'000))->capture_default_str();
  handoff_app->add_option("--every-ms", handoff.every_ms, "Pause between two")->check(CLI::Range(1, 1000))->capture_default_str();
  handoff_app->add_option("--load", handoff.load, "Part of the rate that the engine can do")->check(CLI::Range(0.01, 1.0))->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error, std::cout, std::cerr) == 0 ? 0 : 2;
  }
  if (*dispatch_app) return ccks::bench::bench_dispatch(dispatch);
  if (*memory_app) return ccks::bench::bench_memory(memory);
  if (*crossover_app) return ccks::bench::bench_crossover(crossover);
  if (*micro_app) return ccks::bench::bench_micro(micro);
  if (*handoff_app) return ccks::bench::bench_handoff(handoff);
  if (*reaction_app) return ccks::bench::bench_reaction(reaction);
  ccks::bench::Line("matmul", "commit and machine of the lines below").print();
  return bench_matmul_main();
}

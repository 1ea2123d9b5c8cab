// Question: does memory grow with the number of runs?
#include <algorithm>

#include "bench/bench_dispatch.hpp"
#include "bench/bench_report.hpp"
#include "ccks/engine.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {

int bench_memory(const MemoryOptions& options) {
  const test::GraphPlan plan(test::layered_graph(1));
  Result<std::unique_ptr<Device>> device = open_device({.kind = options.device});
  if (!device.ok()) return 4;
  Result<Engine> engine = Engine::create(std::move(*device), plan.program(), {});
  if (!engine.ok() || !engine->start().ok()) return 4;
  const std::uint32_t warm = std::max<std::uint32_t>(options.runs / 100, 1);
  std::uint64_t after_warm_up = 0;
  const std::uint64_t start = now_ns();
  for (std::uint32_t i = 0; i < options.runs; ++i) {
    RunRequest request;
    request.dims = {{"n", 1 + i / 1000 % 8}};  // frames are rebuilt now and then
    if (Result<Run> run = engine->submit(std::move(request)); !run.ok()) return 4;
    if (i == warm) after_warm_up = resident_bytes();
  }
  if (!engine->drain(std::chrono::seconds(600)).ok()) return 4;
  const std::uint64_t at_end = resident_bytes();
  const double seconds = static_cast<double>(now_ns() - start) / 1e9;
  // A page table or a stack page more is no growth; a byte a run would be.
  const bool flat = at_end <= after_warm_up + std::max<std::uint64_t>(options.runs, 256 * 1024);
  Line("memory", "runs through one engine")
      .text("device", engine->device_info().kind)
      .number("runs", options.runs)
      .number("resident_after_warm_up", static_cast<double>(after_warm_up))
      .number("resident_at_end", static_cast<double>(at_end))
      .number("runs_per_second", options.runs / seconds)
      .text("flat", flat ? "yes" : "no")
      .print();
  return flat ? 0 : 3;
}

}  // namespace ccks::bench

#include "scheduler/policy_static.hpp"

namespace ccks::scheduler {

void StaticPolicy::on_start(RunSlot& run) { run.worker_base = first_worker(run, tables_, run.instance.has_idle_workers()); }

std::uint32_t StaticPolicy::advance(RunSlot& run, Batch& batch, WorkerLoads& loads, std::uint32_t) {
  const std::uint32_t stretch = run.progress.next_stretch();
  const bool sent = stretch != plan::kNone && append_lists(run, tables_, stretch, batch, loads);
  run.all_sent = run.progress.all_sent();
  return sent ? 1 : 0;
}

}  // namespace ccks::scheduler

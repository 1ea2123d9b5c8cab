#include "scheduler/policy.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/policy_lookahead.hpp"
#include "scheduler/policy_queue.hpp"
#include "scheduler/policy_reactive.hpp"
#include "scheduler/policy_static.hpp"

namespace ccks::scheduler {

void WorkerLoads::reserve(std::uint32_t workers, std::uint32_t inbox_slots) {
  tasks_.assign(workers, 0);
  cost_.assign(workers, 0.0);
  inbox_slots_ = inbox_slots;
  per_worker_ = 1.0 / workers;
}

std::uint32_t WorkerLoads::choose_other(std::uint32_t preferred, std::uint32_t window) {
  const std::uint32_t count = workers();
  const std::uint32_t a = turn_;
  const std::uint32_t b = a + 1 == count ? 0 : a + 1;
  turn_ = b;
  const std::uint32_t better = cost_[a] <= cost_[b] ? a : b;
  const std::uint32_t best = cost_[better] < cost_[preferred] ? better : preferred;
  return has_room(best, window) ? best : least_loaded(window);
}

std::uint32_t WorkerLoads::least_loaded(std::uint32_t window) const {
  std::uint32_t best = plan::kNone;
  for (std::uint32_t w = 0; w < workers(); ++w) {
    if (has_room(w, window) && (best == plan::kNone || cost_[w] < cost_[best])) best = w;
  }
  return best;
}

Result<PolicyKind> parse_policy(std::string_view name) {
  for (const PolicyKind kind : {PolicyKind::fixed, PolicyKind::lookahead, PolicyKind::reactive}) {
    if (name == policy_name(kind)) return kind;
  }
  return {ErrorCode::invalid_argument, fmt::format("no policy '{}': there are static, lookahead and reactive", name)};
}

const char* policy_name(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::fixed:
      return "static";
    case PolicyKind::lookahead:
      return "lookahead";
    case PolicyKind::reactive:
      return "reactive";
    case PolicyKind::queue:
      return "gpu_queue";
  }
  return "unknown";
}

Spine spine_of(PolicyKind kind, Spine asked) {
  if (kind == PolicyKind::fixed) return Spine::whole;
  return kind == PolicyKind::lookahead ? asked : Spine::tiles;
}

std::unique_ptr<Policy> make_policy(PolicyKind kind, const PlanTables& tables, std::uint32_t slots) {
  switch (kind) {
    case PolicyKind::fixed:
      return std::make_unique<StaticPolicy>(tables);
    case PolicyKind::lookahead:
      return std::make_unique<LookaheadPolicy>(tables);
    case PolicyKind::reactive:
      return std::make_unique<ReactivePolicy>(tables, slots);
    case PolicyKind::queue:
      return std::make_unique<QueuePolicy>(tables);
  }
  return nullptr;
}

std::uint32_t first_worker(const RunSlot& run, const PlanTables& tables, bool leaves_workers_idle) {
  return leaves_workers_idle && !run.alone ? run.ordinal % tables.workers : 0;
}

bool append_lists(RunSlot& run, const PlanTables& tables, std::uint32_t stretch, Batch& batch, WorkerLoads& loads) {
  const std::uint32_t workers = tables.workers;
  const std::uint32_t first = stretch * workers;
  const std::span<const std::uint32_t> filled = run.instance.filled_lists(stretch);
  const auto worker_of = [&](std::size_t i) { return worker_of_list(run.worker_base, filled[i] - first, workers); };
  for (std::size_t i = 0; i < filled.size(); ++i) {
    if (!loads.has_room(worker_of(i), loads.inbox_slots())) return false;
  }
  Decision& out = batch.items[batch.count++];
  out = {};
  out.tile = first;
  out.amount = workers;
  out.tasks = static_cast<std::uint16_t>(filled.size());
  out.op = wire::kOpList;
  out.worker = static_cast<std::uint16_t>(run.worker_base);
  out.slot_flags = static_cast<std::uint16_t>(run.index | (run.progress.skipping() ? wire::kTaskSkip : 0));
  out.reports = tables.stretches[stretch].reports > 0 ? 1 : 0;
  loads.add_each(filled.size(), worker_of, [&](std::size_t i) { return run.instance.list_cost(filled[i]); });
  run.progress.take_stretch(stretch);
  return true;
}

}  // namespace ccks::scheduler

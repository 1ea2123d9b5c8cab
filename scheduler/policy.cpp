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
  cost_.assign(workers, 0);
  inbox_slots_ = inbox_slots;
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

Decision list_start(const RunSlot& run, std::uint32_t worker) {
  Decision out;
  out.tile = worker;
  out.cost = 1;
  out.op = wire::kOpList;
  out.worker = static_cast<std::uint16_t>(worker);
  out.slot_flags = static_cast<std::uint16_t>(run.index);
  return out;
}

}  // namespace ccks::scheduler

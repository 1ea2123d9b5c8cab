#include "scheduler/guards.hpp"

#include <cstring>

namespace ccks::scheduler {
namespace {

template <class T>
bool holds(wire::Compare compare, T a, T b) {
  switch (compare) {
    case wire::Compare::eq:
      return a == b;
    case wire::Compare::ne:
      return a != b;
    case wire::Compare::lt:
      return a < b;
    case wire::Compare::le:
      return a <= b;
    case wire::Compare::gt:
      return a > b;
    case wire::Compare::ge:
      return a >= b;
  }
  return true;
}

template <class T>
bool holds_at(const plan::GuardDesc& guard, const std::byte* report) {
  T value;
  std::memcpy(&value, report, sizeof(T));
  return holds(static_cast<wire::Compare>(guard.compare), value, static_cast<T>(guard.value));
}

}  // namespace

bool guards_known_false(const plan::PlanView& plan, const RunSlot& run, std::uint32_t op) {
  const plan::OpDesc& desc = plan.ops[op];
  for (std::uint32_t g = 0; g < desc.guard_count; ++g) {
    const plan::GuardDesc& guard = plan.guards[desc.guard_first + g];
    if (!run.progress.report_seen(guard.report)) continue;
    const std::byte* report = run.instance.reports() + plan.reports[guard.report].offset;
    if (!(guard.is_float ? holds_at<float>(guard, report) : holds_at<std::int32_t>(guard, report))) return true;
  }
  return false;
}

bool guards_seen(const plan::PlanView& plan, const RunSlot& run, std::uint32_t op) {
  const plan::OpDesc& desc = plan.ops[op];
  for (std::uint32_t g = 0; g < desc.guard_count; ++g) {
    if (!run.progress.report_seen(plan.guards[desc.guard_first + g].report)) return false;
  }
  return true;
}

}  // namespace ccks::scheduler

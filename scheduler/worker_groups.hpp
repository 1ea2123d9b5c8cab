// WorkerGroups: workers that share runs. Consecutive ones, as many as the tables are made for, so that a policy sees a group as if it were the device; those left over have no runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// One thread.
class WorkerGroups {
 public:
  /// Of `workers` workers, `size` a group.
  void reserve(std::uint32_t workers, std::uint32_t size, std::uint32_t inbox_slots) {
    groups_.resize(workers / size);
    group_of_.assign(workers, static_cast<std::uint32_t>(groups_.size()));
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      groups_[g].first = g * size;
      groups_[g].loads.reserve(size, inbox_slots);
      std::fill_n(group_of_.begin() + g * size, size, g);
    }
  }
  /// The run goes to the group that has fewest.
  void join(RunSlot& run) {
    const auto emptiest = std::min_element(groups_.begin(), groups_.end(), [](const Group& a, const Group& b) { return a.runs < b.runs; });
    ++emptiest->runs;
    run.group = static_cast<std::uint32_t>(emptiest - groups_.begin());
    run.first_worker = emptiest->first;
  }
  void leave(const RunSlot& run) { --groups_[run.group].runs; }

  bool is_alone(const RunSlot& run) const { return groups_[run.group].runs == 1; }
  bool is_one() const { return groups_.size() == 1; }
  WorkerLoads& loads_of(const RunSlot& run) { return groups_[run.group].loads; }
  /// Tasks that `worker` has.
  std::uint32_t tasks_of(std::uint32_t worker) const {
    if (group_of_[worker] == groups_.size()) return 0;
    const Group& group = groups_[group_of_[worker]];
    return group.loads.tasks(worker - group.first);
  }
  bool any_tasks() const {
    return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.loads.total_tasks() > 0; });
  }

 private:
  struct Group {
    WorkerLoads loads;
    std::uint32_t first = 0;
    std::uint32_t runs = 0;  // active ones
  };
  std::vector<Group> groups_;
  std::vector<std::uint32_t> group_of_;  // per worker; groups_.size(): none
};

}  // namespace ccks::scheduler

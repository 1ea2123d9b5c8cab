// QueueTables: the ready queue of one instance as it lies in device memory (wire/queue.hpp). Built on the client's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ccks/wire/queue.hpp"
#include "scheduler/instance.hpp"

namespace ccks::scheduler {

struct QueueTables {
  std::vector<std::byte> fixed;     // from the QueueHead on
  std::uint64_t counter_bytes = 0;  // behind it, zero

  std::uint64_t bytes() const { return fixed.size() + counter_bytes; }
};

/// make_queue_tables cuts the ops of `instance` into tasks of their chunk and finds, for each event, the tasks that wait for
/// it. invalid_data if that takes more than 4 GiB.
Result<QueueTables> make_queue_tables(const PlanTables& tables, const Instance& instance);

}  // namespace ccks::scheduler

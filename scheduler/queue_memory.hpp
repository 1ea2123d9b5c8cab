// QueueMemory: where the ready queues of an engine's slots lie on the device.
#pragma once

#include <span>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/engine.hpp"
#include "scheduler/queue_tables.hpp"

namespace ccks::scheduler {

/// Slots are independent; calls for one slot come from the client that owns it.
class QueueMemory {
 public:
  /// Reserves what the queues take at the upper bounds of all symbols, if the plan can be evaluated there.
  Status reserve(Device& device, const PlanTables& tables, std::uint32_t slots);
  /// Writes the queue of `instance`, which has just been rebuilt, and enters it in its frame. A queue that is larger than at
  /// the upper bounds gets new memory: grids need not be largest where the symbols are.
  Status place(Device& device, const PlanTables& tables, std::uint32_t slot, Instance& instance);
  /// What the workers' lines say of their queues.
  void add_cost(const wire::WorkerParams& params, EngineStats& stats) const;

 private:
  struct Block {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  static Status grow(Device& device, Block& block, std::uint64_t bytes);
  std::vector<Block> blocks_;
};

}  // namespace ccks::scheduler

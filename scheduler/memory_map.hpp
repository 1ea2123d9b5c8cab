// MemoryMap: everything an engine reserves on its device, once.
#pragma once

#include <cstdint>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/engine.hpp"
#include "scheduler/plan_tables.hpp"
#include "scheduler/slot.hpp"

namespace ccks::scheduler {

struct MemoryMap {
  wire::WorkerParams params{};
  std::uint64_t weights = 0;
  std::uint64_t states = 0;
  std::uint64_t state_stride = 0;
  std::vector<SlotMemory> slots;
  std::uint64_t state(std::uint32_t index) const { return states + index * state_stride; }
};

/// Whether any op may come to stream (wire/op_shape.hpp says which do, at which dims): a product of 16-bit weights. For others
/// WorkerParams::stream_stages is 0: a ring would only take memory that the caches of a GPU's processors use.
bool may_stream(const plan::PlanView& plan);

/// reserve_memory allocates rings, lines, reports, frames, arenas, events, weights and states, and writes the frame
/// table.
Result<MemoryMap> reserve_memory(Device& device, const PlanTables& tables, const EngineOptions& options);

}  // namespace ccks::scheduler

#include "scheduler/queue_memory.hpp"

#include <algorithm>

#include "ccks/wire/atoms.hpp"
#include "scheduler/dims.hpp"

namespace ccks::scheduler {

Status QueueMemory::reserve(Device& device, const PlanTables& tables, std::uint32_t slots) {
  blocks_.resize(slots);
  std::vector<std::int64_t> symbols;
  for (const plan::SymbolDesc& symbol : tables.plan.symbols) symbols.push_back(symbol.hi);
  std::vector<std::int64_t> dims(tables.plan.dims.size());
  if (!evaluate_plan(tables.plan, symbols, dims).ok()) return {};  // then place() reserves
  Instance largest;
  largest.reserve(tables);
  if (!largest.rebuild(tables, symbols, dims, SlotMemory{}, 0, 0, 0).ok()) return {};
  const Result<QueueTables> queue = make_queue_tables(tables, largest);
  if (!queue.ok()) return queue.status();
  for (Block& block : blocks_) CCKS_RETURN_IF_ERROR(grow(device, block, queue->bytes()));
  return {};
}

// Doubling: what has been outgrown is at most as much again, and goes with the device.
Status QueueMemory::grow(Device& device, Block& block, std::uint64_t bytes) {
  if (block.bytes >= bytes) return {};
  const std::uint64_t wanted = std::max(bytes, 2 * block.bytes);
  const Result<std::uint64_t> address = device.allocate(wanted, MemoryKind::device);
  if (!address.ok()) return address.status();
  block = {*address, wanted};
  return {};
}

Status QueueMemory::place(Device& device, const PlanTables& tables, std::uint32_t slot, Instance& instance) {
  const Result<QueueTables> queue = make_queue_tables(tables, instance);
  if (!queue.ok()) return queue.status();
  Block& block = blocks_[slot];
  CCKS_RETURN_IF_ERROR(grow(device, block, queue->bytes()));
  CCKS_RETURN_IF_ERROR(device.write(block.address, queue->fixed.data(), queue->fixed.size()));
  CCKS_RETURN_IF_ERROR(device.fill_zero(block.address + queue->fixed.size(), queue->counter_bytes));
  instance.set_queue(block.address);
  return {};
}

// Relaxed: each word stands for itself; done records that the scheduler has taken came after.
void QueueMemory::add_cost(const wire::WorkerParams& params, EngineStats& stats) const {
  const auto* lines = reinterpret_cast<const wire::WorkerLine*>(params.worker_lines);
  const auto word = [](const wire::u64& of) { return wire::HostAtoms::link_load_relaxed(&of); };
  for (std::uint32_t w = 0; w < params.workers; ++w) {
    stats.queue_atomics += word(lines[w].queue_take_atomics) + word(lines[w].queue_push_atomics);
    stats.queue_polls += word(lines[w].queue_polls);
    stats.queue_ns += word(lines[w].queue_push_ns);
  }
}

}  // namespace ccks::scheduler

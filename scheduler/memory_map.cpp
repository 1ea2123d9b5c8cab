#include "scheduler/memory_map.hpp"

#include <algorithm>

#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of every part: no two slots share a cache line or a DRAM burst

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Collects the first failure, so that the list of parts reads as a list.
class Reserver {
 public:
  explicit Reserver(Device& device) : device_(device) {}
  std::uint64_t take(std::uint64_t bytes, MemoryKind kind) {
    if (!status_.ok() || bytes == 0) return 0;
    Result<std::uint64_t> address = device_.allocate(bytes, kind);
    if (!address.ok()) status_ = address.status();
    return address.ok() ? *address : 0;
  }
  const Status& status() const { return status_; }

 private:
  Device& device_;
  Status status_;
};

void reserve_links(Reserver& reserver, MemoryMap& map, const EngineOptions& options, std::uint32_t workers) {
  wire::WorkerParams& p = map.params;
  p.workers = workers;
  p.slots = options.slots;
  p.inbox_slots = kInboxSlots;
  p.outbox_slots = kOutboxSlots;
  p.trace_slots = options.trace_records;
  p.inboxes = reserver.take(workers * wire::ring_pitch(kInboxSlots), MemoryKind::link);
  p.outboxes = reserver.take(workers * wire::ring_pitch(kOutboxSlots), MemoryKind::link);
  p.worker_lines = reserver.take(std::uint64_t{workers} * sizeof(wire::WorkerLine), MemoryKind::link);
  p.host_lines = reserver.take(std::uint64_t{workers} * sizeof(wire::HostLine), MemoryKind::link);
  p.trace = reserver.take(std::uint64_t{workers} * options.trace_records * sizeof(wire::TraceRecord), MemoryKind::link);
  p.frames = reserver.take(std::uint64_t{options.slots} * sizeof(std::uint64_t), MemoryKind::device);
}

void reserve_slots(Reserver& reserver, MemoryMap& map, const PlanTables& tables, std::uint32_t slots) {
  const plan::PlanView& plan = tables.plan;
  const std::uint64_t arena = aligned(tables.arena_bytes);
  const std::uint64_t events = aligned(std::uint64_t{tables.event_count} * sizeof(std::uint32_t));
  const std::uint64_t frame = aligned(tables.layout.max_bytes);
  const std::uint64_t reports = aligned(plan.report_bytes);
  const std::uint64_t arena_base = reserver.take(arena * slots, MemoryKind::device);
  const std::uint64_t event_base = reserver.take(events * slots, MemoryKind::device);
  const std::uint64_t frame_base = reserver.take(frame * slots, MemoryKind::device);
  const std::uint64_t report_base = reserver.take(reports * slots, MemoryKind::link);
  for (std::uint64_t i = 0; i < slots; ++i) {
    map.slots.push_back(
        {arena_base + i * arena, event_base + i * events, report_base + i * reports, frame_base + i * frame});
  }
}

std::uint64_t limit_ns(std::chrono::nanoseconds limit, std::uint64_t otherwise) {
  return limit.count() < 0 ? otherwise : static_cast<std::uint64_t>(limit.count());
}

}  // namespace

bool may_stream(const plan::PlanView& plan) {
  return std::any_of(plan.ops.begin(), plan.ops.end(), [&](const plan::OpDesc& op) {
    if (op.kind != wire::OpCode::matmul || op.guard_count != 0) return false;
    const plan::OperandDesc& b = plan.operands[op.operand_first + 1];
    return b.space == wire::Space::weights && (b.dtype == wire::Dtype::bf16 || b.dtype == wire::Dtype::f16);
  });
}

Result<MemoryMap> reserve_memory(Device& device, const PlanTables& tables, const EngineOptions& options) {
  MemoryMap map;
  Reserver reserver(device);
  const DeviceInfo info = device.info();
  reserve_links(reserver, map, options, info.workers);
  reserve_slots(reserver, map, tables, options.slots);
  map.weights = reserver.take(aligned(tables.plan.weight_bytes), MemoryKind::device);
  map.state_stride = aligned(tables.plan.state_bytes);
  map.states = reserver.take(map.state_stride * options.states, MemoryKind::device);
  CCKS_RETURN_IF_ERROR(reserver.status());
  wire::WorkerParams& p = map.params;
  p.scratch_bytes = tables.plan.scratch_bytes;
  p.stream_stages = may_stream(tables.plan) ? 1 : 0;
  p.spin_deadline_ns = static_cast<std::uint64_t>(options.spin_deadline.count());
  p.heartbeat_limit_ns = limit_ns(options.heartbeat_limit, 0);
  p.idle_limit_ns = limit_ns(options.idle_limit, info.kind == "cuda" ? kCudaIdleLimitNs : 0);
  for (std::uint32_t i = 0; i < options.slots; ++i) {
    CCKS_RETURN_IF_ERROR(
        device.write(p.frames + i * sizeof(std::uint64_t), &map.slots[i].frame, sizeof(std::uint64_t)));
  }
  return map;
}

}  // namespace ccks::scheduler

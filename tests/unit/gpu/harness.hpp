// Rig: rings, lines and one hand-made run frame on a device, for tests that talk to workers without a scheduler.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/wire/atoms.hpp"
#include "ccks/wire/event.hpp"
#include "ccks/worker/host_entry.hpp"

namespace ccks::gpu::testing {

inline std::uint64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// CountingOps adds to one arena word for each tile: word 64 + 64 * op + tile. dims[0] != 0: reports that fault code.
/// dims[1] != 0: fails with op_fault unless word dims[1] is already 1 (checks the order of events).
struct CountingOps {
  template <class Lanes>
  static wire::FaultCode run(Lanes&, const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tile) {
    auto* words = reinterpret_cast<wire::u32*>(frame.arena);
    if (op.dims[0] != 0) return static_cast<wire::FaultCode>(op.dims[0]);
    if (op.dims[1] != 0 && words[op.dims[1]] == 0) return wire::FaultCode::op_fault;
    words[op.dims[2] + static_cast<int>(tile)] += 1;
    return wire::FaultCode::none;
  }
};

/// FrameBuilder lays out a RunFrame for one slot.
struct FrameBuilder {
  std::vector<wire::OpParams> ops;
  std::vector<wire::OperandParams> operands;
  std::vector<wire::WaitParams> waits;
  std::vector<wire::SignalParams> signals;
  std::vector<wire::GuardParams> guards;
  std::vector<wire::u32> bases;
  std::vector<wire::ListParams> lists;
  std::vector<wire::Task> list_tasks;

  /// An op of `tiles` tiles along the last grid axis that counts into words from `word`.
  wire::OpParams& add_op(wire::i32 tiles, wire::i32 word) {
    wire::OpParams op{};
    op.tile_count = static_cast<wire::u32>(tiles);
    for (int i = 0; i < 4; ++i) op.grid[i] = op.tile[i] = 1;
    op.grid[3] = tiles;
    op.dims[2] = word;
    op.report = -1;
    ops.push_back(op);
    return ops.back();
  }
  /// The last op adds to one event, which gets `total` signals in a run.
  void signal_one(wire::u32 event, wire::u32 total) {
    ops.back().signal_first = static_cast<wire::u32>(signals.size());
    ops.back().signal_count = 1;
    signals.push_back({event, total, {-1, -1}, {0, 0}, 1, 0});
    if (bases.size() <= event) bases.resize(event + 1, 0);
  }
  /// Every tile of the last op waits for one event.
  void wait_one(wire::u32 event, wire::u32 total) {
    ops.back().wait_first = static_cast<wire::u32>(waits.size());
    ops.back().wait_count = 1;
    wire::WaitParams wait{};
    wait.event_first = event;
    wait.total = total;
    for (auto& axis : wait.axis) axis = {-1, 0, 0, 0, 1, 1, 0, 0};
    waits.push_back(wait);
  }

  std::vector<wire::u8> build(wire::u64 arena, wire::u64 events, wire::u64 reports, wire::u32 epoch0 = 0) const {
    std::vector<wire::u8> bytes(sizeof(wire::RunFrame));
    wire::RunFrame head{};
    head.arena = head.weights = head.state = arena;
    head.events = events;
    head.reports = reports;
    head.epoch0 = epoch0;
    head.op_count = static_cast<wire::u32>(ops.size());
    head.list_count = static_cast<wire::u32>(lists.size());
    head.event_count = static_cast<wire::u32>(bases.size());
    head.ops = append(bytes, ops);
    head.operands = append(bytes, operands);
    head.waits = append(bytes, waits);
    head.signals = append(bytes, signals);
    head.guards = append(bytes, guards);
    head.bases = append(bytes, bases);
    head.lists = append(bytes, lists);
    head.list_tasks = append(bytes, list_tasks);
    head.frame_bytes = static_cast<wire::u32>(bytes.size());
    std::memcpy(bytes.data(), &head, sizeof(head));
    return bytes;
  }

 private:
  template <class T>
  static wire::u32 append(std::vector<wire::u8>& bytes, const std::vector<T>& items) {
    bytes.resize((bytes.size() + 15) / 16 * 16);
    const auto at = static_cast<wire::u32>(bytes.size());
    bytes.resize(bytes.size() + items.size() * sizeof(T));
    if (!items.empty()) std::memcpy(bytes.data() + at, items.data(), items.size() * sizeof(T));
    return at;
  }
};

/// Rig owns nothing but the scheduler's side of the rings; memory belongs to the device.
struct Rig {
  Device& device;
  wire::WorkerParams params{};
  wire::u64 arena = 0, events = 0, reports = 0;
  std::vector<wire::RingProducer<wire::Task, wire::HostAtoms>> inboxes;
  std::vector<wire::RingConsumer<wire::Record, wire::HostAtoms>> outboxes;

  Rig(Device& dev, wire::u32 workers, wire::u32 slots_per_ring = 64) : device(dev) {
    params.workers = workers;
    params.slots = 1;
    params.inbox_slots = params.outbox_slots = slots_per_ring;
    params.inboxes = get(workers * wire::ring_pitch(slots_per_ring), MemoryKind::link);
    params.outboxes = get(workers * wire::ring_pitch(slots_per_ring), MemoryKind::link);
    params.worker_lines = get(workers * sizeof(wire::WorkerLine), MemoryKind::link);
    params.host_lines = get(workers * sizeof(wire::HostLine), MemoryKind::link);
    params.frames = get(sizeof(wire::u64), MemoryKind::device);
    params.spin_deadline_ns = 20'000'000'000;
    arena = get(64 * 1024, MemoryKind::device);
    events = get(4096, MemoryKind::device);
    reports = get(4096, MemoryKind::link);
    for (wire::u32 i = 0; i < workers; ++i) {
      inboxes.emplace_back(reinterpret_cast<wire::Task*>(wire::inbox_of(params, i)), slots_per_ring);
      outboxes.emplace_back(reinterpret_cast<wire::Record*>(wire::outbox_of(params, i)), slots_per_ring, 0);
    }
  }

  wire::u64 get(std::uint64_t bytes, MemoryKind kind) {
    auto address = device.allocate(bytes, kind);
    EXPECT_TRUE(address.ok()) << address.status().to_string();
    return address.ok() ? address.value() : 0;
  }

  void install(const FrameBuilder& builder, wire::u32 epoch0 = 0) {
    const auto bytes = builder.build(arena, events, reports, epoch0);
    const wire::u64 at = get(bytes.size(), MemoryKind::device);
    EXPECT_TRUE(device.write(at, bytes.data(), bytes.size()).ok());
    EXPECT_TRUE(device.write(params.frames, &at, sizeof(at)).ok());
  }

  void send(wire::u32 worker, wire::u16 op, wire::u32 tile, wire::u32 epoch = 0, wire::u16 flags = 0) {
    wire::Task task;
    task.op = op;
    task.tile = tile;
    task.epoch = epoch;
    task.slot_flags = flags;
    while (!inboxes[worker].push(task)) take(worker);
    inboxes[worker].publish();
    device.doorbell(worker);
  }

  /// Takes what worker `worker` has posted, giving credit both ways.
  std::vector<wire::Record> take(wire::u32 worker) {
    std::vector<wire::Record> out;
    wire::Record record;
    while (outboxes[worker].poll(record)) {
      if (record.kind() == wire::RecordKind::done) inboxes[worker].credit(record.value);
      out.push_back(record);
    }
    auto* line = reinterpret_cast<wire::HostLine*>(params.host_lines) + worker;
    wire::HostAtoms::link_store_release(&line->outbox_consumed, outboxes[worker].position());
    if (out.empty()) device.scheduler_wait(1'000'000);
    return out;
  }

  /// Collects records of `worker` until `count` have come; fewer after ten seconds.
  std::vector<wire::Record> take_until(wire::u32 worker, std::size_t count) {
    std::vector<wire::Record> all;
    const std::uint64_t deadline = steady_ns() + 10'000'000'000;
    while (all.size() < count && steady_ns() < deadline) {
      for (const auto& record : take(worker)) all.push_back(record);
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }

  wire::u32 word(wire::u32 index) {
    wire::u32 value = 0;
    EXPECT_TRUE(device.read(&value, arena + index * sizeof(value), sizeof(value)).ok());
    return value;
  }
  wire::u32 event(wire::u32 index) {
    wire::u32 value = 0;
    EXPECT_TRUE(device.read(&value, events + index * sizeof(value), sizeof(value)).ok());
    return value;
  }
  const wire::WorkerLine& line(wire::u32 worker) const {
    return reinterpret_cast<const wire::WorkerLine*>(params.worker_lines)[worker];
  }
  Status park_and_join() {
    for (wire::u32 i = 0; i < params.workers; ++i) send(i, wire::kOpPark, 0);
    return device.join(10'000'000'000);
  }
};

inline const WorkerImage& counting_image() {
  static const WorkerImage kImage{&worker::host_worker_main<CountingOps>, nullptr, 0};
  return kImage;
}

}  // namespace ccks::gpu::testing

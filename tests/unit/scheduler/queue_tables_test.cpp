// Ready queues: the tables against the waits of every tile, and the queue itself with threads that share several runs out.
#include "scheduler/queue_tables.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/ready_queue.hpp"
#include "tests/unit/scheduler/random_plan.hpp"

namespace ccks::scheduler {
namespace {

using wire::u32;
using wire::u64;

// A plan with its instance and its queue, in this process's memory.
struct Rig {
  static constexpr u32 kWorkers = 3;
  RandomPlan plan;
  PlanTables tables;
  Instance instance;
  QueueTables queue;
  std::vector<u32> events;
  std::unique_ptr<std::byte[]> memory;
  wire::QueueHead* head = nullptr;

  explicit Rig(u32 seed) : plan(seed) {
    tables = make_plan_tables(plan.view, kWorkers, Spine::tiles).value();
    instance.reserve(tables);
    std::vector<std::int64_t> dims;
    for (const plan::DimNode& node : plan.dims) dims.push_back(node.value);
    events.assign(plan.view.event_count, 0);
    SlotMemory slot;
    slot.events = reinterpret_cast<u64>(events.data());
    EXPECT_TRUE(instance.rebuild(tables, {}, dims, slot, 0, 0, 0).ok());
    queue = make_queue_tables(tables, instance).value();
    memory = std::make_unique<std::byte[]>(queue.bytes() + 256);
    const u64 aligned = (reinterpret_cast<u64>(memory.get()) + 127) / 128 * 128;
    head = reinterpret_cast<wire::QueueHead*>(aligned);
    std::memcpy(head, queue.fixed.data(), queue.fixed.size());
    instance.set_queue(aligned);
  }
  template <class T>
  const T* part(u32 offset) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(head) + offset);
  }
  const wire::RunFrame& frame() const { return *reinterpret_cast<const wire::RunFrame*>(instance.frame().data()); }
};

std::set<u32> events_of(const Rig& rig, u32 op, u32 first, u32 count) {
  std::set<u32> out;
  const wire::OpParams& params = rig.instance.op(op);
  for (u32 tile = first; tile < first + count; ++tile) {
    for (u32 w = 0; w < params.wait_count; ++w) {
      const wire::WaitParams& wait = rig.instance.waits()[params.wait_first + w];
      const wire::EventRect rect = wire::wait_rect(wait, wire::tile_coord(params.grid, tile));
      if (wait.total == 0) continue;  // reached from the start
      for (u32 i = 0; i < wire::rect_count(rect); ++i) out.insert(wire::rect_event(wait, rect, i));
    }
  }
  return out;
}

TEST(QueueTables, HoldEveryTileOnceAndEveryWaitOfItsTiles) {
  for (u32 seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Rig rig(seed);
    const auto* tasks = rig.part<u64>(rig.head->tasks);
    std::map<std::pair<u32, u32>, std::set<u32>> waits_of;  // (op, tile field) -> events, from the waiters
    std::map<std::pair<u32, u32>, u32> need_of;
    const u32* first = rig.part<u32>(rig.head->waiter_first);
    for (u32 event = 0; event < rig.head->event_count; ++event) {
      for (u32 i = first[event]; i < first[event + 1]; ++i) {
        const wire::QueueWaiter& waiter = rig.part<wire::QueueWaiter>(rig.head->waiters)[i];
        ASSERT_EQ(tasks[waiter.task], wire::queue_entry(0, waiter.op, waiter.tile));
        EXPECT_TRUE(waits_of[std::pair(waiter.op, waiter.tile)].insert(event).second) << "twice";
        need_of[std::pair(waiter.op, waiter.tile)] = waiter.need;
      }
    }
    std::map<u32, u32> next_tile;
    for (u32 t = 0; t < rig.head->task_count; ++t) {
      const u32 op = wire::queue_entry_op(tasks[t]), field = wire::queue_entry_tile(tasks[t]);
      const wire::Task task{field, 0, 0, 0, 0};
      const std::set<u32> want = events_of(rig, op, task.first_tile(), task.tile_count());
      EXPECT_EQ(waits_of[std::pair(op, field)], want);
      EXPECT_EQ(need_of[std::pair(op, field)], want.size());
      EXPECT_EQ(t < rig.head->ready_count, want.empty());
      next_tile[op] += task.tile_count();
    }
    for (u32 op = 0; op < rig.plan.ops.size(); ++op) EXPECT_EQ(next_tile[op], rig.instance.op(op).tile_count);
  }
}

// What a worker does with the queue of one run; `ran` counts visits of each tile.
void help(const Rig& rig, u32 run, worker::HostWorkerContext& context, std::vector<std::vector<u32>>& ran) {
  worker::HostPlatform platform(context);
  worker::QueueSource<worker::HostPlatform> source(platform);
  worker::QueueSignals<worker::HostPlatform> signals(platform);
  source.join({rig.head, run});
  for (;;) {
    wire::Task task;
    const worker::QueueLook look = source.look(task);
    if (look == worker::QueueLook::drained) return;
    if (look == worker::QueueLook::nothing) {
      std::this_thread::yield();
      continue;
    }
    worker::StagedTile tile;
    tile.frame = &rig.frame();
    tile.events = const_cast<u32*>(rig.events.data());
    tile.bases = worker::frame_at<u32>(rig.frame(), rig.frame().bases);
    tile.view = worker::view_of_frame(rig.frame(), task.op);
    tile.runs = run;
    tile.kind = worker::TileKind::body;
    for (u32 i = 0; i < task.tile_count(); ++i) {
      tile.tile = task.first_tile() + i;
      tile.coord = wire::tile_coord(tile.view.op->grid, tile.tile);
      for (const u32 event : events_of(rig, task.op, tile.tile, 1)) {
        const auto* waits = rig.instance.waits();
        const wire::OpParams& op = rig.instance.op(task.op);
        for (u32 w = 0; w < op.wait_count; ++w) {
          const wire::WaitParams& wait = waits[op.wait_first + w];
          if (event < wait.event_first || event >= wait.event_first + 64) continue;
          EXPECT_TRUE(wire::event_reached(wire::HostAtoms::event_load_acquire(&rig.events[event]), (run + 1) * wait.total));
        }
      }
      ++ran[task.op][tile.tile];  // plain: the queue orders whoever comes after
      tile.flags = i + 1 == task.tile_count() ? u32{worker::kTileClosesTask} : 0u;
      worker::add_queued(signals, tile);
    }
  }
}

TEST(ReadyQueue, ThreadsRunEveryTileOnceAndInOrderRunAfterRun) {
  for (u32 seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const Rig rig(seed);
    std::vector<std::vector<u32>> ran;
    for (u32 op = 0; op < rig.plan.ops.size(); ++op) ran.emplace_back(rig.instance.op(op).tile_count, 0);
    constexpr u32 kRuns = 5;
    for (u32 run = 0; run < kRuns; ++run) {
      std::vector<std::thread> workers;
      worker::HostWorkerContext context;
      context.pause_spins = 10;
      for (u32 w = 0; w < Rig::kWorkers; ++w)
        workers.emplace_back([&] {
          worker::HostWorkerContext mine = context;
          help(rig, run, mine, ran);
        });
      for (std::thread& worker : workers) worker.join();
      for (const auto& tiles : ran) {
        for (const u32 count : tiles) ASSERT_EQ(count, run + 1);
      }
    }
    for (u32 op = 0; op < rig.plan.ops.size(); ++op) {
      const wire::SignalParams& signal = rig.instance.signals()[op];
      for (u32 e = 0; e < signal.event_count; ++e) EXPECT_EQ(rig.events[signal.event_first + e], kRuns * signal.total);
    }
  }
}

}  // namespace
}  // namespace ccks::scheduler

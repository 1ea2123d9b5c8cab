#include "scheduler/queue_tables.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "ccks/wire/event.hpp"

namespace ccks::scheduler {
namespace {

/// Tasks of one instance in plan order, and the events each waits for.
struct Waits {
  std::vector<wire::Task> tasks;
  std::vector<std::uint32_t> need;    // per task
  std::vector<std::uint32_t> events;  // of all tasks, need[i] each
};

// Appends the events that tiles [first, first + count) of `op` wait for, each once.
void add_events(const Instance& instance, const wire::OpParams& op, std::uint32_t first, std::uint32_t count,
                std::vector<std::uint32_t>& events) {
  const auto begin = static_cast<std::ptrdiff_t>(events.size());
  for (std::uint32_t w = 0; w < op.wait_count; ++w) {
    const wire::WaitParams& wait = instance.waits()[op.wait_first + w];
    if (wait.total == 0) continue;  // its op has no tiles: nobody will signal, and nobody needs to
    wire::EventRect covered;
    for (std::uint32_t tile = first; tile < first + count; ++tile) {
      const wire::EventRect rect = wire::wait_rect(wait, wire::tile_coord(op.grid, tile));
      const std::uint32_t size = wire::rect_count(rect);
      if (size == 0 || (tile > first && wire::rect_covers(covered, rect))) continue;
      for (std::uint32_t i = 0; i < size; ++i) events.push_back(wire::rect_event(wait, rect, i));
      covered = rect;
    }
  }
  std::sort(events.begin() + begin, events.end());
  events.erase(std::unique(events.begin() + begin, events.end()), events.end());
}

Waits collect_waits(const Instance& instance) {
  Waits out;
  const std::span<const OpInstance> ops = instance.ops();
  for (std::uint32_t index = 0; index < ops.size(); ++index) {
    for (std::uint32_t first = 0; first < ops[index].tiles; first += ops[index].chunk) {
      const std::uint32_t count = std::min(ops[index].chunk, ops[index].tiles - first);
      wire::Task task;
      task.tile = wire::Task::pack_tiles(first, count);
      task.op = static_cast<std::uint16_t>(index);
      out.tasks.push_back(task);
      const std::size_t before = out.events.size();
      add_events(instance, instance.op(index), first, count, out.events);
      out.need.push_back(static_cast<std::uint32_t>(out.events.size() - before));
    }
  }
  return out;
}

// Where each task stands: those that wait for nothing first, else in plan order.
std::vector<std::uint32_t> order_of(const Waits& waits, std::uint32_t& ready) {
  std::vector<std::uint32_t> place(waits.tasks.size());
  std::uint32_t next = 0;
  for (const bool waiting : {false, true}) {
    if (waiting) ready = next;
    for (std::size_t i = 0; i < place.size(); ++i) {
      if ((waits.need[i] > 0) == waiting) place[i] = next++;
    }
  }
  return place;
}

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

wire::QueueHead lay_out(const PlanTables& tables, const Waits& waits, std::uint32_t ready, std::uint64_t& end) {
  std::uint64_t at = sizeof(wire::QueueHead);
  const auto place = [&at](std::uint64_t bytes, std::uint64_t unit) {
    const std::uint64_t offset = aligned(at, unit);
    at = offset + bytes;
    return static_cast<std::uint32_t>(offset);
  };
  const std::uint64_t tasks = waits.tasks.size();
  wire::QueueHead head{};
  head.task_count = static_cast<std::uint32_t>(tasks);
  head.ready_count = ready;
  head.workers = tables.workers;
  head.event_count = tables.plan.event_count;
  head.tasks = place(tasks * sizeof(std::uint64_t), 16);
  head.waiter_first = place((tables.plan.event_count + 1ull) * sizeof(std::uint32_t), 16);
  head.waiters = place(waits.events.size() * sizeof(wire::QueueWaiter), 16);
  head.counters = place(sizeof(wire::QueueCounters), wire::kCacheLineBytes);
  head.counts = place(tasks * sizeof(std::uint32_t), wire::kCacheLineBytes);
  head.entries = place(tasks * sizeof(std::uint64_t), wire::kCacheLineBytes);
  end = aligned(at, wire::kCacheLineBytes);
  head.bytes = static_cast<std::uint32_t>(end);
  return head;
}

// Range of each event's waiters by counting, then the waiters themselves.
void fill_waiters(const Waits& waits, const std::vector<std::uint32_t>& place, std::uint32_t* first,
                  wire::QueueWaiter* waiters, std::uint32_t events) {
  for (const std::uint32_t event : waits.events) ++first[event + 1];
  std::partial_sum(first, first + events + 1, first);
  std::vector<std::uint32_t> next(first, first + events);
  std::size_t at = 0;
  for (std::size_t i = 0; i < waits.tasks.size(); ++i) {
    const wire::Task& task = waits.tasks[i];
    for (std::uint32_t n = 0; n < waits.need[i]; ++n)
      waiters[next[waits.events[at++]]++] = {place[i], waits.need[i], task.tile, task.op};
  }
}

}  // namespace

Result<QueueTables> make_queue_tables(const PlanTables& tables, const Instance& instance) {
  const Waits waits = collect_waits(instance);
  std::uint32_t ready = 0;
  const std::vector<std::uint32_t> place = order_of(waits, ready);
  std::uint64_t end = 0;
  const wire::QueueHead head = lay_out(tables, waits, ready, end);
  if (end > 0xffffffffull) return {ErrorCode::invalid_data, "the ready queue of a run would be larger than 4 GiB"};
  QueueTables out;
  out.fixed.resize(head.counters);
  out.counter_bytes = end - head.counters;
  std::memcpy(out.fixed.data(), &head, sizeof(head));
  const auto part = [&out](std::uint32_t offset) { return static_cast<void*>(out.fixed.data() + offset); };
  auto* tasks = static_cast<std::uint64_t*>(part(head.tasks));
  for (std::size_t i = 0; i < waits.tasks.size(); ++i)
    tasks[place[i]] = wire::queue_entry(0, waits.tasks[i].op, waits.tasks[i].tile);
  fill_waiters(waits, place, static_cast<std::uint32_t*>(part(head.waiter_first)),
               static_cast<wire::QueueWaiter*>(part(head.waiters)), head.event_count);
  return out;
}

}  // namespace ccks::scheduler

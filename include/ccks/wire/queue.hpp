// Ready queue: a slot's tasks as resident workers share them out among themselves, without the host. Lies in device memory;
// the host writes the fixed part and zeroes the rest when the dims of the slot change, while no task of it is in flight.
//
// A task becomes ready when every event it waits for stands at its count. Each run of the slot pushes each task once: tasks
// that wait for nothing stand at places [0, ready_count) of every run without being pushed, all others get the next place
// when their last event completes. A worker claims the next place and takes the task that stands there, or will stand there.
//
// Nothing is reset between runs. In the r-th run since the queue was written, r from 0, all arithmetic wrapping:
//   places claimed before     r * (task_count + workers)     each worker claims one place past the end, and leaves
//   places pushed before      r * (task_count - ready_count)
//   count of task t           from r * need to (r + 1) * need
//   entry of a place          holds a task of this run if its tag is the low half of r + 1: the entry before is of the last run
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

/// A task that waits for an event, for how many events in all, and what its entry says.
struct alignas(16) QueueWaiter {
  u32 task;
  u32 need;
  u32 tile;  // as Task::tile
  u32 op;
};

/// What a worker needs of a task stands in the entry itself, so that one load finds and fetches it.
inline namespace CCKS_ISA {
CCKS_HD constexpr u64 queue_entry(u32 tag, u32 op, u32 tile) {
  return static_cast<u64>(tag & 0xffff) << 48 | static_cast<u64>(op & 0xffff) << 32 | tile;
}
CCKS_HD constexpr bool queue_entry_is_of(u64 entry, u32 tag) { return entry >> 48 == (tag & 0xffff); }
CCKS_HD constexpr u32 queue_entry_op(u64 entry) { return static_cast<u32>(entry >> 32 & 0xffff); }
CCKS_HD constexpr u32 queue_entry_tile(u64 entry) { return static_cast<u32>(entry); }
}  // namespace CCKS_ISA

/// The fixed part begins with this. Offsets are bytes from here.
struct alignas(16) QueueHead {
  u32 task_count;
  u32 ready_count;   // tasks [0, ready_count) wait for nothing
  u32 workers;       // that join every run
  u32 event_count;
  u32 tasks;         // u64[task_count]: entries of all tasks with tag 0; read for those that wait for nothing
  u32 waiter_first;  // u32[event_count + 1]: range of each event in `waiters`
  u32 waiters;       // QueueWaiter[]
  u32 counters;      // QueueCounters: where the zeroed part begins
  u32 counts;        // u32[task_count]: events that have completed for the task
  u32 entries;       // u64[task_count]
  u32 bytes;
  u32 reserved;
};
static_assert(sizeof(QueueHead) == 48);

/// Each on a line of its own: all workers add to them.
struct QueueCounters {
  alignas(kCacheLineBytes) u32 claimed;
  alignas(kCacheLineBytes) u32 pushed;
};
static_assert(sizeof(QueueCounters) == 2 * kCacheLineBytes);

}  // namespace ccks::wire

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
//   entry of a place          holds a task of this run if its tag is r + 1
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

/// A task that waits for an event, and for how many events in all.
struct QueueWaiter {
  u32 task;
  u32 need;
};

/// The fixed part begins with this. Offsets are bytes from here.
struct alignas(16) QueueHead {
  u32 task_count;
  u32 ready_count;   // tasks [0, ready_count) wait for nothing
  u32 workers;       // that join every run
  u32 event_count;
  u32 tasks;         // Task[task_count]
  u32 waiter_first;  // u32[event_count + 1]: range of each event in `waiters`
  u32 waiters;       // QueueWaiter[]
  u32 counters;      // QueueCounters: where the zeroed part begins
  u32 counts;        // u32[task_count]: events that have completed for the task
  u32 entries;       // u64[task_count]: tag << 32 | task
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

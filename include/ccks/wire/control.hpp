// The rest of link memory: who tells whom what, besides rings. Host and workers both see it.
// One cache line a writer and worker, so no line has two writers.
#pragma once

#include "ccks/wire/task.hpp"

namespace ccks::wire {

enum class WorkerState : u32 { absent = 0, running = 1, parked = 2, faulted = 3 };

inline constexpr u32 kVerdictEvent = 0xffffffffu;

/// WorkerLine is written by one worker, read by the host.
struct alignas(kCacheLineBytes) WorkerLine {
  u32 state;           // WorkerState. Written last, with release
  u32 inbox_position;  // tasks consumed so far: where a relaunched worker resumes
  u32 outbox_position; // records produced so far
  u32 trace_count;     // trace records written
  // Valid once state is faulted:
  u32 fault;           // FaultCode
  u32 fault_op;
  u32 fault_slot;
  u32 fault_epoch;
  u32 fault_tile;
  u32 fault_event;     // event waited for; kVerdictEvent: what the host decides of a draft
  u32 fault_value;     // its counter
  u32 fault_target;
  u32 asleep;          // host device: the worker sleeps and wants its doorbell rung
  u32 park_reason;
  // Of the inbox task at inbox_position, if it was suspended: where the next launch takes it up. Else both 0.
  u32 resume_list_task;  // tasks of its list that are finished
  u32 resume_tile;       // tiles of the task, or of that task of its list, that are finished
  u32 answered_position; // tasks that done records have answered; behind inbox_position if the outbox had no room
  u32 unused;
  u64 busy_ns;         // time in op bodies since launch
  u64 wait_ns;         // time waiting for events
  // What ready queues have cost since launch (worker/ready_queue.hpp):
  u64 queue_take_atomics;  // claiming places
  u64 queue_polls;         // looks at places that were still empty
  u64 queue_push_atomics;  // events, counts and places of tasks that became ready
  u64 queue_push_ns;       // time in those
};
static_assert(sizeof(WorkerLine) == kCacheLineBytes);

/// What HostLine::park asks for.
///   after_task  leave between two inbox tasks
///   abandon     for teardown: also leave an event wait, with FaultCode::abandoned, since the task is neither finished nor
///               untouched
///   suspend     also leave an event wait, and write down where: the next launch goes on at the tile that waited. For
///               relaunches while runs are in flight, where others may wait for a worker that has left
enum ParkRequest : u32 { kParkNo = 0, kParkAfterTask = 1, kParkAbandon = 2, kParkSuspend = 3 };

/// HostLine is written by the host, read by one worker: its words one by one, or the three of them in one access of 16 bytes.
struct alignas(kCacheLineBytes) HostLine {
  u32 outbox_consumed;  // records the scheduler has taken: the worker's credit
  u32 park;             // ParkRequest, by scheduler, keeper or device. Device::launch clears it
  u64 heartbeat_ns;     // host clock; workers leave, or suspend, when it stands still for `heartbeat_limit_ns`
  u32 reserved[28];
};
static_assert(sizeof(HostLine) == kCacheLineBytes);

/// One executed task, as written to a worker's trace area.
struct TraceRecord {
  u64 start_ns;  // device clock when the worker took the task
  u32 wait_ns;   // of it, waiting for events
  u32 run_ns;    // whole duration
  u32 tile;      // as in Task
  u32 epoch;
  u16 op;
  u16 slot;
  u32 worker;
};
static_assert(sizeof(TraceRecord) == 32);

/// WorkerParams is what a launch hands to the workers. Addresses are valid on both sides.
struct WorkerParams {
  u64 inboxes;        // Task[inbox_slots] of each worker: inbox_of()
  u64 outboxes;       // Record[outbox_slots] of each worker: outbox_of()
  u64 worker_lines;   // WorkerLine[workers]
  u64 host_lines;     // HostLine[workers]
  u64 frames;         // u64[slots]: address of each slot's RunFrame; device memory
  u64 trace;          // TraceRecord[workers][trace_slots], or 0
  u32 workers;
  u32 slots;
  u32 inbox_slots;    // powers of two
  u32 outbox_slots;
  u32 trace_slots;
  u32 scratch_bytes;        // per worker, as the ops of the plan want it; 0: the device's default
  u32 stream_stages;        // of each worker's ring for weights (worker/weight_stream.hpp); a device that has such sets it
  u32 verdict_rest_ns;      // from an event to the first look for what the host makes of it; a device whose link is slow sets it
  u64 spin_deadline_ns;     // an event wait longer than this is a fault
  u64 heartbeat_limit_ns;   // 0: no limit
  u64 idle_limit_ns;        // 0: stay for ever
  u64 bodies;               // where workers whose bodies are an image of their own (worker/apart_ops.cuh) read which function runs them; a device that has loaded them sets it
};

inline namespace CCKS_ISA {

/// Slots that stay empty behind each worker's ring: 128 bytes, a GPU's line. The host looks at the same slot of many rings one after
/// the other, and rings a power of two apart would share one set of its nearest cache.
inline constexpr u32 kRingGapSlots = 8;

/// Bytes from one worker's ring of `slots` to the next one's.
CCKS_HD constexpr u64 ring_pitch(u32 slots) { return (u64{slots} + kRingGapSlots) * sizeof(Task); }
static_assert(sizeof(Task) == sizeof(Record));

/// Where the inbox, or the outbox, of `worker` begins: an address, valid on both sides.
CCKS_HD constexpr u64 inbox_of(const WorkerParams& params, u32 worker) { return params.inboxes + worker * ring_pitch(params.inbox_slots); }
CCKS_HD constexpr u64 outbox_of(const WorkerParams& params, u32 worker) { return params.outboxes + worker * ring_pitch(params.outbox_slots); }

}  // namespace CCKS_ISA
}  // namespace ccks::wire

// What crosses the link: 16-byte tasks (scheduler to worker) and 16-byte records (worker to scheduler).
// Both carry the sequence number of their ring slot in the same 16 bytes, so one read finds and fetches them.
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

inline constexpr u32 kTileBits = 24;              // first tile of a task; an op has at most 2^24 tiles
inline constexpr u32 kMaxTilesPerOp = 1u << kTileBits;
inline constexpr u32 kMaxTilesPerTask = 256;      // count - 1 in the 8 bits above
inline constexpr u32 kMaxSlots = 4096;            // run slots; 12 bits of Task::slot_flags
inline constexpr u32 kMaxOps = 0xff00;            // op codes from here on are control codes

/// Control codes in Task::op. Anything below kMaxOps indexes the ops of the run's frame.
enum ControlOp : u16 {
  kOpList = 0xff00,    // run list `tile` of the slot's frame, from its first task to its last
  kOpSignal = 0xff01,  // add `epoch` to event `tile` of the slot: stands in for tiles that do not exist
  kOpPark = 0xff02,    // finish, publish state, leave; the ring position is kept for a relaunch
  kOpNop = 0xff03,     // nothing; answered like any task (used by benchmarks)
  kOpQueue = 0xff04,   // help with the ready queue of the slot's run until every task of it has been claimed
};

enum TaskFlags : u16 {
  kTaskSkip = 0x1000,  // signal the tiles' events, but neither wait nor run the body (cancelled runs)
  kTaskDraft = 0x2000, // not decided yet, see Task
  kTaskAgain = 0x4000, // of a kOpList: the frame is to the byte what it was in the slot's run before this one, whose epoch is one less
  kTaskFetch = 0x8000, // asks for weights that tiles may read, see Task
};

/// Task is one tile, or up to 256 consecutive tiles, of one op of one run.
///
/// Drafts. What the host knows may come next it may send before it has decided, with kTaskDraft: the worker takes the task as any
/// other, waits for its events, and then looks at the task's inbox slot until the host has written its verdict there: the same
/// task without that flag, which runs, or with kTaskSkip in its place. Only flags change, so that no reader can see half of it. The
/// slot is the task's until it is answered, so a draft outlives launches like any task; one that is taken after the verdict is no
/// draft. Only tasks of tiles are drafts, and what a verdict depends on was sent before.
///
/// Fetches. Which expert a tile of an expert_matmul belongs to is known only once its rows are counted. With kTaskFetch a task of such an
/// op names experts instead: tile e * grid[3] + c stands for the weights that a tile of expert e in columns c would read. The worker asks memory for
/// them and answers: it waits for nothing, runs and signals nothing, so a wrong guess costs what it read in vain and changes no result. Never of a list.
struct alignas(16) Task {
  u32 tile = 0;        // first tile | (count - 1) << 24
  u32 epoch = 0;       // ordinal of the run in its slot, from 0, wraps
  u16 op = 0;          // op of the frame, or a ControlOp
  u16 slot_flags = 0;  // run slot | TaskFlags
  u32 seq = 0;         // ring sequence; unused inside lists

  CCKS_HD constexpr u32 first_tile() const { return tile & (kMaxTilesPerOp - 1); }
  CCKS_HD constexpr u32 tile_count() const { return (tile >> kTileBits) + 1; }
  CCKS_HD constexpr u32 slot() const { return slot_flags & (kMaxSlots - 1); }
  CCKS_HD static constexpr u32 pack_tiles(u32 first, u32 count) { return first | (count - 1) << kTileBits; }
};
static_assert(sizeof(Task) == 16);

enum class RecordKind : u16 {
  done = 0x0000,    // `value` inbox tasks have been finished since the ring was made (wraps); see Record
  report = 0x1000,  // an op published a value: it lies in the slot's report area; `value` is the report index
  fault = 0x2000,   // `value` is a FaultCode; details stand in the worker's line
  parked = 0x3000,  // the worker left on request or on its own; `value` is a ParkReason
  word = 0x4000,    // `op` published a value of one word: it is `value`, and the host puts it into the slot's report area
};

/// Record is what a worker tells the scheduler.
///
/// Done records are cumulative: one may answer several inbox tasks, all those up to `value` that no earlier one has
/// answered, at least one. Inboxes are worked off in order, so the count says which; op, slot and epoch are those of the
/// last task answered. What those tasks reported stands before the record, and every store of theirs is visible to
/// whoever has read it. A worker holds an answer back only while it goes on working, never while it polls an empty inbox.
struct alignas(16) Record {
  u32 value = 0;
  u32 epoch = 0;
  u16 op = 0;         // as in the task
  u16 slot_kind = 0;  // run slot | RecordKind
  u32 seq = 0;        // ring sequence

  CCKS_HD constexpr u32 slot() const { return slot_kind & (kMaxSlots - 1); }
  CCKS_HD constexpr RecordKind kind() const { return static_cast<RecordKind>(slot_kind & 0xf000); }
};
static_assert(sizeof(Record) == 16);

enum class FaultCode : u32 {
  none = 0,
  wait_deadline = 1,  // an event did not arrive before the spin deadline
  bad_op = 2,         // a task named an op, slot or list that the frame does not have
  bad_index = 3,      // a gather index or routed row outside its tensor
  outbox_full = 4,    // the host did not consume records before the spin deadline
  op_fault = 5,       // an op body reported a fault of its own
  abandoned = 6,      // the host asked the worker to leave in the middle of a task (kParkAbandon)
};

enum class ParkReason : u32 { requested = 0, stale_heartbeat = 1, idle = 2 };

}  // namespace ccks::wire

// StagedTile: one tile on its way through a worker. Every worker takes its tiles through the same stages, in order:
//
//   fetch    TaskSource opens inbox tasks and lists, TileStager cuts tasks into tiles     task_source.hpp
//   gate     TileGate waits for the tile's events and looks at its guards                 tile_gate.hpp
//   body     the op's body, on all lanes
//   signal   TileSignals adds to the tile's events                                        tile_signals.hpp
//   post     WorkerPost sends reports, done records, traces and faults to the host        worker_post.hpp
//
// A worker of one thread does them one after the other (worker_loop.hpp); a thread block has a warp for each
// (pipeline_cuda.cuh).
#pragma once

#include "ccks/wire/control.hpp"
#include "ccks/wire/event.hpp"
#include "ccks/wire/frame.hpp"

namespace ccks::worker {

using wire::i32;
using wire::i64;
using wire::u16;
using wire::u32;
using wire::u64;
using wire::u8;

enum class TileKind : u32 {
  body = 0,    // the op's body runs
  skip = 1,    // no body, only its signals: kTaskSkip, or a guard that fails
  signal = 2,  // kOpSignal
  empty = 3,   // nothing but an answer: kOpNop, kOpPark, an empty list
  fault = 4,   // the worker leaves; StagedTile::fault says why
  suspend = 5, // the worker leaves before this tile, of which nothing has been done: the next launch begins with it
};

enum TileFlags : u32 {
  kTileOpensInbox = 1,   // first tile of an inbox task
  kTileClosesInbox = 2,  // last tile of an inbox task: it is answered
  kTileOpensTask = 4,    // first and last tile of a task, which may be one of a list
  kTileClosesTask = 8,
  kTileGuarded = 16,     // its op has guards, or it is of a draft: the gate may find that its body does not run
  kTileDraft = 32,       // of a draft (wire/task.hpp)
  kTileTagged = 128,     // of a strand that may wait for tags of other workers' bodies once it has begun
  kTileFollowed = 64,    // closes an inbox task behind which the worker has another of the same run: its answer may wait for that
};

/// Where a suspended inbox task is taken up: tasks of its list, then tiles of that task, that are finished.
struct ResumePoint {
  u32 list_task = 0, tile = 0;
};

/// Details of a fault, as they go into the worker's line.
struct FaultDetails {
  wire::FaultCode code = wire::FaultCode::none;
  u32 op = 0, slot = 0, epoch = 0, tile = 0;
  u32 event = 0, value = 0, target = 0;
};

/// What the frame says of one op: in the frame's tables, or in a copy close to the worker.
struct OpView {
  const wire::OpParams* op = nullptr;
  const wire::WaitParams* waits = nullptr;
  const wire::SignalParams* signals = nullptr;
  const wire::GuardParams* guards = nullptr;
};

/// What all tiles of a task share.
struct TaskHead {
  const wire::RunFrame* frame = nullptr;
  u32* events = nullptr;       // of the run's slot
  const u32* bases = nullptr;  // per event
  u64 state = 0;               // address of the run's state
  OpView view;
  wire::Task task;             // with the epoch, slot and flags of its run
  wire::Task inbox;            // the inbox task it came with
  u32 runs = 0;                // of the slot since its bases were written: an event stands at base + runs * total before this run
  u32 list_task = 0;           // tasks before this one in its list

  /// What an event with `total` signals a run has to stand at, less its base.
  CCKS_HD u32 amount(u32 total) const { return (runs + 1) * total; }
};

struct alignas(16) StagedTile : TaskHead {
  wire::TileCoord coord;
  u32 tile = 0;
  TileKind kind = TileKind::empty;
  u32 flags = 0;          // TileFlags
  u64 wait_ns = 0;        // waiting for events
  FaultDetails fault;
};

template <class T>
CCKS_HD inline const T* frame_at(const wire::RunFrame& frame, u32 offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(&frame) + offset);
}

/// The view of op `index` in the frame's own tables.
CCKS_HD inline OpView view_of_frame(const wire::RunFrame& frame, u32 index) {
  const wire::OpParams* op = frame_at<wire::OpParams>(frame, frame.ops) + index;
  return {op, frame_at<wire::WaitParams>(frame, frame.waits) + op->wait_first,
          frame_at<wire::SignalParams>(frame, frame.signals) + op->signal_first,
          frame_at<wire::GuardParams>(frame, frame.guards) + op->guard_first};
}

}  // namespace ccks::worker

// RunSlot: one of the places where runs live, from submit to the last handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "ccks/engine.hpp"
#include "scheduler/futex.hpp"
#include "scheduler/instance.hpp"
#include "scheduler/progress.hpp"

namespace ccks::scheduler {

/// A decision that went out as a draft: tasks of consecutive tiles of one op, at consecutive positions of the worker's inbox.
struct Draft {
  std::uint32_t tile = 0;   // of the first task, as Task::tile
  std::uint32_t tiles = 0;  // in all
  std::uint32_t position = 0;
  std::uint16_t op = 0;
  std::uint16_t worker = 0;
};

/// RunRequest::Unless, found.
struct Unless {
  const struct RunSlot* run = nullptr;  // null: the run is wanted. Its slot is held as long as this run's
  std::uint32_t report = 0;
  std::vector<std::int32_t> values;
};

/// Who holds a slot.
enum Holder : std::uint32_t { kHeldByClient = 1, kHeldByScheduler = 2, kHeldByFeed = 4 };  // a feed: as often as there are runs that it feeds

/// Roles
///   setup    written by the client that owns the slot, before it queues the run; then read by the scheduler
///   running  scheduler thread only
///   outcome  written by the scheduler before it stores `state` [Q1]; read by clients that have loaded it [Q4]
///   shared   atomics
/// A slot belongs to one client from acquire to queue, to the scheduler until the run has drained, and is free once the
/// scheduler and the handle have both let go (`holders` zero).
struct RunSlot {
  std::uint32_t index = 0;
  SlotMemory memory;

  // setup
  Instance instance;
  std::uint32_t next_epoch = 0;  // of the slot; the scheduler advances it for each run that was sent
  std::uint32_t written_for = 0;  // the epoch for which anything in the frame was written last
  std::uint32_t tag = 0;  // of the words of the run
  std::uint32_t ticket = 0;  // how many runs of its state were submitted before it
  const RunSlot* answered_by = nullptr;  // the run whose pick's word it waits for in place of its turn (Feed::word); its slot is held as long as this run's. null: its turn
  std::uint32_t state_id = 0;
  std::uint64_t submit_ns = 0;
  std::uint64_t deadline_ns = 0;  // host clock; 0: none
  std::function<void(const Status&)> on_done;
  std::vector<RunSlot*> fed_by;  // slots whose arenas hold inputs of this run, or whose report `unless` waits for: held until it has ended
  Unless unless;

  // running
  Progress progress;
  std::uint32_t epoch = 0;
  std::uint32_t ordinal = 0;      // of the run among all that were started
  std::uint32_t outstanding = 0;  // tasks sent and not yet done
  std::uint32_t cursor = 0;       // policy: op or list it stands at
  std::uint32_t worker_base = 0;  // policy: where this run's tiles begin, among its workers
  std::uint32_t group = 0;        // whose workers are this run's
  std::uint32_t first_worker = 0; // of that group
  bool all_sent = false;
  bool alone = false;             // no other run is under way, so what waits on a worker keeps nobody else waiting
  std::vector<Draft> drafts;      // sent, without a verdict; room for kRunDrafts
  std::uint32_t drafts_taken = 0; // of that room, decided ones on their way to be sent included
  bool follows = false;           // the run before it on its state was under way when it began
  std::uint32_t turns_left = 0;   // kOpSignal tasks to send before anything else: PlanTables::turn_event

  // outcome
  ErrorCode code = ErrorCode::ok;
  char message[232] = {};  // of a failed run; preallocated because runs fail on the scheduler thread
  std::uint64_t end_ns = 0;

  // shared
  // RunState. On lines that hold nothing which the scheduler writes while the run is under way: clients poll it, and with a line some
  // cores fetch its neighbour.
  alignas(128) WaitWord state;
  std::atomic<std::uint32_t> holders{0};  // Holder bits; a slot without any is free
  bool told = false;                      // on_done has been called, or there is none
  std::atomic<bool> cancel{false};
};

/// Whether the run was cancelled, or what it hangs on has told that it is not wanted; then it is cancelled from now on. For the
/// scheduler thread, in whose order runs of one state begin and report.
bool is_cancelled(RunSlot& run, const PlanTables& tables);
/// Of a run that is to begin: whether it would wait for a word that nobody leaves, because the run in front has come to no good end.
inline bool is_orphan(const RunSlot& run) { return run.answered_by != nullptr && static_cast<RunState>(run.answered_by->state.peek()) == RunState::failed; }

}  // namespace ccks::scheduler

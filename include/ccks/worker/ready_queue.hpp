// Workers that schedule themselves: the worker's two ends of a ready queue (wire/queue.hpp). QueueSource takes tasks,
// QueueSignals adds to the events of finished ones and pushes what has become ready. No lock, nothing that waits for the
// host; the waits are the caller's, who has deadlines for them.
//
// Memory ordering
//   events    [QE1] added to with acq_rel: releases what the tile stored, acquires what others released, so whoever completes
//             an event has all of its tiles behind him
//   counts    [QE2] added to with acq_rel: the same over the events of one task
//   entries   [QE3] released by the worker that pushes, acquired by the one that takes [QE4]; so the taker has seen all that
//             its task waits for. [QE1] and [QE2] pair with themselves, and hand on to [QE3]
//   claimed, pushed   relaxed: they share out places, entries carry the order
//   fixed part        plain: written by the host before it published a task of the run [R1], read after [R2]
// Tasks that store nothing and wait only for such tasks (silent) publish nothing: what they add is relaxed, and so is the
// entry of a task that waits for nothing else.
#pragma once

#include "ccks/wire/event.hpp"
#include "ccks/wire/queue.hpp"
#include "ccks/wire/task.hpp"
#include "ccks/worker/platform.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A run's queue as workers address it.
struct QueueView {
  const wire::QueueHead* head = nullptr;
  u32 run = 0;  // runs of the slot since the queue was written

  template <class T>
  CCKS_HD T* at(u32 offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<u64>(head) + offset);
  }
  CCKS_HD wire::QueueCounters* counters() const { return at<wire::QueueCounters>(head->counters); }
  CCKS_HD u32 tag() const { return run + 1; }
};

enum class QueueLook : u32 {
  nothing = 0,  // the place claimed is still empty
  task = 1,
  drained = 2,  // every task of the run has been claimed
};

/// Takes tasks from one queue at a time. On the control lanes; replicated there.
template <class Platform>
class QueueSource {
 public:
  CCKS_HD_ANY explicit QueueSource(Platform& platform) : platform_(platform) {}

  CCKS_HD_ANY void join(const QueueView& queue) {
    queue_ = queue;
    claimed_ = false;
  }
  CCKS_HD_ANY bool joined() const { return queue_.head != nullptr; }
  CCKS_HD_ANY void leave() { queue_.head = nullptr; }

  /// One look: claims a place if the worker has none, and takes the task if it stands there.
  CCKS_HD_ANY QueueLook look(wire::Task& task) {
    const wire::QueueHead& head = *queue_.head;
    if (!claimed_) claim(head);
    if (place_ >= head.task_count) return QueueLook::drained;
    u64 entry = 0;
    if (place_ < head.ready_count) {
      entry = queue_.template at<u64>(head.tasks)[place_];
    } else {
      const u64* word = queue_.template at<u64>(head.entries) + place_;
      // Relaxed until the entry is there: every acquire costs an SM its L1.
      entry = platform_.uniform(platform_.atoms().queue_load_relaxed(word));
      if (!wire::queue_entry_is_of(entry, queue_.tag())) {
        if (platform_.leader()) ++platform_.shared().queue_takes.polls;
        return QueueLook::nothing;
      }
      (void)platform_.atoms().queue_load_acquire(word);  // [QE4] pairs with [QE3]
      platform_.converge();  // what the leader has acquired, all control lanes have
    }
    claimed_ = false;
    task.tile = wire::queue_entry_tile(entry);
    task.op = static_cast<u16>(wire::queue_entry_op(entry));
    return QueueLook::task;
  }

  /// For people: relaxed.
  CCKS_HD_ANY void publish(wire::WorkerLine* line) {
    if (!platform_.leader()) return;
    platform_.atoms().link_store_relaxed(&line->queue_take_atomics, platform_.shared().queue_takes.atomics);
    platform_.atoms().link_store_relaxed(&line->queue_polls, platform_.shared().queue_takes.polls);
  }

 private:
  CCKS_HD_ANY void claim(const wire::QueueHead& head) {
    u32 before = 0;
    if (platform_.leader()) before = platform_.atoms().queue_add_relaxed(&queue_.counters()->claimed, 1);
    place_ = platform_.uniform(before) - queue_.run * (head.task_count + head.workers);
    claimed_ = true;
    if (platform_.leader()) ++platform_.shared().queue_takes.atomics;
  }

  Platform& platform_;
  QueueView queue_;
  u32 place_ = 0;
  bool claimed_ = false;
};

/// One event that a finished task adds to.
struct QueueSignal {
  u32* word = nullptr;
  u32 event = 0;
  u32 count = 0;
  u32 target = 0;  // at which the event is complete in this run
  bool silent = false;
};

/// Adds to events and pushes what becomes ready. On the control lanes that signal; each lane holds one event.
template <class Platform>
class QueueSignals {
 public:
  CCKS_HD_ANY explicit QueueSignals(Platform& platform) : platform_(platform) {}

  /// Collects what a finished tile adds; flush() before tiles of another run.
  CCKS_HD_ANY void add(const QueueView& queue, const QueueSignal& signal) {
    queue_ = queue;
    u32 owner = platform_.first_lane(mine_.count > 0 && mine_.event == signal.event);
    if (owner == platform_.control_lanes()) {
      if (used_ == platform_.control_lanes()) flush();
      owner = used_++;
    }
    if (platform_.control_lane() != owner) return;
    const u32 before = mine_.count;
    const bool silent = signal.silent && (before == 0 || mine_.silent);
    mine_ = signal;
    mine_.count += before;
    mine_.silent = silent;
  }

  /// Adds what has been collected: all events at once, then the waiters of each that is complete.
  CCKS_HD_ANY void flush() {
    if (used_ == 0) return;
    const u64 since = platform_.now_ns();
    cost_.atomics += used_;
    bool complete = false;
    if (mine_.count > 0) {
      const u32 before = mine_.silent ? platform_.atoms().queue_add_relaxed(mine_.word, mine_.count)
                                      : platform_.atoms().queue_add_acq_rel(mine_.word, mine_.count);  // [QE1]
      complete = !wire::event_reached(before, mine_.target) && wire::event_reached(before + mine_.count, mine_.target);
    }
    platform_.converge();
    for (u32 lane = platform_.first_lane(complete); lane != platform_.control_lanes(); lane = platform_.first_lane(complete)) {
      wake(platform_.from_lane(mine_.event, lane), platform_.from_lane(mine_.silent ? 1u : 0u, lane) != 0);
      if (platform_.control_lane() == lane) complete = false;
    }
    mine_.count = 0;
    used_ = 0;
    cost_.ns += platform_.now_ns() - since;
  }

  /// For people: relaxed.
  CCKS_HD_ANY void publish(wire::WorkerLine* line) {
    if (!platform_.leader()) return;
    platform_.atoms().link_store_relaxed(&line->queue_push_atomics, cost_.atomics);
    platform_.atoms().link_store_relaxed(&line->queue_push_ns, cost_.ns);
  }

 private:
  /// A task a lane: those whose last event this was are pushed.
  CCKS_HD_ANY void wake(u32 event, bool silent) {
    const wire::QueueHead& head = *queue_.head;
    const u32* first = queue_.template at<u32>(head.waiter_first);
    const wire::QueueWaiter* waiters = queue_.template at<wire::QueueWaiter>(head.waiters);
    const u32 end = first[event + 1];
    for (u32 i = first[event]; i < end; i += platform_.control_lanes()) {
      wire::QueueWaiter waiter{0, 0, 0, 0};
      if (i + platform_.control_lane() < end) waiter = waiters[i + platform_.control_lane()];
      u32 rank = 0;
      cost_.atomics += platform_.count_lanes(waiter.need > 1, rank);
      const bool ready = waiter.need == 1 || (waiter.need > 1 && count_event(head, waiter));
      push(head, ready, waiter, silent && waiter.need == 1);
    }
  }

  /// Never relaxed: the other events of the task may have something to publish.
  CCKS_HD_ANY bool count_event(const wire::QueueHead& head, const wire::QueueWaiter& waiter) {
    u32* count = queue_.template at<u32>(head.counts) + waiter.task;
    return platform_.atoms().queue_add_acq_rel(count, 1) + 1 == queue_.tag() * waiter.need;  // [QE2]
  }

  CCKS_HD_ANY void push(const wire::QueueHead& head, bool ready, const wire::QueueWaiter& waiter, bool silent) {
    u32 rank = 0;
    const u32 pushed = platform_.count_lanes(ready, rank);
    if (pushed == 0) return;
    u32 before = 0;
    if (platform_.leader()) before = platform_.atoms().queue_add_relaxed(&queue_.counters()->pushed, pushed);
    ++cost_.atomics;
    platform_.converge();  // what one lane has acquired, each of them hands on
    const u32 place = platform_.uniform(before) - queue_.run * (head.task_count - head.ready_count) + head.ready_count + rank;
    if (!ready) return;
    u64* entry = queue_.template at<u64>(head.entries) + place;
    const u64 words = wire::queue_entry(queue_.tag(), waiter.op, waiter.tile);
    if (silent) {
      platform_.atoms().queue_store_relaxed(entry, words);
    } else {
      platform_.atoms().queue_store_release(entry, words);  // [QE3] pairs with [QE4]
    }
  }

  Platform& platform_;
  QueueView queue_;
  QueueSignal mine_;  // each lane its own
  u32 used_ = 0;      // lanes that hold one
  QueueCost cost_;
};

/// Whether `tile` came from a ready queue, or opens or closes a worker's part in one.
CCKS_HD inline bool is_queued(const TaskHead& tile) { return tile.inbox.op == wire::kOpQueue; }

/// What a queued tile that has run, or was skipped, adds to its events; sent once its task is closed.
CCKS_ANY_SIDE
template <class Platform>
CCKS_HD inline void add_queued(QueueSignals<Platform>& signals, const StagedTile& tile) {
  if (tile.kind != TileKind::body && tile.kind != TileKind::skip) return;
  const QueueView queue{reinterpret_cast<const wire::QueueHead*>(tile.frame->queue), tile.runs};
  const wire::OpParams& op = *tile.view.op;
  const u32 count = op.signal_count;
  for (u32 i = 0; i < count; ++i) {
    const wire::SignalParams& signal = tile.view.signals[i];
    const u32 event = wire::signal_event(signal, tile.coord);
    signals.add(queue, {tile.events + event, event, 1, tile.bases[event] + tile.amount(signal.total),
                        (op.flags & wire::kOpSilent) != 0});
  }
  if ((tile.flags & kTileClosesTask) != 0) signals.flush();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// WorkerLoop: a worker whose stages (staged_tile.hpp) follow one another: one thread of the host, a simulator, or several
// lanes in step. A thread block runs the same stages side by side (pipeline_cuda.cuh). All the loop knows of the machine is
// its Platform (platform.hpp). It compiles with nvcc and NVRTC.
//
// Shape. All lanes loop over step(): the control lanes find the next tile whose body must run (advance), everyone meets
// at one barrier, all lanes run the body, everyone meets again. Whatever needs no body (lists, signals, empty tasks,
// skipped tiles, waits, reports) happens on the control lanes alone.
//
// Ops is a type with
//   static F run(lanes, const RunFrame& frame, const OpParams& op, u32 tile)   on all lanes; F is void, or a FaultCode
//   static void prefetch(u32 lane, u32 lanes, frame, op, tile)                 optional; on the control lanes, no barrier:
//                                                                              starts loads that depend on no other op
//
// Relaunch. A worker leaves between two inbox tasks; if it is asked to suspend, also before a tile or out of the wait of
// one. Before it publishes `parked` [W1] it stores its positions in its line; the next launch resumes from them. Tasks it had taken but not begun are read again from the
// inbox, which keeps them because their done records, the scheduler's credit, were never sent. So nothing is lost and
// nothing runs twice. After a fault the task under way is neither finished nor untouched: the run is lost, the rings are
// still sound.
//
// Answers. Done records carry the count of finished inbox tasks (wire/task.hpp); here every inbox task gets one, kOpPark
// too, which is followed by `parked`. Events of consecutive tiles are added up and sent when the event changes, before a
// wait that blocks, and at the end of the task. A tile whose guard fails, or that is skipped by kTaskSkip, signals but
// publishes no report.
#pragma once

#include "ccks/worker/leave_watch.hpp"
#include "ccks/worker/prefetch.hpp"
#include "ccks/worker/task_source.hpp"
#include "ccks/worker/tile_gate.hpp"
#include "ccks/worker/tile_signals.hpp"
#include "ccks/worker/worker_post.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Starts loads of a tile's streamed operands, if Ops has something to start.
CCKS_ANY_SIDE
template <class Ops>
CCKS_HD inline void prefetch_operands(u32 lane, u32 lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
  if constexpr (requires { Ops::prefetch(0u, 1u, frame, op, 0u); }) Ops::prefetch(lane, lanes, frame, op, tile);
}

template <class Platform, class Ops>
class WorkerLoop {
 public:
  /// Both must outlive the loop.
  CCKS_HD_ANY WorkerLoop(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), index_(index), watch_(platform, params, index, beat_), source_(platform, params, index),
        gate_(platform, params, index), signals_(platform), queue_signals_(platform), post_(platform, params, index) {}

  /// Runs until the worker leaves. Every lane calls it.
  CCKS_HD_ANY void run() {
    start();
    while (step()) {
    }
  }

  CCKS_HD_ANY void start() {
    if (!platform_.control()) return;
    post_.start();
    traced_ = post_.traced();
    const ResumePoint resume = post_.resume_point();
    source_.start(post_.consumed_tasks(), resume.list_task);
    finished_tiles_ = resume.tile;
    watch_.start();
  }

  /// Goes on to the next op body and runs it; false once the worker has left.
  CCKS_HD_ANY bool step() {
    if (platform_.control()) advance();
    platform_.lanes().sync();
    WorkerStep& step = platform_.shared().step;
    if (step.kind == StepKind::leave) return false;
    const wire::RunFrame& frame = *reinterpret_cast<const wire::RunFrame*>(step.frame);
    const u32 fault =
        run_op_body<Ops>(platform_.lanes(), frame, *reinterpret_cast<const wire::OpParams*>(step.op), step.tile);
    if (fault != 0) step.fault = fault;  // several lanes may store; any of their faults will do
    platform_.lanes().sync();
    return true;
  }

 private:
  static constexpr u32 kPollsPerLook = 8;      // one read in nine goes to the host's line: a park request shows within 10 us
  static constexpr u32 kPollsBeforeFlush = 64; // idle for real: counters are for people, not for the fast path
  static constexpr u32 kSpinsPerClock = 64;

  /// What the gate and the outbox ask of the rest of the worker.
  struct Stop {
    WorkerLoop& loop;
    CCKS_HD_ANY bool abandoned() { return loop.watch_.abandon_requested(); }
    CCKS_HD_ANY wire::ParkRequest asked() { return loop.watch_.asked_inside_task(loop.suspend_reason_); }
    CCKS_HD_ANY static bool idle() { return true; }
    CCKS_HD_ANY void blocked() { loop.signals_.flush(); }  // somebody else may wait for what this task has finished
  };

  // ---- control lanes from here on ----

  /// Finishes the tile whose body has just run, then works until a body must run or the worker leaves.
  CCKS_HD_ANY void advance() {
    if (in_body_) end_body();
    while (!post_.left()) {
      if (next_tile() && begin_tile()) return;
    }
    post_.say_left();
    if (platform_.leader()) platform_.shared().step.kind = StepKind::leave;
  }

  /// The next tile, in tile_. False: there is none yet, or the worker leaves.
  CCKS_HD_ANY bool next_tile() {
    if (stager_.done()) {
      if (source_.between_inbox_tasks() && !between_tasks()) return false;
      if (source_.queued()) await_queue();
      source_.take(task_);
      if (task_.kind == TileKind::body) open_op();
      stager_.begin(task_, finished_tiles_);
      finished_tiles_ = 0;
      prefetched_end_ = task_.task.first_tile();
    }
    stager_.next(tile_);
    return true;
  }

  CCKS_HD_ANY void open_op() {
    task_.view = view_of_frame(*task_.frame, task_.task.op);
    if ((task_.task.slot_flags & wire::kTaskFetch) == 0) return;
    prefetch_experts(platform_.control_lane(), platform_.control_lanes(), Call(*task_.frame, *task_.view.op), task_.task);
  }

  /// Waits until an inbox task can be begun. False: the worker leaves.
  CCKS_HD_ANY bool between_tasks() {
    if (!source_.has_task() && !fetch()) return false;
    if (watch_.asked_between_tasks(task_ns_)) return leave(wire::ParkReason::requested);
    task_ns_ = 0;
    return wait_for_room();
  }

  /// Waits until the queue has a task, is drained, or is given up. A worker neither leaves nor suspends in between: what it has
  /// claimed is its to run, and the run ends whoever is away.
  CCKS_HD_ANY void await_queue() {
    Patience patience(platform_.now_ns());
    for (u32 spins = 0; !source_.has_task() && !source_.poll(); ++spins) {
      platform_.relax(spins);
      if (spins % kSpinsPerClock != kSpinsPerClock - 1) continue;
      if (watch_.abandon_requested()) return source_.fail(wire::FaultCode::abandoned);
      if (patience.over(platform_.now_ns(), params_.spin_deadline_ns)) return source_.fail(wire::FaultCode::wait_deadline);
    }
  }

  CCKS_HD_ANY bool leave(wire::ParkReason reason) {
    post_.leave_parked(reason);
    return false;
  }

  CCKS_HD_ANY bool fetch() {
    u64 idle_since = 0;
    for (u32 misses = 0;; ++misses) {
      if (source_.poll()) return true;
      if (misses == kPollsBeforeFlush) post_.flush_counters();
      const bool slept = platform_.idle(misses);
      if (!slept && misses % kPollsPerLook != kPollsPerLook - 1) continue;
      if (idle_since == 0) idle_since = platform_.now_ns();
      wire::ParkReason reason;
      if (watch_.should_leave(idle_since, reason)) return leave(reason);
    }
  }

  /// Waits until one record fits. Before a task is begun, so that the worker can leave with nothing half done.
  CCKS_HD_ANY bool wait_for_room() {
    if (post_.has_room()) return true;
    Patience patience(platform_.now_ns());
    for (u32 spins = 0; !post_.has_room(); ++spins) {
      platform_.relax(spins);
      if (spins % kSpinsPerClock != kSpinsPerClock - 1) continue;
      wire::ParkReason reason;
      if (watch_.should_leave(0, reason)) return leave(reason);
      if (patience.over(platform_.now_ns(), params_.spin_deadline_ns)) return post_.fault({wire::FaultCode::outbox_full});
    }
    return true;
  }

  /// Brings tile_ to the point where its body can run. False: there is no body to run, or the worker leaves.
  CCKS_HD_ANY bool begin_tile() {
    if ((tile_.flags & kTileOpensTask) != 0) {
      task_start_ns_ = platform_.now_ns();
      task_wait_ns_ = 0;
    }
    const bool inside = (tile_.flags & kTileOpensInbox) == 0 && !is_queued(tile_);
    if (inside && tile_.kind != TileKind::fault && watch_.suspend_between_tiles()) {
      suspend_reason_ = wire::ParkReason::requested;
      tile_.kind = TileKind::suspend;
    }
    if (tile_.kind == TileKind::body) {
      prefetch(tile_.tile);
      Stop stop{*this};
      gate_.pass(tile_, stop);
      task_wait_ns_ += tile_.wait_ns;
    }
    if (tile_.kind != TileKind::body) {
      end_tile();
      return false;
    }
    if (stager_.follows()) prefetch(stager_.next_tile());
    in_body_ = true;
    if (platform_.leader()) {
      platform_.shared().step = {reinterpret_cast<u64>(tile_.frame), reinterpret_cast<u64>(tile_.view.op), tile_.tile,
                                 StepKind::body, 0};
    }
    return true;
  }

  CCKS_HD_ANY void prefetch(u32 tile) {
    if (tile < prefetched_end_) return;
    prefetched_end_ = tile + 1;
    prefetch_operands<Ops>(platform_.control_lane(), platform_.control_lanes(), *tile_.frame, *tile_.view.op, tile);
  }

  /// After the barrier that follows the body.
  CCKS_HD_ANY void end_body() {
    in_body_ = false;
    const u32 fault = platform_.shared().step.fault;
    platform_.converge();  // all have read it before the leader writes the next step
    if (fault != 0) {
      const wire::Task& task = tile_.task;
      post_.fault({static_cast<wire::FaultCode>(fault), task.op, task.slot(), task.epoch, tile_.tile});
      return;
    }
    Stop stop{*this};
    if (publishes_report(*tile_.view.op, tile_.tile) && !post_.report(*tile_.frame, *tile_.view.op, report_source(*tile_.frame, *tile_.view.op), tile_.task, stop)) return;
    end_tile();
  }

  CCKS_HD_ANY void end_tile() {
    if (tile_.kind == TileKind::fault) {
      post_.fault(tile_.fault);
      return;
    }
    if (tile_.kind == TileKind::suspend) {
      signals_.flush();
      post_.leave_suspended(suspend_reason_, tile_);
      return;
    }
    if (is_queued(tile_)) {
      add_queued(queue_signals_, tile_);
    } else {
      signals_.add(tile_);
    }
    if ((tile_.flags & kTileClosesTask) != 0) end_task();
    if ((tile_.flags & kTileClosesInbox) != 0) end_inbox_task();
  }

  CCKS_HD_ANY void end_task() {
    signals_.flush();
    if (tile_.kind != TileKind::body && tile_.kind != TileKind::skip) return;
    const u64 run_ns = platform_.now_ns() - task_start_ns_;
    task_ns_ += run_ns;
    post_.add_times(run_ns - task_wait_ns_, task_wait_ns_);
    if (post_.tracing()) post_.trace(traced_++, tile_.task, {task_start_ns_, task_wait_ns_, run_ns});
  }

  CCKS_HD_ANY void end_inbox_task() {
    if (is_queued(tile_)) queue_signals_.publish(reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_);
    const bool silent = tile_.kind == TileKind::body && (tile_.view.op->flags & wire::kOpSilent) != 0;
    post_.finish_inbox_task(tile_.inbox, silent);
    if (!post_.has_room()) {  // reports have filled what was free when the task was begun
      Stop stop{*this};
      if (!post_.wait_to_answer(stop)) return;
    }
    post_.answer();
    if (tile_.inbox.op == wire::kOpPark) post_.leave_parked(wire::ParkReason::requested);
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 index_;
  Heartbeat beat_;
  LeaveWatch<Platform> watch_;

  // Replicated in the control lanes; other lanes never look.
  TaskSource<Platform> source_;
  TileStager stager_;
  TileGate<Platform> gate_;
  TileSignals<Platform> signals_;
  QueueSignals<Platform> queue_signals_;
  WorkerPost<Platform> post_;
  OpenTask task_;           // the task under way
  StagedTile tile_;         // the tile under way
  bool in_body_ = false;
  wire::ParkReason suspend_reason_ = wire::ParkReason::requested;
  u32 finished_tiles_ = 0;  // of the first task, by an earlier launch
  u32 prefetched_end_ = 0;  // tiles of the task before this one have been prefetched
  u64 task_start_ns_ = 0, task_wait_ns_ = 0;
  u32 traced_ = 0;          // records of the trace area
  u64 task_ns_ = 0;         // time in tasks since the last look at the host's line
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

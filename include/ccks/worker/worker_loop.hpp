// WorkerLoop: what a worker does from launch to leave. One source for host threads, CUDA blocks and simulators; all it
// knows of the machine is its Platform (platform.hpp). It compiles with nvcc and NVRTC.
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
// Memory ordering
//   slots, credit, state   see WorkerLink
//   events    [E1] released by the tile that signals, [E2] acquired by the tile that waits (wire/event.hpp). A body's
//             stores by other lanes are ordered before [E1] by the barrier after the body.
//   frames    plain: written by the host before it published a task of the run [R1], read after [R2]
//   reports   relaxed stores into the report area, published by the report record [R1]
//
// Relaunch. A worker leaves only between two inbox tasks (faults apart). Before it publishes `parked` [W1] it stores its
// positions in its line; the next launch resumes from them. Tasks it had staged but not begun are read again from the
// inbox, which keeps them because their done records, the scheduler's credit, were never sent. So nothing is lost and
// nothing runs twice. After a fault the task under way is neither finished nor untouched: the run is lost, the rings are
// still sound.
//
// Answers. Done records carry the count of finished inbox tasks (wire/task.hpp); here every inbox task gets one, kOpPark
// too, which is followed by `parked`. Events of consecutive tiles
// are added up and sent when the event changes, before a wait that blocks, and at the end of the task. A tile whose guard
// fails, or that is skipped by kTaskSkip, signals but publishes no report.
#pragma once

#include "ccks/wire/event.hpp"
#include "ccks/worker/worker_link.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Platform, class Ops>
class WorkerLoop {
 public:
  using Task = wire::Task;

  /// Both must outlive the loop.
  CCKS_HD_ANY WorkerLoop(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), link_(platform, params, index) {}

  /// Runs until the worker leaves. Every lane calls it.
  CCKS_HD_ANY void run() {
    start();
    while (step()) {
    }
  }

  CCKS_HD_ANY void start() {
    if (platform_.control()) link_.start();
  }

  /// Goes on to the next op body and runs it; false once the worker has left.
  CCKS_HD_ANY bool step() {
    if (platform_.control()) advance();
    platform_.lanes().sync();
    WorkerStep& step = platform_.shared().step;
    if (step.kind == StepKind::leave) return false;
    const wire::RunFrame& frame = *reinterpret_cast<const wire::RunFrame*>(step.frame);
    run_body(frame, table<wire::OpParams>(frame, frame.ops)[step.op], step);
    platform_.lanes().sync();
    return true;
  }

 private:
  static constexpr u32 kMaxPending = 4;     // signal groups of an op that are aggregated; ops have one or two
  static constexpr u32 kMaxRemembered = 4;  // waits of an op remembered from tile to tile
  static constexpr u32 kSpinsPerClock = 64;

  struct Pending {
    u32 event = 0;
    u32 count = 0;
  };
  struct Remembered {
    wire::EventRect rect;
    bool complete = false;
  };

  template <class T>
  CCKS_HD static const T* table(const wire::RunFrame& frame, u32 offset) {
    return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(&frame) + offset);
  }

  CCKS_HD_ANY void run_body(const wire::RunFrame& frame, const wire::OpParams& op, WorkerStep& step) {
    if constexpr (requires { static_cast<u32>(Ops::run(platform_.lanes(), frame, op, step.tile)); }) {
      const u32 fault = static_cast<u32>(Ops::run(platform_.lanes(), frame, op, step.tile));
      if (fault != 0) step.fault = fault;  // several lanes may store; any of their faults will do
    } else {
      Ops::run(platform_.lanes(), frame, op, step.tile);
    }
  }

  // ---- control lanes from here on ----

  /// Finishes the tile whose body has just run, then works until a body must run or the worker leaves.
  CCKS_HD_ANY void advance() {
    if (in_body_) end_body();
    while (!link_.leaving()) {
      if (tile_ < tile_end_) {
        if (begin_tile()) return;
      } else if (in_task_) {
        close_task();
      } else if (list_next_ < list_end_) {
        open_list_task();
      } else if (in_inbox_task_) {
        close_inbox_task();
      } else if (staged_next_ < staged_count_) {
        open_inbox_task();
      } else {
        staged_next_ = 0;
        staged_count_ = link_.fetch();
      }
    }
    if (platform_.leader()) platform_.shared().step.kind = StepKind::leave;
  }

  CCKS_HD_ANY void open_inbox_task() {
    if (link_.leave_between_tasks(task_ns_) || !link_.wait_for_room()) return;
    task_ns_ = 0;
    inbox_task_ = platform_.shared().staged[staged_next_++];
    in_inbox_task_ = true;
    remembered_op_ = wire::kMaxOps;
    frame_ = nullptr;
    if (inbox_task_.op == wire::kOpNop || inbox_task_.op == wire::kOpPark) return;
    if (!find_frame(inbox_task_)) return;
    if (inbox_task_.op != wire::kOpList) return open_task(inbox_task_);
    if (inbox_task_.tile >= frame_->list_count) return bad_task(inbox_task_);
    const wire::ListParams list = table<wire::ListParams>(*frame_, frame_->lists)[inbox_task_.tile];
    list_next_ = list.first;
    list_end_ = list.first + list.count;
  }

  CCKS_HD_ANY bool find_frame(const Task& task) {
    if (task.slot() < params_.slots) {
      const u64 address = reinterpret_cast<const u64*>(params_.frames)[task.slot()];
      frame_ = reinterpret_cast<const wire::RunFrame*>(address);
    }
    if (frame_ == nullptr) bad_task(task);
    return frame_ != nullptr;
  }

  /// A list task inherits epoch, slot and flags from the task that started the list; the epoch of a kOpSignal is its own.
  CCKS_HD_ANY void open_list_task() {
    Task task = table<Task>(*frame_, frame_->list_tasks)[list_next_++];
    if (task.op != wire::kOpSignal) task.epoch = inbox_task_.epoch;
    const u32 flags = (task.slot_flags | inbox_task_.slot_flags) & ~(wire::kMaxSlots - 1);
    task.slot_flags = static_cast<u16>(flags | inbox_task_.slot());
    open_task(task);
  }

  CCKS_HD_ANY void open_task(const Task& task) {
    task_ = task;
    if (task.op == wire::kOpSignal) {
      if (task.tile >= frame_->event_count) return bad_task(task);
      signal(0, task.tile, task.epoch);
      return flush_signals();
    }
    if (task.op == wire::kOpNop) return;
    if (task.op >= frame_->op_count) return bad_task(task);
    op_ = &table<wire::OpParams>(*frame_, frame_->ops)[task.op];
    if (task.first_tile() + task.tile_count() > op_->tile_count) return bad_task(task);
    tile_ = task.first_tile();
    tile_end_ = tile_ + task.tile_count();
    prefetched_end_ = tile_;
    in_task_ = true;
    task_wait_ns_ = 0;
    task_start_ns_ = platform_.now_ns();
    if (remembered_op_ != task.op) forget_waits(task.op);
  }

  CCKS_HD_ANY void close_task() {
    in_task_ = false;
    flush_signals();
    const u64 run_ns = platform_.now_ns() - task_start_ns_;
    task_ns_ += run_ns;
    link_.add_times(run_ns - task_wait_ns_, task_wait_ns_);
    if (!link_.tracing()) return;
    link_.trace({task_start_ns_, static_cast<u32>(task_wait_ns_), static_cast<u32>(run_ns), task_.tile, task_.epoch,
                 task_.op, static_cast<u16>(task_.slot()), link_.index()});
  }

  CCKS_HD_ANY void close_inbox_task() {
    in_inbox_task_ = false;
    const Task& task = inbox_task_;
    const u16 slot_kind = static_cast<u16>(task.slot() | static_cast<u32>(wire::RecordKind::done));
    // An empty task publishes nothing but its own record.
    if (!link_.post({link_.consumed_tasks() + 1, task.epoch, task.op, slot_kind, 0}, task.op != wire::kOpNop)) return;
    link_.task_consumed();
    if (task.op == wire::kOpPark) link_.leave_parked(wire::ParkReason::requested);
  }

  /// Brings tile_ to the point where its body can run. False: there is no body to run, or the worker leaves.
  CCKS_HD_ANY bool begin_tile() {
    coord_ = wire::tile_coord(op_->grid, tile_);
    if ((task_.slot_flags & wire::kTaskSkip) != 0) {
      signal_tile();
      return false;
    }
    prefetch(tile_);
    if (!wait_for_tile()) return false;
    if (!guards_hold()) {
      signal_tile();
      return false;
    }
    if (tile_ + 1 < tile_end_) prefetch(tile_ + 1);
    in_body_ = true;
    if (platform_.leader()) {
      platform_.shared().step = {reinterpret_cast<u64>(frame_), task_.op, tile_, StepKind::body, 0};
    }
    return true;
  }

  /// After the barrier that follows the body.
  CCKS_HD_ANY void end_body() {
    in_body_ = false;
    const u32 fault = platform_.shared().step.fault;
    platform_.converge();  // all have read it before the leader writes the next step
    if (fault != 0) {
      link_.fault({static_cast<wire::FaultCode>(fault), task_.op, task_.slot(), task_.epoch, tile_});
      return;
    }
    if (op_->report >= 0 && !publish_report()) return;
    signal_tile();
  }

  CCKS_HD_ANY void prefetch(u32 tile) {
    if constexpr (requires { Ops::prefetch(0u, 1u, *frame_, *op_, 0u); }) {
      if (tile < prefetched_end_) return;
      prefetched_end_ = tile + 1;
      Ops::prefetch(platform_.control_lane(), platform_.control_lanes(), *frame_, *op_, tile);
    }
  }

  CCKS_HD_ANY bool guards_hold() const {
    const wire::GuardParams* guards = table<wire::GuardParams>(*frame_, frame_->guards) + op_->guard_first;
    for (u32 i = 0; i < op_->guard_count; ++i) {
      if (!guard_holds(guards[i])) return false;
    }
    return true;
  }

  template <class T>
  CCKS_HD static bool compare(wire::Compare how, T word, T value) {
    switch (how) {
      case wire::Compare::eq: return word == value;
      case wire::Compare::ne: return word != value;
      case wire::Compare::lt: return word < value;
      case wire::Compare::le: return word <= value;
      case wire::Compare::gt: return word > value;
      case wire::Compare::ge: return word >= value;
    }
    return false;
  }
  CCKS_HD_ANY bool guard_holds(const wire::GuardParams& guard) const {
    const wire::Compare how = static_cast<wire::Compare>(guard.compare);
    const u64 address = frame_->arena + guard.offset;
    if (guard.is_float != 0) return compare(how, *reinterpret_cast<const float*>(address), guard.float_value);
    return compare(how, *reinterpret_cast<const i32*>(address), guard.int_value);
  }

  /// Copies the op's value to the slot's report area and tells the scheduler. Bytes are whole words: i32 or f32.
  CCKS_HD_ANY bool publish_report() {
    const wire::OperandParams& operand = table<wire::OperandParams>(*frame_, frame_->operands)[op_->report_operand];
    const wire::Space space = static_cast<wire::Space>(operand.space);
    const u64 base = space == wire::Space::arena     ? frame_->arena
                     : space == wire::Space::weights ? frame_->weights
                                                     : frame_->state;
    const u32* from = reinterpret_cast<const u32*>(base + operand.offset);
    u32* to = reinterpret_cast<u32*>(frame_->reports + op_->report_offset);
    for (u32 i = platform_.control_lane(); i < op_->report_bytes / sizeof(u32); i += platform_.control_lanes()) {
      platform_.atoms().link_store_relaxed(&to[i], from[i]);  // published by the record's [R1]
    }
    platform_.converge();
    const u16 slot_kind = static_cast<u16>(task_.slot() | static_cast<u32>(wire::RecordKind::report));
    return link_.post({static_cast<u32>(op_->report), task_.epoch, task_.op, slot_kind, 0}, true);
  }

  // ---- events ----

  CCKS_HD_ANY void forget_waits(u32 op) {
    remembered_op_ = op;
    for (Remembered& r : remembered_) r.complete = false;
  }

  CCKS_HD_ANY bool wait_for_tile() {
    const wire::WaitParams* waits = table<wire::WaitParams>(*frame_, frame_->waits) + op_->wait_first;
    for (u32 i = 0; i < op_->wait_count; ++i) {
      const wire::EventRect rect = wire::wait_rect(waits[i], coord_);
      if (wire::rect_count(rect) == 0) continue;
      Remembered* memory = i < kMaxRemembered ? &remembered_[i] : nullptr;
      if (memory != nullptr && memory->complete && wire::rect_covers(memory->rect, rect)) continue;
      if (!wait_for_rect(waits[i], rect)) return false;
      if (memory != nullptr) *memory = {rect, true};
    }
    return true;
  }

  /// Each control lane watches one event at a time.
  CCKS_HD_ANY bool wait_for_rect(const wire::WaitParams& wait, const wire::EventRect& rect) {
    const u32 count = wire::rect_count(rect);
    const u32* counters = reinterpret_cast<const u32*>(frame_->events);
    const u32* bases = table<u32>(*frame_, frame_->bases);
    for (u32 first = 0; first < count; first += platform_.control_lanes()) {
      const u32 i = first + platform_.control_lane();
      const u32 event = wire::rect_event(wait, rect, i < count ? i : first);
      const u32 target = wire::event_target(bases[event], task_.epoch, frame_->epoch0, wait.total);
      if (!wait_for_event(counters + event, event, target)) return false;
    }
    return true;
  }

  CCKS_HD_ANY bool wait_for_event(const u32* counter, u32 event, u32 target) {
    u64 since = 0;
    for (u32 spins = 0;; ++spins) {
      const u32 value = platform_.atoms().event_load_acquire(counter);  // [E2]
      const u32 late = platform_.first_lane(!wire::event_reached(value, target));
      if (late == platform_.control_lanes()) break;
      if (spins == 0) {
        flush_signals();  // somebody else may wait for what this task has finished
        since = platform_.now_ns();
      }
      if (spins % kSpinsPerClock == kSpinsPerClock - 1) {
        const bool abandoned = link_.abandon_requested();
        if (abandoned || platform_.now_ns() - since > params_.spin_deadline_ns) {
          return wait_failed(abandoned, platform_.from_lane(event, late), platform_.from_lane(value, late),
                             platform_.from_lane(target, late));
        }
      }
      platform_.relax(spins);
    }
    if (since != 0) task_wait_ns_ += platform_.now_ns() - since;
    return true;
  }

  CCKS_HD_ANY bool wait_failed(bool abandoned, u32 event, u32 value, u32 target) {
    const wire::FaultCode code = abandoned ? wire::FaultCode::abandoned : wire::FaultCode::wait_deadline;
    return link_.fault({code, task_.op, task_.slot(), task_.epoch, tile_, event, value, target});
  }

  /// tile_ is finished: adds to its events and goes on to the next.
  CCKS_HD_ANY void signal_tile() {
    const wire::SignalParams* signals = table<wire::SignalParams>(*frame_, frame_->signals) + op_->signal_first;
    for (u32 i = 0; i < op_->signal_count; ++i) signal(i, wire::signal_event(signals[i], coord_), 1);
    ++tile_;
  }

  CCKS_HD_ANY void signal(u32 group, u32 event, u32 count) {
    if (group >= kMaxPending) return add_to_event({event, count});
    Pending& pending = pending_[group];
    if (pending.event != event) {
      add_to_event(pending);
      pending = {event, 0};
    }
    pending.count += count;
  }
  CCKS_HD_ANY void flush_signals() {
    for (Pending& pending : pending_) {
      add_to_event(pending);
      pending.count = 0;
    }
  }
  CCKS_HD_ANY void add_to_event(const Pending& pending) {
    if (pending.count == 0 || !platform_.leader()) return;
    platform_.atoms().event_add_release(reinterpret_cast<u32*>(frame_->events) + pending.event, pending.count);  // [E1]
  }

  CCKS_HD_ANY void bad_task(const Task& task) {
    link_.fault({wire::FaultCode::bad_op, task.op, task.slot(), task.epoch, task.tile});
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  WorkerLink<Platform> link_;

  // Replicated in the control lanes; other lanes never look.
  const wire::RunFrame* frame_ = nullptr;  // of the inbox task
  const wire::OpParams* op_ = nullptr;     // of the task
  Task inbox_task_;
  Task task_;               // the inbox task itself, or one of its list
  wire::TileCoord coord_;   // of tile_
  u32 tile_ = 0, tile_end_ = 0;
  u32 prefetched_end_ = 0;  // tiles of the task before this one have been prefetched
  u32 list_next_ = 0, list_end_ = 0;
  u32 staged_next_ = 0, staged_count_ = 0;
  bool in_inbox_task_ = false, in_task_ = false, in_body_ = false;
  u32 remembered_op_ = wire::kMaxOps;
  Remembered remembered_[kMaxRemembered];
  Pending pending_[kMaxPending];
  u64 task_start_ns_ = 0, task_wait_ns_ = 0;
  u64 task_ns_ = 0;         // time in tasks since the last look at the host's line
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

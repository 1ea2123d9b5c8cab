// WorkerPost: what a worker tells the host. Its outbox with credit, its line, its traces. Runs on the control lanes that
// post; what it holds is replicated there.
//
// Memory ordering, besides the rings [R1..R4] of wire/ring.hpp
//   state   WorkerLine::state, written by the worker [W1], read by the host [W2] (devices: launch, join, health)
//   [W1] release: positions, counters and fault details of the line are visible in [W2]
//   [W2] acquire on the host
//   reports relaxed stores into the report area, published by the report record [R1]. A report of one word travels in its record,
//           which publishes nothing else, so it waits for no store
#pragma once

#include "ccks/wire/ring.hpp"
#include "ccks/worker/op_entry.hpp"
#include "ccks/worker/platform.hpp"
#include "ccks/worker/staged_tile.hpp"
#include "ccks/worker/tile_gate.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

struct TraceTimes {
  u64 start_ns, wait_ns, run_ns;  // as in TraceRecord
};
/// Record `number` of a worker's trace area.
CCKS_ANY_SIDE
template <class Atoms>
CCKS_HD inline void put_trace(const Atoms& atoms, const wire::WorkerParams& params, u32 index, u32 number, const wire::Task& task, const TraceTimes& times) {
  const u64 slot = static_cast<u64>(index) * params.trace_slots + number % params.trace_slots;
  u64* words = reinterpret_cast<u64*>(params.trace) + slot * (sizeof(wire::TraceRecord) / sizeof(u64));
  atoms.link_store_relaxed(&words[0], times.start_ns);
  atoms.link_store_relaxed(&words[1], static_cast<u32>(times.wait_ns) | static_cast<u64>(static_cast<u32>(times.run_ns)) << 32);
  atoms.link_store_relaxed(&words[2], task.tile | static_cast<u64>(task.epoch) << 32);
  atoms.link_store_relaxed(&words[3], task.op | static_cast<u64>(task.slot()) << 16 | static_cast<u64>(index) << 32);
}

template <class Platform>
class WorkerPost {
 public:
  using Record = wire::Record;
  using Atoms = typename Platform::Atoms;

  /// `platform` and `params` must outlive the object.
  CCKS_HD_ANY WorkerPost(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), index_(index), atoms_(platform.atoms()) {}

  /// Takes up where the line says an earlier launch stopped, and reports the worker as running [W1].
  CCKS_HD_ANY void start() {
    line_ = reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_;
    host_ = reinterpret_cast<const wire::HostLine*>(params_.host_lines) + index_;
    Record* records = reinterpret_cast<Record*>(wire::outbox_of(params_, index_));
    consumed_tasks_ = launched_at_ = platform_.uniform(atoms_.link_load_relaxed(&line_->inbox_position));
    answered_tasks_ = platform_.uniform(atoms_.link_load_relaxed(&line_->answered_position));
    if (answered_tasks_ != consumed_tasks_) owe_last_task();
    const u32 produced = platform_.uniform(atoms_.link_load_relaxed(&line_->outbox_position));
    outbox_ = wire::RingWriter<Record, Atoms>(records, params_.outbox_slots, produced, atoms_);
    outbox_consumed_ = platform_.uniform(atoms_.link_load_acquire(&host_->outbox_consumed));  // [R4]
    if (platform_.stores()) {
      atoms_.link_store_relaxed(&line_->fault, static_cast<u32>(wire::FaultCode::none));
      atoms_.link_store_release(&line_->state, static_cast<u32>(wire::WorkerState::running));  // [W1]
    }
    platform_.posted();
  }

  /// Where the inbox task that follows the finished ones is taken up.
  CCKS_HD_ANY ResumePoint resume_point() const {
    return {platform_.uniform(atoms_.link_load_relaxed(&line_->resume_list_task)),
            platform_.uniform(atoms_.link_load_relaxed(&line_->resume_tile))};
  }
  /// True once the worker leaves; say_left() tells the host.
  CCKS_HD_ANY bool left() const { return left_; }
  /// Inbox tasks finished so far, over all launches.
  CCKS_HD_ANY u32 consumed_tasks() const { return consumed_tasks_; }

  CCKS_HD_ANY bool has_room() {
    if (outbox_.position() - outbox_consumed_ < params_.outbox_slots) return true;
    outbox_consumed_ = platform_.uniform(atoms_.link_load_acquire(&host_->outbox_consumed));  // [R4]
    return outbox_.position() - outbox_consumed_ < params_.outbox_slots;
  }

  /// Copies the report of `op`, whose task has run, and announces it; `from` is its report_source. False: the worker leaves with a
  /// fault. Stop as in TileGate::pass.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool report(const wire::RunFrame& frame, const wire::OpParams& op, const u32* from, const wire::Task& task, Stop& stop) {
    const bool word = op.report_bytes == sizeof(u32);
    if (!word) copy_report(atoms_, from, frame, op, platform_.control_lane(), platform_.control_lanes());
    platform_.converge();
    const u16 slot_kind = static_cast<u16>(task.slot() | static_cast<u32>(word ? wire::RecordKind::word : wire::RecordKind::report));
    const u32 value = word ? *from : static_cast<u32>(op.report);
    const Record record{value, task.epoch, task.op, slot_kind, 0};
    if (!wait_for_room(record, stop)) return false;
    put(record, word ? Publishes::itself : Publishes::all);
    return true;
  }

  /// `inbox` is finished; answer() tells the host. `silent`: its last tile ran an op that stores nothing (kOpSilent).
  CCKS_HD_ANY void finish_inbox_task(const wire::Task& inbox, bool silent) {
    ++consumed_tasks_;
    answer_ = inbox;
    owed_ = true;
    // An empty task, and one whose op stores nothing, publishes nothing but its record.
    const bool nothing = inbox.op == wire::kOpNop || (silent && inbox.op < wire::kMaxOps);
    owed_release_ = owed_release_ || !nothing;
  }
  CCKS_HD_ANY bool owes_answer() const { return owed_; }
  /// Waits until the answer fits; false: the worker leaves with a fault.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_to_answer(Stop& stop) {
    return wait_for_room({answer_.tile, answer_.epoch, answer_.op, answer_.slot_flags, 0}, stop);
  }

  /// One done record for all inbox tasks finished since the last. The caller has looked at has_room().
  CCKS_HD_ANY void answer() {
    const u16 slot_kind = static_cast<u16>(answer_.slot() | static_cast<u32>(wire::RecordKind::done));
    put({consumed_tasks_, answer_.epoch, answer_.op, slot_kind, 0}, !owed_release_ ? Publishes::itself : tracing() ? Publishes::all : Publishes::device_memory);
    answered_tasks_ = consumed_tasks_;
    owed_ = owed_release_ = false;
  }

  /// The worker leaves with a fault. Always false, for `return fault(...)`.
  CCKS_HD_ANY bool fault(const FaultDetails& details) {
    fault_ = details;
    left_ = true;
    return false;
  }

  /// Before `tile`, which the next launch begins with.
  CCKS_HD_ANY void leave_suspended(wire::ParkReason reason, const StagedTile& tile) {
    leave_parked(reason, {tile.list_task, tile.tile - tile.task.first_tile()});
  }

  CCKS_HD_ANY void leave_parked(wire::ParkReason reason, const ResumePoint& resume = {}) {
    reason_ = reason;
    resume_ = resume;
    left_ = true;
  }

  /// Tells the host, once left(): the last call. In one place, since it is long.
  CCKS_HD_ANY void say_left() {
    const bool faulted = fault_.code != wire::FaultCode::none;
    if (!faulted && owed_ && has_room()) answer();
    if (platform_.stores()) {
      if (faulted) {
        say_fault();
      } else {
        say_parked();
      }
    }
    const u16 kind = static_cast<u16>(faulted ? wire::RecordKind::fault : wire::RecordKind::parked);
    leave(faulted ? wire::WorkerState::faulted : wire::WorkerState::parked,
          faulted ? Record{static_cast<u32>(fault_.code), fault_.epoch, static_cast<u16>(fault_.op), static_cast<u16>(fault_.slot | kind), 0}
                  : Record{static_cast<u32>(reason_), 0, wire::kOpPark, kind, 0});
  }

  /// A task is finished: `busy_ns` in its bodies, `wait_ns` in waits.
  CCKS_HD_ANY void add_times(u64 busy_ns, u64 wait_ns) {
    busy_ns_ += busy_ns;
    wait_ns_ += wait_ns;
  }
  CCKS_HD_ANY void flush_counters() {
    if (!platform_.stores()) return;
    atoms_.link_store_relaxed(&line_->busy_ns, busy_ns_);
    atoms_.link_store_relaxed(&line_->wait_ns, wait_ns_);
  }

  CCKS_HD_ANY bool tracing() const { return params_.trace != 0 && params_.trace_slots != 0; }
  /// How many records its trace area has been given.
  CCKS_HD_ANY u32 traced() const { return platform_.uniform(atoms_.link_load_relaxed(&line_->trace_count)); }
  /// Puts record `number` into the worker's trace area and says that all up to it are there; when it is full the oldest go. The next release record publishes it.
  CCKS_HD_ANY void trace(u32 number, const wire::Task& task, const TraceTimes& times) {
    if (!platform_.stores()) return;
    put_trace(atoms_, params_, index_, number, task, times);
    atoms_.link_store_relaxed(&line_->trace_count, number + 1);
  }

 private:
  static constexpr u32 kSpinsPerClock = 64;

  /// An earlier launch left without room for its last answer. The task is still in the inbox, whose slots are not used
  /// again before they are answered.
  CCKS_HD_ANY void owe_last_task() {
    const wire::Task* inbox = reinterpret_cast<const wire::Task*>(wire::inbox_of(params_, index_));
    answer_ = wire::from_words<wire::Task>(atoms_.load_slot_acquire(&inbox[(consumed_tasks_ - 1) & (params_.inbox_slots - 1)]));  // [R2]
    owed_ = owed_release_ = true;
  }

  CCKS_HD_ANY void put(Record record, Publishes what) {
    if constexpr (Platform::kPipelined) {
      record.seq = wire::ring_seq(outbox_.position());
      const wire::SlotWords words = wire::to_words(record);
      platform_.put_slot(const_cast<Record*>(outbox_.next_slot()), words.low, words.high, what);
      outbox_.skip();
    } else if (platform_.leader()) {
      switch (what) {
        case Publishes::itself: outbox_.put_relaxed(record); break;
        case Publishes::device_memory: outbox_.put_release_device(record); break;  // [R5]
        case Publishes::all: outbox_.put_release(record); break;                   // [R1]
      }
    } else {
      outbox_.skip();
    }
    platform_.posted();
  }

  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_room(const Record& record, Stop& stop) {
    Patience patience;
    for (u32 spins = 0; !has_room(); ++spins) {
      platform_.relax(spins);
      if (spins % kSpinsPerClock != kSpinsPerClock - 1) continue;
      const bool first = spins == kSpinsPerClock - 1;
      bool abandoned = false, over = false;
      if constexpr (requires { stop.look(first); }) {
        const WaitEnd::Code code = stop.look(first);
        abandoned = code == WaitEnd::abandoned;
        over = code == WaitEnd::overdue;
      } else {
        if (first) patience = Patience(platform_.now_ns());
        abandoned = stop.abandoned();
        over = patience.over(platform_.now_ns(), params_.spin_deadline_ns);
      }
      if (!abandoned && !over) continue;
      return fault({abandoned ? wire::FaultCode::abandoned : wire::FaultCode::outbox_full, record.op, record.slot(),
                    record.epoch, record.value});
    }
    return true;
  }

  CCKS_HD_ANY void say_fault() {
    atoms_.link_store_relaxed(&line_->fault, static_cast<u32>(fault_.code));
    atoms_.link_store_relaxed(&line_->fault_op, fault_.op);
    atoms_.link_store_relaxed(&line_->fault_slot, fault_.slot);
    atoms_.link_store_relaxed(&line_->fault_epoch, fault_.epoch);
    atoms_.link_store_relaxed(&line_->fault_tile, fault_.tile);
    atoms_.link_store_relaxed(&line_->fault_event, fault_.event);
    atoms_.link_store_relaxed(&line_->fault_value, fault_.value);
    atoms_.link_store_relaxed(&line_->fault_target, fault_.target);
  }
  CCKS_HD_ANY void say_parked() {
    // A launch that has neither finished nor suspended a task has not begun the one that it was to take up in its middle: where
    // that is stands in the line already.
    const bool untouched = consumed_tasks_ == launched_at_ && resume_.list_task == 0 && resume_.tile == 0;
    if (!untouched) {
      atoms_.link_store_relaxed(&line_->resume_list_task, resume_.list_task);
      atoms_.link_store_relaxed(&line_->resume_tile, resume_.tile);
    }
    atoms_.link_store_relaxed(&line_->park_reason, static_cast<u32>(reason_));
  }

  /// The state comes first, so that whoever takes the record finds it. The record is sent only if there is room: the line
  /// says the same.
  CCKS_HD_ANY void leave(wire::WorkerState state, const Record& record) {
    flush_counters();
    const bool room = has_room();
    if (platform_.stores()) {
      atoms_.link_store_relaxed(&line_->inbox_position, consumed_tasks_);
      atoms_.link_store_relaxed(&line_->answered_position, answered_tasks_);
      atoms_.link_store_relaxed(&line_->outbox_position, outbox_.position() + (room ? 1 : 0));
      atoms_.link_store_release(&line_->state, static_cast<u32>(state));  // [W1]
    }
    if (room) put(record, Publishes::all);
    platform_.posted();
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 index_;
  Atoms atoms_;
  wire::WorkerLine* line_ = nullptr;
  const wire::HostLine* host_ = nullptr;
  wire::RingWriter<Record, Atoms> outbox_;
  wire::Task answer_;        // the last inbox task that is finished and not answered
  bool owed_ = false;        // such a task exists
  bool owed_release_ = false;
  bool left_ = false;
  wire::ParkReason reason_ = wire::ParkReason::requested;  // it leaves for, and where it is taken up,
  ResumePoint resume_;
  FaultDetails fault_;       // unless it has one
  u32 consumed_tasks_ = 0;   // position in the inbox
  u32 launched_at_ = 0;      // where this launch began
  u32 answered_tasks_ = 0;   // of them, those that the host knows of
  u32 outbox_consumed_ = 0;  // last value read of HostLine::outbox_consumed; re-read only when the outbox looks full
  u64 busy_ns_ = 0;
  u64 wait_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

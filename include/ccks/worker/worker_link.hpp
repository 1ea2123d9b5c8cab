// WorkerLink: a worker's end of the link. Inbox, outbox with credit, its line, the host's line, traces, and the
// reasons to leave. Runs on the control lanes; see worker_loop.hpp for the loop on top of it.
//
// Memory ordering, besides the rings [R1..R4] of wire/ring.hpp
//   state   WorkerLine::state, written by the worker [W1], read by the host [W2] (devices: launch, join, health)
//   [W1] release: positions, counters and fault details of the line are visible in [W2]
//   [W2] acquire on the host
//   HostLine::park and heartbeat_ns are relaxed on both sides: each is a lone word that publishes nothing else.
#pragma once

#include "ccks/wire/ring.hpp"
#include "ccks/worker/platform.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Details of a fault, as they go into the worker's line.
struct FaultDetails {
  wire::FaultCode code = wire::FaultCode::none;
  u32 op = 0, slot = 0, epoch = 0, tile = 0;
  u32 event = 0, value = 0, target = 0;
};

template <class Platform>
class WorkerLink {
 public:
  using Task = wire::Task;
  using Record = wire::Record;
  using Atoms = typename Platform::Atoms;

  /// `platform` and `params` must outlive the link.
  CCKS_HD_ANY WorkerLink(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), index_(index), atoms_(platform.atoms()) {}

  /// Takes up where the line says an earlier launch stopped, and reports the worker as running [W1].
  CCKS_HD_ANY void start() {
    line_ = reinterpret_cast<wire::WorkerLine*>(params_.worker_lines) + index_;
    host_ = reinterpret_cast<const wire::HostLine*>(params_.host_lines) + index_;
    inbox_ = reinterpret_cast<const Task*>(params_.inboxes) + static_cast<u64>(index_) * params_.inbox_slots;
    Record* records = reinterpret_cast<Record*>(params_.outboxes) + static_cast<u64>(index_) * params_.outbox_slots;
    consumed_tasks_ = platform_.uniform(atoms_.link_load_relaxed(&line_->inbox_position));
    const u32 produced = platform_.uniform(atoms_.link_load_relaxed(&line_->outbox_position));
    trace_count_ = platform_.uniform(atoms_.link_load_relaxed(&line_->trace_count));
    outbox_ = wire::RingWriter<Record, Atoms>(records, params_.outbox_slots, produced, atoms_);
    outbox_consumed_ = platform_.uniform(atoms_.link_load_acquire(&host_->outbox_consumed));  // [R4]
    heartbeat_seen_at_ = platform_.now_ns();
    if (platform_.leader()) {
      atoms_.link_store_relaxed(&line_->fault, static_cast<u32>(wire::FaultCode::none));
      atoms_.link_store_release(&line_->state, static_cast<u32>(wire::WorkerState::running));  // [W1]
    }
    platform_.posted();
  }

  CCKS_HD_ANY bool leaving() const { return leaving_; }

  /// Waits for tasks; returns how many lie in shared().staged. 0: the worker leaves.
  CCKS_HD_ANY u32 fetch() {
    u64 idle_since = 0;
    for (u32 misses = 0;; ++misses) {
      const u32 count = platform_.poll(inbox_, params_.inbox_slots - 1, consumed_tasks_);
      if (count > 0) return count;
      if (misses == kPollsBeforeFlush) flush_counters();
      const bool slept = platform_.idle(misses);
      if (!slept && misses % kPollsPerLineCheck != kPollsPerLineCheck - 1) continue;
      if (idle_since == 0) idle_since = platform_.now_ns();
      if (should_leave(idle_since)) return 0;
    }
  }

  /// One staged task is finished and answered.
  CCKS_HD_ANY void task_consumed() { ++consumed_tasks_; }
  /// Inbox tasks finished so far, over all launches.
  CCKS_HD_ANY u32 consumed_tasks() const { return consumed_tasks_; }

  /// Between two tasks: looks at the host's line now and then; true if the worker leaves. `busy_ns` is the time spent
  /// since the last call: reading the line costs about 1 us over PCIe, so it is rationed by time and by tasks.
  CCKS_HD_ANY bool leave_between_tasks(u64 busy_ns) {
    unchecked_ns_ += busy_ns;
    if (++unchecked_tasks_ < kTasksPerLineCheck && unchecked_ns_ < kLineCheckNs) return false;
    unchecked_tasks_ = 0;
    unchecked_ns_ = 0;
    if (park_request() == wire::kParkNo) return false;
    leave_parked(wire::ParkReason::requested);
    return true;
  }

  /// Waits until one record fits; false if the worker leaves instead. Called before a task is begun, so that it can
  /// leave with nothing half done.
  CCKS_HD_ANY bool wait_for_room() {
    if (has_room()) return true;
    const u64 since = platform_.now_ns();
    for (u32 spins = 0; !has_room(); ++spins) {
      platform_.relax(spins);
      if (spins % kSpinsPerClock != kSpinsPerClock - 1) continue;
      if (should_leave(0)) return false;
      if (platform_.now_ns() - since > params_.spin_deadline_ns) return fault({wire::FaultCode::outbox_full});
    }
    return true;
  }

  /// Publishes a record; with `release` it also publishes everything the worker has written so far [R1]. False: fault.
  CCKS_HD_ANY bool post(const Record& record, bool release) {
    if (!has_room() && !wait_inside_task(record)) return false;
    if (platform_.leader()) {
      if (release) {
        outbox_.put_release(record);  // [R1]
      } else {
        outbox_.put_relaxed(record);
      }
    } else {
      outbox_.skip();
    }
    platform_.posted();
    return true;
  }

  /// Whether the host wants the worker out of a wait inside a task.
  CCKS_HD_ANY bool abandon_requested() { return park_request() == wire::kParkAbandon; }

  /// Writes the fault where the host finds it, and leaves. Always false, for `return fault(...)`.
  CCKS_HD_ANY bool fault(const FaultDetails& details) {
    leaving_ = true;
    if (platform_.leader()) {
      atoms_.link_store_relaxed(&line_->fault, static_cast<u32>(details.code));
      atoms_.link_store_relaxed(&line_->fault_op, details.op);
      atoms_.link_store_relaxed(&line_->fault_slot, details.slot);
      atoms_.link_store_relaxed(&line_->fault_epoch, details.epoch);
      atoms_.link_store_relaxed(&line_->fault_tile, details.tile);
      atoms_.link_store_relaxed(&line_->fault_event, details.event);
      atoms_.link_store_relaxed(&line_->fault_value, details.value);
      atoms_.link_store_relaxed(&line_->fault_target, details.target);
    }
    last_record({static_cast<u32>(details.code), details.epoch, static_cast<u16>(details.op),
                 static_cast<u16>(details.slot | static_cast<u32>(wire::RecordKind::fault)), 0});
    publish_state(wire::WorkerState::faulted);
    return false;
  }

  CCKS_HD_ANY void leave_parked(wire::ParkReason reason) {
    leaving_ = true;
    if (platform_.leader()) atoms_.link_store_relaxed(&line_->park_reason, static_cast<u32>(reason));
    last_record({static_cast<u32>(reason), 0, wire::kOpPark, static_cast<u16>(wire::RecordKind::parked), 0});
    publish_state(wire::WorkerState::parked);
  }

  CCKS_HD_ANY void add_times(u64 busy_ns, u64 wait_ns) {
    busy_ns_ += busy_ns;
    wait_ns_ += wait_ns;
  }
  /// Appends to the worker's trace area; when it is full the oldest records go. The next release record publishes it.
  CCKS_HD_ANY void trace(const wire::TraceRecord& r) {
    if (params_.trace == 0 || params_.trace_slots == 0) return;
    if (platform_.leader()) {
      const u64 slot = static_cast<u64>(index_) * params_.trace_slots + trace_count_ % params_.trace_slots;
      u64* words = reinterpret_cast<u64*>(params_.trace) + slot * (sizeof(wire::TraceRecord) / sizeof(u64));
      atoms_.link_store_relaxed(&words[0], r.start_ns);
      atoms_.link_store_relaxed(&words[1], r.wait_ns | static_cast<u64>(r.run_ns) << 32);
      atoms_.link_store_relaxed(&words[2], r.tile | static_cast<u64>(r.epoch) << 32);
      atoms_.link_store_relaxed(&words[3], r.op | static_cast<u64>(r.slot) << 16 | static_cast<u64>(r.worker) << 32);
      atoms_.link_store_relaxed(&line_->trace_count, trace_count_ + 1);
    }
    ++trace_count_;
  }
  CCKS_HD_ANY bool tracing() const { return params_.trace != 0; }
  CCKS_HD_ANY u32 index() const { return index_; }

 private:
  // An idle CUDA worker reads one line over the link in about 1 us; one read in nine for the host's line keeps the
  // latency of new tasks and still notices a park request within 10 us.
  static constexpr u32 kPollsPerLineCheck = 8;
  static constexpr u32 kPollsBeforeFlush = 64;     // idle for real: counters are for people, not for the fast path
  static constexpr u32 kTasksPerLineCheck = 64;
  static constexpr u64 kLineCheckNs = 100'000;     // 1 % of the worker's time even if a read took 1 us
  static constexpr u32 kSpinsPerClock = 64;

  CCKS_HD_ANY u32 park_request() { return platform_.uniform(atoms_.link_load_relaxed(&host_->park)); }

  CCKS_HD_ANY bool has_room() {
    if (outbox_.position() - outbox_consumed_ < params_.outbox_slots) return true;
    outbox_consumed_ = platform_.uniform(atoms_.link_load_acquire(&host_->outbox_consumed));  // [R4]
    return outbox_.position() - outbox_consumed_ < params_.outbox_slots;
  }

  /// Park request, stale heartbeat, idle limit. `idle_since` 0: not idle.
  CCKS_HD_ANY bool should_leave(u64 idle_since) {
    const u64 now = platform_.now_ns();
    if (park_request() != wire::kParkNo) {
      leave_parked(wire::ParkReason::requested);
    } else if (heartbeat_is_stale(now)) {
      leave_parked(wire::ParkReason::stale_heartbeat);
    } else if (idle_since != 0 && params_.idle_limit_ns != 0 && now - idle_since > params_.idle_limit_ns) {
      leave_parked(wire::ParkReason::idle);
    }
    return leaving_;
  }

  CCKS_HD_ANY bool heartbeat_is_stale(u64 now) {
    if (params_.heartbeat_limit_ns == 0) return false;
    const u64 beat = platform_.uniform(atoms_.link_load_relaxed(&host_->heartbeat_ns));
    if (beat != heartbeat_) {
      heartbeat_ = beat;
      heartbeat_seen_at_ = now;
    }
    return now - heartbeat_seen_at_ > params_.heartbeat_limit_ns;
  }

  CCKS_HD_ANY bool wait_inside_task(const Record& record) {
    const u64 since = platform_.now_ns();
    for (u32 spins = 0; !has_room(); ++spins) {
      platform_.relax(spins);
      if (spins % kSpinsPerClock != kSpinsPerClock - 1) continue;
      const bool abandoned = abandon_requested();
      if (!abandoned && platform_.now_ns() - since <= params_.spin_deadline_ns) continue;
      return fault({abandoned ? wire::FaultCode::abandoned : wire::FaultCode::outbox_full, record.op, record.slot(),
                    record.epoch, record.value});
    }
    return true;
  }

  /// The record that goes with leaving is sent only if there is room: the line says the same.
  CCKS_HD_ANY void last_record(const Record& record) {
    if (!has_room()) return;
    if (platform_.leader()) {
      outbox_.put_release(record);  // [R1]
    } else {
      outbox_.skip();
    }
  }

  CCKS_HD_ANY void flush_counters() {
    if (!platform_.leader()) return;
    atoms_.link_store_relaxed(&line_->busy_ns, busy_ns_);
    atoms_.link_store_relaxed(&line_->wait_ns, wait_ns_);
  }

  CCKS_HD_ANY void publish_state(wire::WorkerState state) {
    flush_counters();
    if (platform_.leader()) {
      atoms_.link_store_relaxed(&line_->inbox_position, consumed_tasks_);
      atoms_.link_store_relaxed(&line_->outbox_position, outbox_.position());
      atoms_.link_store_release(&line_->state, static_cast<u32>(state));  // [W1]
    }
    platform_.posted();
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 index_;
  Atoms atoms_;
  wire::WorkerLine* line_ = nullptr;
  const wire::HostLine* host_ = nullptr;
  const Task* inbox_ = nullptr;
  wire::RingWriter<Record, Atoms> outbox_;
  u32 consumed_tasks_ = 0;   // position in the inbox
  u32 outbox_consumed_ = 0;  // last value read of HostLine::outbox_consumed; re-read only when the outbox looks full
  u32 trace_count_ = 0;
  u32 unchecked_tasks_ = 0;
  u64 unchecked_ns_ = 0;
  u64 heartbeat_ = 0;
  u64 heartbeat_seen_at_ = 0;
  u64 busy_ns_ = 0;
  u64 wait_ns_ = 0;
  bool leaving_ = false;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// WorkerLinks: the scheduler's ends of all inboxes and outboxes, and the tasks that are on their way.
//
// Memory ordering (ring.hpp)
//   inbox slots   written here [R1], read by the worker [R2]
//   outbox slots  written by the worker [R1], read here [R2]
//   consumed      HostLine::outbox_consumed, stored here [R3], loaded by the worker [R4]
#pragma once

#include <cstdint>
#include <vector>

#include "ccks/wire/atoms.hpp"
#include "ccks/wire/control.hpp"
#include "ccks/wire/ring.hpp"
#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// One thread. Nothing is allocated after reserve(). Inboxes are answered in order, so a count of finished tasks says
/// which they were.
template <class Atoms>
class WorkerLinks {
 public:
  void reserve(const wire::WorkerParams& params, Atoms atoms = {}, std::uint64_t /*delay_ns*/ = 0) {
    params_ = params;
    atoms_ = atoms;
    mask_ = params.inbox_slots - 1;
    workers_.resize(params.workers);
    sent_.assign(std::size_t{params.workers} * params.inbox_slots, Decision{});
    auto* inboxes = reinterpret_cast<wire::Task*>(params.inboxes);
    auto* outboxes = reinterpret_cast<const wire::Record*>(params.outboxes);
    for (std::uint32_t w = 0; w < params.workers; ++w) {
      workers_[w].inbox = {inboxes + std::size_t{w} * params.inbox_slots, params.inbox_slots, 0, atoms};
      workers_[w].outbox = {outboxes + std::size_t{w} * params.outbox_slots, params.outbox_slots, 0, atoms};
    }
  }

  /// Sends one task; the caller has looked after credit (WorkerLoads).
  void send(const Decision& decision, std::uint32_t epoch) {
    Worker& worker = workers_[decision.worker];
    sent_[index(decision.worker, worker.inbox.position())] = decision;
    wire::Task task;
    task.tile = decision.tile;
    task.epoch = decision.op == wire::kOpSignal ? decision.amount : epoch;
    task.op = decision.op;
    task.slot_flags = decision.slot_flags;
    worker.inbox.put_release(task);  // [R1]
  }

  /// DelayedLinks hold things back; here nothing ever is.
  template <class Sent>
  bool turn(std::uint64_t /*now_ns*/, Sent /*sent*/) {
    return false;
  }
  bool poll(std::uint32_t worker, wire::Record& out) { return workers_[worker].outbox.poll(out); }
  /// Gives the worker back the credit of all records taken so far.
  void acknowledge(std::uint32_t worker) {
    atoms_.link_store_release(&host_line(worker).outbox_consumed, workers_[worker].outbox.position());  // [R3]
  }
  /// How many tasks a done record answers that says `finished`; 0 if none: it stands still, goes back, or past what was
  /// sent.
  std::uint32_t answered_by(std::uint32_t worker, std::uint32_t finished) const {
    const Worker& state = workers_[worker];
    const std::uint32_t count = finished - state.done;
    return count <= state.inbox.position() - state.done ? count : 0;
  }
  /// The `ahead`-th unanswered decision of `worker`.
  const Decision& unanswered(std::uint32_t worker, std::uint32_t ahead) const {
    return sent_[index(worker, workers_[worker].done + ahead)];
  }
  /// Tasks that `worker` has answered so far (wraps), and those it has not.
  std::uint32_t answered(std::uint32_t worker) const { return workers_[worker].done; }
  std::uint32_t unanswered_count(std::uint32_t worker) const {
    return workers_[worker].inbox.position() - workers_[worker].done;
  }
  /// The first unanswered decision of `worker`, which is answered now.
  const Decision& take_sent(std::uint32_t worker) { return sent_[index(worker, workers_[worker].done++)]; }

  /// Whether `worker` has left without a fault. [W2] acquire: pairs with [W1], the worker's state.
  bool is_away(std::uint32_t worker) const {
    const std::uint32_t state = atoms_.link_load_acquire(&worker_line(worker).state);
    return state == static_cast<std::uint32_t>(wire::WorkerState::parked);
  }

  wire::WorkerLine& worker_line(std::uint32_t worker) const {
    return reinterpret_cast<wire::WorkerLine*>(params_.worker_lines)[worker];
  }
  wire::HostLine& host_line(std::uint32_t worker) const {
    return reinterpret_cast<wire::HostLine*>(params_.host_lines)[worker];
  }
  std::uint32_t workers() const { return params_.workers; }
  Atoms& atoms() { return atoms_; }

 private:
  struct Worker {
    wire::RingWriter<wire::Task, Atoms> inbox;
    wire::RingConsumer<wire::Record, Atoms> outbox;
    std::uint32_t done = 0;  // inbox tasks answered
  };
  std::size_t index(std::uint32_t worker, std::uint32_t position) const {
    return std::size_t{worker} * params_.inbox_slots + (position & mask_);
  }

  wire::WorkerParams params_{};
  Atoms atoms_{};
  std::uint32_t mask_ = 0;
  std::vector<Worker> workers_;
  std::vector<Decision> sent_;  // per worker a ring like its inbox
};

}  // namespace ccks::scheduler

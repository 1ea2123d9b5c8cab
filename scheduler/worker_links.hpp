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

/// One thread. Nothing is allocated after reserve(). Inboxes are answered in order, so the i-th done record of a
/// worker belongs to the i-th task it was sent.
template <class Atoms>
class WorkerLinks {
 public:
  void reserve(const wire::WorkerParams& params, Atoms atoms = {}) {
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

  bool poll(std::uint32_t worker, wire::Record& out) { return workers_[worker].outbox.poll(out); }
  /// Gives the worker back the credit of all records taken so far.
  void acknowledge(std::uint32_t worker) {
    atoms_.link_store_release(&host_line(worker).outbox_consumed, workers_[worker].outbox.position());  // [R3]
  }
  /// The decision behind the next done record of `worker`; null if nothing is on its way.
  const Decision* take_sent(std::uint32_t worker) {
    Worker& state = workers_[worker];
    if (state.done == state.inbox.position()) return nullptr;
    return &sent_[index(worker, state.done++)];
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

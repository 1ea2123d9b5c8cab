// WorkerLinks: the scheduler's ends of all inboxes and outboxes, and the tasks that are on their way.
//
// Memory ordering (ring.hpp)
//   inbox slots   written here [R1], read by the worker [R2]
//   outbox slots  written by the worker [R1], read here [R2]
//   verdicts      on drafts: relaxed, they publish nothing but themselves
//   consumed      HostLine::outbox_consumed, stored here [R3], loaded by the worker [R4]
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "ccks/wire/atoms.hpp"
#include "ccks/wire/control.hpp"
#include "ccks/wire/ring.hpp"
#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// What a done record says of the last task it answers.
struct LastTask {
  std::uint32_t amount = 0;  // SentTasks::amount of its decision
  std::uint16_t op = 0;
  std::uint16_t slot_flags = 0;
};

/// One thread. Nothing is allocated after reserve(). Inboxes are answered in order, so a count of finished tasks says
/// which they were.
template <class Atoms>
class WorkerLinks {
 public:
  static constexpr bool kAtOnce = true;  // what is sent is in the inbox at once, and others may put it there: PrimedRun, drafts
  /// `first`: position at which all rings begin.
  void reserve(const wire::WorkerParams& params, Atoms atoms = {}, std::uint64_t /*delay_ns*/ = 0, std::uint32_t first = 0) {
    params_ = params;
    atoms_ = atoms;
    mask_ = params.inbox_slots - 1;
    workers_.resize(params.workers);
    sent_.assign(std::size_t{params.workers} * sent_pitch(), SentTasks{});
    busy_.assign((params.workers + 63) / 64, 0);
    for (std::uint32_t w = 0; w < params.workers; ++w) {
      workers_[w].inbox = {reinterpret_cast<wire::Task*>(wire::inbox_of(params, w)), params.inbox_slots, first, atoms};
      workers_[w].outbox = {reinterpret_cast<const wire::Record*>(wire::outbox_of(params, w)), params.outbox_slots, first, atoms};
      workers_[w].done = workers_[w].acknowledged = first;
    }
  }

  /// Sends the tasks of a decision to its worker; the caller has looked after credit (WorkerLoads). Returns the position of the
  /// first of them.
  std::uint32_t send(const Decision& decision, std::uint32_t epoch) {
    Worker& worker = workers_[decision.worker];
    const std::uint32_t chunk = wire::Task{decision.tile, 0, 0, 0, 0}.tile_count();
    wire::Task task;
    task.tile = decision.tile;
    task.epoch = epoch;
    task.op = decision.op;
    task.slot_flags = decision.slot_flags;
    const std::uint32_t position = worker.inbox.position();
    // All but the last are full.
    const std::uint32_t full = decision.tasks - 1u;
    const std::uint32_t tile_step = decision.op_step == 0 ? chunk : 0;
    worker.inbox.put_run_release(task, full, tile_step, decision.op_step);  // [R1]
    task.tile += full * tile_step;
    task.op = static_cast<std::uint16_t>(task.op + full * decision.op_step);
    if (full * tile_step > 0) task.tile = last_tile(task.tile, decision, chunk);
    worker.inbox.put_release(task);  // [R1]
    book(decision, chunk);
    return position;
  }
  /// A list that somebody else has put into the inbox of its worker, where the next one goes: place().
  void send_elsewhere(const Decision& list) {
    workers_[list.worker].inbox.skip();
    book(list, 1);
  }
  /// Where the task goes that is sent to `worker` behind `ahead` others, and the sequence number that it has there.
  wire::Task* place(std::uint32_t worker, std::uint32_t ahead, std::uint32_t& seq) const {
    const std::uint32_t position = workers_[worker].inbox.position() + ahead;
    seq = wire::ring_seq(position);
    return reinterpret_cast<wire::Task*>(wire::inbox_of(params_, worker)) + (position & mask_);
  }
  /// The verdict on the task that was sent to `worker` as a draft, at `position`: `task` says what becomes of it. It has not
  /// been answered.
  void send_verdict(std::uint32_t worker, const wire::Task& task, std::uint32_t position) {
    workers_[worker].inbox.put_verdict_relaxed(task, position);
  }

  /// Fetches, to be written, what send() to `worker` writes: a GPU that polls an inbox leaves none of it in this core's cache,
  /// and stores that miss hold up those behind them.
  void prefetch_inbox(std::uint32_t worker) const {
    __builtin_prefetch(workers_[worker].inbox.next_slot(), 1);
    __builtin_prefetch(&sent_[index(worker, workers_[worker].sent_end)], 1);
  }

  /// DelayedLinks hold things back; here nothing ever is.
  template <class Sent>
  bool turn(std::uint64_t /*now_ns*/, Sent /*sent*/) {
    return false;
  }
  bool poll(std::uint32_t worker, wire::Record& out) { return workers_[worker].outbox.poll(out); }
  /// Gives the worker back the credit of the records taken so far once they are a quarter of its outbox: one with little to
  /// say costs the link nothing, and one with much always has three quarters.
  void acknowledge(std::uint32_t worker) {
    Worker& state = workers_[worker];
    const std::uint32_t taken = state.outbox.position();
    if (4 * (taken - state.acknowledged) < params_.outbox_slots) return;
    state.acknowledged = taken;
    atoms_.link_store_release(&host_line(worker).outbox_consumed, taken);  // [R3]
  }
  /// Calls visit(worker) for all that have tasks they have not answered. The places of their next records are brought nearer,
  /// kPrefetchWorkers ahead: a look at one that is near takes 2 to 5 ns.
  template <class Visit>
  void for_each_busy(Visit&& visit) const {
    for (std::uint32_t word = 0; word < busy_.size(); ++word) {
      std::uint64_t bits = busy_[word];  // a visit may change the word
      std::uint64_t ahead = bits;
      for (std::uint32_t i = 0; i < kPrefetchWorkers && ahead != 0; ++i) prefetch_next(word, ahead);
      for (; bits != 0; bits &= bits - 1) {
        if (ahead != 0) prefetch_next(word, ahead);
        visit(word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits)));
      }
    }
  }

  /// Takes all tasks that a done record answers which says `finished`, and calls visit(SentTasks) for each decision of
  /// which tasks are among them; tasks in it are those answered now. False, and nothing is taken, if there are none: the
  /// count stands still, goes back, or past what was sent. `last` tells of the last task answered.
  template <class Visit>
  bool take_answered(std::uint32_t worker_index, std::uint32_t finished, LastTask& last, Visit&& visit) {
    Worker& worker = workers_[worker_index];
    std::uint32_t count = finished - worker.done;
    if (count == 0 || count > worker.inbox.position() - worker.done) return false;
    worker.done = finished;
    if (is_answer_to_all(worker_index, finished)) owes_nothing(worker_index);
    for (;;) {
      SentTasks& sent = sent_[index(worker_index, worker.sent_begin)];
      if (sent.tasks > count) {
        SentTasks answered_now = sent;
        split(sent, answered_now, static_cast<std::uint16_t>(count));
        visit(answered_now);
        set_last(answered_now, last);
        break;
      }
      ++worker.sent_begin;
      count -= sent.tasks;
      visit(sent);
      if (count > 0) continue;
      set_last(sent, last);
      // Begin again at the front, which is in the cache.
      if (worker.sent_begin == worker.sent_end) worker.sent_begin = worker.sent_end = 0;
      break;
    }
    return true;
  }
  /// Whether a done record that says `finished` leaves `worker` without a task.
  bool is_answer_to_all(std::uint32_t worker, std::uint32_t finished) const { return finished == workers_[worker].inbox.position(); }
  /// Whether it does, and none of what it answers publishes a report. `last` tells of the last task.
  bool is_quiet_answer_to_all(std::uint32_t worker, std::uint32_t finished, LastTask& last) const {
    const std::uint32_t count = unanswered_count(worker);
    if (!is_answer_to_all(worker, finished) || count == 0) return false;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (unanswered(worker, i).reports != 0) return false;
    }
    set_last(unanswered(worker, count - 1), last);
    return true;
  }
  /// for_each_busy() leaves `worker` out until it is sent something. take_answered() is still to hear of it.
  void owes_nothing(std::uint32_t worker) { busy_[worker / 64] &= ~(std::uint64_t{1} << (worker % 64)); }
  bool is_any_busy() const {
    std::uint64_t any = 0;
    for (const std::uint64_t word : busy_) any |= word;
    return any != 0;
  }
  /// Tasks that `worker` has answered so far (wraps).
  std::uint32_t answered(std::uint32_t worker) const { return workers_[worker].done; }
  /// Decisions of which `worker` has tasks it has not answered, and the i-th of them.
  std::uint32_t unanswered_count(std::uint32_t worker) const {
    return workers_[worker].sent_end - workers_[worker].sent_begin;
  }
  const SentTasks& unanswered(std::uint32_t worker, std::uint32_t i) const {
    return sent_[index(worker, workers_[worker].sent_begin + i)];
  }

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
  // What a decision or a record touches of a worker: one line.
  struct alignas(64) Worker {
    wire::RingWriter<wire::Task, Atoms> inbox;
    wire::RingConsumer<wire::Record, Atoms> outbox;
    std::uint32_t done = 0;        // inbox tasks answered
    std::uint32_t sent_begin = 0;  // decisions answered in full
    std::uint32_t sent_end = 0;    // decisions sent
    std::uint32_t acknowledged = 0;  // records whose credit the worker has back
  };

  /// What stays here of a decision whose tasks are in the inbox.
  void book(const Decision& decision, std::uint32_t chunk) {
    Worker& worker = workers_[decision.worker];
    busy_[decision.worker / 64] |= std::uint64_t{1} << (decision.worker % 64);
    sent_[index(decision.worker, worker.sent_end++)] = {
        decision.tile,   decision.amount,     decision.cost,  decision.tasks, static_cast<std::uint16_t>(chunk), decision.op,
        decision.target, decision.slot_flags, decision.reports, decision.op_step};
  }

  /// Takes the lowest bit off `bits`, which are workers of `word`.
  void prefetch_next(std::uint32_t word, std::uint64_t& bits) const {
    __builtin_prefetch(workers_[word * 64 + static_cast<std::uint32_t>(std::countr_zero(bits))].outbox.next_slot());
    bits &= bits - 1;
  }

  static std::uint32_t last_tile(std::uint32_t tile, const Decision& decision, std::uint32_t chunk) {
    const std::uint32_t count = decision.amount - (decision.tasks - 1u) * chunk;
    return wire::Task::pack_tiles(wire::Task{tile, 0, 0, 0, 0}.first_tile(), count);
  }
  static void set_last(const SentTasks& sent, LastTask& last) {
    last = {sent.amount, static_cast<std::uint16_t>(sent.op + (sent.tasks - 1u) * sent.op_step), sent.slot_flags};
  }
  // The first `count` tasks of `sent` go to `answered`, the rest stays. Only tasks of tiles come in more than one, and the
  // first ones are full.
  static void split(SentTasks& sent, SentTasks& answered, std::uint16_t count) {
    const std::uint32_t tiles = std::uint32_t{count} * sent.chunk;
    answered.tasks = count;
    answered.amount = tiles;
    sent.tasks = static_cast<std::uint16_t>(sent.tasks - count);
    sent.amount -= tiles;
    if (sent.op_step == 0) {
      sent.tile += tiles;
    } else {
      sent.op = static_cast<std::uint16_t>(sent.op + count);
      sent.target = static_cast<std::uint16_t>(sent.target + count);
    }
  }
  std::size_t index(std::uint32_t worker, std::uint32_t position) const {
    return std::size_t{worker} * sent_pitch() + (position & mask_);
  }
  /// Of two workers' places in `sent_`. Powers of two would put the first ones of all, which are used most, into a few sets of the cache.
  std::size_t sent_pitch() const { return params_.inbox_slots + 64 / sizeof(SentTasks); }

  wire::WorkerParams params_{};
  Atoms atoms_{};
  std::uint32_t mask_ = 0;
  std::vector<Worker> workers_;
  std::vector<std::uint64_t> busy_;  // a bit a worker: it owes an answer
  std::vector<SentTasks> sent_;  // per worker a ring: a decision is at least one task, so it holds what the inbox holds
};

}  // namespace ccks::scheduler

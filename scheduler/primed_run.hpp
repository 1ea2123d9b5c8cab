// PrimedRun: the lists of a run that nobody has asked for yet. While a run that is alone is under way the co-pilot makes out what the next one of the
// same slot would be sent, if nothing changes; whoever then submits it stores that into the inboxes itself, and the co-pilot, which is
// not on the way of the run's beginning any more, writes its books while workers are at it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "ccks/wire/ring.hpp"
#include "scheduler/slot.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

/// One scheduler thread primes; any client may take, if the slot is its own. Nothing is allocated after reserve().
///
/// Memory ordering
///   word   the scheduler that primes [P1] hands over the tasks, and the inboxes they go to, to the client that takes [P2]; who takes hands over what it has written
///          of the run to the scheduler that finds it taken [P3]; a client that has sent all [P4] gives the tasks back to the scheduler that primes again [P5]
///   Invariant  tasks are read by who has taken them, and written by the scheduler while nobody can take or has taken them; while the
///              word says primed the scheduler writes into no inbox without having withdrawn it
class PrimedRun {
 public:
  /// Room for the lists of a run on `workers` workers, as far as such a run is primed.
  void reserve(const PlanTables& tables, std::uint32_t workers) { tasks_.reserve(std::min(tables.list_count(), kPrimedLists * workers)); }
  std::size_t capacity() const { return tasks_.capacity(); }

  // ---- the scheduler's thread ---------------------------------------------------------------------------------------

  /// Begins with no task. False: a client is still sending the last ones.
  bool begin() {
    // [P5] acquire: pairs with [P4].
    const std::uint32_t word = word_.load(std::memory_order_acquire);
    if (state_of(word) == kPrimed || state_of(word) == kTaken || (state_of(word) == kSent && !noticed_)) return false;
    // relaxed: who looks for a run of its own finds none either way.
    word_.store(kNothing, std::memory_order_relaxed);
    noticed_ = false;
    tasks_.clear();
    return true;
  }
  /// `task`, its sequence number included, goes to the inbox slot `to`.
  void add(wire::Task* to, const wire::Task& task) { tasks_.push_back({to, task}); }
  /// From now on the next run of `slot` may be taken. Behind begin().
  void prime(std::uint32_t slot) {
    // [P1] release: pairs with [P2].
    word_.store(word_of(slot, kPrimed), std::memory_order_release);
  }
  /// Afterwards nobody takes it any more. False: somebody has, and it is to be noticed first.
  bool withdraw() {
    std::uint32_t word = word_.load(std::memory_order_relaxed);  // relaxed: the exchange, or taken(), looks again
    // relaxed: nothing has been handed over; where it fails taken() acquires.
    if (state_of(word) == kPrimed && word_.compare_exchange_strong(word, kNothing, std::memory_order_relaxed, std::memory_order_relaxed)) return true;
    return taken() == plan::kNone;
  }
  /// The slot whose run a client has taken, until notice(); plan::kNone otherwise.
  std::uint32_t taken() const {
    // [P3] acquire: pairs with the release of [P2]; [P4] carries it on.
    const std::uint32_t word = word_.load(std::memory_order_acquire);
    return state_of(word) >= kTaken && !noticed_ ? slot_of(word) : plan::kNone;
  }
  void notice() { noticed_ = true; }
  /// Tasks of the run, in the order of sending.
  std::size_t size() const { return tasks_.size(); }
  const wire::Task& task(std::size_t i) const { return tasks_[i].task; }
  const wire::Task* place(std::size_t i) const { return tasks_[i].to; }

  // ---- clients -----------------------------------------------------------------------------------------------------

  /// True: `run`, whose slot is this client's, is taken, and the client is to send it. What it wrote before is seen by who finds it taken. Never a run whose
  /// frame has been written since it was primed, or that hangs on another.
  bool take(const RunSlot& run) {
    if (run.written_for == run.next_epoch || run.unless.run != nullptr) return false;
    std::uint32_t word = word_of(run.index, kPrimed);
    // relaxed: a look, so that a word which says something else stays where it is.
    if (word_.load(std::memory_order_relaxed) != word) return false;
    // [P2] acquire: pairs with [P1]; release: pairs with [P3]. relaxed where it fails: the scheduler has withdrawn it.
    return word_.compare_exchange_strong(word, word_of(run.index, kTaken), std::memory_order_acq_rel, std::memory_order_relaxed);
  }
  /// Behind take().
  template <class Atoms>
  void send(Atoms atoms) {
    for (const Item& item : tasks_) __builtin_prefetch(item.to, 1);  // workers look at those lines, so no core has them for itself
    for (const Item& item : tasks_) atoms.store_slot_release(item.to, wire::to_words(item.task));  // [R1]
    const std::uint32_t word = word_.load(std::memory_order_relaxed);  // relaxed: its own
    // [P4] release: pairs with [P5].
    word_.store(word_of(slot_of(word), kSent), std::memory_order_release);
  }

  // ---- who replaces the scheduler, with clients kept out --------------------------------------------------------------

  /// The slot of the run that was taken last, noticed or not, if begin() has not been called since. plan::kNone: none.
  std::uint32_t last_taken() const {
    const std::uint32_t word = word_.load(std::memory_order_relaxed);  // relaxed: there is nobody else
    return state_of(word) >= kTaken ? slot_of(word) : plan::kNone;
  }
  void reset() {
    word_.store(kNothing, std::memory_order_relaxed);  // relaxed: as above
    noticed_ = false;
  }

 private:
  enum State : std::uint32_t { kNothing = 0, kPrimed = 1, kTaken = 2, kSent = 3 };
  static std::uint32_t word_of(std::uint32_t slot, State state) { return slot << 2 | state; }
  static State state_of(std::uint32_t word) { return static_cast<State>(word & 3); }
  static std::uint32_t slot_of(std::uint32_t word) { return word >> 2; }

  struct Item {
    wire::Task* to;
    wire::Task task;
  };
  std::vector<Item> tasks_;
  bool noticed_ = false;  // the scheduler's: it knows of the run that was taken
  alignas(64) std::atomic<std::uint32_t> word_{0};
};

}  // namespace ccks::scheduler

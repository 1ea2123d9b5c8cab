// Sleeping and waking. Two kinds of sleeper: a host worker with an empty inbox, and the scheduler thread
// with nothing to do. Nobody takes a lock; a wake-up that finds nobody asleep costs one uncontended atomic add and a load.
//
// Memory ordering: both are the same Dekker race, so all four accesses are seq_cst and nothing weaker will do.
//   sleeper  [B1] asleep = 1          then [B2] reads the ring counts; goes on if one moved since its last look
//   ringer   [B3] adds to its count   then [B4] reads asleep; if 1 sets it to 0 and wakes the futex
//   Invariant  either the sleeper sees the count [B2, B3], or the ringer sees the sleeper [B1, B4]. [B2] also acquires what
//   the ringer published before [B3], so another look at the rings finds it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "ccks/wire/base.hpp"

namespace ccks::gpu {

/// RingCount is bumped by one thread and has a line of its own.
struct alignas(wire::kCacheLineBytes) RingCount {
  std::atomic<std::uint32_t> count{0};
};

/// Sleeper is the word one thread sleeps on.
class alignas(wire::kCacheLineBytes) Sleeper {
 public:
  /// [B1] then `moved()` [B2], then sleeps for at most `timeout_ns` unless moved. True if it slept.
  template <class Moved>
  bool sleep(std::uint64_t timeout_ns, Moved moved) {
    asleep_.store(1, std::memory_order_seq_cst);  // [B1] pairs with [B4]
    const bool awake = moved();
    if (!awake) wait(timeout_ns);
    asleep_.store(0, std::memory_order_relaxed);  // only this thread sleeps here; a late ringer wakes nobody
    return !awake;
  }
  /// The ringer's second half: cheap if nobody sleeps.
  void wake() {
    if (asleep_.load(std::memory_order_seq_cst) == 0) return;  // [B4] pairs with [B1]
    if (asleep_.exchange(0, std::memory_order_seq_cst) == 1) wake_slow();
  }

 private:
  void wait(std::uint64_t timeout_ns);
  void wake_slow();
  std::atomic<std::uint32_t> asleep_{0};
};

/// Bells of one device: a sleeper for each worker that is a thread, and one for the scheduler.
class Bells {
 public:
  explicit Bells(std::uint32_t workers);

  /// Host side: worker `index` has something in its inbox or line [B3, B4].
  void ring_worker(std::uint32_t index);
  /// Any client thread: the scheduler has something in its queue.
  void ring_scheduler();
  /// Scheduler thread: sleeps unless somebody has posted since the last call returned.
  void scheduler_wait(std::uint64_t timeout_ns);

  /// What the context of worker `index` carries as `bell`.
  struct Worker {
    RingCount rung;     // by the scheduler
    Sleeper sleeper;
    RingCount posted;   // by the worker
    std::uint32_t rung_seen = 0;  // worker's own
    Bells* bells = nullptr;
  };
  Worker& worker(std::uint32_t index) { return workers_[index]; }

  /// The two functions of HostWorkerContext.
  static bool worker_sleep(void* worker);
  static void worker_posted(void* worker);

 private:
  bool scheduler_has_news();

  std::uint32_t count_;
  std::unique_ptr<Worker[]> workers_;
  Sleeper scheduler_;
  RingCount clients_;
  std::unique_ptr<std::uint32_t[]> seen_;  // scheduler's own: posted counts of all workers, then the clients'
};

}  // namespace ccks::gpu

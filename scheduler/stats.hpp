// Counters that the scheduler thread writes and anybody reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace ccks::scheduler {

/// Counter has one writer. Relaxed throughout: it publishes nothing but itself.
class Counter {
 public:
  void add(std::uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct SchedulerStats {
  Counter runs_done, runs_failed, runs_cancelled, runs_primed;
  Counter tasks_sent, decisions, publications, records_received, skipped_tiles, busy_ns;
  Counter drafts, drafts_dropped;
  Counter guesses, guesses_right, guess_tasks, guess_bytes, guess_bytes_wrong;
};

}  // namespace ccks::scheduler

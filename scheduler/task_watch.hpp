// TaskWatch: finds the worker whose op does not end. A worker that stands still is either in an op, or waits for one of
// another worker; the scheduler knows which, because it knows what it has sent and what has been answered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/plan_tables.hpp"
#include "scheduler/tuning.hpp"
#include "scheduler/worker_links.hpp"

namespace ccks::scheduler {

/// One thread. Time is counted from tick to tick, but of a long gap only kLongestTickNs: who was stopped has seen nothing.
class TaskWatch {
 public:
  void reserve(std::uint32_t workers, std::uint64_t deadline_ns) {
    deadline_ns_ = deadline_ns;
    seen_.resize(workers);
  }

  /// The worker whose oldest task has been begun, as far as the scheduler can tell, and not ended for the deadline; kNone:
  /// none. Called at every tick; looks at everything only now and then.
  template <class Atoms>
  std::uint32_t find(const WorkerLinks<Atoms>& links, const PlanTables& tables, std::uint64_t now) {
    const std::uint64_t step = std::min(now - last_tick_, kLongestTickNs);
    last_tick_ = now;
    if (deadline_ns_ == 0) return plan::kNone;
    awake_ns_ += step;
    if (awake_ns_ < next_look_) return plan::kNone;
    next_look_ = awake_ns_ + std::min(kStandstillLookNs, deadline_ns_ / 4);
    std::uint32_t found = plan::kNone;
    for (std::uint32_t w = 0; w < links.workers(); ++w) {
      if (stands_still(links, w) && found == plan::kNone && !waits_for_another(links, tables, w)) found = w;
    }
    return found;
  }

 private:
  struct Seen {
    std::uint32_t answered = 0;
    std::uint64_t since = 0;    // of the awake clock
    std::uint64_t present = 0;  // when it had not left
  };

  template <class Atoms>
  bool stands_still(const WorkerLinks<Atoms>& links, std::uint32_t worker) {
    Seen& seen = seen_[worker];
    const std::uint32_t answered = links.answered(worker);
    const bool away = links.is_away(worker);
    if (!away) seen.present = awake_ns_;
    const bool busy = links.unanswered_count(worker) > 0 && !away;
    if (!busy || answered != seen.answered) {
      seen.answered = answered;
      seen.since = awake_ns_;
    }
    return awake_ns_ - seen.since > deadline_ns_;
  }

  /// Whether a task is unanswered that the oldest one of `worker` reads from. Not those of workers that have been away for the
  /// deadline: who waits for one of them leaves too when the keeper asks, so that all can come back; who stays is in an op.
  template <class Atoms>
  bool waits_for_another(const WorkerLinks<Atoms>& links, const PlanTables& tables, std::uint32_t worker) const {
    const SentTasks& oldest = links.unanswered(worker, 0);
    for (std::uint32_t w = 0; w < links.workers(); ++w) {
      if (awake_ns_ - seen_[w].present > deadline_ns_) continue;
      const std::uint32_t count = links.unanswered_count(w);
      for (std::uint32_t i = 0; i < count; ++i) {
        SentTasks other = links.unanswered(w, i);
        if (slot_of(other) != slot_of(oldest)) continue;
        for (std::uint32_t ops = other.op_step == 0 ? 1u : other.tasks; ops > 0; --ops, ++other.target) {
          if (feeds(tables, other, oldest)) return true;
        }
      }
    }
    return false;
  }

  /// Whether ops of `to` wait for ops of `from`. Of two lists of one stretch nobody here can tell which waits for which.
  static bool feeds(const PlanTables& tables, const SentTasks& from, const SentTasks& to) {
    const auto turn = [&](const SentTasks& sent) { return sent.op == wire::kOpSignal && sent.tile == tables.turn_event; };
    if (turn(from)) return !turn(to);
    const auto outputs = from.op == wire::kOpList ? tables.outputs_of(tables.stretches[from.tile / tables.workers])
                                                  : tables.successors_of(from.target);
    return std::any_of(outputs.begin(), outputs.end(), [&](std::uint32_t next) {
      return to.op == wire::kOpList ? tables.stretch_of[next] == to.tile / tables.workers : next == to.op;
    });
  }

  static std::uint32_t slot_of(const SentTasks& sent) { return sent.slot_flags & (wire::kMaxSlots - 1); }

  std::vector<Seen> seen_;
  std::uint64_t deadline_ns_ = 0;
  std::uint64_t last_tick_ = 0;
  std::uint64_t awake_ns_ = 0;  // the awake clock
  std::uint64_t next_look_ = 0;
};

}  // namespace ccks::scheduler

// DecisionTrace: when the scheduler decided what, for timelines. Keeps the newest; fixed memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "scheduler/copilot_setup.hpp"

namespace ccks::scheduler {

struct TimedDecision {
  std::uint64_t now_ns = 0;
  std::uint32_t ordinal = 0;
  Decision decision;
};

/// Written by the scheduler thread; read by clients once the engine is drained.
class DecisionTrace final : public DecisionSink {
 public:
  explicit DecisionTrace(std::size_t capacity) : ring_(capacity) {}
  void on_run_start(const RunSlot&) override {}
  /// A draft is decided with its verdict.
  void on_decision(const RunSlot& run, const Decision& decision, std::uint64_t now_ns) override {
    if ((decision.slot_flags & wire::kTaskDraft) != 0) return;
    on_verdict(run, decision, now_ns);
  }
  void on_verdict(const RunSlot& run, const Decision& decision, std::uint64_t now_ns) override {
    const std::uint64_t at = written_.load(std::memory_order_relaxed);  // own store
    ring_[at % ring_.size()] = {now_ns, run.ordinal, decision};
    written_.store(at + 1, std::memory_order_release);  // [D5] pairs with [D6]
  }
  /// Oldest first.
  std::vector<TimedDecision> read() const {
    const std::uint64_t end = written_.load(std::memory_order_acquire);  // [D6] pairs with [D5]
    std::vector<TimedDecision> out;
    for (std::uint64_t at = end > ring_.size() ? end - ring_.size() : 0; at < end; ++at)
      out.push_back(ring_[at % ring_.size()]);
    return out;
  }

 private:
  std::vector<TimedDecision> ring_;
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace ccks::scheduler

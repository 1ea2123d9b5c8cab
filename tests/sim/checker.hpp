// Checker: says whether a history was right. It sees what happened and when: runs submitted, ended, let go; tiles begun and
// finished; the words in memory when a run has ended. It knows nothing of rings, events or policies.
//
//   once     every tile of a run that is done was executed exactly once; of any other run at most once
//   order    a tile begins after all that it reads has been finished
//   values   what a done run has computed is what was to be computed
//   place    tiles are executed only while their run is under way, or once it has failed, which ends no worker at once
//   cause    a run fails, or the engine does, only where something was done to it
//   end      every run ends, nothing stands still: whoever drives the history tells what was left
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "tests/sim/expected.hpp"

namespace ccks::test::sim {

enum class Outcome : std::uint8_t { done, cancelled, late, failed };

class Checker {
 public:
  /// `plan` must outlive the checker.
  Checker(const GraphPlan& plan, u32 slots) : plan_(plan), runs_(slots) {}

  /// Empty: all is well so far. Else the first thing that was wrong.
  const std::string& complaint() const { return complaint_; }
  void complain(std::string text) {
    if (complaint_.empty()) complaint_ = std::move(text);
  }
  void allow_failures() { may_fail_ = true; }
  bool failures_allowed() const { return may_fail_; }

  void submitted(u32 slot, u32 n, u64 seed, u32 wrong_percent);
  void cancelled(u32 slot) { runs_[slot].may_be_cancelled = true; }
  void may_be_late(u32 slot) { runs_[slot].may_be_late = true; }
  void begun(u32 slot, u32 op, u32 tile);
  void finished(u32 slot, u32 op, u32 tile);
  /// `value(op, tile)`: the word that stands there.
  template <class Value>
  void ended(u32 slot, Outcome outcome, const std::string& why, Value&& value);
  /// `at_once`: the engine has failed, and does not wait for its workers.
  void released(u32 slot, bool at_once);

  u64 runs_done() const { return done_; }
  u64 runs_submitted() const { return submitted_; }
  u64 runs_open() const { return open_; }
  u64 tiles() const { return tiles_; }

 private:
  struct Run {
    bool under_way = false, has_ended = false, may_be_cancelled = false, may_be_late = false;
    bool lingers = false;  // it has failed: workers leave, but one may still be at it
    u64 ordinal = 0;
    u32 n = 0;
    Expected expected;
    std::vector<std::vector<u32>> begun, finished;
  };
  std::string place(const Run& run, u32 slot, u32 op, u32 tile) const {
    return fmt::format("run {} (slot {}, n = {}), op {}, tile {}", run.ordinal, slot, run.n, op, tile);
  }
  void check_reads(const Run& run, u32 slot, u32 op, u32 tile);

  const GraphPlan& plan_;
  std::vector<Run> runs_;  // per slot
  std::string complaint_;
  bool may_fail_ = false;
  u64 submitted_ = 0, done_ = 0, open_ = 0, tiles_ = 0;
};

inline void Checker::submitted(u32 slot, u32 n, u64 seed, u32 wrong_percent) {
  Run& run = runs_[slot];
  if (run.under_way) complain(fmt::format("slot {} is given to a client while run {} is in it", slot, run.ordinal));
  run = {};
  run.under_way = true;
  run.ordinal = submitted_++;
  ++open_;
  run.n = n;
  run.expected = expect(plan_, n, seed, wrong_percent);
  for (const auto& values : run.expected.values) run.begun.emplace_back(values.size(), 0);
  run.finished = run.begun;
}

inline void Checker::begun(u32 slot, u32 op, u32 tile) {
  Run& run = runs_[slot];
  ++tiles_;
  if (!run.under_way && !run.lingers) return complain(fmt::format("op {} tile {} begins in slot {}, where no run is", op, tile, slot));
  if (op >= run.begun.size() || tile >= run.begun[op].size())
    return complain("a tile that the program does not have: " + place(run, slot, op, tile));
  if (run.expected.guarded_off[op]) complain("executed though its guard fails: " + place(run, slot, op, tile));
  if (++run.begun[op][tile] > 1) complain("executed twice: " + place(run, slot, op, tile));
  check_reads(run, slot, op, tile);
}

inline void Checker::check_reads(const Run& run, u32 slot, u32 op, u32 tile) {
  for (const GraphEdge& edge : plan_.ops()[op].edges) {
    const u32 from = edge.producer;
    for (u32 t = 0; t < run.finished[from].size(); ++t) {
      if (edge.reads == Reads::same_tile && t != tile) continue;
      if (!run.expected.exists[from][t] || run.finished[from][t] > 0) continue;
      return complain(fmt::format("begun before op {} tile {} was finished, which it reads: {}", from, t, place(run, slot, op, tile)));
    }
  }
}

inline void Checker::finished(u32 slot, u32 op, u32 tile) {
  Run& run = runs_[slot];
  if ((run.under_way || run.lingers) && op < run.finished.size() && tile < run.finished[op].size()) ++run.finished[op][tile];
}

template <class Value>
void Checker::ended(u32 slot, Outcome outcome, const std::string& why, Value&& value) {
  Run& run = runs_[slot];
  if (!run.under_way || run.has_ended) return complain(fmt::format("slot {}: a run ends that is not under way", slot));
  run.has_ended = true;
  if (outcome == Outcome::failed && !may_fail_) complain(fmt::format("run {} failed for no reason: {}", run.ordinal, why));
  if (outcome == Outcome::cancelled && !run.may_be_cancelled) complain(fmt::format("run {} was cancelled by nobody", run.ordinal));
  if (outcome == Outcome::late && !run.may_be_late) complain(fmt::format("run {} is late, but had no deadline", run.ordinal));
  run.lingers = outcome == Outcome::failed;
  if (outcome != Outcome::done) return;
  ++done_;
  for (u32 op = 0; op < run.begun.size(); ++op) {
    for (u32 tile = 0; tile < run.begun[op].size(); ++tile) {
      if (!run.expected.exists[op][tile]) continue;
      if (run.finished[op][tile] != 1) complain(fmt::format("done, but executed {} times: {}", run.finished[op][tile], place(run, slot, op, tile)));
      if (value(op, tile) != run.expected.values[op][tile]) complain("a wrong value: " + place(run, slot, op, tile));
    }
  }
}

inline void Checker::released(u32 slot, bool at_once) {
  Run& run = runs_[slot];
  if (!run.under_way) complain(fmt::format("slot {} is let go twice", slot));
  if (!run.has_ended) complain(fmt::format("slot {} is let go before its run {} has ended", slot, run.ordinal));
  run.under_way = false;
  run.lingers |= at_once;
  --open_;
}

}  // namespace ccks::test::sim

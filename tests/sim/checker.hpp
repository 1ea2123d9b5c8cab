// Checker: says whether a history was right. It sees what happened and when: runs submitted, ended, let go; tiles begun and
// finished; the words in memory when a run has ended. It knows nothing of rings, events or policies.
//
//   once     every tile of a run that is done was executed exactly once; of any other run at most once
//   order    a tile begins after all that it reads has been finished
//   values   what a done run has computed is what was to be computed
//   turn     runs of one state instance go one after the other, and are done so; what each reads of it is what those before it left
//   wish     a run that hangs on a report of the run before is done where that says so, cancelled where it says the contrary
//   place    tiles are executed only while their run is under way, or once it has failed, which ends no worker at once
//   cause    a run fails, or the engine does, only where something was done to it
//   end      every run ends, nothing stands still: whoever drives the history tells what was left
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sim/expected.hpp"

namespace ccks::test::sim {

enum class Outcome : std::uint8_t { done, cancelled, late, failed };

/// What a submission says besides its input.
struct Wish {
  u32 state = 0;
  u32 on = ~0u;                // slot of the run that it hangs on
  u32 report = 0;
  std::vector<i32> unwanted;   // not done if that report holds nothing else
};

class Checker {
 public:
  /// `plan` must outlive the checker.
  Checker(const GraphPlan& plan, u32 slots, u32 states) : plan_(plan), runs_(slots), states_(states) {}

  /// Empty: all is well so far. Else the first thing that was wrong.
  const std::string& complaint() const { return complaint_; }
  void complain(std::string text) {
    if (complaint_.empty()) complaint_ = std::move(text);
  }
  void allow_failures() { may_fail_ = true; }
  bool failures_allowed() const { return may_fail_; }
  /// While its scheduler is lost, runs that it had taken may fail, and no others.
  void losing(bool is) { losing_ = is; }

  void submitted(u32 slot, u32 n, u64 seed, u32 wrong_percent, const Wish& wish);
  void cancelled(u32 slot) { runs_[slot].may_be_cancelled = true; }
  void may_be_late(u32 slot) { runs_[slot].may_be_late = true; }
  void begun(u32 slot, u32 op, u32 tile);
  void finished(u32 slot, u32 op, u32 tile);
  /// `value(op, tile)`: the word that stands there.
  template <class Value>
  void ended(u32 slot, Outcome outcome, const std::string& why, Value&& value);
  /// `at_once`: the engine has failed, and does not wait for its workers.
  void released(u32 slot, bool at_once);

  /// The newest run of `state`, where the scheduler has not let it go: its slot, else ~0.
  u32 newest_of(u32 state) const;
  const Expected& expected(u32 slot) const { return runs_[slot].expected; }

  u64 runs_done() const { return done_; }
  u64 runs_submitted() const { return submitted_; }
  u64 runs_open() const { return open_; }
  u64 tiles() const { return tiles_; }

 private:
  struct Run {
    bool under_way = false, has_ended = false, may_be_cancelled = false, may_be_late = false;
    bool lingers = false;  // it has failed: workers leave, but one may still be at it
    bool unwanted = false;   // what it hangs on says so, if it is done
    u64 ordinal = 0;
    Outcome outcome = Outcome::failed;
    u32 at_work = 0;         // tiles begun and not finished
    Wish wish;
    u32 n = 0;
    Expected expected;
    std::vector<std::vector<u32>> begun, finished;
  };
  std::string place(const Run& run, u32 slot, u32 op, u32 tile) const {
    return fmt::format("run {} (slot {}, n = {}), op {}, tile {}", run.ordinal, slot, run.n, op, tile);
  }
  void check_reads(const Run& run, u32 slot, u32 op, u32 tile);
  void check_turn(const Run& run, u32 slot, u32 op, u32 tile);
  void check_end(const Run& run);
  void check_wish(const Run& run);
  /// The run that `run` hangs on; null: none, or `run` has been let go.
  const Run* run_before(const Run& run) const { return run.wish.on == ~0u ? nullptr : &runs_[run.wish.on]; }
  /// By a client, or for what some run before it reports.
  bool can_be_cancelled(const Run& run) const {
    const Run* on = run_before(run);
    return run.may_be_cancelled || (on != nullptr && (run.unwanted || can_be_cancelled(*on)));
  }

  const GraphPlan& plan_;
  struct State {
    u64 begun = 0;         // newest run of which a tile has begun, + 1
    u64 value = 0;
    bool unknown = false;  // a run of it was lost on its way
  };
  std::vector<Run> runs_;      // per slot
  std::vector<State> states_;  // none where the program has no state
  std::string complaint_;
  bool may_fail_ = false, losing_ = false;
  u64 submitted_ = 0, done_ = 0, open_ = 0, tiles_ = 0;
};

inline void Checker::submitted(u32 slot, u32 n, u64 seed, u32 wrong_percent, const Wish& wish) {
  Run& run = runs_[slot];
  if (run.under_way) complain(fmt::format("slot {} is given to a client while run {} is in it", slot, run.ordinal));
  run = {};
  run.under_way = true;
  run.ordinal = submitted_++;
  ++open_;
  run.n = n;
  run.expected = expect(plan_, n, seed, wrong_percent);
  run.wish = wish;
  if (wish.on != ~0u) {
    const std::vector<i32>& words = runs_[wish.on].expected.reports[wish.report];
    run.unwanted = std::all_of(words.begin(), words.end(), [&](i32 word) { return std::find(wish.unwanted.begin(), wish.unwanted.end(), word) != wish.unwanted.end(); });
  }
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
  if (!states_.empty()) check_turn(run, slot, op, tile);
  ++run.at_work;
}

inline void Checker::check_turn(const Run& run, u32 slot, u32 op, u32 tile) {
  State& state = states_[run.wish.state];
  if (run.ordinal + 1 < state.begun) complain("begun after tiles of a later run of its state: " + place(run, slot, op, tile));
  state.begun = std::max(state.begun, run.ordinal + 1);
  for (const Run& other : runs_) {
    if (!other.under_way || other.wish.state != run.wish.state || other.ordinal >= run.ordinal || other.lingers || other.at_work == 0) continue;
    complain(fmt::format("begun while run {} of its state is at work: {}", other.ordinal, place(run, slot, op, tile)));
  }
}

inline u32 Checker::newest_of(u32 state) const {
  u32 out = ~0u;
  for (u32 slot = 0; slot < runs_.size(); ++slot) {
    if (!runs_[slot].under_way || runs_[slot].wish.state != state) continue;
    if (out == ~0u || runs_[slot].ordinal > runs_[out].ordinal) out = slot;
  }
  return out;
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
  if ((!run.under_way && !run.lingers) || op >= run.finished.size() || tile >= run.finished[op].size()) return;
  ++run.finished[op][tile];
  --run.at_work;
  if (!plan_.ops()[op].state) return;
  State& state = states_[run.wish.state];
  run.expected.values[op][tile] = state.value = graph_mix(state.value, run.expected.values[op][tile]);
}

// A run that is late or cancelled may end where it stands in line; one that has failed, with others.
inline void Checker::check_end(const Run& run) {
  for (const Run& other : runs_) {
    if (!other.under_way || other.has_ended || other.wish.state != run.wish.state || other.ordinal >= run.ordinal) continue;
    complain(fmt::format("run {} ends before run {} of the same state", run.ordinal, other.ordinal));
  }
}

inline void Checker::check_wish(const Run& run) {
  if (run.outcome == Outcome::cancelled && !can_be_cancelled(run)) complain(fmt::format("run {} was cancelled by nobody", run.ordinal));
  const Run* on = run_before(run);
  if (run.outcome != Outcome::done || on == nullptr) return;
  if (on->outcome == Outcome::cancelled) complain(fmt::format("run {} is done, though run {}, on which it hangs, was cancelled", run.ordinal, on->ordinal));
  if (on->outcome == Outcome::done && run.unwanted) complain(fmt::format("run {} is done, though run {} reports that it is not wanted", run.ordinal, on->ordinal));
}

template <class Value>
void Checker::ended(u32 slot, Outcome outcome, const std::string& why, Value&& value) {
  Run& run = runs_[slot];
  if (!run.under_way || run.has_ended) return complain(fmt::format("slot {}: a run ends that is not under way", slot));
  run.has_ended = true;
  if (outcome == Outcome::failed && !may_fail_ && !losing_) complain(fmt::format("run {} failed for no reason: {}", run.ordinal, why));
  run.outcome = outcome;
  if (!states_.empty() && outcome == Outcome::done) check_end(run);
  check_wish(run);
  if (outcome == Outcome::late && !run.may_be_late) complain(fmt::format("run {} is late, but had no deadline", run.ordinal));
  run.lingers = outcome == Outcome::failed;
  if (run.lingers && !states_.empty()) states_[run.wish.state].unknown = true;
  if (outcome != Outcome::done) return;
  ++done_;
  for (u32 op = 0; op < run.begun.size(); ++op) {
    for (u32 tile = 0; tile < run.begun[op].size(); ++tile) {
      if (!run.expected.exists[op][tile]) continue;
      if (run.finished[op][tile] != 1) complain(fmt::format("done, but executed {} times: {}", run.finished[op][tile], place(run, slot, op, tile)));
      if (plan_.ops()[op].state && states_[run.wish.state].unknown) continue;
      if (value(op, tile) != run.expected.values[op][tile]) complain("a wrong value: " + place(run, slot, op, tile));
    }
  }
}

inline void Checker::released(u32 slot, bool at_once) {
  Run& run = runs_[slot];
  if (!run.under_way) complain(fmt::format("slot {} is let go twice", slot));
  if (!run.has_ended) complain(fmt::format("slot {} is let go before its run {} has ended", slot, run.ordinal));
  run.under_way = false;
  run.may_be_cancelled = can_be_cancelled(run);
  run.wish.on = ~0u;  // from here on that slot may be another's
  run.lingers |= at_once;
  --open_;
}

}  // namespace ccks::test::sim

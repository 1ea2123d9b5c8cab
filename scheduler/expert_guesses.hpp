// ExpertGuesses: weights of experts that a run is likely to need, asked for before its router has run (wire::kTaskFetch). A part of what decides, beside any
// policy: which tiles there are, and whether a draft of one runs, follows from the report as ever, so a guess can cost time and change nothing else.
//
// A guess is an expert, for all products that one report counts: those that the last report of the same named, most rows first. It goes out when the run begins
// (scheduler/README.md says where), or, for a report behind another, when that has come. Owned by the scheduler's thread; all memory is reserved by the constructor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/policy.hpp"
#include "scheduler/stats.hpp"

namespace ccks::scheduler {

struct Speculation {
  std::uint64_t bytes = 0;  // of weights asked for, at most, for one report of a run; 0: nothing is guessed
  double wrong = 0;         // share of guesses that are made wrong on purpose, for measurements: evenly, experts drawn from `seed`
  std::uint64_t seed = 1;
};

class ExpertGuesses {
 public:
  /// `tables` and `stats` must outlive it.
  ExpertGuesses(const PlanTables& tables, std::uint32_t slots, const Speculation& options, SchedulerStats& stats);

  /// A run of `run`'s slot begins.
  void begin(const RunSlot& run) { slots_[run.index].next = 0; }
  /// Whether send() would find something to guess.
  bool is_due(const RunSlot& run) const;
  /// Appends the fetches that are due to `batch`, as far as it and the inboxes have room: what has none is left out.
  void send(const RunSlot& run, Batch& batch, WorkerLoads& loads);
  /// `report` of `run` has come. Its value lies in the run's report area.
  void on_report(const RunSlot& run, std::uint32_t report);

 private:
  struct Guess {
    std::uint32_t expert;
    std::uint64_t bytes;  // asked for
  };
  /// A report that counts rows of experts.
  struct Source {
    std::uint32_t report;
    std::vector<std::uint32_t> ops;    // products whose tiles it counts
    std::vector<std::int32_t> counts;  // of the last report
    bool known = false;                // there was one
  };
  struct Slot {
    std::size_t next = 0;                     // source to guess for
    std::vector<std::vector<Guess>> guesses;  // per source, of the run under way
  };
  void choose(const Source& source, std::vector<Guess>& out);
  std::uint32_t wrong_expert(const Source& source);
  void fetch(const RunSlot& run, const Source& source, std::vector<Guess>& guesses, Batch& batch, WorkerLoads& loads);
  std::span<const std::int32_t> reported(const RunSlot& run, const Source& source) const;

  const PlanTables& tables_;
  Speculation options_;
  SchedulerStats& stats_;
  std::vector<Source> sources_;
  std::vector<Slot> slots_;
  std::vector<std::uint8_t> taken_;   // per expert: guessed for this run
  std::vector<std::uint32_t> order_;  // experts, most rows first
  double owed_ = 0;                   // wrong guesses that have not been made
  std::uint64_t random_;
  std::uint32_t turn_ = 0;            // of the workers that ask, whose turn it is
};

}  // namespace ccks::scheduler

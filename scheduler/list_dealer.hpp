// ListDealer: which worker's list gets which tiles of a stretch. Plays the stretch through on a clock of estimates: every
// tile goes where it would start first, and to the worker that holds its neighbourhood unless another is sooner by more
// than a hop. Equal fractions of wide ops go to the same worker, as the lookahead policy has it for tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

struct OpInstance;

/// Tiles of one op, consecutive, for one list.
struct DealtTiles {
  std::uint32_t op;
  std::uint32_t worker;
  std::uint32_t first;
  std::uint32_t count;  // any number; the list cuts it into tasks
};

/// The ops of a relay and the workers that run it, the first so many. What may run before its run's turn goes to the last worker, which is not held up by a relay then, and other ops of few
/// tiles to those in between. None of them is without tiles.
struct RelayCrew {
  std::uint32_t first = 0, end = 0;  // ops
  std::uint32_t stretch = plan::kNone;
  std::uint32_t workers = 0;  // 0: all, and nobody stands apart
  bool early = false;         // there are ops for the last worker

  bool has(std::uint32_t op) const { return op >= first && op < end; }
};

/// Belongs to one client at a time; allocates in reserve() only.
class ListDealer {
 public:
  void reserve(const PlanTables& tables);

  /// Calls sink(DealtTiles) for all tiles of `stretch`, op by op in plan order, so that a list holds producers first.
  /// The same tiles in the same order for the same stretch at the same dims; begin() comes before the first stretch.
  /// crew: of the frame's relay, if some workers are to have no part of it.
  void begin(const RelayCrew& crew = {}) {
    turn_ = early_turn_ = 0;
    crew_ = crew;
  }
  template <class Sink>
  void deal(const PlanTables& tables, std::span<const OpInstance> ops, std::uint32_t stretch, Sink&& sink) {
    start(tables);
    for (const std::uint32_t op : tables.ops_of(tables.stretches[stretch])) {
      range_ = range_of(tables, ops, op, stretch);
      place(tables, ops, op, stretch);
      for (const DealtTiles& tiles : dealt_) sink(tiles);
      for (std::uint32_t tile = 0; tile < in_turn_.tiles; ++tile) sink(DealtTiles{op, worker_in_turn(tile), tile, 1});
    }
  }

 private:
  struct Range {
    std::uint32_t first, count;
    bool has(std::uint32_t worker) const { return worker >= first && worker < first + count; }
  };
  Range range_of(const PlanTables& tables, std::span<const OpInstance> ops, std::uint32_t op, std::uint32_t stretch) const;
  void start(const PlanTables& tables);
  void place(const PlanTables& tables, std::span<const OpInstance> ops, std::uint32_t op, std::uint32_t stretch);
  void place_wide(const OpInstance& info, std::uint32_t op, bool root);
  void place_in_turn(const OpInstance& info, bool counted);
  std::uint32_t worker_in_turn(std::uint32_t tile) const {
    const std::uint32_t on = tile % range_.count;
    return range_.first + (in_turn_.first + (in_turn_.back ? range_.count - 1 - on : on)) % range_.count;
  }
  void place_narrow(std::span<const OpInstance> ops, std::uint32_t op, bool root);
  std::uint32_t preferred(std::span<const OpInstance> ops, std::uint32_t op, std::uint32_t tile, bool root) const;
  std::uint32_t soonest() const;
  void run_on(std::uint32_t worker, std::uint64_t cost);

  std::uint32_t workers_ = 0;
  RelayCrew crew_;
  Range range_{};                         // who may have the op that is placed
  std::uint32_t turn_ = 0;                // where the next op without producers begins
  std::uint32_t early_turn_ = 0;          // the same of ops that run before their run's turn, from the last worker back
  bool early_ = false;                    // the op that is placed is one of those
  std::vector<std::uint64_t> free_at_;    // per worker
  std::vector<std::uint64_t> finish_;     // per op
  std::vector<std::uint16_t> home_;       // per op and tile: worker, for ops of fewer tiles than workers
  std::vector<DealtTiles> dealt_;
  /// Instead: so many tiles, each to the next worker (Cut::in_turn), from `first` on, or back from the one before. counted: only the first so many of them will be there.
  struct InTurn {
    std::uint32_t tiles = 0, first = 0;
    bool back = false, counted = false;
  };
  InTurn in_turn_;
  std::uint64_t ready_ = 0;               // of the op that is placed: when its producers are through
  std::uint64_t done_ = 0;                // when the last of its tiles is
  std::uint32_t producer_ = 0;            // the first of them, whose neighbourhood it keeps; kNone
};

}  // namespace ccks::scheduler

// TileSignals: what finished tiles add to their events. Adds to one event are collected: the release that goes with an add
// waits for everything the worker has stored (0.3 us on an H200), so it is paid once for many tiles.
//
// Memory ordering
//   events   [E1] released here, acquired by the tile that waits [E2] (wire/event.hpp). The stores of a body's other lanes
//            are ordered before by the barrier that follows the body.
//   silent   an op whose tiles store nothing, and wait only for such ops (kOpSilent), publishes nothing: its adds are relaxed.
#pragma once

#include "ccks/worker/platform.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Platform>
class TileSignals {
 public:
  CCKS_HD_ANY explicit TileSignals(Platform& platform) : platform_(platform) {}

  /// Adds what `tile` signals, if it has run or was skipped.
  CCKS_HD_ANY void add(const StagedTile& tile) {
    u32* events = tile.events;
    if (tile.kind == TileKind::signal) return collect(kGroups - 1, events + tile.task.tile, tile.task.epoch, false);
    if (tile.kind != TileKind::body && tile.kind != TileKind::skip) return;
    const bool silent = (tile.view.op->flags & wire::kOpSilent) != 0;
    const u32 count = tile.view.op->signal_count;
    for (u32 i = 0; i < count; ++i) {
      collect(i < kGroups - 1 ? i : kGroups - 1, events + wire::signal_event(tile.view.signals[i], tile.coord), 1, silent);
    }
  }

  /// Sends what has been collected.
  CCKS_HD_ANY void flush() {
    for (Pending& pending : pending_) {
      if (platform_.leader()) send(pending);
      pending.count = 0;
    }
  }

 private:
  struct Pending {
    u32* word = nullptr;
    u32 count = 0;
    bool silent = false;
  };

  // One event for each group of signals, sent as soon as a tile moves on to another.
  static constexpr u32 kGroups = 4;

  CCKS_HD_ANY void collect(u32 group, u32* word, u32 count, bool silent) {
    Pending& pending = pending_[group];
    if (pending.count > 0 && pending.word != word) {
      if (platform_.leader()) send(pending);
      pending.count = 0;
    }
    pending = {word, pending.count + count, silent};
  }

  CCKS_HD_ANY void send(Pending& pending) {
    if (pending.count > 0) {
      if (pending.silent) {
        platform_.atoms().event_add_relaxed(pending.word, pending.count);
      } else {
        platform_.atoms().event_add_release(pending.word, pending.count);  // [E1]
      }
    }
    pending.count = 0;
  }

  Platform& platform_;
  Pending pending_[kGroups];
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

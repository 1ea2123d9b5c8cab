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

  /// Pipelines: the same for signals found ahead of time: `word` and `count` of this lane, of the first `lanes` lanes.
  CCKS_HD_ANY void add_listed(u32 lanes, u32* word, u32 count, bool silent) {
    if (used_ + lanes > platform_.control_lanes()) flush();
    if (used_ == 0) {
      if (platform_.control_lane() < lanes) pending_[0] = {word, count, silent};
      used_ = lanes;
      return;
    }
    const u32 from = (platform_.control_lane() - used_) % platform_.control_lanes();
    const u64 address = platform_.from_lane(reinterpret_cast<u64>(word), from);
    const u32 amount = platform_.from_lane(count, from);
    if (from < lanes) pending_[0] = {reinterpret_cast<u32*>(address), amount, silent};
    used_ += lanes;
  }

  /// Sends what has been collected.
  CCKS_HD_ANY void flush() {
    if constexpr (Platform::kPipelined) {
      send(pending_[0]);  // every lane its own, at once: one wait for the worker's stores
      used_ = 0;
    } else {
      for (Pending& pending : pending_) {
        if (platform_.leader()) send(pending);
        pending.count = 0;
      }
    }
  }

 private:
  struct Pending {
    u32* word = nullptr;
    u32 count = 0;
    bool silent = false;
  };

  // Pipelines collect an event a lane and send them together, once nothing more is ready. Others keep one event for each
  // group of signals and send it as soon as a tile moves on to another.
  static constexpr u32 kGroups = 4;
  static constexpr u32 kSlots = Platform::kPipelined ? 1 : kGroups;

  CCKS_HD_ANY void collect(u32 group, u32* word, u32 count, bool silent) {
    if constexpr (Platform::kPipelined) {
      collect_on_a_lane(word, count, silent);
    } else {
      Pending& pending = pending_[group];
      if (pending.count > 0 && pending.word != word) {
        if (platform_.leader()) send(pending);
        pending.count = 0;
      }
      pending = {word, pending.count + count, silent};
    }
  }

  CCKS_HD_ANY void collect_on_a_lane(u32* word, u32 count, bool silent) {
    Pending& mine = pending_[0];
    u32 owner = platform_.first_lane(mine.count > 0 && mine.word == word);
    if (owner == platform_.control_lanes()) {
      if (used_ == platform_.control_lanes()) flush();
      owner = used_++;
    }
    if (platform_.control_lane() != owner) return;
    mine = {word, mine.count + count, silent && (mine.count == 0 || mine.silent)};
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
  Pending pending_[kSlots];
  u32 used_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

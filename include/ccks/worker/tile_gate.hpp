// TileGate: lets a tile through once every event it waits for stands at its count, and finds out whether its guards hold.
//
// Memory ordering
//   events   [E2] acquired here, released by the tile that signals [E1] (wire/event.hpp). Bodies run after a barrier that
//            follows, so all lanes see what was acquired.
#pragma once

#include "ccks/worker/op_entry.hpp"
#include "ccks/worker/platform.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Platform>
class TileGate {
 public:
  CCKS_HD_ANY TileGate(Platform& platform, const wire::WorkerParams& params) : platform_(platform), params_(params) {}

  /// Waits; then kind is body, skip, suspend, or fault with its details. `watch` null: events are looked up in the frame.
  /// Stop has ParkRequest asked(), looked at now and then, of which abandon and suspend end a wait; void blocked(), called
  /// once before a wait that does not succeed at once; and bool idle(), whether no body of the worker runs meanwhile.
  CCKS_ANY_SIDE
  template <class Stop, class Watch>
  CCKS_HD void pass(StagedTile& tile, const Watch* watch, Stop& stop) {
    const bool listed = watch != nullptr && watch->count != Watch::kMany;
    // A record may do nothing but wait, for a neighbour with many events.
    if (tile.kind != TileKind::body && !(listed && watch->count != 0)) return;
    waited_ns_ = 0;
    if (!(listed ? wait_for_list(tile, *watch, stop) : wait_for_tile(tile, stop))) return;
    if (timed()) tile.wait_ns = waited_ns_;  // as set_kind
    if ((tile.flags & kTileGuarded) != 0 && !guards_hold(tile)) set_kind(tile, TileKind::skip);
  }

 private:
  // Waits of an op remembered from tile to tile. Pipelines remember while they fetch.
  static constexpr u32 kMaxRemembered = Platform::kPipelined ? 0 : 4;
  static constexpr u32 kSpinsPerClock = 64;

  struct Remembered {
    wire::EventRect rect;
    bool complete = false;
  };

  CCKS_HD_ANY void set_kind(StagedTile& tile, TileKind kind) {
    tile.kind = kind;  // the same from every lane, whether they share the tile or hold a copy each
    platform_.converge();
  }

  CCKS_HD_ANY bool guards_hold(const StagedTile& tile) const {
    const u32 count = tile.view.op->guard_count;
    for (u32 i = 0; i < count; ++i) {
      if (!guard_holds(*tile.frame, tile.view.guards[i])) return false;
    }
    return true;
  }

  /// Each control lane watches one event.
  CCKS_ANY_SIDE
  template <class Watch, class Stop>
  CCKS_HD bool wait_for_list(StagedTile& tile, const Watch& watch, Stop& stop) {
    if (watch.count == 0) return true;
    const u32 lane = platform_.control_lane();
    const u32 mine = lane < watch.count ? lane : 0;
    const u32 event = watch.event[mine];
    return wait_for_event(tile, event, watch.amount[mine], watch.whole == 0 ? tile.bases + event : nullptr, stop);
  }

  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_tile(StagedTile& tile, Stop& stop) {
    if (kMaxRemembered > 0 && ((tile.flags & kTileOpensInbox) != 0 || remembered_op_ != tile.task.op)) {
      forget_waits(tile.task.op);
    }
    const u32 count = tile.view.op->wait_count;
    for (u32 i = 0; i < count; ++i) {
      const wire::WaitParams& wait = tile.view.waits[i];
      const wire::EventRect rect = wire::wait_rect(wait, tile.coord);
      if (wire::rect_count(rect) == 0) continue;
      if (is_remembered(i, rect)) continue;
      if (!wait_for_rect(tile, wait, rect, stop)) return false;
      remember(i, rect);
    }
    return true;
  }

  CCKS_HD_ANY void forget_waits(u32 op) {
    remembered_op_ = op;
    for (Remembered& r : remembered_) r.complete = false;
  }
  CCKS_HD_ANY bool is_remembered(u32 wait, const wire::EventRect& rect) const {
    if constexpr (kMaxRemembered > 0) {
      return wait < kMaxRemembered && remembered_[wait].complete && wire::rect_covers(remembered_[wait].rect, rect);
    } else {
      return false;
    }
  }
  CCKS_HD_ANY void remember(u32 wait, const wire::EventRect& rect) {
    if constexpr (kMaxRemembered > 0) {
      if (wait < kMaxRemembered) remembered_[wait] = {rect, true};
    }
  }

  /// Each control lane watches one event at a time.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_rect(StagedTile& tile, const wire::WaitParams& wait, const wire::EventRect& rect,
                                 Stop& stop) {
    const u32 count = wire::rect_count(rect);
    for (u32 first = 0; first < count; first += platform_.control_lanes()) {
      const u32 i = first + platform_.control_lane();
      const u32 event = wire::rect_event(wait, rect, i < count ? i : first);
      if (!wait_for_event(tile, event, tile.amount(wait.total), tile.bases + event, stop)) return false;
    }
    return true;
  }

  /// `amount`: what the event has to stand at, less `*base` if there is one. It is read while the first look at the event is on
  /// its way.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_event(StagedTile& tile, u32 event, u32 amount, const u32* base, Stop& stop) {
    const u32* counter = tile.events + event;
    const u32 target = base == nullptr ? amount : *base + amount;
    u64 since = 0;
    Patience patience(0);
    bool looked = false;
    for (u32 spins = 0;; ++spins) {
      // An acquire [E2] drops the L1 of a GPU's SM, which costs nothing while no body runs there. While one does, looks are
      // relaxed but for the first.
      const bool acquires = spins == 0 || stop.idle();
      const u32 value = acquires ? platform_.atoms().event_load_acquire(counter) : platform_.atoms().event_load_relaxed(counter);
      const u32 late = platform_.first_lane(!wire::event_reached(value, target));
      if (late == platform_.control_lanes()) {
        // [E2] Reads what the last look saw, or later: its value needs no look.
        if (!acquires) (void)platform_.atoms().event_load_acquire(counter);
        break;
      }
      if (spins == 0) {
        stop.blocked();
        if (timed()) since = platform_.now_ns();
      }
      if (spins % kSpinsPerClock == kSpinsPerClock - 1) {
        if (!looked) patience = Patience(platform_.now_ns());
        looked = true;
        const wire::ParkRequest asked = stop.asked();
        if (asked == wire::kParkSuspend) return set_kind(tile, TileKind::suspend), false;
        const bool abandoned = asked == wire::kParkAbandon;
        if (abandoned || patience.over(platform_.now_ns(), params_.spin_deadline_ns)) {
          fail(tile, abandoned, platform_.from_lane(event, late), platform_.from_lane(value, late),
               platform_.from_lane(target, late));
          return false;
        }
      }
      platform_.relax(spins);
    }
    if (since != 0 && timed()) waited_ns_ += platform_.now_ns() - since;
    return true;
  }
  /// A pipeline looks at the clock only for traces: between an event and the body that waits for it, every cycle counts.
  CCKS_HD_ANY bool timed() const { return !Platform::kPipelined || params_.trace != 0; }

  CCKS_HD_ANY void fail(StagedTile& tile, bool abandoned, u32 event, u32 value, u32 target) {
    const wire::FaultCode code = abandoned ? wire::FaultCode::abandoned : wire::FaultCode::wait_deadline;
    tile.fault = {code, tile.task.op, tile.task.slot(), tile.task.epoch, tile.tile, event, value, target};
    set_kind(tile, TileKind::fault);
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 remembered_op_ = wire::kMaxOps;
  Remembered remembered_[kMaxRemembered > 0 ? kMaxRemembered : 1];
  u64 waited_ns_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

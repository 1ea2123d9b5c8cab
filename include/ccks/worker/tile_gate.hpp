// TileGate: lets a tile through once every event it waits for stands at its count, and finds out whether its guards hold and, of
// a draft, what the host has decided.
//
// Memory ordering
//   events   [E2] acquired here, released by the tile that signals [E1] (wire/event.hpp). Bodies run after a barrier that
//            follows, so all lanes see what was acquired.
//   verdict  relaxed (wire/ring.hpp): it says only what it says. What the body reads of the host stands before the draft [R1, R2],
//            what it reads of other workers before its events
#pragma once

#include "ccks/worker/op_entry.hpp"
#include "ccks/worker/platform.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// How a wait ended, and where it hangs if it did not succeed.
struct WaitEnd {
  enum Code : u32 { ready, suspend, abandoned, overdue } code = ready;
  u32 event = 0, value = 0, target = 0;
};

/// EventWait waits for one event a control lane, and for the host's verdict on a draft.
template <class Platform>
class EventWait {
 public:
  CCKS_HD_ANY EventWait(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), params_(params), index_(index) {}

  /// `amount`: what counters[event] has to stand at, less `*base` if there is one. It is read while the first look at the event
  /// is on its way. `silent`: whoever adds to it has stored nothing, and what waits reads nothing (kOpSilent): a pipeline then acquires
  /// nothing. False: it ended otherwise, as `end` says. Stop as in TileGate::pass.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait(const u32* counters, u32 event, u32 amount, const u32* base, bool silent, Stop& stop, WaitEnd& end) {
    const u32* counter = counters + event;
    const u32 target = base == nullptr ? amount : *base + amount;
    u64 since = 0;
    for (u32 spins = 0;; ++spins) {
      // A look that acquires waits for itself before the next: on an H200 a layer of empty tasks took 57 ns more with them.
      const bool acquires = !Platform::kPipelined && (spins == 0 || stop.idle());
      const u32 value = acquires ? platform_.atoms().event_load_acquire(counter) : platform_.atoms().event_load_relaxed(counter);
      const bool late = !wire::event_reached(value, target);
      if (!platform_.any_lane(late)) {
        // [E2] Reads what the last look saw, or later: its value needs no look, and ptxas leaves only the drop of the L1 of it. Not
        // behind !acquires, for which ptxas 13.0 takes a predicate that never holds here: bodies then read lines of before.
        if (Platform::kPipelined ? !silent : !acquires) (void)platform_.atoms().event_load_acquire(counter);
        break;
      }
      if (spins == 0) {
        stop.blocked();
        if constexpr (kTimed) since = platform_.now_ns();
      }
      if (spins % kSpinsPerClock == kSpinsPerClock - 1) {
        const WaitEnd::Code code = look(stop, spins == kSpinsPerClock - 1);
        if (code != WaitEnd::ready) {
          const u32 lane = platform_.first_lane(late);
          end = {code, platform_.from_lane(event, lane), platform_.from_lane(value, lane), platform_.from_lane(target, lane)};
          return false;
        }
      }
      platform_.relax(spins);
    }
    if constexpr (kTimed) {
      if (since != 0) waited_ns_ += platform_.now_ns() - since;
    }
    return true;
  }

  /// Waits for the verdict on `task`, an inbox task that is a draft. Stop as above. `first`: of its tiles in this launch. `fresh`: what
  /// the host decides by has only just come about.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD WaitEnd wait_verdict(const wire::Task& task, bool first, bool fresh, Stop& stop) {
    if (first) decided_ = false;
    const auto ends = [](WaitEnd::Code code, u32 event, u32 value) {  // fields one by one: an image of constants would be loaded from memory (tests/ptx/check.py)
      WaitEnd end;
      end.code = code;
      end.event = event;
      end.value = value;
      return end;
    };
    if (decided_) return ends(WaitEnd::ready, 0, 0);
    if (fresh && params_.verdict_rest_ns != 0) rest(params_.verdict_rest_ns);
    const wire::Task* inbox = reinterpret_cast<const wire::Task*>(wire::inbox_of(params_, index_));
    const wire::Task* slot = inbox + ((task.seq - 1) & (params_.inbox_slots - 1));
    u64 since = 0;
    if constexpr (kTimed) since = platform_.now_ns();
    for (u32 spins = 0;; ++spins) {
      const u32 flags = look_at_flags(slot);
      if ((flags & wire::kTaskDraft) == 0) {
        skips_ = (flags & wire::kTaskSkip) != 0;
        decided_ = true;
        if constexpr (kTimed) waited_ns_ += platform_.now_ns() - since;
        return ends(WaitEnd::ready, 0, 0);
      }
      if (spins == 0) stop.blocked();
      if (spins % kLooksPerClock == kLooksPerClock - 1) {
        const WaitEnd::Code code = look(stop, spins == kLooksPerClock - 1);
        if (code == WaitEnd::suspend) return ends(code, 0, 0);
        if (code != WaitEnd::ready) return ends(code, wire::kVerdictEvent, flags);
      }
      // A look over the link takes longer than any nap.
      if constexpr (!Platform::kPipelined) platform_.relax(spins);
    }
  }
  /// What the last verdict was.
  CCKS_HD_ANY bool skips() const { return skips_; }

  /// Time spent waiting since the last reset; only where kTimed.
  CCKS_HD_ANY u64 waited_ns() const { return waited_ns_; }
  CCKS_HD_ANY void reset() { waited_ns_ = 0; }

 private:
  /// A pipeline looks at the clock only for traces, and does so itself: between an event and the body that waits for it, every
  /// cycle counts.
  static constexpr bool kTimed = !Platform::kPipelined;
  static constexpr u32 kSpinsPerClock = 64;
  static constexpr u32 kLooksPerClock = Platform::kPipelined ? 8 : kSpinsPerClock;

  /// Whether the wait ends without what it waits for; `ready` if not. `first`: the first look of a wait, whose patience begins.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD WaitEnd::Code look(Stop& stop, bool first) {
    if constexpr (requires { stop.look(first); }) {
      return stop.look(first);
    } else {
      if (first) patience_ = Patience(platform_.now_ns());
      const wire::ParkRequest asked = stop.asked();
      if (asked == wire::kParkSuspend) return WaitEnd::suspend;
      if (asked == wire::kParkAbandon) return WaitEnd::abandoned;
      return patience_.over(platform_.now_ns(), params_.spin_deadline_ns) ? WaitEnd::overdue : WaitEnd::ready;
    }
  }

  /// A look over the link that comes too early costs the time of a whole one.
  CCKS_HD_ANY void rest(u32 ns) const {
    const u64 until = platform_.now_ns() + ns;
    while (static_cast<i64>(platform_.now_ns() - until) < 0) {
    }
  }
  /// One lane looks: the others have other things to do, or are of its warp. The upper half of the slot has the flags. Relaxed: a
  /// verdict publishes nothing else. Not several looks at once: they queue, and a reaction on an H200 took 6.0 us instead of 4.0.
  CCKS_HD_ANY u32 look_at_flags(const wire::Task* slot) const {
    u64 words = 0;
    if (platform_.leader()) words = platform_.atoms().link_load_relaxed(reinterpret_cast<const u64*>(slot) + 1);
    return wire::from_words<wire::Task>({0, platform_.uniform(words)}).slot_flags;
  }

  Platform& platform_;
  const wire::WorkerParams& params_;
  u32 index_;
  u64 waited_ns_ = 0;
  Patience patience_;
  bool decided_ = false, skips_ = false;  // the draft under way
};

template <class Platform>
class TileGate {
 public:
  CCKS_HD_ANY TileGate(Platform& platform, const wire::WorkerParams& params, u32 index)
      : platform_(platform), wait_(platform, params, index) {}

  /// Waits; then kind is body, skip, suspend, or fault with its details.
  /// Stop has ParkRequest asked(), looked at now and then, of which abandon and suspend end a wait; void blocked(), called
  /// once before a wait that does not succeed at once; and bool idle(), whether no body of the worker runs meanwhile. Instead of asked() it
  /// may have WaitEnd::Code look(bool first), see EventWait::look.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD void pass(StagedTile& tile, Stop& stop) {
    if (tile.kind != TileKind::body) return;
    wait_.reset();
    if ((tile.flags & kTileOpensInbox) != 0 || remembered_op_ != tile.task.op) forget_waits(tile.task.op);
    if (!wait_for_guards(tile, stop) || !wait_for_tile(tile, stop) || !wait_for_verdict(tile, stop)) return;
    tile.wait_ns = wait_.waited_ns();
    const bool drops = (tile.flags & kTileDraft) != 0 && wait_.skips();
    if (drops || ((tile.flags & kTileGuarded) != 0 && !guards_hold(tile))) set_kind(tile, TileKind::skip);
  }

 private:
  static constexpr u32 kMaxRemembered = 4;  // waits of an op remembered from tile to tile

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

  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_verdict(StagedTile& tile, Stop& stop) {
    if ((tile.flags & kTileDraft) == 0) return true;
    const WaitEnd end = wait_.wait_verdict(tile.inbox, (tile.flags & kTileOpensInbox) != 0, false, stop);
    if (end.code != WaitEnd::ready) set_end(tile, end);
    return end.code == WaitEnd::ready;
  }

  /// False: the tile has been let through, to be passed over, or the worker leaves. A draft's verdict comes first.
  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_guards(StagedTile& tile, Stop& stop) {
    if ((tile.flags & (kTileGuarded | kTileDraft)) != kTileGuarded) return true;
    for (u32 i = 0; i < tile.view.op->wait_count; ++i) {
      const wire::WaitParams& wait = tile.view.waits[i];
      if (wait.decides == 0) continue;
      if (!wait_for_rect(tile, wait, wire::wait_rect(wait, tile.coord), stop)) return false;
      if (guards_hold(tile)) return true;
      tile.wait_ns = wait_.waited_ns();
      set_kind(tile, TileKind::skip);
      return false;
    }
    return true;
  }

  CCKS_ANY_SIDE
  template <class Stop>
  CCKS_HD bool wait_for_tile(StagedTile& tile, Stop& stop) {
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
    return wait < kMaxRemembered && remembered_[wait].complete && wire::rect_covers(remembered_[wait].rect, rect);
  }
  CCKS_HD_ANY void remember(u32 wait, const wire::EventRect& rect) {
    if (wait < kMaxRemembered) remembered_[wait] = {rect, true};
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
      WaitEnd end;
      if (!wait_.wait(tile.events, event, tile.amount(wait.total), tile.bases + event, false, stop, end)) return set_end(tile, end), false;
    }
    return true;
  }

  CCKS_HD_ANY void set_end(StagedTile& tile, const WaitEnd& end) {
    if (end.code == WaitEnd::suspend) return set_kind(tile, TileKind::suspend);
    const wire::FaultCode code = end.code == WaitEnd::abandoned ? wire::FaultCode::abandoned : wire::FaultCode::wait_deadline;
    tile.fault = {code, tile.task.op, tile.task.slot(), tile.task.epoch, tile.tile, end.event, end.value, end.target};
    set_kind(tile, TileKind::fault);
  }

  Platform& platform_;
  EventWait<Platform> wait_;
  u32 remembered_op_ = wire::kMaxOps;
  Remembered remembered_[kMaxRemembered];
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

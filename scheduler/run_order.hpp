// RunOrder: which runs are active, and which wait for their state instance. Fixed memory.
#pragma once

#include <cstdint>
#include <vector>

#include "ccks/plan.hpp"

namespace ccks::scheduler {

/// Entries are slots [0, slots) and fences [slots, slots + fences). Each is in at most one place.
class RunOrder {
 public:
  void reserve(std::uint32_t slots, std::uint32_t fences, std::uint32_t states) {
    next_.assign(slots + fences, plan::kNone);
    states_.assign(states, State{});
    active_.reserve(slots);
  }

  /// True if `entry` may begin at once; otherwise it stands in line for `state`.
  bool enter(std::uint32_t entry, std::uint32_t state) {
    State& s = states_[state];
    if (!s.busy) return s.busy = true;
    next_[entry] = plan::kNone;
    if (s.first == plan::kNone) {
      s.first = entry;
    } else {
      next_[s.last] = entry;
    }
    s.last = entry;
    return false;
  }
  /// The holder of `state` leaves; returns who holds it now, kNone if nobody.
  std::uint32_t leave(std::uint32_t state) {
    State& s = states_[state];
    const std::uint32_t entry = s.first;
    if (entry == plan::kNone) {
      s.busy = false;
    } else {
      s.first = next_[entry];
    }
    return entry;
  }
  template <class Visit>
  void for_each_waiting(Visit&& visit) const {
    for (const State& s : states_) {
      for (std::uint32_t e = s.first; e != plan::kNone; e = e == s.last ? plan::kNone : next_[e]) visit(e);
    }
  }

  std::vector<std::uint32_t>& active() { return active_; }

 private:
  struct State {
    std::uint32_t first = plan::kNone, last = plan::kNone;
    bool busy = false;
  };
  std::vector<std::uint32_t> next_;
  std::vector<State> states_;
  std::vector<std::uint32_t> active_;
};

}  // namespace ccks::scheduler

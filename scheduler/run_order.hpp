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
    if (s.holders == 0) {
      s.holders = 1;
      s.newest = entry;
      return true;
    }
    next_[entry] = plan::kNone;
    if (s.first == plan::kNone) {
      s.first = entry;
    } else {
      next_[s.last] = entry;
    }
    s.last = entry;
    return false;
  }
  /// A holder of `state` leaves; returns who holds it from now on, kNone if nobody does or others still do.
  std::uint32_t leave(std::uint32_t state) {
    if (--states_[state].holders > 0) return plan::kNone;
    return join(state);
  }
  /// The next in line becomes a holder of `state` beside those that are; kNone if nobody stands there.
  std::uint32_t join(std::uint32_t state) {
    State& s = states_[state];
    const std::uint32_t entry = s.first;
    if (entry == plan::kNone) return entry;
    s.first = next_[entry];
    ++s.holders;
    return s.newest = entry;
  }
  /// First in line, and the holder that came last: it stands behind that one. kNone: nobody.
  std::uint32_t next_in_line(std::uint32_t state) const { return states_[state].first; }
  std::uint32_t newest_holder(std::uint32_t state) const { return states_[state].holders > 0 ? states_[state].newest : plan::kNone; }
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
    std::uint32_t holders = 0;
    std::uint32_t newest = plan::kNone;
  };
  std::vector<std::uint32_t> next_;
  std::vector<State> states_;
  std::vector<std::uint32_t> active_;
};

}  // namespace ccks::scheduler

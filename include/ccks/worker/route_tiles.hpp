// A route of what a topk has found, by tiles of tokens: each counts the pairs of all tokens by expert, those in front of its own apart, which says where its own go. No tile waits
// for another, and none has more than a few pairs to place; one that does it for all of 2,048 tokens takes an H200's worker 54 us, in which the others have nothing to do.
//
// Counts are added up in scratch by whichever lane comes first. They are numbers of pairs, the same in any order; places follow from counts and from the order of pairs alone.
#pragma once

#include "ccks/worker/route_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Lanes that add 1 to a word in scratch side by side.
template <class Lanes>
concept CountLanes = WarpLanes<Lanes> && requires(Lanes& lanes, u32* word) { lanes.count_in_scratch(word); };

/// Pairs of a route by expert, in scratch: those in front of the pair `first`, and all, then where each expert's begin.
struct PairCounts {
  u32 *before, *starts;
  u32 experts, first;

  CCKS_INLINE PairCounts(Scratch& scratch, u32 of, u32 first_pair) : before(scratch.take<u32>(of)), starts(scratch.take<u32>(of)), experts(of), first(first_pair) {}
  CCKS_INLINE bool fits() const { return starts != nullptr; }
};

/// Four experts at a time where they lie as words, one after the other and on a multiple of 16 bytes.
template <class Found>
CCKS_INLINE bool in_fours(const Found& found, bool dense) {
  return dense && found.type.get() == Dtype::i32 && found.stride[3] == 1 && reinterpret_cast<u64>(found.data) % 16 == 0;
}

/// All pairs counted, there for all lanes behind a barrier. False, of any lane: an expert is named that there is not.
template <class Lanes, class Chosen>
CCKS_INLINE bool count_pairs(Lanes& lanes, const Chosen& chosen, u32 pairs, const PairCounts& counts) {
  bool sound = true;
  if constexpr (CountLanes<Lanes>) {
    for (u32 e = lanes.lane(); e < counts.experts; e += lanes.lanes()) counts.before[e] = counts.starts[e] = 0;
    lanes.sync();
    const auto count = [&](u32 pair, i64 expert) {
      if (expert < 0 || expert >= counts.experts) {
        sound = false;
      } else {
        lanes.count_in_scratch(&counts.starts[expert]);
        if (pair < counts.first) lanes.count_in_scratch(&counts.before[expert]);
      }
    };
    constexpr u32 kFlight = 8, kFour = 4;
    u32 done = 0;
    if (in_fours(chosen.found, chosen.is_dense())) {
      done = pairs / kFour * kFour;
      CCKS_NO_UNROLL
      for (u32 first = lanes.lane() * kFour; first < done; first += kFlight * kFour * Lanes::kLanes) {
        Sixteen four[kFlight];
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) four[f] = *reinterpret_cast<const Sixteen*>(chosen.found.data + u64{least(first + f * kFour * Lanes::kLanes, done - kFour)} * 4);
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) {
          const u32 pair = first + f * kFour * Lanes::kLanes;
          if (pair >= done) break;
          CCKS_UNROLL
          for (u32 i = 0; i < kFour; ++i) count(pair + i, static_cast<i32>(four[f].word[i]));
        }
      }
    }
    for (u32 pair = done + lanes.lane(); pair < pairs; pair += lanes.lanes()) count(pair, chosen.index(static_cast<i32>(pair / chosen.k), pair % chosen.k));
  } else {  // whole experts a lane, so that nobody adds to another's
    for (u32 e = lanes.lane(); e < counts.experts; e += lanes.lanes()) counts.before[e] = counts.starts[e] = 0;
    for (u32 pair = 0; pair < pairs; ++pair) {
      const i64 expert = chosen.index(static_cast<i32>(pair / chosen.k), pair % chosen.k);
      if (expert < 0 || expert >= counts.experts) {
        sound = false;
      } else if (expert % lanes.lanes() == lanes.lane()) {
        ++counts.starts[expert];
        if (pair < counts.first) ++counts.before[expert];
      }
    }
  }
  return sound;
}

/// Places of so many pairs from counts.first on. `own`: what each of them has chosen, in scratch. counts.starts: where experts begin.
template <class Lanes, class Task>
CCKS_INLINE void place_pairs(Lanes& lanes, const Task& task, const PairCounts& counts, const u32* own, u32 pairs) {
  constexpr u32 kFlight = 8;
  for (u32 i = lanes.lane(); i < pairs; i += lanes.lanes()) {
    const u32 expert = own[i];
    u32 at = counts.starts[expert] + counts.before[expert];
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < i; j0 += kFlight) {
      u32 other[kFlight];
      CCKS_UNROLL
      for (u32 j = 0; j < kFlight; ++j) other[j] = own[least(j0 + j, pairs - 1)];
      CCKS_UNROLL
      for (u32 j = 0; j < kFlight; ++j) at += j0 + j < i && other[j] == expert;
    }
    task.place(counts.first + i, at);
  }
}

/// Where experts begin, from how many pairs they have.
template <class Lanes>
CCKS_INLINE void begin_experts(Lanes& lanes, u32* starts, u32 experts) {
  if constexpr (WarpLanes<Lanes>) {
    starts_from_counts(lanes, starts, experts);
  } else {
    lanes.sync();
    if (lanes.lane() == 0) {
      u32 before = 0;
      for (u32 e = 0; e < experts; ++e) {
        const u32 taken = starts[e];
        starts[e] = before;
        before += taken;
      }
    }
    lanes.sync();
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

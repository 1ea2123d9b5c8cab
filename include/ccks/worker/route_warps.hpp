// Mixture of experts where lanes run in warps: pairs of tokens and experts sorted by expert, then pair, and rows put together again.
//
// The sort counts with prefix sums: each warp has a part of the pairs, in order, and for every expert a place to go on from, so no result depends
// on who is faster. Lanes of a warp whose pairs have the same expert find each other by what they show. Of many pairs each lane has a part, and places of its own.
#pragma once

#include "ccks/worker/ops_rows.hpp"
#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/topk_warps.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Lanes that can tell which others of their warp hold the same, and order the warp's accesses to what it shares.
template <class Lanes>
concept MatchLanes = WarpLanes<Lanes> && requires(Lanes& lanes) { lanes.same_in_warp(u32{0}); };

inline constexpr u32 kNoExpert = 0xffffffffu;

/// A warp's pairs of a routing task, in order: visit(pair, expert or kNoExpert, which lanes have the same, how many of those stand before this one).
/// Experts are loaded eight at a time, since they come from the L2.
template <class Lanes, class Task, class Visit>
CCKS_INLINE void walk_pairs(Lanes& lanes, const Task& t, Visit&& visit) {
  constexpr u32 kWarp = Lanes::kWarp, kFlight = 8;
  const u32 lane = lanes.lane() % kWarp, warps = Lanes::kLanes / kWarp;
  const u32 each = ceil_div(ceil_div(t.pairs(), warps), kWarp) * kWarp;
  const u32 begin = lanes.lane() / kWarp * each, end = least(begin + each, t.pairs());
  CCKS_NO_UNROLL
  for (u32 first = begin; first < end; first += kFlight * kWarp) {
    u32 expert[kFlight];
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) expert[f] = first + f * kWarp + lane < end ? t.chosen(first + f * kWarp + lane) : kNoExpert;
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      if (first + f * kWarp >= end) break;
      const u32 same = lanes.same_in_warp(expert[f]);
      visit(first + f * kWarp + lane, expert[f], same, lanes.ones_of(same & ((1u << lane) - 1)));
    }
  }
}

/// What experts have taken, behind a barrier, becomes where their pairs begin, there for all lanes.
template <class Lanes>
CCKS_INLINE void starts_from_counts(Lanes& lanes, u32* starts, u32 experts) {
  constexpr u32 kWarp = Lanes::kWarp;
  lanes.sync();
  if (lanes.lane() < kWarp) {
    const u32 each = ceil_div(experts, kWarp), begin = least(lanes.lane() * each, experts), end = least(begin + each, experts);
    u32 all = 0, before = 0;
    for (u32 e = begin; e < end; ++e) all += starts[e];
    CCKS_UNROLL
    for (u32 step = 1; step < kWarp; step *= 2) {
      const u32 other = lanes.shuffle_xor(all, step);
      if ((lanes.lane() & step) != 0) before += other;
      all += other;
    }
    for (u32 e = begin; e < end; ++e) {
      const u32 taken = starts[e];
      starts[e] = before;
      before += taken;
    }
  }
  lanes.sync();
}

inline constexpr u32 kSortedByLanes = 8;  // pairs a lane from which each lane has its own
inline constexpr u32 kSortedPairs = 0xffff;  // that 16 bits count

/// Where a lane's pairs lie in scratch, words of two bytes: lanes that go through theirs side by side meet different banks.
struct LanePairs {
  u32 each, pitch;
  CCKS_INLINE explicit LanePairs(u32 count) : each(count), pitch(count | 1) {}
  CCKS_INLINE u32 of(u32 pair) const { return pair / each * pitch + pair % each; }
};
/// visit(pair, where it lies) for every so many pairs from `first` on.
template <class Visit>
CCKS_INLINE void visit_pairs(const LanePairs& own, u32 first, u32 step, u32 pairs, Visit&& visit) {
  const u32 lanes_on = step / own.each, left = step - lanes_on * own.each;
  u32 lane = first / own.each, at = first - lane * own.each;
  CCKS_NO_UNROLL
  for (u32 pair = first; pair < pairs; pair += step) {
    visit(pair, lane * own.pitch + at);
    lane += lanes_on;
    at += left;
    if (at >= own.each) at -= own.each, ++lane;
  }
}

/// What sort_by_lanes has in scratch.
template <class Lanes>
struct LaneSort {
  static constexpr u32 kWords = Lanes::kLanes / 2;
  LanePairs lie;
  u32 *counters, *starts;  // [expert][half of the lanes], a lane's and that of the one so many on; [expert]
  u16 *chosen, *sources;   // as `lie` says, an expert, then where its pair goes; [place]

  /// For so many pairs, few enough for it; counters null: there is no room.
  CCKS_INLINE LaneSort(Lanes& lanes, u32 pairs, u32 experts) : lie(ceil_div(pairs, Lanes::kLanes)) {
    Scratch scratch = scratch_of(lanes);
    counters = scratch.take<u32>(experts * kWords);
    starts = scratch.take<u32>(experts);
    chosen = scratch.take<u16>(Lanes::kLanes * lie.pitch);
    sources = scratch.take<u16>(pairs);
    if (starts == nullptr || chosen == nullptr || sources == nullptr) counters = nullptr;
  }
};
CCKS_INLINE constexpr bool suits_lanes(u32 pairs, u32 lanes) { return ceil_div(pairs, lanes) >= kSortedByLanes && pairs <= kSortedPairs; }

/// As sort_in_warps, of many pairs, whose experts are in scratch: each lane counts its own by expert, and what it has counted becomes where its first goes. What goes to memory lies
/// in scratch first, so that lanes side by side store side by side. Behind a barrier.
template <class Lanes, class Task>
CCKS_INLINE void sort_by_lanes(Lanes& lanes, const Task& t, const LaneSort<Lanes>& sort) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp, kWords = LaneSort<Lanes>::kWords, kAtOnce = kWords / kWarp;
  static_assert(kAtOnce == 4);
  const u32 pairs = t.pairs(), lane = lanes.lane(), each = sort.lie.each;
  for (u32 at = lane; at < t.experts * kWords; at += Lanes::kLanes) sort.counters[at] = 0;
  lanes.sync();
  u16* const chosen = sort.chosen + lane * sort.lie.pitch;
  u16* const own = reinterpret_cast<u16*>(sort.counters + lane % kWords) + lane / kWords;
  const u32 mine = lane * each < pairs ? least(each, pairs - lane * each) : 0;
  CCKS_NO_UNROLL
  for (u32 i = 0; i < mine; ++i) ++own[chosen[i] * 2 * kWords];
  lanes.sync();
  CCKS_NO_UNROLL
  for (u32 e = lane / kWarp; e < t.experts; e += kWarps) {  // both halves of a word at once: no sum is more than it holds
    u32* word = sort.counters + e * kWords + lane % kWarp * kAtOnce;
    Sixteen held = *reinterpret_cast<const Sixteen*>(word);
    u32 all = held.word[0] + held.word[1] + held.word[2] + held.word[3], before = 0;
    CCKS_UNROLL
    for (u32 step = 1; step < kWarp; step *= 2) {
      const u32 other = lanes.shuffle_xor(all, step);
      if ((lane & step) != 0) before += other;
      all += other;
    }
    before += all << 16;  // behind all lanes of the first half
    CCKS_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 its = held.word[i];
      held.word[i] = before;
      before += its;
    }
    *reinterpret_cast<Sixteen*>(word) = held;
    if (lane % kWarp == 0) {
      const u32 taken = (all & 0xffff) + (all >> 16);
      sort.starts[e] = taken;
      store_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(e)), 0, taken);
    }
  }
  starts_from_counts(lanes, sort.starts, t.experts);
  CCKS_NO_UNROLL
  for (u32 i = 0; i < mine; ++i) {
    const u32 expert = chosen[i];
    u16* next = own + expert * 2 * kWords;
    const u32 at = sort.starts[expert] + *next;
    *next = static_cast<u16>(*next + 1);
    chosen[i] = static_cast<u16>(at);
    sort.sources[at] = static_cast<u16>(lane * each + i);
  }
  lanes.sync();
  visit_pairs(sort.lie, lane, Lanes::kLanes, pairs, [&](u32 pair, u32 at) { t.place(pair, sort.chosen[at], sort.sources[pair]); });
}

/// The same where experts of pairs are in memory. False, and nothing is done, for few or too many pairs and where scratch is too small.
template <class Lanes, class Task>
CCKS_INLINE bool sort_by_lanes(Lanes& lanes, const Task& t) {
  constexpr u32 kFlight = 8;
  const u32 pairs = t.pairs();
  if (!suits_lanes(pairs, Lanes::kLanes)) return false;
  const LaneSort<Lanes> sort(lanes, pairs, t.experts);
  if (sort.counters == nullptr) return false;
  CCKS_NO_UNROLL
  for (u32 first = lanes.lane(); first < pairs; first += kFlight * Lanes::kLanes) {
    u32 expert[kFlight];
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) expert[f] = t.chosen(least(first + f * Lanes::kLanes, pairs - 1));
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const u32 pair = first + f * Lanes::kLanes;
      if (pair < pairs) sort.chosen[sort.lie.of(pair)] = static_cast<u16>(expert[f]);
    }
  }
  sort_by_lanes(lanes, t, sort);
  return true;
}

/// A route of what a topk has found, of many pairs: a lane a pair weighs them, as many side by side as a token has, and what they are sorted by stays in scratch. `weighed`: the
/// values and indices of the pairs, and where their weights go (ChosenTask). False, and nothing is done, where that does not suit.
template <class Lanes, class Chosen, class Task>
CCKS_INLINE bool route_many(Lanes& lanes, const Chosen& weighed, const Task& t, bool& sound) {
  constexpr u32 kFlight = 8;
  const u32 pairs = t.pairs(), k = t.k;
  if (!suits_lanes(pairs, Lanes::kLanes) || k > Lanes::kWarp || (k & (k - 1)) != 0 || !weighed.is_dense()) return false;
  const LaneSort<Lanes> sort(lanes, pairs, t.experts);
  if (sort.counters == nullptr) return false;
  i32 wrong = 0;
  CCKS_NO_UNROLL
  for (u32 first = lanes.lane(); first < kFlight * Lanes::kLanes * ceil_div(pairs, kFlight * Lanes::kLanes); first += kFlight * Lanes::kLanes) {  // all lanes of a warp as often
    float v[kFlight];
    i64 found[kFlight];
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const u32 pair = least(first + f * Lanes::kLanes, pairs - 1);
      v[f] = weighed.value_of(pair);
      found[f] = weighed.index_of(pair);
    }
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const u32 pair = first + f * Lanes::kLanes;
      float top = v[f];
      CCKS_NO_UNROLL
      for (u32 step = 1; step < k; step *= 2) top = lanes.larger(top, lanes.shuffle_xor(top, step));
      const float mine = f_exp(v[f] - top);
      float sum = mine;
      CCKS_NO_UNROLL
      for (u32 step = 1; step < k; step *= 2) sum += lanes.shuffle_xor(sum, step);
      if (pair >= pairs) continue;
      const bool there = found[f] >= 0 && found[f] < t.experts;
      if (!there) wrong = 1;
      weighed.put_of(pair, mine / sum, found[f]);
      sort.chosen[sort.lie.of(pair)] = there ? static_cast<u16>(found[f]) : u16{0};
    }
  }
  sound = lanes.max(wrong) == 0;  // a barrier, too
  if (sound) sort_by_lanes(lanes, t, sort);
  return true;
}

/// Counts, and places for all pairs. False, and nothing is done, where scratch is too small.
template <class Lanes, class Task>
CCKS_INLINE bool sort_in_warps(Lanes& lanes, const Task& t) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  Scratch scratch = scratch_of(lanes);
  u32* cursors = scratch.take<u32>(kWarps * t.experts);  // [warp][expert]
  u32* starts = scratch.take<u32>(t.experts);
  if (starts == nullptr) return false;
  u32* own = cursors + lanes.lane() / kWarp * t.experts;
  for (u32 at = lanes.lane(); at < kWarps * t.experts; at += Lanes::kLanes) cursors[at] = 0;
  lanes.sync();
  walk_pairs(lanes, t, [&](u32, u32 expert, u32 same, u32 before) {
    if (before == 0 && expert != kNoExpert) own[expert] += lanes.ones_of(same);
  });
  lanes.sync();
  for (u32 e = lanes.lane(); e < t.experts; e += Lanes::kLanes) {  // of an expert's pairs those of earlier warps come first
    u32 taken = 0;
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) {
      const u32 its = cursors[w * t.experts + e];
      cursors[w * t.experts + e] = taken;
      taken += its;
    }
    starts[e] = taken;
    store_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(e)), 0, taken);
  }
  starts_from_counts(lanes, starts, t.experts);
  walk_pairs(lanes, t, [&](u32 pair, u32 expert, u32 same, u32 before) {
    const bool here = expert != kNoExpert;
    if (here) t.place(pair, starts[expert] + own[expert] + before);
    lanes.sync_warp();  // all have read where to go on
    if (here && before == 0) own[expert] += lanes.ones_of(same);
  });
  return true;
}

/// A route of so few tokens that its tile finds their experts too, a warp a token: chosen ones stay in scratch, and where an expert's pairs begin and where a
/// pair goes is counted by a lane for each, over all pairs. False, and nothing is done, where weights do not follow from what is found, and for more of anything.
template <class Lanes, class Task>
CCKS_INLINE bool route_few(Lanes& lanes, const Task& t) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp, kFlight = 4;
  if (t.tokens > kFewRouted || t.pairs() > Lanes::kLanes || t.experts > Lanes::kLanes || t.experts > kSortedColumns || t.k > kWarp) return false;
  if ((t.over_all && !t.renormalize) || !is_float(t.logits.type.get())) return false;
  Scratch scratch = scratch_of(lanes);
  const u32 filled = ceil_div(t.pairs(), kFlight) * kFlight;
  u32* chosen = scratch.take<u32>(filled);
  float* shares = scratch.take<float>(t.pairs());
  if (shares == nullptr) return false;
  const u32 lane = lanes.lane(), of_warp = lane % kWarp;
  for (u32 token = lane / kWarp; token < t.tokens; token += kWarps) {
    const u8* row = t.logits.at(0, 0, static_cast<i32>(token), 0);
    const u32 mine = largest_in_warp(lanes, t.logits.type, row, t.logits.stride[3], t.experts, t.k);
    const u32 pair = token * t.k + of_warp;
    if (of_warp < t.k) {
      chosen[pair] = mine;
      shares[pair] = load_float(t.logits.type, row, mine * t.logits.stride[3]);
    }
    lanes.sync_warp();
    if (of_warp < t.k) {
      const float top = shares[token * t.k];
      float sum = 0;
      CCKS_NO_UNROLL
      for (u32 j = 0; j < t.k; ++j) sum += f_exp(shares[token * t.k + j] - top);
      const i32 at = static_cast<i32>(token), j = static_cast<i32>(of_warp);
      store_float(t.weight.type, t.weight.at(0, 0, at, j), 0, f_exp(shares[pair] - top) / sum);
      store_int(t.expert.type, t.expert.at(0, 0, at, j), 0, mine);
    }
  }
  for (u32 at = t.pairs() + lane; at < filled; at += Lanes::kLanes) chosen[at] = kNoExpert;
  lanes.sync();
  const u32 own = lane < t.pairs() ? chosen[lane] : kNoExpert;
  u32 taken = 0, before = 0;
  CCKS_NO_UNROLL
  for (u32 first = 0; first < t.pairs(); first += kFlight) {
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const u32 other = chosen[first + f];
      taken += other == lane;
      before += other < own || (other == own && first + f < lane);
    }
  }
  if (lane < t.experts) store_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(lane)), 0, taken);
  if (lane < t.pairs()) t.place(lane, before);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

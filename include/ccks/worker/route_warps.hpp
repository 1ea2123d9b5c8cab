// Mixture of experts where lanes run in warps: pairs of tokens and experts sorted by expert, then pair, and rows put together again.
//
// The sort counts with prefix sums: each warp has a part of the pairs, in order, and for every expert a place to go on from, so no result depends
// on who is faster. Lanes of a warp whose pairs have the same expert find each other by what they show.
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
  lanes.sync();
  if (lanes.lane() < kWarp) {  // counts become places of the first pair
    const u32 each = ceil_div(t.experts, kWarp), begin = least(lanes.lane() * each, t.experts), end = least(begin + each, t.experts);
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

/// combine in vectors of four columns: the rows and weights of the tile's tokens first, then all rows of a vector under way. False, and nothing is
/// done, where vectors do not lie so.
template <class Lanes, class X, class W, class R, class Out>
CCKS_INLINE bool combine_in_vectors(Lanes& lanes, const View<X>& x, const View<W>& weight, const View<R>& row, const View<Out>& out, const Box& box, u32 k,
                                    bool& sound) {
  constexpr u32 kFlight = 8;
  const auto fits = [&](const u8* data, const i64* stride, u32 bytes) {
    return stride[3] == 1 && stride[2] % kVector == 0 && vector_aligned(data, bytes);
  };
  if (!fits(x.data, x.stride, bytes_of(x.type)) || !fits(out.data, out.stride, bytes_of(out.type)) || box.lo[3] % kVector != 0 || box.size[3] % kVector != 0)
    return false;
  const u32 rows = static_cast<u32>(box.size[2]);
  Scratch scratch = scratch_of(lanes);
  i32* from = scratch.take<i32>(rows * k);
  float* share = scratch.take<float>(rows * k);
  if (share == nullptr) return false;
  i32 wrong = 0;
  for (u32 at = lanes.lane(); at < rows * k; at += Lanes::kLanes) {
    const i32 t = box.lo[2] + static_cast<i32>(at / k), j = static_cast<i32>(at % k);
    const i64 r = load_int(row.type, row.at(0, 0, t, j), 0);
    if (r < 0 || r >= x.dim[2]) wrong = 1;
    from[at] = static_cast<i32>(r);
    share[at] = load_float(weight.type, weight.at(0, 0, t, j), 0);
  }
  sound = lanes.max(wrong) == 0;  // a barrier, too
  if (!sound) return true;
  const u32 wide = static_cast<u32>(box.size[3]) / kVector;
  CCKS_NO_UNROLL
  for (u32 unit = lanes.lane(); unit < rows * wide; unit += Lanes::kLanes) {
    const u32 t = unit / wide;
    const i32 column = box.lo[3] + static_cast<i32>((unit - t * wide) * kVector);
    float sum[kVector] = {0, 0, 0, 0};
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < k; j0 += kFlight) {
      float v[kFlight][kVector];
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f) load_four(x.type, x.at(0, 0, from[t * k + least(j0 + f, k - 1)], column), v[f]);
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f) {
        const float w = j0 + f < k ? share[t * k + j0 + f] : 0.0f;
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) sum[i] = j0 + f < k ? sum[i] + w * v[f][i] : sum[i];
      }
    }
    store_four(out.type, out.at(0, 0, box.lo[2] + static_cast<i32>(t), column), sum);
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

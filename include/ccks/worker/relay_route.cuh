// The step of a relay (relay.cuh) that finds which experts the run's rows go to: each list for itself, since a list's weights are asked for by that, and to be told by another would be a hop more.
#pragma once

#include "ccks/worker/argmax_split.hpp"
#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayRoute : RelayWords {
 public:
  __device__ __forceinline__ RelayRoute(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayWords(memory, frame, tag) {}

  /// False: the worker leaves, and no expert is chosen.
  __device__ __forceinline__ bool run(const wire::RelayStep& s) const {
    // Of one row each expert counts as much as another, so what is whose is known before they are.
    if (kWorkerRelayRows == 1 && warp_ == 0) share_out(s, s.run);
    if (warp_ < kWorkerRelayRows) choose(s, warp_);
    if constexpr (kWorkerRelayRows > 1) {
      sync();
      if (warp_ == 0) list_active(s.n, s.run);
      __syncwarp();
      if (warp_ == 0) share_out(s, shared_.active_count);
    }
    mark_ready();
    sync();
    if (has_given_up()) return false;
    if (threadIdx.x == 0) ptx::st_release_cta_shared(&memory_.relay.routed, 1);  // [RL15] pairs with [RL16]
    return true;
  }

 private:
  static constexpr u32 kEach = wire::kMostRelayExperts / kWarpLanes;  // logits a lane
  static_assert(wire::kMostChosenExperts <= kWarpLanes && wire::kMostRelayExperts == kWarpLanes * sizeof(u64));

  /// By a warp, for one row. The first of the largest, then of those that are left; shares are the softmax of what they have.
  __device__ __forceinline__ void choose(const wire::RelayStep& s, u32 row) const {
    const u32 experts = s.n, chosen = s.run;
    float logits[kEach];
    await_logits(reinterpret_cast<const u64*>(s.row) + row * experts, experts, logits);
    u32 taken = 0, mine = 0;  // bits of this lane's logits; what this lane's place has
    float its = 0, own = 0;  // of the lane's place, and of its best
    RelayShared::Rank best, found;  // field by field: images of constants would be loaded from memory (tests/ptx/check.py)
    found.rank = best.rank = kLeastRank, found.index = best.index = kNowhere;
    CCKS_NO_UNROLL
    for (u32 place = 0; place < chosen; ++place) {
      if (place == 0 || found.index == best.index) {  // the lane's best is new
        best.rank = kLeastRank, best.index = kNowhere;
        CCKS_UNROLL
        for (u32 i = 0; i < kEach; ++i) {
          const u32 index = lane_ + i * kWarpLanes;
          const i32 rank = rank_of(logits[i]);
          if (index >= experts || (taken >> i & 1) != 0 || (best.index != kNowhere && rank <= best.rank)) continue;
          best = {rank, index}, own = logits[i];
        }
      }
      found = best_of_warp(best);
      if (found.index == best.index) taken |= 1u << best.index / kWarpLanes;
      const float logit = __shfl_sync(kFullWarp, own, found.index % kWarpLanes);
      if (lane_ == place) mine = found.index, its = logit;
    }
    const float top = __shfl_sync(kFullWarp, its, 0), part = lane_ < chosen ? ptx::ex2((its - top) * 1.44269504f) : 0.0f;
    float all = part;
    CCKS_UNROLL
    for (u32 far = kWarpLanes / 2; far > 0; far /= 2) all += __shfl_xor_sync(kFullWarp, all, far);
    if (lane_ < chosen) shared_.share[row][lane_] = part / all;
    if constexpr (kWorkerRelayRows == 1) {  // nobody else chooses any: they stay in its order
      if (lane_ < chosen) shared_.pairs[lane_] = static_cast<u8>(lane_);
      if (lane_ < chosen) shared_.active[lane_] = {static_cast<u16>(mine), 1, {static_cast<u8>(lane_)}};
      if (lane_ == 0) shared_.active_count = chosen;
    } else {
      u8* places = shared_.places[row];
      reinterpret_cast<u64*>(places)[lane_] = ~0ull;
      __syncwarp();
      if (lane_ < chosen) places[mine] = static_cast<u8>(lane_);
    }
  }
  /// By a warp, of what all rows have chosen.
  __device__ __forceinline__ void list_active(u32 experts, u32 chosen) const {
    const u32 in_front = (1u << lane_) - 1;
    u32 count = 0, pairs = 0;
    CCKS_NO_UNROLL
    for (u32 first = 0; first < experts; first += kWarpLanes) {
      RelayShared::Active mine{static_cast<u16>(first + lane_), 0, {}};
      u32 at = pairs;  // where this lane's begin
      CCKS_UNROLL
      for (u32 row = 0; row < kWorkerRelayRows; ++row) {
        mine.place[row] = shared_.places[row][first + lane_];
        const bool has = mine.place[row] != kNoPlace;
        if (has) mine.rows |= static_cast<u8>(1u << row);
        const u32 all = __ballot_sync(kFullWarp, has);
        at += __popc(all & in_front);
        pairs += __popc(all);
      }
      CCKS_NO_UNROLL
      for (u32 rows = mine.rows; rows != 0; rows &= rows - 1) {
        const u32 row = static_cast<u32>(__ffs(static_cast<i32>(rows))) - 1;
        shared_.pairs[at++] = static_cast<u8>(row * chosen + mine.place[row]);
      }
      const u32 found = __ballot_sync(kFullWarp, mine.rows != 0);
      if (mine.rows != 0) shared_.active[count + __popc(found & in_front)] = mine;
      count += __popc(found);
    }
    if (lane_ == 0) shared_.active_count = count;
  }
  /// By a warp: which columns of `active` experts are this list's.
  __device__ __forceinline__ void share_out(const wire::RelayStep& s, u32 active) const {
    const u32 stages = s.second / wire::kRelayShareColumns, in_front = (1u << lane_) - 1;
    const auto cost_of = [&](u32 i) { return i >= active ? 0 : wire::relay_share_cost(kWorkerRelayRows == 1 ? 1 : static_cast<u32>(__popc(shared_.active[i].rows))); };
    u32 all = 0, begin = 0, parts = 0;
    CCKS_NO_UNROLL
    for (u32 first = 0; first < active; first += kWarpLanes) all += __reduce_add_sync(kFullWarp, cost_of(first + lane_));
    const wire::RelaySpan span = wire::relay_span(all * stages, s.part, s.kv_head);
    CCKS_NO_UNROLL
    for (u32 first = 0; first < active; first += kWarpLanes) {
      const u32 cost = cost_of(first + lane_);
      u32 upto = cost;
      CCKS_UNROLL
      for (u32 far = 1; far < kWarpLanes; far *= 2) {
        const u32 other = __shfl_up_sync(kFullWarp, upto, far);
        if (lane_ >= far) upto += other;
      }
      wire::RelayShare share{0, 0};
      if (cost != 0) share = wire::relay_share(span, (begin + upto - cost) * stages, cost, s.second);
      const u32 found = __ballot_sync(kFullWarp, share.columns != 0);
      if (share.columns != 0) shared_.parts[parts + __popc(found & in_front)] = {static_cast<u16>(first + lane_), static_cast<u16>(share.first), static_cast<u16>(share.columns)};
      parts += __popc(found);
      begin += __shfl_sync(kFullWarp, upto, kWarpLanes - 1);
    }
    if (lane_ == 0) shared_.part_count = parts;
  }
  static constexpr u8 kNoPlace = 0xff;
  __device__ __forceinline__ void await_logits(const u64* words, u32 experts, float (&logits)[kEach]) const {
    u64 w[kEach];
    const auto is_one = [&](u32 i) { return lane_ + i * kWarpLanes < experts; };
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) w[i] = is_one(i) ? ptx::ld_relaxed_gpu(words + lane_ + i * kWarpLanes) : wire::tagged_value(0, tag_);
    for (u32 spins = 0;; ++spins) {
      bool late = false;
      CCKS_UNROLL
      for (u32 i = 0; i < kEach; ++i) late = late || is_late(w[i]);
      if (__any_sync(kFullWarp, late) == 0 || __any_sync(kFullWarp, is_over(spins)) != 0) break;
      CCKS_UNROLL
      for (u32 i = 0; i < kEach; ++i) {
        if (is_late(w[i])) w[i] = ptx::ld_relaxed_gpu(words + lane_ + i * kWarpLanes);
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) logits[i] = __uint_as_float(static_cast<u32>(w[i]));
  }
};

/// Not inlined: it is one step of a relay.
inline __device__ __noinline__ bool route(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag, const wire::RelayStep& step) { return RelayRoute(memory, frame, tag).run(step); }

}  // namespace CCKS_ISA
}  // namespace ccks::worker

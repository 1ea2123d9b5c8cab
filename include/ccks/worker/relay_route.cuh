// The step of a relay (relay.cuh) that finds which experts the run's rows go to: each list for itself, since a list's weights are asked for by that, and to be told by another would be a hop more.
#pragma once

#include "ccks/worker/relay_words.cuh"
#include "ccks/worker/topk_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayRoute : RelayWords {
 public:
  __device__ __forceinline__ RelayRoute(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayWords(memory, frame, tag) {}

  /// False: the worker leaves, and no expert is chosen.
  __device__ __forceinline__ bool run(const wire::RelayStep& s) const {
    // Of one row each expert counts as much as another, so what is whose is known before they are.
    if (kWorkerRelayRows == 1 && warp_ == 0) share_out(s, s.run);
    if (warp_ < kWorkerRelayRows) s.n <= kMost / 2 * kWarpLanes ? choose<kMost / 2>(s, warp_) : choose<kMost>(s, warp_);
    if constexpr (kWorkerRelayRows > 1) {
      sync();
      if (warp_ * kWarpLanes < s.n) list_active(warp_, s.n, s.run);
      sync();
      if (warp_ == 0) share_out(s, shared_.active_count);
    }
    mark_ready();
    sync();
    if (has_given_up()) return false;
    if (threadIdx.x == 0) ptx::st_release_cta_shared(&memory_.relay.routed, 1);  // [RL15] pairs with [RL16]
    return true;
  }

 private:
  static constexpr u32 kMost = wire::kMostRelayExperts / kWarpLanes;  // logits of a lane, and words of RelayShared::chosen
  static_assert(wire::kMostChosenExperts <= kWarpLanes && kMost == kSortedColumns / kWarpLanes && kMost <= kWarps);

  struct Warp {
    __device__ __forceinline__ i32 most_in_warp(i32 v) const { return __reduce_max_sync(kFullWarp, v); }
  };

  /// By a warp, for one row, kEach logits a lane. The first of the largest, then of those that are left; shares are the softmax of what they have.
  template <u32 kEach>
  __device__ __forceinline__ void choose(const wire::RelayStep& s, u32 row) const {
    const u32 experts = s.n, chosen = s.run;
    float logits[kEach];
    await_logits(reinterpret_cast<const u64*>(s.row) + row * experts, experts, logits);
    i64 own[kEach];
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      const u32 index = lane_ + i * kWarpLanes;
      own[i] = index < experts ? ranked(logits[i], index) : kNoneRanked;
    }
    Warp warp;
    const u32 mine = largest_of_warp(warp, lane_, own, chosen);
    float its = 0;
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      const float logit = __shfl_sync(kFullWarp, logits[i], mine % kWarpLanes);
      if (mine / kWarpLanes == i) its = logit;
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
      if (lane_ < chosen) shared_.places[row][mine] = static_cast<u8>(lane_);
      const u32 bit = lane_ < chosen ? 1u << mine % kWarpLanes : 0;
      CCKS_UNROLL
      for (u32 word = 0; word < kEach; ++word) {  // nobody looks at those behind the last expert
        const u32 bits = __reduce_or_sync(kFullWarp, mine / kWarpLanes == word ? bit : 0);
        if (lane_ == word) shared_.chosen[row][word] = bits;
      }
    }
  }
  /// By a warp, of what all rows have chosen: the experts of the `mine`-th word of RelayShared::chosen, a lane an expert, and their pairs, behind those of the words in front.
  __device__ __forceinline__ void list_active(u32 mine, u32 experts, u32 chosen) const {
    const u32 in_front = (1u << lane_) - 1;
    u32 pairs = 0, words = 0;  // of lane_-th word, if that is in front
    if (lane_ < mine) {
      CCKS_UNROLL
      for (u32 row = 0; row < kWorkerRelayRows; ++row) {
        pairs += __popc(shared_.chosen[row][lane_]);
        words |= shared_.chosen[row][lane_];
      }
    }
    u32 at = __reduce_add_sync(kFullWarp, pairs), found = 0;
    const u32 begin = __reduce_add_sync(kFullWarp, static_cast<u32>(__popc(words)));
    RelayShared::Active own{static_cast<u16>(mine * kWarpLanes + lane_), 0, {}};
    CCKS_UNROLL
    for (u32 row = 0; row < kWorkerRelayRows; ++row) {
      const u32 word = shared_.chosen[row][mine];
      found |= word;
      at += __popc(word & in_front);
      own.place[row] = shared_.places[row][own.expert];
      if ((word >> lane_ & 1) != 0) own.rows |= static_cast<u8>(1u << row);
    }
    CCKS_UNROLL
    for (u32 row = 0; row < kWorkerRelayRows; ++row) {
      if ((own.rows >> row & 1) != 0) shared_.pairs[at++] = static_cast<u8>(row * chosen + own.place[row]);
    }
    if (own.rows != 0) shared_.active[begin + __popc(found & in_front)] = own;
    if (lane_ == 0 && (mine + 1) * kWarpLanes >= experts) shared_.active_count = begin + __popc(found);
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
      u32 before = begin;  // bit by bit of what they count
      CCKS_UNROLL
      for (u32 bit = 0; bit < kCostBits; ++bit) {
        const u32 has = __ballot_sync(kFullWarp, (cost >> bit & 1) != 0);
        before += __popc(has & in_front) << bit;
        begin += __popc(has) << bit;
      }
      wire::RelayShare share{0, 0};
      if (cost != 0) share = wire::relay_share(span, before * stages, cost, s.second);
      const u32 found = __ballot_sync(kFullWarp, share.columns != 0);
      if (share.columns != 0) shared_.parts[parts + __popc(found & in_front)] = {static_cast<u16>(first + lane_), static_cast<u16>(share.first), static_cast<u16>(share.columns)};
      parts += __popc(found);
    }
    if (lane_ == 0) shared_.part_count = parts;
  }
  static constexpr u32 kCostBits = 4;
  static_assert(wire::kMostShareCost < 1u << kCostBits);
  template <u32 kEach>
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

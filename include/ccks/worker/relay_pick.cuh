// The step of a relay (relay.cuh) that finds the largest element of each row of those of its columns that its makers have found (kRelayRanks). Makers are all lists that store anything for the next run, caches,
// and each of them says so, so whoever sees the pick's word has all of it behind it.
#pragma once

#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayPick : RelayWords {
 public:
  __device__ __forceinline__ RelayPick(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayWords(memory, frame, tag) {}

  /// False: the worker leaves, and nothing is stored.
  __device__ __forceinline__ bool run(const wire::RelayStep& s) const {
    CCKS_NO_UNROLL
    for (u32 row = 0; row < kWorkerRelayRows; ++row) find(s, row);
    mark_ready();
    sync();
    if (has_given_up()) return false;
    if (warp_ < kWorkerRelayRows) {
      const RelayShared::Rank best = best_of_warp(shared_.best[warp_ * kWarps + least(lane_, kWarps - 1)]);
      if (lane_ == 0) reinterpret_cast<u32*>(s.store)[warp_] = best.index;
      if (lane_ == 0 && s.words != 0) ptx::st_release_gpu(reinterpret_cast<u64*>(s.words) + warp_, wire::tagged_value(best.index, tag_));  // [RL13] pairs with [RL14]
    }
    return true;
  }

 private:
  static constexpr u32 kPairs = wire::relay_rank_pairs(kWorkerRelayRows);
  static_assert(kWorkerRelayRows <= kWarps);

  __device__ __forceinline__ void find(const wire::RelayStep& s, u32 row) const {
    RelayShared::Rank best{kLeastRank, kNowhere};
    CCKS_NO_UNROLL
    for (u32 pair = threadIdx.x; pair < s.n; pair += kCudaLanes) {
      const u64* words = reinterpret_cast<const u64*>(s.row) + pair / kPairs * wire::relay_rank_words(kWorkerRelayRows);
      best = better(best, await_pair(words + (row * kPairs + pair % kPairs) * 2));
      if (s.words != 0 && row == 0 && pair % kPairs == 0) await_stored(words + 2 * kWorkerRelayRows * kPairs);
    }
    __syncwarp();
    best = best_of_warp(best);
    if (lane_ == 0) shared_.best[row * kWarps + warp_] = best;
  }
  static __device__ __forceinline__ RelayShared::Rank better(const RelayShared::Rank& a, const RelayShared::Rank& b) {
    return a.rank > b.rank || (a.rank == b.rank && a.index < b.index) ? a : b;
  }
  __device__ __forceinline__ RelayShared::Rank await_pair(const u64* words) const {
    u64 rank, index;
    load_two(words, rank, index);
    for (u32 spins = 0; (is_late(rank) || is_late(index)) && !is_over(spins); ++spins) load_two(words, rank, index);
    return {static_cast<i32>(static_cast<u32>(rank)), static_cast<u32>(index)};
  }
  /// Behind it what the list that has left the word had stored for others.
  __device__ __forceinline__ void await_stored(const u64* word) const {
    for (u32 spins = 0; is_late(ptx::ld_acquire_gpu(word)) && !is_over(spins); ++spins) {  // [RL12] pairs with [RL11]
    }
  }
};

/// Not inlined: it is one step of a relay.
inline __device__ __noinline__ bool pick(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag, const wire::RelayStep& step) { return RelayPick(memory, frame, tag).run(step); }

}  // namespace CCKS_ISA
}  // namespace ccks::worker

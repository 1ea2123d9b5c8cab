// What the steps of a relay (relay.cuh) have in common: who they are run by, and how they wait for words.
#pragma once

#include "ccks/worker/relay_stream.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Of one thread of the body warps.
class RelayWords {
 public:
  static constexpr u32 kWarps = kCudaLanes / kWarpLanes;

  __device__ __forceinline__ RelayWords(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag)
      : memory_(memory), shared_(relay_shared()), frame_(frame), tag_(tag != 0 ? tag : kWrapped), warp_(threadIdx.x / kWarpLanes), lane_(threadIdx.x % kWarpLanes),
        group_(lane_ / 4), part_(lane_ % 4), row_(reinterpret_cast<u8*>(&shared_ + 1)) {}

 protected:
  __device__ __forceinline__ void sync() const { ptx::barrier_sync(CudaLanes::kBarrier, kCudaLanes); }
  // Relaxed, both: lone words; the second is looked at behind a barrier.
  __device__ __forceinline__ void look(u32 spins) const {
    if (spins % kSpinsPerLook == kSpinsPerLook - 1 && ptx::ld_relaxed_cta_shared(&memory_.hurry) != 0) ptx::st_relaxed_cta_shared(&memory_.given_up, 1);
  }
  __device__ __forceinline__ bool has_given_up() const { return ptx::ld_relaxed_cta_shared(&memory_.given_up) != 0; }
  /// In the `spins`-th turn of a wait of words: whether it is to end without them.
  __device__ __forceinline__ bool is_over(u32 spins) const {
    look(spins);
    return spins % kSpinsPerLook == kSpinsPerLook - 1 && has_given_up();
  }

  /// What the step has waited for is there; for traces.
  __device__ __forceinline__ void mark_ready() const {
    if (memory_.params.trace != 0 && threadIdx.x == 0) shared_.ready_ns = ptx::globaltimer();
  }

  __device__ __forceinline__ bool is_late(u64 word) const { return static_cast<u32>(word >> 32) != tag_; }
  __device__ __forceinline__ void store_word(u64* to, u32 bits) const { ptx::st_relaxed_gpu(to, wire::tagged_value(bits, tag_)); }
  /// One word, `w` being what a look has found. By any lanes.
  __device__ __forceinline__ u32 await_word(const u64* at, u64 w) const {
    for (u32 spins = 0; is_late(w) && !is_over(spins); ++spins) w = ptx::ld_relaxed_gpu(at);
    return static_cast<u32>(w);
  }

  /// Bytes that a row is away from where the step says, which names the table's first, or else the first of rows `pitch` elements from one another.
  __device__ __forceinline__ u64 row_at(const wire::RelayStep& s, wire::RelayFlags looked_up, u32 row, u32 pitch) const {
    return (s.flags & looked_up) != 0 ? shared_.looked_up[row] : kWorkerRelayRows == 1 ? 0 : u64{row} * pitch * 2;
  }

  static __device__ __forceinline__ void load_two(const u64* at, u64& a, u64& b) {
    u64 two[2];
    ptx::ld_relaxed_gpu(at, two);
    a = two[0], b = two[1];
  }

  /// The first of the largest of what the lanes of a warp have.
  static __device__ __forceinline__ RelayShared::Rank best_of_warp(RelayShared::Rank mine) {
    const i32 rank = __reduce_max_sync(kFullWarp, mine.rank);
    return {rank, __reduce_min_sync(kFullWarp, mine.rank == rank ? mine.index : kNowhere)};
  }
  static constexpr i32 kLeastRank = -0x7fffffff - 1;
  static constexpr u32 kNowhere = 0xffffffffu;

  static __device__ __forceinline__ float low(u32 word) { return __uint_as_float(word << 16); }
  static __device__ __forceinline__ float high(u32 word) { return __uint_as_float(word & 0xffff0000u); }
  static __device__ __forceinline__ float rounded(float v) { return low(ptx::cvt_bf16x2(v, 0)); }

  CudaPipelineMemory& memory_;
  RelayShared& shared_;
  const wire::RunFrame& frame_;
  u32 tag_, warp_, lane_, group_, part_;
  u8* row_;

 private:
  static constexpr u32 kSpinsPerLook = 64;
  static constexpr u32 kWrapped = 0x80000000u;  // in place of 0, which memory begins with: words of every relay are written anew, so they hold no tag of 2^31 runs ago
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// What keeps memory busy while bodies wait for other workers: the posting warp of a CudaPipeline (pipeline_cuda.cuh) has the weights of
// products copied into a ring of stages (weight_stream.hpp), over the tiles handed on, in the order in which they run, until the ring is
// full. It looks in whenever it waits for anything, which is nearly always: a stage
// that is not asked for again at once is memory that stands still.
//
// Roles         full       a stage is filled: post [P17] and the copies -> bodies [P18]
//   empty       the eight body warps have read a stage: bodies [P19] -> post [P20]
//   gate_left   the gate lets nothing more through: gate [P13] -> post [P14]
// Invariants    A body of a tile that streams (CudaStage::streams) takes all stages of its tile, and no other body any. Stages are filled
//               and taken in the order of tiles. Every tile that the gate lets through is served, so no body waits for ever.
//               What is asked of a tile stands before the tile leaves the pipeline.
//
// Copies are of the async proxy. What they read, weights, no worker ever writes. What they write over, bodies have read before they
// arrived at `empty`: a read that is over needs no fence of proxies, and nobody stores to a stage.
//
// Leaving. What was copied for tiles that do not run is dropped, and the next launch begins with an empty ring and fetches these tiles
// again. But a block must not end while copies into it are under way.
#pragma once

#include "ccks/worker/relay_stream.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

// What a worker has asked for comes back in order: more than memory takes to answer only delays what bodies load and what waits for their stores.
// A Llama step on an H200, in us: 1,138 with four of 32 KiB, 1,085 with two, 1,316 with one. In the middle of a tile, whose body is at its weights and waits
// for nothing else, all may be under way.
inline constexpr u32 kStagesUnderWay = 2;

/// Finds the next tile before `published` that streams. False: there is none. By a whole warp. Weights may have been written since the inbox
/// task before; whoever sent this one has waited for that, and bulk copies now see it too.
__device__ __forceinline__ bool settle(const CudaPipelineMemory& memory, StreamFill& fill, u32 published) {
  if (fill.begun != 0) return true;
  // Lane i looks at the i-th tile.
  const u32 lane = threadIdx.x % kWarpLanes, mine = fill.tile + lane;
  const bool there = lane < least(published - fill.tile, kWarpLanes);
  u32 streams = __ballot_sync(kFullWarp, there && memory.streams(mine)), before = least(published - fill.tile, kWarpLanes);
  if constexpr (kWorkerRowTags) {  // a relay has the ring's stages until it has ended, and the gate lets it through
    const u32 gated = ptx::ld_acquire_cta_shared(&memory.gated);  // [P4] pairs with [P3]
    const u32 relays = __ballot_sync(kFullWarp, there && static_cast<i32>(gated - mine) <= 0 && memory.is_relay(mine));
    if (relays != 0) {
      before = static_cast<u32>(__ffs(static_cast<int>(relays)) - 1);
      streams &= (relays & (0u - relays)) - 1;
    }
  }
  if (__any_sync(kFullWarp, there && (memory.controls[mine % CudaPipelineMemory::kRing].flags & kTileOpensInbox) != 0)) ptx::fence_proxy_async_global();
  fill.tile += streams == 0 ? before : static_cast<u32>(__ffs(static_cast<int>(streams)) - 1);
  if (streams == 0) return false;
  const CudaPipelineMemory::Entry& entry = memory.entries[fill.tile % CudaPipelineMemory::kRing];
  fill.pieces = WeightPieces(Call(*entry.frame, *entry.op), entry.tile);
  fill.begun = 1;
  return true;
}
/// By one lane. Copies follow one another in as few instructions as can be: a ring is emptied in the time that ten for each would take.
__device__ __forceinline__ void copy_piece(const WeightPieces& pieces, u8* stage, u64* full) {
  constexpr u32 kRun = kStageColumns / 2;  // columns of a piece lie one after the other, or half of them do
  const u32 width = pieces.width(), bytes = pieces.bytes();
  const u64 policy = ptx::evict_first_policy();
  ptx::mbarrier_expect_release(full, width * bytes);  // [P17] pairs with [P18]
  if (width == kStageColumns && pieces.run % kRun == 0) {
    CCKS_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const u8* from = pieces.from(half * kRun);
      u8* to = stage + half * kRun * kStagePitch;
      CCKS_UNROLL
      for (u32 i = 0; i < kRun; ++i) ptx::copy_bulk(to + i * kStagePitch, from + i * pieces.column_bytes, bytes, full, policy);
    }
    return;
  }
  CCKS_NO_UNROLL
  for (u32 i = 0; i < width; ++i) ptx::copy_bulk(stage + i * kStagePitch, pieces.from(i), bytes, full, policy);
}

__device__ __forceinline__ bool is_empty(StreamRing& ring, const StreamPlace& next) {
  return ptx::mbarrier_has_ended_acquire(&ring.empty[next.stage], next.round % 2 ^ 1);  // [P20] pairs with [P19]
}
/// Whether a stage that is empty may be asked for: no more than kStagesUnderWay are under way, but for pieces of a tile whose first the body has read: it has
/// come out of the ring again. `begun` as in StreamFill.
__device__ __forceinline__ bool may_ask(StreamRing& ring, const StreamPlace& next, u32 begun) {
  const bool wraps = next.stage < kStagesUnderWay;
  if (begun > ring.stages || ring.stages <= kStagesUnderWay || (wraps && next.round == 0)) return true;
  const u32 before = wraps ? next.stage + ring.stages - kStagesUnderWay : next.stage - kStagesUnderWay;
  return ptx::mbarrier_has_ended_acquire(&ring.full[before], (next.round - (wraps ? 1 : 0)) % 2);  // [P18] pairs with [P17]
}

/// Fills what is empty of the ring, for tiles before `published`. By the posting warp; a function of its own, called from several places.
/// Its state lies in shared memory and is this warp's alone.
inline __device__ __noinline__ void fill_ring(CudaPipelineMemory& memory, u32 published, bool busy) {
  if constexpr (kWorkerRowTags) {
    if (is_relaying(memory)) return serve_relay(busy);
  }
  StreamRing& ring = *memory.ring;
  StreamFill fill = memory.fill;
  while (fill.tile != published && is_empty(ring, fill.next) && may_ask(ring, fill.next, fill.begun)) {
    if (!settle(memory, fill, published)) break;
    if (ptx::elected()) copy_piece(fill.pieces, stage_of(ring, fill.next.stage), &ring.full[fill.next.stage]);
    __syncwarp();
    fill.next.step(ring.stages);
    fill.pieces.step();
    ++fill.begun;
    if (!fill.pieces.done()) continue;
    fill.begun = 0;
    ++fill.tile;
  }
  __syncwarp();
  memory.fill = fill;  // the same from all lanes
  __syncwarp();
}

/// Whatever the ring wants now. True: a relay is under way, which will soon want more. `busy`: the warp has other things to do.
__device__ __forceinline__ bool stream_next(CudaPipelineMemory& memory, bool busy) {
  const bool relays = is_relaying(memory);
  if (!memory.has_ring() && !relays) return false;
  const StreamFill& fill = memory.fill;
  const u32 published = ptx::ld_acquire_cta_shared(&memory.fetched);  // [P2] pairs with [P1]
  if (relays || (fill.tile != published && is_empty(*memory.ring, fill.next) && may_ask(*memory.ring, fill.next, fill.begun))) fill_ring(memory, published, busy);
  return relays;
}
/// All tiles before `tile` are through: none is looked at any more.
__device__ __forceinline__ void pass_streams(CudaPipelineMemory& memory, u32 tile) {
  if (memory.has_ring() && static_cast<i32>(memory.fill.tile - tile) < 0) memory.fill.tile = tile;  // the same from all lanes
  __syncwarp();
}

/// Until everything asked for has landed: of each stage the newest phase begun has ended.
inline __device__ void drain_ring(CudaPipelineMemory& memory) {
  StreamRing& ring = *memory.ring;
  const StreamPlace next = memory.fill.next;
  for (u32 stage = 0; stage < ring.stages; ++stage) {
    const u32 filled = next.round + (stage < next.stage ? 1 : 0);
    while (filled != 0 && !ptx::mbarrier_ended_acquire(&ring.full[stage], (filled - 1) % 2)) {  // [P18] pairs with [P17]
    }
  }
}

/// The worker leaves: bodies that the gate has let through still want theirs, and a relay that gives up waits until nothing of it is under way.
inline __device__ void end_stream(CudaPipelineMemory& memory) {
  for (;;) {
    const bool left = ptx::ld_acquire_cta_shared(&memory.gate_left) != 0;  // [P14] pairs with [P13]; before gated
    const bool served = !memory.has_ring() || static_cast<i32>(memory.fill.tile - ptx::ld_acquire_cta_shared(&memory.gated)) >= 0;  // [P4] pairs with [P3]
    if (left && served && !is_relaying(memory)) break;
    stream_next(memory, false);
  }
  if (memory.has_ring()) drain_ring(memory);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

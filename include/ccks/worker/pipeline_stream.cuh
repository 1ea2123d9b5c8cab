// What keeps memory busy while bodies wait for other workers: the fetching warp of a CudaPipeline (pipeline_cuda.cuh) has the weights of
// products copied into a ring of stages (weight_stream.hpp), over the tiles handed on, in the order in which they run, until the ring is
// full. It looks in whenever it has nothing better to do, which is far more often than the ring takes to run dry.
//
// Roles         full       a stage is filled: fetch [P17] and the copies -> bodies [P18]
//   empty       the eight body warps have read a stage: bodies [P19] -> fetch [P20]
//   gate_left   the gate lets nothing more through: gate [P13] -> fetch [P14]
// Invariants    A body of a tile that streams (CudaStage::streams) takes all stages of its tile, and no other body any. Stages are filled
//               and taken in the order of tiles. Every tile that the gate lets through is served, so no body waits for ever.
//
// Copies are of the async proxy. What they read, weights, no worker ever writes. What they write over, bodies have read before they
// arrived at `empty`: a read that is over needs no fence of proxies, and nobody stores to a stage.
//
// Leaving. What was copied for tiles that do not run is dropped, and the next launch begins with an empty ring and fetches these tiles
// again. But a block must not end while copies into it are under way.
#pragma once

#include "ccks/worker/pipeline_stage.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Fills what is empty of the ring, for tiles before `published`. By the fetching warp; a function of its own, called from several places.
/// Its state lies in shared memory and is this warp's alone.
inline __device__ __noinline__ void fill_ring(CudaPipelineMemory& memory, u32 published) {
  StreamRing& ring = *memory.ring;
  const u32 lane = threadIdx.x % kWarpLanes;
  StreamFill fill = memory.fill;
  while (fill.tile != published && ptx::mbarrier_has_ended_acquire(&ring.empty[fill.next.stage], fill.next.round % 2 ^ 1)) {  // [P20] pairs with [P19]
    if (!fill.begun) {
      // Lane i looks at the i-th tile.
      const u32 ahead = least(published - fill.tile, kWarpLanes), streams = __ballot_sync(kFullWarp, lane < ahead && memory.streams(fill.tile + lane));
      fill.tile += streams == 0 ? ahead : static_cast<u32>(__ffs(static_cast<int>(streams)) - 1);
      if (streams == 0) break;
      const CudaPipelineMemory::Entry& entry = memory.entries[fill.tile % CudaPipelineMemory::kRing];
      fill.pieces = WeightPieces(Call(*entry.frame, *entry.op), entry.tile);
      fill.begun = true;
    }
    const WeightPieces& pieces = fill.pieces;
    u64* full = &ring.full[fill.next.stage];
    if (lane == 0) ptx::mbarrier_expect_release(full, pieces.width() * pieces.bytes());  // [P17] pairs with [P18]
    __syncwarp();
    u8* stage = reinterpret_cast<u8*>(&ring + 1) + fill.next.stage * kStageBytes;
    if (lane < pieces.width()) ptx::copy_bulk(stage + lane * kStagePitch, pieces.from(lane), pieces.bytes(), full, ptx::evict_first_policy());
    fill.next.step(ring.stages);
    fill.pieces.step();
    if (fill.pieces.done()) {
      fill.begun = false;
      ++fill.tile;
    }
  }
  __syncwarp();
  if (lane == 0) memory.fill = fill;
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

}  // namespace CCKS_ISA
}  // namespace ccks::worker

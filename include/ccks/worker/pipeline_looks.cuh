// What the service warps of a CudaPipeline (pipeline_cuda.cuh) do rarely: looks at the host, at clocks, at a full ring. Each is a
// function that is not inlined, and what it remembers lies in shared memory, not in its callers' registers.
//
// One lane does the work. Where ptxas cannot prove that the lanes of a warp are together, every shuffle and every barrier of the warp
// costs a second copy of itself, and often of what follows; a clock that all lanes have to agree on is two shuffles.
#pragma once

#include "ccks/worker/leave_watch.hpp"
#include "ccks/worker/pipeline_stage.cuh"
#include "ccks/worker/tile_gate.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A lane that works for its warp.
struct CudaOneLane : OneControlLane {
  __device__ static CudaAtoms atoms() { return {}; }
  __device__ static u64 now_ns() { return ptx::globaltimer(); }
};

/// Whether the fetching warp has nothing to do.
enum class Idle : u32 { no, begins, still };

/// Looks at the host's line, if the last look was more than `least_ns` ago; what it asks for is raised for all warps. By the
/// fetching warp; others see what comes of it.
__device__ __noinline__ inline void look_at_host(u32 index, u32 least_ns, Idle idle) {
  CudaPipelineMemory& memory = pipeline_memory();
  if (threadIdx.x % kWarpLanes == 0) {
    CudaPipelineMemory::Looks& looks = memory.looks;
    const u64 now = ptx::globaltimer();
    if (idle == Idle::begins) looks.idle_since = now;
    if (now - looks.at > least_ns) {
      looks.at = now;
      CudaOneLane lane;
      LeaveWatch<CudaOneLane> watch(lane, memory.params, index, looks.beat);
      const auto raise = [&](u32& word, u32 value) {
        ptx::st_relaxed_cta_shared(&word, value);
        ptx::st_relaxed_cta_shared(&memory.attention, 1);
      };
      u32 leave = ptx::ld_relaxed_cta_shared(&memory.leave);
      wire::ParkReason reason;
      if (leave == 0 && watch.should_leave(idle == Idle::no ? 0 : looks.idle_since, reason)) {
        leave = static_cast<u32>(reason) + 1;
        raise(memory.leave, leave);
      }
      if (leave != 0) {
        const u32 request = watch.park_request();
        if (request == wire::kParkAbandon) raise(memory.abandon, 1);
        const bool alone = leave == static_cast<u32>(wire::ParkReason::stale_heartbeat) + 1;
        if (request == wire::kParkSuspend || alone) raise(memory.suspend, 1);
      }
    }
  }
  __syncwarp();
}

/// For EventWait::look and its like, by the gate (`who` 0) and the post stage (1).
__device__ __noinline__ inline WaitEnd::Code look_while_waiting(u32 who, bool first) {
  CudaPipelineMemory& memory = pipeline_memory();
  CudaPipelineMemory::Waiting& waiting = memory.waiting[who];
  __syncwarp();  // all lanes have read what the look before was worth
  if (threadIdx.x % kWarpLanes == 0) {
    const u64 now = ptx::globaltimer();
    if (first) waiting.patience = Patience(now);
    const bool over = waiting.patience.over(now, memory.params.spin_deadline_ns);
    const bool abandoned = (ptx::ld_relaxed_cta_shared(&memory.abandon) | ptx::ld_relaxed_cta_shared(&memory.stop)) != 0;
    const bool suspended = ptx::ld_relaxed_cta_shared(&memory.suspend) != 0;
    waiting.code = abandoned ? WaitEnd::abandoned : suspended && who == 0 ? WaitEnd::suspend : over ? WaitEnd::overdue : WaitEnd::ready;
  }
  __syncwarp();
  return static_cast<WaitEnd::Code>(waiting.code);
}

// A busy worker looks at the host's line so often: reading it takes the fetching warp 1 us, and a handoff waits for it.
inline constexpr u32 kLookNs = 25'000;
inline constexpr u32 kUrgentLookNs = 40'000;  // also where the gate is about to have nothing, that is few tiles
inline constexpr u32 kFewTiles = 8;           // one group of records
inline constexpr u32 kRefreshesPerClock = 4;

__device__ __forceinline__ void start_looks() {
  if (threadIdx.x % kWarpLanes == 0) {
    CudaPipelineMemory::Looks& looks = pipeline_memory().looks;
    looks.at = ptx::globaltimer();
    looks.beat = {0, looks.at};
    pipeline_memory().shared.queue_takes = {};
  }
  __syncwarp();
}
__device__ __forceinline__ void look_while_busy(u32 index, u32 under_way) {
  look_at_host(index, under_way < kFewTiles ? kUrgentLookNs : kLookNs, Idle::no);
}

// Tiles whose operands are asked for before they run. All workers share the L2 cache: more would drive out what is to come first.
inline constexpr u32 kPrefetchedTiles = 2;

/// Of the tiles handed on, `published` since the launch, those that run next: asks for what they read that no tile before them writes.
template <class Ops>
__device__ __noinline__ void prefetch_tiles(u32 published) {
  CudaPipelineMemory& memory = pipeline_memory();
  const u32 gated = __shfl_sync(kFullWarp, ptx::ld_relaxed_cta_shared(&memory.gated), 0);
  u32 at = ptx::ld_relaxed_cta_shared(&memory.prefetched);
  if (static_cast<i32>(at - gated) < 0) at = gated;
  for (; at != published && at - gated < kPrefetchedTiles; ++at) {
    const u32 place = at % CudaPipelineMemory::kRing;
    const CudaPipelineMemory::Entry& entry = memory.entries[place];
    const u32 flags = memory.records[place].flags & (wire::kRecordStreamed | wire::kRecordEarly);  // who begins early fetches them itself
    if (flags != wire::kRecordStreamed || memory.controls[place].kind != TileKind::body || memory.streams(place)) continue;
    prefetch_operands<Ops>(threadIdx.x % kWarpLanes, kWarpLanes, *entry.frame, *entry.op, entry.tile);
  }
  ptx::st_relaxed_cta_shared(&memory.prefetched, at);  // the same from all lanes
}

/// Tiles that have left the pipeline.
__device__ __forceinline__ u32 tiles_done() {
  const CudaPipelineMemory& memory = pipeline_memory();
  const u32 signalled = ptx::ld_acquire_cta_shared(&memory.signalled);  // [P8] pairs with [P7]
  const u32 posted = ptx::ld_acquire_cta_shared(&memory.posted);        // [P8] pairs with [P7]
  return static_cast<i32>(signalled - posted) < 0 ? signalled : posted;
}
/// Whether the worker leaves: then nothing more is let through.
__device__ __forceinline__ bool gate_closed() {
  const CudaPipelineMemory& memory = pipeline_memory();
  return ptx::ld_acquire_cta_shared(&memory.closing) != 0 || ptx::ld_relaxed_cta_shared(&memory.stop) != 0;  // [P10] pairs with [P9]
}

/// Waits until so many tiles have left that `opened` are no more than can be open at a time, or the worker leaves; how many have.
template <class Ops>
__device__ __noinline__ u32 await_done(u32 index, u32 opened, u32 published) {
  for (u32 spins = 0;; ++spins) {
    const u32 done = tiles_done();
    if (opened - done <= CudaPipelineMemory::kOpened || gate_closed()) return done;
    if (spins % kRefreshesPerClock == kRefreshesPerClock - 1) look_while_busy(index, opened - done);
    prefetch_tiles<Ops>(published);
    rest(spins);
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

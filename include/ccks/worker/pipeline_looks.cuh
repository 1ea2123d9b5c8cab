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

// A busy worker looks at the host's line once in 2^kLookShift ns, since that takes its fetching warp 1 us. Workers do so in turn, spread evenly over that time: the first that
// the host asks to leave tells the others (look_at_others), so of many one is asked at any moment, and a handoff waits for none.
inline constexpr u32 kLookShift = 16;

/// Looks at the host's line, at once or if this worker's turn has come; what it asks for is raised for all warps. By the
/// fetching warp; others see what comes of it. `seen`: a poll has looked just now.
__device__ __noinline__ inline void look_at_host(u32 index, bool at_once, Idle idle, bool seen) {
  CudaPipelineMemory& memory = pipeline_memory();
  if (threadIdx.x % kWarpLanes == 0) {
    CudaPipelineMemory::Looks& looks = memory.looks;
    const u64 now = ptx::globaltimer();
    if (idle == Idle::begins) looks.idle_since = now;
    const u32 turn = static_cast<u32>((now + looks.phase_ns) >> kLookShift);
    if (at_once || turn != looks.turn) {
      looks.turn = turn;
      const void* line = reinterpret_cast<const wire::HostLine*>(memory.params.host_lines) + index;
      const HostWords host = seen ? memory.shared.host : CudaPlatform::host_words(CudaAtoms::load_slot_relaxed(line));
      CudaOneLane lane;
      LeaveWatch<CudaOneLane> watch(lane, memory.params, index, looks.beat);
      const auto raise = [&](u32& word, u32 value) {
        ptx::st_relaxed_cta_shared(&word, value);
        ptx::st_relaxed_cta_shared(&memory.attention, 1);
      };
      u32 leave = ptx::ld_relaxed_cta_shared(&memory.leave);
      wire::ParkReason reason;
      if (leave == 0 && watch.should_leave(host, idle == Idle::no ? 0 : looks.idle_since, reason)) {
        leave = static_cast<u32>(reason) + 1;
        raise(memory.leave, leave);
      }
      if (leave != 0) {
        if (host.park == wire::kParkAbandon) raise(memory.abandon, 1);
        const bool alone = leave == static_cast<u32>(wire::ParkReason::stale_heartbeat) + 1;
        if (host.park == wire::kParkSuspend || alone) raise(memory.suspend, 1);
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

/// Until the bodies of strand `body`, which waits for tags, have ended, or, asked to for the reason that is returned, given up. By the gate.
__device__ __noinline__ inline WaitEnd::Code await_tagged(u32 body) {
  constexpr u32 kWarps = kCudaLanes / kWarpLanes, kSpinsPerLook = 64;
  CudaPipelineMemory& memory = pipeline_memory();
  WaitEnd::Code code = WaitEnd::ready;
  // Relaxed, all: lone words; who looks at what a body has stored does so behind its barrier.
  for (u32 spins = 0; static_cast<i32>(ptx::ld_relaxed_cta_shared(&memory.turns.bodies) - (body + 1) * kWarps) < 0; ++spins) {
    if (code != WaitEnd::ready && ptx::ld_relaxed_cta_shared(&memory.given_up) != 0) return code;
    if (code == WaitEnd::ready && spins % kSpinsPerLook == kSpinsPerLook - 1) {
      code = look_while_waiting(0, spins == kSpinsPerLook - 1);
      if (code != WaitEnd::ready) ptx::st_relaxed_cta_shared(&memory.hurry, 1);
    }
  }
  if (code != WaitEnd::ready) ptx::st_relaxed_cta_shared(&memory.hurry, 0);
  return WaitEnd::ready;
}

__device__ __forceinline__ OpView view_of_tile(const CudaPipelineMemory& memory, u32 place) {
  const CudaPipelineMemory::Entry& entry = memory.entries[place];
  const bool copied = memory.controls[place].block != CudaPipelineMemory::kNoBlock;
  return copied ? view_of_block(entry.op) : view_of_frame(*entry.frame, memory.records[place].op);
}

/// Whether a tile that has guards is under the one that failed last.
__device__ __forceinline__ bool is_ruled_out(const CudaPipelineMemory& memory, u32 place) {
  const CudaPipelineMemory::Failed& failed = memory.failed;
  if (failed.frame != memory.entries[place].frame || failed.epoch != memory.heads[memory.controls[place].head].task.epoch) return false;
  if (memory.records[place].guards == wire::GuardTime::behind_waits || (memory.records[place].flags & wire::kRecordCut) != 0) return false;
  const OpView view = view_of_tile(memory, place);
  if (failed.index >= view.op->guard_count) return false;
  const wire::GuardParams& guard = view.guards[failed.index];
  return guard.offset == failed.offset && guard.compare == failed.compare && guard.int_value == failed.value;
}

/// Passes over the tiles from `at` on, of those handed on, that the guard which failed last rules out: so many. A lane a tile. By the gate.
__device__ __noinline__ inline u32 pass_over(u32 at) {
  CudaPipelineMemory& memory = pipeline_memory();
  const u32 lane = threadIdx.x % kWarpLanes, place = (at + lane) % CudaPipelineMemory::kRing;
  CudaPipelineMemory::Control& control = memory.controls[place];
  const bool fetched = lane < ptx::ld_acquire_cta_shared(&memory.fetched) - at;  // [P2] pairs with [P1]
  const bool out = fetched && (control.flags & kTileGuarded) != 0 && is_ruled_out(memory, place);
  __syncwarp();
  const u32 tiles = static_cast<u32>(__ffs(static_cast<int>(~__ballot_sync(kFullWarp, out))));  // 0: all of them
  const u32 passed = tiles == 0 ? kWarpLanes : tiles - 1;
  if (lane < passed) {
    if (control.kind == TileKind::body) control.kind = TileKind::skip;
    if (memory.params.trace != 0) {
      memory.times[place].start_ns = ptx::globaltimer();
      memory.times[place].wait_ns = 0;
    }
  }
  __syncwarp();
  return passed;
}

/// How many tiles from `at` on, before `end`, have no body to run, the last of them with none of `flags`. A lane a tile.
__device__ __noinline__ inline u32 tiles_without_bodies(u32 at, u32 end, u32 flags) {
  const CudaPipelineMemory& memory = pipeline_memory();
  const u32 lane = threadIdx.x % kWarpLanes;
  const CudaPipelineMemory::Control& control = memory.controls[(at + lane) % CudaPipelineMemory::kRing];
  bool out = static_cast<i32>(end - at - lane) > 0;
  out = out && (control.kind == TileKind::skip || control.kind == TileKind::empty) && (control.flags & flags) == 0;
  out = out && !(kWorkerQueues && memory.heads[control.head].inbox.op == wire::kOpQueue);
  __syncwarp();
  const u32 tiles = static_cast<u32>(__ffs(static_cast<int>(~__ballot_sync(kFullWarp, out))));
  return tiles == 0 ? kWarpLanes : tiles - 1;
}

inline constexpr u32 kOthersLookNs = 5'000;  // so often at what others have been asked: it takes a third of a microsecond
inline constexpr u32 kRefreshesPerClock = 4;

__device__ __forceinline__ void start_looks(u32 index) {
  if (threadIdx.x % kWarpLanes == 0) {
    CudaPipelineMemory::Looks& looks = pipeline_memory().looks;
    const u64 now = ptx::globaltimer();
    looks.beat.seen_at = now;
    looks.others_at = now;
    looks.turn = 0;  // a first look is due
    looks.phase_ns = (index << kLookShift) / pipeline_memory().params.workers;
    pipeline_memory().shared.queue_takes = {};
  }
  __syncwarp();
}
/// Tells busy workers that this one has been asked to leave; lets it be its turn to look at the host's line where another has just told. By the fetching warp.
__device__ __noinline__ inline void look_at_others() {
  if (threadIdx.x % kWarpLanes == 0) {
    CudaPipelineMemory::Looks& looks = pipeline_memory().looks;
    const u64 now = ptx::globaltimer();
    if (ptx::ld_relaxed_cta_shared(&pipeline_memory().leave) == static_cast<u32>(wire::ParkReason::requested) + 1) {
      CudaPlatform::tell_asked(now);
    } else if (now - looks.others_at > kOthersLookNs) {
      looks.others_at = now;
      if (CudaPlatform::was_asked(now)) --looks.turn;
    }
  }
  __syncwarp();
}
__device__ __forceinline__ void look_while_busy(u32 index) {
  look_at_host(index, false, Idle::no, false);
  look_at_others();
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
    if (spins % kRefreshesPerClock == kRefreshesPerClock - 1) look_while_busy(index);
    prefetch_tiles<Ops>(published);
    rest(spins);
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

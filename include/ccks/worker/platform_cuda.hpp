// CudaPlatform: what the stages of a worker need of a thread block. Each stage has a warp of its own, whose lanes are its
// control lanes (pipeline_cuda.cuh); the fetching warp polls 32 inbox slots at a time. Compiles with nvcc and NVRTC;
// includes nothing of CUDA.
#pragma once

#include "ccks/worker/lanes_cuda.hpp"
#include "ccks/worker/platform.hpp"
#include "ccks/worker/ptx.hpp"

#if defined(__CUDACC__)

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kWarpLanes = 32;
inline constexpr u32 kFullWarp = 0xffffffffu;

/// Link accesses have system scope, events GPU scope: no event is ever touched by the host while workers are alive.
/// Tags as in wire/ring.hpp and wire/event.hpp.
struct CudaAtoms {
  __device__ static wire::SlotWords load_slot_acquire(const void* slot) { return ptx::ld_acquire_sys_b128(slot); }  // [R2]
  __device__ static wire::SlotWords load_slot_relaxed(const void* slot) { return ptx::ld_relaxed_sys_b128(slot); }
  __device__ static void store_slot_release(void* slot, const wire::SlotWords& w) { ptx::st_release_sys_b128(slot, w); }  // [R1]
  __device__ static void store_slot_release_device(void* slot, const wire::SlotWords& w) { ptx::st_release_gpu_to_sys_b128(slot, w); }  // [R5]
  __device__ static void store_slot_relaxed(void* slot, const wire::SlotWords& w) { ptx::st_relaxed_sys_b128(slot, w); }
  __device__ static u32 link_load_acquire(const u32* p) { return ptx::ld_acquire_sys(p); }  // [R4]
  __device__ static u32 link_load_relaxed(const u32* p) { return ptx::ld_relaxed_sys(p); }
  __device__ static u64 link_load_relaxed(const u64* p) { return ptx::ld_relaxed_sys(p); }
  __device__ static void link_store_release(u32* p, u32 v) { ptx::st_release_sys(p, v); }  // [R3], [W1]
  __device__ static void link_store_relaxed(u32* p, u32 v) { ptx::st_relaxed_sys(p, v); }
  __device__ static void link_store_relaxed(u64* p, u64 v) { ptx::st_relaxed_sys(p, v); }
  __device__ static u32 event_load_acquire(const u32* p) { return ptx::ld_acquire_gpu(p); }  // [E2]
  __device__ static u32 event_load_relaxed(const u32* p) { return ptx::ld_relaxed_gpu(p); }
  __device__ static void event_add_release(u32* p, u32 v) { ptx::red_release_gpu_add(p, v); }  // [E1]
  __device__ static void event_add_relaxed(u32* p, u32 v) { ptx::red_relaxed_gpu_add(p, v); }
  __device__ static u32 queue_add_relaxed(u32* p, u32 v) { return ptx::atom_relaxed_gpu_add(p, v); }
  __device__ static u32 queue_add_acq_rel(u32* p, u32 v) { return ptx::atom_acq_rel_gpu_add(p, v); }  // [QE1], [QE2]
  __device__ static u64 queue_load_relaxed(const u64* p) { return ptx::ld_relaxed_gpu(p); }
  __device__ static u64 queue_load_acquire(const u64* p) { return ptx::ld_acquire_gpu(p); }  // [QE4]
  __device__ static void queue_store_release(u64* p, u64 v) { ptx::st_release_gpu(p, v); }  // [QE3]
  __device__ static void queue_store_relaxed(u64* p, u64 v) { ptx::st_relaxed_gpu(p, v); }
};

class CudaPlatform {
 public:
  using Lanes = CudaLanes;
  using Atoms = CudaAtoms;
  static constexpr u32 kPollSlots = kWarpLanes;
  static constexpr bool kPipelined = true;
  static constexpr bool kStagesOps = true;

  /// `shared` belongs to the warp that fetches.
  __device__ explicit CudaPlatform(WorkerShared<kPollSlots>& shared) : shared_(shared) {}

  __device__ Atoms atoms() const { return {}; }
  __device__ WorkerShared<kPollSlots>& shared() { return shared_; }
  __device__ u64 now_ns() const { return uniform(ptx::globaltimer()); }

  __device__ bool leader() const { return control_lane() == 0; }
  __device__ static constexpr bool stores() { return true; }
  __device__ u32 control_lane() const { return threadIdx.x % kWarpLanes; }
  __device__ static constexpr u32 control_lanes() { return kWarpLanes; }
  __device__ u32 uniform(u32 v) const { return __shfl_sync(kFullWarp, v, 0); }
  __device__ u64 uniform(u64 v) const { return __shfl_sync(kFullWarp, v, 0); }
  __device__ bool any_lane(bool here) const { return __any_sync(kFullWarp, here) != 0; }
  __device__ u32 first_lane(bool here) const {
    const u32 lanes = __ballot_sync(kFullWarp, here);
    return lanes == 0 ? kWarpLanes : static_cast<u32>(__ffs(static_cast<int>(lanes)) - 1);
  }
  __device__ u32 from_lane(u32 value, u32 lane) const { return __shfl_sync(kFullWarp, value, static_cast<int>(lane)); }
  __device__ u32 count_lanes(bool here, u32& rank) const {
    const u32 lanes = __ballot_sync(kFullWarp, here);
    rank = static_cast<u32>(__popc(static_cast<int>(lanes & ((1u << control_lane()) - 1))));
    return static_cast<u32>(__popc(static_cast<int>(lanes)));
  }
  __device__ u64 from_lane(u64 value, u32 lane) const { return __shfl_sync(kFullWarp, value, static_cast<int>(lane)); }
  __device__ void converge() const { __syncwarp(); }

  /// Each lane reads one slot: 512 bytes in one go, as long as there is much to take; a worker that waits reads four, one
  /// completion on PCIe: 132 idle workers that read 512 bytes a microsecond would ask for all that the link can carry. The
  /// tasks that count are the ones before the first gap. In a ring of fewer than 32 slots a lane that has gone round finds an
  /// older sequence number, so it ends the count.
  ///
  /// `look`: the last lane reads the first words of `line`, into shared().host, in the same time: a look of its own would keep a
  /// task waiting for as long as a poll. Each of its words is a lone one, taken whole. A flag, not a line that may be none: for a null
  /// pointer ptxas 13.0 makes code in which the last lane reads address 0 (gpu/README.md).
  __device__ u32 poll(const wire::Task* inbox, u32 mask, u32 position, const wire::HostLine* line = nullptr, bool look = false) {
    const u32 mine = position + control_lane();
    const bool looks = look && control_lane() == kLookLane;
    const bool reads = control_lane() < poll_lanes_ && !looks;
    wire::SlotWords words;
    if (reads || looks) words = Atoms::load_slot_acquire(looks ? static_cast<const void*>(line) : &inbox[mine & mask]);  // [R2]
    if (looks) shared_.host = host_words(words);
    const u32 count = first_lane(!reads || wire::slot_seq(words) != wire::ring_seq(mine));
    poll_lanes_ = count == poll_lanes_ ? kWarpLanes : count == 0 ? kIdleLanes : poll_lanes_;
    __syncwarp();  // every lane is done with what was staged before
    if (control_lane() < count) shared_.staged[control_lane()] = wire::from_words<wire::Task>(words);
    __syncwarp();
    return count;
  }

  /// What the first 16 bytes of a HostLine say.
  __device__ static HostWords host_words(const wire::SlotWords& words) { return {static_cast<u32>(words.low >> 32), words.high}; }

  /// Another block signals through L2 in 0.6 us, so a wait that lasts longer than a few hops gives the memory system air.
  __device__ void relax(u32 spins) const {
    if (spins >= kHotSpins) __nanosleep(kNapNs);
  }
  /// One poll of host memory takes about 1 us, and those of all workers at once wait for each other: who has had nothing for half a
  /// millisecond looks every third microsecond, and the others' looks come back sooner. But not where another worker has just found
  /// something after such a time: its run may need this one next.
  __device__ bool idle(u32 misses) const {
    for (u32 naps = 0; naps < kIdleNaps && is_resting(misses) && !is_stirred(); ++naps) __nanosleep(kIdleNapNs);
    return false;
  }
  __device__ static bool is_resting(u32 misses) { return misses >= kHotPolls; }
  /// By a worker that has found a task and was resting: the others look as often as they can for a while.
  __device__ void stir() const { ptx::st_relaxed_gpu(stirred_at(), ptx::globaltimer()); }
  /// By a worker that the host has asked to leave, and whether one has been a moment ago: a busy worker looks at its own line of host memory rarely, at a word of the L2 often.
  __device__ static void tell_asked(u64 now) { ptx::st_relaxed_gpu(asked_at(), now); }
  __device__ static bool was_asked(u64 now) { return now - ptx::ld_relaxed_gpu(asked_at()) < kAskedNs; }
  __device__ static void posted() {}

  /// By the leader, for all control lanes. Not inlined: to ptxas a branch for one lane parts the warp.
  __device__ __noinline__ static void put_slot(void* slot, u64 low, u64 high, Publishes what) {
    if (threadIdx.x % kWarpLanes != 0) return;
    switch (what) {
      case Publishes::itself: CudaAtoms::store_slot_relaxed(slot, {low, high}); break;
      case Publishes::device_memory: CudaAtoms::store_slot_release_device(slot, {low, high}); break;  // [R5]
      case Publishes::all: CudaAtoms::store_slot_release(slot, {low, high}); break;                   // [R1]
    }
  }

 private:
  /// When a worker was last stirred, by the GPU's clock. Relaxed on both sides: it only says how often to look, and what is found there has an
  /// order of its own.
  __device__ static u64* stirred_at() {
    static u64 at;
    return &at;
  }
  /// When a worker last found that the host wants it to leave. Relaxed on both sides, for the same reason.
  __device__ static u64* asked_at() {
    static u64 at;
    return &at;
  }
  __device__ static bool is_stirred() { return ptx::globaltimer() - ptx::ld_relaxed_gpu(stirred_at()) < kStirredNs; }

  static constexpr u32 kHotSpins = 16;
  static constexpr u32 kNapNs = 50;
  static constexpr u32 kHotPolls = 512;
  static constexpr u32 kIdleNaps = 4;
  static constexpr u32 kIdleNapNs = 500;
  static constexpr u64 kStirredNs = 500'000;
  static constexpr u64 kAskedNs = 50'000;  // the host writes a line a worker; workers come back later than that
  static constexpr u32 kIdleLanes = 4;
  static constexpr u32 kLookLane = kWarpLanes - 1;

  WorkerShared<kPollSlots>& shared_;
  u32 poll_lanes_ = kIdleLanes;
};

#if defined(CCKS_WORKER_QUEUES)
inline constexpr bool kWorkerQueues = CCKS_WORKER_QUEUES != 0;
#else
inline constexpr bool kWorkerQueues = true;
#endif
// 0: no op of the program has guards or tiles that a report counts, so the host sends no drafts either, and the worker is made without what finds
// out that a body does not run.
#if defined(CCKS_WORKER_DECIDES)
inline constexpr bool kWorkerDecides = CCKS_WORKER_DECIDES != 0;
#else
inline constexpr bool kWorkerDecides = true;
#endif
// 1: bodies of products of few rows find tags, so strands may have nothing else to wait for (WorkerImage::cuda_tags).
#if defined(CCKS_WORKER_TAGS)
inline constexpr bool kWorkerTags = CCKS_WORKER_TAGS != 0;
#else
inline constexpr bool kWorkerTags = false;
#endif
inline constexpr bool kWorkerRowTags = CCKS_WORKER_ROW_TAGS != 0;
inline constexpr u32 kWorkerRelayRows = CCKS_WORKER_RELAY_ROWS;
inline constexpr bool kWorkerRelayExperts = CCKS_WORKER_RELAY_EXPERTS != 0;

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#endif  // __CUDACC__

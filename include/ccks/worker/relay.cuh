// Relays (wire/relay.hpp): the tiles of a list that a worker runs in one go, from row to row. To the pipeline a relay is one tile, whose body this is.
//
// Why. A decode step is a chain of some eighty products whose weights stream. Through the stages of a pipeline each costs a hop of a microsecond or two and runs code that the
// weights have driven out of all caches: 17 cycles an instruction where 4 would do. Here all that lies between two products of a worker is a few hundred instructions, the
// same for every product of the program, while the other warps of the block sleep but for the one that has weights copied. On an H100 (PCIe Gen5 x16) a step of a Llama of 1B
// takes 848 us so and 1,118 through the stages, where its weights alone take 816 to 830, on an H200 632 to 641 where they take 546 (README.md, 2026-11-26 to 28).
//
// A step. Each warp waits for those slices of the row that it multiplies and keeps them in scratch, times the norm's weights where there is a norm; nobody else reads
// them. Stage by stage of the ring it multiplies 4 columns, or 8 of half the depth, by its slices on matrix units. Sums meet in scratch behind a barrier, those of a norm's squares with them; as many lanes as
// there are results finish them and leave words. Of several rows (kWorkerRelayRows, all products of a relay alike) each stage is multiplied by all; long ones are in scratch a piece at a time, and weights
// come in that order (RelayStep::by_pieces). Attention is of one of them, has two barriers, and takes keys and values of earlier positions where they lie.
//
// From run to run. Where a run begins with the rows of tokens that the run in front picks (wire::kRelayLookUpDim), its relay takes those tokens by words, too, and with them all that the run in front
// has stored: it waits for no event of that run. Whoever ranks says behind the first barrier of that step that all in front of it is stored [RL11]; whoever picks takes that from all [RL12].
//
// Roles         words       stored whole with the run's tag by who makes them, loaded by who needs them, relaxed: a word publishes nothing but itself
//   active      1: a relay is under way and its barriers lie in scratch: body [RL1] -> post [RL2]; 0 again: nothing of it is under way: post [RL3] -> body [RL4]
//   done        the body wants no more stages: body [RL5] -> post [RL6]
//   multiplies  a product is at its stages: body -> post, relaxed, a hint that says how many may be under way
//   stored      a word of each product that ranks, which says nothing but that what its list stores for others is there: product [RL11] -> pick [RL12]
//   picked      an index that a pick has found, and with it what all lists have stored: pick [RL13] -> look_up of the next run [RL14]
//   routed      1: a route has chosen experts, which lie in scratch: route [RL15] -> post [RL16], who asks for no weights of theirs before
//   full, empty a stage of the ring: as [P17] to [P20], of the relay's own barriers; step_full, step_empty: the same of steps in scratch
// Invariants    Steps of a relay are written by the host before the run's first task. What they name beside words is there before the first of them runs (its record waits for it), or
//               is weights, which may be copied before: a relay begins as soon as the worker has nothing else to do, and meets the gate in front of its first step.
//               Whoever takes a row of words is behind all of its makers' steps in every list, and who has part 0 of a context behind all other parts, so no worker waits for one that
//               waits for it.
//               Run again from the start, after its worker has left in the middle, a relay makes the same words of the same words.
//
// Leaving. A relay whose gate says that the worker leaves (CudaPipelineMemory::stays) runs no step. Who waits for words looks at `hurry`. Whoever gives up goes on with whatever it has until the
// step's barrier, behind which all see it, store nothing and leave; so stages are taken as they were asked for.
#pragma once

#include "ccks/worker/relay_attention.cuh"
#include "ccks/worker/relay_experts.cuh"
#include "ccks/worker/relay_look_up.cuh"
#include "ccks/worker/relay_pick.cuh"
#include "ccks/worker/relay_route.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// The record of a step that has ended; the next begins.
inline __device__ __noinline__ void trace_step(CudaPipelineMemory& memory, const wire::RelayStep& step) {
  if (threadIdx.x == 0) {
    RelayShared& shared = relay_shared();
    const u64 now = ptx::globaltimer();
    wire::Task task = memory.relay.task;
    task.tile = wire::Task::pack_tiles(step.tile, 1);
    task.op = static_cast<u16>(step.op);
    const u32 number = ptx::atom_relaxed_cta_shared_add(&memory.traced, 1);  // relaxed: that the record is there says the relay's own
    put_trace(CudaAtoms{}, memory.params, blockIdx.x, number, task, {shared.begun_ns, shared.ready_ns - shared.begun_ns, now - shared.begun_ns});
    shared.begun_ns = shared.ready_ns = now;
  }
  __syncwarp();
}

class RelayBody : RelayExpertProducts {
 public:
  __device__ __forceinline__ RelayBody(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayExpertProducts(memory, frame, tag) {}

  /// All steps, or those up to where the worker is to leave.
  __device__ __forceinline__ void run(u32 count) {
    CCKS_NO_UNROLL
    for (u32 i = 0; i < count; ++i) {
      while (!ptx::mbarrier_ended_acquire(&shared_.step_full[i % kRelaySteps], i / kRelaySteps % 2)) {  // [RL8] pairs with [RL7]
      }
      const wire::RelayStep& step = shared_.steps[i % kRelaySteps];
      if (!run(step)) return;
      __syncwarp();
      if (memory_.params.trace != 0) trace_step(memory_, step);
      if (lane_ == 0) ptx::mbarrier_arrive_release(&shared_.step_empty[i % kRelaySteps]);  // [RL9] pairs with [RL10]
    }
  }

 private:
  __device__ __forceinline__ bool run(const wire::RelayStep& step) {
    const auto kind = static_cast<wire::RelayKind>(step.kind);
    if constexpr (kWorkerRelayExperts) {
      if (step.experts == static_cast<u8>(wire::RelayExperts::share)) return product_of_share(step);
      if (step.experts == static_cast<u8>(wire::RelayExperts::all)) return sum_of_experts(step);
    }
    if (kind == wire::RelayKind::product) return product(step);
    if constexpr (kWorkerRelayExperts) {
      if (kind == wire::RelayKind::route) return route(memory_, frame_, tag_, step);
    }
    if (kind == wire::RelayKind::pick) return pick(memory_, frame_, tag_, step);
    return step.run == 64 ? attend<64>(memory_, frame_, tag_, step) : attend<128>(memory_, frame_, tag_, step);
  }
};

/// The body of the relay at `place` of the pipeline, the `body`-th, by all body warps. False: the worker leaves before its end. A fault, op_fault: there is no room for as many stages as a step takes at once.
/// `early`: what the relay waits for need not be there; once it is, bodies meet the gate, and meanwhile weights are on their way. Not inlined: it has the block's registers to itself.
inline __device__ __noinline__ bool run_relay(u32 place, u32 body, u32 scratch_bytes, bool early) {
  CudaPipelineMemory& memory = pipeline_memory();
  const CudaPipelineMemory::Entry& entry = memory.entries[place];
  const u32 steps = static_cast<u32>(entry.op->dims[0]);
  ptx::fence_proxy_async_shared();  // copies will write over what bodies before have stored
  if (threadIdx.x == 0) begin_relay(memory, relay_shared(), *entry.frame, *entry.op, scratch_bytes);
  if (threadIdx.x == 0 && memory.params.trace != 0) {
    memory.relay.task = memory.heads[memory.controls[place].head].task;
    relay_shared().begun_ns = relay_shared().ready_ns = ptx::globaltimer();
  }
  ptx::barrier_sync(CudaLanes::kBarrier, kCudaLanes);
  if (memory.relay.stages < kLeastRelayStages) {
    if (early) meet_gate(body);
    memory.body_faults[place] = memory.turns.ends[body % 2] = static_cast<u32>(wire::FaultCode::op_fault);  // the same from all lanes
    return true;
  }
  if (threadIdx.x == 0) ptx::st_release_cta_shared(&memory.relay.active, 1);  // [RL1] pairs with [RL2]
  if (early) meet_gate(body);
  const u32 gather = static_cast<u32>(entry.op->dims[wire::kRelayLookUpDim]);
  // Relaxed: a lone word, behind a barrier.
  if (ptx::ld_relaxed_cta_shared(&memory.stays[body % 2]) == 0 && (gather == 0 || look_up(memory, *entry.frame, gather, place, body))) RelayBody(memory, *entry.frame, entry.tag).run(steps);
  ptx::barrier_sync(CudaLanes::kBarrier, kCudaLanes);
  if (threadIdx.x == 0) {
    ptx::st_release_cta_shared(&memory.relay.done, 1);  // [RL5] pairs with [RL6]
    while (ptx::ld_acquire_cta_shared(&memory.relay.active) != 0) {  // [RL4] pairs with [RL3]
    }
    if (memory.params.trace != 0) memory.times[place].end_ns = ptx::globaltimer();
  }
  ptx::barrier_sync(CudaLanes::kBarrier, kCudaLanes);
  // Relaxed, both: lone words, behind a barrier.
  return (ptx::ld_relaxed_cta_shared(&memory.stays[body % 2]) | ptx::ld_relaxed_cta_shared(&memory.given_up)) == 0;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Which rows of a table a relay (relay.cuh) begins with: those of the tokens that the run in front has picked, in a decode step.
#pragma once

#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayLookUp : RelayWords {
 public:
  __device__ __forceinline__ RelayLookUp(CudaPipelineMemory& memory, const wire::RunFrame& frame, const wire::OpParams& gather)
      : RelayWords(memory, frame, static_cast<u32>(gather.dims[wire::kLookUpTagDim])), gather_(gather) {}

  /// Behind it all that the run in front has stored can be read. False: the worker leaves. An index outside the table is row 0, and a fault.
  __device__ __forceinline__ bool run(u32 place, u32 body) const {
    if (threadIdx.x < kWorkerRelayRows) {
      const auto* operands = reinterpret_cast<const wire::OperandParams*>(&gather_ + 1);
      const wire::OperandParams &table = operands[0], &index = operands[1];
      i32 row = index.tags == 0 ? reinterpret_cast<const i32*>(index.offset)[threadIdx.x] : await_index(index.offset + index.tags + threadIdx.x * sizeof(u64));
      if (row < 0 || row >= table.dim[2]) {
        row = 0;
        if (!has_given_up()) memory_.body_faults[place] = memory_.turns.ends[body % 2] = static_cast<u32>(wire::FaultCode::bad_index);
      }
      shared_.looked_up[threadIdx.x] = static_cast<u64>(row) * static_cast<u64>(table.stride[2]) * 2;
    }
    sync();
    return !has_given_up();
  }

 private:
  __device__ __forceinline__ i32 await_index(u64 at) const {
    u64 word;
    for (u32 spins = 0; is_late(word = ptx::ld_acquire_gpu(reinterpret_cast<const u64*>(at))) && !is_over(spins); ++spins) {  // [RL14] pairs with [RL13]
    }
    return static_cast<i32>(static_cast<u32>(word));
  }

  const wire::OpParams& gather_;
};

/// Not inlined: once a relay.
inline __device__ __noinline__ bool look_up(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 gather, u32 place, u32 body) {
  return RelayLookUp(memory, frame, *reinterpret_cast<const wire::OpParams*>(reinterpret_cast<const u8*>(&frame) + gather)).run(place, body);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// cuda_op_main: the body of the kernel `ccks_op`: one block runs one tile of one op. The same ops as `ccks_worker`, without
// rings, events or residency: for streams and graphs, for profilers, and for sanitizers.
#pragma once

#include "ccks/worker/op_entry.hpp"
#include "ccks/worker/platform_cuda.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Threads of a block of `ccks_op`: as many as a worker has, so that bodies find the lanes they were written for.
inline constexpr u32 kCudaOpThreads = kCudaLanes;

/// With overlap, the launch in front may still be running: until await_launches() only what no op of the run writes is
/// touched (the frame, and the operands that are streamed). Every thread waits, always: the launch behind this one relies
/// on it for all launches before.
template <class Ops>
__device__ void cuda_op_main(const wire::OpLaunch& launch) {
  CudaLanes lanes(dynamic_shared(), ptx::dynamic_shared_bytes());
  const u32 tile = launch.first_tile + blockIdx.x;
  if ((launch.flags & wire::kOpLaunchOverlapped) != 0) {
    ptx::allow_launches();
    if constexpr (requires(const wire::RunFrame& f, const wire::OpParams& o) { Ops::prefetch(0u, 1u, f, o, 0u); }) {
      const wire::RunFrame& frame = *reinterpret_cast<const wire::RunFrame*>(launch.frame);
      Ops::prefetch(threadIdx.x, blockDim.x, frame, frame_part<wire::OpParams>(frame, frame.ops)[launch.op], tile);
    }
    ptx::await_launches();
  }
  run_op_tile<Ops>(lanes, CudaAtoms{}, launch, tile);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

/// Defines the kernel that Device::make_op_sequence looks for. No least number of blocks an SM: the compiler then keeps
/// registers low enough for two, and a launch hides one block's memory behind the other's.
#define CCKS_CUDA_OP(Ops)                                                                          \
  extern "C" __global__ void __launch_bounds__(ccks::worker::kCudaOpThreads)                      \
      ccks_op(const __grid_constant__ ccks::wire::OpLaunch launch) {                               \
    ccks::worker::cuda_op_main<Ops>(launch);                                                        \
  }

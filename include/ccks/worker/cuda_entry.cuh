// cuda_worker_main: the body of the kernel `ccks_worker`. Generated workers instantiate it with their own Ops:
//
//   CCKS_CUDA_WORKER(MyOps)
//
// which also defines `ccks_op` (cuda_op_entry.cuh): the same ops, one launch each.
// One block is one worker; the launch is cooperative, so that all of them are resident. Block size is a multiple of 32.
#pragma once

#include "ccks/worker/cuda_op_entry.cuh"
#include "ccks/worker/pipeline_cuda.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Ops>
__device__ void cuda_worker_main(const wire::WorkerParams& params) {
  CudaPipeline<Ops> pipeline(pipeline_memory(), params, blockIdx.x);
  pipeline.run(dynamic_shared() + kSharedInFront, ptx::dynamic_shared_bytes() - kSharedInFront);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

/// Defines the kernels that CudaDevice::launch and make_op_sequence look for.
#define CCKS_CUDA_WORKER(Ops)                                                                       \
  extern "C" __global__ void __launch_bounds__(ccks::worker::kPipelineThreads, 1)                      \
      ccks_worker(const __grid_constant__ ccks::wire::WorkerParams params) {                       \
    ccks::worker::cuda_worker_main<Ops>(params);                                                    \
  }                                                                                                \
  CCKS_CUDA_OP(Ops)

// Workers in two images: the loop, and the op bodies, which it calls by address. A handoff then loads bodies alone, and the loop, which is the same for every program and as large as
// many bodies, stays where it is.
//
//   the loop      CCKS_CUDA_APART_LOOP()        kernel `ccks_worker`
//   the bodies    CCKS_CUDA_APART_BODIES(Ops)   the word `ccks_bodies_entry`, which holds the function's address, and the kernel `ccks_bodies`, which is never launched: what
//                                               it needs is what the bodies need of whoever calls them, and the device compares (CudaDevice::load_worker)
//
// Both are compiled with CCKS_WORKER_APART as 1, -rdc=true (only then is an address the same in every module), the same CCKS_WORKER_STREAMS and CCKS_WORKER_REGISTERS, and linked
// apart. Neither has static shared memory (lanes_cuda.hpp) or constants of its own but parameters, since a launch binds those of the kernel's image alone. There is no kernel
// `ccks_op`: for streams and graphs a worker is one image.
#pragma once

#include "ccks/worker/cuda_entry.cuh"
#include "ccks/worker/grouped_ops.hpp"

#if !CCKS_WORKER_APART
#error "loop and bodies apart are compiled with CCKS_WORKER_APART as 1"
#endif
#if !defined(CCKS_WORKER_REGISTERS)
#error "CCKS_WORKER_REGISTERS: how many registers loop and bodies may use, as the compiler is told"
#endif

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Runs body `body` on a tile: a FaultCode. By the usual convention: the compiler of the caller knows of no other.
using ApartBodies = u32 (*)(u32 body, void* lanes, const void* frame, const void* op, u32 tile);

struct ApartOps {
  static constexpr bool kAwaitsInputs = true;  // bodies of ops that are kOpEarly do
  static __device__ __forceinline__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile, u32 body) {
    return static_cast<FaultCode>(reinterpret_cast<ApartBodies>(apart_block().bodies)(body, &lanes, &frame, &op, tile));
  }
  static __device__ __forceinline__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) { return run(lanes, frame, op, tile, op.body); }
  static __device__ __noinline__ void prefetch(u32 lane, u32 lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    GenericOps::prefetch(lane, lanes, frame, op, tile);
  }
};

__device__ __forceinline__ void apart_worker_main(const wire::WorkerParams& params) {
  if (threadIdx.x == 0) apart_block().bodies = *reinterpret_cast<const u64*>(params.bodies);
  cuda_worker_main<ApartOps>(params);  // which meets before the first body
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

/// A worker calls by address, so the compiler gives it all registers that bodies may use.
#define CCKS_CUDA_APART_LOOP()                                                                      \
  extern "C" __global__ void __launch_bounds__(ccks::worker::kPipelineThreads, 1)                      \
      ccks_worker(const __grid_constant__ ccks::wire::WorkerParams params) {                       \
    ccks::worker::apart_worker_main(params);                                                        \
  }

/// Not inlined into the kernel that is never launched: a handoff would load the bodies twice.
#define CCKS_CUDA_APART_BODIES(Ops)                                                                 \
  extern "C" __device__ __noinline__ ccks::wire::u32 ccks_apart_body(ccks::wire::u32 body, void* lanes, const void* frame, const void* op, ccks::wire::u32 tile) { \
    return ccks::worker::run_known_body<Ops>(*static_cast<ccks::worker::CudaLanes*>(lanes), *static_cast<const ccks::wire::RunFrame*>(frame),        \
                                             *static_cast<const ccks::wire::OpParams*>(op), tile, body);                                            \
  }                                                                                                 \
  CCKS_CUDA_APART_ENTRY()

/// What the device looks for, where `ccks_apart_body` is defined elsewhere.
#define CCKS_CUDA_APART_ENTRY()                                                                     \
  extern "C" __device__ ccks::worker::ApartBodies ccks_bodies_entry = &ccks_apart_body;              \
  extern "C" __global__ void __launch_bounds__(ccks::worker::kPipelineThreads, 1)                      \
      ccks_bodies(ccks::wire::u32 body, void* lanes, const void* frame, const void* op, ccks::wire::u32* result) {                                   \
    *result = ccks_apart_body(body, lanes, frame, op, 0);                                           \
  }

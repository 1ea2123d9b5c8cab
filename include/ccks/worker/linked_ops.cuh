// LinkedOps: op bodies that are compiled apart from the worker loop and linked to it. What JIT-compiled workers run: the loop
// is the same for every program, and a body for every program with such an op, so each is compiled once, side by side.
//
//   one unit          CCKS_CUDA_WORKER(ccks::worker::LinkedOps)     the loop
//   one unit          CCKS_CUDA_LINKED_PREFETCH()                   the same for all bodies, as large as many
//   one for each body CCKS_CUDA_LINKED_BODY(name, TypedOp<...>)     extern "C" function `name`
//   one unit          ccks_linked_body(...)                         the switch from body numbers to names
//
// Bodies obey the register limit of the kernel they are linked to: CCKS_WORKER_REGISTERS, which the JIT defines and gives to
// the compiler, since the linker refuses any that does not.
#pragma once

#include "ccks/worker/platform_cuda.hpp"
#include "ccks/worker/shaped_ops.hpp"

/// Runs body `body` on a tile: a FaultCode. `lanes` is a CudaLanes, `frame` a RunFrame, `op` an OpParams.
extern "C" __device__ ccks::wire::u32 ccks_linked_body(ccks::wire::u32 body, void* lanes, const void* frame, const void* op,
                                                       ccks::wire::u32 tile);
/// GenericOps::prefetch.
extern "C" __device__ void ccks_linked_prefetch(ccks::wire::u32 lane, ccks::wire::u32 lanes, const void* frame, const void* op,
                                                ccks::wire::u32 tile);

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A body as the function that is linked: without a call of its own where the op allows.
template <class Op>
__device__ FaultCode run_linked(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
  if constexpr (requires { Op::run_inline(lanes, frame, op, tile); })
    return Op::run_inline(lanes, frame, op, tile);
  else
    return Op::run(lanes, frame, op, tile);
}

struct LinkedOps {
  static constexpr bool kAwaitsInputs = true;  // bodies of ops that are kOpEarly do
  static __device__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile, u32 body) {
    return static_cast<FaultCode>(ccks_linked_body(body, &lanes, &frame, &op, tile));
  }
  static __device__ FaultCode run(CudaLanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run(lanes, frame, op, tile, op.body);
  }
  static __device__ void prefetch(u32 lane, u32 lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    ccks_linked_prefetch(lane, lanes, &frame, &op, tile);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#define CCKS_CUDA_LINKED_PREFETCH()                                                                              \
  extern "C" __device__ void ccks_linked_prefetch(ccks::wire::u32 lane, ccks::wire::u32 lanes, const void* frame,    \
                                                  const void* op, ccks::wire::u32 tile) {                            \
    ccks::worker::GenericOps::prefetch(lane, lanes, *static_cast<const ccks::wire::RunFrame*>(frame),            \
                                       *static_cast<const ccks::wire::OpParams*>(op), tile);                     \
  }

#define CCKS_CUDA_LINKED_BODY(name, Op)                                                                          \
  extern "C" __device__ ccks::wire::u32 name(void* lanes, const void* frame, const void* op, ccks::wire::u32 tile) { \
    return static_cast<ccks::wire::u32>(ccks::worker::run_linked<Op>(*static_cast<ccks::worker::CudaLanes*>(lanes), \
                                                *static_cast<const ccks::wire::RunFrame*>(frame),                \
                                                *static_cast<const ccks::wire::OpParams*>(op), tile));           \
  }

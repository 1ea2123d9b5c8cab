// A worker whose ops do nothing, whatever the frame says: what is left is the cost of dispatch, waits and signals.
#define CCKS_WORKER_STREAMS 0  // as the JIT makes workers of programs in which nothing streams
#define CCKS_WORKER_DECIDES 0  // and nothing is decided
#include "ccks/worker/cuda_entry.cuh"

namespace {

struct EmptyOps {
  template <class Lanes>
  static __device__ void run(Lanes&, const ccks::wire::RunFrame&, const ccks::wire::OpParams&, ccks::wire::u32) {}
};

}  // namespace

CCKS_CUDA_WORKER(EmptyOps)

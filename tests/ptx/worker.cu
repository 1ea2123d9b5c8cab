// The whole worker around an op that hardly does anything: what it compiles to is the pipeline. CCKS_WEAKEN puts something in
// that check.py must refuse.
#include "ccks/worker/cuda_entry.cuh"

namespace {

using ccks::wire::u32;

struct OneWord {
#if CCKS_WORKER_ROW_TAGS
  static constexpr bool kAwaitsInputs = true;  // with all that becomes of bodies that begin early
#endif
  template <class Lanes>
  static __device__ void run(Lanes&, const ccks::wire::RunFrame& frame, const ccks::wire::OpParams&, u32 tile) {
    u32* out = reinterpret_cast<u32*>(frame.arena);
#if defined(CCKS_WEAKEN_FENCE)
    __threadfence();
#elif defined(CCKS_WEAKEN_SYSTEM_ADD)
    atomicAdd_system(out, tile);
#elif defined(CCKS_WEAKEN_LOCAL_MEMORY)
    u32 words[64];
    for (u32 i = 0; i < 64; ++i) words[i] = out[i];
    tile += words[out[tile] % 64];
#endif
    out[tile] = tile;
  }
};

}  // namespace

CCKS_CUDA_WORKER(OneWord)

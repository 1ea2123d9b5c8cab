// Workers on a GPU for plans made by hand (engine_graph.hpp).
#include "ccks/worker/cuda_entry.cuh"
#include "tests/support/graph_ops.hpp"

namespace {

struct GpuTime {
  static __device__ ccks::wire::u64 begin(float us) { return us > 0 ? ccks::worker::ptx::globaltimer() : 0; }
  static __device__ void end(ccks::wire::u64 begin, float us) {
    const auto ns = static_cast<ccks::wire::u64>(us * 1000);
    while (us > 0 && ccks::worker::ptx::globaltimer() - begin < ns) {
    }
  }
};

}  // namespace

CCKS_CUDA_WORKER(ccks::test::GraphOps<GpuTime>)

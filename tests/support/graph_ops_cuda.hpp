// How ops of plans made by hand (graph_ops.hpp) pass their time on a GPU.
#pragma once

#include "ccks/worker/ptx.hpp"
#include "tests/support/graph_ops.hpp"

namespace ccks::test {

struct GpuTime {
  static __device__ wire::u64 begin(float us) { return us > 0 ? worker::ptx::globaltimer() : 0; }
  static __device__ void end(wire::u64 begin, float us) {
    const auto ns = static_cast<wire::u64>(us * 1000);
    while (us > 0 && worker::ptx::globaltimer() - begin < ns) {
    }
  }
};

}  // namespace ccks::test

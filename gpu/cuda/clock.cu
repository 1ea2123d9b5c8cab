// ccks_clock answers `rounds` questions of the host, each with the GPU's clock: the host keeps the quickest answer.
//
// Memory ordering
//   question  written by the host [K1], read here [K2]; [K2] acquire only pairs with [K1] release, it publishes nothing
//   answer    the clock relaxed, then its round, released here [K3], acquired by the host [K4]
#include "ccks/worker/ptx.hpp"

namespace ptx = ccks::worker::ptx;

/// `box`: [0] round asked for, [1] round answered, [2..3] clock. Gives up when the host is silent for a second.
extern "C" __global__ void ccks_clock(ccks::wire::u32* box, ccks::wire::u32 rounds) {
  for (ccks::wire::u32 round = 1; round <= rounds; ++round) {
    const ccks::wire::u64 since = ptx::globaltimer();
    while (ptx::ld_acquire_sys(&box[0]) != round) {  // [K2] pairs with [K1]
      if (ptx::globaltimer() - since > 1'000'000'000ull) return;
    }
    ptx::st_relaxed_sys(reinterpret_cast<ccks::wire::u64*>(box + 2), ptx::globaltimer());
    ptx::st_release_sys(&box[1], round);  // [K3] pairs with [K4]
  }
}

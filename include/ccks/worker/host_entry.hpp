// host_worker_main: the body of a HostWorkerEntry. Generated workers instantiate it with their own Ops.
#pragma once

#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Runs worker `index` until it leaves. `context` is the HostWorkerContext that the host device passes to its entries.
template <class Ops>
void host_worker_main(const wire::WorkerParams* params, u32 index, void* context) {
  HostPlatform platform(*static_cast<const HostWorkerContext*>(context));
  WorkerLoop<HostPlatform, Ops> loop(platform, *params, index);
  loop.run();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

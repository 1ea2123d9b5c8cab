// host_worker_main: the body of a HostWorkerEntry. Generated workers instantiate it with their own Ops.
#pragma once

#include "ccks/worker/op_entry.hpp"
#include "ccks/worker/platform_host.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::worker {

/// HostOpCall asks a HostWorkerEntry, called without params, to run some tiles of one op instead of the worker loop.
struct HostOpCall {
  wire::OpLaunch launch;     // first_tile: of this call
  u32 tiles = 0;
  u8* scratch = nullptr;     // 128-byte aligned
  u32 scratch_bytes = 0;
  u32 fault = 0;             // out: FaultCode
};

inline namespace CCKS_ISA {

template <class Ops>
void host_op_main(HostOpCall& call) {
  HostLanes lanes(call.scratch, call.scratch_bytes);
  for (u32 i = 0; i < call.tiles && call.fault == 0; ++i) {
    call.fault = run_op_tile<Ops>(lanes, wire::HostAtoms{}, call.launch, call.launch.first_tile + i);
  }
}

/// Runs worker `index` until it leaves. `context` is the HostWorkerContext that the host device passes to its entries;
/// where `params` is null, a HostOpCall.
template <class Ops>
void host_worker_main(const wire::WorkerParams* params, u32 index, void* context) {
  if (params == nullptr) return host_op_main<Ops>(*static_cast<HostOpCall*>(context));
  HostPlatform platform(*static_cast<const HostWorkerContext*>(context));
  WorkerLoop<HostPlatform, Ops> loop(platform, *params, index);
  loop.run();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// The generic worker for one instruction set. Built several times; CCKS_ISA names the inline namespace that everything
// in it lives in, so that no two builds share a symbol.
#include "ccks/worker/generic_ops.hpp"
#include "ccks/worker/host_entry.hpp"

namespace ccks::gpu::CCKS_ISA {

void worker_entry(const wire::WorkerParams* params, std::uint32_t index, void* context);

void worker_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<worker::GenericOps>(params, index, context);
}

}  // namespace ccks::gpu::CCKS_ISA

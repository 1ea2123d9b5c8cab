// Transport: where link memory (inboxes, outboxes, lines, reports, traces) lives. One interface for both kinds:
//   coherent  system memory that both sides cache and keep coherent: host device, Grace-class machines
//   pinned    page-locked host memory that a GPU reads and writes over PCIe
// The host device offers both names, so that one conformance suite runs over both; there, pinned memory is page-locked
// system memory of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ccks/result.hpp"

namespace ccks::gpu {

/// Block is memory a Transport gave; only that Transport takes it back.
struct Block {
  void* address = nullptr;
  std::uint64_t bytes = 0;   // mapped, at least what was asked for
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual const char* name() const = 0;
  /// How long a worker that has seen an event rests before it looks for what the host makes of it (wire::WorkerParams).
  virtual std::uint32_t verdict_rest_ns() const { return 0; }
  /// Zeroed, aligned to 256 bytes or more; the address is valid for host and workers.
  virtual Result<Block> allocate(std::uint64_t bytes) = 0;
  virtual void release(const Block& block) = 0;
};

/// Transports in system memory, for workers that are threads or reach it coherently. `name` is "coherent" or "pinned".
/// Blocks lie on NUMA node `node`, the CPU node next to the GPU; negative: on that of the thread that allocates.
Result<std::unique_ptr<Transport>> make_system_transport(const std::string& name, int node = -1);

}  // namespace ccks::gpu

// The generic worker, built once for each instruction set; the best one this CPU runs is chosen at run time.
#pragma once

#include <span>

#include "ccks/device.hpp"

namespace ccks::gpu {

struct IsaEntry {
  const char* name;        // "baseline", "x86_64_v3", "x86_64_v4"
  HostWorkerEntry entry;
  bool runs_here;          // this CPU and system have all its instructions
};

/// All builds of the generic worker, plainest first.
std::span<const IsaEntry> host_isas();
/// The last of them that runs here.
const IsaEntry& best_host_isa();

}  // namespace ccks::gpu

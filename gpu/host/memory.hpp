// System memory in whole pages: zeroed, spread or kept near as its use asks, in huge pages where it is large.
#pragma once

#include "gpu/transport.hpp"

namespace ccks::gpu {

enum class Placement {
  near_caller,  // the node of the thread that allocates: link memory, polled by the scheduler
  spread,       // all nodes in turn: arenas and weights, read by every worker
};

/// Maps at least `bytes` (at least one page). out_of_memory with the system's words on failure. `node` is the node that
/// near_caller means, if it is not negative and this machine has it.
Result<Block> map_pages(std::uint64_t bytes, Placement placement, int node = -1);
void unmap_pages(const Block& block);

}  // namespace ccks::gpu

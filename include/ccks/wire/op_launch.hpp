// One kernel per op: what such a kernel is given, and what it leaves for the host. Nothing here is used by resident
// workers; order between ops comes from the launches themselves, so events are neither waited for nor signalled.
#pragma once

#include "ccks/wire/base.hpp"

namespace ccks::wire {

enum OpLaunchFlags : u32 {
  kOpLaunchOverlapped = 1,  // may start before the launch in front of it has ended: prefetch first, then wait for it
};

/// One launch: tiles [first_tile, first_tile + blocks) of one op.
struct OpLaunch {
  u64 frame;   // RunFrame
  u64 status;  // OpStatus
  u32 op;
  u32 first_tile;
  u32 flags;   // OpLaunchFlags
  u32 reserved;
};

/// OpStatus is written by launches and read by the host once the last of them has ended: plain memory order, the end of a
/// launch publishes it. It lies in link memory, one for each slot; the host clears it before the first launch of a run.
/// A u32 for each report of the program follows: 1 if the report was published.
struct alignas(16) OpStatus {
  u32 fault;  // FaultCode; written in one 16-byte access, so that the fields belong together
  u32 op;
  u32 tile;
  u32 reserved;
};
static_assert(sizeof(OpStatus) == 16);

}  // namespace ccks::wire

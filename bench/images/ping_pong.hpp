// Argument of the kernel `ccks_ping_pong`.
#pragma once

#include "ccks/wire/task.hpp"

namespace ccks::bench {

struct PingPongParams {
  wire::u64 value;        // u32 in link memory: what the record announces, as a report does
  wire::u64 outbox;       // wire::Record[slots], link memory
  wire::u64 inbox;        // wire::Task[slots], link memory
  wire::u64 samples;      // u32[rounds], device memory: nanoseconds of each round trip; 0 where the host was silent
  wire::u64 deadline_ns;  // of one round
  wire::u32 slots;
  wire::u32 rounds;
};

}  // namespace ccks::bench

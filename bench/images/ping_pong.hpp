// Argument of the kernel `ccks_ping_pong`.
#pragma once

#include "ccks/wire/task.hpp"

namespace ccks::bench {

struct PingPongOutcome {
  wire::u32 silent;  // 1: the host gave no answer in time
  wire::u32 wrong;   // 1: the answer was to another round
  wire::u32 round;
  wire::u32 answer;
  wire::u64 waited_ns;
};

struct PingPongParams {
  wire::u64 value;        // u32 in link memory: what the record announces, as a report does
  wire::u64 outbox;       // wire::Record[slots], link memory
  wire::u64 inbox;        // wire::Task[slots], link memory
  wire::u64 samples;      // u32[rounds], device memory: nanoseconds of each round trip
  wire::u64 outcome;      // PingPongOutcome, device memory; written where the kernel gives up
  wire::u64 deadline_ns;  // of one round
  wire::u64 period_ns;    // from the beginning of one round to that of the next, at least
  wire::u32 slots;
  wire::u32 rounds;
};

}  // namespace ccks::bench

// What host and GPU agree on in the litmus tests: layouts, and what the i-th hand-over of a ring must hold.
#pragma once

#include "ccks/wire/ring.hpp"

namespace ccks::test {

using wire::u16;
using wire::u32;
using wire::u64;

/// Outcome of one end of a ring, or of one lane that waits for events.
struct LitmusCounts {
  u64 taken = 0;
  u64 wrong_slots = 0;     // torn, lost or doubled
  u64 wrong_payloads = 0;  // the slot or count came before what it announces
  u64 late = 0;            // 1: gave up, nothing happened for `deadline_ns`
};

/// Argument of the kernels. Ring r has its slots at slots + r * capacity, and a payload word for each of them.
struct LitmusParams {
  u64 slots;     // wire::Task[rings][capacity]; events: u32[rings], counters
  u64 payload;   // u64[rings][capacity], plain memory; events: u64[rings][2]
  u64 consumed;  // u32[rings]: credit of the producers; events: u32[rings], counters of the way back
  u64 counts;    // LitmusCounts[rings], written once at the end
  u64 trials;    // hand-overs of each ring
  u64 deadline_ns;
  u32 rings;
  u32 capacity;
  u32 start;     // position of the first slot; events: count before the first signal
  u32 reserved;
};

/// All fields of a task say the same number, so a slot put together from two writes shows.
CCKS_HD inline wire::Task litmus_task(u32 ring, u64 i) {
  const u32 word = static_cast<u32>(i) * 2654435761u ^ ring;
  wire::Task task;
  task.tile = word;
  task.epoch = ~word;
  task.op = static_cast<u16>(word * 40503u);
  task.slot_flags = static_cast<u16>(word >> 16 ^ word);
  return task;
}
CCKS_HD inline bool is_litmus_task(const wire::Task& t, u32 ring, u64 i) {
  const wire::Task want = litmus_task(ring, i);
  return t.tile == want.tile && t.epoch == want.epoch && t.op == want.op && t.slot_flags == want.slot_flags;
}
CCKS_HD inline u64 litmus_payload(u32 ring, u64 i) { return (i * 3 + 1) << 20 ^ ring; }

}  // namespace ccks::test

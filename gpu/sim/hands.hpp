// Hands: the stages of a worker that is a thread block, on lines of time of their own. On a GPU a warp each fetches, gates, signals and
// posts while others run bodies (ccks/worker/pipeline_cuda.cuh); a simulated worker is one fiber that takes its tiles through the stages
// in turn (worker_loop.hpp). So the fiber's time is that of the bodies, and what the other stages take is charged to a hand each:
//
//   gate    looks at a tile's events from when the body before it began. Looks that a body has hidden are charged afterwards, from
//           when the event changed: what is late is what of the last look is left.
//   signal  is done with a tile so long after its body; the fiber goes on, what the hand adds is seen later.
//   post    likewise, to the host; what says that a task is finished comes behind the task's signals.
//
// What holds a body up is then what does on the GPU: the gate, the slowest stage, the body before it, and the signals of the one before
// that (SimLanes::pace). Accesses are made in the order of the code, so nothing that orders them changes.
#pragma once

#include "gpu/sim/explorer.hpp"

namespace ccks::gpu::sim {

/// Until when each hand of a worker is busy.
struct Hands {
  Nanos gate = 0;
  Nanos signal = 0;
  Nanos post = 0;
  const std::uint64_t *inbox = nullptr, *inbox_end = nullptr;  // where the gate looks for verdicts
  bool unheard = false;  // nobody waits for what the tile signals: on a GPU its record says so, and nothing is sent
  const void* own = nullptr;  // an event that the worker adds all of, which has cost the gate no look for this tile
};

/// Looks at one word, back to back: each takes `there` on its way and `back`. Where a look stands that begins at `from` or later, and
/// that sees what changed at `changed`: when it reaches the word.
inline Nanos look_that_sees(Nanos from, Nanos changed, Nanos there, Nanos back) {
  const Nanos first = from + there, each = there + back;
  if (changed <= first || each == 0) return first;
  return first + (changed - first + each - 1) / each * each;
}

}  // namespace ccks::gpu::sim

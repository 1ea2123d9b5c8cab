// Platform: everything the worker loop needs from the machine it runs on. There is one for host threads
// (platform_host.hpp), one for a CUDA thread block (platform_cuda.hpp), and one for each simulator or test; the loop has
// no other way to touch an atomic, a clock or a thread.
//
// The lanes of a worker are split: the *control lanes* (one thread on the host, warp 0 of a block) poll, wait, signal
// and report; all lanes run op bodies. State of the loop is replicated in the control lanes, so what they read from
// memory goes through uniform().
//
// A Platform type has
//   using Lanes, using Atoms              see lanes.hpp and wire/ring.hpp
//   static constexpr u32 kPollSlots       inbox slots one poll() may stage
//   static constexpr bool kPipelined      the stages run side by side, each on control lanes of its own
//   static constexpr bool kStagesOps      ops are copied out of far memory ahead of need
//   Lanes& lanes()   Atoms atoms()   WorkerShared<kPollSlots>& shared()
//   u64 now_ns()                          device clock; the same value for all control lanes
//   bool control()                        this lane is a control lane
//   bool leader()                         this lane is the one control lane that stores
//   bool stores()                         this lane stores words that all control lanes hold: the leader; or each of them, where that is one
//                                         access and saves a branch that parts them
//   u32 control_lane(), control_lanes()
// Collective over the control lanes:
//   T uniform(T)                          the leader's value (u32, u64)
//   bool any_lane(bool)                  whether it is true on one of them
//   u32 first_lane(bool)                  lowest control lane where true, control_lanes() if none
//   u32 from_lane(u32 value, u32 lane)    that lane's value
//   u32 count_lanes(bool, u32& rank)      control lanes where true; rank: how many of them are lower than this one
//   void converge()                       memory of the control lanes is ordered, as by a barrier among them
//   u32 poll(const Task* inbox, u32 mask, u32 position)   stages the tasks that have arrived [R2]; how many
//   void relax(u32 spins)                 in the `spins`-th turn of a wait that another worker or the host will end
//   bool idle(u32 misses)                 after the `misses`-th empty poll in a row; may sleep until the doorbell rings,
//                                         true if it did
//   void posted()                         a record or state has been published: wakes a sleeping scheduler
#pragma once

#include "ccks/wire/control.hpp"
#include "ccks/wire/frame.hpp"

namespace ccks::worker {

using wire::i32;
using wire::i64;
using wire::u16;
using wire::u32;
using wire::u64;
using wire::u8;

/// The collective part of a Platform whose workers have one control lane: there is nobody to agree with.
struct OneControlLane {
  CCKS_HD static constexpr bool control() { return true; }
  CCKS_HD static constexpr bool leader() { return true; }
  CCKS_HD static constexpr bool stores() { return true; }
  CCKS_HD static constexpr u32 control_lane() { return 0; }
  CCKS_HD static constexpr u32 control_lanes() { return 1; }
  template <class T>
  CCKS_HD static constexpr T uniform(T value) { return value; }
  CCKS_HD static constexpr bool any_lane(bool here) { return here; }
  CCKS_HD static constexpr u32 first_lane(bool here) { return here ? 0 : 1; }
  CCKS_HD static constexpr u32 from_lane(u32 value, u32) { return value; }
  CCKS_HD static constexpr u32 count_lanes(bool here, u32& rank) { return rank = 0, here ? 1 : 0; }
  CCKS_HD static constexpr void converge() {}
};

enum class StepKind : u32 { body = 0, leave = 1 };

/// What the control lanes tell all lanes to do next.
struct WorkerStep {
  u64 frame;   // RunFrame
  u64 op;      // OpParams
  u32 tile;
  StepKind kind;
  u32 fault;   // FaultCode a lane met in the body; cleared by the leader before each body
};

/// What a look at the host's line finds.
struct HostWords {
  u32 park;       // ParkRequest
  u64 heartbeat;  // not looked at where there is no limit to it
};

/// What scheduling has cost one end of a ready queue (C9), alike on all control lanes. publish() writes it to the worker's line.
struct QueueCost {
  u64 atomics = 0;  // read-modify-writes
  u64 polls = 0;    // looks at a place that was still empty
  u64 ns = 0;       // time in finish(): adding, counting, pushing
};

/// Memory that all lanes of a worker share, next to the scratch of the ops.
template <u32 kPollSlots>
struct WorkerShared {
  wire::Task staged[kPollSlots];  // tasks taken from the inbox and not yet run
  wire::Task listed[kPollSlots];  // the next tasks of the list under way
  wire::BlockRef blocks[kPollSlots];  // where their ops lie, for platforms that stage ops
  wire::RunFrame head;            // of the run whose tasks are being taken
  QueueCost queue_takes;          // the leader's
  HostWords host;                 // as the last poll beside the host's line found it (platforms that look at both at once)
  WorkerStep step;
};

/// What is visible to whoever has seen a record. Tasks leave everything in the device's memory; reports and traces lie elsewhere.
enum class Publishes : u32 { itself, device_memory, all };

/// Patience is how long a wait has lasted, as far as this worker was there to see it. Of the time between two looks only
/// kLongestLookNs counts: a process that was stopped, or a GPU that others had, has not waited.
class Patience {
 public:
  CCKS_HD_ANY explicit Patience(u64 now = 0) : looked_at_(now) {}
  CCKS_HD_ANY bool over(u64 now, u64 limit_ns) {
    const u64 step = now - looked_at_;
    looked_at_ = now;
    spent_ns_ += step < kLongestLookNs ? step : kLongestLookNs;
    return spent_ns_ > limit_ns;
  }

 private:
  static constexpr u64 kLongestLookNs = 100'000'000;
  u64 looked_at_;
  u64 spent_ns_ = 0;
};

}  // namespace ccks::worker

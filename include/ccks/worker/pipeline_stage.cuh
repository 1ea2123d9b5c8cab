// CudaStage: what the stages of a CudaPipeline (pipeline_cuda.cuh) have in common: the shared memory they meet in, and how they
// look at each other's progress.
#pragma once

#include "ccks/worker/platform_cuda.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kServiceWarps = 4;
inline constexpr u32 kPipelineThreads = kCudaLanes + kServiceWarps * kWarpLanes;

struct CudaPipelineMemory {
  static constexpr u32 kSlots = 8;         // tiles in the pipeline: enough to look ahead over a hop between blocks
  static constexpr u32 kParsed = 4;        // tasks and records whose ops are on their way into shared memory
  static constexpr u32 kBlocks = kSlots + kParsed;
  static constexpr u32 kBlockBytes = 1024; // an op of six operands and four waits; larger ones are read where they lie
  static constexpr u32 kOwnEvents = 64;
  static constexpr u32 kRecords = 32;      // records of lists that are here or on their way
  static constexpr u32 kRecordsAhead = kRecords - kParsed - 4;
  static constexpr u32 kHeads = kParsed + 1;

  static constexpr u32 kSignals = 4;       // signals of a tile that are found ahead of time; more are looked up

  using Watch = WatchList<kWarpLanes>;
  struct Signal {
    u32* word;
    u32 count;
  };
  struct Slot {
    StagedTile tile;
    Watch watch;
    u32 body_fault;    // FaultCode
    u32 signal_count;  // in `signals`; kMany: look them up
    u32 silent;
    Signal signals[kSignals];
  };
  struct Parsed {
    OpenTask task;
    u32 block;      // kBlocks: none
    bool fresh;     // the copy was made for this task
    u32 record;     // of `records`; kRecords: this is a task, and `task` is set
    u32 head;       // with a record: what it shares with the others of its list
    u32 flags;      // with a record: TileFlags
    u32 list_task;  // with a record: its place in the list
  };
  /// How often earlier tiles of this worker add to an event in one run.
  struct OwnEvent {
    u32 event, slot, epoch, count;
  };

  WorkerShared<kWarpLanes> shared;
  Slot slots[kSlots];
  Parsed parsed[kParsed];
  TaskHead heads[kHeads];
  OwnEvent own[kOwnEvents];
  u32 fetched, gated, bodies, signalled, posted;
  u32 closing, leave, abandon, suspend, stop;
  ResumePoint resume;  // where the gate left an inbox task, published with closing
  u32 go[2];  // slot of the body to run, in turn
  alignas(128) u8 blocks[kBlocks][kBlockBytes];
  alignas(128) wire::TileRecord records[kRecords];
};

/// One object a warp and role; all of a block share `memory`.
class CudaStage {
 protected:
  using Memory = CudaPipelineMemory;
  using Slot = Memory::Slot;
  using Watch = Memory::Watch;
  using Parsed = Memory::Parsed;
  static constexpr u32 kBodyWarps = kCudaLanes / kWarpLanes;
  static constexpr u32 kHotSpins = 256;    // of a stage that waits for another warp of the block: then it naps
  static constexpr u32 kNapNs = 32;

  __device__ CudaStage(Memory& memory, const wire::WorkerParams& params, u32 index)
      : memory_(memory), params_(params), index_(index), platform_(memory.shared) {}

  // Relaxed: lone words.
  __device__ static u32 word(const u32& w) { return ptx::ld_relaxed_cta_shared(&w); }
  __device__ void set_word(u32& w, u32 value) const {
    if (platform_.leader()) ptx::st_relaxed_cta_shared(&w, value);
  }
  __device__ Slot& slot(u32 tile) { return memory_.slots[tile % Memory::kSlots]; }
  __device__ static void rest(u32 spins) {
    if (spins > kHotSpins) __nanosleep(kNapNs);
  }
  __device__ bool body_ended(u32 body) const {
    const u32 ended = ptx::ld_acquire_cta_shared(&memory_.bodies);  // [P6] pairs with [P5]
    return static_cast<i32>(ended - (body + 1) * kBodyWarps) >= 0;
  }
  __device__ bool tracing() const { return params_.trace != 0; }

  Memory& memory_;
  const wire::WorkerParams& params_;
  u32 index_;
  CudaPlatform platform_;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// CudaStage: what the stages of a CudaPipeline (pipeline_cuda.cuh) have in common: the shared memory they meet in, and how they
// look at each other's progress.
#pragma once

#include "ccks/wire/relay.hpp"
#include "ccks/worker/body_turns.cuh"
#include "ccks/worker/weight_stream.hpp"
#include "ccks/worker/worker_loop.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <>
inline constexpr bool kTakesQueues<CudaPlatform> = kWorkerQueues;

inline constexpr u32 kServiceWarps = 4;
inline constexpr u32 kPipelineThreads = kCudaLanes + kServiceWarps * kWarpLanes;

/// How far the ring for weights has been filled (pipeline_stream.cuh).
struct StreamFill {
  WeightPieces pieces;  // of `tile`, if it is begun
  StreamPlace next;     // the stage to be filled
  u32 tile;             // whose weights are not all asked for; those before it need nobody any more
  u32 begun;            // of it, 1 and how many pieces have been asked for; 0: it is not begun
};

/// How far the ring of a relay has been filled (relay_stream.cuh). The posting warp's alone.
struct RelayFill {
  StreamPlace next;     // the stage to be filled
  StreamPlace landing;  // of those on their way the oldest
  u32 on_way;           // how many that are, at most
  u32 asked, step;      // steps asked for; the one whose weights are being asked for
  u32 column, depth;    // of it, where the next piece begins
  u32 ahead;            // pieces that the ring or the L2 has been asked for; where the next of the latter begins:
  u32 ahead_step, ahead_column, ahead_depth;

  /// Of a relay that begins. Field by field: the image of a RelayFill{} would be loaded from memory (tests/ptx/check.py).
  __device__ __forceinline__ void clear() {
    next.stage = next.round = landing.stage = landing.round = 0;
    on_way = asked = step = column = depth = 0;
    ahead = ahead_step = ahead_column = ahead_depth = 0;
  }
};

struct CudaPipelineMemory {
  // Where relays run, what is not taken here is theirs (relay_stream.cuh), and few tiles are bodies of their own. Tiles of roomy bodies take long.
  static constexpr bool kSmall = kWorkerRowTags || CCKS_WORKER_ROOMY;
  static constexpr u32 kRing = kSmall ? 32 : 64;    // tiles in the pipeline, from the copy of their record to their last answer
  static constexpr u32 kOpened = kSmall ? 16 : 24;  // of them, those that may hold a copy of an op: whole groups of records
  static constexpr u32 kBlocks = kOpened + 4;  // and the ops of parsed tasks
  static constexpr u32 kBlockBytes = kWorkerRowTags ? 512 : 768;  // an op of nine operands, or of five; larger ones are read where they lie
  static constexpr u32 kHeads = kOpened + 1;
  static constexpr u32 kParsed = 4;         // tasks whose ops are on their way into shared memory
  static constexpr u32 kOwnEvents = 64;
  static constexpr u32 kNoBlock = 0xff;
  using Control = TileControl;
  using Entry = TileEntry;
  using Times = TileTimes;
  struct Parsed {
    OpenTask task;
    u32 block;      // kNoBlock: none
    bool fresh;     // the copy was begun for this task
  };
  /// What the fetching warp remembers of its looks at the host and at the clock (pipeline_looks.cuh).
  struct Looks {
    Heartbeat beat;
    u64 others_at, idle_since;
    u32 turn, phase_ns;
  };
  /// What a warp that waits remembers of its looks at the clock, and what the last was worth: WaitEnd::Code.
  struct Waiting {
    Patience patience;
    u32 code;
  };
  /// The guard that failed last, and where: what is under it in that run is passed over without a look at its events.
  struct Failed {
    const wire::RunFrame* frame;
    u32 epoch, index;       // among the op's guards: of nested ones the same for every op that has it
    u32 compare;
    wire::i32 value;  // as the guard's bits
    u64 offset;
  };
  /// How often earlier tiles of this worker add to an event in one run.
  struct OwnEvent {
    u32 event, slot, epoch, count;
  };

  /// The relay that is under way (relay.cuh).
  struct Relay {
    const u8* steps;  // wire::RelayStep
    u64 state;        // of the run
    u32 count;        // steps
    u32 under_way[2]; // stages, at most: where the worker waits for others; while a product is at its stages
    u32 most_ahead, pace;  // pieces that the L2 is asked for while all stages are full; cycles from one to the next
    u32 stages, first_stage;  // of its ring; where the first lies in dynamic shared memory
    u32 stage_at, barrier_at, hint_at;  // addresses in shared memory of that stage, of its barrier (RelayShared::full), and of `multiplies`
    RelayFill fill;
    wire::Task task;  // for traces: whose slot and epoch steps' records have
    u32 active, done;
    u32 multiplies;   // 1: a product is at its stages; a hint
    u32 routed;       // 1: experts are chosen (RelayShared::chosen)
  };

  WorkerShared<kWarpLanes> shared;
  wire::WorkerParams params;  // of the launch, for functions that are not inlined
  Looks looks;
  Waiting waiting[2];         // gate, post
  alignas(128) wire::TileRecord records[kRing];
  Control controls[kRing];
  Entry entries[kRing];
  u32 body_faults[kRing];  // FaultCode
  Times times[kRing];
  BodyTurns turns;
  u32 stays[2];            // 1, in turn: the body that has begun early is to store nothing, the worker leaves before it
  u32 hurry, given_up;     // 1: bodies that wait for tags alone are to give up, the worker leaves; tiles of the strand up to the one that has
  TaskHead heads[kHeads];
  Parsed parsed[kParsed];
  OwnEvent own[kOwnEvents];
  Failed failed;           // of nested guards; nobody but the gate looks
  FaultDetails fetch_fault, fault;  // of the task that cannot be opened; of the tile that is TileKind::fault
  StreamRing* ring;    // null: there is none
  StreamFill fill;
  Relay relay;
  ResumePoint resume;  // where the gate left an inbox task, published with closing
  u32 fetched, gated, synced, signalled, posted;
  u32 let;             // strands that begin early and whose events the gate has seen, or that it leaves before: the number of the last
  u32 prefetched;      // tiles whose operands the fetching warp has asked for; nobody else looks
  u32 gate_left, closing, leave, abandon, suspend, stop, attention;
  u32 traced;          // records of the trace area, by the posting warp and, while it runs, by a relay
  u32 missed;          // number of the last body that has not found its row's tags
  alignas(128) u8 blocks[kBlocks][kBlockBytes];

  /// Where nothing streams the pipeline is made without what looks after a ring (CCKS_WORKER_STREAMS).
  __device__ __forceinline__ bool has_ring() const {
    if constexpr (CudaLanes::kStreams)
      return ring != nullptr;
    else
      return false;
  }
  /// Whether a tile handed on is a relay.
  __device__ __forceinline__ bool is_relay(u32 tile) const {
    if constexpr (kWorkerRowTags)
      return controls[tile % kRing].kind == TileKind::body && entries[tile % kRing].body == wire::kRelayBody;
    else
      return false;
  }
  /// Whether the weights of a tile handed on come through the ring: who fills it, gate and bodies ask the same. Not of one that may
  /// not run, nor of a task that is cut into tiles here.
  __device__ __forceinline__ bool streams(u32 tile) const {
    const Control& control = controls[tile % kRing];
    if (!has_ring() || control.kind != TileKind::body || (kWorkerDecides && (control.flags & kTileGuarded) != 0)) return false;
    if ((records[tile % kRing].flags & wire::kRecordCut) != 0) return false;
    const Entry& entry = entries[tile % kRing];
    return streams_weights(*entry.op, entry.tile);
  }
};

/// What shared memory and L1 are cut out of can be parted in so many bytes for the former (sm_90), or all but 28 KB. A block has 1 KB of its own.
inline constexpr u32 kSharedBesideL1 = 196 * 1024;
static_assert(!CCKS_WORKER_ROOMY || CCKS_WORKER_APART || sizeof(CudaPipelineMemory) + kCudaGroupedScratchBytes + 1024 <= kSharedBesideL1);

/// Of this block. By a function, so that those that are not inlined know where it lies. As bytes: nothing in it is initialized.
__device__ inline CudaPipelineMemory& pipeline_memory() {
#if CCKS_WORKER_APART
  static_assert(sizeof(ApartBlock) + sizeof(CudaPipelineMemory) <= kCudaApartBytes && alignof(CudaPipelineMemory) <= 128);
  return *reinterpret_cast<CudaPipelineMemory*>(dynamic_shared() + sizeof(ApartBlock));
#else
  __shared__ alignas(CudaPipelineMemory) u8 memory[sizeof(CudaPipelineMemory)];
  return reinterpret_cast<CudaPipelineMemory&>(memory);
#endif
}

/// Where the gate and a body that has begun early meet once its inputs are there: of two barriers, in turn.
inline constexpr u32 kInputsBarrier = 6;
/// The `body`-th meets the gate there.
__device__ __forceinline__ void meet_gate(u32 body) { ptx::barrier_sync(kInputsBarrier + body % 2, kMeetThreads); }

/// Those of a body that has begun early and is the `number`-th of its worker (tagged_rows.hpp).
struct EarlyInputs {
  u32 number;

  __device__ __forceinline__ bool are_there() const { return static_cast<i32>(ptx::ld_acquire_cta_shared(&pipeline_memory().let) - number) >= 0; }  // [P22] pairs with [P21]
  // Relaxed, both: a lone word that is looked at behind a barrier.
  __device__ __forceinline__ void miss() const { ptx::st_relaxed_cta_shared(&pipeline_memory().missed, number); }
  __device__ __forceinline__ bool has_missed() const { return ptx::ld_relaxed_cta_shared(&pipeline_memory().missed) == number; }
};

/// The parts of an op's block (wire::BlockRef). Of a block that came with a record, waits and signals are missing.
__device__ inline OpView view_of_block(const void* block) {
  const auto* op = static_cast<const wire::OpParams*>(block);
  const auto* operands = reinterpret_cast<const wire::OperandParams*>(op + 1);
  const auto* guards = reinterpret_cast<const wire::GuardParams*>(operands + op->input_count + op->output_count);
  const auto* waits = reinterpret_cast<const wire::WaitParams*>(guards + op->guard_count);
  return {op, waits, reinterpret_cast<const wire::SignalParams*>(waits + op->wait_count), guards};
}

inline constexpr u32 kHotSpins = 256, kNapNs = 32;
/// In the `spins`-th turn of a stage that waits for another warp of the block: after a while it naps.
__device__ __forceinline__ void rest(u32 spins) {
  if (spins > kHotSpins) __nanosleep(kNapNs);
}

/// One object a warp and role; all of a block share `memory`.
class CudaStage {
 protected:
  using Memory = CudaPipelineMemory;
  using Control = Memory::Control;
  using Parsed = Memory::Parsed;
  static constexpr u32 kBodyWarps = kCudaLanes / kWarpLanes;

  __device__ CudaStage(Memory& memory, const wire::WorkerParams& params, u32 index)
      : memory_(memory), params_(params), index_(index), platform_(memory.shared) {}

  // Relaxed: lone words.
  __device__ static u32 word(const u32& w) { return ptx::ld_relaxed_cta_shared(&w); }
  __device__ void set_word(u32& w, u32 value) const {
    if (platform_.leader()) ptx::st_relaxed_cta_shared(&w, value);
  }
  /// For the words that the gate has to heed.
  __device__ void raise(u32& w, u32 value) const {
    set_word(w, value);
    set_word(memory_.attention, 1);
  }
  __device__ static u32 slot(u32 tile) { return tile % Memory::kRing; }
  __device__ bool body_ended(u32 body) const {
    return static_cast<i32>(ptx::ld_acquire_cta_shared(&memory_.synced) - (body + 1)) >= 0;  // [P12] pairs with [P11]
  }
  __device__ bool tracing() const { return params_.trace != 0; }

  /// Whether the gate may find that the tile's body does not run.
  __device__ static bool is_guarded(const Control& control) { return kWorkerDecides && (control.flags & kTileGuarded) != 0; }
  /// Tiles of the strand that begins with this one.
  __device__ static u32 strand_of(const Control& control) { return control.strand(); }
  __device__ const TaskHead& head_of(const Control& control) const { return memory_.heads[control.head]; }
  __device__ const wire::OpParams* op_at(const wire::RunFrame& frame, u32 block, u32 op) const {
    if (block != Memory::kNoBlock) return reinterpret_cast<const wire::OpParams*>(memory_.blocks[block]);
    return frame_at<wire::OpParams>(frame, frame.ops) + op;
  }
  /// The task that a tile belongs to, as traces and faults name it: a record of a list is one of its own.
  __device__ wire::Task task_of(const Control& control, u32 at) const {
    wire::Task task = head_of(control).task;
    const wire::TileRecord& record = memory_.records[at];
    if ((record.flags & wire::kRecordCut) != 0) return task;
    task.op = record.op;
    task.tile = record.tile;
    return task;
  }

  Memory& memory_;
  const wire::WorkerParams& params_;
  u32 index_;
  CudaPlatform platform_;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// BodyTurns: how body warps of a CudaPipeline (pipeline_cuda.cuh) hear which strand they run next, and how the function of a linked body goes on from its tile to the next of the same body
// without a return to the loop: what it saves for whoever calls it is then saved and fetched again once for many tiles.
//
// Bodies are compiled once for all programs, and know nothing of what else the pipeline's memory is made of: this is laid out alike in all of them, and names where the rest lies.
//
// Memory ordering
//   go, entries, records             plain: by the gate and the fetching warp before the gate arrives at go's barrier, read behind it; go also relaxed, as a hint (run_in_turn)
//   bodies                           relaxed, so that no warp waits for its stores before the next body (pipeline_cuda.cuh)
#pragma once

#include "ccks/worker/kept_tiles.hpp"
#include "ccks/worker/platform_cuda.hpp"
#include "ccks/worker/staged_tile.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// What a tile is besides its record. Written by fetch; `kind` and `body` also by the gate.
struct alignas(16) TileControl {
  // Of `flags`, beside TileFlags.
  static constexpr u32 kFresh = 0x8000;     // the tile's block is a copy begun for it
  static constexpr u32 kStrandShift = 8;    // of the first of a strand: how many tiles are joined to it
  static constexpr u32 kStrandMask = 7;

  TileKind kind;
  u16 flags;
  u8 head, block; // of CudaPipelineMemory::heads, blocks
  u32 list_task;
  u32 body;       // how many strands come before the one that it belongs to, if it is a body

  /// Tiles of the strand that begins with this one.
  __device__ __forceinline__ u32 strand() const { return 1 + (u32{flags} >> kStrandShift & kStrandMask); }
};
/// What gate and bodies need of a tile, so that nobody has to look for it between an event and the body that waits for it.
struct alignas(16) TileEntry {
  const u32* events;
  const u32* bases;  // null: the record has whole amounts
  const wire::OpParams* op;
  const wire::RunFrame* frame;
  u32 tile, runs;
  u32 body;          // op->body
  u32 tag;           // wire::value_tag of the run
};
/// Where traces are taken.
struct TileTimes {
  u64 start_ns, wait_ns, end_ns;
};

/// Where gate and bodies meet, and bodies and the signalling warp, of two barriers each, in turn; how many meet there.
inline constexpr u32 kGoBarrier = 2, kDoneBarrier = 4, kMeetThreads = kCudaLanes + kWarpLanes;

/// What lies at an address in shared memory; the compiler knows that it does.
template <class T>
__device__ __forceinline__ T& in_shared(u32 address) { return *static_cast<T*>(__cvta_shared_to_generic(address)); }

/// What the gate tells bodies of the strand that is to come: where its first tile lies in the ring, and how it is run.
struct GoWord {
  static constexpr u32 kPlace = 0xff, kEarly = 0x100, kPlain = 0x200, kExit = 0x400, kNumber = 16;

  u32 word;

  __device__ __forceinline__ static GoWord of(u32 number, u32 place, u32 flags) { return {number << kNumber | flags | place}; }
  __device__ __forceinline__ u32 place() const { return word & kPlace; }
  /// There are no more.
  __device__ __forceinline__ bool exits() const { return (word & kExit) != 0; }
  /// The body waits itself until its inputs are there.
  __device__ __forceinline__ bool early() const { return (word & kEarly) != 0; }
  /// It is one tile that waits for nothing itself.
  __device__ __forceinline__ bool plain() const { return (word & kPlain) != 0; }
  /// The strand is plain, and the `number`-th or one that is a multiple of 2^16 from it.
  __device__ __forceinline__ bool is_plain(u32 number) const { return plain() && ((word ^ number << kNumber) >> kNumber) == 0; }
};

struct BodyTurns {
  static constexpr u32 kExit = 0xffffffffu;

  GoWord go[2];  // of the strand to run, in turn
  u32 ends[2];   // how the strand ended, in turn: 0, a FaultCode, or kExit: there was none
  u32 bodies;    // warps that have ended a body, over all bodies
  u32 traces;    // 1: traces are taken
  // Of each place of the ring; of the first two where they lie in shared memory.
  u32 entries, records;
  TileTimes* times;
  u32* faults;  // FaultCode

  __device__ __forceinline__ const TileEntry& entry(u32 place) const { return in_shared<TileEntry>(entries + place * u32{sizeof(TileEntry)}); }
  __device__ __forceinline__ const wire::TileRecord& record(u32 place) const { return in_shared<wire::TileRecord>(records + place * u32{sizeof(wire::TileRecord)}); }
  __device__ __forceinline__ void meet(u32 number) const { ptx::barrier_sync(kGoBarrier + number % 2, kMeetThreads); }
  /// Several lanes may store a fault; any of theirs will do.
  __device__ __forceinline__ void note(u32 number, u32 place, u32 fault) {
    if (fault != 0) faults[place] = ends[number % 2] = fault;
    if (traces != 0 && threadIdx.x == 0) times[place].end_ns = ptx::globaltimer();
  }
  /// The strand has ended; the signalling warp hears of it before the others. The warp is together.
  __device__ __forceinline__ void end(u32 number) {
    ptx::barrier_arrive(kDoneBarrier + number % 2, kMeetThreads);
    if (threadIdx.x % kWarpLanes == 0) ptx::red_relaxed_cta_shared_add(&bodies, 1);
  }
};

/// For tiles whose rows are found once: what they are of. All lanes store the same, and each reads what it has stored. Scratch is the block's, and as large as that takes.
__device__ __forceinline__ void name_kept_tiles(u32 op, u32 tag) {
  KeptTiles& kept = kept_tiles(dynamic_shared() + kSharedInFront);
  kept.op = op;
  kept.tag = tag;
}

/// What run_in_turn has done: in front of the strand that it says it is at, so many have ended. That one has been run, with a fault or none, and has not ended, or has been met and not run.
struct TurnsRun {
  static constexpr u32 kFaults = 256, kMet = kFaults, kEnded = 2 * kFaults, kMost = 1u << 20;  // strands of a call

  u32 word;

  __device__ __forceinline__ u32 ended() const { return word / kEnded; }
  __device__ __forceinline__ bool met() const { return (word & kMet) != 0; }
  __device__ __forceinline__ u32 fault() const { return word % kFaults; }
};

/// Runs tiles of a body, one behind the other, from that of the `number`-th strand on, as long as the gate has said in time that another of the same body is next: else whoever calls it may as
/// well wait for that, with what has been saved for it. at: where BodyTurns lie in shared memory, or 0: then it is one tile, run by itself. Body has FaultCode run(frame, op, tile); and
/// begin(op, tag), in front of each tile but the first. `run` stands here once, since a body is long, and little in front of the return, since
/// a worker that has one tile of a body goes through that without having its code.
template <class Body>
__device__ __forceinline__ TurnsRun run_in_turn(Body& body, u32 at, u32 number, const wire::RunFrame* frame, const wire::OpParams* op, u32 tile) {
  CCKS_NO_UNROLL
  for (u32 ended = 0;; ended += TurnsRun::kEnded) {
    const u32 fault = static_cast<u32>(body.run(*frame, *op, tile));
    if (at == 0) return {fault};
    __syncwarp();
    BodyTurns& turns = in_shared<BodyTurns>(at);
    // Relaxed: a hint, looked at again behind the barrier. What is said of this strand stays until it has ended.
    const GoWord next{ptx::ld_relaxed_cta_shared(&turns.go[(number + 1) % 2].word)};
    const u32 place = turns.go[number % 2].place(), mine = turns.entry(place).body;
    const bool goes_on = next.is_plain(number + 1) && turns.entry(next.place()).body == mine && ended < TurnsRun::kMost * TurnsRun::kEnded;
    if (__any_sync(kFullWarp, goes_on) == 0) return {ended + fault};
    turns.note(number, place, fault);
    __syncwarp();
    turns.end(number++);
    turns.meet(number);
    const GoWord said = turns.go[number % 2];
    const TileEntry& entry = turns.entry(said.place());
    if (!said.plain() || entry.body != mine) return {ended + TurnsRun::kEnded + TurnsRun::kMet};
    frame = entry.frame, op = entry.op, tile = entry.tile;
    body.begin(turns.record(said.place()).op, entry.tag);
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// What a worker's ring for weights holds, and in which order: what the warp that fills it, the bodies that empty it and the
// device that makes room for it agree on.
//
// A stage of the ring has a piece of up to kStageColumns columns of b by kStageDepth along k, a column behind the other. A tile of a kOpStreams
// op comes in pieces, along k first, then column by column; tiles come in the order in which they run. How many stages a tile takes
// follows from its op alone, so that both sides count stages and need no names for what is in them.
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kStageColumns = 16;  // what a matrix unit takes at a time
inline constexpr u32 kStageDepth = 1024;  // elements of two bytes
// Eight lanes read 64 bytes each of two columns that follow one another: 64 more than a multiple of 128 lets them lie in different banks.
inline constexpr u32 kStagePitch = kStageDepth * 2 + 64;
inline constexpr u32 kStageBytes = kStageColumns * kStagePitch;
inline constexpr u32 kLeastStages = 2, kMostStages = 16;

/// Which stage is the next to be used, and how often the ring has gone round.
struct StreamPlace {
  u32 stage = 0, round = 0;
  CCKS_INLINE void step(u32 stages) {
    if (++stage != stages) return;
    stage = 0;
    ++round;
  }
};

/// At the end of the shared memory of a worker that has a ring, behind its stages, the last of which lies first.
// Roles  full, empty  a phase of each ends once a stage is filled, once its bodies have read it: see pipeline_stream.cuh
//        stages       set before the worker's warps part
//        place        of the next body: written by one lane at the end of a body, read by all at the beginning of one; barriers
//                     lie between
struct alignas(128) StreamRing {
  u64 full[kMostStages], empty[kMostStages];
  u32 stages;
  StreamPlace place;
};
inline constexpr u32 kStreamRingBytes = sizeof(StreamRing);

/// Stages of the ring that `bytes` have room for; 0: too few for a ring.
CCKS_HD constexpr u32 stages_in(u32 bytes) {
  const u32 stages = bytes <= kStreamRingBytes ? 0 : (bytes - kStreamRingBytes) / kStageBytes;
  return stages < kLeastStages ? 0 : stages < kMostStages ? stages : kMostStages;
}
/// Of the ring whose head is `ring`.
CCKS_INLINE u8* stage_of(StreamRing& ring, u32 stage) { return reinterpret_cast<u8*>(&ring) - (stage + 1) * kStageBytes; }
CCKS_HD constexpr u32 ring_bytes(u32 stages) { return stages == 0 ? 0 : kStreamRingBytes + stages * kStageBytes; }

/// Whether a tile's weights come through the ring of a worker that has one, if no guard or draft may keep it from running.
CCKS_INLINE bool streams_weights(const OpParams& op, u32 tile) { return (op.flags & wire::kOpStreams) != 0 && tile < op.tile_count; }

/// Where a tile of a kOpStreams op lies, without divisions: its coordinates, and how many rows and columns of results it has.
struct StreamedTile {
  u32 c[4];
  u32 m, n;

  CCKS_INLINE StreamedTile(const Call& call, u32 tile) {
    const OpParams& op = call.op;
    const OperandParams& out = call.operands[op.input_count];
    const u32 packed = static_cast<u32>(op.dims[wire::kCoordinateDim]);
    CCKS_UNROLL
    for (u32 i = 3; i >= 1; --i) {
      const u32 bits = packed >> (8 * (3 - i)) & 31;
      c[i] = tile & ((1u << bits) - 1);
      tile >>= bits;
    }
    c[0] = tile;
    m = least(static_cast<u32>(op.tile[2]), static_cast<u32>(out.dim[2]) - c[2] * static_cast<u32>(op.tile[2]));
    n = least(static_cast<u32>(op.tile[3]), static_cast<u32>(out.dim[3]) - c[3] * static_cast<u32>(op.tile[3]));
  }
};

/// The pieces of a tile of a kOpStreams op, one after the other.
struct WeightPieces {
  const u8* columns = nullptr;  // of the tile
  u32 column_bytes = 0;         // from one to the next
  u32 n = 0, k = 0;
  u32 run = 0;     // columns that lie one after the other; all of them, or half where heads are turned or there is a twin
  u64 beyond = 0;  // bytes from the end of the first run to the second
  u32 column = 0, depth = 0;  // where the piece begins

  WeightPieces() = default;
  CCKS_INLINE WeightPieces(const Call& call, u32 tile) {
    const OperandParams& b = call.operands[1];
    const StreamedTile t(call, tile);
    const u32 first = t.c[3] * static_cast<u32>(call.op.tile[3]);
    column_bytes = static_cast<u32>(b.stride[3]) * 2;
    columns = operand_base(call.frame, b) +
              u64{t.c[0] * static_cast<u32>(b.stride[0]) + t.c[1] * static_cast<u32>(b.stride[1]) + first * static_cast<u32>(b.stride[3])} * 2;
    n = t.n;
    k = static_cast<u32>(b.dim[2]);
    run = n;
    const bool twins = call.op.dims[wire::kTwinDim] != 0;
    if (call.op.dims[wire::kRopeDim] == 0 && !twins) return;
    const u64 other = twins ? reinterpret_cast<u64>(operand_base(call.frame, call.operands[2])) - reinterpret_cast<u64>(operand_base(call.frame, b))
                            : u64{static_cast<u32>(b.stride[0])} * 2;
    beyond = other - u64{run} * column_bytes;
    n *= 2;
  }
  CCKS_INLINE bool done() const { return column >= n; }
  CCKS_INLINE u32 width() const { return least(kStageColumns, n - column); }
  /// Of each column.
  CCKS_INLINE u32 bytes() const { return least(kStageDepth, k - depth) * 2; }
  CCKS_INLINE const u8* from(u32 i) const {
    return columns + u64{column + i} * column_bytes + (column + i < run ? 0 : beyond) + depth * 2;
  }
  CCKS_INLINE void step() {
    depth += kStageDepth;
    if (depth < k) return;
    depth = 0;
    column += kStageColumns;
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

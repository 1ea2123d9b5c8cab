// A matmul whose depth is shared out over tiles: a product of few columns has fewer tiles than there are workers, and each walks all of k. Each chunk's tile leaves
// its sums in memory, whoever is the last of them adds all up, in order, and finishes; nobody waits.
//
// Such an op has two more outputs that nobody else reads: parts [1, chunks, rows, columns] f32, and arrivals, i32, zero before the run, one for each tile
// of a chunk. Only bodies of kOpGroups ops share; with others the first chunk's tile makes the whole product, and the rest have nothing to do. As it is with one chunk.
#pragma once

#include "ccks/worker/attention_split.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kDepthStep = 128;  // chunks begin at multiples of it

/// Chunk `index` of `count`: [begin, end) of k.
struct DepthChunk {
  u32 begin, end, index, count;
};
CCKS_INLINE DepthChunk depth_chunk(u32 k, u32 index, u32 count) {
  const u32 steps = ceil_div(k, kDepthStep);
  return {index * steps / count * kDepthStep, least((index + 1) * steps / count * kDepthStep, k), index, count};
}

CCKS_INLINE u32 tiles_of_chunk(const OpParams& op) { return static_cast<u32>(op.grid[1]) * static_cast<u32>(op.grid[2]) * static_cast<u32>(op.grid[3]); }
/// For bodies that share nothing.
CCKS_INLINE bool is_of_later_chunk(const OpParams& op, u32 tile) { return wire::shares_depth(op) && tile >= tiles_of_chunk(op); }

/// What lanes go through of a block of sums [rows][pitch] in scratch: four columns of rows row, row + step, ... below m.
struct SumsShare {
  float* at;  // of row 0
  u32 pitch, row, step, m;
};

/// Every lane calls it, with `sums` what finishes its share; (row, column): of the share's element 0 in the output. True on all lanes of the one tile that finishes: its
/// sums are then those of all chunks. `told`: a word of scratch that holds no sums.
template <class Lanes, class Sums>
CCKS_INLINE bool add_chunks(Lanes& lanes, const Call& call, u32 tile, const DepthChunk& chunk, const SumsShare& share, i32 row, i32 column, const Sums& sums, u32* told) {
  constexpr u32 kAtOnce = 4;  // loads under way together
  const OperandParams &parts = call.operands[call.op.input_count + 1], &arrivals = call.operands[call.op.input_count + 2];
  float* const own = reinterpret_cast<float*>(operand_base(call.frame, parts)) + row * parts.stride[2] + column;
  CCKS_NO_UNROLL
  for (u32 i = share.row; i < share.m; i += share.step) {
    Four<float> all;
    sums(i, all.v);
    *reinterpret_cast<Four<float>*>(own + chunk.index * parts.stride[1] + i * parts.stride[2]) = all;
  }
  u32* const words = reinterpret_cast<u32*>(operand_base(call.frame, arrivals));
  if (!last_to_arrive(lanes, words + tile % tiles_of_chunk(call.op), chunk.count, told)) return false;
  CCKS_NO_UNROLL
  for (u32 i = share.row; i < share.m; i += share.step) {
    Four<float> all{};
    CCKS_NO_UNROLL
    for (u32 first = 0; first < chunk.count; first += kAtOnce) {
      Four<float> some[kAtOnce];
      CCKS_UNROLL
      for (u32 c = 0; c < kAtOnce; ++c) some[c] = *reinterpret_cast<const Four<float>*>(own + least(first + c, chunk.count - 1) * parts.stride[1] + i * parts.stride[2]);
      CCKS_UNROLL
      for (u32 c = 0; c < kAtOnce; ++c) {
        CCKS_UNROLL
        for (u32 q = 0; q < kVector; ++q) all.v[q] += first + c < chunk.count ? some[c].v[q] : 0.0f;
      }
    }
    *reinterpret_cast<Four<float>*>(share.at + i * share.pitch) = all;
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

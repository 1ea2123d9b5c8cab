// Row tiles of an expert_matmul as a worker's first tile of it finds them in a run (expert_warps.hpp), at the end of scratch, which no other body uses: later tiles look theirs up. Finding one
// again takes 3,600 cycles of an H200 and more, in which nothing of the tile is under way.
//
// Only where a worker runs the op by its own copy (OpParams::operands) and says which op and run a tile is of: a tile that is run without a worker keeps nothing.
#pragma once

#include "ccks/worker/tile_hints.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of one tile of an expert_matmul.
struct ExpertRows {
  i32 expert = 0;
  u32 first = 0;  // routed row
  u32 count = 0;  // 0: the tile does not exist
  bool sound = true;
};

struct KeptTiles {
  static constexpr u32 kMost = 448;
  /// What row tiles are of: an op of a run. Counts lie elsewhere in each slot of runs.
  struct Of {
    const u8* counts;
    u32 op, tag;  // index in the frame; wire::value_tag of the run
  };
  struct RowTile {
    u32 first;
    u16 expert, count;
  };

  u32 op, tag;  // of the tile that begins, by who begins it
  u32 tiles;    // of `of`, in the order that find_expert_together gives them
  Of of;
  RowTile rows[kMost];
  u64 told[32];  // between lanes that look for them

  CCKS_INLINE bool has(const u8* counts) const { return of.counts == counts && of.op == op && of.tag == tag; }
  CCKS_INLINE ExpertRows at(u32 index) const {
    ExpertRows found;
    if (index >= tiles) return found;
    const RowTile& row = rows[index];
    found.expert = row.expert;
    found.first = row.first;
    found.count = row.count;
    return found;
  }
};
static_assert(sizeof(KeptTiles) <= kCudaKeptBytes && kCudaGroupedScratchBytes % alignof(KeptTiles) == 0);

CCKS_INLINE KeptTiles& kept_tiles(u8* scratch) { return *reinterpret_cast<KeptTiles*>(scratch + kCudaGroupedScratchBytes - kCudaKeptBytes); }

}  // namespace CCKS_ISA
}  // namespace ccks::worker

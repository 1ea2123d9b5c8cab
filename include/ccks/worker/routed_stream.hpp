// expert_matmul of up to eight rows a tile by weights that come through a worker's ring (wire::kOpRouted), as those of a dense product do
// (weight_stream.hpp). The product: product_routed.hpp.
//
// Whose weights a tile wants, and whether there is such a tile, follows from the counts of its route. Who fills the ring finds it out, once for both
// sides: it keeps a table of the route, settles tile by tile and leaves what it has found beside the tile, where the body reads it. So both count the same stages; a tile
// that does not exist has none. A table is made once a body of a tile of that route has begun, whose inputs are there, and holds for all tiles of the same route
// in the same run, so that weights of the next product of these experts are on their way before that product's inputs are.
#pragma once

#include "ccks/worker/vectors.hpp"
#include "ccks/worker/weight_stream.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of one tile of an expert_matmul.
struct ExpertRows {
  i32 expert = 0;
  u32 first = 0;  // routed row
  u32 count = 0;  // 0: the tile does not exist
  bool sound = true;
};

/// Of the experts [begin, begin + each) what each has taken; those from `end` on nothing. One that takes less than nothing or more than all rows takes more
/// than there are, which whoever adds sees.
template <class C, u32 kEach>
CCKS_INLINE void load_counts(const View<C>& count, u32 begin, u32 end, u32 rows, u32 (&taken)[kEach]) {
  i64 found[kEach];
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) found[i] = begin + i < end ? load_int(count.type, count.at(0, 0, 0, static_cast<i32>(begin + i)), 0) : 0;
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) taken[i] = found[i] >= 0 && found[i] <= rows ? static_cast<u32>(found[i]) : rows + 1;
}

/// What the counts of a route say, rows and row tiles of all experts before each, and, where there are no more than kMostNamed rows, what its source says of each.
struct RouteTable {
  static constexpr u32 kMost = kWorkerExperts ? static_cast<u32>(wire::kRoutedExperts) : 1, kMostNamed = kWorkerExperts ? 512 : 1, kNone = 0xffff;
  u32 rows_before[kMost + 1], tiles_before[kMost + 1];
  u16 named[kMostNamed];
  u32 experts, rows_per_tile;
  bool sound, names;

  /// Whether it holds for an op of that route.
  CCKS_INLINE bool is_for(const OpParams& op) const { return experts == static_cast<u32>(op.dims[2]) && rows_per_tile == static_cast<u32>(op.tile[2]); }
  /// Rows of the index-th row tile. The same from all who ask.
  CCKS_INLINE ExpertRows find(u32 index) const {
    ExpertRows found;
    found.sound = sound;
    if (!sound || index >= tiles_before[experts]) return found;
    u32 first = 0, end = experts;  // the last expert with no more tiles before it has one
    CCKS_NO_UNROLL
    while (end - first > 1) {
      const u32 middle = (first + end) / 2;
      const bool behind = tiles_before[middle] > index;
      first = behind ? first : middle;
      end = behind ? middle : end;
    }
    const u32 skipped = (index - tiles_before[first]) * rows_per_tile;
    found.expert = static_cast<i32>(first);
    found.first = rows_before[first] + skipped;
    found.count = least(rows_per_tile, rows_before[first + 1] - found.first);
    return found;
  }
};

/// Rows come through the L2: eight of a lane at a time.
template <class Lanes>
CCKS_INLINE void name_rows(Lanes& lanes, RouteTable& to, const Call& call, u32 rows) {
  constexpr u32 kWarp = Lanes::kWarp, kEach = 8;
  const i32* source = reinterpret_cast<const i32*>(operand_base(call.frame, call.operands[2]));
  u32 wide = rows > RouteTable::kMostNamed ? 1 : 0;
  CCKS_NO_UNROLL
  for (u32 first = lanes.lane() % kWarp; first < rows && rows <= RouteTable::kMostNamed; first += kEach * kWarp) {
    u32 found[kEach];
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) found[i] = first + i * kWarp < rows ? static_cast<u32>(source[first + i * kWarp]) : 0;
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) {
      if (found[i] >= RouteTable::kNone) wide = 1;
      if (first + i * kWarp < rows) to.named[first + i * kWarp] = static_cast<u16>(found[i]);
    }
  }
  CCKS_UNROLL
  for (u32 step = 1; step < kWarp; step *= 2) wide |= lanes.shuffle_xor(wide, step);
  to.names = wide == 0;
}

/// By lanes of a warp that share out the experts of a kOpRouted op, kRoutedExperts at most. Ends with all of the table there for all of them.
template <class Lanes>
CCKS_INLINE void make_table(Lanes& lanes, RouteTable& to, const Call& call) {
  constexpr u32 kWarp = Lanes::kWarp, kEach = wire::kRoutedExperts / kWarp;
  const u32 experts = static_cast<u32>(call.op.dims[2]), rows_per_tile = static_cast<u32>(call.op.tile[2]);
  const u32 rows = static_cast<u32>(call.operands[call.op.input_count].dim[2]);
  const auto count = make_view(call, 3, Fixed<Dtype::i32>{});
  const u32 each = ceil_div(experts, kWarp), lane = lanes.lane() % kWarp, begin = least(lane * each, experts), end = least(begin + each, experts);
  u32 held[kEach], taken = 0, tiles = 0;
  load_counts(count, begin, end, rows, held);
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    taken = least(taken + held[i], rows + 1);
    tiles += ceil_div(held[i], rows_per_tile);
  }
  u32 taken_before = 0, tiles_before = 0, all_taken = taken, all_tiles = tiles;
  CCKS_UNROLL
  for (u32 step = 1; step < kWarp; step *= 2) {
    const u32 other_taken = lanes.shuffle_xor(all_taken, step), other_tiles = lanes.shuffle_xor(all_tiles, step);
    if ((lane & step) != 0) taken_before += other_taken, tiles_before += other_tiles;
    all_taken += other_taken;  // of 32 lanes with no more than `rows` and one each
    all_tiles += other_tiles;
  }
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    if (begin + i < end) to.rows_before[begin + i] = taken_before, to.tiles_before[begin + i] = tiles_before;
    taken_before += held[i];
    tiles_before += ceil_div(held[i], rows_per_tile);
  }
  to.rows_before[experts] = all_taken;  // the same from all lanes
  to.tiles_before[experts] = all_tiles;
  to.experts = experts;
  to.rows_per_tile = rows_per_tile;
  to.sound = all_taken <= rows;
  name_rows(lanes, to, call, rows);
  lanes.sync_warp();
}

/// Where a tile of a kOpRouted op lies in the grid, without a division.
struct RoutedTile {
  u32 row, column;  // tiles
  CCKS_INLINE RoutedTile(const OpParams& op, u32 tile) {
    const u32 inverse = static_cast<u32>(op.dims[wire::kCoordinateDim]);
    row = inverse == 0 ? tile : static_cast<u32>(u64{tile} * inverse >> 32);
    column = tile - row * static_cast<u32>(op.grid[3]);
  }
  CCKS_INLINE u32 first(const OpParams& op) const { return column * static_cast<u32>(op.tile[3]); }
  CCKS_INLINE u32 columns(const Call& call) const {
    return least(static_cast<u32>(call.op.tile[3]), static_cast<u32>(call.operands[call.op.input_count].dim[3]) - first(call.op));
  }
};

/// In scratch, for the end of a body behind the sums: which rows its tile has; sound also says that there are all that are named.
inline constexpr u32 kRoutedRowsAt = kMinScratchBytes - 64;
template <class Lanes>
CCKS_INLINE ExpertRows& routed_rows(Lanes& lanes) {
  return *reinterpret_cast<ExpertRows*>(lanes.scratch() + kRoutedRowsAt);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

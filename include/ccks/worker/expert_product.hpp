// The product of a tile of rows of experts, gathered or not, with an expert's weights in columns, block by block: which walk a block is for, and the end of it. Of a matmul of many
// rows in packets likewise, where it has no body of its own.
//
// Where four warps multiply together an expert's rows are product_routed.hpp's walk, of as many rows as there are, more or less, so that an expert of three rows costs what one of eight
// does, and a matmul's product_group.hpp's or product_narrow.hpp's; else all are expert_warps.hpp's. Linked workers have the former as functions by name (linked_walks.hpp), since ptxas
// waits for each product in a function of the usual convention.
#pragma once

#include "ccks/worker/expert_warps.hpp"
#include "ccks/worker/finish_rows.hpp"
#include "ccks/worker/product_group.hpp"
#include "ccks/worker/product_routed.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Scratch that walks of these lanes want; none will do where weights come through a ring and warps multiply together.
template <class Lanes>
inline constexpr u32 kExpertScratchBytes = !GroupLanes<Lanes> ? kCudaExpertScratchBytes : kHasGroups ? kCudaGroupedScratchBytes : ~0u;

/// Whether packets of 16 bytes along k lie so that they can be copied, and scratch is large enough.
template <class Lanes, class Problem>
CCKS_INLINE bool expert_in_packets(Lanes& lanes, const Problem& p, u32 k) {
  constexpr u32 kPacket = 8;
  const u64 starts = reinterpret_cast<u64>(p.left.data) | reinterpret_cast<u64>(p.right.data);
  return lanes.scratch_bytes() >= kExpertScratchBytes<Lanes> && p.left.column_stride == 1 && p.right.row_stride == 1 && k % kPacket == 0 && k != 0 &&
         p.left.row_stride % kPacket == 0 && p.right.column_stride % kPacket == 0 && starts % 16 == 0;
}

/// Where a walk over a block has left its sums. at: null if a row is named that there is not; slice_rows: of each of two slices of k, else 0; twin: from a column's sum to its twin's.
struct ExpertSums {
  const float* at;
  u32 pitch, slice_rows, twin;
};

/// Rows of a block. kExperts: else of a matmul, which is nobody's rows.
template <class Lanes, bool kExperts = true>
inline constexpr u32 kRowsOfBlock = GroupLanes<Lanes> && kExperts ? kRoutedRows : kExpertRows;
/// Columns of a block of m rows, a twin's with them, where n are left of b's.
template <class Lanes, bool kExperts = true>
CCKS_INLINE constexpr u32 expert_block_columns(u32 m, u32 n, bool twin) {
  if constexpr (GroupLanes<Lanes> && !kExperts)
    return is_narrow(m, n) ? narrow_columns(n) : product_columns(n);
  else if constexpr (GroupLanes<Lanes>)
    return kRoutedColumns;
  else
    return twin ? 2 * kTwinColumns : expert_columns(n);
}
/// Not inlined and without the op's shape and epilogue: one copy for all of a program. Arguments one by one, which stay in registers.
template <Dtype kType, u32 kRows, class Lanes>
CCKS_OUTLINE bool walk_routed(Lanes& lanes, const u8* rows, const u8* columns, const u8* source, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k, u32 first,
                              u32 source_bytes, u32 divisor, i64 limit, bool wide, const u8* twin_columns) {
  const ExpertWindow window{rows, columns, source, row_bytes, column_bytes, m, n, k, first, source_bytes, divisor, limit, wide, twin_columns};
  return RoutedWalk<kType, kRows, Lanes>(lanes, window).run();
}
/// The walk of a block, by four warps together. False: a row is named that there is not.
template <Dtype kType, class Lanes>
CCKS_INLINE bool walk_block_of_expert(Lanes& lanes, const ExpertWindow& w) {
  const auto with = [&](auto walk) {
    return walk(w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first, w.source_bytes, w.divisor, w.limit, w.wide, w.twin_columns);
  };
#if CCKS_LINKED_WALKS
  return with([](auto... of) { return (kType == Dtype::bf16 ? ccks_walk_experts_bf16 : ccks_walk_experts_f16)(of...); });
#else
  switch (routed_rows(w.m)) {
    case 16: return with([&](auto... of) { return walk_routed<kType, 16>(lanes, of...); });
    case 32: return with([&](auto... of) { return walk_routed<kType, 32>(lanes, of...); });
    case 48: return with([&](auto... of) { return walk_routed<kType, 48>(lanes, of...); });
    case 64: return with([&](auto... of) { return walk_routed<kType, 64>(lanes, of...); });
    case 96: return with([&](auto... of) { return walk_routed<kType, 96>(lanes, of...); });
    case 128: return with([&](auto... of) { return walk_routed<kType, 128>(lanes, of...); });
    case 160: return with([&](auto... of) { return walk_routed<kType, 160>(lanes, of...); });
    case 192: return with([&](auto... of) { return walk_routed<kType, 192>(lanes, of...); });
    default: return with([&](auto... of) { return walk_routed<kType, 256>(lanes, of...); });
  }
#endif
}

/// Sums of a block of at most kRowsOfBlock rows and, as expert_block_columns says, `columns`. All lanes call it, done with scratch. Of a matmul by the walks that its program has anyway.
template <Dtype kType, bool kExperts, class Lanes>
CCKS_INLINE ExpertSums multiply_block_of_expert(Lanes& lanes, const ExpertWindow& w, u32 columns) {
  if constexpr (GroupLanes<Lanes> && !kExperts) {
    multiply_packets<kType>(lanes, GroupedWindow{w.rows + u64{w.first} * w.row_bytes, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k});
    const float* sums = reinterpret_cast<const float*>(grouped_scratch(lanes));
    if (is_narrow(w.m, w.n)) return {sums, narrow_pitch(columns), kNarrowRows, 0};
    return {sums, grouped_pitch(columns), 0, 0};
  } else if constexpr (GroupLanes<Lanes>) {
    const float* sums = walk_block_of_expert<kType>(lanes, w) ? reinterpret_cast<const float*>(grouped_scratch(lanes)) : nullptr;
    return {sums, kRoutedPitch, 0, columns / 2};
  } else {
    const u32 slice_rows = walk_expert_rows<kType>(lanes, w, columns);
    return {slice_rows == kUnsound ? nullptr : reinterpret_cast<const float*>(lanes.scratch() + kExpertTableBytes), expert_pitch(columns), slice_rows, kTwinColumns};
  }
}

/// SumsOf by rows of the problem, which count from the tile's first; sums count from the block's, `i0`.
struct BlockSums {
  static constexpr u32 kRowsAtOnce = SumsOf::kRowsAtOnce;
  SumsOf sums;
  u32 twin_at, i0;

  CCKS_INLINE void operator()(u32 i, float* to) const { sums(i - i0, to); }
  CCKS_INLINE void twin(u32 i, float* to) const { SumsOf{sums.at + twin_at, sums.pitch, sums.slice_rows}(i - i0, to); }
};

/// What a walk over a block of m rows and n columns left in scratch, brought together and finished. at_once: columns of b in a block.
template <class Lanes, class Problem>
CCKS_INLINE void finish_expert(Lanes& lanes, const Problem& problem, u32 i0, u32 j0, u32 m, u32 n, u32 at_once, const ExpertSums& left) {
  constexpr bool kTwin = TwinnedCode<typename Problem::Epilogue>;
  const auto [j, first, step] = share_of_block<Lanes::kLanes>(lanes.lane(), at_once);
  if (j >= n) return;
  const BlockSums sums{{left.at + j, left.pitch, left.slice_rows}, left.twin, i0};
  if (n - j >= kVector && finish_rows(problem, problem.args, problem.expr, i0 + first, step, i0 + m, j0 + j, sums)) return;
  CCKS_NO_UNROLL
  for (u32 i = i0 + first; i < i0 + m; i += step) {
    float all[kVector];
    sums(i, all);
    if constexpr (kTwin) {
      float twin[kVector];
      sums.twin(i, twin);
      problem.finish_four_twins(i, j0 + j, least(kVector, n - j), all, twin);
    } else {
      problem.finish_four(i, j0 + j, least(kVector, n - j), all);
    }
  }
}

template <class Tile>
concept TwinTile = requires(const Tile& tile) { tile.twin_columns(); };

/// The product of a tile of m rows and n columns, or of a TwinTile both; rows of x are those that tile.problem().row names. Only where expert_in_packets. What the walk and what
/// the end want of the op is found out apart: kept over the walk it would lie in memory, from which weights drive it. limit: of what names rows; false:
/// one is named that there is not.
template <class Lanes, class Tile>
CCKS_INLINE bool multiply_expert(Lanes& lanes, const Tile& tile, u32 m, u32 n, u32 k, i64 limit) {
  CCKS_NO_UNROLL
  for (u32 i0 = 0; i0 < m; i0 += kRowsOfBlock<Lanes, Tile::kExperts>) {
    const u32 here = least(kRowsOfBlock<Lanes, Tile::kExperts>, m - i0);
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < n;) {
      const u32 block = expert_block_columns<Lanes, Tile::kExperts>(here, n - j0, TwinTile<Tile>), at_once = TwinTile<Tile> ? block / 2 : block, columns = least(at_once, n - j0);
      ExpertSums sums;
      {
        const auto p = tile.problem();
        const bool gathers = p.table.source != nullptr, wide = wire::dtype_bytes(p.source_type.get()) == 8;
        const u32 column_bytes = static_cast<u32>(p.right.column_stride) * 2, source_bytes = gathers ? static_cast<u32>(p.table.stride) * (wide ? 8 : 4) : 0;
        const u8* twin_columns = nullptr;
        if constexpr (TwinTile<Tile>) twin_columns = tile.twin_columns() + u64{j0} * column_bytes;
        const ExpertWindow window{p.left.data, p.right.data + u64{j0} * column_bytes, gathers ? p.table.source + u64{i0} * source_bytes : nullptr,
                                  static_cast<u32>(p.left.row_stride) * 2, column_bytes, here, columns, k,
                                  i0, source_bytes, p.table.divisor, limit, wide, twin_columns};
        lanes.sync();  // what lies in scratch is read to the end
        sums = multiply_block_of_expert<decltype(p.left.type)::kDtype, Tile::kExperts>(lanes, window, block);
      }
      if (sums.at == nullptr) return false;
      finish_expert(lanes, tile.problem(), i0, j0, here, columns, at_once, sums);
      j0 += at_once;
    }
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Products of 9 to 64 rows, 16-bit floats that lie along k in both operands, by groups of four warps (GroupLanes): what a step of as many sequences multiplies. Weights are
// the units' 64 rows, rows of x their columns, so that 16 rows cost what memory needs for the weights, and not four times as much.
//
// Stages have 128 elements along k of all rows and of 64 or 128 columns, in two halves: each group of warps multiplies one of them, and their sums are added at the end. All
// but one stage are on their way. Rows may be gathered, and an expert's few are multiplied likewise (expert_product.hpp): which rows they are is asked for in front of the
// first weights and looked at behind those. The walk calls nothing: ptxas waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/expert_window.hpp"
#include "ccks/worker/linked_walks.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Where sums begin in scratch, and stages before that.
template <class Lanes>
CCKS_INLINE u8* grouped_scratch(Lanes& lanes) {
  constexpr u32 kAlign = 1024;
  u8* scratch = lanes.scratch();
  const u32 over = static_cast<u32>(reinterpret_cast<u64>(scratch)) % kAlign;
  return scratch + (over == 0 ? 0 : kAlign - over);
}

inline constexpr u32 kNarrowRows = wire::kNarrowTile;
/// Columns of a block for a tile of n.
CCKS_INLINE constexpr u32 narrow_columns(u32 n) { return n <= 64 ? 64 : 128; }
/// From one row of sums to the next, in floats: lanes of a warp store to different banks.
CCKS_INLINE constexpr u32 narrow_pitch(u32 columns) { return columns + 4; }

/// Blocks of kRows, 8 to 64, by kColumns; groups of four warps have 64 elements along k of each stage. kExperts: with a twin the second half of its columns, and weights that
/// nobody reads again soon.
template <Dtype kType, u32 kColumns, u32 kRows, bool kExperts, class Lanes>
class NarrowWalk {
 public:
  static constexpr u32 kHalfBytes = (kRows + kColumns) * kExpertRowBytes, kStageBytes = 2 * kHalfBytes, kPitch = narrow_pitch(kColumns);
  static constexpr u32 kStages = (kCudaGroupedScratchBytes - 1024 + 128) / kStageBytes, kAhead = kStages - 1;
  static constexpr u32 kBlocks = kColumns / 64, kDepth = 2 * (kExpertRowBytes / 2);
  static constexpr u32 kLinesAtOnce = Lanes::kLanes / 16, kRowCopies = ceil_div(kRows, kLinesAtOnce), kColumnCopies = kColumns / kLinesAtOnce;
  static_assert(Lanes::kLanes == 2 * 4 * Lanes::kWarp && kStages >= 3 && kLinesAtOnce % 8 == 0 && 2 * kRows * kPitch * sizeof(float) <= kStages * kStageBytes);
  static_assert(kRows % 8 == 0 && (!kExperts || kColumns == 2 * kTwinColumns));

  /// Rows and columns that there are not are whatever lies in the stage: nobody keeps their sums.
  CCKS_INLINE NarrowWalk(Lanes& lanes, const ExpertWindow& w) : lanes_(lanes), w_(w), rows_(w, lanes.lane() / 16) {
    const u32 line = lanes.lane() / 16, packet = lanes.lane() % 16 * 16;
    stages_ = grouped_scratch(lanes);
    columns_ = w.columns + u64{line} * w.column_bytes + packet;
    if constexpr (kExperts) twins_ = w.twin_columns == nullptr ? nullptr : w.twin_columns + u64{line} * w.column_bytes + packet;
  }

  /// Sums [half of k][row][kPitch] at grouped_scratch, there for all lanes. False: a row is named that there is not.
  CCKS_INLINE bool run() {
    const u32 steps = ceil_div(w_.k, kDepth);
    fetch_columns(0);
    rows_.find(w_, lanes_.lane() % 16 * 16);
    CCKS_NO_UNROLL
    for (u32 s = 0; s < kAhead; ++s) {
      if (s != 0) fetch_columns(s);
      fetch_rows(s);
      lanes_.commit_copies();
    }
    clear();
    const u32 half = lanes_.lane() / (4 * Lanes::kWarp);
    u32 stage = 0, next = kAhead;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.template await_copies<kAhead - 1>();
      lanes_.show_copies();
      lanes_.template await_groups_before<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage that is fetched next
      fetch_columns(next);
      fetch_rows(next);
      lanes_.commit_copies();
      const u8* at = stages_ + stage * kStageBytes + half * kHalfBytes;
      CCKS_UNROLL
      for (u32 block = 0; block < kBlocks; ++block)
        lanes_.template multiply_group<kType>(sum_[block], at + (kRows + block * 64) * kExpertRowBytes, at);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block) lanes_.await_group(sum_[block]);
    lanes_.template await_copies<0>();
    lanes_.sync();
    put(half);
    if (w_.source != nullptr) return lanes_.max(rows_.missing()) == 0;  // a barrier, too
    lanes_.sync();
    return true;
  }

 private:
  /// Where this lane's packet of a line goes: in its half, of which eight lines are 1,024 bytes.
  CCKS_INLINE u8* place(u32 stage) const {
    const u32 line = lanes_.lane() / 16, part = lanes_.lane() % 16;
    return stages_ + stage * kStageBytes + part / 8 * kHalfBytes + line * kExpertRowBytes + (part % 8 ^ line % 8) * 16;
  }
  /// The next step's. Behind k there is zero.
  CCKS_INLINE void fetch_columns(u32 stage) {
    if (column_depth_ < w_.k) {
      u8* to = place(stage) + kRows * kExpertRowBytes;
      const bool there = column_depth_ + lanes_.lane() % 16 * 8 < w_.k;
      const u32 step = w_.column_bytes * kLinesAtOnce;
      const u8* from = columns_;
      u32 line = lanes_.lane() / 16;
      CCKS_UNROLL
      for (u32 i = 0; i < kColumnCopies; ++i) {
        if constexpr (kExperts) {
          if (i == kColumnCopies / 2 && twins_ != nullptr) {
            from = twins_;
            line -= kTwinColumns;
          }
        }
        if (line + i * kLinesAtOnce < w_.n) copy_packet<kExperts>(lanes_, to + i * kLinesAtOnce * kExpertRowBytes, from, there);
        from += step;
      }
      columns_ += 2 * kExpertRowBytes;
      if constexpr (kExperts) {
        if (twins_ != nullptr) twins_ += 2 * kExpertRowBytes;
      }
      column_depth_ += kDepth;
    }
  }
  CCKS_INLINE void fetch_rows(u32 stage) {
    if (row_depth_ < w_.k) {
      u8* to = place(stage);
      const bool there = row_depth_ + lanes_.lane() % 16 * 8 < w_.k;
      const u32 line = lanes_.lane() / 16;
      CCKS_UNROLL
      for (u32 i = 0; i < kRowCopies; ++i) {
        if (line + i * kLinesAtOnce < w_.m) lanes_.copy_sixteen(to + i * kLinesAtOnce * kExpertRowBytes, rows_.row(i), there);
      }
      rows_.step(2 * kExpertRowBytes);
      row_depth_ += kDepth;
    }
  }
  CCKS_INLINE void clear() {
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block)
      for (u32 j = 0; j < kRows / 8; ++j)
        for (u32 q = 0; q < 4; ++q) sum_[block][j][q] = 0;
  }
  CCKS_INLINE void put(u32 half) const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, warp = lanes_.lane() / Lanes::kWarp % 4;
    float* to = reinterpret_cast<float*>(stages_) + (half * kRows + lane % 4 * 2) * kPitch + warp * 16 + lane / 4;
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block) {
      CCKS_UNROLL
      for (u32 j = 0; j < kRows / 8; ++j) {
        CCKS_UNROLL
        for (u32 q = 0; q < 4; ++q) to[(j * 8 + q % 2) * kPitch + block * 64 + q / 2 * 8] = sum_[block][j][q];
      }
    }
  }

  Lanes& lanes_;
  const ExpertWindow& w_;
  GatheredRows<kRowCopies, kLinesAtOnce> rows_;
  const u8 *columns_, *twins_ = nullptr;  // of this lane, of the step that is fetched next
  u8* stages_;
  u32 column_depth_ = 0, row_depth_ = 0;
  float sum_[kBlocks][kRows / 8][4];
};

template <Dtype kType, u32 kColumns, class Lanes>
CCKS_OUTLINE bool walk_narrow(Lanes& lanes, const u8* rows, const u8* columns, const u8* source, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k, u32 first,
                              u32 source_bytes, u32 divisor, i64 limit, bool wide) {
  const ExpertWindow window{rows, columns, source, row_bytes, column_bytes, m, n, k, first, source_bytes, divisor, limit, wide};
  return NarrowWalk<kType, kColumns, kNarrowRows, false, Lanes>(lanes, window).run();
}
/// Sums of a block of narrow_columns(w.n), two halves of k of kNarrowRows rows each, from grouped_scratch on. False: a row is named that there is not.
template <Dtype kType, class Lanes>
CCKS_INLINE bool multiply_narrow(Lanes& lanes, const ExpertWindow& w) {
#if CCKS_LINKED_WALKS
  constexpr bool kBf16 = kType == Dtype::bf16;
  // By name, each: a call through an address would be of the usual convention.
  if (narrow_columns(w.n) == 64)
    return (kBf16 ? ccks_walk_narrow_64_bf16 : ccks_walk_narrow_64_f16)(w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first,
                                                                        w.source_bytes, w.divisor, w.limit, w.wide);
  return (kBf16 ? ccks_walk_narrow_128_bf16 : ccks_walk_narrow_128_f16)(w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first,
                                                                        w.source_bytes, w.divisor, w.limit, w.wide);
#else
  if (narrow_columns(w.n) == 64)
    return walk_narrow<kType, 64>(lanes, w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first, w.source_bytes, w.divisor, w.limit, w.wide);
  return walk_narrow<kType, 128>(lanes, w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first, w.source_bytes, w.divisor, w.limit, w.wide);
#endif
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

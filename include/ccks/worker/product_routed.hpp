// Products of an expert's rows with 128 of its columns, or 64 and as many of a twin, 16-bit floats that lie along k in both operands, by groups of four warps (GroupLanes): of all rows that an
// expert has, mostly, so that its weights are read once.
//
// Weights are the units' 64 rows, half of the columns each group's; rows of x are their columns, as few as there are variants for. Stages have 64 elements along k, and all but one are on
// their way, of most rows all but half of one: that was worth more than products of two stages under way at a time, so warps wait for their products before they meet. Rows may be gathered:
// which they are is asked for in front of the first weights and looked at behind those. The walk calls nothing: ptxas waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/expert_window.hpp"
#include "ccks/worker/product_narrow.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kRoutedRows = wire::kRoutedTile;  // of a block at most
inline constexpr u32 kRoutedColumns = 2 * kTwinColumns;
/// From one row of sums to the next, in floats: lanes of a warp store to different banks.
inline constexpr u32 kRoutedPitch = kRoutedColumns + 4;

/// Rows of a walk for m. What lies between two variants is multiplied for nothing; what is copied is what there is.
CCKS_INLINE constexpr u32 routed_rows(u32 m) {
  if (m <= 64) return m <= 16 ? 16 : m <= 32 ? 32 : m <= 48 ? 48 : 64;
  return m <= 96 ? 96 : m <= 128 ? 128 : m <= 160 ? 160 : m <= 192 ? 192 : 256;
}

/// Bytes of each line that a step takes. Of most rows there is room for three stages alone: by halves five sixths of them are on their way, not two thirds. Where there are more stages, half
/// as many bytes in a piece cost more than that gains.
CCKS_INLINE constexpr u32 routed_step_bytes(u32 rows) { return rows == kRoutedRows ? kExpertRowBytes / 2 : kExpertRowBytes; }

/// Blocks of kRows, as routed_rows says.
template <Dtype kType, u32 kRows, class Lanes>
class RoutedWalk {
 public:
  static constexpr u32 kColumns = kRoutedColumns, kLineBytes = kExpertRowBytes, kStageBytes = (kRows + kColumns) * kLineBytes;
  static constexpr u32 kStepBytes = routed_step_bytes(kRows), kDepth = kStepBytes / 2, kParts = kLineBytes / kStepBytes, kPackets = kStepBytes / 16;
  static constexpr u32 kStages = (kCudaGroupedScratchBytes - kCudaKeptBytes - 1024 + 128) / kStageBytes, kSlots = kStages * kParts, kAhead = kSlots - 1;
  static constexpr u32 kLinesAtOnce = Lanes::kLanes / kPackets, kRowCopies = ceil_div(kRows, kLinesAtOnce), kColumnCopies = kColumns / kLinesAtOnce;
  static_assert(Lanes::kLanes == 2 * 4 * Lanes::kWarp && kStages >= 3 && kLinesAtOnce % 8 == 0 && kRows % 8 == 0);
  static_assert(kRows * kRoutedPitch * sizeof(float) <= kStages * kStageBytes);

  /// Rows and columns that there are not are zeros, copied so that a copy wants no predicate of its own, or whatever lies in the stage: nobody keeps their sums.
  CCKS_INLINE RoutedWalk(Lanes& lanes, const ExpertWindow& w) : lanes_(lanes), w_(w), rows_(w, lanes.lane() / kPackets) {
    const u32 line = lanes.lane() / kPackets, packet = lanes.lane() % kPackets * 16;
    stages_ = grouped_scratch(lanes);
    const bool twin = w.twin_columns != nullptr;
    const u64 at = u64{line} * w.column_bytes + packet;
    first_ = w.columns + at;
    second_ = (twin ? w.twin_columns : w.columns + u64{kTwinColumns} * w.column_bytes) + at;
    of_first_ = least(w.n, kTwinColumns);
    of_second_ = twin ? w.n : w.n - of_first_;
  }

  /// Sums [row][kRoutedPitch] at grouped_scratch, there for all lanes. False: a row is named that there is not.
  CCKS_INLINE bool run() {
    fetch_columns(0);
    rows_.find(w_, lanes_.lane() % kPackets * 16);
    fetch_rows(0);
    end_step();
    CCKS_NO_UNROLL
    for (u32 s = 1; s < kAhead; ++s) fetch(s);
    const u32 steps = ceil_div(w_.k, kDepth), group = lanes_.lane() / (4 * Lanes::kWarp);
    u32 stage = 0, next = kAhead, step = 0;
    CCKS_NO_UNROLL
    do {
      lanes_.template await_copies<kAhead - 1>();
      lanes_.show_copies();
      lanes_.template await_groups_before<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage that is fetched next
      const u32 at = stage / kParts * kStageBytes;
      lanes_.template multiply_parts<kType, kDepth / 16>(sum_, stages_, at + (kRows + group * 64) * kLineBytes, at, stage % kParts * (kDepth / 16), step != 0);
      fetch(next);
      stage = stage + 1 == kSlots ? 0 : stage + 1;
      next = next + 1 == kSlots ? 0 : next + 1;
    } while (++step < steps);
    lanes_.await_group(sum_);
    lanes_.template await_copies<0>();
    lanes_.sync();
    put(group);
    if (w_.source != nullptr) return lanes_.max(rows_.missing()) == 0;  // a barrier, too
    lanes_.sync();
    return true;
  }

 private:
  CCKS_INLINE u8* place(u32 stage) const {
    const u32 line = lanes_.lane() / kPackets, part = stage % kParts * kPackets + lanes_.lane() % kPackets;
    return stages_ + stage / kParts * kStageBytes + line * kLineBytes + (part ^ line % 8) * 16;
  }
  CCKS_INLINE void fetch(u32 stage) {
    if (depth_ < w_.k) {
      fetch_columns(stage);
      fetch_rows(stage);
    }
    end_step();
  }
  CCKS_INLINE void end_step() {
    depth_ += kDepth;
    lanes_.commit_copies();
  }
  /// Behind k there is zero.
  CCKS_INLINE bool is_within() const { return depth_ + lanes_.lane() % kPackets * 8 < w_.k; }
  CCKS_INLINE void fetch_columns(u32 stage) {
    u8* to = place(stage) + kRows * kLineBytes;
    const bool there = is_within();
    const u32 step = w_.column_bytes * kLinesAtOnce, line = lanes_.lane() / kPackets;
    CCKS_UNROLL
    for (u32 i = 0; i < kColumnCopies; ++i) {
      constexpr u32 kHalf = kColumnCopies / 2;
      const u32 of_half = i % kHalf;
      const bool wanted = line + of_half * kLinesAtOnce < (i < kHalf ? of_first_ : of_second_);
      copy_packet<true>(lanes_, to + i * kLinesAtOnce * kLineBytes, (i < kHalf ? first_ : second_) + of_half * step, wanted && there);
    }
    first_ += kStepBytes;
    second_ += kStepBytes;
  }
  CCKS_INLINE void fetch_rows(u32 stage) {
    u8* to = place(stage);
    const bool there = is_within();
    const u32 line = lanes_.lane() / kPackets;
    CCKS_UNROLL
    for (u32 i = 0; i < kRowCopies; ++i) {
      constexpr bool kFills = kRows % kLinesAtOnce == 0;  // else copies would go on behind the rows
      const bool wanted = line + i * kLinesAtOnce < w_.m;
      if (kFills || wanted) lanes_.copy_sixteen(to + i * kLinesAtOnce * kLineBytes, rows_.row(i), wanted && there);
    }
    rows_.step(kStepBytes);
  }
  CCKS_INLINE void put(u32 group) const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, warp = lanes_.lane() / Lanes::kWarp % 4;
    float* to = reinterpret_cast<float*>(stages_) + lane % 4 * 2 * kRoutedPitch + group * 64 + warp * 16 + lane / 4;
    CCKS_UNROLL
    for (u32 j = 0; j < kRows / 8; ++j) {
      CCKS_UNROLL
      for (u32 q = 0; q < 4; ++q) to[(j * 8 + q % 2) * kRoutedPitch + q / 2 * 8] = sum_[j][q];
    }
  }

  Lanes& lanes_;
  const ExpertWindow& w_;
  GatheredRows<kRowCopies, kLinesAtOnce> rows_;
  const u8 *first_, *second_;  // of this lane, of the step that is fetched next: of the first half of the block's columns and of the second, b's or the twin's
  u32 of_first_, of_second_;   // how many columns there are of each
  u8* stages_;
  u32 depth_ = 0;
  float sum_[kRows / 8][4];
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Products of 9 to 64 rows, 16-bit floats that lie along k in both operands, by groups of four warps (GroupLanes): what a step of as many sequences multiplies. Weights are
// the units' 64 rows, rows of x their columns, so that 16 rows cost what memory needs for the weights, and not four times as much.
//
// Stages have 128 elements along k of all rows and of 64 or 128 columns, in two halves: each group of warps multiplies one of them, and their sums are added at the end. All
// but one stage are on their way. The walk calls nothing: ptxas waits for each product in a function that calls another.
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

/// m rows and n columns of k elements, and from one to the next.
struct GroupedWindow {
  const u8 *rows, *columns;
  u32 row_bytes, column_bytes, m, n, k;
};

/// Rows of x, at the same distance from one to the next, that a lane copies packets of: its own, and every kStep-th from there on.
template <u32 kStep>
class EvenRows {
 public:
  CCKS_INLINE EvenRows(const GroupedWindow& w, u32 line, u32 packet) : at_(w.rows + u64{line} * w.row_bytes + packet), step_(w.row_bytes * kStep) {}
  CCKS_INLINE const u8* row(u32 i) const { return at_ + u64{i} * step_; }
  CCKS_INLINE void step(u32 bytes) { at_ += bytes; }

 private:
  const u8* at_;
  u32 step_;
};

inline constexpr u32 kNarrowRows = wire::kNarrowTile;
/// Columns of a block for a tile of n.
CCKS_INLINE constexpr u32 narrow_columns(u32 n) { return n <= 64 ? 64 : 128; }
/// From one row of sums to the next, in floats: lanes of a warp store to different banks.
CCKS_INLINE constexpr u32 narrow_pitch(u32 columns) { return columns + 4; }

/// Blocks of kNarrowRows by kColumns; groups of four warps have 64 elements along k of each stage.
template <Dtype kType, u32 kColumns, class Lanes>
class NarrowWalk {
 public:
  static constexpr u32 kRows = kNarrowRows;
  static constexpr u32 kHalfBytes = (kRows + kColumns) * kExpertRowBytes, kStageBytes = 2 * kHalfBytes, kPitch = narrow_pitch(kColumns);
  static constexpr u32 kStages = (kCudaGroupedScratchBytes - 1024 + 128) / kStageBytes, kAhead = kStages - 1;
  static constexpr u32 kBlocks = kColumns / 64, kDepth = 2 * (kExpertRowBytes / 2);
  static constexpr u32 kLinesAtOnce = Lanes::kLanes / 16, kRowCopies = ceil_div(kRows, kLinesAtOnce), kColumnCopies = kColumns / kLinesAtOnce;
  static_assert(Lanes::kLanes == 2 * 4 * Lanes::kWarp && kStages >= 3 && kLinesAtOnce % 8 == 0 && 2 * kRows * kPitch * sizeof(float) <= kStages * kStageBytes);

  /// Rows and columns that there are not are whatever lies in the stage: nobody keeps their sums.
  CCKS_INLINE NarrowWalk(Lanes& lanes, const GroupedWindow& w) : lanes_(lanes), w_(w), rows_(w, lanes.lane() / 16, lanes.lane() % 16 * 16) {
    const u32 line = lanes.lane() / 16, packet = lanes.lane() % 16 * 16;
    stages_ = grouped_scratch(lanes);
    columns_ = w.columns + u64{line} * w.column_bytes + packet;
  }

  /// Sums [half of k][row][kPitch] at grouped_scratch, there for all lanes.
  CCKS_INLINE void run() {
    const u32 steps = ceil_div(w_.k, kDepth);
    CCKS_NO_UNROLL
    for (u32 s = 0; s < kAhead; ++s) fetch(s);
    clear();
    const u32 half = lanes_.lane() / (4 * Lanes::kWarp);
    u32 stage = 0, next = kAhead;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.template await_copies<kAhead - 1>();
      lanes_.show_copies();
      lanes_.template await_groups_before<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage that is fetched next
      fetch(next);
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
    lanes_.sync();
  }

 private:
  /// Where this lane's packet of a line goes: in its half, of which eight lines are 1,024 bytes.
  CCKS_INLINE u8* place(u32 stage) const {
    const u32 line = lanes_.lane() / 16, part = lanes_.lane() % 16;
    return stages_ + stage * kStageBytes + part / 8 * kHalfBytes + line * kExpertRowBytes + (part % 8 ^ line % 8) * 16;
  }
  /// The next step's. Behind k there is zero.
  CCKS_INLINE void fetch(u32 stage) {
    if (depth_ < w_.k) {
      u8* to = place(stage);
      const bool there = depth_ + lanes_.lane() % 16 * 8 < w_.k;
      const u32 line = lanes_.lane() / 16, step = w_.column_bytes * kLinesAtOnce;
      const u8* from = columns_;
      CCKS_UNROLL
      for (u32 i = 0; i < kColumnCopies; ++i) {
        if (line + i * kLinesAtOnce < w_.n) lanes_.copy_sixteen(to + (kRows + i * kLinesAtOnce) * kExpertRowBytes, from, there);
        from += step;
      }
      CCKS_UNROLL
      for (u32 i = 0; i < kRowCopies; ++i) {
        if (line + i * kLinesAtOnce < w_.m) lanes_.copy_sixteen(to + i * kLinesAtOnce * kExpertRowBytes, rows_.row(i), there);
      }
      columns_ += 2 * kExpertRowBytes;
      rows_.step(2 * kExpertRowBytes);
      depth_ += kDepth;
    }
    lanes_.commit_copies();
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
  const GroupedWindow& w_;
  EvenRows<kLinesAtOnce> rows_;
  const u8* columns_;  // of this lane, of the step that is fetched next
  u8* stages_;
  u32 depth_ = 0;
  float sum_[kBlocks][kRows / 8][4];
};

template <Dtype kType, u32 kColumns, class Lanes>
CCKS_OUTLINE void walk_narrow(Lanes& lanes, const u8* rows, const u8* columns, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k) {
  const GroupedWindow window{rows, columns, row_bytes, column_bytes, m, n, k};
  NarrowWalk<kType, kColumns, Lanes>(lanes, window).run();
}
/// Sums of a block of narrow_columns(w.n), two halves of k of kNarrowRows rows each, from grouped_scratch on.
template <Dtype kType, class Lanes>
CCKS_INLINE void multiply_narrow(Lanes& lanes, const GroupedWindow& w) {
  const auto with = [&](auto walk) { walk(w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k); };
#if CCKS_LINKED_WALKS
  constexpr bool kBf16 = kType == Dtype::bf16;
  // By name, each: a call through an address would be of the usual convention.
  if (narrow_columns(w.n) == 64) return with([](auto... of) { (kBf16 ? ccks_walk_narrow_64_bf16 : ccks_walk_narrow_64_f16)(of...); });
  with([](auto... of) { (kBf16 ? ccks_walk_narrow_128_bf16 : ccks_walk_narrow_128_f16)(of...); });
#else
  if (narrow_columns(w.n) == 64) return with([&](auto... of) { walk_narrow<kType, 64>(lanes, of...); });
  with([&](auto... of) { walk_narrow<kType, 128>(lanes, of...); });
#endif
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Few rows of experts, block of columns after block, without a rest between: what a share of an expert_matmul (expert_share.hpp) is mostly made of. One group of four warps
// asks for weights, and for the rows beside them, as far ahead as there are stages, whatever block those are of; the other multiplies what is there, and finishes a block while
// the next is on its way. Where the same warps do both, memory is asked for nothing from the last step of a block to the first of the next: a block of 128 columns by 768 took
// six steps, and as long again to begin and to end (worker/README.md, 2026-11-29).
//
// Memory ordering, in shared memory
//   stages  written by copies of the filling lanes, each of which arrives at the stage's `full` when its own have ended [XS3]; who multiplies waits there [XS2] and looks
//           through the asynchronous proxy from then on. The other way `empty`, where warps arrive [XS1] behind the products' end and who fills waits [XS2]
//   sums    of the multiplying group alone, between its own barriers
#pragma once

#include "ccks/worker/expert_share.hpp"
#include "ccks/worker/product_narrow.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Lanes of which groups of four warps meet apart from each other, and over barriers in shared memory that count arrivals.
template <class Lanes>
concept RingLanes = GroupLanes<Lanes> && requires(Lanes& lanes, u64* barrier) {
  lanes.begin_barrier(barrier, u32{});
  lanes.arrive_barrier(barrier);
  lanes.arrive_when_copied(barrier);
  lanes.await_barrier(barrier, u32{});
  lanes.end_barrier(barrier);
  lanes.sync_group(u32{});
};

inline constexpr u32 kRingRows = 32;       // of more rows stages are fewer, and rows as much as weights
inline constexpr u32 kRingHalfRows = 16;   // of a block of half as many columns, at most

/// Whether stages of a block of so many rows and columns, of `most`, have twice as much along k: its few columns take as many bytes under way as others do, and no longer than they should.
CCKS_INLINE constexpr bool is_half_block(u32 rows, u32 columns, u32 most) { return rows <= kRingHalfRows && columns <= most / 2; }

/// What both groups have in scratch: stages of 64 elements along k, of kRingRows rows and kColumns columns, or of 128 of half as many, behind them sums [row][kPitch], and at the
/// end of what walks have two barriers a stage, so that other walks may come between two blocks.
template <class Lanes>
class ExpertRing {
 public:
  static constexpr u32 kColumns = 128, kStages = 7, kPitch = narrow_pitch(kColumns), kDepth = kExpertRowBytes / 2;
  static constexpr u32 kRowsBytes = kRingRows * kExpertRowBytes, kStageBytes = kRowsBytes + kColumns * kExpertRowBytes;
  static constexpr u32 kGroup = 4 * Lanes::kWarp, kGroupWarps = 4;  // who multiplies, then who fills
  static constexpr u32 kBarriersBytes = 128;
  static_assert(Lanes::kLanes == 2 * kGroup && 2 * kStages * sizeof(u64) <= kBarriersBytes && kStageBytes % 1024 == 0);
  static_assert(kStages * kStageBytes + kRingRows * kPitch * sizeof(float) + 1024 + kBarriersBytes <= kCudaGroupedScratchBytes);

  CCKS_INLINE explicit ExpertRing(Lanes& lanes) : lanes_(lanes), stages_(grouped_scratch(lanes)) {}

  CCKS_INLINE u8* stage(u32 i) const { return stages_ + i * kStageBytes; }
  CCKS_INLINE float* sums() const { return reinterpret_cast<float*>(stages_ + kStages * kStageBytes); }
  CCKS_INLINE u64* full(u32 i) const { return reinterpret_cast<u64*>(lanes_.scratch() + kCudaGroupedScratchBytes - kBarriersBytes) + i; }
  CCKS_INLINE u64* empty(u32 i) const { return full(kStages + i); }
  CCKS_INLINE bool multiplies() const { return lanes_.lane() < kGroup; }

  /// All lanes, both: done with scratch before, and with the ring.
  CCKS_INLINE void begin() const {
    lanes_.sync();
    if (lanes_.lane() < 2 * kStages) lanes_.begin_barrier(full(lanes_.lane()), lanes_.lane() < kStages ? kGroup : kGroupWarps);
    lanes_.sync();
  }
  CCKS_INLINE void end() const {
    lanes_.sync();
    if (lanes_.lane() < 2 * kStages) lanes_.end_barrier(full(lanes_.lane()));
  }

 private:
  Lanes& lanes_;
  u8* stages_;
};

/// A stage, and how often it has been used before.
struct RingPlace {
  u32 stage = 0, round = 0;
  template <class Ring>
  CCKS_INLINE void step() {
    if (++stage == Ring::kStages) stage = 0, ++round;
  }
};

/// Who fills. A lane has a packet of every sixteenth line of a stage. What it goes by is found out once for all blocks of a part: while it is, memory is asked for nothing.
template <class Lanes>
class RingFiller {
 public:
  using Ring = ExpertRing<Lanes>;
  static constexpr u32 kLines = Ring::kGroup / 8, kRowCopies = kRingRows / kLines, kColumnCopies = Ring::kColumns / kLines;
  static_assert(kLines % 8 == 0 && kTwinColumns % (2 * kLines) == 0 && kRingHalfRows == kLines && kRowCopies == 2);

  CCKS_INLINE explicit RingFiller(Lanes& lanes) : lanes_(lanes), ring_(lanes) {}

  /// All blocks of w.m rows and w.n columns, or as many of both of two, `most` at a time.
  CCKS_INLINE void fill(const ExpertWindow& w, u32 most) {
    GatheredRows<kRowCopies, kLines> rows(w, line());
    column_step_ = u64{w.column_bytes} * kLines;
    twin_ = w.twin_columns == nullptr ? 0 : static_cast<u64>(w.twin_columns - w.columns);
    const u8* columns = w.columns + u64{line()} * w.column_bytes + part() * 16;
    rows.find(w, part() * 16);
    missing_ |= rows.missing();
    CCKS_NO_UNROLL
    for (u32 left = w.n; left != 0;) {
      const u32 n = least(left, most);
      fill_block(w, rows, columns, n, is_half_block(w.m, n, most));
      columns += u64{w.column_bytes} * n;
      left -= n;
    }
  }
  /// Whether a row has been named that there is not.
  CCKS_INLINE i32 missing() const { return missing_; }

 private:
  CCKS_INLINE u32 line() const { return lanes_.lane() % Ring::kGroup / 8; }
  CCKS_INLINE u32 part() const { return lanes_.lane() % 8; }

  CCKS_INLINE void fill_block(const ExpertWindow& w, GatheredRows<kRowCopies, kLines> rows, const u8* columns, u32 n, bool half) {
    // Every so many lines of a stage are another weight's, or the same columns further along k.
    const u32 each = Ring::kColumns / (w.twin_columns == nullptr ? 1 : 2) / (half ? 2 : 1) / kLines;
    const u32 to = line() * kExpertRowBytes + (part() ^ line() % 8) * 16;  // kLines is a multiple of eight
    const u32 deep = half ? 2 * Ring::kDepth : Ring::kDepth;
    CCKS_NO_UNROLL
    for (u32 depth = part() * 8; depth < w.k + part() * 8; depth += deep) {
      if (next_.round != 0) lanes_.await_barrier(ring_.empty(next_.stage), (next_.round - 1) % 2);
      const bool there = depth < w.k, beyond = depth + Ring::kDepth < w.k;
      u8* const stage = ring_.stage(next_.stage) + to;
      const u8* from = columns;
      u32 of = line(), left = each;
      CCKS_UNROLL
      for (u32 i = 0; i < kColumnCopies; ++i) {
        const bool later = half && i >= kColumnCopies / 2;
        if (of < n) copy_packet<true>(lanes_, stage + Ring::kRowsBytes + i * kLines * kExpertRowBytes, from, later ? beyond : there);
        from += column_step_;
        of += kLines;
        if (--left == 0) {
          const bool again = half && i + 1 == kColumnCopies / 2;
          left = each;
          of = line();
          from = again ? columns + kExpertRowBytes : columns + twin_ + (later ? kExpertRowBytes : 0);
        }
      }
      CCKS_UNROLL
      for (u32 i = 0; i < kRowCopies; ++i) {
        const bool later = half && i >= kRowCopies / 2;
        if (line() + (later ? 0 : i * kLines) < w.m)
          lanes_.copy_sixteen(stage + i * kLines * kExpertRowBytes, later ? rows.row(i - kRowCopies / 2) + kExpertRowBytes : rows.row(i), later ? beyond : there);
      }
      lanes_.arrive_when_copied(ring_.full(next_.stage));
      rows.step(half ? 2 * kExpertRowBytes : kExpertRowBytes);
      columns += half ? 2 * kExpertRowBytes : kExpertRowBytes;
      next_.template step<Ring>();
    }
  }

  Lanes& lanes_;
  Ring ring_;
  RingPlace next_;
  u64 column_step_ = 0, twin_ = 0;  // to the lane's next line; from a column to its twin's
  i32 missing_ = 0;
};

/// Who multiplies: kRows rows, 8, 16 or 32, by the columns of so many stages from the one with the number `at` on; half: is_half_block. Sums are in ExpertRing::sums, of this warp's columns at first.
template <Dtype kType, u32 kRows, class Lanes>
class RingWalk {
 public:
  using Ring = ExpertRing<Lanes>;
  static constexpr u32 kBlocks = Ring::kColumns / 64;
  static_assert(kBlocks == 2);

  CCKS_INLINE explicit RingWalk(Lanes& lanes) : lanes_(lanes), ring_(lanes) {}

  CCKS_INLINE void run(u32 at, u32 steps, bool half) {
    const u32 second = half ? kRingHalfRows * kExpertRowBytes : 0;  // rows of the other half of what a stage has along k
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block)
      for (u32 j = 0; j < kRows / 8; ++j)
        for (u32 q = 0; q < 4; ++q) sum_[block][j][q] = 0;
    u32 stage = at % Ring::kStages, parity = at / Ring::kStages % 2;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.await_barrier(ring_.full(stage), parity);
      lanes_.show_copies();
      const u8* const rows = ring_.stage(stage);
      lanes_.template multiply_two_groups<kType>(sum_[0], rows + Ring::kRowsBytes, rows, sum_[1], rows + Ring::kRowsBytes + 64 * kExpertRowBytes, rows + second);
      lanes_.template await_groups_before<1>();
      if (step != 0) free(stage == 0 ? Ring::kStages - 1 : stage - 1);
      stage = stage + 1 == Ring::kStages ? 0 : stage + 1;
      if (stage == 0) parity ^= 1;
    }
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block) lanes_.await_group(sum_[block]);
    free(stage == 0 ? Ring::kStages - 1 : stage - 1);
    lanes_.sync_group(0);  // the block before is finished
    if (half) add_halves();
    put();
  }

 private:
  CCKS_INLINE void free(u32 stage) {
    lanes_.sync_warp();
    if (lanes_.lane() % Lanes::kWarp == 0) lanes_.arrive_barrier(ring_.empty(stage));
  }
  CCKS_INLINE void add_halves() {
    CCKS_UNROLL
    for (u32 j = 0; j < kRows / 8; ++j)
      for (u32 q = 0; q < 4; ++q) sum_[0][j][q] += sum_[1][j][q];
  }
  CCKS_INLINE void put() const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, warp = lanes_.lane() / Lanes::kWarp;
    float* to = ring_.sums() + lane % 4 * 2 * Ring::kPitch + warp * 16 + lane / 4;
    CCKS_UNROLL
    for (u32 block = 0; block < kBlocks; ++block) {
      CCKS_UNROLL
      for (u32 j = 0; j < kRows / 8; ++j) {
        CCKS_UNROLL
        for (u32 q = 0; q < 4; ++q) to[(j * 8 + q % 2) * Ring::kPitch + block * 64 + q / 2 * 8] = sum_[block][j][q];
      }
    }
  }

  Lanes& lanes_;
  Ring ring_;
  float sum_[kBlocks][kRows / 8][4];
};

template <Dtype kType, u32 kRows, class Lanes>
CCKS_OUTLINE void walk_ring(Lanes& lanes, u32 at, u32 steps, bool half) {
  RingWalk<kType, kRows, Lanes>(lanes).run(at, steps, half);
}
/// A block of m rows: by name where bodies are linked, as all walks that multiply by four warps.
template <Dtype kType, class Lanes>
CCKS_INLINE void multiply_ring(Lanes& lanes, u32 m, u32 at, u32 steps, bool half) {
#if CCKS_LINKED_WALKS
  (kType == Dtype::bf16 ? ccks_walk_ring_bf16 : ccks_walk_ring_f16)(m, at, steps, half);
#else
  if (m <= 8) return walk_ring<kType, 8>(lanes, at, steps, half);
  if (m <= 16) return walk_ring<kType, 16>(lanes, at, steps, half);
  walk_ring<kType, 32>(lanes, at, steps, half);
#endif
}

/// The lanes that multiply, as those that finish what lies in scratch.
template <class Lanes>
struct MultiplyingLanes {
  static constexpr u32 kLanes = ExpertRing<Lanes>::kGroup;
  u32 own;
  CCKS_INLINE u32 lane() const { return own; }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// What products by matrix units of the rows of experts, and of any rows that are gathered, have in common: which lanes can, what a walk over k goes by, and how its sums
// are read. The walks: expert_warps.hpp, where warps multiply alone, product_narrow.hpp and product_group.hpp, where four multiply together.
#pragma once

#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Lanes that copy from global memory into what they share in the background, in groups: of a group that a lane has waited for its own copies
/// are done, those of others behind a barrier.
template <class Lanes>
concept CopyLanes = MatrixLanes<Lanes> && requires(Lanes& lanes) { lanes.commit_copies(); };

/// Lanes of which four warps multiply what lies in scratch together.
template <class Lanes>
concept GroupLanes = CopyLanes<Lanes> && requires(Lanes& lanes, float (&sum)[4][4], const u8* rows) { lanes.template multiply_group<Dtype::bf16>(sum, rows, rows); };

inline constexpr u32 kExpertRowBytes = 128;  // of a stage
inline constexpr u32 kTwinColumns = 64;      // of both, of a block with a twin's, at least

/// What the walk over k goes by: `m` rows of x, `n` columns of b. Row i of a gathered tile is what `source` says of i, over `divisor`; where that is null
/// it is row first + i. With a twin (wire::kTwinDim) the first half of a block's columns are b's, the second those of the twin's, `n` of each at most.
struct ExpertWindow {
  const u8 *rows, *columns, *source;
  u32 row_bytes, column_bytes, m, n, k;
  u32 first, source_bytes, divisor;  // bytes from one to the next
  i64 limit;                         // of what `source` says
  bool wide;                         // of eight bytes, not four
  const u8* twin_columns = nullptr;
};

/// Rows of x that a lane copies packets of: its own, and every kStep-th from there on. Which they are is asked for by the constructor and looked at by find, so that
/// others' copies begin in between. One that is named and not there is the first instead, and missing() from then on.
template <u32 kTimes, u32 kStep>
class GatheredRows {
 public:
  CCKS_INLINE GatheredRows(const ExpertWindow& w, u32 line) {
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) {
      const u32 at = least(line + i * kStep, w.m - 1);
      const u8* named = w.source + u64{at} * w.source_bytes;
      if (w.source == nullptr)
        named_[i] = w.first + at;
      else
        named_[i] = w.wide ? *reinterpret_cast<const i64*>(named) : *reinterpret_cast<const i32*>(named);
    }
  }
  /// packet: of each row, in bytes.
  CCKS_INLINE void find(const ExpertWindow& w, u32 packet) {
    u32 row[kTimes];
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) {
      const bool there = w.source == nullptr || (named_[i] >= 0 && named_[i] < w.limit);
      if (!there) missing_ = 1;
      row[i] = there ? static_cast<u32>(named_[i]) : 0;
    }
    if (w.source != nullptr) {
      if ((w.divisor & (w.divisor - 1)) == 0) {
        CCKS_UNROLL
        for (u32 i = 0; i < kTimes; ++i) row[i] >>= log2_of(w.divisor);
      } else {
        CCKS_UNROLL
        for (u32 i = 0; i < kTimes; ++i) row[i] /= w.divisor;
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) row_[i] = w.rows + u64{row[i]} * w.row_bytes + packet;
  }
  CCKS_INLINE const u8* row(u32 i) const { return row_[i]; }
  CCKS_INLINE void step(u32 bytes) {
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) row_[i] += bytes;
  }
  CCKS_INLINE i32 missing() const { return missing_; }

 private:
  i64 named_[kTimes];
  const u8* row_[kTimes];  // of what is copied next
  i32 missing_ = 0;
};

/// `kOnce`: nobody reads it again soon. Weights would drive code, routed rows and whatever else a tile waits for out of the L2.
template <bool kOnce, class Lanes>
CCKS_INLINE void copy_packet(Lanes& lanes, u8* to, const u8* from, bool there) {
  if constexpr (kOnce && requires { lanes.copy_sixteen_once(to, from, there); })
    lanes.copy_sixteen_once(to, from, there);
  else
    lanes.copy_sixteen(to, from, there);
}

template <class A, class B>
inline constexpr bool kExpertUnits = false;
template <Dtype kType>
inline constexpr bool kExpertUnits<Fixed<kType>, Fixed<kType>> = kType == Dtype::bf16 || kType == Dtype::f16;

/// Four columns of the sums of a block, in one slice of k or, where slice_rows is not 0, in two.
struct SumsOf {
  static constexpr u32 kRowsAtOnce = 4;
  const float* at;
  u32 pitch, slice_rows;

  CCKS_INLINE void operator()(u32 i, float* to) const {
    const Four<float> all = *reinterpret_cast<const Four<float>*>(at + i * pitch);
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) to[q] = all.v[q];
    if (slice_rows == 0) return;
    const Four<float> more = *reinterpret_cast<const Four<float>*>(at + (slice_rows + i) * pitch);
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) to[q] += more.v[q];
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// topk of short rows where lanes run in warps: a row a warp, whose lanes keep what they have of it in registers.
#pragma once

#include "ccks/worker/argmax_split.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kSortedColumns = 256;  // of a row, at most

/// Where the largest of a row of at most kSortedColumns floats stand, lane j's the j-th; lanes from k on have none. All lanes of the warp call it.
template <class Lanes, class T>
CCKS_INLINE u32 largest_in_warp(Lanes& lanes, T type, const u8* row, i64 stride, u32 width, u32 k) {
  constexpr u32 kWarp = Lanes::kWarp, kEach = kSortedColumns / kWarp;
  const u32 lane = lanes.lane() % kWarp;
  i64 own[kEach];  // in the order sought, all different
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    const u32 at = lane + i * kWarp;
    own[i] = at < width ? ranked(load_float(type, row, at * stride), at) : -0x7fffffffffffffffll - 1;
  }
  i64 last = 0x7fffffffffffffffll;
  u32 mine = 0;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < k; ++j) {
    i64 best = -0x7fffffffffffffffll - 1;
    CCKS_UNROLL
    for (u32 i = 0; i < kEach; ++i) best = own[i] < last ? most(best, own[i]) : best;
    CCKS_UNROLL
    for (u32 step = 1; step < kWarp; step *= 2) best = most(best, lanes.shuffle_xor(best, step));
    last = best;
    if (lane == j) mine = static_cast<u32>(index_of(best));
  }
  return mine;
}

/// False, and nothing is done, for longer rows, more values than lanes, and integers.
template <class Lanes, class X, class V, class I>
CCKS_INLINE bool topk_in_warps(Lanes& lanes, const View<X>& x, const View<V>& values, const View<I>& indices, const Box& box, u32 k) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  const u32 width = static_cast<u32>(x.dim[3]), lane = lanes.lane() % kWarp;
  if (width > kSortedColumns || k > kWarp || k > width || !is_float(x.type.get())) return false;
  CCKS_NO_UNROLL
  for (u32 r = lanes.lane() / kWarp; r < box.rows(); r += kWarps) {
    i32 c[4];
    box.row_start(r, c);
    c[3] = 0;
    const u8* row = x.at(c);
    const u32 mine = largest_in_warp(lanes, x.type, row, x.stride[3], width, k);
    if (lane < k) {
      const i32 j = static_cast<i32>(lane);
      store_float(values.type, values.at(c[0], c[1], c[2], j), 0, load_float(x.type, row, mine * x.stride[3]));
      store_int(indices.type, indices.at(c[0], c[1], c[2], j), 0, mine);
    }
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

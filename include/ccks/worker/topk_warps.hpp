// topk of short rows where lanes run in warps: a row a warp, whose lanes keep what they have of it in registers.
#pragma once

#include "ccks/worker/argmax_split.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kSortedColumns = 256;  // of a row, at most
inline constexpr i64 kNoneRanked = -0x7fffffffffffffffll - 1;  // what a lane has in place of a value (ranked)

/// The largest first, of four or eight. By exchanges whose places are known, so all stay in registers.
template <u32 kCount>
CCKS_INLINE void sort_ranked(i64 (&own)[kCount]) {
  static_assert(kCount == 4 || kCount == 8);
  const auto exchange = [&](u32 a, u32 b) {
    const i64 more = most(own[a], own[b]), less = own[a] < own[b] ? own[a] : own[b];
    own[a] = more, own[b] = less;
  };
  CCKS_UNROLL
  for (u32 first = 0; first < kCount; first += 4) {
    exchange(first, first + 1), exchange(first + 2, first + 3);
    exchange(first, first + 2), exchange(first + 1, first + 3);
    exchange(first + 1, first + 2);
  }
  if constexpr (kCount == 8) {
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) exchange(i, i + 4);
    exchange(2, 4), exchange(3, 5);
    exchange(1, 2), exchange(3, 4), exchange(5, 6);
  }
}

/// Of what the lanes of a warp have, all of it different, the k largest: lane j's result is where the j-th stands; lanes from k on have none. `own` is lost. All lanes of the warp
/// call it. What a lane has is sorted first: then only the first of it is looked at, and a turn is two steps of the whole warp.
template <class Warp, u32 kEach>
CCKS_INLINE u32 largest_of_warp(Warp& warp, u32 lane, i64 (&own)[kEach], u32 k) {
  sort_ranked(own);
  u32 mine = 0;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < k; ++j) {
    const i32 rank = static_cast<i32>(own[0] >> 32), top = warp.most_in_warp(rank);
    const i32 place = rank == top ? static_cast<i32>(own[0]) : -1, first = warp.most_in_warp(place);
    if (lane == j) mine = static_cast<u32>(index_of(first));
    const bool is_taken = place == first;
    CCKS_UNROLL
    for (u32 i = 0; i + 1 < kEach; ++i) own[i] = is_taken ? own[i + 1] : own[i];
    if (is_taken) own[kEach - 1] = kNoneRanked;
  }
  return mine;
}

/// Where the largest of a row of at most kEach floats a lane stand, lane j's the j-th; lanes from k on have none. All lanes of the warp call it.
template <u32 kEach, class Lanes, class T>
CCKS_INLINE u32 largest_in_warp(Lanes& lanes, T type, const u8* row, i64 stride, u32 width, u32 k) {
  constexpr u32 kWarp = Lanes::kWarp;
  const u32 lane = lanes.lane() % kWarp;
  i64 own[kEach];
  CCKS_UNROLL
  for (u32 i = 0; i < kEach; ++i) {
    const u32 at = lane + i * kWarp;
    own[i] = at < width ? ranked(load_float(type, row, at * stride), at) : kNoneRanked;
  }
  return largest_of_warp(lanes, lane, own, k);
}
/// The same of at most kSortedColumns.
template <class Lanes, class T>
CCKS_INLINE u32 largest_in_warp(Lanes& lanes, T type, const u8* row, i64 stride, u32 width, u32 k) {
  constexpr u32 kEach = kSortedColumns / Lanes::kWarp;
  if (width <= kSortedColumns / 2) return largest_in_warp<kEach / 2>(lanes, type, row, stride, width, k);
  return largest_in_warp<kEach>(lanes, type, row, stride, width, k);
}

/// False, and nothing is done, for longer rows, more values than lanes, and integers.
template <class Lanes, class X, class V, class I>
CCKS_INLINE bool topk_in_warps(Lanes& lanes, const View<X>& x, const View<V>& values, const View<I>& indices, const Box& box, u32 k) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  const u32 width = static_cast<u32>(x.dim[3]), lane = lanes.lane() % kWarp;
  if (width > kSortedColumns || k > kWarp || k > width || !wire::dtype_is_float(x.type.get())) return false;
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

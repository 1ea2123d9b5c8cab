// argmax of long rows of floats that tiles share out: each finds the first of the largest of its columns, and whoever is the last
// of a row looks through what all have found. Nobody waits.
//
// Such an op has dims[0] > 0 columns a tile, and two more outputs that nobody else reads: found [..., tiles of a row] i64, and arrivals,
// i32, zero before the run, one for each row.
#pragma once

#include "ccks/worker/attention_split.hpp"
#include "ccks/worker/near_op.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Of a larger value larger. NaN counts as -infinity.
CCKS_INLINE i32 rank_of(float value) {
  const i32 bits = bit_cast<i32>(value != value ? -f_infinity() : value == 0.0f ? 0.0f : value);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}
/// A value and where it stands as one integer: of a larger value larger, of equal ones that of the first.
CCKS_INLINE i64 ranked(float value, u32 index) { return static_cast<i64>(u64{static_cast<u32>(rank_of(value))} << 32 | (0x7fffffffu - index)); }
CCKS_INLINE i64 index_of(i64 ranked) { return 0x7fffffff - (ranked & 0x7fffffff); }

/// A tile's columns [begin, end) of a row, the `mine`th of `count`.
struct SharedRow {
  const u8* x;
  i64* found;
  u32* arrived;
  u32 begin, end, mine, count;
};

/// -1, or on the last of a row on all lanes where the first of the largest is.
template <class Lanes, class T>
CCKS_INLINE i64 share_row(Lanes& lanes, T type, i64 stride, bool vectors, const SharedRow& row) {
  constexpr i64 kLeast = -0x7fffffffffffffffll - 1;
  i64 best = kLeast;
  if (vectors) {
    CCKS_NO_UNROLL
    for (u32 at = row.begin + lanes.lane() * kVector; at < row.end; at += lanes.lanes() * kVector) {
      float v[kVector];
      load_four(type, row.x + u64{at} * bytes_of(type), v);
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i) best = most(best, ranked(v[i], at + i));
    }
  } else {
    CCKS_NO_UNROLL
    for (u32 at = row.begin + lanes.lane(); at < row.end; at += lanes.lanes()) best = most(best, ranked(load_float(type, row.x, at * stride), at));
  }
  bool last = false;
  CCKS_NO_UNROLL
  for (;;) {
    best = lanes.max(best);
    if (last) return index_of(best);
    if (lanes.lane() == 0) row.found[row.mine] = best;
    if (!last_to_arrive(lanes, row.arrived, row.count, reinterpret_cast<u32*>(lanes.scratch()))) return -1;
    last = true;
    best = kLeast;
    CCKS_NO_UNROLL
    for (u32 i = lanes.lane(); i < row.count; i += lanes.lanes()) best = most(best, row.found[i]);
  }
}

/// Any rows.
template <class Lanes, class Types>
CCKS_OUTLINE void share_argmax(Lanes& lanes, const Call& call, u32 tile) {
  const Types types = types_of<Types>(call);
  const auto x = view_of<0>(call, types);
  const auto out = view_of<1>(call, types);
  const auto found = view_of<2>(call, types);
  const auto arrived = view_of<3>(call, types);
  const i32 space[4] = {x.dim[0], x.dim[1], x.dim[2], call.op.grid[3]};
  const Box box = tile_box(call.op, tile, space);
  const u32 width = static_cast<u32>(call.op.dims[0]), columns = static_cast<u32>(x.dim[3]), mine = static_cast<u32>(box.lo[3]);
  CCKS_NO_UNROLL
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    c[3] = 0;
    const u32 at = static_cast<u32>((c[0] * x.dim[1] + c[1]) * x.dim[2] + c[2]);
    const SharedRow row{x.at(c), reinterpret_cast<i64*>(found.at(c)), reinterpret_cast<u32*>(arrived.data) + at,
                        least(mine * width, columns), least((mine + 1) * width, columns), mine, static_cast<u32>(call.op.grid[3])};
    const i64 index = share_row(lanes, x.type, x.stride[3], false, row);
    if (index >= 0 && lanes.lane() == 0) store_int(out.type, out.at(c), 0, index);
  }
}

/// One row in vectors, as mark_argmax has found it.
template <class Lanes, class In, class Out>
CCKS_INLINE void share_near_argmax(Lanes& lanes, const NearOp& near, u32 tile, In in, Out out) {
  const u32 width = static_cast<u32>(near.op.dims[0]), columns = static_cast<u32>(near.operands[0].dim[3]);
  const SharedRow row{near.begin(0), reinterpret_cast<i64*>(near.begin(2)), reinterpret_cast<u32*>(near.begin(3)),
                      least(tile * width, columns), least((tile + 1) * width, columns), tile, near.op.tile_count};
  const i64 index = share_row(lanes, in, 1, true, row);
  if (index >= 0 && lanes.lane() == 0) store_int(out, near.begin(1), 0, index);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// rope where lanes run in warps: a pair of a head a lane, nothing else worked out. A decode step has a tile or two of it a layer, whose
// code is fetched anew each time: the body for any style, position and number of lanes is four times as long.
#pragma once

#include "ccks/worker/call.hpp"
#include "ccks/worker/math.hpp"
#include "ccks/worker/near_op.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// -log(theta) / pairs of a head: dims[5] and dims[7] hold its low and high word where the host knows it.
CCKS_INLINE double rope_rate(const OpParams& op, u32 half) {
  const u64 bits = static_cast<u32>(op.dims[5]) | static_cast<u64>(static_cast<u32>(op.dims[7])) << 32;
  return bits != 0 ? bit_cast<double>(bits) : -d_log(static_cast<double>(op.scalars[0])) / half;
}

/// Llama 3.1's scaling, as RopeScaling, whose shares f32 is good enough for: they change a frequency by a part in ten million.
CCKS_INLINE double scaled_frequency(const OpParams& op, double frequency) {
  if (op.dims[4] == 0) return frequency;
  const float low = op.scalars[2], high = op.scalars[3];
  const float waves = static_cast<float>(frequency * (static_cast<double>(op.dims[4]) * 0.15915494309189535));
  const float part = (waves - low) / (high - low), mix = part < 0.0f ? 0.0f : part > 1.0f ? 1.0f : part;
  return frequency * static_cast<double>(mix + (1.0f - mix) / op.scalars[1]);
}

template <class Lanes, class In, class Out>
CCKS_INLINE void rotate_pairs(Lanes& lanes, const OpParams& op, const View<In>& x, const View<Out>& out, const Box& box, u32 half) {
  const u32 shift = log2_of(half), heads = static_cast<u32>(box.size[3]) >> (shift + 1), rows = static_cast<u32>(box.size[1] * box.size[2]);
  const double rate = rope_rate(op, half);
  CCKS_NO_UNROLL
  for (u32 o = lanes.lane(); o < (rows * heads) << shift; o += lanes.lanes()) {
    const u32 j = o & (half - 1), at = o >> shift;
    u32 row = 0;
    i32 c1 = box.lo[1], c2 = box.lo[2];
    if (rows > 1) {
      row = at / heads;
      const u32 outer = row / static_cast<u32>(box.size[2]);
      c1 += static_cast<i32>(outer);
      c2 += static_cast<i32>(row - outer * static_cast<u32>(box.size[2]));
    }
    const i32 c3 = box.lo[3] + static_cast<i32>(((at - row * heads) * 2 << shift) + j);
    const u8* from = x.at(0, c1, c2, c3);
    const float u = load_float(x.type, from, 0), v = load_float(x.type, from, half * x.stride[3]);
    float sine, cosine;
    sincos_reduced(static_cast<double>(op.dims[1] + c2) * scaled_frequency(op, d_exp(rate * j)), sine, cosine);
    u8* to = out.at(0, c1, c2, c3);
    store_float(out.type, to, 0, u * cosine - v * sine);
    store_float(out.type, to, half * out.stride[3], u * sine + v * cosine);
  }
}

/// A lane turns a pair of a head; a row of `table` has the cosines of all pairs, then their sines.
template <class Lanes, class In, class Table, class Out>
CCKS_INLINE void rotate_by_table(Lanes& lanes, const View<In>& x, const View<Table>& table, const View<Out>& out, const Box& box) {
  const u32 half = static_cast<u32>(table.dim[3]) / 2, shift = log2_of(half), heads = static_cast<u32>(box.size[3]) >> (shift + 1), rows = static_cast<u32>(box.size[0] * box.size[1] * box.size[2]);
  CCKS_NO_UNROLL
  for (u32 o = lanes.lane(); o < (rows * heads) << shift; o += lanes.lanes()) {
    const u32 j = o & (half - 1), at = o >> shift;
    i32 c[4] = {box.lo[0], box.lo[1], box.lo[2], 0};
    u32 row = 0;
    if (rows > 1) box.row_start(row = at / heads, c);
    c[3] = box.lo[3] + static_cast<i32>(((at - row * heads) * 2 << shift) + j);
    const u8 *from = x.at(c), *angle = table.at(0, 0, c[2], static_cast<i32>(j));
    const float u = load_float(x.type, from, 0), v = load_float(x.type, from, half * x.stride[3]);
    const float cosine = load_float(table.type, angle, 0), sine = load_float(table.type, angle, half * table.stride[3]);
    u8* to = out.at(c);
    store_float(out.type, to, 0, u * cosine - v * sine);
    store_float(out.type, to, half * out.stride[3], u * sine + v * cosine);
  }
}

/// The same of a single row, as mark_rope has found it.
template <class Lanes, class In, class Table, class Out>
CCKS_INLINE void rotate_row(Lanes& lanes, const NearOp& near, u32 tile, In in, Table table, Out out) {
  const u32 shift = static_cast<u32>(near.op.dims[wire::kRowDim]), half = 1u << shift, each = static_cast<u32>(near.op.tile[3]) / 2;
  const u32 first = tile * each, end = least(first + each, static_cast<u32>(near.operands[0].dim[3]) / 2);
  const u8 *x = near.begin(0), *angles = near.begin(1);
  u8* to = near.begin(2);
  CCKS_NO_UNROLL
  for (u32 o = first + lanes.lane(); o < end; o += Lanes::kLanes) {
    const u32 j = o & (half - 1), low = o + (o - j), high = low + half;
    const float u = load_float(in, x + low * bytes_of(in), 0), v = load_float(in, x + high * bytes_of(in), 0);
    const float cosine = load_float(table, angles + j * bytes_of(table), 0), sine = load_float(table, angles + (j + half) * bytes_of(table), 0);
    store_float(out, to + low * bytes_of(out), 0, u * cosine - v * sine);
    store_float(out, to + high * bytes_of(out), 0, u * sine + v * cosine);
  }
}

/// False: nothing is done.
template <class Lanes, class In, class Out>
CCKS_INLINE bool warp_rope(Lanes& lanes, const OpParams& op, const View<In>& x, const View<Out>& out, const Box& box, i32 head_dim) {
  const bool plain = op.dims[2] == 0 && op.dims[3] == 0 && x.dim[0] == 1 && head_dim >= 2 && (head_dim & (head_dim - 1)) == 0;
  if (!plain) return false;
  rotate_pairs(lanes, op, x, out, box, static_cast<u32>(head_dim) / 2);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

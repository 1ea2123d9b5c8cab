// matmul of a head where lanes run in warps: a and b whole in scratch, a vector of each a lane, as they lie in memory. A lane has
// results to itself, so nothing is added up between lanes and nothing put in order.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A piece of a or b: lines of `length` in scratch, padded so that neighbouring lines begin in different banks.
struct HeadPiece {
  u32 vectors;  // of a line
  CCKS_INLINE u32 pitch() const { return (vectors + 1) * kVector; }
  /// Lane `lane` copies vector `lane` of the piece, if there is one: `across` elements from line to line in memory.
  template <class T>
  CCKS_INLINE bool fetch(T type, const u8* from, u32 across, u32 lines, u32 lane, float (&v)[kVector]) const {
    const u32 line = lane / vectors, at = (lane - line * vectors) * kVector;
    const bool here = line < lines;
    if (here) load_four(type, from + u64{line * across + at} * bytes_of(type), v);
    return here;
  }
  CCKS_INLINE void keep(float* to, u32 lane, const float (&v)[kVector]) const {
    const u32 line = lane / vectors, at = (lane - line * vectors) * kVector;
    *reinterpret_cast<Four<float>*>(to + line * pitch() + at) = {{v[0], v[1], v[2], v[3]}};
  }
};

struct HeadBody {
  template <class Lanes, class Types, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    const OperandParams &a = call.operands[0], &b = call.operands[1];
    const auto type_a = types.template type<0>();
    const auto type_b = types.template type<1>();
    const u32 k = static_cast<u32>(a.dim[3]), lane = lanes.lane();
    const bool down = call.op.dims[1] != 0;
    const u32 across = static_cast<u32>(down ? b.stride[3] : b.stride[2]), lines = down ? t.n : k;
    const u8* from_a = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * bytes_of(type_a);
    const u8* from_b = operand_base(call.frame, b) +
                       u64{row_offset(b, t.c0, t.c1, 0) + t.column * (down ? across : 1)} * bytes_of(type_b);
    const HeadPiece rows{k / kVector}, others{(down ? k : t.n) / kVector};
    float* left = reinterpret_cast<float*>(lanes.scratch());
    float* right = left + t.m * rows.pitch();
    float va[kVector], vb[kVector];
    const bool here_a = rows.fetch(type_a, from_a, static_cast<u32>(a.stride[2]), t.m, lane, va);
    const bool here_b = others.fetch(type_b, from_b, across, lines, lane, vb);
    if (here_a) rows.keep(left, lane, va);
    if (here_b) others.keep(right, lane, vb);
    lanes.sync();
    if (down)
      finish_each<1>(lanes, call, types, expr, t, k, left, rows.pitch(), right, others.pitch());
    else
      finish_each<kVector>(lanes, call, types, expr, t, k, left, rows.pitch(), right, others.pitch());
  }

 private:
  /// W results at a time: W neighbours of a row.
  template <u32 W, class Lanes, class Types, class Expr, class Tile>
  static CCKS_INLINE void finish_each(Lanes& lanes, const Call& call, const Types& types, const Expr& expr, const Tile& t, u32 k,
                                      const float* left, u32 left_pitch, const float* right, u32 right_pitch) {
    const u32 wide = t.n / W, all = t.m * wide;
    CCKS_NO_UNROLL
    for (u32 o = lanes.lane(); o < all; o += Lanes::kLanes) {
      const u32 i = o / wide, j = (o - i * wide) * W;
      EpilogueValues<W, Types> values;
      values.load(call, types, t.c0, t.c1, t.row + i, t.column + j);
      float acc[W];
      if constexpr (W == 1)
        along(acc[0], left + i * left_pitch, right + j * right_pitch, k);
      else
        across(acc, left + i * left_pitch, right + j, right_pitch, k);
      finish_marked<W>(call, types, expr, acc, values, t.c0, t.c1, t.row + i, t.column + j);
    }
  }
  static CCKS_INLINE void along(float& result, const float* x, const float* y, u32 k) {
    float sum[kVector] = {};
    CCKS_UNROLL
    for (u32 p = 0; p < k; p += kVector) {
      const Four<float> u = *reinterpret_cast<const Four<float>*>(x + p), v = *reinterpret_cast<const Four<float>*>(y + p);
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) sum[e] += u.v[e] * v.v[e];
    }
    result = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  static CCKS_INLINE void across(float (&result)[kVector], const float* x, const float* y, u32 pitch, u32 k) {
    CCKS_UNROLL
    for (u32 e = 0; e < kVector; ++e) result[e] = 0;
    CCKS_UNROLL
    for (u32 p = 0; p < k; p += kVector) {
      const Four<float> u = *reinterpret_cast<const Four<float>*>(x + p);
      CCKS_UNROLL
      for (u32 f = 0; f < kVector; ++f) {
        const Four<float> v = *reinterpret_cast<const Four<float>*>(y + (p + f) * pitch);
        CCKS_UNROLL
        for (u32 e = 0; e < kVector; ++e) result[e] += u.v[f] * v.v[e];
      }
    }
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Rows of a matrix on their way into scratch, where lanes run in warps, for bodies that read them many times: as they are, or
// normed first, so that no op of its own, with a hop before and one behind, stands between who writes rows and the products that
// want them normed.
#pragma once

#include "ccks/worker/element.hpp"
#include "ccks/worker/math.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows stay as they are.
struct NoNorm {
  static constexpr bool kNorms = false, kAlways = false;
  CCKS_INLINE bool on() const { return false; }
};
/// Rows become rmsnorm(row) * weight, rounded to their dtype: what an rmsnorm op would have stored. weight: [k], neighbours `stride`
/// elements apart. kEach false: only where there is a weight.
template <class W, bool kEach = true>
struct RowNorm {
  static constexpr bool kNorms = true, kAlways = kEach;
  W type;
  const u8* weight;
  float eps;
  i64 stride = 1;

  CCKS_INLINE bool on() const { return kAlways || weight != nullptr; }
};

/// Of a matmul's rows of a.
template <class Types>
CCKS_INLINE auto norm_of(const Call& call, const Types& types) {
  if constexpr (Types::kCount == 0) {
    const u32 index = static_cast<u32>(call.op.dims[wire::kNormDim]);
    const OperandParams& weight = call.operands[index];
    return RowNorm<Runtime, false>{types.type_at(index), index == 0 ? nullptr : operand_base(call.frame, weight), call.op.scalars[0],
                                   weight.stride[3]};
  } else if constexpr (kNormed<Types>) {
    const OperandParams& weight = call.operands[Types::kCount - 2];
    return RowNorm<TypeOf<Types::kCount - 2, Types>>{types.template type<Types::kCount - 2>(), operand_base(call.frame, weight),
                                                     call.op.scalars[0], weight.stride[3]};
  } else {
    return NoNorm{};
  }
}
template <class Types>
using NormOf = decltype(norm_of(declared<Call>(), declared<Types>()));

/// What a store of these floats and a load of it would give.
template <class T>
CCKS_INLINE void round_four(T type, float (&v)[kVector]) {
  Four<u64> stored;
  store_four(type, reinterpret_cast<u8*>(&stored), v);
  load_four(type, reinterpret_cast<const u8*>(&stored), v);
}
template <Dtype D>
CCKS_INLINE void round_four(Fixed<D>, float (&v)[kVector]) {
  CCKS_UNROLL
  for (u32 q = 0; q < kVector; ++q) v[q] = to_float<D>(from_float<D>(v[q]));
}

/// Vectors of a row and of a weight, kCount of them a lane, of a piece that begins at `from`; zeros beyond the end.
template <u32 kCount, class Lanes, class T>
CCKS_INLINE void load_piece(Lanes& lanes, T type, const u8* row, u32 from, u32 k, float (&v)[kCount][kVector]) {
  const u32 first = from + lanes.lane() * kVector;
  CCKS_UNROLL
  for (u32 u = 0; u < kCount; ++u) {
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) v[u][q] = 0;
    const u32 at = first + u * Lanes::kLanes * kVector;
    if (at < k) load_four(type, row + at * bytes_of(type), v[u]);
  }
}
template <u32 kCount>
CCKS_INLINE float add_squares(float sum, const float (&v)[kCount][kVector]) {
  CCKS_UNROLL
  for (u32 u = 0; u < kCount; ++u)
    for (u32 q = 0; q < kVector; ++q) sum += v[u][q] * v[u][q];
  return sum;
}
template <u32 kCount, class Lanes, class Put>
CCKS_INLINE void put_piece(Lanes& lanes, u32 row, u32 from, u32 k, float scale, float (&v)[kCount][kVector], const float (&w)[kCount][kVector],
                           Put&& put) {
  const u32 first = from + lanes.lane() * kVector;
  CCKS_UNROLL
  for (u32 u = 0; u < kCount; ++u) {
    const u32 at = first + u * Lanes::kLanes * kVector;
    if (at >= k) break;
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) v[u][q] = v[u][q] * scale * w[u][q];
    put(row, at, v[u]);
  }
}
template <class Lanes>
CCKS_INLINE float row_scale(Lanes& lanes, float squares, u32 k, float eps) {
  const float all = lanes.sum(squares);
  if constexpr (requires { lanes.inverse_root(all); })  // the exact ones are called functions, for which registers go to memory
    return lanes.inverse_root(all * lanes.inverse(static_cast<float>(k)) + eps);
  else
    return 1.0f / f_sqrt(all / static_cast<float>(k) + eps);
}

/// Normed rows [0, m) of k elements, `pitch` bytes apart: calls put(row, first, v) with the elements [first, first + 4), which it
/// rounds. All lanes take part, and each row has all of them; sums go in the order of NormRows (rows_warps.hpp). Rows and weight go in
/// vectors. Contains barriers; the caller puts one behind before others read what put has written.
template <class Lanes, class T, class Norm, class Put>
CCKS_INLINE void norm_rows(Lanes& lanes, T type, const u8* rows, u32 pitch, const Norm& norm, u32 m, u32 k, Put&& put) {
  constexpr u32 kKept = 2, kPiece = kKept * Lanes::kLanes * kVector;
  float w[kKept][kVector], v[kKept][kVector];
  if (k <= kPiece) {  // few instructions: a row is read once, and the weight once for all rows
    load_piece(lanes, norm.type, norm.weight, 0, k, w);
    CCKS_NO_UNROLL
    for (u32 i = 0; i < m; ++i) {
      load_piece(lanes, type, rows + i * pitch, 0, k, v);
      put_piece(lanes, i, 0, k, row_scale(lanes, add_squares(0, v), k, norm.eps), v, w, put);
    }
    return;
  }
  CCKS_NO_UNROLL
  for (u32 i = 0; i < m; ++i) {
    float squares = 0;
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kPiece) {
      load_piece(lanes, type, rows + i * pitch, from, k, v);
      squares = add_squares(squares, v);
    }
    const float scale = row_scale(lanes, squares, k, norm.eps);
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kPiece) {
      load_piece(lanes, type, rows + i * pitch, from, k, v);
      load_piece(lanes, norm.type, norm.weight, from, k, w);
      put_piece(lanes, i, from, k, scale, v, w, put);
    }
  }
}

/// Normed rows as they would lie in memory, at byte `to` of scratch, `to_pitch` bytes apart. Ends with a barrier: all lanes may read
/// them. Not inlined, arguments one by one: all products of a program share one copy, which is in the caches when it is wanted.
template <class Lanes, Dtype D, class W>
CCKS_OUTLINE void stage_normed_rows(Lanes& lanes, Fixed<D> type, const u8* rows, u32 pitch, W weight_type, const u8* weight, float eps, u32 m,
                                    u32 k, u32 to, u32 to_pitch) {
  u8* staged = lanes.scratch() + to;
  norm_rows(lanes, type, rows, pitch, RowNorm<W>{weight_type, weight, eps}, m, k, [&](u32 i, u32 p, const float (&v)[kVector]) {
    store_four(type, staged + i * to_pitch + p * static_cast<u32>(sizeof(Storage<D>)), v);
  });
  lanes.sync();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

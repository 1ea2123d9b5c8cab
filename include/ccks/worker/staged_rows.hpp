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

/// Normed rows [0, m) of k elements, `pitch` bytes apart: calls put(row, first, v) with the elements [first, first + 4), which it
/// rounds. All lanes take part, and each row has all of them; sums go in the order of NormRows (rows_warps.hpp).
/// Rows and weight go in vectors. Contains barriers; the caller puts one behind before others read what put has written.
template <class Lanes, class T, class Norm, class Put>
CCKS_INLINE void norm_rows(Lanes& lanes, T type, const u8* rows, u32 pitch, const Norm& norm, u32 m, u32 k, Put&& put) {
  constexpr u32 kKept = 2, kStep = Lanes::kLanes * kVector, kPiece = kKept * kStep;  // a row of up to kPiece is read once
  const u32 first = lanes.lane() * kVector;
  float w[kKept][kVector] = {}, v[kKept][kVector] = {};
  const auto load_weight = [&](u32 from) {
    CCKS_UNROLL
    for (u32 u = 0; u < kKept; ++u)
      if (from + first + u * kStep < k) load_four(norm.type, norm.weight + (from + first + u * kStep) * bytes_of(norm.type), w[u]);
  };
  const auto load_row = [&](const u8* row, u32 from) {
    CCKS_UNROLL
    for (u32 u = 0; u < kKept; ++u) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) v[u][q] = 0;
      if (from + first + u * kStep < k) load_four(type, row + (from + first + u * kStep) * bytes_of(type), v[u]);
    }
  };
  load_weight(0);
  CCKS_NO_UNROLL
  for (u32 i = 0; i < m; ++i) {
    const u8* row = rows + i * pitch;
    float squares = 0;
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kPiece) {
      load_row(row, from);
      CCKS_UNROLL
      for (u32 u = 0; u < kKept; ++u)
        for (u32 q = 0; q < kVector; ++q) squares += v[u][q] * v[u][q];
    }
    const float scale = 1.0f / f_sqrt(lanes.sum(squares) / static_cast<float>(k) + norm.eps);
    CCKS_NO_UNROLL
    for (u32 from = 0; from < k; from += kPiece) {
      if (k > kPiece) load_row(row, from), load_weight(from);
      CCKS_UNROLL
      for (u32 u = 0; u < kKept; ++u) {
        if (from + first + u * kStep >= k) break;
        CCKS_UNROLL
        for (u32 q = 0; q < kVector; ++q) v[u][q] = v[u][q] * scale * w[u][q];
        put(i, from + first + u * kStep, v[u]);
      }
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

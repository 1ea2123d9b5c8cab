// What products of lanes in warps share: sums over lanes that hold the same results, results put in order and finished.
#pragma once

#include "ccks/worker/gemm.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Sums v over the lanes of a warp whose numbers differ in the bits from `bit` up to, not with, `end`. Halves of what is left
/// are exchanged, so that a lane ends with fewer values instead of copies. Calls put(first, n, values) for the values
/// [first, first + n) of the kCount that are this lane's; each is one lane's.
template <u32 kCount, class Lanes, class Put>
CCKS_INLINE void scatter_sums(Lanes& lanes, const float* v, u32 bit, u32 end, u32 first, Put&& put) {
  if (bit >= end) return put(first, kCount, v);
  if constexpr (kCount == 1) {
    float all = v[0];
    CCKS_UNROLL
    for (u32 step = bit; step < end; step *= 2) all += lanes.shuffle_xor(all, step);
    if ((lanes.lane() & (end - bit)) == 0) put(first, 1, &all);
  } else {
    constexpr u32 kHalf = kCount / 2;
    const bool upper = (lanes.lane() & bit) != 0;
    float half[kHalf];
    CCKS_UNROLL
    for (u32 i = 0; i < kHalf; ++i) {
      const float sent = upper ? v[i] : v[i + kHalf], kept = upper ? v[i + kHalf] : v[i];
      half[i] = kept + lanes.shuffle_xor(sent, bit);
    }
    scatter_sums<kHalf>(lanes, half, bit * 2, end, upper ? first + kHalf : first, put);
  }
}

template <class Problem>
inline constexpr bool kInMatrices = requires(const Problem& p) {
  p.left;
  p.right;
};

/// Whether four neighbours along the axis of stride `along` lie in one vector, wherever a multiple of four begins.
template <class T>
CCKS_INLINE bool matrix_in_vectors(const Matrix<T>& m, i64 along, i64 across) {
  return along == 1 && across % kVector == 0 && vector_aligned(m.data, bytes_of(m.type));
}
/// Whether all of a and b can be loaded in vectors: a along k, b along k where it is transposed, else along its rows.
template <class Problem>
CCKS_INLINE bool all_in_vectors(const Problem& problem, u32 n, u32 k) {
  if constexpr (kInMatrices<Problem>) {
    const auto &a = problem.left, &b = problem.right;
    const bool down = problem.b_is_transposed();
    return problem.norm.in_vectors() && k % kVector == 0 && (down || n % kVector == 0) && matrix_in_vectors(a, a.column_stride, a.row_stride) &&
           (down ? matrix_in_vectors(b, b.row_stride, b.column_stride) : matrix_in_vectors(b, b.column_stride, b.row_stride));
  } else {
    return false;
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

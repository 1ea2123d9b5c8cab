// matmul with at most four rows on one lane: bound by the memory that b comes from, so b is read once, where it lies,
// and nothing is packed.
#pragma once

#include "ccks/worker/gemm_host.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

typedef u16 HalfVector __attribute__((vector_size(kVectorBytes / 2), aligned(2), may_alias));
typedef u32 WordVector __attribute__((vector_size(kVectorBytes)));

/// kVectorFloats elements of memory as floats; for dtypes where that takes no more than a shift.
template <Dtype D>
CCKS_INLINE FloatVector load_vector(const Storage<D>* from) {
  if constexpr (D == Dtype::bf16) {
    const HalfVector half = *reinterpret_cast<const HalfVector*>(from);
    return reinterpret_cast<FloatVector>(__builtin_convertvector(half, WordVector) << 16);
  } else {
    return *reinterpret_cast<const FloatVector*>(from);
  }
}
CCKS_INLINE float sum_vector(FloatVector v) {
  float s = 0;
  for (u32 i = 0; i < kVectorFloats; ++i) s += v[i];
  return s;
}

/// a as f32 rows, and the results.
struct ThinBlock {
  float* a;    // [m][depth]
  float* acc;  // [m][n]
  u32 depth, n;
};

/// acc[i][j0 + c] += sum over p of a[i][p] * b[p][c], for kColumns columns of b, each contiguous.
template <Dtype D, u32 kRows, u32 kColumns>
CCKS_INLINE void dot_columns(const ThinBlock& t, const Storage<D>* const (&column)[kColumns], u32 depth, u32 j0) {
  FloatVector acc[kRows][kColumns];
#pragma GCC unroll 4
  for (u32 i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (u32 c = 0; c < kColumns; ++c) acc[i][c] = FloatVector{};
  u32 p = 0;
  for (; p + kVectorFloats <= depth; p += kVectorFloats) {
#pragma GCC unroll 4
    for (u32 c = 0; c < kColumns; ++c) {
      const FloatVector b = load_vector<D>(column[c] + p);
#pragma GCC unroll 4
      for (u32 i = 0; i < kRows; ++i) acc[i][c] += b * *reinterpret_cast<const FloatVector*>(t.a + i * t.depth + p);
    }
  }
  for (u32 i = 0; i < kRows; ++i)
    for (u32 c = 0; c < kColumns; ++c) {
      float s = sum_vector(acc[i][c]);
      for (u32 q = p; q < depth; ++q) s += t.a[i * t.depth + q] * to_float<D>(column[c][q]);
      t.acc[i * t.n + j0 + c] += s;
    }
}

/// Columns are contiguous. Four streams at a time keep enough reads in flight; with more rows, registers allow two.
template <Dtype D, u32 kRows, class B>
CCKS_INLINE void thin_columns(const ThinBlock& t, const Matrix<B>& b, u32 j0, u32 k0, u32 depth) {
  constexpr u32 kColumns = kRows <= 2 ? 4 : 2;
  u32 j = 0;
  for (; j + kColumns <= t.n; j += kColumns) {
    const Storage<D>* column[kColumns];
    for (u32 c = 0; c < kColumns; ++c) column[c] = reinterpret_cast<const Storage<D>*>(b.at(k0, j0 + j + c));
    dot_columns<D, kRows, kColumns>(t, column, depth, j);
  }
  for (; j < t.n; ++j) {
    const Storage<D>* column[1] = {reinterpret_cast<const Storage<D>*>(b.at(k0, j0 + j))};
    dot_columns<D, kRows, 1>(t, column, depth, j);
  }
}

/// acc[i][j] += sum of kDepth rows of b, each times its element of a.
template <Dtype D, u32 kRows, u32 kDepth>
CCKS_INLINE void add_rows(const ThinBlock& t, const Storage<D>* const (&row)[kDepth], u32 p0) {
  float a[kRows][kDepth];
  for (u32 i = 0; i < kRows; ++i)
    for (u32 p = 0; p < kDepth; ++p) a[i][p] = t.a[i * t.depth + p0 + p];
  u32 j = 0;
  for (; j + kVectorFloats <= t.n; j += kVectorFloats) {
    FloatVector b[kDepth];
#pragma GCC unroll 4
    for (u32 p = 0; p < kDepth; ++p) b[p] = load_vector<D>(row[p] + j);
#pragma GCC unroll 4
    for (u32 i = 0; i < kRows; ++i) {
      FloatVector* to = reinterpret_cast<FloatVector*>(t.acc + i * t.n + j);
      FloatVector sum = *to;
#pragma GCC unroll 4
      for (u32 p = 0; p < kDepth; ++p) sum += b[p] * a[i][p];
      *to = sum;
    }
  }
  for (; j < t.n; ++j)
    for (u32 i = 0; i < kRows; ++i)
      for (u32 p = 0; p < kDepth; ++p) t.acc[i * t.n + j] += a[i][p] * to_float<D>(row[p][j]);
}

/// Rows are contiguous.
template <Dtype D, u32 kRows, class B>
CCKS_INLINE void thin_rows(const ThinBlock& t, const Matrix<B>& b, u32 j0, u32 k0, u32 depth) {
  u32 p = 0;
  for (; p + 4 <= depth; p += 4) {
    const Storage<D>* row[4];
    for (u32 q = 0; q < 4; ++q) row[q] = reinterpret_cast<const Storage<D>*>(b.at(k0 + p + q, j0));
    add_rows<D, kRows, 4>(t, row, p);
  }
  for (; p < depth; ++p) {
    const Storage<D>* row[1] = {reinterpret_cast<const Storage<D>*>(b.at(k0 + p, j0))};
    add_rows<D, kRows, 1>(t, row, p);
  }
}

template <Dtype D, u32 kRows, class B>
inline void thin_block(const ThinBlock& t, const Matrix<B>& b, u32 j0, u32 k0, u32 depth) {
  if (b.row_stride == 1)
    thin_columns<D, kRows>(t, b, j0, k0, depth);
  else
    thin_rows<D, kRows>(t, b, j0, k0, depth);
}

template <Dtype D, class B>
CCKS_INLINE void thin_block(const ThinBlock& t, const Matrix<B>& b, u32 m, u32 j0, u32 k0, u32 depth) {
  switch (m) {
    case 1:
      return thin_block<D, 1>(t, b, j0, k0, depth);
    case 2:
      return thin_block<D, 2>(t, b, j0, k0, depth);
    case 3:
      return thin_block<D, 3>(t, b, j0, k0, depth);
    default:
      return thin_block<D, 4>(t, b, j0, k0, depth);
  }
}

/// False where b has neither contiguous rows nor columns, or a dtype that needs real conversion.
template <class Problem>
CCKS_INLINE bool thin_gemm(Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  const auto& b = problem.right;
  const Dtype dtype = b.type.get();
  if ((b.row_stride != 1 && b.column_stride != 1) || (dtype != Dtype::f32 && dtype != Dtype::bf16)) return false;
  const u32 floats = scratch.left / sizeof(float) / 2 - 32;  // half for a, half for the results
  const u32 depth = least(k, floats / m), columns = least(n, floats / m / kVectorFloats * kVectorFloats);
  ThinBlock t{scratch.take<float>(m * depth), scratch.take<float>(m * columns), depth, columns};
  if (t.acc == nullptr || columns == 0) return false;
  for (u32 j0 = 0; j0 < n; j0 += columns) {
    t.n = least(columns, n - j0);
    for (u32 e = 0; e < m * t.n; ++e) t.acc[e] = 0;
    for (u32 k0 = 0; k0 < k; k0 += depth) {
      const u32 here = least(depth, k - k0);
      for (u32 i = 0; i < m; ++i) problem.run_a(i, k0, here, t.a + i * depth);
      visit(b.type, [&](auto f) {
        constexpr Dtype kD = decltype(f)::kDtype;
        if constexpr (kD == Dtype::f32 || kD == Dtype::bf16) thin_block<kD>(t, b, m, j0, k0, here);
      });
    }
    constexpr u32 W = 128;
    for (u32 i = 0; i < m; ++i)
      for (u32 j = 0; j < t.n; j += W) problem.template finish<W>(i, j0 + j, least(W, t.n - j), t.acc + i * t.n + j);
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// gemm for one lane: a and b are packed into scratch as panels, and a microkernel of MR x NR results held in vector
// registers runs along them. Sizes follow the width of the machine's vectors.
//
// Scratch: b block [kc][nb], a block [mb][kc], accumulators [mb][nb], all f32. 128 x 256 with kc near 250 fills 512 KiB,
// which stays in a second-level cache; one panel of b (16 KiB) stays in the first level.
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

#if defined(__AVX512F__)
inline constexpr u32 kVectorBytes = 64, kPanelRows = 12, kPanelVectors = 2;  // 24 of 32 registers accumulate
#elif defined(__AVX__)
inline constexpr u32 kVectorBytes = 32, kPanelRows = 6, kPanelVectors = 2;   // 12 of 16
#elif defined(__aarch64__)
inline constexpr u32 kVectorBytes = 16, kPanelRows = 8, kPanelVectors = 3;   // 24 of 32
#else
inline constexpr u32 kVectorBytes = 16, kPanelRows = 6, kPanelVectors = 2;   // 12 of 16
#endif
inline constexpr u32 kVectorFloats = kVectorBytes / 4;
inline constexpr u32 kPanelColumns = kPanelVectors * kVectorFloats;

// aligned(4): tensors promise no more than the alignment of their elements. Deduction (auto) would lose it.
typedef float FloatVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

/// c[MR][NR] (+)= a[k][MR] * b[k][NR].
CCKS_INLINE void micro_kernel(u32 k, const float* __restrict a, const float* __restrict b, float* __restrict c, u32 ldc,
                              bool add) {
  FloatVector acc[kPanelRows][kPanelVectors];
#pragma GCC unroll 16
  for (u32 i = 0; i < kPanelRows; ++i)
#pragma GCC unroll 4
    for (u32 v = 0; v < kPanelVectors; ++v) acc[i][v] = FloatVector{};
  for (u32 p = 0; p < k; ++p, a += kPanelRows, b += kPanelColumns) {
    FloatVector row[kPanelVectors];
#pragma GCC unroll 4
    for (u32 v = 0; v < kPanelVectors; ++v) row[v] = *reinterpret_cast<const FloatVector*>(b + v * kVectorFloats);
#pragma GCC unroll 16
    for (u32 i = 0; i < kPanelRows; ++i)
#pragma GCC unroll 4
      for (u32 v = 0; v < kPanelVectors; ++v) acc[i][v] += row[v] * a[i];
  }
#pragma GCC unroll 16
  for (u32 i = 0; i < kPanelRows; ++i)
#pragma GCC unroll 4
    for (u32 v = 0; v < kPanelVectors; ++v) {
      FloatVector* to = reinterpret_cast<FloatVector*>(c + i * ldc + v * kVectorFloats);
      *to = add ? *to + acc[i][v] : acc[i][v];
    }
}

struct GemmBlocks {
  u32 rows, columns, depth;  // rows and columns are whole panels
  float *a, *b, *c;
};

/// The largest blocks that fit; false if not even small ones do.
CCKS_INLINE bool choose_blocks(Scratch scratch, u32 m, u32 n, u32 k, GemmBlocks& blocks) {
  u32 rows = least(m, 128u), columns = least(n, 256u);
  const u32 floats = scratch.left / sizeof(float) - 48;  // three pieces, each rounded up to 16 floats
  for (;;) {
    blocks.rows = round_up(rows, kPanelRows);
    blocks.columns = round_up(columns, kPanelColumns);
    const u32 result = blocks.rows * blocks.columns;
    if (scratch.left > 4096 && result < floats) {
      blocks.depth = least(k, (floats - result) / (blocks.rows + blocks.columns));
      if (blocks.depth >= least(k, 64u)) break;
    }
    if (rows <= kPanelRows && columns <= kPanelColumns) return false;
    if (columns >= rows && columns > kPanelColumns) columns = ceil_div(columns, 2u);
    else rows = ceil_div(rows, 2u);
  }
  // Steps of equal length rather than a short one at the end.
  if (blocks.depth != 0) blocks.depth = ceil_div(k, ceil_div(k, blocks.depth));
  blocks.a = scratch.take<float>(blocks.rows * blocks.depth);
  blocks.b = scratch.take<float>(blocks.columns * blocks.depth);
  blocks.c = scratch.take<float>(blocks.rows * blocks.columns);
  return blocks.c != nullptr;
}

/// to[panel][k][MR], zero beyond m. Rows are read along k in short runs and turned.
template <class Problem>
CCKS_INLINE void pack_a(const Problem& problem, u32 i0, u32 rows, u32 k0, u32 depth, float* to) {
  constexpr u32 kRun = 64;
  float run[kPanelRows][kRun];
  for (u32 i = 0; i < rows; i += kPanelRows, to += depth * kPanelRows) {
    const u32 here = least(kPanelRows, rows - i);
    for (u32 r = here; r < kPanelRows; ++r)
      for (u32 p = 0; p < kRun; ++p) run[r][p] = 0;
    for (u32 p0 = 0; p0 < depth; p0 += kRun) {
      const u32 n = least(kRun, depth - p0);
      for (u32 r = 0; r < here; ++r) problem.run_a(i0 + i + r, k0 + p0, n, run[r]);
      for (u32 p = 0; p < n; ++p)
        for (u32 r = 0; r < kPanelRows; ++r) to[(p0 + p) * kPanelRows + r] = run[r][p];
    }
  }
}

/// to[panel][k][NR], zero beyond n.
template <class Problem>
CCKS_INLINE void pack_b(const Problem& problem, u32 j0, u32 columns, u32 k0, u32 depth, float* to) {
  constexpr u32 kRun = 64;
  for (u32 j = 0; j < columns; j += kPanelColumns, to += depth * kPanelColumns) {
    const u32 here = least(kPanelColumns, columns - j);
    if (!problem.b_is_transposed()) {
      for (u32 p = 0; p < depth; ++p) {
        problem.run_b(k0 + p, j0 + j, here, to + p * kPanelColumns);
        for (u32 v = here; v < kPanelColumns; ++v) to[p * kPanelColumns + v] = 0;
      }
      continue;
    }
    float run[kPanelColumns][kRun];
    for (u32 v = here; v < kPanelColumns; ++v)
      for (u32 p = 0; p < kRun; ++p) run[v][p] = 0;
    for (u32 p0 = 0; p0 < depth; p0 += kRun) {
      const u32 n = least(kRun, depth - p0);
      for (u32 v = 0; v < here; ++v) problem.column_b(j0 + j + v, k0 + p0, n, run[v]);
      for (u32 p = 0; p < n; ++p)
        for (u32 v = 0; v < kPanelColumns; ++v) to[(p0 + p) * kPanelColumns + v] = run[v][p];
    }
  }
}

template <class Problem>
CCKS_INLINE void gemm_block(const Problem& problem, const GemmBlocks& s, u32 i0, u32 rows, u32 j0, u32 columns, u32 k) {
  for (u32 k0 = 0; k0 < k; k0 += s.depth) {
    const u32 depth = least(s.depth, k - k0);
    pack_a(problem, i0, rows, k0, depth, s.a);
    pack_b(problem, j0, columns, k0, depth, s.b);
    for (u32 j = 0; j < columns; j += kPanelColumns)
      for (u32 i = 0; i < rows; i += kPanelRows)
        micro_kernel(depth, s.a + i * depth, s.b + j * depth, s.c + i * s.columns + j, s.columns, k0 != 0);
  }
  if (k == 0)
    for (u32 e = 0; e < s.rows * s.columns; ++e) s.c[e] = 0;
  constexpr u32 W = 128;
  for (u32 i = 0; i < rows; ++i)
    for (u32 j = 0; j < columns; j += W)
      problem.template finish<W>(i0 + i, j0 + j, least(W, columns - j), s.c + i * s.columns + j);
}

/// False where the scratch is too small for it.
template <class Problem>
CCKS_INLINE bool host_gemm(Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  if constexpr (Problem::kThinRows > 0)
    if (m <= Problem::kThinRows && problem.thin(scratch, m, n, k)) return true;
  GemmBlocks blocks;
  if (!choose_blocks(scratch, m, n, k, blocks)) return false;
  for (u32 j0 = 0; j0 < n; j0 += blocks.columns)
    for (u32 i0 = 0; i0 < m; i0 += blocks.rows)
      gemm_block(problem, blocks, i0, least(blocks.rows, m - i0), j0, least(blocks.columns, n - j0), k);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

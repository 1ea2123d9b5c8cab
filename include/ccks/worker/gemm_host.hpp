// gemm for one lane: a and b are packed into scratch as panels, and a microkernel of MR x NR results held in vector
// registers runs along them. Sizes follow the width of the machine's vectors.
//
// Scratch: b block [kc][nb], a block [mb][kc], accumulators [mb][nb], all f32. 128 x 256 with kc near 250 fills 512
// KiB, which stays in a second-level cache; one panel of b (16 KiB) stays in the first level.
#pragma once

#include "ccks/worker/call.hpp"

// Width of the machine's vectors. Set by hand only where a target pragma chooses the instruction set: g++ applies those
// after macros.
#if !defined(CCKS_VECTOR_BYTES)
#if defined(__AVX512F__)
#define CCKS_VECTOR_BYTES 64
#elif defined(__AVX__)
#define CCKS_VECTOR_BYTES 32
#else
#define CCKS_VECTOR_BYTES 16
#endif
#endif

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kVectorBytes = CCKS_VECTOR_BYTES;
#if CCKS_VECTOR_BYTES == 64
inline constexpr u32 kPanelRows = 12, kPanelVectors = 2;  // 24 of 32 registers accumulate
#elif defined(__aarch64__)
inline constexpr u32 kPanelRows = 8, kPanelVectors = 3;  // 24 of 32
#else
inline constexpr u32 kPanelRows = 6, kPanelVectors = 2;  // 12 of 16
#endif
inline constexpr u32 kVectorFloats = kVectorBytes / 4;
inline constexpr u32 kPanelColumns = kPanelVectors * kVectorFloats;

// aligned(4): tensors promise no more than the alignment of their elements. Deduction (auto) would lose it.
typedef float FloatVector __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

/// c[MR][NR] (+)= a[k][MR] * b[k][NR].
CCKS_OUTLINE void micro_kernel(u32 k, const float* __restrict a, const float* __restrict b, float* __restrict c,
                               u32 ldc, bool add) {
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

inline constexpr u32 kPackRun = 64;    // elements of a row that are turned at a time
inline constexpr u32 kPackSlack = 16;  // floats that a turned square may write beyond its panel

struct GemmBlocks {
  u32 rows, columns, depth;  // rows and columns are whole panels
  float *a, *b, *c;
};

/// The largest blocks that fit; false if not even small ones do.
CCKS_INLINE bool choose_blocks(Scratch scratch, u32 m, u32 n, u32 k, GemmBlocks& blocks) {
  u32 rows = least(m, 128u), columns = least(n, 256u);
  const u32 floats = scratch.left / sizeof(float) - 96;  // three pieces, rounded up and with slack
  for (;;) {
    blocks.rows = round_up(rows, kPanelRows);
    blocks.columns = round_up(columns, kPanelColumns);
    const u32 result = blocks.rows * blocks.columns;
    if (scratch.left > 4096 && result < floats) {
      blocks.depth = least(k, (floats - result) / (blocks.rows + blocks.columns));
      if (blocks.depth >= least(k, 64u)) break;
    }
    if (rows <= kPanelRows && columns <= kPanelColumns) return false;
    if (columns >= rows && columns > kPanelColumns)
      columns = ceil_div(columns, 2u);
    else
      rows = ceil_div(rows, 2u);
  }
  // Steps of equal length rather than a short one at the end.
  if (blocks.depth != 0) blocks.depth = ceil_div(k, ceil_div(k, blocks.depth));
  blocks.a = scratch.take<float>(blocks.rows * blocks.depth + kPackSlack);
  blocks.b = scratch.take<float>(blocks.columns * blocks.depth + kPackSlack);
  blocks.c = scratch.take<float>(blocks.rows * blocks.columns);
  return blocks.c != nullptr;
}

/// Vector i takes every second element of the pair (a, b) in blocks of kStep: one stage of turning a square.
template <u32 kStep, bool kHigh>
CCKS_INLINE FloatVector exchange(FloatVector a, FloatVector b) {
  typedef i32 Mask __attribute__((vector_size(kVectorBytes)));
  Mask mask{};
  for (u32 i = 0; i < kVectorFloats; ++i) {
    const u32 within = i & (2 * kStep - 1), block = i - within + (kHigh ? kStep : 0);
    mask[i] = static_cast<i32>(within < kStep ? block + within : kVectorFloats + block + within - kStep);
  }
#if defined(__clang__)
  FloatVector out{};
  for (u32 i = 0; i < kVectorFloats; ++i) {
    const u32 from = static_cast<u32>(mask[i]);
    out[i] = from < kVectorFloats ? a[from] : b[from - kVectorFloats];
  }
  return out;
#else
  return __builtin_shuffle(a, b, mask);
#endif
}
template <u32 kStep>
CCKS_INLINE void exchange_pairs(FloatVector (&v)[kVectorFloats]) {
#pragma GCC unroll 16
  for (u32 i = 0; i < kVectorFloats; ++i) {
    if ((i & kStep) != 0) continue;
    const FloatVector a = v[i], b = v[i + kStep];
    v[i] = exchange<kStep, false>(a, b);
    v[i + kStep] = exchange<kStep, true>(a, b);
  }
}
/// Rows become columns.
CCKS_INLINE void turn(FloatVector (&v)[kVectorFloats]) {
  exchange_pairs<1>(v);
  exchange_pairs<2>(v);
  if constexpr (kVectorFloats >= 8) exchange_pairs<4>(v);
  if constexpr (kVectorFloats >= 16) exchange_pairs<8>(v);
}

/// to[p * kWidth + r] = from[r][p] for p < n and r < kWidth. Squares of kVectorFloats rows are turned in registers.
/// Where kWidth is no multiple of that, the last square writes over the start of the next row: squares go from right to
/// left, so that the row itself is written after it.
template <u32 kWidth>
CCKS_INLINE void turn_run(const float (&from)[round_up(kWidth, kVectorFloats)][kPackRun], u32 n, float* to) {
  u32 p = 0;
  for (; p + kVectorFloats <= n; p += kVectorFloats)
    for (u32 r = round_up(kWidth, kVectorFloats); r > 0;) {
      r -= kVectorFloats;
      FloatVector v[kVectorFloats];
#pragma GCC unroll 16
      for (u32 i = 0; i < kVectorFloats; ++i) v[i] = *reinterpret_cast<const FloatVector*>(&from[r + i][p]);
      turn(v);
#pragma GCC unroll 16
      for (u32 i = 0; i < kVectorFloats; ++i) *reinterpret_cast<FloatVector*>(to + (p + i) * kWidth + r) = v[i];
    }
  for (; p < n; ++p)
    for (u32 r = 0; r < kWidth; ++r) to[p * kWidth + r] = from[r][p];
}

/// Panels [panel][k][kWidth], zero beyond `rows`; `read(r, p, n, to)` reads n elements of row r from p on.
template <u32 kWidth, class Read>
CCKS_INLINE void pack_turned(u32 rows, u32 depth, float* to, Read&& read) {
  float run[round_up(kWidth, kVectorFloats)][kPackRun];
  for (u32 i = 0; i < rows; i += kWidth, to += depth * kWidth) {
    const u32 here = least(kWidth, rows - i);
    for (u32 r = here; r < round_up(kWidth, kVectorFloats); ++r)
      for (u32 p = 0; p < kPackRun; ++p) run[r][p] = 0;
    for (u32 p0 = 0; p0 < depth; p0 += kPackRun) {
      const u32 n = least(kPackRun, depth - p0);
      for (u32 r = 0; r < here; ++r) {
        if (n == kPackRun)
          read(i + r, p0, kPackRun, run[r]);  // a constant length: whole vectors
        else
          read(i + r, p0, n, run[r]);
      }
      turn_run<kWidth>(run, n, to + p0 * kWidth);
    }
  }
}

/// Rows of b are read whole and dealt to the panels, so that memory is read in order and a row's address is found once.
template <class Problem>
CCKS_INLINE void pack_rows(const Problem& problem, u32 j0, u32 columns, u32 k0, u32 depth, float* to) {
  constexpr u32 kPiece = 16 * kPanelColumns;
  float row[kPiece];
  for (u32 j = 0; j < columns; j += kPiece) {
    const u32 here = least(kPiece, columns - j), panels = ceil_div(here, kPanelColumns);
    for (u32 v = here; v < panels * kPanelColumns; ++v) row[v] = 0;
    for (u32 p = 0; p < depth; ++p) {
      problem.run_b(k0 + p, j0 + j, here, row);
      float* at = to + j * depth + p * kPanelColumns;
      for (u32 i = 0; i < panels; ++i, at += depth * kPanelColumns)
        for (u32 v = 0; v < kPanelColumns; ++v) at[v] = row[i * kPanelColumns + v];
    }
  }
}

template <class Problem>
CCKS_OUTLINE void pack_a(const Problem& problem, u32 i0, u32 rows, u32 k0, u32 depth, float* to) {
  pack_turned<kPanelRows>(rows, depth, to,
                          [&](u32 r, u32 p, u32 n, float* run) { problem.run_a(i0 + r, k0 + p, n, run); });
}
template <class Problem>
CCKS_OUTLINE void pack_b(const Problem& problem, u32 j0, u32 columns, u32 k0, u32 depth, float* to) {
  if (!problem.b_is_transposed()) return pack_rows(problem, j0, columns, k0, depth, to);
  pack_turned<kPanelColumns>(columns, depth, to,
                             [&](u32 c, u32 p, u32 n, float* run) { problem.column_b(j0 + c, k0 + p, n, run); });
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

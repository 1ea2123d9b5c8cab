// The core of matmul, conv2d and expert_matmul: c[m, n] = a[m, k] * b[k, n] in f32, for one tile.
//
// A Problem says where elements come from and where results go:
//   float a(u32 i, u32 k), float b(u32 k, u32 j)     one element
//   template <u32 W> void finish(u32 i, u32 j, u32 n, const float* acc)   epilogue and store of n results of row i
//   void finish_four(u32 i, u32 j, u32 n, const float* acc)               the same, n <= 4, for bodies of lanes in warps
// and for bodies of one lane
//   void run_a(u32 i, u32 k, u32 n, float* to)       n elements of row i from k on
//   void run_b(u32 k, u32 j, u32 n, float* to)       n elements of row k of b from j on
//   bool b_is_transposed()                           columns of b are the contiguous ones; then also
//   void column_b(u32 j, u32 k, u32 n, float* to)    n elements of column j of b from k on
//   View of the raw b for streaming, see gemm_thin_host.hpp
#pragma once

#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

// A block of 64 x 64 results by steps of 16 in k: 16 results a lane on 256 lanes, 8 KiB of scratch.
inline constexpr u32 kBlockRows = 64, kBlockColumns = 64, kBlockDepth = 16, kCell = 4;

/// The body for any number of lanes. Cells of 4 x 4 results are dealt to the lanes; with fewer lanes than cells the
/// block is walked several times.
template <class Lanes, class Problem>
class PortableGemm {
 public:
  CCKS_INLINE PortableGemm(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k)
      : lanes_(lanes),
        problem_(problem),
        m_(m),
        n_(n),
        k_(k),
        a_(reinterpret_cast<float*>(scratch.at)),
        b_(a_ + kBlockDepth * kBlockRows) {}

  CCKS_INLINE void run() {
    for (u32 i0 = 0; i0 < m_; i0 += kBlockRows)
      for (u32 j0 = 0; j0 < n_; j0 += kBlockColumns) block(i0, j0);
  }

 private:
  CCKS_INLINE void block(u32 i0, u32 j0) {
    const u32 rows = ceil_div(least(kBlockRows, m_ - i0), kCell),
              columns = ceil_div(least(kBlockColumns, n_ - j0), kCell);
    const u32 cells = rows * columns;
    for (u32 first = 0; first < cells; first += lanes_.lanes()) {
      const u32 cell = first + lanes_.lane();
      const bool mine = cell < cells;
      const u32 ci = mine ? cell / columns * kCell : 0, cj = mine ? cell % columns * kCell : 0;
      float acc[kCell][kCell] = {};
      for (u32 k0 = 0; k0 < k_; k0 += kBlockDepth) {
        lanes_.sync();  // everyone is done with the block before
        fetch(i0, j0, k0);
        lanes_.sync();
        if (mine) multiply(acc, ci, cj);
      }
      if (mine) store(acc, i0 + ci, j0 + cj);
    }
  }

  /// Zero outside of the matrices, so that edges need no care.
  CCKS_INLINE void fetch(u32 i0, u32 j0, u32 k0) {
    for (u32 e = lanes_.lane(); e < kBlockDepth * kBlockRows; e += lanes_.lanes()) {
      const u32 k = e % kBlockDepth, i = e / kBlockDepth;  // k fastest: rows of a are mostly contiguous
      a_[k * kBlockRows + i] = i0 + i < m_ && k0 + k < k_ ? problem_.a(i0 + i, k0 + k) : 0.0f;
    }
    const bool down = problem_.b_is_transposed();
    for (u32 e = lanes_.lane(); e < kBlockDepth * kBlockColumns; e += lanes_.lanes()) {
      const u32 k = down ? e % kBlockDepth : e / kBlockColumns, j = down ? e / kBlockDepth : e % kBlockColumns;
      b_[k * kBlockColumns + j] = j0 + j < n_ && k0 + k < k_ ? problem_.b(k0 + k, j0 + j) : 0.0f;
    }
  }

  CCKS_INLINE void multiply(float (&acc)[kCell][kCell], u32 ci, u32 cj) {
    for (u32 k = 0; k < kBlockDepth; ++k) {
      const float* a = a_ + k * kBlockRows + ci;
      const float* b = b_ + k * kBlockColumns + cj;
      for (u32 i = 0; i < kCell; ++i)
        for (u32 j = 0; j < kCell; ++j) acc[i][j] += a[i] * b[j];
    }
  }

  CCKS_INLINE void store(const float (&acc)[kCell][kCell], u32 i0, u32 j0) {
    for (u32 i = 0; i < kCell && i0 + i < m_; ++i)
      for (u32 j = 0; j < kCell && j0 + j < n_; ++j) problem_.template finish<1>(i0 + i, j0 + j, 1, &acc[i][j]);
  }

  Lanes& lanes_;
  const Problem& problem_;
  u32 m_, n_, k_;
  float* a_;  // [k][rows]
  float* b_;  // [k][columns]
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#if CCKS_HOST_BODIES
#include "ccks/worker/gemm_host.hpp"
#endif
#include "ccks/worker/gemm_block_warps.hpp"
#include "ccks/worker/gemm_thin_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// `scratch` is what the problem has left of the lanes' scratch.
template <class Lanes, class Problem>
CCKS_INLINE void gemm(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  if (m == 0 || n == 0) return;
#if CCKS_HOST_BODIES
  if constexpr (Lanes::kSingleLane) {
    if (host_gemm(scratch, problem, m, n, k)) return;
  }
#endif
  if constexpr (WarpLanes<Lanes>) {
    if constexpr (kInMatrices<Problem>) {
      if (thin_warps(lanes, scratch, problem, m, n, k)) return;
    }
    run_block(lanes, scratch, problem, m, n, k);
  } else {
    PortableGemm<Lanes, Problem>(lanes, scratch, problem, m, n, k).run();
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

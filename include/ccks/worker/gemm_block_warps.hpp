// Products of blocks where lanes run in warps: blocks of up to 64 x 64 results from scratch, 4 x 4 results a lane. Where a
// block has fewer cells than there are lanes, lanes share a cell and take every n-th k; so a head of 16 x 16 has all lanes
// at work. The next piece of a and b is under way while this one is multiplied.
#pragma once

#include "ccks/worker/gemm_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Lanes, class Problem>
class BlockWarps {
 public:
  static constexpr u32 kLanes = Lanes::kLanes, kWarp = Lanes::kWarp;
  static constexpr u32 kSide = kLanes / 4;   // of a block, at most
  static constexpr u32 kDepth = 64;          // k in scratch: both pieces then fit kMinScratchBytes
  static constexpr u32 kFlight = kSide * kDepth / kVector / kLanes;  // vectors of a piece a lane
  static constexpr u32 kPad = 4;             // rows of a piece begin in different banks

  CCKS_INLINE BlockWarps(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k)
      : lanes_(lanes), scratch_(scratch), problem_(problem), m_(m), n_(n), k_(k), down_(problem.b_is_transposed()),
        vectors_(all_in_vectors(problem, n, k)) {}

  CCKS_INLINE void run() {
    CCKS_NO_UNROLL
    for (u32 i0 = 0; i0 < m_; i0 += kSide) {
      CCKS_NO_UNROLL
      for (u32 j0 = 0; j0 < n_; j0 += kSide) {
        if (i0 + j0 != 0) lanes_.sync();  // results are read to the end
        block(i0, j0, least(kSide, m_ - i0), least(kSide, n_ - j0));
      }
    }
  }

 private:
  struct Piece {
    float a[kFlight][kVector], b[kFlight][kVector];
  };

  CCKS_INLINE void block(u32 i0, u32 j0, u32 rows, u32 columns) {
    rows_ = ceil_pow2(ceil_div(rows, kVector)) * kVector;
    columns_ = ceil_pow2(ceil_div(columns, kVector)) * kVector;
    const u32 cells = rows_ * columns_ / (kVector * kVector), slices = least(kWarp, kLanes / cells);
    const u32 cell = lanes_.lane() / slices, slice = lanes_.lane() & (slices - 1);
    const u32 wide = columns_ / kVector;
    const u32 ci = (cell >> log2_of(wide)) * kVector, cj = (cell & (wide - 1)) * kVector;
    place(least(kDepth, round_up(k_, kVector)));
    float acc[kVector * kVector] = {};
    Piece piece;
    if (vectors_) fetch(piece, i0, j0, 0);
    CCKS_NO_UNROLL
    for (u32 k0 = 0; k0 < k_; k0 += kDepth) {
      if (k0 != 0) lanes_.sync();
      if (vectors_)
        keep(piece, k0);
      else
        stage(i0, j0, k0);
      lanes_.sync();
      if (vectors_ && k0 + kDepth < k_) fetch(piece, i0, j0, k0 + kDepth);
      if (cell < cells) multiply(acc, ci, cj, slice, slices, depth(k0));
    }
    if (!own_results_) lanes_.sync();
    if (cell < cells) {
      scatter_sums<kVector * kVector>(lanes_, acc, 1, slices, 0, [&](u32 first, u32 count, const float* v) {
        CCKS_UNROLL
        for (u32 e = 0; e < count; ++e) results_[(ci + (first + e) / kVector) * columns_ + cj + (first + e) % kVector] = v[e];
      });
    }
    lanes_.sync();
    finish(i0, j0, rows, columns);
  }

  CCKS_INLINE u32 depth(u32 k0) const { return least(kDepth, round_up(k_ - k0, kVector)); }

  CCKS_INLINE void place(u32 depth) {
    Scratch scratch = scratch_;
    a_ = scratch.take<float>(depth * (rows_ + kPad));
    b_ = scratch.take<float>(depth * (columns_ + kPad));
    results_ = scratch.take<float>(rows_ * columns_);
    own_results_ = results_ != nullptr;
    if (!own_results_) results_ = a_;
  }

  /// Which vector of a piece is the f-th of this lane: line [0, lines) across and p along k, in fours where `down`.
  struct Unit {
    u32 line, p;
    bool here;
  };
  /// Vectors along k of `lines` rows of a or columns of b: lines fastest, so that they end in different banks.
  CCKS_INLINE Unit down_unit(u32 f, u32 lines, u32 depth) const {
    const u32 e = lanes_.lane() + f * kLanes, p = (e >> log2_of(lines)) * kVector;
    return {e & (lines - 1), p, p < depth};
  }
  /// Vectors along the rows of b.
  CCKS_INLINE Unit along_unit(u32 f, u32 depth) const {
    const u32 wide = columns_ / kVector, e = lanes_.lane() + f * kLanes, p = e >> log2_of(wide);
    return {(e & (wide - 1)) * kVector, p, p < depth};
  }

  CCKS_INLINE void fetch(Piece& piece, u32 i0, u32 j0, u32 k0) const {
    if constexpr (kInMatrices<Problem>) {
      const u32 here = depth(k0);
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f) {
        const Unit u = down_unit(f, rows_, here);
        CCKS_UNROLL
        for (u32 q = 0; q < kVector; ++q) piece.a[f][q] = piece.b[f][q] = 0;
        if (u.here && i0 + u.line < m_) problem_.four_a(i0 + u.line, k0 + u.p, piece.a[f]);
        const Unit w = down_ ? down_unit(f, columns_, here) : along_unit(f, here);
        if (w.here && j0 + w.line < n_)
          load_four(problem_.right.type, problem_.right.at(k0 + w.p, j0 + w.line), piece.b[f]);
      }
    }
  }

  /// Element by element, for what does not lie in vectors.
  CCKS_INLINE void stage(u32 i0, u32 j0, u32 k0) {
    const u32 here = depth(k0);
    CCKS_NO_UNROLL
    for (u32 e = lanes_.lane(); e < rows_ * kDepth; e += kLanes) {
      const u32 p = e % kDepth, i = e / kDepth;  // along k first: rows of a are mostly contiguous
      if (p < here) a_[p * (rows_ + kPad) + i] = i0 + i < m_ && k0 + p < k_ ? problem_.a(i0 + i, k0 + p) : 0.0f;
    }
    CCKS_NO_UNROLL
    for (u32 e = lanes_.lane(); e < columns_ * kDepth; e += kLanes) {
      const u32 p = down_ ? e % kDepth : e >> log2_of(columns_), j = down_ ? e / kDepth : e & (columns_ - 1);
      if (p < here) b_[p * (columns_ + kPad) + j] = j0 + j < n_ && k0 + p < k_ ? problem_.b(k0 + p, j0 + j) : 0.0f;
    }
  }

  CCKS_INLINE void keep(const Piece& piece, u32 k0) {
    const u32 here = depth(k0);
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const Unit u = down_unit(f, rows_, here);
      if (u.here) keep_down(a_, rows_ + kPad, u, piece.a[f]);
      const Unit w = down_ ? down_unit(f, columns_, here) : along_unit(f, here);
      if (!w.here) continue;
      if (down_) {
        keep_down(b_, columns_ + kPad, w, piece.b[f]);
      } else {
        const float* v = piece.b[f];
        *reinterpret_cast<Four<float>*>(b_ + w.p * (columns_ + kPad) + w.line) = {{v[0], v[1], v[2], v[3]}};
      }
    }
  }
  CCKS_INLINE static void keep_down(float* to, u32 pitch, const Unit& u, const float* v) {
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) to[(u.p + q) * pitch + u.line] = v[q];
  }

  CCKS_INLINE void multiply(float* acc, u32 ci, u32 cj, u32 slice, u32 slices, u32 depth) const {
    for (u32 p = slice; p < depth; p += slices) {
      const Four<float> a = *reinterpret_cast<const Four<float>*>(a_ + p * (rows_ + kPad) + ci);
      const Four<float> b = *reinterpret_cast<const Four<float>*>(b_ + p * (columns_ + kPad) + cj);
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i)
        for (u32 j = 0; j < kVector; ++j) acc[i * kVector + j] += a.v[i] * b.v[j];
    }
  }

  CCKS_INLINE void finish(u32 i0, u32 j0, u32 rows, u32 columns) const {
    const u32 wide = columns_ / kVector, shift = log2_of(wide);
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < rows << shift; o += kLanes) {
      const u32 i = o >> shift, j = (o & (wide - 1)) * kVector;
      if (j >= columns) continue;
      const Four<float> acc = *reinterpret_cast<const Four<float>*>(results_ + i * columns_ + j);
      problem_.finish_four(i0 + i, j0 + j, least(kVector, columns - j), acc.v);
    }
  }

  Lanes& lanes_;
  Scratch scratch_;
  const Problem& problem_;
  u32 m_, n_, k_, rows_ = 0, columns_ = 0;  // of the block, rounded up to powers of two
  bool down_, vectors_, own_results_ = false;
  float* a_ = nullptr;        // [k][row]
  float* b_ = nullptr;        // [k][column]
  float* results_ = nullptr;  // [row][column]
};

template <class Lanes, class Problem>
CCKS_OUTLINE void run_block(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  BlockWarps<Lanes, Problem>(lanes, scratch, problem, m, n, k).run();
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

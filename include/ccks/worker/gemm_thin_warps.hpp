// matmul of few rows where lanes run in warps: b is read once, in vectors, many of them under way; a stands in scratch as
// f32. Two ways, by the axis along which b is contiguous:
//   rows of b       a lane has four columns and every n-th k; lanes that share columns add up, then warps
//   columns of b    a warp has columns, its lanes every n-th vector along k, and add up
// Where b comes from is behind `Source`, so that it can be shared memory that somebody else fills.
#pragma once

#include "ccks/worker/gemm_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kThinRows = 8;  // accumulators of a lane: rows x 4

/// b as it lies in memory. `at(k, j)` is the address of an element; vectors run along the contiguous axis.
template <class T>
struct MemorySource {
  Matrix<T> b;
  CCKS_INLINE T type() const { return b.type; }
  CCKS_INLINE const u8* at(u32 k, u32 j) const { return b.at(k, j); }
  CCKS_INLINE bool along_rows() const { return b.column_stride == 1; }
};

template <u32 M, class Lanes, class Problem, class Source>
class ThinWarps {
 public:
  static constexpr u32 kLanes = Lanes::kLanes, kWarp = Lanes::kWarp, kWarps = kLanes / kWarp;
  static constexpr u32 kValues = M * kVector;
  static constexpr u32 kFlight = M <= 4 ? 8 : 4;  // vectors of b that a lane has under way
  static constexpr u32 kSteps = kFlight / kVector;  // along k, of the four columns of a warp
  static constexpr u32 kColumns = kWarp * kVector;

  CCKS_INLINE ThinWarps(Lanes& lanes, Scratch scratch, const Problem& problem, const Source& b, u32 m, u32 n, u32 k)
      : lanes_(lanes), problem_(problem), b_(b), m_(m), n_(n), k_(k) {
    sums_ = scratch.take<float>(kWarps * M * kColumns);
    depth_ = least(k, scratch.left / static_cast<u32>(sizeof(float) * M) / kVector * kVector);
    a_ = scratch.take<float>(depth_ * M);
  }

  CCKS_INLINE void run() {
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < n_; j0 += kColumns) {
      if (j0 != 0) lanes_.sync();  // sums are read to the end
      if (b_.along_rows())
        rows(j0, least(kColumns, n_ - j0));
      else
        columns(j0, least(kColumns, n_ - j0));
    }
  }

 private:
  /// Calls put(i, p, v) with a[i][k0 + p], ..., a[i][k0 + p + 3] for all i < M and p < depth, zeros beyond m. Two
  /// vectors a lane are loaded before the first is put.
  template <class Put>
  CCKS_INLINE void stage(u32 k0, u32 depth, Put&& put) {
    const u32 units = depth / kVector * M;
    CCKS_NO_UNROLL
    for (u32 unit = lanes_.lane(); unit < units; unit += 2 * kLanes) {
      float v[2][kVector];
      CCKS_UNROLL
      for (u32 u = 0; u < 2; ++u) {
        const u32 i = (unit + u * kLanes) % M, k = k0 + (unit + u * kLanes) / M * kVector;
        CCKS_UNROLL
        for (u32 q = 0; q < kVector; ++q) v[u][q] = 0;
        if (i < m_ && unit + u * kLanes < units) problem_.four_a(i, k, v[u]);
      }
      CCKS_UNROLL
      for (u32 u = 0; u < 2; ++u)
        if (unit + u * kLanes < units) put((unit + u * kLanes) % M, (unit + u * kLanes) / M * kVector, v[u]);
    }
  }
  CCKS_INLINE void stage_rows(u32 k0, u32 depth) {
    stage(k0, depth, [&](u32 i, u32 p, const float* v) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) a_[(p + q) * M + i] = v[q];
    });
  }
  CCKS_INLINE void stage_columns(u32 k0, u32 depth) {
    stage(k0, depth, [&](u32 i, u32 p, const float* v) {
      *reinterpret_cast<Four<float>*>(a_ + i * depth + p) = {{v[0], v[1], v[2], v[3]}};
    });
  }

  // ---- b contiguous along rows ----

  CCKS_INLINE void rows(u32 j0, u32 n) {
    const u32 groups = ceil_pow2(ceil_div(n, kVector)), slices = kLanes / groups;
    const u32 group = lanes_.lane() & (groups - 1), slice = lanes_.lane() / groups;
    const u32 j = group * kVector;
    const bool mine = j < n;
    float acc[kValues] = {};
    CCKS_NO_UNROLL
    for (u32 k0 = 0; k0 < k_; k0 += depth_) {
      const u32 depth = least(depth_, k_ - k0);
      const u8* from = b_.at(k0 + slice, j0 + (mine ? j : 0));
      const i64 step = b_.at(slices, 0) - b_.at(0, 0);
      CCKS_NO_UNROLL
      for (u32 p0 = 0; p0 < depth; p0 += kFlight * slices) {
        float b[kFlight][kVector];
        fetch_rows(b, from, step, mine, p0 + slice, slices, depth);
        from += kFlight * step;
        if (p0 == 0) {  // a is fetched while b is under way
          if (k0 != 0) lanes_.sync();
          stage_rows(k0, depth);
          lanes_.sync();
        }
        multiply_rows(acc, b, p0 + slice, slices, depth);
      }
    }
    float* sums = sums_ + lanes_.lane() / kWarp * (kValues * groups);
    scatter_sums<kValues>(lanes_, acc, groups, kWarp, 0, [&](u32 first, u32 count, const float* v) {
      for (u32 i = 0; i < count; ++i) sums[(first + i) * groups + group] = v[i];
    });
    lanes_.sync();
    finish_rows(j0, n, groups);
  }

  CCKS_INLINE void fetch_rows(float (&b)[kFlight][kVector], const u8* from, i64 step, bool mine, u32 p, u32 slices,
                              u32 depth) const {
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) b[f][q] = 0;
      if (mine && p + f * slices < depth) load_four(b_.type(), from + f * step, b[f]);
    }
  }
  CCKS_INLINE void multiply_rows(float (&acc)[kValues], const float (&b)[kFlight][kVector], u32 p, u32 slices,
                                 u32 depth) const {
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      if (p + f * slices >= depth) break;
      const float* a = a_ + (p + f * slices) * M;
      CCKS_UNROLL
      for (u32 i = 0; i < M; ++i)
        for (u32 q = 0; q < kVector; ++q) acc[i * kVector + q] += a[i] * b[f][q];
    }
  }
  CCKS_INLINE void finish_rows(u32 j0, u32 n, u32 groups) {
    const u32 width = groups * kVector, shift = log2_of(width);
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < m_ << shift; o += kLanes) {
      const u32 i = o >> shift, j = o & (width - 1);
      if (j >= n) continue;
      float all = 0;
      CCKS_UNROLL
      for (u32 w = 0; w < kWarps; ++w) all += sums_[(w * kValues + i * kVector + j % kVector) * groups + j / kVector];
      problem_.template finish<1>(i, j0 + j, 1, &all);
    }
  }

  // ---- b contiguous along columns ----

  CCKS_INLINE void columns(u32 j0, u32 n) {
    const u32 warp = lanes_.lane() / kWarp, share = least(kVector, ceil_div(n, kWarps));
    CCKS_NO_UNROLL
    for (u32 k0 = 0; k0 < k_; k0 += depth_) {
      const u32 depth = least(depth_, k_ - k0);
      if (k0 != 0) lanes_.sync();
      stage_columns(k0, depth);
      lanes_.sync();
      CCKS_NO_UNROLL
      for (u32 j = warp * share; j < n; j += kWarps * share) share_of_columns(j0, j, least(share, n - j), k0, depth);
    }
    lanes_.sync();
    finish_columns(j0, n);
  }

  /// Columns [j, j + n) of the block, n <= 4.
  CCKS_INLINE void share_of_columns(u32 j0, u32 j, u32 n, u32 k0, u32 depth) {
    float acc[kValues] = {};
    const i64 step = b_.at(0, 1) - b_.at(0, 0);
    CCKS_NO_UNROLL
    for (u32 p = lanes_.lane() % kWarp * kVector; p < depth; p += kSteps * kWarp * kVector) {
      float b[kSteps][kVector][kVector];
      const u8* from = b_.at(k0 + p, j0 + j);
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) fetch_columns(b[s], from + s * kWarp * kVector * bytes_of(b_.type()), step,
                                                     p + s * kWarp * kVector < depth ? n : 0);
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s)
        if (p + s * kWarp * kVector < depth) multiply_columns(acc, b[s], p + s * kWarp * kVector, depth);
    }
    scatter_sums<kValues>(lanes_, acc, 1, kWarp, 0, [&](u32 first, u32 count, const float* v) {
      for (u32 e = 0; e < count; ++e) {
        const u32 i = (first + e) / kVector, q = (first + e) % kVector;
        if (q >= n) continue;  // another warp's column
        float& sum = sums_[i * kColumns + j + q];
        sum = k0 == 0 ? v[e] : sum + v[e];  // the same lane each time
      }
    });
  }
  CCKS_INLINE void fetch_columns(float (&b)[kVector][kVector], const u8* from, i64 step, u32 n) const {
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) {
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) b[q][e] = 0;
      if (q < n) load_four(b_.type(), from + q * step, b[q]);
    }
  }
  CCKS_INLINE void multiply_columns(float (&acc)[kValues], const float (&b)[kVector][kVector], u32 p, u32 depth) const {
    CCKS_UNROLL
    for (u32 i = 0; i < M; ++i) {
      const Four<float> a = *reinterpret_cast<const Four<float>*>(a_ + i * depth + p);
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q)
        for (u32 e = 0; e < kVector; ++e) acc[i * kVector + q] += a.v[e] * b[q][e];
    }
  }
  CCKS_INLINE void finish_columns(u32 j0, u32 n) {
    CCKS_NO_UNROLL
    for (u32 i = 0; i < m_; ++i) {
      CCKS_NO_UNROLL
      for (u32 j = lanes_.lane(); j < n; j += kLanes) {
        const float all = sums_[i * kColumns + j];
        problem_.template finish<1>(i, j0 + j, 1, &all);
      }
    }
  }

  Lanes& lanes_;
  const Problem& problem_;
  const Source& b_;
  u32 m_, n_, k_, depth_;
  float* sums_;  // [warp][value][group], or [row][column]
  float* a_;
};

/// Functions of their own, so that registers are shared out for one shape at a time.
template <u32 M, class Lanes, class Problem>
CCKS_OUTLINE void run_thin(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  using Source = MemorySource<decltype(problem.right.type)>;
  const Source b{problem.right};
  ThinWarps<M, Lanes, Problem, Source>(lanes, scratch, problem, b, m, n, k).run();
}

/// False: not a shape for it.
template <class Lanes, class Problem>
CCKS_INLINE bool thin_warps(Lanes& lanes, Scratch scratch, const Problem& problem, u32 m, u32 n, u32 k) {
  if (m > kThinRows || k == 0 || !all_in_vectors(problem, n, k)) return false;
  if (m == 1)
    run_thin<1>(lanes, scratch, problem, m, n, k);
  else if (m <= 4)
    run_thin<4>(lanes, scratch, problem, m, n, k);
  else
    run_thin<8>(lanes, scratch, problem, m, n, k);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

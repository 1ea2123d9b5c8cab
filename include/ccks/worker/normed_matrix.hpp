// Rows of a that are normed where a product reads them, for bodies that read rows piece by piece (gemm.hpp): the scale of each row is
// found first, and every read multiplies by it and by the weight and rounds.
#pragma once

#include "ccks/worker/ops_rows.hpp"
#include "ccks/worker/staged_rows.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of a product whose scales stand in scratch at a time.
inline constexpr u32 kNormedRows = 128;

/// Rows are read as they are.
struct NotApplied {
  CCKS_INLINE bool in_vectors() const { return true; }
  template <class T>
  CCKS_INLINE void apply(T, u32, u32, u32, float*) const {}
  template <class T>
  CCKS_INLINE float one(T, u32, u32, float v) const {
    return v;
  }
  template <class T>
  CCKS_INLINE void apply_four(T, u32, u32, float (&)[kVector]) const {}
};

struct RoundRun {
  u32 n;
  float* v;
  template <Dtype D>
  CCKS_INLINE void operator()(Fixed<D>) const {
    for (u32 q = 0; q < n; ++q) v[q] = to_float<D>(from_float<D>(v[q]));
  }
};

template <class Norm>
struct AppliedNorm {
  Norm norm;
  const float* scales;  // of rows, in scratch

  CCKS_INLINE bool in_vectors() const { return !norm.on() || (norm.stride == 1 && vector_aligned(norm.weight, bytes_of(norm.type))); }
  /// To elements [k, k + n) of row i, of dtype `type`.
  template <class T>
  CCKS_INLINE void apply(T type, u32 i, u32 k, u32 n, float* v) const {
    if (!norm.on()) return;
    constexpr u32 kRun = 128;
    for (u32 from = 0; from < n; from += kRun) {
      const u32 here = least(kRun, n - from);
      float w[kRun];
      load_run(norm.type, norm.weight + (k + from) * norm.stride * bytes_of(norm.type), norm.stride, here, w);
      for (u32 q = 0; q < here; ++q) v[from + q] = v[from + q] * scales[i] * w[q];
    }
    visit(type, RoundRun{n, v});
  }
  /// To element k of row i: for bodies of many lanes.
  template <class T>
  CCKS_INLINE float one(T type, u32 i, u32 k, float v) const {
    if (!norm.on()) return v;
    v = v * scales[i] * load_float(norm.type, norm.weight, k * norm.stride);
    visit(type, RoundRun{1, &v});
    return v;
  }
  /// The same where in_vectors() holds and k is a multiple of four.
  template <class T>
  CCKS_INLINE void apply_four(T type, u32 i, u32 k, float (&v)[kVector]) const {
    if (!norm.on()) return;
    float w[kVector];
    load_four(norm.type, norm.weight + k * bytes_of(norm.type), w);
    CCKS_UNROLL
    for (u32 q = 0; q < kVector; ++q) v[q] = v[q] * scales[i] * w[q];
    round_four(type, v);
  }
};

/// 1 / sqrt(mean(x^2) + eps) of rows [0, m), a warp a row: rows lie in vectors.
template <class Lanes, class T>
CCKS_INLINE void scales_by_warps(Lanes& lanes, const Matrix<T>& rows, float eps, u32 m, u32 k, float* scales) {
  constexpr u32 kWarp = Lanes::kWarp, kFlight = 4, kStep = kWarp * kVector;
  CCKS_NO_UNROLL
  for (u32 i = lanes.lane() / kWarp; i < m; i += Lanes::kLanes / kWarp) {
    const u8* row = rows.at(i, 0);
    float squares = 0;
    CCKS_NO_UNROLL
    for (u32 p = lanes.lane() % kWarp * kVector; p < k; p += kFlight * kStep) {
      float v[kFlight][kVector] = {};
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f)
        if (p + f * kStep < k) load_four(rows.type, row + (p + f * kStep) * bytes_of(rows.type), v[f]);
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f)
        for (u32 q = 0; q < kVector; ++q) squares += v[f][q] * v[f][q];
    }
    for (u32 step = 1; step < kWarp; step *= 2) squares += lanes.shuffle_xor(squares, step);
    if (lanes.lane() % kWarp == 0) scales[i] = 1.0f / f_sqrt(squares / static_cast<float>(k) + eps);
  }
}

/// The same of any rows, which all lanes walk one after the other, as a norm op does.
template <class Lanes, class T>
CCKS_OUTLINE void scales_of_rows(Lanes& lanes, Scratch scratch, const Matrix<T>& rows, float eps, u32 m, u32 k, float* scales) {
  RowReader reader(lanes, rows.type, k, scratch);
  for (u32 i = 0; i < m; ++i) {
    reader.start(rows.at(i, 0), rows.column_stride);
    const float scale = 1.0f / f_sqrt(mean_square(lanes, reader, 0.0f, k) + eps);
    if (lanes.lane() == 0) scales[i] = scale;
  }
}

/// What norms rows of `rows` as they are read; m <= kNormedRows of them. Takes from scratch what it wants. Contains barriers.
template <class Lanes, class T, class Norm>
CCKS_INLINE auto prepare_norm(Lanes& lanes, Scratch& scratch, const Norm& norm, const Matrix<T>& rows, u32 m, u32 k) {
  if constexpr (!Norm::kNorms) {
    return NotApplied{};
  } else {
    float* scales = nullptr;
    if (norm.on()) {
      scales = scratch.take<float>(m);
      bool vectors = false;
      if constexpr (WarpLanes<Lanes>)
        vectors = k % kVector == 0 && rows.column_stride == 1 && rows.row_stride % kVector == 0 && vector_aligned(rows.data, bytes_of(rows.type));
      if (!vectors) {
        scales_of_rows(lanes, scratch, rows, norm.eps, m, k, scales);
      } else {
        if constexpr (WarpLanes<Lanes>) scales_by_warps(lanes, rows, norm.eps, m, k, scales);
      }
      lanes.sync();
    }
    return AppliedNorm<Norm>{norm, scales};
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

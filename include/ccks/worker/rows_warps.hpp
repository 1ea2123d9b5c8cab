// softmax, rmsnorm and layernorm where lanes run in warps: a group of lanes has a row, as many as it takes to hold it in
// registers, four elements at a time; sums go by shuffles. Short rows share a warp, long ones have all lanes.
#pragma once

#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// How rows are dealt. A lane has the vectors at, at + group, ... of its row.
struct RowGroups {
  u32 group;   // lanes a row: a power of two up to kWarp, or all
  u32 at;      // of this lane in its group
  u32 first, step;  // rows of this lane's group
};

template <class Lanes>
class RowWarps {
 public:
  static constexpr u32 kVectors = 4;  // of a lane
  static constexpr u32 kValues = kVectors * kVector;
  static constexpr u32 kWarp = Lanes::kWarp, kLanes = Lanes::kLanes;

  CCKS_INLINE RowWarps(Lanes& lanes, u32 width, u32 rows) : lanes_(lanes), width_(width), rows_(rows) {
    const u32 vectors = ceil_div(width, kVector);
    u32 group = least(ceil_pow2(most(vectors, 1u)), kWarp);
    // A row that would keep a lane long has all lanes, if there are few such rows or it does not fit a warp's registers.
    const bool all = vectors > kWarp * kVectors || (vectors > kWarp && rows * kWarp < kLanes);
    if (all) group = kLanes;
    g_ = {group, lanes.lane() & (group - 1), lanes.lane() / group, kLanes / group};
  }

  CCKS_INLINE bool fits() const { return width_ % kVector == 0 && width_ <= kLanes * kValues; }

  /// Calls body(row, alive) for the rows of this lane's group; every lane takes as many turns, those beyond the last row with
  /// alive false. body may call sum and max.
  template <class Body>
  CCKS_INLINE void each_row(Body&& body) {
    for (u32 r = 0; r < rows_; r += g_.step) {
      const u32 row = r + g_.first;
      body(row < rows_ ? row : 0, row < rows_);
    }
  }

  /// Calls body(column, slot) for the vectors of this lane: slot 0, 4, ...: where it keeps them.
  template <class Body>
  CCKS_INLINE void each_vector(Body&& body) const {
    CCKS_UNROLL
    for (u32 u = 0; u < kVectors; ++u) {
      const u32 column = (g_.at + u * g_.group) * kVector;
      if (column < width_) body(column, u * kVector);
    }
  }

  template <class T>
  CCKS_INLINE void load(T type, const u8* row, float (&v)[kValues], float fill) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kValues; ++i) v[i] = fill;
    each_vector([&](u32 column, u32 slot) { load_four(type, row + u64{column} * bytes_of(type), v + slot); });
  }

  CCKS_INLINE float sum(float v) {
    if (g_.group == kLanes) return lanes_.sum(v);
    for (u32 step = 1; step < g_.group; step *= 2) v += lanes_.shuffle_xor(v, step);
    return v;
  }
  CCKS_INLINE float max(float v) {
    if (g_.group == kLanes) return lanes_.max(v);
    for (u32 step = 1; step < g_.group; step *= 2) v = most(v, lanes_.shuffle_xor(v, step));
    return v;
  }
  CCKS_INLINE u32 width() const { return width_; }

 private:
  Lanes& lanes_;
  u32 width_, rows_;
  RowGroups g_{};
};

/// Whether rows of a window begin where vectors do, along dims of which the box has several indices.
template <class T>
CCKS_INLINE bool rows_in_vectors(const View<T>& v, const Box& box) {
  i64 odd = 0;
  CCKS_UNROLL
  for (u32 axis = 0; axis < 3; ++axis) odd |= v.stride[axis];
  return v.stride[3] == 1 && odd % kVector == 0 && box.lo[3] % static_cast<i32>(kVector) == 0 &&
         vector_aligned(v.data, bytes_of(v.type));
}

template <class Lanes, class In, class Out>
CCKS_INLINE bool softmax_warps(Lanes& lanes, const View<In>& x, const View<Out>& out, const Box& box, float scale) {
  RowWarps<Lanes> rows(lanes, static_cast<u32>(x.dim[3]), box.rows());
  if (!rows.fits() || !rows_in_vectors(x, box) || !rows_in_vectors(out, box)) return false;
  constexpr u32 kValues = RowWarps<Lanes>::kValues;
  rows.each_row([&](u32 row, bool alive) {
    i32 c[4];
    box.row_start(row, c);
    float v[kValues], top = -f_infinity(), sum = 0;
    rows.load(x.type, x.at(c), v, -f_infinity());
    rows.each_vector([&](u32, u32 slot) {
      for (u32 i = 0; i < kVector; ++i) top = most(top, v[slot + i] *= scale);
    });
    top = rows.max(top);
    rows.each_vector([&](u32, u32 slot) {
      for (u32 i = 0; i < kVector; ++i) sum += v[slot + i] = f_exp(v[slot + i] - top);
    });
    const float inverse = 1.0f / rows.sum(sum);
    if (!alive) return;
    u8* to = out.at(c);
    rows.each_vector([&](u32 column, u32 slot) {
      for (u32 i = 0; i < kVector; ++i) v[slot + i] *= inverse;
      store_four(out.type, to + u64{column} * bytes_of(out.type), v + slot);
    });
  });
  return true;
}

/// rmsnorm, or with kCentred layernorm; `bias` may be nullptr.
template <bool kCentred, class Lanes, class In, class Weight, class Bias, class Out>
CCKS_INLINE bool norm_warps(Lanes& lanes, const View<In>& x, const View<Weight>& weight, const View<Bias>* bias,
                            const View<Out>& out, const Box& box, float eps) {
  RowWarps<Lanes> rows(lanes, static_cast<u32>(x.dim[3]), box.rows());
  const bool vectors = rows.fits() && rows_in_vectors(x, box) && rows_in_vectors(out, box) && weight.stride[3] == 1 &&
                       vector_aligned(weight.data, bytes_of(weight.type)) &&
                       (bias == nullptr || (bias->stride[3] == 1 && vector_aligned(bias->data, bytes_of(bias->type))));
  if (!vectors) return false;
  constexpr u32 kValues = RowWarps<Lanes>::kValues;
  const float count = static_cast<float>(rows.width());
  float w[kValues];
  rows.load(weight.type, weight.data, w, 0.0f);  // the same for every row
  rows.each_row([&](u32 row, bool alive) {
    i32 c[4];
    box.row_start(row, c);
    float v[kValues], mean = 0, squares = 0;
    rows.load(x.type, x.at(c), v, 0.0f);
    if constexpr (kCentred) {
      for (u32 i = 0; i < kValues; ++i) mean += v[i];
      mean = rows.sum(mean) / count;
    }
    rows.each_vector([&](u32, u32 slot) {
      for (u32 i = 0; i < kVector; ++i) squares += (v[slot + i] - mean) * (v[slot + i] - mean);
    });
    const float scale = 1.0f / f_sqrt(rows.sum(squares) / count + eps);
    if (!alive) return;
    u8* to = out.at(c);
    rows.each_vector([&](u32 column, u32 slot) {
      float b[kVector] = {};
      if (bias != nullptr) load_four(bias->type, bias->data + u64{column} * bytes_of(bias->type), b);
      for (u32 i = 0; i < kVector; ++i) b[i] += (v[slot + i] - mean) * scale * w[slot + i];
      store_four(out.type, to + u64{column} * bytes_of(out.type), b);
    });
  });
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

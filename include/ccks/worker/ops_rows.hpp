// Ops over rows of the last dim: softmax, rmsnorm, layernorm. All lanes work on one row at a time; on the host a row is
// read in chunks.
#pragma once

#include "ccks/worker/ops_map.hpp"
#include "ccks/worker/rows_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Sum of W values, in 16 chains where W allows, so that it becomes vector code without reordering by the compiler.
template <u32 W>
CCKS_INLINE float sum_chunk(const float* v) {
  if constexpr (W < 32) {
    float s = 0;
    for (u32 i = 0; i < W; ++i) s += v[i];
    return s;
  } else {
    float chain[16] = {};
    for (u32 i = 0; i < W; i += 16)
      for (u32 j = 0; j < 16; ++j) chain[j] += v[i + j];
    float s = 0;
    for (u32 j = 0; j < 16; ++j) s += chain[j];
    return s;
  }
}
template <u32 W>
CCKS_INLINE float max_chunk(const float* v) {
  float chain[W < 16 ? W : 16];
  constexpr u32 kChains = W < 16 ? W : 16;
  for (u32 j = 0; j < kChains; ++j) chain[j] = v[j];
  for (u32 i = kChains; i < W; i += kChains)
    for (u32 j = 0; j < kChains; ++j) chain[j] = v[i + j] > chain[j] ? v[i + j] : chain[j];
  float m = chain[0];
  for (u32 j = 1; j < kChains; ++j) m = chain[j] > m ? chain[j] : m;
  return m;
}

/// Calls body(first, n, values) for every chunk of a row that is this lane's. `values` holds W floats; those beyond n
/// are `fill`. A row that fits the scratch is read from memory once, and body may change its values for the next pass.
template <class Lanes, class T>
class RowReader {
 public:
  static constexpr u32 W = kChunk<Lanes>;
  CCKS_INLINE RowReader(Lanes& lanes, T type, u32 width) : RowReader(lanes, type, width, scratch_of(lanes)) {}
  CCKS_INLINE RowReader(Lanes& lanes, T type, u32 width, Scratch scratch) : lanes_(lanes), type_(type), width_(width) {
    kept_ = scratch.take<float>(round_up(width, W));
  }
  CCKS_INLINE void start(const u8* row, i64 stride) {
    row_ = row;
    stride_ = stride;
    loaded_ = false;
  }
  template <class Body>
  CCKS_INLINE void pass(float fill, Body&& body) {
    for (u32 first = lanes_.lane() * W; first < width_; first += lanes_.lanes() * W) {
      const u32 n = least(W, width_ - first);
      float local[W];
      float* values = kept_ != nullptr ? kept_ + first : local;
      if (kept_ == nullptr || !loaded_) load_run(type_, row_ + first * stride_ * bytes_of(type_), stride_, n, values);
      for (u32 i = n; i < W; ++i) values[i] = fill;
      body(first, n, values);
    }
    loaded_ = true;
  }
  CCKS_INLINE bool keeps() const { return kept_ != nullptr; }

 private:
  Lanes& lanes_;
  T type_;
  u32 width_;
  float* kept_ = nullptr;  // each lane touches only its own chunks: no barriers
  const u8* row_ = nullptr;
  i64 stride_ = 0;
  bool loaded_ = false;
};

template <class Lanes, class In, class Out>
CCKS_INLINE void softmax_row(Lanes& lanes, RowReader<Lanes, In>& row, float scale, u8* to, i64 to_stride, Out type) {
  constexpr u32 W = kChunk<Lanes>;
  float top = -f_infinity();
  row.pass(-f_infinity(), [&](u32, u32 n, float* v) {
    for (u32 i = 0; i < W; ++i) v[i] = i < n ? v[i] * scale : -f_infinity();
    top = most(top, max_chunk<W>(v));
  });
  top = lanes.max(top);
  float sum = 0;
  // A kept row is already scaled, and keeps its exponentials for the last pass.
  const float again = row.keeps() ? 1.0f : scale;
  row.pass(-f_infinity(), [&](u32, u32 n, float* v) {
    for (u32 i = 0; i < W; ++i) v[i] = f_exp(v[i] * again - top);
    for (u32 i = n; i < W; ++i) v[i] = 0;
    sum += sum_chunk<W>(v);
  });
  const float inverse = 1.0f / lanes.sum(sum);
  row.pass(0.0f, [&](u32 first, u32 n, float* v) {
    float out[W];
    for (u32 i = 0; i < W; ++i) out[i] = (row.keeps() ? v[i] : f_exp(v[i] * again - top)) * inverse;
    store_run(type, to + first * to_stride * bytes_of(type), to_stride, n, out);
  });
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode run_softmax(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes>) {
    if (in_vectors(call.op) && softmax_warps(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto x = view_of<0>(call, types);
  const auto out = view_of<1>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  RowReader row(lanes, x.type, static_cast<u32>(x.dim[3]));
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    row.start(x.at(c), x.stride[3]);
    softmax_row(lanes, row, call.op.scalars[0], out.at(c), out.stride[3], out.type);
  }
  return FaultCode::none;
}

/// Writes (x - mean) * scale * weight + bias; `bias` may be nullptr.
template <class Lanes, class Reader, class Weight, class Bias, class Out>
CCKS_INLINE void write_normal(Lanes&, Reader& row, float mean, float scale, const View<Weight>& weight,
                              const View<Bias>* bias, u8* to, const View<Out>& out) {
  constexpr u32 W = kChunk<Lanes>;
  row.pass(0.0f, [&](u32 first, u32 n, float* v) {
    float w[W], b[W], result[W];
    load_run(weight.type, weight.data + first * weight.stride[3] * bytes_of(weight.type), weight.stride[3], n, w);
    if (bias != nullptr)
      load_run(bias->type, bias->data + first * bias->stride[3] * bytes_of(bias->type), bias->stride[3], n, b);
    else
      for (u32 i = 0; i < n; ++i) b[i] = 0;
    for (u32 i = 0; i < n; ++i) result[i] = (v[i] - mean) * scale * w[i] + b[i];
    store_run(out.type, to + first * out.stride[3] * bytes_of(out.type), out.stride[3], n, result);
  });
}

/// Mean of (x - mean)^2 over the row.
template <class Lanes, class Reader>
CCKS_INLINE float mean_square(Lanes& lanes, Reader& row, float mean, u32 width) {
  constexpr u32 W = kChunk<Lanes>;
  float sum = 0;
  row.pass(mean, [&](u32, u32, float* v) {
    float squares[W];
    for (u32 i = 0; i < W; ++i) squares[i] = (v[i] - mean) * (v[i] - mean);
    sum += sum_chunk<W>(squares);
  });
  return lanes.sum(sum) / static_cast<float>(width);
}

/// Whether norm_near has done it. Not for bodies that know their shape, where little is left to find out.
template <bool kCentred, bool kBias, class Lanes, class Types>
CCKS_INLINE bool norms_near(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes> && NearLanes<Lanes> && Types::kCount != 0 && !kShaped<Types>) {
    if (in_vectors(call.op) && call.op.operands != 0) return norm_near<kCentred, kBias>(lanes, *lanes.nearby(reinterpret_cast<const NearOp*>(&call.op)), tile, types);
  }
  return false;
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode any_rmsnorm(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes>) {
    if (in_vectors(call.op) && norm_warps<false, false>(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto x = view_of<0>(call, types);
  const auto weight = view_of<1>(call, types);
  const auto out = view_of<2>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  const u32 width = static_cast<u32>(x.dim[3]);
  RowReader row(lanes, x.type, width);
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    row.start(x.at(c), x.stride[3]);
    const float scale = 1.0f / f_sqrt(mean_square(lanes, row, 0.0f, width) + call.op.scalars[0]);
    write_normal(lanes, row, 0.0f, scale, weight, static_cast<decltype(&weight)>(nullptr), out.at(c), out);
  }
  return FaultCode::none;
}

template <class Lanes, class Types, class Bias, class Out>
CCKS_INLINE FaultCode layernorm_rows(Lanes& lanes, const Call& call, u32 tile, const Types& types,
                                     const View<Bias>* bias, const View<Out>& out) {
  constexpr u32 W = kChunk<Lanes>;
  const auto x = view_of<0>(call, types);
  const auto weight = view_of<1>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  const u32 width = static_cast<u32>(x.dim[3]);
  RowReader row(lanes, x.type, width);
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    row.start(x.at(c), x.stride[3]);
    float sum = 0;
    row.pass(0.0f, [&](u32, u32, float* v) { sum += sum_chunk<W>(v); });
    const float mean = lanes.sum(sum) / static_cast<float>(width);
    const float scale = 1.0f / f_sqrt(mean_square(lanes, row, mean, width) + call.op.scalars[0]);
    write_normal(lanes, row, mean, scale, weight, bias, out.at(c), out);
  }
  return FaultCode::none;
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode any_layernorm(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if (call.op.dims[0] != 0) {
    if constexpr (WarpLanes<Lanes>) {
      if (in_vectors(call.op) && norm_warps<true, true>(lanes, call, tile, types)) return FaultCode::none;
    }
    const auto bias = view_of<2>(call, types);
    return layernorm_rows(lanes, call, tile, types, &bias, make_view(call, 3, types.last(3)));
  }
  if constexpr (WarpLanes<Lanes>) {
    if (in_vectors(call.op) && norm_warps<true, false>(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto weight = view_of<1>(call, types);
  return layernorm_rows(lanes, call, tile, types, static_cast<decltype(&weight)>(nullptr),
                        make_view(call, 2, types.last(2)));
}

// A function apart where norms_near may be enough: a body saves all registers that any of its ways wants.
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode other_rmsnorm(Lanes& lanes, const Call& call, u32 tile) {
  return any_rmsnorm(lanes, call, tile, Types{});
}
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode other_layernorm(Lanes& lanes, const Call& call, u32 tile) {
  return any_layernorm(lanes, call, tile, Types{});
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode run_rmsnorm(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes> && NearLanes<Lanes> && Types::kCount != 0 && !kShaped<Types>)
    return norms_near<false, false>(lanes, call, tile, types) ? FaultCode::none : other_rmsnorm<Lanes, Types>(lanes, call, tile);
  else
    return any_rmsnorm(lanes, call, tile, types);
}
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_layernorm(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes> && NearLanes<Lanes> && Types::kCount == 4 && !kShaped<Types>)
    return call.op.dims[0] != 0 && norms_near<true, true>(lanes, call, tile, types) ? FaultCode::none : other_layernorm<Lanes, Types>(lanes, call, tile);
  else
    return any_layernorm(lanes, call, tile, types);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Ops that find or use indices: gather, scatter, argmax, topk. And rope, which is arithmetic on positions.
#pragma once

#include "ccks/worker/argmax_split.hpp"
#include "ccks/worker/ops_map.hpp"
#include "ccks/worker/rope_warps.hpp"
#include "ccks/worker/topk_warps.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// gather: rows of a table. Every lane checks every index of the tile, so that all lanes agree about a fault.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_gather(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  constexpr u32 W = kChunk<Lanes>;
  const auto table = view_of<0>(call, types);
  const auto index = view_of<1>(call, types);
  const auto out = view_of<2>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  for (i32 r = 0; r < box.size[2]; ++r) {
    const i64 row = load_int(index.type, index.at(0, 0, 0, box.lo[2] + r), 0);
    if (row < 0 || row >= table.dim[2]) return FaultCode::bad_index;
  }
  for_each_chunk<W>(lanes, box, [&](const Place& p) {
    const i64 row = load_int(index.type, index.at(0, 0, 0, p.c[2]), 0);
    auto from = table;
    from.data += row * table.stride[2] * bytes_of(table.type);
    copy_chunk<W>(from, out, Place{{0, 0, 0, p.c[3]}, p.n}, p);
  });
  return FaultCode::none;
}

/// Rows of 16-byte pieces that lie alike on both sides, where lanes are many. False: nothing is done.
template <class Lanes, class X, class Index, class Out>
CCKS_INLINE bool scatter_pieces(Lanes& lanes, const View<X>& x, const View<Index>& index, const View<Out>& out, const Box& box) {
  const u32 bytes = bytes_of(x.type), width = static_cast<u32>(box.size[3]) * bytes;
  if (x.type.get() != out.type.get() || bytes < 2 || !in_eights(x) || !in_eights(out) || (width | static_cast<u32>(box.lo[3]) * bytes) % 16 != 0) return false;
  const u32 per_row = width / 16, pieces = static_cast<u32>(box.size[2]) * per_row;
  CCKS_NO_UNROLL
  for (u32 i = lanes.lane(); i < pieces; i += lanes.lanes()) {
    const i32 row = box.lo[2] + static_cast<i32>(i / per_row);
    const u32 at = i % per_row * 16;
    const Sixteen piece = *reinterpret_cast<const Sixteen*>(x.at(0, 0, row, box.lo[3]) + at);
    const i64 to = load_int(index.type, index.at(0, 0, 0, row), 0);
    if (to >= 0 && to < out.dim[2]) *reinterpret_cast<Sixteen*>(out.at(0, 0, static_cast<i32>(to), box.lo[3]) + at) = piece;
  }
  return true;
}

/// scatter: rows of x to where the index says, or nowhere. Tiles may meet in a row that two of them write: elements of either stay.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_scatter(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  constexpr u32 W = kChunk<Lanes>;
  const auto x = view_of<0>(call, types);
  const auto index = view_of<1>(call, types);
  const auto out = view_of<2>(call, types);
  const Box box = tile_box(call.op, tile, x.dim);
  if constexpr (!Lanes::kSingleLane) {
    if (scatter_pieces(lanes, x, index, out, box)) return FaultCode::none;
  }
  for_each_chunk<W>(lanes, box, [&](const Place& p) {
    const i64 row = load_int(index.type, index.at(0, 0, 0, p.c[2]), 0);
    if (row >= 0 && row < out.dim[2]) copy_chunk<W>(x, out, p, Place{{0, 0, static_cast<i32>(row), p.c[3]}, p.n});
  });
  return FaultCode::none;
}

// ---- order
// ------------------------------------------------------------------------------------------------------------

/// A float as an integer of the same order; NaN counts as -infinity, and both zeros are equal.
CCKS_INLINE i64 order_key(float v) {
  const i32 bits = bit_cast<i32>(v != v ? -f_infinity() : v == 0.0f ? 0.0f : v);
  return bits < 0 ? bits ^ 0x7fffffff : bits;
}

template <u32 W, class T>
CCKS_INLINE void load_keys(T type, const u8* from, i64 stride, u32 n, i64* keys) {
  if (is_float(type.get())) {
    float v[W];
    load_run(type, from, stride, n, v);
    for (u32 i = 0; i < n; ++i) keys[i] = order_key(v[i]);
  } else {
    load_run(type, from, stride, n, keys);
  }
}

struct Found {
  i64 key;
  i32 index;
};
inline constexpr i64 kLeastKey = -0x7fffffffffffffffll - 1;
inline constexpr i32 kNoIndex = 0x7fffffff;

/// Whether (key, index) comes after `last` in falling order, the first of equals first.
CCKS_INLINE bool comes_after(i64 key, i32 index, const Found& last) {
  return key < last.key || (key == last.key && index > last.index);
}

/// The first element after `last` among chunks first, first + step, ... of a row.
template <u32 W, class T>
CCKS_INLINE Found search_share(T type, const u8* row, i64 stride, u32 width, const Found& last, u32 first, u32 step) {
  Found best{kLeastKey, kNoIndex};
  for (u32 at = first * W; at < width; at += step * W) {
    const u32 n = least(W, width - at);
    i64 keys[W];
    load_keys<W>(type, row + at * stride * bytes_of(type), stride, n, keys);
    i64 top = kLeastKey;
    for (u32 i = 0; i < n; ++i) {
      keys[i] = comes_after(keys[i], static_cast<i32>(at + i), last) ? keys[i] : kLeastKey;
      top = most(top, keys[i]);
    }
    if (top <= best.key && best.index != kNoIndex) continue;
    for (u32 i = 0; i < n; ++i) {
      if (keys[i] != top || !comes_after(keys[i], static_cast<i32>(at + i), last)) continue;
      best = {top, static_cast<i32>(at + i)};
      break;
    }
  }
  return best;
}

template <class Lanes, class T>
CCKS_INLINE Found search(Lanes& lanes, T type, const u8* row, i64 stride, u32 width, const Found& last) {
  const Found mine = search_share<kChunk<Lanes>>(type, row, stride, width, last, lanes.lane(), lanes.lanes());
  if constexpr (Lanes::kSingleLane) return mine;
  const i64 key = lanes.max(mine.key);
  return {key, lanes.min(mine.key == key ? mine.index : kNoIndex)};
}

CCKS_INLINE constexpr Found before_all() { return {0x7fffffffffffffffll, -1}; }

/// The first of the largest of a row of floats that lies in eights, where lanes run in warps: eight eights a lane under way.
template <class Lanes, class T>
CCKS_INLINE i32 first_largest(Lanes& lanes, T type, const u8* row, u32 width) {
  constexpr u32 kFlight = 8, kEach = Eight<T>::kCount;
  float best = -f_infinity();
  i32 index = kNoIndex;
  const auto look = [&](u32 at, float value) {
    const float v = value == value ? value : -f_infinity();
    if (v > best || (index == kNoIndex && v == best)) best = v, index = static_cast<i32>(at);
  };
  const u32 step = Lanes::kLanes * kEach, whole = width / kEach * kEach;
  CCKS_NO_UNROLL
  for (u32 at = lanes.lane() * kEach; at < whole; at += kFlight * step) {
    Eight<T> v[kFlight];
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f)
      if (at + f * step < whole) v[f].load(type, row + u64{at + f * step} * bytes_of(type));
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      if (at + f * step >= whole) break;
      float values[kEach];
      v[f].unpack(values);
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) look(at + f * step + e, values[e]);
    }
  }
  if (whole + lanes.lane() < width) look(whole + lanes.lane(), load_float(type, row, whole + lanes.lane()));
  const i64 mine = index == kNoIndex ? kLeastKey : order_key(best), key = lanes.max(mine);
  return lanes.min(mine == key ? index : kNoIndex);
}

/// Rows that are a tile's alone.
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode run_own_argmax(Lanes& lanes, const Call& call, u32 tile) {
  const Types types = types_of<Types>(call);
  const auto x = view_of<0>(call, types);
  const auto out = view_of<1>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    if constexpr (WarpLanes<Lanes>) {
      if (is_float(x.type.get()) && in_eights(x)) {
        const i32 index = first_largest(lanes, x.type, x.at(c), static_cast<u32>(x.dim[3]));
        if (lanes.lane() == 0) store_int(out.type, out.at(c), 0, index);
        continue;
      }
    }
    const Found best = search(lanes, x.type, x.at(c), x.stride[3], static_cast<u32>(x.dim[3]), before_all());
    if (lanes.lane() == 0) store_int(out.type, out.at(c), 0, best.index);
  }
  return FaultCode::none;
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode run_argmax(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if (call.op.dims[0] == 0) return run_own_argmax<Lanes, Types>(lanes, call, tile);
  if constexpr (NearLanes<Lanes> && Types::kCount == 4) {
    if (call.op.dims[wire::kRowDim] != 0) {
      share_near_argmax(lanes, *lanes.nearby(near_op(lanes, call)), tile, types.template type<0>(), types.template type<1>());
      return FaultCode::none;
    }
  }
  if constexpr (Types::kCount != 0 && Types::kCount != 4) return FaultCode::bad_op;
  else share_argmax<Lanes, Types>(lanes, call, tile);
  return FaultCode::none;
}

/// topk: values and indices of the k largest, each found by one more pass over the row.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_topk(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const auto x = view_of<0>(call, types);
  const auto values = view_of<1>(call, types);
  const auto indices = view_of<2>(call, types);
  const i32 dim[4] = {x.dim[0], x.dim[1], x.dim[2], 1};
  const Box box = tile_box(call.op, tile, dim);
  const u32 width = static_cast<u32>(x.dim[3]);
  if constexpr (WarpLanes<Lanes>) {
    if (topk_in_warps(lanes, x, values, indices, box, static_cast<u32>(call.op.dims[0]))) return FaultCode::none;
  }
  for (u32 r = 0; r < box.rows(); ++r) {
    i32 c[4];
    box.row_start(r, c);
    Found last = before_all();
    for (i32 j = 0; j < call.op.dims[0]; ++j) {
      last = search(lanes, x.type, x.at(c), x.stride[3], width, last);
      if (lanes.lane() != 0 || last.index == kNoIndex) continue;
      const View<decltype(x.type)> element{
          x.data + (x.offset(c[0], c[1], c[2], last.index)) * bytes_of(x.type), {}, {}, x.type};
      copy_chunk<1>(element, values, Place{{}, 1}, Place{{c[0], c[1], c[2], j}, 1});
      store_int(indices.type, indices.at(c[0], c[1], c[2], j), 0, last.index);
    }
  }
  return FaultCode::none;
}

// ---- rope
// -------------------------------------------------------------------------------------------------------------

struct RopePair {
  i64 first, second, step;  // elements within a head: pair j is (first + j * step, second + j * step)
};

/// Rotates pairs [j0, j0 + n) of every head of the tile in one row.
template <u32 W, class In, class Out>
CCKS_INLINE void rotate_heads(const View<In>& x, const View<Out>& out, const Box& box, const i32 (&c)[4], i32 head_dim,
                              const RopePair& pair, u32 j0, u32 n, const float* sine, const float* cosine) {
  const i64 step = pair.step;
  for (i32 at = box.lo[3]; at < box.lo[3] + box.size[3]; at += head_dim) {
    const i32 a = at + static_cast<i32>(pair.first + j0 * step), b = at + static_cast<i32>(pair.second + j0 * step);
    float u[W], v[W], p[W], q[W];
    load_run(x.type, x.at(c[0], c[1], c[2], a), step * x.stride[3], n, u);
    load_run(x.type, x.at(c[0], c[1], c[2], b), step * x.stride[3], n, v);
    for (u32 i = 0; i < n; ++i) {
      p[i] = u[i] * cosine[i] - v[i] * sine[i];
      q[i] = u[i] * sine[i] + v[i] * cosine[i];
    }
    store_run(out.type, out.at(c[0], c[1], c[2], a), step * out.stride[3], n, p);
    store_run(out.type, out.at(c[0], c[1], c[2], b), step * out.stride[3], n, q);
  }
}

/// Llama 3.1's scaling of a frequency, see spec::RopeScaling: `waves` it makes in the original context say which part it keeps.
struct RopeScaling {
  double waves_per_rate = 0;  // 0: no scaling
  double low = 1, range = 1, divided = 1;
  CCKS_INLINE double operator()(double rate) const {
    if (waves_per_rate == 0) return rate;
    const double part = (rate * waves_per_rate - low) / range;
    const double mix = part < 0 ? 0 : part > 1 ? 1 : part;
    return rate * (mix + (1 - mix) * divided);
  }
  static CCKS_INLINE RopeScaling of(const wire::OpParams& op) {
    double waves = 0, low = 1, range = 1, divided = 1;  // not RopeScaling{}, which a GPU would load from memory
    if (op.dims[4] != 0) {
      waves = static_cast<double>(op.dims[4]) / 6.283185307179586;
      low = static_cast<double>(op.scalars[2]);
      range = static_cast<double>(op.scalars[3]) - low;
      divided = 1 / static_cast<double>(op.scalars[1]);
    }
    return {waves, low, range, divided};
  }
};

/// theta^(-2j / head_dim) for all pairs, in scratch where it fits: the same for every row of a tile.
template <class Lanes>
class RopeFrequencies {
 public:
  CCKS_INLINE RopeFrequencies(Lanes& lanes, double theta, u32 half, const RopeScaling& scaling)
      : rate_(-d_log(theta) / half), scaling_(scaling) {
    Scratch scratch = scratch_of(lanes);
    table_ = scratch.take<double>(half);
    if (table_ == nullptr) return;
    for (u32 j = lanes.lane(); j < half; j += lanes.lanes()) table_[j] = scaling_(d_exp(rate_ * j));
    lanes.sync();
  }
  CCKS_INLINE double operator()(u32 j) const { return table_ != nullptr ? table_[j] : scaling_(d_exp(rate_ * j)); }

 private:
  double rate_;
  RopeScaling scaling_;
  double* table_;
};

/// rope without a table: angles in f64, because position times frequency loses the fraction of a turn in f32.
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode run_rope_angles(Lanes& lanes, const Call& call, u32 tile) {
  constexpr u32 W = kChunk<Lanes>;
  const Types types = types_of<Types>(call);
  const auto x = view_of<0>(call, types);
  const u32 out_index = call.op.input_count;
  const auto out = make_view(call, out_index, types.last(out_index));
  const auto positions = view_of<1>(call, types);  // the output itself where there are none
  const Box box = tile_box(call.op, tile, out.dim);
  const i32 head_dim = x.dim[3] / most(call.op.dims[0], 1);
  if constexpr (WarpLanes<Lanes>) {
    if (warp_rope(lanes, call.op, x, out, box, head_dim)) return FaultCode::none;
  }
  const u32 half = static_cast<u32>(head_dim) / 2, per_row = ceil_div(half, W);
  const RopePair pair = call.op.dims[3] != 0 ? RopePair{0, 1, 2} : RopePair{0, static_cast<i64>(half), 1};
  const RopeFrequencies<Lanes> frequency(lanes, static_cast<double>(call.op.scalars[0]), half, RopeScaling::of(call.op));
  // Where rows are few, heads are dealt out too: to work out an angle again costs less than to turn one head after the other.
  const u32 pairs = box.rows() * per_row, heads = pairs * 2 <= lanes.lanes() ? static_cast<u32>(box.size[3] / head_dim) : 1;
  for (u32 at = lanes.lane(); at < pairs * heads; at += lanes.lanes()) {
    const u32 unit = at % pairs;
    Box part = box;
    if (heads > 1) part.lo[3] += static_cast<i32>(at / pairs) * head_dim, part.size[3] = head_dim;
    i32 c[4];
    part.row_start(unit / per_row, c);
    const i64 position = call.op.dims[2] != 0 ? load_int(positions.type, positions.at(0, 0, 0, c[2]), 0)
                                              : static_cast<i64>(call.op.dims[1]) + c[2];
    const u32 j0 = unit % per_row * W, n = least(W, half - j0);
    float sine[W], cosine[W];
    for (u32 i = 0; i < n; ++i) sincos_reduced(static_cast<double>(position) * frequency(j0 + i), sine[i], cosine[i]);
    rotate_heads<W>(x, out, part, c, head_dim, pair, j0, n, sine, cosine);
  }
  return FaultCode::none;
}

template <class Lanes, class Types>
CCKS_OUTLINE FaultCode run_any_rope(Lanes& lanes, const Call& call, u32 tile) {
  if (call.op.dims[2] != 2) return run_rope_angles<Lanes, Types>(lanes, call, tile);
  const Types types = types_of<Types>(call);
  if constexpr (Types::kCount == 0 || Types::kCount == 3) {
    const auto out = view_of<2>(call, types);
    rotate_by_table(lanes, view_of<0>(call, types), view_of<1>(call, types), out, tile_box(call.op, tile, out.dim));
    return FaultCode::none;
  }
  return FaultCode::bad_op;
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode run_rope(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (NearLanes<Lanes> && Types::kCount == 3) {
    if (call.op.dims[2] == 2 && call.op.dims[wire::kRowDim] != 0) {
      const NearOp& near = *lanes.nearby(near_op(lanes, call));
      rotate_row(lanes, near, tile, types.template type<0>(), types.template type<1>(), types.template type<2>());
      return FaultCode::none;
    }
  }
  return run_any_rope<Lanes, Types>(lanes, call, tile);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

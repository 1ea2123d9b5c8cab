// reduce: any set of axes. Floats in f32, integers in i64.
#pragma once

#include "ccks/worker/ops_rows.hpp"
#include "ccks/worker/reduce_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// The elements that one output element, or one chunk of them, is made of: rows along the reduced outer axes.
struct ReducedRows {
  i32 extent[3];  // 1 where the axis is kept
  u32 count;

  CCKS_INLINE ReducedRows(const i32 (&dim)[4], u32 mask) : extent{}, count(1) {
    for (u32 i = 0; i < 3; ++i) {
      extent[i] = mask >> i & 1 ? dim[i] : 1;
      count *= static_cast<u32>(extent[i]);
    }
  }
  template <class T>
  CCKS_INLINE const u8* at(const View<T>& x, const i32 (&c)[4], u32 row) const {
    i64 offset = c[3] * x.stride[3];
    for (u32 i = 3; i-- > 0;) {
      const u32 e = static_cast<u32>(extent[i]);
      offset += (c[i] + static_cast<i32>(row % e)) * x.stride[i];
      row /= e;
    }
    return x.data + offset * bytes_of(x.type);
  }
};

/// Folds `n` values, padded to W with the start value, into W accumulators.
template <u32 W, class Value>
CCKS_INLINE void fold_chunk(ReduceFn fn, Value* acc, const Value* v) {
  for (u32 i = 0; i < W; ++i) acc[i] = reduce_step(fn, acc[i], v[i]);
}

/// One lane's share, units first, first + step, ..., of one output element whose last axis is reduced.
template <u32 W, class Value, class T>
CCKS_INLINE Value reduce_share(const View<T>& x, const ReducedRows& rows, const i32 (&c)[4], ReduceFn fn, u32 first,
                               u32 step) {
  const u32 width = static_cast<u32>(x.dim[3]), per_row = ceil_div(width, W);
  const Value start = reduce_start<Value>(fn);
  Value acc[W], v[W];
  for (u32 i = 0; i < W; ++i) acc[i] = start;
  for (u32 unit = first; unit < rows.count * per_row; unit += step) {
    const u32 at = unit % per_row * W, n = least(W, width - at);
    const u8* row = rows.at(x, c, unit / per_row);
    load_run(x.type, row + at * x.stride[3] * bytes_of(x.type), x.stride[3], n, v);
    for (u32 i = n; i < W; ++i) v[i] = start;
    switch (fn) {  // outside the loop over elements, so that each becomes vector code
      case ReduceFn::max:
        fold_chunk<W>(ReduceFn::max, acc, v);
        break;
      case ReduceFn::min:
        fold_chunk<W>(ReduceFn::min, acc, v);
        break;
      case ReduceFn::prod:
        fold_chunk<W>(ReduceFn::prod, acc, v);
        break;
      default:
        fold_chunk<W>(ReduceFn::sum, acc, v);
        break;
    }
  }
  Value all = acc[0];
  for (u32 i = 1; i < W; ++i) all = reduce_step(fn, all, acc[i]);
  return all;
}

/// Over all lanes; the order of floats is the lanes' own, the same in every run.
template <class Lanes, class Value>
CCKS_INLINE Value reduce_lanes(Lanes& lanes, ReduceFn fn, Value v) {
  if constexpr (Lanes::kSingleLane) return v;
  if (fn == ReduceFn::sum || fn == ReduceFn::mean) return lanes.sum(v);
  Value* shares = reinterpret_cast<Value*>(lanes.scratch());  // 1024 lanes at most: fits kMinScratchBytes
  shares[lanes.lane()] = v;
  lanes.sync();
  Value all = shares[0];
  for (u32 i = 1; i < lanes.lanes(); ++i) all = reduce_step(fn, all, shares[i]);
  lanes.sync();
  return all;
}

template <class Out>
CCKS_INLINE void store_reduced(const View<Out>& out, const i32 (&c)[4], ReduceFn fn, u32 count, float v) {
  store_float(out.type, out.at(c), 0, fn == ReduceFn::mean ? v / static_cast<float>(count) : v);
}
template <class Out>
CCKS_INLINE void store_reduced(const View<Out>& out, const i32 (&c)[4], ReduceFn fn, u32 count, i64 v) {
  if (fn == ReduceFn::mean)
    store_float(out.type, out.at(c), 0, static_cast<float>(static_cast<double>(v) / static_cast<double>(count)));
  else
    store_int(out.type, out.at(c), 0, v);
}

/// The last axis is reduced. Long reductions take all lanes at once, short ones a lane each.
template <class Value, class Lanes, class In, class Out>
CCKS_INLINE void reduce_last(Lanes& lanes, const View<In>& x, const View<Out>& out, const Box& box,
                             const ReducedRows& rows, ReduceFn fn) {
  constexpr u32 W = kChunk<Lanes>;
  const u32 count = rows.count * static_cast<u32>(x.dim[3]);
  const u32 outputs = box.rows() * static_cast<u32>(box.size[3]);
  const bool together = !Lanes::kSingleLane && count > 64;
  for (u32 unit = together ? 0 : lanes.lane(); unit < outputs; unit += together ? 1 : lanes.lanes()) {
    i32 c[4];
    box.row_start(unit / static_cast<u32>(box.size[3]), c);
    Value v;
    if (together) {
      v = reduce_lanes(lanes, fn, reduce_share<W, Value>(x, rows, c, fn, lanes.lane(), lanes.lanes()));
      if (lanes.lane() != 0) continue;
    } else {
      v = reduce_share<W, Value>(x, rows, c, fn, 0, 1);
    }
    store_reduced(out, c, fn, count, v);
  }
}

/// The last axis is kept: a chunk of neighbours is reduced at once.
template <class Value, class Lanes, class In, class Out>
CCKS_INLINE void reduce_outer(Lanes& lanes, const View<In>& x, const View<Out>& out, const Box& box,
                              const ReducedRows& rows, ReduceFn fn) {
  constexpr u32 W = kChunk<Lanes>;
  for_each_chunk<W>(lanes, box, [&](const Place& p) {
    Value acc[W], v[W];
    for (u32 i = 0; i < W; ++i) acc[i] = reduce_start<Value>(fn);
    for (u32 row = 0; row < rows.count; ++row) {
      load_run(x.type, rows.at(x, p.c, row), x.stride[3], p.n, v);
      for (u32 i = 0; i < p.n; ++i) acc[i] = reduce_step(fn, acc[i], v[i]);
    }
    for (u32 i = 0; i < p.n; ++i) {
      const i32 c[4] = {p.c[0], p.c[1], p.c[2], p.c[3] + static_cast<i32>(i)};
      store_reduced(out, c, fn, rows.count, acc[i]);
    }
  });
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode run_reduce(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes>) {
    if (reduce_warps(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto x = view_of<0>(call, types);
  const auto out = view_of<1>(call, types);
  const Box box = tile_box(call.op, tile, out.dim);
  const auto fn = static_cast<ReduceFn>(call.op.dims[0]);
  const u32 mask = static_cast<u32>(call.op.dims[1]);
  const ReducedRows rows(x.dim, mask);
  const bool last = mask >> 3 & 1, floats = is_float(x.type.get());
  if (last && floats)
    reduce_last<float>(lanes, x, out, box, rows, fn);
  else if (last)
    reduce_last<i64>(lanes, x, out, box, rows, fn);
  else if (floats)
    reduce_outer<float>(lanes, x, out, box, rows, fn);
  else
    reduce_outer<i64>(lanes, x, out, box, rows, fn);
  return FaultCode::none;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

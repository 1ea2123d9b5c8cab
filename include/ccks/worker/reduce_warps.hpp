// reduce where lanes run in warps and the frame says how operands lie (wire::ReduceBody): lanes share out what an output is made of as well as outputs,
// each has several loads under way, and nothing is divided. What teams of lanes have found comes together by shuffles, between warps in scratch.
#pragma once

#include "ccks/worker/rows_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Same values as spec::ReduceFn.
enum class ReduceFn : u32 { sum = 0, mean = 1, max = 2, min = 3, prod = 4 };

template <class Value>
CCKS_INLINE Value reduce_start(ReduceFn fn) {
  constexpr bool kInt = sizeof(Value) == sizeof(i64);
  if constexpr (kInt) {
    constexpr i64 kMost = 0x7fffffffffffffffll;
    return fn == ReduceFn::max ? -kMost - 1 : fn == ReduceFn::min ? kMost : fn == ReduceFn::prod ? 1 : 0;
  } else {
    return fn == ReduceFn::max    ? -f_infinity()
           : fn == ReduceFn::min  ? f_infinity()
           : fn == ReduceFn::prod ? 1.0f
                                  : 0.0f;
  }
}
// NaN wins over any number in max and min.
CCKS_INLINE float reduce_step(ReduceFn fn, float a, float b) {
  switch (fn) {
    case ReduceFn::max:
      return b != b ? b : f_max(a, b);
    case ReduceFn::min:
      return b != b ? b : f_min(a, b);
    case ReduceFn::prod:
      return a * b;
    default:
      return a + b;
  }
}
CCKS_INLINE i64 reduce_step(ReduceFn fn, i64 a, i64 b) {
  switch (fn) {
    case ReduceFn::max:
      return most(a, b);
    case ReduceFn::min:
      return least(a, b);
    case ReduceFn::prod:
      return i_mul(a, b);
    default:
      return i_add(a, b);
  }
}

/// What an output is divided by; 1 but for a mean.
template <class Out>
CCKS_INLINE void store_mean(Out type, u8* to, ReduceFn fn, u32 count, float v) {
  store_value(type, to, fn == ReduceFn::mean ? v / static_cast<float>(count) : v);
}
template <class Out>
CCKS_INLINE void store_mean(Out type, u8* to, ReduceFn fn, u32 count, i64 v) {
  if (fn == ReduceFn::mean)
    store_value(type, to, static_cast<float>(static_cast<double>(v) / static_cast<double>(count)));
  else
    store_value(type, to, v);
}

/// Where a lane finds its share of an output: `count` units, evenly apart.
struct EvenUnits {
  static constexpr u32 kAhead = 8, kLast = 4;  // loads under way; of what is left then
  const u8* from;
  u32 step, count;  // bytes
  CCKS_INLINE const u8* at(u32 i) const { return from + i * step; }
};
/// The same over rows: units first, first + step, ... of rows of `per_row`.
struct UnitsOfRows {
  static constexpr u32 kAhead = 2, kLast = 2;
  const u8* from;
  u32 first, step, count, per_row, row_bytes, unit_bytes;
  CCKS_INLINE const u8* at(u32 i) const {
    const u32 unit = first + i * step, row = unit / per_row;
    return from + (row * row_bytes + (unit - row * per_row) * unit_bytes);
  }
};

/// W elements of an input as they lie in memory, or as values where there is one.
template <u32 W, class Value, class In>
struct ReduceUnit {
  Value v[1];
  CCKS_INLINE void load(In type, const u8* from) { load_value(type, from, v); }
  CCKS_INLINE void unpack(Value (&to)[1]) const { to[0] = v[0]; }
};
template <class In>
struct ReduceUnit<kVector, float, In> : RawFour<In> {};

/// Of one function: kFn is sum for a mean.
template <ReduceFn kFn, u32 W, class Value, class Lanes, class In, class Out>
class WarpReduce {
 public:
  static constexpr u32 kWarp = Lanes::kWarp, kLanes = Lanes::kLanes;
  static_assert(kLanes * kVector * sizeof(Value) <= kMinScratchBytes);

  CCKS_INLINE WarpReduce(Lanes& lanes, const OpParams& op, const MarkedRows<In>& x, const MarkedRows<Out>& out, const Box& box)
      : lanes_(lanes), op_(op), x_(x), out_(out), box_(box), rows_(static_cast<u32>(op.dims[wire::kReducedRowsDim])),
        row_bytes_(static_cast<u32>(op.dims[wire::kReducedStrideDim]) * bytes_of(x.type)) {}

  /// The last axis is kept. Lanes that differ by `pad` have the same W outputs and rows in turn.
  CCKS_INLINE void columns() {
    const u32 per_row = static_cast<u32>(box_.size[3]) / W, units = box_.rows() * per_row;
    const u32 pad = ceil_pow2(least(units, kLanes)), teams = kLanes >> log2_of(pad), team = lanes_.lane() >> log2_of(pad);
    CCKS_NO_UNROLL
    for (u32 first = 0; first < units; first += kLanes) {
      const u32 unit = first + (lanes_.lane() & (pad - 1));
      const Place at = place(least(unit, units - 1), per_row);
      const u32 count = team < rows_ && unit < units ? ((rows_ - team - 1) >> log2_of(teams)) + 1 : 0;
      Value acc[W];
      fold(EvenUnits{x_.at(at.c0, at.c1, at.c2) + at.c3 * static_cast<u32>(x_.o.stride[3]) * bytes_of(x_.type) + team * row_bytes_, row_bytes_ << log2_of(teams), count}, acc);
      if (teams > 1) gather_columns(acc, pad);
      if (unit < units && team == 0) put(at, rows_, acc);
    }
  }

  /// The last axis is reduced: `team` lanes, neighbours, have an output together.
  CCKS_INLINE void rows() {
    const u32 outputs = box_.rows(), width = static_cast<u32>(op_.dims[wire::kReducedWidthDim]), per_row = width / W, units = rows_ * per_row;
    const u32 team = least(ceil_pow2(units), most(kWarp, kLanes >> log2_of(ceil_pow2(least(outputs, kLanes)))));
    const u32 share = lanes_.lane() & (team - 1), step = kLanes >> log2_of(team), unit_bytes = static_cast<u32>(x_.o.stride[3]) * (W * bytes_of(x_.type));
    const u32 count = share < units ? ((units - share - 1) >> log2_of(team)) + 1 : 0;
    CCKS_NO_UNROLL
    for (u32 first = 0; first < outputs; first += step) {
      const u32 output = first + (lanes_.lane() >> log2_of(team));
      const Place at = place(least(output, outputs - 1), 1);
      const u8* from = x_.at(at.c0, at.c1, at.c2);
      Value acc[W];
      if (rows_ == 1)
        fold(EvenUnits{from + share * unit_bytes, unit_bytes << log2_of(team), output < outputs ? count : 0}, acc);
      else
        fold(UnitsOfRows{from, share, team, output < outputs ? count : 0, per_row, row_bytes_, unit_bytes}, acc);
      Value all[1] = {acc[0]};
      CCKS_UNROLL
      for (u32 i = 1; i < W; ++i) all[0] = reduce_step(kFn, all[0], acc[i]);
      gather_rows(all[0], team);
      if (output < outputs && share == 0) put(at, rows_ * width, all);
    }
  }

 private:
  struct Place {
    u32 c0, c1, c2, c3;
  };
  /// Of unit `unit` of the box, whose rows have `per_row`.
  CCKS_INLINE Place place(u32 unit, u32 per_row) const {
    const bool even = (per_row & (per_row - 1)) == 0;
    const u32 row = even ? unit >> log2_of(per_row) : unit / per_row;
    i32 c[4] = {box_.lo[0], box_.lo[1], box_.lo[2] + static_cast<i32>(row), 0};
    if (box_.size[0] != 1 || box_.size[1] != 1) box_.row_start(row, c);
    return {static_cast<u32>(c[0]), static_cast<u32>(c[1]), static_cast<u32>(c[2]), static_cast<u32>(box_.lo[3]) + (unit - row * per_row) * W};
  }

  template <class Units>
  CCKS_INLINE void fold(const Units& units, Value (&acc)[W]) const {
    CCKS_UNROLL
    for (u32 e = 0; e < W; ++e) acc[e] = reduce_start<Value>(kFn);
    u32 i = 0;
    if constexpr (Units::kAhead > Units::kLast) {
      CCKS_NO_UNROLL
      for (; i + Units::kAhead <= units.count; i += Units::kAhead) fold_some<Units::kAhead, true>(units, i, acc);
    }
    CCKS_NO_UNROLL
    for (; i < units.count; i += Units::kLast) fold_some<Units::kLast, false>(units, i, acc);
  }
  /// Units i to i + kSome - 1, beyond the end the last one, of which nothing is taken: without branches, for behind one compilers put a load beside its use, and so after the use of
  /// the load before.
  template <u32 kSome, bool kAll, class Units>
  CCKS_INLINE void fold_some(const Units& units, u32 i, Value (&acc)[W]) const {
    ReduceUnit<W, Value, In> ahead[kSome];
    CCKS_UNROLL
    for (u32 u = 0; u < kSome; ++u) ahead[u].load(x_.type, units.at(kAll ? i + u : least(i + u, units.count - 1)));
    CCKS_UNROLL
    for (u32 u = 0; u < kSome; ++u) {
      Value v[W];
      ahead[u].unpack(v);
      CCKS_UNROLL
      for (u32 e = 0; e < W; ++e) acc[e] = reduce_step(kFn, acc[e], kAll || i + u < units.count ? v[e] : reduce_start<Value>(kFn));
    }
  }

  /// To the lanes of the first team.
  CCKS_INLINE void gather_columns(Value (&acc)[W], u32 pad) {
    CCKS_NO_UNROLL
    for (u32 step = pad; step < kWarp; step *= 2) {
      CCKS_UNROLL
      for (u32 e = 0; e < W; ++e) acc[e] = reduce_step(kFn, acc[e], lanes_.shuffle_xor(acc[e], step));
    }
    const u32 wide = most(pad, kWarp), shares = least(kLanes >> log2_of(wide), ((rows_ - 1) >> log2_of(wide >> log2_of(pad))) + 1);
    if (shares == 1) return;
    Value* scratch = reinterpret_cast<Value*>(lanes_.scratch()) + (lanes_.lane() & (pad - 1)) * W;
    const u32 share = lanes_.lane() >> log2_of(wide), size = pad * W;
    if (share != 0 && share < shares && (lanes_.lane() & (wide - 1)) < pad) {
      CCKS_UNROLL
      for (u32 e = 0; e < W; ++e) scratch[share * size + e] = acc[e];
    }
    lanes_.sync();
    if (lanes_.lane() >= pad) return;
    CCKS_NO_UNROLL
    for (u32 other = 1; other < shares; ++other) {
      CCKS_UNROLL
      for (u32 e = 0; e < W; ++e) acc[e] = reduce_step(kFn, acc[e], scratch[other * size + e]);
    }
  }
  /// To the first lane of each team.
  CCKS_INLINE void gather_rows(Value& all, u32 team) {
    CCKS_NO_UNROLL
    for (u32 step = 1; step < least(team, kWarp); step *= 2) all = reduce_step(kFn, all, lanes_.shuffle_xor(all, step));
    if (team <= kWarp) return;
    Value* scratch = reinterpret_cast<Value*>(lanes_.scratch());
    const u32 warp = lanes_.lane() / kWarp;
    if (lanes_.lane() % kWarp == 0) scratch[warp] = all;
    lanes_.sync();
    if ((lanes_.lane() & (team - 1)) != 0) return;
    CCKS_NO_UNROLL
    for (u32 other = 1; other < team / kWarp; ++other) all = reduce_step(kFn, all, scratch[warp + other]);
  }

  template <u32 kCount>
  CCKS_INLINE void put(const Place& at, u32 count, const Value (&v)[kCount]) const {
    const ReduceFn fn = static_cast<ReduceFn>(op_.dims[0]);
    u8* to = out_.at(at.c0, at.c1, at.c2) + at.c3 * static_cast<u32>(out_.o.stride[3]) * bytes_of(out_.type);
    if constexpr (kCount == kVector) {
      const float share = fn == ReduceFn::mean ? 1.0f / static_cast<float>(count) : 1.0f;
      float values[kVector];
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) values[e] = v[e] * share;
      store_four(out_.type, to, values);
    } else {
      store_mean(out_.type, to, fn, count, v[0]);
    }
  }

  Lanes& lanes_;
  const OpParams& op_;
  const MarkedRows<In>& x_;
  const MarkedRows<Out>& out_;
  const Box& box_;
  u32 rows_, row_bytes_;
};

template <ReduceFn kFn, u32 W, class Value, class Lanes, class Types>
CCKS_OUTLINE void run_warp_reduce(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
  const Call call(frame, op);
  const Types types = types_of<Types>(call);
  const MarkedRows x(call, 0, types.template type<0>());
  const MarkedRows out(call, 1, types.template type<1>());
  const Box box = marked_box<Types>(op, tile, out.o.dim);
  WarpReduce<kFn, W, Value, Lanes, decltype(x.type), decltype(out.type)> reduce(lanes, op, x, out, box);
  if ((op.dims[1] & 8) != 0)
    reduce.rows();
  else
    reduce.columns();
}

template <u32 W, class Value, class Lanes, class Types>
CCKS_INLINE void warp_reduce_of(Lanes& lanes, const Call& call, u32 tile) {
  switch (static_cast<ReduceFn>(call.op.dims[0])) {
    case ReduceFn::max:
      return run_warp_reduce<ReduceFn::max, W, Value, Lanes, Types>(lanes, call.frame, call.op, tile);
    case ReduceFn::min:
      return run_warp_reduce<ReduceFn::min, W, Value, Lanes, Types>(lanes, call.frame, call.op, tile);
    case ReduceFn::prod:
      return run_warp_reduce<ReduceFn::prod, W, Value, Lanes, Types>(lanes, call.frame, call.op, tile);
    default:
      return run_warp_reduce<ReduceFn::sum, W, Value, Lanes, Types>(lanes, call.frame, call.op, tile);
  }
}

/// False: nothing is done.
template <class Lanes, class Types>
CCKS_INLINE bool reduce_warps(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const auto body = static_cast<wire::ReduceBody>(call.op.dims[wire::kReduceBodyDim]);
  if (body == wire::ReduceBody::none) return false;
  const bool floats = wire::dtype_is_float(types.template type<0>().get());
  if (!floats)
    warp_reduce_of<1, i64, Lanes, Types>(lanes, call, tile);
  else if (body == wire::ReduceBody::vectors)
    warp_reduce_of<kVector, float, Lanes, Types>(lanes, call, tile);
  else
    warp_reduce_of<1, float, Lanes, Types>(lanes, call, tile);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// softmax, rmsnorm and layernorm where lanes run in warps and the frame says that rows go in vectors (kOpVectors): a group of
// lanes has a row, as many as it takes to hold it in registers; sums go by shuffles. Short rows share a warp, long ones have
// all lanes.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/near_op.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of a tile, dealt to groups of lanes. A lane has the vectors at, at + group, ... of its row, kVectors at most; kWhole: all of them.
template <u32 kVectors, bool kWhole, class Lanes>
class RowGroups {
 public:
  static constexpr u32 kValues = kVectors * kVector;
  static constexpr u32 kWarp = Lanes::kWarp, kLanes = Lanes::kLanes;

  CCKS_INLINE RowGroups(Lanes& lanes, const Box& box, u32 width, u32 group)
      : lanes_(lanes), box_(box), width_(width), group_(group), column_((lanes.lane() & (group - 1)) * kVector) {}

  /// Calls body(c0, c1, c2, alive) for the rows of this lane's group; every lane takes as many turns, those beyond the last
  /// row with alive false. body may call sum and max.
  template <class Body>
  CCKS_INLINE void each_row(Body&& body) const {
    const u32 rows = box_.rows(), step = kLanes >> log2_of(group_);
    CCKS_NO_UNROLL
    for (u32 r = 0; r < rows; r += step) {
      const Row own = row(r);
      body(own.c0, own.c1, own.c2, own.alive);
    }
  }
  /// The same with the next row's values on their way, from `x`: body(c0, c1, c2, alive, values).
  template <class X, class Body>
  CCKS_INLINE void each_row_of(const X& x, Body&& body) const {
    const u32 rows = box_.rows(), step = kLanes >> log2_of(group_);
    Row next = row(0);
    RawFour<decltype(x.type)> ahead[kVectors];
    ask(x, next, ahead);
    CCKS_NO_UNROLL
    for (u32 r = 0; r < rows; r += step) {
      const Row own = next;
      float v[kValues];
      CCKS_UNROLL
      for (u32 i = 0; i < kValues; ++i) v[i] = 0;
      each_vector([&](u32, u32 slot) { ahead[slot / kVector].unpack(*reinterpret_cast<float(*)[kVector]>(v + slot)); });
      if (r + step < rows) {
        next = row(r + step);
        ask(x, next, ahead);
      }
      body(own.c0, own.c1, own.c2, own.alive, v);
    }
  }

  /// Calls body(column, slot) for the vectors of this lane; slot 0, 4, ... is where it keeps them.
  template <class Body>
  CCKS_INLINE void each_vector(Body&& body) const {
    CCKS_UNROLL
    for (u32 u = 0; u < kVectors; ++u) {
      const u32 column = column_ + u * group_ * kVector;
      if (kWhole || column < width_) body(column, u * kVector);
    }
  }
  template <class T>
  CCKS_INLINE void load(T type, const u8* row, float (&v)[kValues], float fill) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kValues; ++i) v[i] = fill;
    each_vector([&](u32 column, u32 slot) { load_four(type, row + column * bytes_of(type), v + slot); });
  }

  CCKS_INLINE float sum(float v) {
    if (group_ == kLanes) return lanes_.sum(v);
    for (u32 step = 1; step < group_; step *= 2) v += lanes_.shuffle_xor(v, step);
    return v;
  }
  CCKS_INLINE float max(float v) {
    if (group_ == kLanes) return lanes_.max(v);
    for (u32 step = 1; step < group_; step *= 2) v = most(v, lanes_.shuffle_xor(v, step));
    return v;
  }
  CCKS_INLINE u32 width() const { return width_; }

 private:
  struct Row {
    u32 c0, c1, c2;
    bool alive;
  };
  /// Of this lane's group, among those from the r'th of the tile on.
  CCKS_INLINE Row row(u32 r) const {
    const u32 mine = r + (lanes_.lane() >> log2_of(group_)), row = mine < box_.rows() ? mine : 0;
    i32 c[4] = {box_.lo[0], box_.lo[1], box_.lo[2] + static_cast<i32>(row), 0};
    if (box_.size[0] != 1 || box_.size[1] != 1) box_.row_start(row, c);
    return {static_cast<u32>(c[0]), static_cast<u32>(c[1]), static_cast<u32>(c[2]), mine < box_.rows()};
  }
  template <class X>
  CCKS_INLINE void ask(const X& x, const Row& row, RawFour<decltype(x.type)> (&to)[kVectors]) const {
    const u8* from = x.at(row.c0, row.c1, row.c2);
    each_vector([&](u32 column, u32 slot) { to[slot / kVector].load(x.type, from + column * bytes_of(x.type)); });
  }

  Lanes& lanes_;
  const Box& box_;
  u32 width_, group_, column_;
};

/// Calls body(groups) with one of some ways to deal rows of `width`, or returns false: rows too long for registers.
template <class Lanes, class Body>
CCKS_INLINE bool deal_rows(Lanes& lanes, const Box& box, u32 width, Body&& body) {
  constexpr u32 kMost = 4, kWarp = Lanes::kWarp, kLanes = Lanes::kLanes;
  const u32 vectors = width / kVector;
  if (vectors > kLanes * kMost) return false;
  if (vectors <= kWarp) {
    body(RowGroups<1, false, Lanes>(lanes, box, width, ceil_pow2(vectors)));
  } else {
    // All lanes take one row where it does not fit a warp's registers. Not where there are few: a row then takes four barriers, and a warp has no more to do than one of them does.
    const bool all = vectors > kWarp * kMost;
    const u32 group = all ? kLanes : kWarp;
    if (vectors == kMost * group)
      body(RowGroups<kMost, true, Lanes>(lanes, box, width, group));
    else
      body(RowGroups<kMost, false, Lanes>(lanes, box, width, group));
  }
  return true;
}

/// Rows of operand `index` of the call.
template <class T>
struct MarkedRows {
  const OperandParams& o;
  u8* base;
  T type;
  CCKS_INLINE MarkedRows(const Call& call, u32 index, T t)
      : o(call.operands[index]), base(operand_base(call.frame, o)), type(t) {}
  CCKS_INLINE u8* at(u32 c0, u32 c1, u32 c2) const { return base + u64{row_offset(o, c0, c1, c2)} * bytes_of(type); }
};

// Function objects, because NVRTC takes generic lambdas for host functions.
template <class In, class Out>
struct SoftmaxRows {
  const MarkedRows<In>& x;
  const MarkedRows<Out>& out;
  float scale;

  template <class Rows>
  CCKS_INLINE void operator()(Rows rows) const {
    rows.each_row([&](u32 c0, u32 c1, u32 c2, bool alive) {
      float v[Rows::kValues], top = -f_infinity(), sum = 0;
      rows.load(x.type, x.at(c0, c1, c2), v, -f_infinity());
      rows.each_vector([&](u32, u32 slot) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) top = most(top, v[slot + i] *= scale);
      });
      top = rows.max(top);
      rows.each_vector([&](u32, u32 slot) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) sum += v[slot + i] = f_exp(v[slot + i] - top);
      });
      const float inverse = 1.0f / rows.sum(sum);
      if (!alive) return;
      u8* to = out.at(c0, c1, c2);
      rows.each_vector([&](u32 column, u32 slot) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) v[slot + i] *= inverse;
        store_four(out.type, to + column * bytes_of(out.type), v + slot);
      });
    });
  }
};

/// False: nothing is done.
template <class Lanes, class Types>
CCKS_INLINE bool softmax_warps(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const MarkedRows x(call, 0, types.template type<0>());
  const MarkedRows out(call, 1, types.template type<1>());
  const Box box = marked_box<Types>(call.op, tile, out.o.dim);
  return deal_rows(lanes, box, static_cast<u32>(x.o.dim[3]),
                   SoftmaxRows<decltype(x.type), decltype(out.type)>{x, out, call.op.scalars[0]});
}

/// rmsnorm, or with kCentred layernorm; `bias` is read with kBias.
template <bool kCentred, bool kBias, class X, class Weight, class Bias, class Out>
struct NormRows {
  const X& x;
  const Weight& weight;
  const Bias& bias;
  const Out& out;
  float eps;

  template <class Rows>
  CCKS_INLINE void operator()(Rows rows) const {
    constexpr u32 kValues = Rows::kValues;
    const float share = 1.0f / static_cast<float>(rows.width());
    float w[kValues], b[kValues];  // the same for every row
    rows.load(weight.type, weight.base, w, 0.0f);
    if constexpr (kBias) rows.load(bias.type, bias.base, b, 0.0f);
    rows.each_row_of(x, [&](u32 c0, u32 c1, u32 c2, bool alive, const float (&v)[kValues]) {
      float mean = 0, squares = 0;
      if constexpr (kCentred) {
        CCKS_UNROLL
        for (u32 i = 0; i < kValues; ++i) mean += v[i];
        mean = rows.sum(mean) * share;
      }
      rows.each_vector([&](u32, u32 slot) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) squares += (v[slot + i] - mean) * (v[slot + i] - mean);
      });
      const float scale = f_rsqrt(rows.sum(squares) * share + eps);
      if (!alive) return;
      u8* to = out.at(c0, c1, c2);
      rows.each_vector([&](u32 column, u32 slot) {
        float normed[kVector];
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) normed[i] = (kBias ? b[slot + i] : 0.0f) + (v[slot + i] - mean) * scale * w[slot + i];
        store_four(out.type, to + column * bytes_of(out.type), normed);
      });
    });
  }
};

/// The bias, if any, is operand 2. False: nothing is done.
template <bool kCentred, bool kBias, class Lanes, class Types>
CCKS_INLINE bool norm_warps(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  constexpr u32 kOut = kBias ? 3 : 2;
  const MarkedRows x(call, 0, types.template type<0>());
  const MarkedRows weight(call, 1, types.template type<1>());
  const MarkedRows bias(call, 2, types.template type<2>());  // the output itself where there is none
  const MarkedRows out(call, kOut, types.last(kOut));
  const Box box = marked_box<Types>(call.op, tile, out.o.dim);
  return deal_rows(lanes, box, static_cast<u32>(x.o.dim[3]),
                   NormRows<kCentred, kBias, decltype(x), decltype(weight), decltype(bias), decltype(out)>{x, weight, bias, out, call.op.scalars[0]});
}

/// Rows of an operand that has no others beside them.
template <class T>
struct NearRows {
  u8* base;
  u32 step;  // in bytes
  T type;
  CCKS_INLINE NearRows(const NearOp& near, u32 index, T t) : base(near.begin(index)), step(static_cast<u32>(near.operands[index].stride[2]) * bytes_of(t)), type(t) {}
  CCKS_INLINE u8* at(u32, u32, u32 row) const { return base + u64{row} * step; }
};

/// norm_warps of an op that the worker has made a copy of, where a warp's registers hold a row: what a tile goes through before its rows is then two thirds as long. False: nothing is done.
template <bool kCentred, bool kBias, class Lanes, class Types>
CCKS_INLINE bool norm_near(Lanes& lanes, const NearOp& near, u32 tile, const Types& types) {
  constexpr u32 kOut = kBias ? 3 : 2, kMost = 4, kWarp = Lanes::kWarp;
  const OperandParams& rows = near.operands[kOut];
  const u32 width = static_cast<u32>(near.operands[0].dim[3]), vectors = width / kVector;
  if (rows.dim[0] != 1 || rows.dim[1] != 1 || vectors <= kWarp || vectors > kWarp * kMost) return false;
  const NearRows x(near, 0, types.template type<0>());
  const NearRows weight(near, 1, types.template type<1>());
  const NearRows bias(near, 2, types.template type<2>());  // the output itself where there is none
  const NearRows out(near, kOut, types.last(kOut));
  const i32 first = static_cast<i32>(tile) * near.op.tile[2];
  const Box box{{0, 0, first, 0}, {1, 1, least(near.op.tile[2], rows.dim[2] - first), static_cast<i32>(width)}};
  const NormRows<kCentred, kBias, decltype(x), decltype(weight), decltype(bias), decltype(out)> norm{x, weight, bias, out, near.op.scalars[0]};
  if (vectors == kWarp * kMost)
    norm(RowGroups<kMost, true, Lanes>(lanes, box, width, kWarp));
  else
    norm(RowGroups<kMost, false, Lanes>(lanes, box, width, kWarp));
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

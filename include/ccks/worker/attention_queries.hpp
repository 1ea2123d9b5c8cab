// attention where lanes run in warps and the frame says that heads lie in vectors of four (mark_queries in wire/op_shape.hpp): a query is one warp's, which meets no
// other, or several's that share out its context, where a tile has fewer queries than warps. Keys and values of a turn, and the query, are loaded together; keys of the next
// are on their way while weights of this one are found, values once those of this one are added up.
//
// In a warp parts_ lanes have a position together, of which a lane has two vectors of four dims, slots_ positions are looked at side by side, and kSteps of them a turn. Every lane takes its own
// softmax along.
#pragma once

#include "ccks/worker/attention_thin.hpp"
#include "ccks/worker/rows_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Lanes, class Q, class K, class V, class Out>
class QueryAttention {
 public:
  static constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  static constexpr u32 kSteps = 4, kFours = 2, kEach = kFours * kVector;
  static_assert(kWarps * (wire::kMostQueryDims + kVector) * sizeof(float) <= kMinScratchBytes);

  struct Operands {
    const MarkedRows<Q>& q;
    const MarkedRows<K>& k;
    const MarkedRows<V>& v;
    const MarkedRows<Out>& out;
    const OperandParams* limits;  // nullptr: rows have none
    const u8* limits_base;
  };

  CCKS_INLINE QueryAttention(Lanes& lanes, const OpParams& op, const Operands& operands, u32 tile)
      : lanes_(lanes), op_(op), o_(operands), dims_(static_cast<u32>(op.dims[wire::kQueryDim]) & 0xffff), fours_(dims_ / kVector),
        parts_(ceil_pow2((fours_ + 1) / kFours)), slots_(kWarp >> log2_of(parts_)), part_(lanes.lane() & (parts_ - 1)),
        slot_(lanes.lane() % kWarp >> log2_of(parts_)), warp_(lanes.lane() / kWarp) {
    i32 c[4];
    marked_coordinates(op, tile, c);
    CCKS_UNROLL
    for (u32 i = 0; i < 3; ++i) {
      box_.lo[i] = c[i] * op.tile[i];
      box_.size[i] = least(op.tile[i], operands.out.o.dim[i] - box_.lo[i]);
    }
    const i32 heads = op.dims[wire::kTileHeadsDim];
    box_.lo[3] = c[3] * heads;
    box_.size[3] = least(heads, op.dims[0] - box_.lo[3]);
  }

  CCKS_INLINE void run() {
    const u32 rows = box_.rows(), total = rows * static_cast<u32>(box_.size[3]), context = static_cast<u32>(o_.k.o.dim[2]);
    const u32 turn = slots_ * kSteps, turns = ceil_pow2(ceil_div(most(context, 1u), turn));
    // Warps of a query: all, where there is one, as far as there is something to do for each.
    const u32 share = total > kWarps / 2 ? 1 : least(turns, kWarps >> log2_of(ceil_pow2(total))), shift = log2_of(share);
    const u32 sub = warp_ & (share - 1), step = turn << shift;
    CCKS_NO_UNROLL
    for (u32 base = 0; base < total; base += kWarps >> shift) {
      const u32 item = base + (warp_ >> shift);
      const Query query = find(least(item, total - 1), rows);
      Found f{-f_infinity(), 0, {}};
      if (item < total) attend(f, query, query.first + sub * turn, step);
      gather_lanes(f);
      if (share > 1) gather_warps(f, share);  // there is one turn of this loop
      if (item < total && sub == 0 && slot_ == 0) put(f, query);
    }
  }

 private:
  struct Query {
    u32 c0, c1, c2, head, first, seen;  // positions [first, seen)
  };
  struct Found {
    float top, sum, values[kEach];
  };

  CCKS_INLINE Query find(u32 item, u32 rows) const {
    const u32 head = box_.size[3] == 1 ? 0 : item / rows, row = item - head * rows;  // warps side by side have the same keys
    i32 c[4] = {box_.lo[0], box_.lo[1], box_.lo[2] + static_cast<i32>(row), 0};
    if (box_.size[0] != 1 || box_.size[1] != 1) box_.row_start(row, c);
    i32 first = 0, seen = o_.k.o.dim[2];
    if (op_.dims[2] != 0) seen = least(seen, c[2] + 1 + seen - o_.q.o.dim[2]);
    if (o_.limits != nullptr) {
      const i32* limits = reinterpret_cast<const i32*>(o_.limits_base) + c[2] * static_cast<i32>(o_.limits->stride[2]);
      first = most(0, limits[0]);
      seen = least(seen, limits[o_.limits->stride[3]]);
    }
    return {static_cast<u32>(c[0]), static_cast<u32>(c[1]), static_cast<u32>(c[2]), static_cast<u32>(box_.lo[3]) + head, static_cast<u32>(first),
            static_cast<u32>(most(0, seen))};
  }
  CCKS_INLINE bool has(u32 four) const { return four == 0 || part_ + parts_ < fours_; }
  /// Of a vector that the lane has not: its first again, without a branch. Nobody looks at what comes of that.
  CCKS_INLINE u32 column(u32 four) const { return (part_ + (has(four) ? four * parts_ : 0)) * kVector; }

  /// Positions beyond the end are read at the last one: their weights are zero.
  template <class X>
  CCKS_INLINE void load_turn(RawFour<decltype(X::type)> (&to)[kSteps][kFours], const X& x, const u8* base, u32 row_bytes, u32 j, u32 seen) const {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      const u32 at = least(j + s * slots_ + slot_, seen - 1);
      CCKS_UNROLL
      for (u32 i = 0; i < kFours; ++i) to[s][i].load(x.type, base + (at * row_bytes + column(i) * bytes_of(x.type)));
    }
  }
  template <class T>
  static CCKS_INLINE void unpack(const RawFour<T> (&from)[kFours], float (&to)[kEach]) {
    CCKS_UNROLL
    for (u32 i = 0; i < kFours; ++i) from[i].unpack(*reinterpret_cast<float(*)[kVector]>(to + i * kVector));
  }
  template <class X>
  static CCKS_INLINE u32 row_bytes(const X& x) {
    return static_cast<u32>(x.o.stride[2]) * bytes_of(x.type);
  }

  CCKS_INLINE void attend(Found& f, const Query& query, u32 j, u32 step) {
    if (j >= query.seen) return;
    const u32 group = static_cast<u32>(op_.dims[wire::kQueryDim]) >> 16, kv = (group == 1 ? query.head : query.head / group) * dims_;
    const u8* keys = o_.k.at(query.c0, query.c1, 0) + kv * bytes_of(o_.k.type);
    const u8* values = o_.v.at(query.c0, query.c1, 0) + kv * bytes_of(o_.v.type);
    const u32 key_row = row_bytes(o_.k), value_row = row_bytes(o_.v);
    RawFour<Q> raw[kFours];
    RawFour<K> k[kSteps][kFours];
    RawFour<V> v[kSteps][kFours];
    const u8* own = o_.q.at(query.c0, query.c1, query.c2) + query.head * dims_ * bytes_of(o_.q.type);
    CCKS_UNROLL
    for (u32 i = 0; i < kFours; ++i) raw[i].load(o_.q.type, own + column(i) * bytes_of(o_.q.type));
    load_turn(k, o_.k, keys, key_row, j, query.seen);
    load_turn(v, o_.v, values, value_row, j, query.seen);
    float q[kEach];
    unpack(raw, q);
    const float scale = op_.scalars[0] * 1.44269504f;  // weights are powers of two
    CCKS_UNROLL
    for (u32 e = 0; e < kEach; ++e) q[e] = has(e / kVector) ? q[e] * scale : 0.0f;
    CCKS_NO_UNROLL
    for (;;) {
      float score[kSteps];
      multiply(score, q, k);
      const u32 next = j + step;
      if (next < query.seen) load_turn(k, o_.k, keys, key_row, next, query.seen);
      weigh(f, score, j, query.seen);
      add(f, score, v);
      if (next >= query.seen) return;
      load_turn(v, o_.v, values, value_row, next, query.seen);
      j = next;
    }
  }

  CCKS_INLINE void multiply(float (&score)[kSteps], const float (&q)[kEach], const RawFour<K> (&k)[kSteps][kFours]) {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      float row[kEach];
      unpack(k[s], row);
      score[s] = 0;
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) score[s] += q[e] * row[e];
    }
    CCKS_NO_UNROLL
    for (u32 step = 1; step < parts_; step *= 2) {
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) score[s] += lanes_.shuffle_xor(score[s], step);
    }
  }
  /// From scores to weights.
  CCKS_INLINE void weigh(Found& f, float (&score)[kSteps], u32 j, u32 seen) const {
    float top = f.top;
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      if (j + s * slots_ + slot_ >= seen) score[s] = -f_infinity();
      top = f_larger(top, score[s]);
    }
    shrink(f, top);
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) f.sum += score[s] = power(score[s] - from(top));
  }
  CCKS_INLINE void add(Found& f, const float (&weight)[kSteps], const RawFour<V> (&v)[kSteps][kFours]) const {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      float row[kEach];
      unpack(v[s], row);
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) f.values[e] += weight[s] * row[e];
    }
  }
  static CCKS_INLINE float from(float top) { return top == -f_infinity() ? 0.0f : top; }
  CCKS_INLINE void shrink(Found& f, float top) const {
    const float left = power(f.top - from(top));
    f.top = top;
    f.sum *= left;
    CCKS_UNROLL
    for (u32 e = 0; e < kEach; ++e) f.values[e] *= left;
  }
  CCKS_INLINE float power(float v) const {
    if constexpr (requires { lanes_.power_of_two(v); })
      return lanes_.power_of_two(v);
    else
      return f_exp(v * 0.69314718f);
  }
  CCKS_INLINE float one_over(float v) const {
    if constexpr (requires { lanes_.inverse(v); })
      return lanes_.inverse(v);
    else
      return 1.0f / v;
  }

  /// Lanes with the same dims have looked at different positions.
  CCKS_INLINE void gather_lanes(Found& f) {
    float top = f.top;
    CCKS_NO_UNROLL
    for (u32 step = parts_; step < kWarp; step *= 2) top = f_larger(top, lanes_.shuffle_xor(top, step));
    shrink(f, top);
    CCKS_NO_UNROLL
    for (u32 step = parts_; step < kWarp; step *= 2) {
      f.sum += lanes_.shuffle_xor(f.sum, step);
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) f.values[e] += lanes_.shuffle_xor(f.values[e], step);
    }
  }
  /// The same of warps, of which the first of each `share` gets all. Of a warp in scratch: top, sum, then dims from kVector on.
  CCKS_INLINE void gather_warps(Found& f, u32 share) {
    const u32 pitch = dims_ + kVector;
    float* own = reinterpret_cast<float*>(lanes_.scratch()) + warp_ * pitch;
    if (slot_ == 0) {
      if (part_ == 0) own[0] = f.top, own[1] = f.sum;
      CCKS_UNROLL
      for (u32 i = 0; i < kFours; ++i) {
        if (has(i)) store_four(Fixed<Dtype::f32>{}, reinterpret_cast<u8*>(own + kVector + column(i)), f.values + i * kVector);
      }
    }
    lanes_.sync();
    if ((warp_ & (share - 1)) != 0 || slot_ != 0) return;
    CCKS_NO_UNROLL
    for (u32 other = 1; other < share; ++other) {
      const float* theirs = own + other * pitch;
      const float top = f_larger(f.top, theirs[0]), left = power(theirs[0] - from(top));
      shrink(f, top);
      f.sum += left * theirs[1];
      CCKS_UNROLL
      for (u32 i = 0; i < kFours; ++i) {
        if (!has(i)) continue;
        float four[kVector];
        load_four(Fixed<Dtype::f32>{}, reinterpret_cast<const u8*>(theirs + kVector + column(i)), four);
        CCKS_UNROLL
        for (u32 e = 0; e < kVector; ++e) f.values[i * kVector + e] += left * four[e];
      }
    }
  }

  CCKS_INLINE void put(const Found& f, const Query& query) const {
    const float inverse = f.sum == 0 ? 0.0f : one_over(f.sum);
    u8* to = o_.out.at(query.c0, query.c1, query.c2) + query.head * dims_ * bytes_of(o_.out.type);
    CCKS_UNROLL
    for (u32 i = 0; i < kFours; ++i) {
      float four[kVector];
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) four[e] = f.values[i * kVector + e] * inverse;
      if (has(i)) store_four(o_.out.type, to + column(i) * bytes_of(o_.out.type), four);
    }
  }

  Lanes& lanes_;
  const OpParams& op_;
  const Operands& o_;
  Box box_;  // along axis 3 in heads
  u32 dims_, fours_, parts_, slots_, part_, slot_, warp_;
};

/// Heads that matrix units take (attention_thin.hpp) are left to those.
template <class Lanes, class Q, class K, class V>
CCKS_INLINE bool is_thin(const OpParams& op, bool limits) {
  if constexpr (MatrixLanes<Lanes> && kThinTypes<Q, K, V>) {
    const u32 dims = static_cast<u32>(op.dims[wire::kQueryDim]) & 0xffff;
    return !limits && (dims == 64 || dims == 128);
  }
  return false;
}

/// kOut: the operand that is the output; behind a fourth input, if any. False: nothing is done.
template <u32 kOut, class Lanes, class Types>
CCKS_INLINE bool query_attention_into(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const MarkedRows q(call, 0, types.template type<0>());
  const MarkedRows k(call, 1, types.template type<1>());
  const MarkedRows v(call, 2, types.template type<2>());
  const MarkedRows out(call, kOut, types.template type<kOut>());
  using Body = QueryAttention<Lanes, decltype(q.type), decltype(k.type), decltype(v.type), decltype(out.type)>;
  if (is_thin<Lanes, decltype(q.type), decltype(k.type), decltype(v.type)>(call.op, kOut == 4)) return false;
  const OperandParams* limits = kOut == 4 ? &call.operands[3] : nullptr;
  const typename Body::Operands operands{q, k, v, out, limits, kOut == 4 ? operand_base(call.frame, *limits) : nullptr};
  Body(lanes, call.op, operands, tile).run();
  return true;
}

/// False: nothing is done.
template <class Lanes, class Types>
CCKS_INLINE bool query_attention(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes>) {
    if (call.op.dims[4] != 0 || call.op.dims[wire::kQueryDim] == 0) return false;
    if constexpr (Types::kCount == 0)
      return call.op.input_count == 4 ? query_attention_into<4>(lanes, call, tile, types) : query_attention_into<3>(lanes, call, tile, types);
    else if constexpr (Types::kCount == 4 || Types::kCount == 5)
      return query_attention_into<Types::kCount - 1>(lanes, call, tile, types);
  }
  return false;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// attention of few queries: up to four that share a kv head, heads of 64 or 128 dims, elements of two bytes. What a decode step
// asks for, where a tile is short and every instruction counts. Warps share out the context, eight positions each in a turn: for
// the scores a lane holds eight dims of a position and lanes trade halves until each has one score of its own; for the sums it holds
// four dims, and reads the weights of all queries from scratch. Warps meet once, at the end.
#pragma once

#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Four elements as they lie in memory.
template <Dtype D>
struct RawFour {
  Four<Storage<D>> raw = {};
  CCKS_INLINE void load(const u8* from) { raw = *reinterpret_cast<const Four<Storage<D>>*>(from); }
  CCKS_INLINE void unpack(float (&to)[kVector]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kVector; ++i) to[i] = to_float<D>(raw.v[i]);
  }
};

template <u32 kDims, Dtype D, class Lanes, class Task>
class ThinAttention {
 public:
  static constexpr u32 kQueries = 4, kEach = 8, kTurn = 8;  // positions of a warp in a turn
  static constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  static constexpr u32 kParts = kDims / kEach, kSlots = kWarp / kParts, kSteps = kTurn / kSlots;  // of scores
  static constexpr u32 kSumParts = kDims / kVector, kSumSlots = kWarp / kSumParts, kSumSteps = kTurn / kSumSlots;  // of sums
  static constexpr u32 kGroups = kWarps * kSumSlots;
  static constexpr u32 kShareWords = (kTurn + 1) * kQueries;  // of a warp: a weight for each position, then what is left of the sums
  static_assert(kSteps * kQueries == kParts && kWarp == 32);
  static_assert((kGroups * kDims + kWarps * (kShareWords / kQueries + 2)) * kQueries * sizeof(float) <= kMinScratchBytes);

  CCKS_INLINE ThinAttention(Lanes& lanes, const Task& task)
      : lanes_(lanes), t_(task), warp_(lanes.lane() / kWarp), part_(lanes.lane() % kParts),
        slot_(lanes.lane() % kWarp / kParts), sum_part_(lanes.lane() % kSumParts), sum_slot_(lanes.lane() % kWarp / kSumParts) {
    sums_ = reinterpret_cast<float*>(lanes.scratch());
    shares_ = sums_ + kGroups * kQueries * kDims + warp_ * kShareWords;
    weights_ = sums_ + kGroups * kQueries * kDims + kWarps * kShareWords;
  }

  /// Rows and heads of the tile that share a kv head, four at a time.
  CCKS_INLINE void run() {
    const i32 first = t_.box.lo[3] / t_.head_dim, end = first + t_.box.size[3] / t_.head_dim;
    bool again = false;
    for (i32 c1 = t_.box.lo[1]; c1 < t_.box.lo[1] + t_.box.size[1]; ++c1)
      for (i32 head = first; head < end;) {
        const i32 kv = head / t_.group, heads = least(end, (kv + 1) * t_.group) - head;
        const u32 queries = static_cast<u32>(t_.box.size[2] * heads);
        for (u32 at = 0; at < queries; at += kQueries) {
          if (again) lanes_.sync();  // what was brought together before has been read
          again = true;
          share({c1, kv, head, static_cast<u32>(heads), at, queries});
        }
        head += heads;
      }
  }

 private:
  /// Queries [at, at + kQueries) of `queries`, the last one again beyond the end.
  struct Chunk {
    i32 c1, kv, head;
    u32 heads, at, queries;
  };
  CCKS_INLINE i32 row_of(const Chunk& chunk, u32 i) const {
    return t_.box.lo[2] + static_cast<i32>(least(chunk.at + i, chunk.queries - 1) / chunk.heads);
  }
  CCKS_INLINE i32 column_of(const Chunk& chunk, u32 i) const {
    return (chunk.head + static_cast<i32>(least(chunk.at + i, chunk.queries - 1) % chunk.heads)) * t_.head_dim;
  }

  struct Turn {
    RawPacket<D, false> k[kSteps];
    RawFour<D> v[kSumSteps];
  };
  struct Context {
    const u8 *keys, *values;
    i64 key_row, value_row;
    u32 end;
  };
  /// Of the lane's own query: all lanes of a warp that have it agree on `top`; each has added up its own weights.
  struct Found {
    float top, sum, values[kQueries][kVector];
  };

  CCKS_INLINE void share(const Chunk& chunk) {
    float q[kQueries][kEach];
    u32 end = 0;
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      RawPacket<D, false> eight;
      eight.load({}, t_.q.at(0, chunk.c1, row_of(chunk, i), column_of(chunk, i) + static_cast<i32>(part_ * kEach)));
      eight.unpack(q[i]);
      end = most(end, t_.seen(row_of(chunk, i)));
    }
    const i32 column = chunk.kv * t_.head_dim;
    const Context context{t_.k.at(0, chunk.c1, 0, column + static_cast<i32>(part_ * kEach)),
                          t_.v.at(0, chunk.c1, 0, column + static_cast<i32>(sum_part_ * kVector)), t_.k.stride[2] * 2, t_.v.stride[2] * 2, end};
    Found f{-f_infinity(), 0, {}};
    const u32 seen = t_.seen(row_of(chunk, part_ % kQueries));
    Turn now, next;
    u32 j = t_.part.begin + warp_ * kTurn;
    if (j < end) fetch(now, context, j);
    CCKS_NO_UNROLL
    for (; j < end; j += kWarps * kTurn) {
      if (j + kWarps * kTurn < end) fetch(next, context, j + kWarps * kTurn);
      take(f, q, now, seen, j);
      now = next;
    }
    keep(f);
    lanes_.sync();
    finish(chunk);
  }

  /// Positions beyond the end are read again at the last one: their weights are zero.
  CCKS_INLINE void fetch(Turn& to, const Context& context, u32 j) const {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s)
      to.k[s].load({}, context.keys + least(j + s * kSlots + slot_, context.end - 1) * context.key_row);
    CCKS_UNROLL
    for (u32 s = 0; s < kSumSteps; ++s)
      to.v[s].load(context.values + least(j + s * kSumSlots + sum_slot_, context.end - 1) * context.value_row);
  }

  /// The score of query part_ % kQueries at position slot_ of step part_ / kQueries.
  CCKS_INLINE float score(const float (&q)[kQueries][kEach], const Turn& turn) {
    float all[kParts];
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      float row[kEach];
      turn.k[s].unpack(row);
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        float sum = 0;
        CCKS_UNROLL
        for (u32 e = 0; e < kEach; ++e) sum += q[i][e] * row[e];
        all[s * kQueries + i] = sum;
      }
    }
    CCKS_UNROLL
    for (u32 half = kParts / 2; half > 0; half /= 2) {
      const bool upper = (part_ & half) != 0;
      CCKS_UNROLL
      for (u32 i = 0; i < half; ++i) {
        const float mine = upper ? all[i + half] : all[i], other = upper ? all[i] : all[i + half];
        all[i] = mine + lanes_.shuffle_xor(other, half);
      }
    }
    return all[0] * t_.scale;
  }

  CCKS_INLINE void take(Found& f, const float (&q)[kQueries][kEach], const Turn& turn, u32 seen, u32 j) {
    const u32 at = part_ / kQueries * kSlots + slot_, query = part_ % kQueries;
    float mine = score(q, turn);
    if (j + at >= seen) mine = -f_infinity();
    float top = most(f.top, mine);
    CCKS_UNROLL
    for (u32 step = kQueries; step < kWarp; step *= 2) top = most(top, lanes_.shuffle_xor(top, step));
    const float from = top == -f_infinity() ? 0.0f : top, left = f_exp(f.top - from), weight = f_exp(mine - from);
    f.top = top;
    f.sum = f.sum * left + weight;
    shares_[at * kQueries + query] = weight;
    if (at == 0) shares_[kTurn * kQueries + query] = left;
    lanes_.sync_warp();
    add_values(f, turn);
    lanes_.sync_warp();
  }

  CCKS_INLINE void add_values(Found& f, const Turn& turn) const {
    const auto* shares = reinterpret_cast<const Four<float>*>(shares_);
    const Four<float> left = shares[kTurn];
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) f.values[i][e] *= left.v[i];
    }
    CCKS_UNROLL
    for (u32 s = 0; s < kSumSteps; ++s) {
      const Four<float> weight = shares[s * kSumSlots + sum_slot_];
      float row[kVector];
      turn.v[s].unpack(row);
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        CCKS_UNROLL
        for (u32 e = 0; e < kVector; ++e) f.values[i][e] += weight.v[i] * row[e];
      }
    }
  }

  /// Sums: [group of lanes][query][dim]; top and sum of weights: [warp][query].
  CCKS_INLINE void keep(Found& f) {
    CCKS_UNROLL
    for (u32 step = kQueries; step < kWarp; step *= 2) f.sum += lanes_.shuffle_xor(f.sum, step);
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      Four<float> four;
      CCKS_UNROLL
      for (u32 e = 0; e < kVector; ++e) four.v[e] = f.values[i][e];
      const u32 group = warp_ * kSumSlots + sum_slot_;
      *reinterpret_cast<Four<float>*>(sums_ + (group * kQueries + i) * kDims + sum_part_ * kVector) = four;
    }
    if (lanes_.lane() % kWarp >= kQueries) return;
    float* to = weights_ + 2 * (warp_ * kQueries + part_ % kQueries);
    to[0] = f.top;
    to[1] = f.sum;
  }

  CCKS_INLINE void finish(const Chunk& chunk) const {
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < kQueries * kDims; o += Lanes::kLanes) {
      const u32 i = o / kDims, d = o % kDims;
      if (chunk.at + i >= chunk.queries) break;
      float top = -f_infinity(), sum = 0, value = 0;
      CCKS_UNROLL
      for (u32 w = 0; w < kWarps; ++w) top = most(top, weights_[2 * (w * kQueries + i)]);
      const float from = top == -f_infinity() ? 0.0f : top;
      CCKS_UNROLL
      for (u32 w = 0; w < kWarps; ++w) {
        const float share = f_exp(weights_[2 * (w * kQueries + i)] - from);
        sum += share * weights_[2 * (w * kQueries + i) + 1];
        CCKS_UNROLL
        for (u32 s = 0; s < kSumSlots; ++s) value += share * sums_[((w * kSumSlots + s) * kQueries + i) * kDims + d];
      }
      t_.put(0, chunk.c1, row_of(chunk, i), column_of(chunk, i), d, value, sum);
      if (d == 0) t_.put_weights(chunk.c1, row_of(chunk, i), column_of(chunk, i), top, sum);
    }
  }

  Lanes& lanes_;
  const Task& t_;
  u32 warp_, part_, slot_, sum_part_, sum_slot_;
  float *sums_, *shares_, *weights_;
};

template <u32 kDims, Dtype D, class Lanes, class Task>
CCKS_OUTLINE void run_thin_attention(Lanes& lanes, const Task& task) {
  ThinAttention<kDims, D, Lanes, Task>(lanes, task).run();
}

/// Whether three types are one that is known when the body is compiled, of two bytes.
template <class Q, class K, class V>
inline constexpr bool kThinTypes = false;
template <Dtype D>
inline constexpr bool kThinTypes<Fixed<D>, Fixed<D>, Fixed<D>> = sizeof(Storage<D>) == 2;

/// False: nothing is done.
template <class Lanes, class Task>
CCKS_INLINE bool thin_attention(Lanes& lanes, const Task& task) {
  using Q = decltype(task.q.type);
  if constexpr (kThinTypes<Q, decltype(task.k.type), decltype(task.v.type)>) {
    constexpr Dtype kType = Q::get();
    const i32 queries = task.box.size[2] * task.group;
    if (queries < 2 || queries > 8 || (task.head_dim != 64 && task.head_dim != 128)) return false;
    if (!in_eights(task.q) || !in_eights(task.k) || !in_eights(task.v) || task.box.size[0] != 1 || task.out.dim[0] != 1) return false;
    if (task.head_dim == 64)
      run_thin_attention<64, kType>(lanes, task);
    else
      run_thin_attention<128, kType>(lanes, task);
    return true;
  }
  return false;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

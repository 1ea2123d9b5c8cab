// attention of up to eight queries that share a kv head, heads of 64 or 128 dims, elements of two bytes, by products of small matrices.
// What a decode step asks for: a tile is short, its code is fetched anew each time, and so it is the number of instructions that
// counts, run once or not. Warps share out the context, sixteen positions each in a turn, and meet once, at the end.
//
// In a warp, with g = lane / 4 and c = lane % 4, a lane has of query g and of the positions it loads keys for a quarter of the dims, its
// c'th: products add dims up in any order, as long as both sides have the same. Scores of query g at positions 2c and 2c + 1 of
// each eight come out there, and go in again as weights. Of values it loads an eighth of the dims, its g'th, at those four positions.
#pragma once

#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <u32 kDims, Dtype D, class Lanes, class Task>
class ThinAttention {
 public:
  static constexpr u32 kQueries = 8, kTurn = 16;  // positions of a warp in a turn
  static constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  static constexpr u32 kSteps = kDims / 16, kTiles = kDims / 8;                  // products along the dims, and of columns of dims
  static constexpr u32 kKeyPackets = kDims / 32, kValuePackets = kDims / 64;    // of eight elements, of a lane and position
  static constexpr i32 kHead = static_cast<i32>(kDims);
  static_assert((kDims + 2) * kWarps * kQueries * sizeof(float) <= kMinScratchBytes);

  CCKS_INLINE ThinAttention(Lanes& lanes, const Task& task)
      : lanes_(lanes), t_(task), warp_(lanes.lane() / kWarp), g_(lanes.lane() % kWarp / 4), c_(lanes.lane() % 4) {
    sums_ = reinterpret_cast<float*>(lanes.scratch());
    weights_ = sums_ + kWarps * kQueries * kDims;
  }

  /// Rows and heads of the tile that share a kv head, eight at a time.
  CCKS_INLINE void run() {
    const i32 first = t_.box.lo[3] / kHead, end = first + t_.box.size[3] / kHead;
    bool again = false;
    CCKS_NO_UNROLL
    for (i32 c1 = t_.box.lo[1]; c1 < t_.box.lo[1] + t_.box.size[1]; ++c1) {
      CCKS_NO_UNROLL
      for (i32 head = first; head < end;) {
        const i32 kv = head / t_.group, heads = least(end, (kv + 1) * t_.group) - head;
        const u32 queries = static_cast<u32>(t_.box.size[2] * heads);
        CCKS_NO_UNROLL
        for (u32 at = 0; at < queries; at += kQueries) {
          if (again) lanes_.sync();  // what was brought together before has been read
          again = true;
          share({c1, kv, head, static_cast<u32>(heads), at, queries, 65535 / static_cast<u32>(heads) + 1});
        }
        head += heads;
      }
    }
  }

 private:
  using Packet = RawPacket<D, false>;
  /// Queries [at, at + kQueries) of `queries`, the last one again beyond the end.
  struct Chunk {
    i32 c1, kv, head;
    u32 heads, at, queries, inverse;  // x / heads is x * inverse >> 16 for all x < 256
  };
  struct Query {
    i32 row, column;
  };
  CCKS_INLINE Query query(const Chunk& chunk, u32 i) const {
    const u32 at = least(chunk.at + i, chunk.queries - 1), row = at * chunk.inverse >> 16;
    return {t_.box.lo[2] + static_cast<i32>(row), (chunk.head + static_cast<i32>(at - row * chunk.heads)) * kHead};
  }

  struct Context {
    const u8 *keys, *values;
    u32 key_row, value_row, end, seen;  // bytes of a row; where the tile's part ends, and what the lane's query sees
  };
  /// Of query g: its four lanes agree on `top`; each has added up its own weights.
  struct Found {
    float top, sum, values[kTiles][2];
  };

  CCKS_INLINE void share(const Chunk& chunk) {
    const Query mine = query(chunk, g_);
    const i32 column = chunk.kv * kHead;
    const Context context{t_.k.at(0, chunk.c1, 0, column + static_cast<i32>(c_ * (kDims / 4))),
                          t_.v.at(0, chunk.c1, 0, column + static_cast<i32>(g_ * (kDims / 8))), static_cast<u32>(t_.k.stride[2] * 2),
                          static_cast<u32>(t_.v.stride[2] * 2), t_.seen(query(chunk, kQueries - 1).row), t_.seen(mine.row)};
    Packet q[kKeyPackets];
    load(q, t_.q.at(0, chunk.c1, mine.row, mine.column + static_cast<i32>(c_ * (kDims / 4))));
    Found f{-f_infinity(), 0, {}};
    CCKS_NO_UNROLL
    for (u32 j = t_.part.begin + warp_ * kTurn; j < context.end; j += kWarps * kTurn) take(f, q, context, j);
    keep(f);
    lanes_.sync();
    finish(chunk);
  }

  template <u32 kCount>
  static CCKS_INLINE void load(Packet (&to)[kCount], const u8* from) {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i].load({}, from + 16 * i);
  }

  /// Positions j to j + 15. Those beyond the end are read at the last one: their weights are zero.
  CCKS_INLINE void take(Found& f, const Packet (&q)[kKeyPackets], const Context& context, u32 j) {
    Packet k[2][kKeyPackets], v[4][kValuePackets];
    CCKS_UNROLL
    for (u32 h = 0; h < 2; ++h) load(k[h], context.keys + static_cast<u64>(least(j + 8 * h + g_, context.end - 1)) * context.key_row);
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) load(v[i], context.values + static_cast<u64>(least(position(j, i), context.end - 1)) * context.value_row);
    float score[2][2] = {};
    CCKS_UNROLL
    for (u32 h = 0; h < 2; ++h) {
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) lanes_.template multiply<D>(score[h], pair(q, s), pair(k[h], s));
    }
    u32 weights[2];
    const float left = weigh(f, score, weights, context.seen, j);
    CCKS_UNROLL
    for (u32 t = 0; t < kTiles; ++t) {
      f.values[t][0] *= left;
      f.values[t][1] *= left;
      const u32 rows[2] = {halves(v[0], v[1], t), halves(v[2], v[3], t)};
      lanes_.template multiply<D>(f.values[t], weights, rows);
    }
  }
  CCKS_INLINE u32 position(u32 j, u32 i) const { return j + i / 2 * 8 + 2 * c_ + i % 2; }

  using Two = u32[2];
  template <u32 kCount>
  static CCKS_INLINE const Two& pair(const Packet (&of)[kCount], u32 step) {
    return reinterpret_cast<const Two&>(of[step / 2].raw.word[step % 2 * 2]);
  }
  /// Element t of both: of `a` in the low half.
  static CCKS_INLINE u32 halves(const Packet (&a)[kValuePackets], const Packet (&b)[kValuePackets], u32 t) {
    const u32 low = a[t / 8].raw.word[t % 8 / 2], high = b[t / 8].raw.word[t % 8 / 2];
    return t % 2 == 0 ? (low & 0xffffu) | (high << 16) : (low >> 16) | (high & 0xffff0000u);
  }

  /// From scores to weights, as they go into the next product; what is left of earlier sums.
  CCKS_INLINE float weigh(Found& f, float (&score)[2][2], u32 (&weights)[2], u32 seen, u32 j) {
    float top = f.top;
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      float& s = score[i / 2][i % 2];
      s = position(j, i) < seen ? s * t_.scale : -f_infinity();
      top = most(top, s);
    }
    top = most(top, lanes_.shuffle_xor(top, 1));
    top = most(top, lanes_.shuffle_xor(top, 2));
    const float from = top == -f_infinity() ? 0.0f : top, left = f_exp(f.top - from);
    f.top = top;
    f.sum *= left;
    CCKS_UNROLL
    for (u32 h = 0; h < 2; ++h) {
      const float a = f_exp(score[h][0] - from), b = f_exp(score[h][1] - from);
      f.sum += a + b;
      weights[h] = from_float<D>(a) | static_cast<u32>(from_float<D>(b)) << 16;
    }
    return left;
  }

  /// Sums: [warp][query][dim]; top and sum of weights: [warp][query].
  CCKS_INLINE void keep(Found& f) {
    f.sum += lanes_.shuffle_xor(f.sum, 1);
    f.sum += lanes_.shuffle_xor(f.sum, 2);
    const u32 query = warp_ * kQueries + g_;
    CCKS_UNROLL
    for (u32 e = 0; e < 2; ++e) {
      CCKS_UNROLL
      for (u32 t = 0; t < kTiles; t += kVector) {
        Four<float> four;
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) four.v[i] = f.values[t + i][e];
        *reinterpret_cast<Four<float>*>(sums_ + query * kDims + (2 * c_ + e) * kTiles + t) = four;
      }
    }
    if (c_ != 0) return;
    weights_[2 * query] = f.top;
    weights_[2 * query + 1] = f.sum;
  }

  CCKS_INLINE void finish(const Chunk& chunk) const {
    const u32 queries = least(kQueries, chunk.queries - chunk.at);
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < queries * kDims; o += Lanes::kLanes) {
      const u32 i = o / kDims, d = o % kDims;
      float top = -f_infinity(), sum = 0, value = 0;
      CCKS_NO_UNROLL
      for (u32 w = i; w < kWarps * kQueries; w += kQueries) top = most(top, weights_[2 * w]);
      const float from = top == -f_infinity() ? 0.0f : top;
      CCKS_NO_UNROLL
      for (u32 w = i; w < kWarps * kQueries; w += kQueries) {
        const float share = f_exp(weights_[2 * w] - from);
        sum += share * weights_[2 * w + 1];
        value += share * sums_[w * kDims + d];
      }
      const Query of = query(chunk, i);
      t_.put(0, chunk.c1, of.row, of.column, d, value, sum);
      if (d == 0) t_.put_weights(chunk.c1, of.row, of.column / kHead, top, sum);
    }
  }

  Lanes& lanes_;
  const Task& t_;
  u32 warp_, g_, c_;
  float *sums_, *weights_;
};

template <u32 kDims, Dtype D, class Lanes, class Task>
CCKS_OUTLINE void run_thin_attention(Lanes& lanes, const Task& task) {
  ThinAttention<kDims, D, Lanes, Task>(lanes, task).run();
}

/// Whether three types are one that is known when the body is compiled, of two bytes.
template <class Q, class K, class V>
inline constexpr bool kThinTypes = false;
template <Dtype D>
inline constexpr bool kThinTypes<Fixed<D>, Fixed<D>, Fixed<D>> = D == Dtype::bf16 || D == Dtype::f16;

/// False: nothing is done.
template <class Lanes, class Task>
CCKS_INLINE bool thin_attention(Lanes& lanes, const Task& task) {
  using Q = decltype(task.q.type);
  if constexpr (MatrixLanes<Lanes> && kThinTypes<Q, decltype(task.k.type), decltype(task.v.type)>) {
    constexpr Dtype kType = Q::get();
    if (task.limits.data != nullptr || task.box.size[2] * task.group > kThinQueries || (task.head_dim != 64 && task.head_dim != 128)) return false;
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

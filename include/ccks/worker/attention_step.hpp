// attention of a decode step: one row of up to eight heads that share a kv head, heads of 64 or 128 dims, elements of two bytes.
// A tile is short and its code is fetched anew each time, so instructions count, run once or not: what is the same for all tiles
// the host has found out (mark_attention in wire/op_shape.hpp), and every other case has a body of its own.
//
// Warps share out the context, sixteen positions each in a turn. In a warp, with g = lane / 4 and c = lane % 4, a lane loads a quarter of
// the dims, its c'th, of the keys at positions g and g + 8 and of query g: products add dims up in any order, as long as both sides
// have the same. Scores of those positions and of queries 2c and 2c + 1 come out there. Of values it loads an eighth of the dims, its
// g'th, at positions 2c, 2c + 1, 2c + 8 and 2c + 9, and has of the sums those dims of queries 2c and 2c + 1. Warps meet once, at the end.
//
// The same with pages (mark_pages): any number of rows, a tile has one of them, limits of its own, and a turn's positions are on one page. Which page that is a
// warp asks two turns ahead, so that it costs no time to find out but at the beginning.
#pragma once

#include "ccks/worker/attention_split.hpp"
#include "ccks/worker/near_op.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// x / d for an `inverse` of mark_attention.
CCKS_INLINE u32 divided(u32 x, i32 inverse) {
  return inverse == 0 ? x : static_cast<u32>((u64{x} * static_cast<u32>(inverse)) >> 32);
}

template <u32 kDims, Dtype D, bool kPaged, class Lanes>
class StepAttention {
 public:
  static constexpr u32 kQueries = wire::kStepQueries, kTurn = 16;  // positions of a warp in a turn
  static constexpr u32 kOut = kPaged ? 5 : 3;
  static constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  static constexpr u32 kSteps = kDims / 16, kEach = kDims / 8;                // products along the dims; dims of values of a lane
  static constexpr u32 kKeyPackets = kDims / 32, kValuePackets = kDims / 64;  // of eight elements, of a lane and position
  static constexpr u32 kPitch = kDims + 8;                                    // floats of a query's sums in scratch
  static_assert(((kPitch + 2) * kWarps * kQueries + 1) * sizeof(float) <= kMinScratchBytes - sizeof(NearOp) && kWarps == 2 * kVector);

  CCKS_INLINE StepAttention(Lanes& lanes, const NearOp& near, u32 tile)
      : lanes_(lanes), op_(near.op), operands_(near.operands), warp_(lanes.lane() / kWarp), g_(lanes.lane() % kWarp / 4), c_(lanes.lane() % 4) {
    group_ = static_cast<u32>(op_.dims[4]) & 0xff;
    count_ = static_cast<u32>(op_.dims[4]) >> 8 & 0xff;
    const u32 rest = divided(tile, op_.dims[5]);
    kv_ = tile - rest * static_cast<u32>(op_.grid[3]);
    part_ = kPaged ? 0 : divided(rest, op_.dims[6]);
    batch_ = kPaged ? rest : rest - part_ * static_cast<u32>(op_.grid[1]);
    sums_ = reinterpret_cast<float*>(lanes.scratch());
    tops_ = sums_ + kWarps * kQueries * kPitch;
    weights_ = tops_ + kWarps * kQueries;
  }

  CCKS_INLINE void run() {
    if (part_ >= count_) return;
    Found f{{-f_infinity(), -f_infinity()}, {}, {}};
    if constexpr (kPaged) {
      attend_pages(f);
      return bring_together(f, true);
    }
    attend(f);
    bool last = count_ == 1;
    CCKS_NO_UNROLL
    for (;;) {
      bring_together(f, last);
      if (last) return;
      u32* word = reinterpret_cast<u32*>(operands_[5].offset) + batch_ * static_cast<u32>(op_.grid[3]) + kv_;
      if (!last_to_arrive(lanes_, word, count_, reinterpret_cast<u32*>(weights_ + kWarps * kQueries))) return;
      last = true;
      f = {{-f_infinity(), -f_infinity()}, {}, {}};
      CCKS_NO_UNROLL
      for (u32 part = warp_; part < count_; part += kWarps) add_part(f, part);
    }
  }

 private:
  using Packet = RawPacket<D, false>;
  /// Of queries 2c and 2c + 1.
  struct Found {
    float top[2];
    float sum[4];              // of weights; as products have them, the last two of no use
    float values[kEach / 2][4];  // dims 2t of both queries, then 2t + 1
  };

  CCKS_INLINE u8* address(u32 operand, u32 column) const {
    return reinterpret_cast<u8*>(operands_[operand].offset) + 2 * (batch_ * static_cast<u32>(operands_[operand].stride[kPaged ? 2 : 1]) + column);
  }
  CCKS_INLINE u32 column_of(u32 query) const { return (kv_ * group_ + query) * kDims; }

  CCKS_INLINE void attend(Found& f) {
    const u32 context = static_cast<u32>(operands_[1].dim[2]), steps = ceil_div(context, wire::kPartStep);
    const u32 end = least(context, divided((part_ + 1) * steps, op_.dims[7]) * wire::kPartStep);
    u32 j = divided(part_ * steps, op_.dims[7]) * wire::kPartStep + warp_ * kTurn;
    if (j >= end) return;
    const u32 key_row = static_cast<u32>(operands_[1].stride[2]) * 2, value_row = static_cast<u32>(operands_[2].stride[2]) * 2;
    const u8* keys = address(1, kv_ * kDims + c_ * (kDims / 4));
    const u8* values = address(2, kv_ * kDims + g_ * kEach);
    const float scale = op_.scalars[0] * 1.44269504f;  // weights are powers of two
    Packet q[kKeyPackets], k[2][kKeyPackets], v[4][kValuePackets];
    load(q, address(0, column_of(least(g_, group_ - 1)) + c_ * (kDims / 4)));
    CCKS_NO_UNROLL
    for (;;) {
      // Positions beyond the end are read at the last one: their weights are zero.
      CCKS_UNROLL
      for (u32 i = 0; i < 2; ++i) load(k[i], keys + least(j + 8 * i + g_, end - 1) * key_row);
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) load(v[i], values + least(j + i / 2 * 8 + 2 * c_ + i % 2, end - 1) * value_row);
      const u32 after = j + kWarps * kTurn;
      if (after < end) {  // what the next turn wants is under way meanwhile: of a line each, the lane that loads its beginning
        prefetch_line(keys + least(after + g_ + c_ % 2 * 8, end - 1) * key_row);
        prefetch_line(values + least(after + g_ + c_ % 2 * 8, end - 1) * value_row);
      }
      take(f, q, k, v, scale, 0, end, j);
      if (after >= end) return;
      j = after;
    }
  }

  /// The number of the page that position `j` lies on, or the last one.
  CCKS_INLINE u32 page_at(const i32* pages, u32 column, u32 j, u32 end) const {
    return static_cast<u32>(pages[divided(least(j, end - 1) / kTurn, op_.dims[6]) * column]);
  }
  /// Where a pool's row of position `j` is, on page `number`.
  CCKS_INLINE const u8* in_pool(u32 operand, u32 column, u32 number, u32 j) const {
    const u32 page = static_cast<u32>(op_.dims[wire::kPageDim]), row_bytes = static_cast<u32>(operands_[operand].stride[2]) * 2;
    const u32 within = j - divided(j / kTurn, op_.dims[6]) * page;
    return reinterpret_cast<const u8*>(operands_[operand].offset) + u64{number} * (page * row_bytes) + (within * row_bytes + 2 * column);
  }
  CCKS_INLINE bool exists(u32 number) const {  // negative ones are large
    const u32 page = static_cast<u32>(op_.dims[wire::kPageDim]);
    return (u64{number} + 1) * page <= static_cast<u32>(operands_[1].dim[2]);
  }

  CCKS_INLINE void attend_pages(Found& f) {
    const OperandParams &limits = operands_[3], &table = operands_[4];
    const i32* reach = reinterpret_cast<const i32*>(limits.offset) + batch_ * static_cast<u32>(limits.stride[2]);
    const i32* pages = reinterpret_cast<const i32*>(table.offset) + batch_ * static_cast<u32>(table.stride[2]);
    const u32 column = static_cast<u32>(table.stride[3]);
    const i32 context = table.dim[3] * op_.dims[wire::kPageDim];
    const u32 first = static_cast<u32>(most(0, reach[0])), end = static_cast<u32>(most(0, least(context, reach[limits.stride[3]])));
    u32 j = first / kTurn * kTurn + warp_ * kTurn;
    if (first >= end || j >= end) return;
    u32 page = page_at(pages, column, j, end), next = page_at(pages, column, j + kWarps * kTurn, end);
    const u32 key_row = static_cast<u32>(operands_[1].stride[2]) * 2, value_row = static_cast<u32>(operands_[2].stride[2]) * 2;
    const u32 key_column = kv_ * kDims + c_ * (kDims / 4), value_column = kv_ * kDims + g_ * kEach;
    const float scale = op_.scalars[0] * 1.44269504f;  // weights are powers of two
    Packet q[kKeyPackets], k[2][kKeyPackets], v[4][kValuePackets];
    load(q, address(0, column_of(least(g_, group_ - 1)) + c_ * (kDims / 4)));
    CCKS_NO_UNROLL
    for (;;) {
      const u32 after = j + kWarps * kTurn, later = page_at(pages, column, after + kWarps * kTurn, end);
      const bool there = exists(page);  // the same on all lanes of a warp
      if (there) {
        // Values that the row does not see are read at a position that it does: their weights are zero, whatever lies there. Keys of the page may be read all.
        const u32 low = j < first ? first - j : 0, high = end - 1 - j;
        const u8 *keys = in_pool(1, key_column, page, j), *values = in_pool(2, value_column, page, j);
        CCKS_UNROLL
        for (u32 i = 0; i < 2; ++i) load(k[i], keys + (8 * i + g_) * key_row);
        CCKS_UNROLL
        for (u32 i = 0; i < 4; ++i) load(v[i], values + most(low, least(i / 2 * 8 + 2 * c_ + i % 2, high)) * value_row);
      }
      if (after < end && exists(next)) {  // as in attend
        const u32 at = least(g_ + c_ % 2 * 8, end - 1 - after);
        prefetch_line(in_pool(1, key_column, next, after) + at * key_row);
        prefetch_line(in_pool(2, value_column, next, after) + at * value_row);
      }
      if (there) take(f, q, k, v, scale, first, end, j);
      if (after >= end) return;
      j = after, page = next, next = later;
    }
  }

  template <u32 kCount>
  static CCKS_INLINE void load(Packet (&to)[kCount], const u8* from) {
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) to[i].load({}, from + 16 * i);
  }

  CCKS_INLINE void take(Found& f, const Packet (&q)[kKeyPackets], const Packet (&k)[2][kKeyPackets], const Packet (&v)[4][kValuePackets],
                        float scale, u32 first, u32 end, u32 j) {
    float score[4] = {};
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      const u32 at = s % 2 * 2, rows[4] = {k[0][s / 2].raw.word[at], k[1][s / 2].raw.word[at], k[0][s / 2].raw.word[at + 1], k[1][s / 2].raw.word[at + 1]};
      const u32 columns[2] = {q[s / 2].raw.word[at], q[s / 2].raw.word[at + 1]};
      lanes_.template multiply_wide<D>(score, rows, columns);
    }
    u32 weights[2];
    weigh(f, score, weights, scale, first, end, j);
    CCKS_UNROLL
    for (u32 t = 0; t < kEach / 2; ++t) {
      const u32 rows[4] = {halves(v[0], v[1], 2 * t), halves(v[0], v[1], 2 * t + 1), halves(v[2], v[3], 2 * t), halves(v[2], v[3], 2 * t + 1)};
      lanes_.template multiply_wide<D>(f.values[t], rows, weights);
    }
    const u32 one = lanes_.template pair<D>(1.0f, 1.0f), ones[4] = {one, one, one, one};
    lanes_.template multiply_wide<D>(f.sum, ones, weights);
  }
  /// Element t of both: of `a` in the low half.
  CCKS_INLINE u32 halves(const Packet (&a)[kValuePackets], const Packet (&b)[kValuePackets], u32 t) const {
    const u32 low = a[t / 8].raw.word[t % 8 / 2], high = b[t / 8].raw.word[t % 8 / 2];
    return t % 2 == 0 ? lanes_.low_halves(low, high) : lanes_.high_halves(low, high);
  }

  /// From scores to weights, as they go into the next product. At least one position of the turn is within [first, end).
  CCKS_INLINE void weigh(Found& f, float (&score)[4], u32 (&weights)[2], float scale, u32 first, u32 end, u32 j) {
    float top[2];
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 at = j + g_ + i / 2 * 8;
      score[i] = at >= first && at < end ? score[i] * scale : -f_infinity();
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) top[i] = f_larger(f_larger(score[i], score[2 + i]), f.top[i]);
    CCKS_UNROLL
    for (u32 step = 4; step < kWarp; step *= 2) {
      CCKS_UNROLL
      for (u32 i = 0; i < 2; ++i) top[i] = f_larger(top[i], lanes_.shuffle_xor(top[i], step));
    }
    if (f.sum[0] != 0) shrink(f, lanes_.power_of_two(f.top[0] - top[0]), lanes_.power_of_two(f.top[1] - top[1]));
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) f.top[i] = top[i];
    CCKS_UNROLL
    for (u32 h = 0; h < 2; ++h)
      weights[h] = lanes_.turn(lanes_.template pair<D>(lanes_.power_of_two(score[2 * h] - top[0]), lanes_.power_of_two(score[2 * h + 1] - top[1])));
  }
  static CCKS_INLINE void shrink(Found& f, float first, float second) {
    f.sum[0] *= first, f.sum[1] *= second;
    CCKS_UNROLL
    for (u32 t = 0; t < kEach / 2; ++t) f.values[t][0] *= first, f.values[t][1] *= second, f.values[t][2] *= first, f.values[t][3] *= second;
  }

  // ---- what warps and parts have found ----------------------------------------------------------------------------------

  CCKS_INLINE float* part(u32 index, u32 at) const {
    const OperandParams& p = operands_[4];
    return reinterpret_cast<float*>(p.offset) + (batch_ * static_cast<u32>(p.stride[0]) + index * static_cast<u32>(p.stride[1]) + at);
  }
  CCKS_INLINE u32 weights_at(u32 query) const { return static_cast<u32>(operands_[0].dim[3]) + 2 * (kv_ * group_ + query); }

  /// Parts have a value at least, so that their tops are finite.
  CCKS_INLINE void add_part(Found& f, u32 index) {
    Four<float> fours[2][kEach / kVector];
    float top[2], sum[2], share[2];
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 query = least(2 * c_ + i, group_ - 1);
      CCKS_UNROLL
      for (u32 n = 0; n < kEach / kVector; ++n) fours[i][n] = *reinterpret_cast<const Four<float>*>(part(index, column_of(query) + g_ * kEach) + n * kVector);
      const float* weights = part(index, weights_at(query));
      top[i] = weights[0];
      sum[i] = weights[1];
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const float both = f_larger(f.top[i], top[i]), left = lanes_.power_of_two(f.top[i] - both);
      f.top[i] = both;
      share[i] = lanes_.power_of_two(top[i] - both);
      f.sum[i] = f.sum[i] * left + sum[i] * share[i];
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) {
        float& value = f.values[e / 2][e % 2 * 2 + i];
        value = value * left + fours[i][e / kVector].v[e % kVector] * share[i];
      }
    }
  }

  /// Of all warps, to the result or to the tile's part.
  CCKS_INLINE void bring_together(const Found& f, bool last) {
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 query = 2 * c_ + i;
      if (query >= group_) break;
      CCKS_UNROLL
      for (u32 n = 0; n < kEach / kVector; ++n) {
        Four<float> four;
        CCKS_UNROLL
        for (u32 e = 0; e < kVector; ++e) four.v[e] = f.values[(n * kVector + e) / 2][e % 2 * 2 + i];
        *reinterpret_cast<Four<float>*>(sums_ + (warp_ * kQueries + query) * kPitch + g_ * kEach + n * kVector) = four;
      }
      if (g_ == 0) tops_[query * kWarps + warp_] = f.top[i], weights_[query * kWarps + warp_] = f.sum[i];
    }
    lanes_.sync();
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < group_ * kDims; o += Lanes::kLanes) put(o / kDims, o % kDims, last);
  }
  /// Of a query, for all warps.
  struct OfWarps {
    float v[kWarps];
    CCKS_INLINE explicit OfWarps(const float* from) {
      CCKS_UNROLL
      for (u32 i = 0; i < kWarps; i += kVector) {
        const Four<float> four = *reinterpret_cast<const Four<float>*>(from + i);
        CCKS_UNROLL
        for (u32 e = 0; e < kVector; ++e) v[i + e] = four.v[e];
      }
    }
  };
  CCKS_INLINE void put(u32 query, u32 dim, bool last) const {
    const OfWarps tops(tops_ + query * kWarps), added(weights_ + query * kWarps);
    float top = tops.v[0], value = 0, sum = 0;
    CCKS_UNROLL
    for (u32 w = 1; w < kWarps; ++w) top = f_larger(top, tops.v[w]);
    if constexpr (kPaged) top = f_larger(top, -1e38f);  // a row may have no position at all
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) {
      const float share = lanes_.power_of_two(tops.v[w] - top);
      sum += share * added.v[w];
      value += share * sums_[(w * kQueries + query) * kPitch + dim];
    }
    if (last) {
      const float share = kPaged && sum == 0 ? 0.0f : lanes_.inverse(sum);
      *reinterpret_cast<u16*>(address(kOut, column_of(query) + dim)) = static_cast<u16>(lanes_.template pair<D>(value * share, 0.0f));
    } else {
      *part(part_, column_of(query) + dim) = value;
      if (dim != 0) return;
      float* weights = part(part_, weights_at(query));
      weights[0] = top;
      weights[1] = sum;
    }
  }

  Lanes& lanes_;
  const OpParams& op_;
  const OperandParams* operands_;
  u32 warp_, g_, c_, group_, count_, kv_, batch_, part_;
  float *sums_, *tops_, *weights_;
};

template <u32 kDims, Dtype D, bool kPaged, class Lanes>
CCKS_OUTLINE void run_step_attention(Lanes& lanes, const NearOp* op, u32 tile) {
  StepAttention<kDims, D, kPaged, Lanes>(lanes, *lanes.nearby(op), tile).run();
}

/// Whether ops of these types have pages: six operands are also those of one whose context is split.
template <class Types>
inline constexpr bool kHasPages = false;
template <Dtype Q, Dtype K, Dtype V, Dtype Limits, Dtype Pages, Dtype Out>
inline constexpr bool kHasPages<FixedTypes<Q, K, V, Limits, Pages, Out>> = Limits == Dtype::i32 && Pages == Dtype::i32;

/// Whether a step's body may take ops of these types: of one that is known when the body is compiled, of two bytes.
template <class Types>
inline constexpr bool kStepTypes = false;
template <Dtype D, Dtype... kRest>
inline constexpr bool kStepTypes<FixedTypes<D, D, D, D, kRest...>> = D == Dtype::bf16 || D == Dtype::f16;
template <Dtype D>
inline constexpr bool kStepTypes<FixedTypes<D, D, D, Dtype::i32, Dtype::i32, D>> = D == Dtype::bf16 || D == Dtype::f16;

/// False: nothing is done.
template <class Lanes, class Types>
CCKS_INLINE bool step_attention(Lanes& lanes, const Call& call, u32 tile, const Types&) {
  if constexpr (MatrixLanes<Lanes> && NearLanes<Lanes> && kStepTypes<Types>) {
    constexpr Dtype kType = TypeOf<0, Types>::kDtype;
    const u32 dims = static_cast<u32>(call.op.dims[4]) >> 16;
    if (dims == 0) return false;
    const NearOp* op = near_op(lanes, call);
    if (dims == 64)
      run_step_attention<64, kType, kHasPages<Types>>(lanes, op, tile);
    else
      run_step_attention<128, kType, kHasPages<Types>>(lanes, op, tile);
    return true;
  }
  return false;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Steps of a relay (relay.cuh) that are attention of one row: a kv head's queries over a part of the context, on matrix units as in attention_step.hpp, but for who waits for whom. Queries
// and the newest position's key and value come as words; earlier positions lie in the caches, which no worker writes in the run.
//
// Parts. Who has part 0 brings together what the other parts have left as words: nobody counts who is last.
#pragma once

#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayAttention : RelayWords {
 public:
  using RelayWords::RelayWords;

  /// False: the worker leaves, and nothing is stored.
  template <u32 kDims>
  __device__ __forceinline__ bool attend(const wire::RelayStep& s) {
    const auto* op = reinterpret_cast<const wire::OpParams*>(s.block);
    const u32 count = static_cast<u32>(op->dims[4]) >> 8 & 0xff;
    if (s.part >= count) return true;
    const Caches<kDims> caches(*this, s, *op, count);
    u32 j = caches.begin + warp_ * kTurn;
    Turn<kDims> turn;
    if (j < caches.end) load(turn, caches, j);
    stage(s, kDims);
    mark_ready();
    sync();
    if (has_given_up()) return false;
    Found<kDims> found;
    uint4 query[kDims / 32];
    CCKS_UNROLL
    for (u32 i = 0; i < kDims / 32; ++i) query[i] = reinterpret_cast<const uint4*>(row_ + least(group_, u32{s.n} - 1) * kDims * 2 + part_ * (kDims / 2))[i];
    // The newest position is a turn of its own, of the warp that most often has none.
    bool newest = warp_ == kWarps - 1 && caches.has_newest;
    CCKS_NO_UNROLL
    while (j < caches.end || newest) {
      const bool here = j >= caches.end;
      if (here) load_newest(turn, s.n);
      take(found, turn, query, s.scale * kLog2e, here ? 1 : caches.end - j);
      if (here) break;
      j += kWarps * kTurn;
      if (j < caches.end) load(turn, caches, j);
    }
    leave(found, s.n);
    sync();
    return s.part != 0 ? give_part<kDims>(s, count) : bring_together<kDims>(s, count);
  }

 private:
  static constexpr u32 kTurn = 16;  // positions of a warp
  static constexpr u32 kWordsAtOnce = 8;  // of a lane
  static constexpr float kLog2e = 1.44269504f;

  /// Where earlier positions lie in this run, and which of them are this part's.
  template <u32 kDims>
  struct Caches {
    const u8 *keys, *values;  // of the kv head, at this lane's dims
    u32 key_row, value_row;   // bytes from one position to the next
    u32 begin, end;           // of those that lie there
    bool has_newest;          // this part has the position behind them too

    __device__ __forceinline__ Caches(const RelayAttention& lane, const wire::RelayStep& s, const wire::OpParams& op, u32 count) {
      const auto* operands = reinterpret_cast<const wire::OperandParams*>(&op + 1);
      const auto address = [&](const wire::OperandParams& o) {
        const u64 row = kWorkerRelayRows > 1 ? static_cast<u64>(o.stride[1]) * s.row_pitch * 2 : 0;
        return reinterpret_cast<const u8*>(o.offset + (o.space == static_cast<u8>(wire::Space::state) ? lane.frame_.state : 0)) + row + s.kv_head * kDims * 2;
      };
      keys = address(operands[1]) + lane.part_ * (kDims / 2);
      values = address(operands[2]) + lane.group_ * (kDims / 4);
      key_row = static_cast<u32>(operands[1].stride[2]) * 2;
      value_row = static_cast<u32>(operands[2].stride[2]) * 2;
      const u32 context = static_cast<u32>(operands[1].dim[2]), steps = (context + wire::kPartStep - 1) / wire::kPartStep;
      begin = s.part * steps / count * wire::kPartStep;
      end = least(context - 1, (s.part + 1) * steps / count * wire::kPartStep);
      has_newest = s.part + 1 == count;
    }
  };
  /// Of sixteen positions: keys at g and g + 8, a quarter of the dims; values at 2c, 2c + 1, 2c + 8 and 2c + 9, an eighth.
  template <u32 kDims>
  struct Turn {
    uint4 keys[2][kDims / 32];
    uint4 values[4][kDims / 64];
  };
  /// Of queries 2c and 2c + 1.
  template <u32 kDims>
  struct Found {
    float top[2];
    float sum[4];                // of weights; the last two of no use
    float values[kDims / 16][4];  // dims g * kDims / 8 + 2t of both queries, then the next dim

    // Not by initializers of members: their image would be loaded from memory, word by word (tests/ptx/check.py, images).
    __device__ __forceinline__ Found() {
      top[0] = top[1] = -f_infinity();
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) {
        sum[i] = 0;
        CCKS_UNROLL
        for (u32 d = 0; d < kDims / 16; ++d) values[d][i] = 0;
      }
    }
  };

  static __device__ __forceinline__ u32 value_position(u32 i, u32 part) { return i / 2 * 8 + 2 * part + i % 2; }

  /// Positions beyond the end are read at the last one: their weights are zero.
  template <u32 kDims>
  __device__ __forceinline__ void load(Turn<kDims>& t, const Caches<kDims>& c, u32 j) const {
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const uint4* from = reinterpret_cast<const uint4*>(c.keys + u64{least(j + 8 * i + group_, c.end - 1)} * c.key_row);
      CCKS_UNROLL
      for (u32 p = 0; p < kDims / 32; ++p) t.keys[i][p] = from[p];
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const uint4* from = reinterpret_cast<const uint4*>(c.values + u64{least(j + value_position(i, part_), c.end - 1)} * c.value_row);
      CCKS_UNROLL
      for (u32 p = 0; p < kDims / 64; ++p) t.values[i][p] = from[p];
    }
  }

  /// Queries, then the newest key and value, into scratch.
  __device__ __forceinline__ void stage(const wire::RelayStep& s, u32 dims) const {
    const u32 queries = s.n * dims / 2, all = queries + dims;
    CCKS_NO_UNROLL
    for (u32 i = threadIdx.x; i < all; i += kCudaLanes) {
      const u64 from = i < queries ? s.row + i * 8 : i < queries + dims / 2 ? s.columns + (i - queries) * 8 : s.beyond + (i - queries - dims / 2) * 8;
      const u64* word = reinterpret_cast<const u64*>(from);
      reinterpret_cast<u32*>(row_)[i] = await_word(word, ptx::ld_relaxed_gpu(word));
    }
  }

  /// From scratch: sixteen times the same.
  template <u32 kDims>
  __device__ __forceinline__ void load_newest(Turn<kDims>& t, u32 queries) const {
    const u8 *key = row_ + queries * kDims * 2 + part_ * (kDims / 2), *value = row_ + (queries + 1) * kDims * 2 + group_ * (kDims / 4);
    CCKS_UNROLL
    for (u32 p = 0; p < kDims / 32; ++p) t.keys[0][p] = t.keys[1][p] = reinterpret_cast<const uint4*>(key)[p];
    CCKS_UNROLL
    for (u32 p = 0; p < kDims / 64; ++p) t.values[0][p] = t.values[1][p] = t.values[2][p] = t.values[3][p] = reinterpret_cast<const uint4*>(value)[p];
  }

  /// A turn's first `count` positions.
  template <u32 kDims>
  __device__ __forceinline__ void take(Found<kDims>& f, const Turn<kDims>& t, const uint4 (&query)[kDims / 32], float scale, u32 count) const {
    float score[4] = {};
    CCKS_UNROLL
    for (u32 p = 0; p < kDims / 32; ++p) {
      const uint4 &a = t.keys[0][p], &b = t.keys[1][p], &q = query[p];
      ptx::mma_16x16x8_bf16(score, {a.x, b.x, a.y, b.y}, {q.x, q.y});
      ptx::mma_16x16x8_bf16(score, {a.z, b.z, a.w, b.w}, {q.z, q.w});
    }
    u32 weights[2];
    weigh(f, score, weights, scale, count);
    CCKS_UNROLL
    for (u32 d = 0; d < kDims / 16; ++d) {
      const u32 a = word_of(t.values[0], d), b = word_of(t.values[1], d), e = word_of(t.values[2], d), g = word_of(t.values[3], d);
      ptx::mma_16x16x8_bf16(f.values[d], {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(e, g, 0x5410), __byte_perm(e, g, 0x7632)}, weights);
    }
    constexpr u32 kOnes = 0x3f803f80u;
    ptx::mma_16x16x8_bf16(f.sum, {kOnes, kOnes, kOnes, kOnes}, weights);
  }
  template <u32 kPackets>
  static __device__ __forceinline__ u32 word_of(const uint4 (&v)[kPackets], u32 i) {
    const uint4& p = v[i / 4];
    return i % 4 == 0 ? p.x : i % 4 == 1 ? p.y : i % 4 == 2 ? p.z : p.w;
  }

  /// From scores to weights, as they go into the next product.
  template <u32 kDims>
  __device__ __forceinline__ void weigh(Found<kDims>& f, float (&score)[4], u32 (&weights)[2], float scale, u32 count) const {
    float top[2];
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) score[i] = group_ + i / 2 * 8 < count ? score[i] * scale : -f_infinity();
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) top[i] = fmaxf(fmaxf(score[i], score[2 + i]), f.top[i]);
    CCKS_UNROLL
    for (u32 step = 4; step < kWarpLanes; step *= 2) {
      CCKS_UNROLL
      for (u32 i = 0; i < 2; ++i) top[i] = fmaxf(top[i], __shfl_xor_sync(kFullWarp, top[i], step));
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const float left = ptx::ex2(f.top[i] - top[i]);
      f.top[i] = top[i];
      f.sum[i] *= left;
      CCKS_UNROLL
      for (u32 d = 0; d < kDims / 16; ++d) f.values[d][i] *= left, f.values[d][2 + i] *= left;
    }
    CCKS_UNROLL
    for (u32 h = 0; h < 2; ++h) weights[h] = ptx::movmatrix(ptx::cvt_bf16x2(ptx::ex2(score[2 * h] - top[0]), ptx::ex2(score[2 * h + 1] - top[1])));
  }

  // ---- what warps and parts have found ----------------------------------------------------------------------------------

  // Floats of a query from one warp to the next; behind queries, keys and values.
  template <u32 kDims>
  static __device__ __forceinline__ constexpr u32 pitch() { return kDims + 8; }
  template <u32 kDims>
  __device__ __forceinline__ float* values_of(u32 warp, u32 query, u32 queries) const {
    float* all = reinterpret_cast<float*>(row_ + (queries + 2) * kDims * 2);
    return all + (warp * queries + query) * pitch<kDims>();
  }
  template <u32 kDims>
  __device__ __forceinline__ void leave(const Found<kDims>& f, u32 queries) const {
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 query = 2 * part_ + i;
      if (query >= queries) break;
      float* to = values_of<kDims>(warp_, query, queries) + group_ * (kDims / 8);
      CCKS_UNROLL
      for (u32 d = 0; d < kDims / 16; ++d) to[2 * d] = f.values[d][i], to[2 * d + 1] = f.values[d][2 + i];
      if (group_ == 0) shared_.tops[query][warp_] = f.top[i], shared_.weights[query][warp_] = f.sum[i];
    }
  }
  /// Of one value of a query: over warps, and over parts.
  struct Share {
    float top = -f_infinity(), sum = 0, value = 0;
    __device__ __forceinline__ void add(float other_top, float other_sum, float other_value) {
      const float both = fmaxf(top, other_top), left = ptx::ex2(top - both), more = ptx::ex2(other_top - both);
      sum = sum * left + other_sum * more;
      value = value * left + other_value * more;
      top = both;
    }
  };
  /// What warps have of a query's value. At least one of them has a position.
  template <u32 kDims>
  __device__ __forceinline__ Share of_warps(u32 query, u32 dim, u32 queries) const {
    Share share;
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) share.top = fmaxf(share.top, shared_.tops[query][w]);
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) {
      const float more = ptx::ex2(shared_.tops[query][w] - share.top);
      share.sum = fmaf(shared_.weights[query][w], more, share.sum);
      share.value = fmaf(values_of<kDims>(w, query, queries)[dim], more, share.value);
    }
    return share;
  }
  /// Words of part `part`: of each query its values, its top and its sum.
  template <u32 kDims>
  static __device__ __forceinline__ u64* part_words(const wire::RelayStep& s, u32 part) {
    return reinterpret_cast<u64*>(s.norm) + part * wire::relay_part_words(s.n, kDims);
  }

  template <u32 kDims>
  __device__ __forceinline__ bool give_part(const wire::RelayStep& s, u32) const {
    CCKS_NO_UNROLL
    for (u32 o = threadIdx.x; o < s.n * kDims; o += kCudaLanes) {
      const Share share = of_warps<kDims>(o / kDims, o % kDims, s.n);
      u64* words = part_words<kDims>(s, s.part) + o / kDims * (kDims + 2);
      store_word(words + o % kDims, __float_as_uint(share.value));
      if (o % kDims == 0) store_word(words + kDims, __float_as_uint(share.top));
      if (o % kDims == 1) store_word(words + kDims + 1, __float_as_uint(share.sum));
    }
    sync();  // before the next step's row
    return true;
  }
  template <u32 kDims>
  __device__ __forceinline__ bool bring_together(const wire::RelayStep& s, u32 count) const {
    constexpr u32 kMost = wire::kMostRelayQueries * kDims / kCudaLanes;
    Share shares[kMost];
    CCKS_UNROLL
    for (u32 i = 0; i < kMost; ++i) {
      const u32 o = threadIdx.x + i * kCudaLanes;
      if (o < s.n * kDims) shares[i] = of_warps<kDims>(o / kDims, o % kDims, s.n);
    }
    // In the place of what warps have found: as many parts as that has room for.
    const u32 part_size = wire::relay_part_words(s.n, kDims), at_once = most(1u, least(kWarps, kWordsAtOnce * kCudaLanes / part_size));
    float* found = values_of<kDims>(0, 0, s.n);
    CCKS_NO_UNROLL
    for (u32 part = 1; part < count; part += at_once) {
      const u32 parts = least(at_once, count - part);
      sync();  // what lies there has been read
      fetch(found, part_words<kDims>(s, part), parts * part_size);
      sync();
      CCKS_UNROLL
      for (u32 i = 0; i < kMost; ++i) {
        const u32 o = threadIdx.x + i * kCudaLanes;
        if (o < s.n * kDims) add_parts<kDims>(shares[i], found + o / kDims * (kDims + 2), o % kDims, parts, part_size);
      }
    }
    sync();  // before the next step's row; and behind the last wait
    if (has_given_up()) return false;
    CCKS_UNROLL
    for (u32 i = 0; i < kMost; ++i) {
      const u32 o = threadIdx.x + i * kCudaLanes;
      if (o >= s.n * kDims) break;
      const float result = shares[i].value * ptx::rcp(shares[i].sum), next = __shfl_down_sync(kFullWarp, result, 1);
      if (s.words != 0 && o % 2 == 0) store_word(reinterpret_cast<u64*>(s.words) + o / 2, ptx::cvt_bf16x2(result, next));
      if (s.store != 0) reinterpret_cast<wire::u16*>(s.store)[o] = ptx::cvt_rn_bf16(result);
    }
    return true;
  }
  /// `count` words, kWordsAtOnce a lane at most, all asked for before the first is waited for.
  __device__ __forceinline__ void fetch(float* to, const u64* words, u32 count) const {
    u64 w[kWordsAtOnce];
    CCKS_UNROLL
    for (u32 i = 0; i < kWordsAtOnce; ++i) {
      const u32 at = threadIdx.x + i * kCudaLanes;
      w[i] = at < count ? ptx::ld_relaxed_gpu(words + at) : wire::tagged_value(0, tag_);
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kWordsAtOnce; ++i) {
      const u32 at = threadIdx.x + i * kCudaLanes;
      const u32 value = await_word(words + at, w[i]);
      if (at < count) to[at] = __uint_as_float(value);
    }
  }
  template <u32 kDims>
  static __device__ __forceinline__ void add_parts(Share& share, const float* query, u32 dim, u32 parts, u32 part_size) {
    CCKS_NO_UNROLL
    for (u32 part = 0; part < parts; ++part, query += part_size) share.add(query[kDims], query[kDims + 1], query[dim]);
  }
};

/// Not inlined: products, of which there are many for each of these, are to have the registers to themselves.
template <u32 kDims>
__device__ __noinline__ bool attend(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag, const wire::RelayStep& step) {
  return RelayAttention(memory, frame, tag).attend<kDims>(step);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// attention where lanes run in warps and heads lie in vectors. Warps share out the context, lanes of a warp positions and eight
// dims of each; a vector of keys or values serves up to kQueries queries, which are rows and heads of one kv head. Every lane
// takes its own softmax along; what lanes and warps have found is brought together at the end.
#pragma once

#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <u32 kQueries, class Lanes, class Task>
class WarpAttention {
 public:
  static constexpr u32 kEach = 8, kSteps = 4, kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  static constexpr u32 kMostDims = 256;
  static_assert(kWarps * kQueries * (kMostDims + 2) * sizeof(float) <= kMinScratchBytes);

  CCKS_INLINE WarpAttention(Lanes& lanes, const Task& task)
      : lanes_(lanes), t_(task), dims_(static_cast<u32>(task.head_dim)), parts_(dims_ / kEach),
        part_(lanes.lane() & (parts_ - 1)), slot_(lanes.lane() % kWarp / parts_), slots_(kWarp / parts_),
        warp_(lanes.lane() / kWarp) {
    sums_ = reinterpret_cast<float*>(lanes.scratch());
    weights_ = sums_ + kWarps * kQueries * dims_;
  }

  CCKS_INLINE void run() {
    const i32 first = t_.box.lo[3] / t_.head_dim, end = first + t_.box.size[3] / t_.head_dim;
    bool again = false;
    for (i32 c0 = t_.box.lo[0]; c0 < t_.box.lo[0] + t_.box.size[0]; ++c0)
      for (i32 c1 = t_.box.lo[1]; c1 < t_.box.lo[1] + t_.box.size[1]; ++c1)
        for (i32 head = first; head < end;) {
          const i32 kv = head / t_.group, heads = least(end, (kv + 1) * t_.group) - head;
          const u32 queries = static_cast<u32>(t_.box.size[2] * heads);
          for (u32 at = 0; at < queries; at += kQueries) {
            if (again) lanes_.sync();  // what was brought together before has been read
            again = true;
            share({c0, c1, kv, head, static_cast<u32>(heads), at, queries});
          }
          head += heads;
        }
  }

 private:
  /// Queries [at, at + kQueries) of those that rows and heads of the tile make, the last one again beyond the end.
  struct Chunk {
    i32 c0, c1, kv, head;
    u32 heads, at, queries;
  };
  CCKS_INLINE i32 row_of(const Chunk& chunk, u32 i) const {
    return t_.box.lo[2] + static_cast<i32>(least(chunk.at + i, chunk.queries - 1) / chunk.heads);
  }
  CCKS_INLINE i32 column_of(const Chunk& chunk, u32 i) const {
    return (chunk.head + static_cast<i32>(least(chunk.at + i, chunk.queries - 1) % chunk.heads)) * t_.head_dim;
  }

  struct Found {
    float top[kQueries], sum[kQueries], values[kQueries][kEach];
  };

  CCKS_INLINE void share(const Chunk& chunk) {
    float q[kQueries][kEach];
    u32 first[kQueries], seen[kQueries], all_first = 0xffffffffu, all_seen = 0;
    Found f;
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      Eight<decltype(t_.q.type)> eight;
      eight.load(t_.q.type, t_.q.at(chunk.c0, chunk.c1, row_of(chunk, i), column_of(chunk, i) + static_cast<i32>(part_ * kEach)));
      eight.unpack(q[i]);
      first[i] = t_.first(row_of(chunk, i));
      seen[i] = t_.seen(row_of(chunk, i));
      all_first = least(all_first, first[i]);
      all_seen = most(all_seen, seen[i]);
      f.top[i] = -f_infinity();
      f.sum[i] = 0;
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) q[i][e] *= t_.scale, f.values[i][e] = 0;
    }
    const i32 column = chunk.kv * t_.head_dim + static_cast<i32>(part_ * kEach);
    const u8* keys = t_.k.at(chunk.c0, chunk.c1, 0, column);
    const u8* values = t_.v.at(chunk.c0, chunk.c1, 0, column);
    CCKS_NO_UNROLL
    for (u32 j = all_first + warp_ * slots_ * kSteps; j < all_seen; j += kWarps * slots_ * kSteps) positions(f, q, first, seen, all_seen, keys, values, j);
    gather_lanes(f);
    keep(f);
    lanes_.sync();
    finish(chunk);
  }

  /// Positions j + slot_, j + slot_ + slots_, ...: kSteps of them.
  CCKS_INLINE void positions(Found& f, const float (&q)[kQueries][kEach], const u32 (&first)[kQueries], const u32 (&seen)[kQueries],
                             u32 all_seen, const u8* keys, const u8* values, u32 j) {
    Eight<decltype(t_.k.type)> k[kSteps];
    Eight<decltype(t_.v.type)> v[kSteps];
    const i64 key_row = t_.k.stride[2] * bytes_of(t_.k.type), value_row = t_.v.stride[2] * bytes_of(t_.v.type);
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      const u32 at = j + s * slots_ + slot_;
      if (at >= all_seen) continue;
      k[s].load(t_.k.type, keys + at * key_row);
      v[s].load(t_.v.type, values + at * value_row);
    }
    float score[kQueries][kSteps];
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      float row[kEach];
      k[s].unpack(row);
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        score[i][s] = 0;
        CCKS_UNROLL
        for (u32 e = 0; e < kEach; ++e) score[i][s] += q[i][e] * row[e];
      }
    }
    CCKS_NO_UNROLL
    for (u32 step = 1; step < parts_; step *= 2) {
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        CCKS_UNROLL
        for (u32 s = 0; s < kSteps; ++s) score[i][s] += lanes_.shuffle_xor(score[i][s], step);
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      float top = f.top[i];
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        const u32 at = j + s * slots_ + slot_;
        if (at < first[i] || at >= seen[i]) score[i][s] = -f_infinity();
        top = most(top, score[i][s]);
      }
      const float from = top == -f_infinity() ? 0.0f : top;
      const float shrink = f_exp(f.top[i] - from);
      f.top[i] = top;
      f.sum[i] *= shrink;
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) f.values[i][e] *= shrink;
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) f.sum[i] += score[i][s] = f_exp(score[i][s] - from);
    }
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      float row[kEach];
      v[s].unpack(row);
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        CCKS_UNROLL
        for (u32 e = 0; e < kEach; ++e) f.values[i][e] += score[i][s] * row[e];
      }
    }
  }

  /// Lanes with the same dims have looked at different positions.
  CCKS_INLINE void gather_lanes(Found& f) {
    CCKS_NO_UNROLL
    for (u32 step = parts_; step < kWarp; step *= 2) {
      CCKS_UNROLL
      for (u32 i = 0; i < kQueries; ++i) {
        const float other = lanes_.shuffle_xor(f.top[i], step), top = most(f.top[i], other);
        const float shrink = f_exp(f.top[i] - (top == -f_infinity() ? 0.0f : top));
        f.top[i] = top;
        f.sum[i] *= shrink;
        f.sum[i] += lanes_.shuffle_xor(f.sum[i], step);
        CCKS_UNROLL
        for (u32 e = 0; e < kEach; ++e) {
          f.values[i][e] *= shrink;
          f.values[i][e] += lanes_.shuffle_xor(f.values[i][e], step);
        }
      }
    }
  }

  /// [warp][query][dim]; top and sum of each warp and query.
  CCKS_INLINE void keep(const Found& f) {
    if (slot_ != 0) return;
    CCKS_UNROLL
    for (u32 i = 0; i < kQueries; ++i) {
      const u32 at = warp_ * kQueries + i;
      CCKS_UNROLL
      for (u32 e = 0; e < kEach; ++e) sums_[at * dims_ + part_ * kEach + e] = f.values[i][e];
      if (part_ == 0) weights_[2 * at] = f.top[i], weights_[2 * at + 1] = f.sum[i];
    }
  }

  CCKS_INLINE void finish(const Chunk& chunk) const {
    const u32 shift = log2_of(dims_);
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < kQueries << shift; o += Lanes::kLanes) {
      const u32 i = o >> shift, d = o & (dims_ - 1);
      if (chunk.at + i >= chunk.queries) break;
      float top = -f_infinity(), sum = 0, value = 0;
      CCKS_UNROLL
      for (u32 w = 0; w < kWarps; ++w) top = most(top, weights_[2 * (w * kQueries + i)]);
      const float from = top == -f_infinity() ? 0.0f : top;
      CCKS_UNROLL
      for (u32 w = 0; w < kWarps; ++w) {
        const u32 at = w * kQueries + i;
        const float share = f_exp(weights_[2 * at] - from);
        sum += share * weights_[2 * at + 1];
        value += share * sums_[at * dims_ + d];
      }
      t_.put(chunk.c0, chunk.c1, row_of(chunk, i), column_of(chunk, i), d, value, sum);
      if (d == 0) t_.put_weights(chunk.c1, row_of(chunk, i), column_of(chunk, i) / t_.head_dim, top, sum);
    }
  }

  Lanes& lanes_;
  const Task& t_;
  u32 dims_, parts_, part_, slot_, slots_, warp_;
  float* sums_;
  float* weights_;
};

template <u32 kQueries, class Lanes, class Task>
CCKS_OUTLINE void run_warp_attention(Lanes& lanes, const Task& task) {
  WarpAttention<kQueries, Lanes, Task>(lanes, task).run();
}

/// False: nothing is done.
template <class Lanes, class Task>
CCKS_INLINE bool warp_attention(Lanes& lanes, const Task& task) {
  const u32 dims = static_cast<u32>(task.head_dim);
  if (dims < 8 || dims > 256 || (dims & (dims - 1)) != 0) return false;
  if (!in_eights(task.q) || !in_eights(task.k) || !in_eights(task.v)) return false;
  if (task.box.size[2] * task.group > 1 && task.limits.data == nullptr)  // rows with limits share nothing: what one does not look at may hold anything
    run_warp_attention<4>(lanes, task);
  else
    run_warp_attention<1>(lanes, task);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

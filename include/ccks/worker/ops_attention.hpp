// attention: softmax(q k^T * scale) v with the softmax taken along as the context is walked in blocks, so that no row
// of scores is ever whole in memory. Grouped heads: query head h reads kv head h / (heads / kv heads).
#pragma once

#include "ccks/worker/attention_group.hpp"
#include "ccks/worker/attention_queries.hpp"
#include "ccks/worker/attention_split.hpp"
#include "ccks/worker/attention_step.hpp"
#include "ccks/worker/attention_thin.hpp"
#include "ccks/worker/attention_warps.hpp"
#include "ccks/worker/ops_map.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Input 3, where there is one: i32 [n, 2], the positions [begin, end) that each row attends to. Those outside the context do not exist.
struct RowLimits {
  const u8* data = nullptr;
  i64 row = 0, column = 0;  // bytes

  CCKS_INLINE i32 begin(i32 i) const { return *reinterpret_cast<const i32*>(data + i * row); }
  CCKS_INLINE i32 end(i32 i) const { return *reinterpret_cast<const i32*>(data + i * row + column); }
};

/// k and v are one context for all rows.
struct OneContext {
  static constexpr bool kPaged = false;
};
/// Input 4: pages of each row, kPageDim positions each.
struct RowPages {
  static constexpr bool kPaged = true;
  const u8* data;
  i64 row, column;  // bytes
  u32 page;         // positions
  u32 count;        // pages that k and v have whole

  /// The row of k and v where position `j` of row `i` lies, those behind it on its page following; negative: there is no such page.
  CCKS_INLINE i32 at(i32 i, u32 j) const {
    const i32 number = *reinterpret_cast<const i32*>(data + i * row + (j / page) * column);
    return number < 0 || static_cast<u32>(number) >= count ? -1 : static_cast<i32>(static_cast<u32>(number) * page + j % page);
  }
  /// Positions from `j` on that follow each other in memory.
  CCKS_INLINE u32 run(u32 j) const { return page - j % page; }
};

template <u32 kOut>
struct PagesOf {
  using Type = OneContext;
};
template <>
struct PagesOf<5> {
  using Type = RowPages;
};

template <class Q, class K, class V, class Out, class Pages = OneContext>
struct AttentionTask {
  static constexpr bool kPaged = Pages::kPaged;
  View<Q> q;
  View<K> k;
  View<V> v;
  View<Out> out;
  Box box;
  i32 head_dim, group, context;
  bool causal;
  float scale;
  ContextPart part = {};
  AttentionParts parts = {};
  RowLimits limits = {};
  Pages pages = {};

  /// Where what row `i` attends to ends.
  CCKS_INLINE u32 reach(i32 i) const {
    if (!causal) return static_cast<u32>(context);
    return static_cast<u32>(most(0, least(context, i + 1 + context - q.dim[2])));
  }
  /// Positions [first(i), seen(i)) are those of row `i` in this tile; none where that is empty.
  CCKS_INLINE u32 first(i32 i) const { return limits.data == nullptr ? part.begin : static_cast<u32>(most(0, limits.begin(i))); }
  CCKS_INLINE u32 seen(i32 i) const {
    const u32 end = least(reach(i), part.end);
    return limits.data == nullptr ? end : least(end, static_cast<u32>(most(0, limits.end(i))));
  }

  /// Dim `d` of a head that begins at column `c3`, found with weights that add up to `sum`.
  CCKS_INLINE void put(i32 c0, i32 c1, i32 row, i32 c3, u32 d, float value, float sum) const {
    if (part.count > 1)
      parts.values(c1, part.index, row)[c3 + static_cast<i32>(d)] = value;
    else
      store_float(out.type, out.at(c0, c1, row, c3), static_cast<i64>(d) * out.stride[3], sum == 0 ? 0.0f : value / sum);
  }
  /// What those weights are relative to; once for each row and head.
  CCKS_INLINE void put_weights(i32 c1, i32 row, i32 head, float top, float sum) const {
    if (part.count <= 1) return;
    float* to = parts.weights(c1, part.index, row, q.dim[3]) + head * 2;
    to[0] = top;
    to[1] = sum;
  }
};

/// Any number of lanes: one row of one head at a time; lanes share out first the positions, then the head's dims.
template <class Lanes, class Task>
class PortableAttention {
 public:
  static constexpr u32 kBlock = 1024;
  CCKS_INLINE PortableAttention(Lanes& lanes, const Task& task) : lanes_(lanes), t_(task) {
    Scratch scratch = scratch_of(lanes);
    scores_ = scratch.take<float>(kBlock);
    q_ = scratch.take<float>(static_cast<u32>(t_.head_dim));
    acc_ = scratch.take<float>(static_cast<u32>(t_.head_dim));
  }
  CCKS_INLINE bool fits() const { return acc_ != nullptr; }

  CCKS_INLINE void run() {
    for (u32 r = 0; r < t_.box.rows(); ++r) {
      i32 c[4];
      t_.box.row_start(r, c);
      for (; c[3] < t_.box.lo[3] + t_.box.size[3]; c[3] += t_.head_dim) row(c);
    }
  }

 private:
  CCKS_INLINE void row(const i32 (&c)[4]) {
    const u32 dims = static_cast<u32>(t_.head_dim), seen = t_.seen(c[2]), first = t_.first(c[2]);
    lanes_.sync();  // the row before is done with q_ and acc_
    for (u32 d = lanes_.lane(); d < dims; d += lanes_.lanes()) {
      q_[d] = load_float(t_.q.type, t_.q.at(c), d * t_.q.stride[3]) * t_.scale;
      acc_[d] = 0;
    }
    lanes_.sync();
    const i32 kv_at = c[3] / t_.head_dim / t_.group * t_.head_dim;
    float top = -f_infinity(), sum = 0;
    if constexpr (Task::kPaged) {
      for (u32 j = first, n; j < seen; j += n) {
        n = least(least(kBlock, t_.pages.run(j)), seen - j);
        const i32 at = t_.pages.at(c[2], j);
        if (at >= 0) block(c, kv_at, static_cast<u32>(at), n, top, sum);
      }
    } else {
      for (u32 j0 = first; j0 < seen; j0 += kBlock) block(c, kv_at, j0, least(kBlock, seen - j0), top, sum);
    }
    for (u32 d = lanes_.lane(); d < dims; d += lanes_.lanes()) t_.put(c[0], c[1], c[2], c[3], d, acc_[d], sum);
    if (lanes_.lane() == 0) t_.put_weights(c[1], c[2], c[3] / t_.head_dim, top, sum);
  }

  CCKS_INLINE float score(const u8* k) const {
    float s = 0;
    for (u32 d = 0; d < static_cast<u32>(t_.head_dim); ++d) s += q_[d] * load_float(t_.k.type, k, d * t_.k.stride[3]);
    return s;
  }

  CCKS_INLINE void block(const i32 (&c)[4], i32 kv_at, u32 j0, u32 n, float& top, float& sum) {
    float mine = -f_infinity();
    for (u32 j = lanes_.lane(); j < n; j += lanes_.lanes()) {
      scores_[j] = score(t_.k.at(c[0], c[1], static_cast<i32>(j0 + j), kv_at));
      mine = most(mine, scores_[j]);
    }
    const float new_top = most(top, lanes_.max(mine));
    const float shrink = f_exp(top - new_top);
    float part = 0;
    for (u32 j = lanes_.lane(); j < n; j += lanes_.lanes()) {
      scores_[j] = f_exp(scores_[j] - new_top);
      part += scores_[j];
    }
    sum = sum * shrink + lanes_.sum(part);
    top = new_top;
    lanes_.sync();
    const u8* v = t_.v.at(c[0], c[1], static_cast<i32>(j0), kv_at);
    for (u32 d = lanes_.lane(); d < static_cast<u32>(t_.head_dim); d += lanes_.lanes()) {
      float a = acc_[d] * shrink;
      for (u32 j = 0; j < n; ++j) a += scores_[j] * load_float(t_.v.type, v, j * t_.v.stride[2] + d * t_.v.stride[3]);
      acc_[d] = a;
    }
    lanes_.sync();
  }

  Lanes& lanes_;
  const Task& t_;
  float* scores_ = nullptr;
  float* q_ = nullptr;
  float* acc_ = nullptr;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

#if CCKS_HOST_BODIES
#include "ccks/worker/attention_host.hpp"
#endif

namespace ccks::worker {
inline namespace CCKS_ISA {

/// One tile, or its part of the context.
template <class Lanes, class Task>
CCKS_INLINE FaultCode attend(Lanes& lanes, const Task& task) {
#if CCKS_HOST_BODIES
  if constexpr (Lanes::kSingleLane) {
    if (task.part.count <= 1 && host_attention(scratch_of(lanes), task)) return FaultCode::none;
  }
#endif
  if constexpr (WarpLanes<Lanes> && !Task::kPaged) {
    if (thin_attention(lanes, task) || warp_attention(lanes, task)) return FaultCode::none;
  }
  PortableAttention portable(lanes, task);
  if (!portable.fits()) return FaultCode::op_fault;
  portable.run();
  return FaultCode::none;
}

/// Outputs 1 and 2 are where parts go, and how many of them have.
template <class Lanes, class Types, class Task>
CCKS_INLINE FaultCode attend_part(Lanes& lanes, const Call& call, const Types& types, Task& task, u32 tile) {
  const auto parts = view_of<4>(call, types);
  const auto arrived = view_of<5>(call, types);
  const i32 rows = task.box.size[2];
  if (task.q.dim[2] > parts.dim[2] || bytes_of(parts.type) != sizeof(float)) return FaultCode::bad_op;
  task.part = context_part(rows == 0 ? 0 : task.reach(task.box.lo[2] + rows - 1), static_cast<u32>(call.op.dims[3]),
                           static_cast<u32>(task.box.lo[0]));
  task.box.lo[0] = 0;
  if (task.part.index >= task.part.count) return FaultCode::none;
  task.parts = {reinterpret_cast<float*>(parts.data), {parts.stride[0], parts.stride[1], parts.stride[2]}};
  const FaultCode fault = attend(lanes, task);
  if (fault != FaultCode::none || task.part.count == 1) return fault;
  i32 c[4];
  tile_coordinates(call.op, tile, c);
  u32* word = reinterpret_cast<u32*>(arrived.data) + c[1] * call.op.grid[3] + c[3];
  if (last_to_arrive(lanes, word, task.part.count, reinterpret_cast<u32*>(lanes.scratch()))) merge_parts(lanes, task);
  return FaultCode::none;
}

/// kOut: the operand that is output 0; 4 where rows have limits of their own, 5 where they have pages too.
template <u32 kOut, class Lanes, class Types>
CCKS_INLINE FaultCode run_attention_into(Lanes& lanes, const Call& call, u32 tile) {
  const Types types = types_of<Types>(call);
  const auto q = view_of<0>(call, types);
  const auto k = view_of<1>(call, types);
  const auto v = view_of<2>(call, types);
  const auto out = view_of<kOut>(call, types);
  const i32 heads = most(call.op.dims[0], 1), kv_heads = most(call.op.dims[1], 1), chunks = most(call.op.dims[3], 1);
  const i32 space[4] = {most(out.dim[0], chunks), out.dim[1], out.dim[2], out.dim[3]};
  AttentionTask<decltype(q.type), decltype(k.type), decltype(v.type), decltype(out.type), typename PagesOf<kOut>::Type> task{
      q,
      k,
      v,
      out,
      tile_box(call.op, tile, space),
      q.dim[3] / heads,
      most(heads / kv_heads, 1),
      k.dim[2],
      call.op.dims[2] != 0,
      call.op.scalars[0]};
  task.part.end = static_cast<u32>(k.dim[2]);
  if constexpr (kOut >= 4) {
    constexpr i64 kBytes = sizeof(i32);
    const auto limits = view_of<3>(call, types);
    if (bytes_of(limits.type) != kBytes || limits.dim[2] != q.dim[2]) return FaultCode::bad_op;
    task.limits = {limits.data, limits.stride[2] * kBytes, limits.stride[3] * kBytes};
    if constexpr (kOut == 5) {
      const auto pages = view_of<4>(call, types);
      const i32 page = call.op.dims[wire::kPageDim];
      if (bytes_of(pages.type) != kBytes || pages.dim[2] != q.dim[2] || page <= 0 || task.causal) return FaultCode::bad_op;
      task.pages = {pages.data, pages.stride[2] * kBytes, pages.stride[3] * kBytes, static_cast<u32>(page), static_cast<u32>(k.dim[2] / page)};
      task.context = pages.dim[3] * page;
      task.part.end = static_cast<u32>(task.context);
    }
    return chunks == 1 ? attend(lanes, task) : FaultCode::bad_op;
  } else {
    if (chunks == 1) return attend(lanes, task);
    if constexpr (Types::kCount == 0 || Types::kCount == 6) return attend_part(lanes, call, types, task, tile);
    return FaultCode::bad_op;
  }
}

/// Any op. Its code stands apart from what a decode step runs.
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode run_any_attention(Lanes& lanes, const Call& call, u32 tile) {
  if constexpr (Types::kCount == 0)
    return call.op.input_count == 5   ? run_attention_into<5, Lanes, Types>(lanes, call, tile)
           : call.op.input_count == 4 ? run_attention_into<4, Lanes, Types>(lanes, call, tile)
                                      : run_attention_into<3, Lanes, Types>(lanes, call, tile);
  else
    return run_attention_into<kHasPages<Types> ? 5 : Types::kCount == 5 ? 4 : 3, Lanes, Types>(lanes, call, tile);
}

/// What is no decode step's.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_longer_attention(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (Types::kCount == 5) {  // rows with limits
    if (grouped_attention<4, Lanes, Types>(lanes, call, tile)) return FaultCode::none;
  } else if constexpr (Types::kCount == 4) {
    if (grouped_attention<3, Lanes, Types>(lanes, call, tile)) return FaultCode::none;
  }
  if (query_attention(lanes, call, tile, types)) return FaultCode::none;
  return run_any_attention<Lanes, Types>(lanes, call, tile);
}
template <class Lanes, class Types>
CCKS_OUTLINE FaultCode run_attention_apart(Lanes& lanes, const Call& call, u32 tile) {
  return run_longer_attention(lanes, call, tile, Types{});
}

/// A function saves all registers that any of its ways wants, whichever it goes, so what near_attention does not take stands apart. With the others inlined a step's tile stored and loaded 55 words a lane. Where
/// weights stream, that is; without, walks of many rows have a convention of their own (linked_walks.hpp), which a function between would undo.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_attention(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (Types::kCount != 5) {
    if (step_attention(lanes, call, tile, types)) return FaultCode::none;
  } else if constexpr (NearLanes<Lanes>) {
    if (near_attention<Lanes, Types>(lanes, call.op, tile)) return FaultCode::none;
  }
  if constexpr ((StreamLanes<Lanes> && kStepTypes<Types>) || (NearLanes<Lanes> && Types::kCount == 5))
    return run_attention_apart<Lanes, Types>(lanes, call, tile);
  else
    return run_longer_attention(lanes, call, tile, types);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

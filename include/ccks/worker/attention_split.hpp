// attention whose context is split over tiles: each finds the softmax of its part, as far as there is one; whoever is the last of
// those that have one puts them together. Nobody waits. How many parts a context has is found here, for it grows from run to
// run, while the number of tiles stays.
//
// Such an op has dims[3] > 0, and counts these tiles along dim 0 of its tile space. It has two more outputs that nobody else reads: parts
// [batch, chunks, rows, columns + 2 heads] f32, and arrivals, i32, zero before the run, one for each batch and tile of heads.
#pragma once

#include "ccks/worker/call.hpp"
#include "ccks/worker/math.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

using wire::kPartStep;

/// Positions [begin, end) of a context that is cut into `count` parts; a tile with index >= count has none.
struct ContextPart {
  u32 begin = 0, end = 0, index = 0, count = 1;
};
CCKS_INLINE ContextPart context_part(u32 context, u32 most_parts, u32 index) {
  const u32 count = wire::part_count(context, most_parts), steps = ceil_div(context, kPartStep);
  if (index >= count) return {0, 0, index, count};
  const u32 begin = index * steps / count * kPartStep, end = (index + 1) * steps / count * kPartStep;
  return {begin, least(end, context), index, count};
}

/// Output 1: [batch][part][row][columns of q, then top and sum of weights of each head], f32, columns without gaps.
struct AttentionParts {
  float* data = nullptr;
  i64 stride[3] = {};

  CCKS_INLINE float* values(i32 batch, u32 part, i32 row) const {
    return data + batch * stride[0] + static_cast<i64>(part) * stride[1] + row * stride[2];
  }
  CCKS_INLINE float* weights(i32 batch, u32 part, i32 row, i32 columns) const { return values(batch, part, row) + columns; }
};

/// Every lane calls it when its stores are done. True on all lanes of one of `count` callers: it sees what all have stored. `told` is
/// a word of scratch that keeps its value until lanes next meet.
/// Roles     word   counts the callers; zero before the run
template <class Lanes>
CCKS_INLINE bool last_to_arrive(Lanes& lanes, u32* word, u32 count, u32* told) {
  lanes.sync();
  // [AP1] release, [AP2] acquire, in one; the barriers order the other lanes' accesses with it.
  if (lanes.lane() == 0) *told = lanes.count_in(word);
  lanes.sync();
  return *told + 1 == count;
}

/// One element of the result.
template <class Task>
CCKS_INLINE void merge_element(const Task& t, i32 c0, i32 c1, i32 row, i32 c3) {
  constexpr u32 kAtOnce = 4;  // loads under way together
  const i32 head = c3 / t.head_dim, columns = t.q.dim[3];
  float top = -f_infinity(), sum = 0, value = 0;
  CCKS_NO_UNROLL
  for (u32 first = 0; first < t.part.count; first += kAtOnce) {
    float tops[kAtOnce], sums[kAtOnce], values[kAtOnce], new_top = top;
    CCKS_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const u32 at = least(first + i, t.part.count - 1);
      const float* weights = t.parts.weights(c1, at, row, columns) + 2 * head;
      tops[i] = first + i < t.part.count ? weights[0] : -f_infinity();
      sums[i] = weights[1];
      values[i] = t.parts.values(c1, at, row)[c3];
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) new_top = most(new_top, tops[i]);
    const float from = new_top == -f_infinity() ? 0.0f : new_top, shrink = f_exp(top - from);
    top = new_top;
    sum *= shrink;
    value *= shrink;
    CCKS_UNROLL
    for (u32 i = 0; i < kAtOnce; ++i) {
      const float share = f_exp(tops[i] - from);
      sum += share * sums[i];
      value += share * values[i];
    }
  }
  store_float(t.out.type, t.out.at(c0, c1, row, c3), 0, sum == 0 ? 0.0f : value / sum);
}

template <class Lanes, class Task>
CCKS_OUTLINE void merge_parts(Lanes& lanes, const Task& t) {
  const u32 columns = static_cast<u32>(t.box.size[3]), all = t.box.rows() * columns;
  CCKS_NO_UNROLL
  for (u32 o = lanes.lane(); o < all; o += lanes.lanes()) {
    i32 c[4];
    const u32 row = o / columns;
    t.box.row_start(row, c);
    merge_element(t, c[0], c[1], c[2], c[3] + static_cast<i32>(o - row * columns));
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// attention on one lane. The rows of all query heads that share a kv head walk the context together, a block at a time,
// so that each block of k and v is read and converted once; two rows at a time share the loads of a block.
#pragma once

#include "ccks/worker/gemm_host.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// One row of one head under way.
struct AttentionRow {
  float *q, *acc, *p;  // [head_dim], [head_dim], [kContextBlock]
  float top, sum;
  u32 first, seen;
  u8* out;
};

/// Rows of k or v as f32.
struct ContextBlock {
  const float* data;
  i64 stride;
};

inline constexpr u32 kContextBlock = 64;

CCKS_INLINE float sum_lanes(FloatVector v) {
  float s = 0;
  for (u32 i = 0; i < kVectorFloats; ++i) s += v[i];
  return s;
}

/// p[j] = q . k[j] for kRows rows, four positions at a time.
template <u32 kRows, u32 kPositions>
CCKS_INLINE void score_positions(AttentionRow* const (&row)[kRows], const ContextBlock& k, u32 dims, u32 j) {
  FloatVector acc[kRows][kPositions];
#pragma GCC unroll 4
  for (u32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (u32 p = 0; p < kPositions; ++p) acc[r][p] = FloatVector{};
  const float* from = k.data + j * k.stride;
  u32 d = 0;
  for (; d + kVectorFloats <= dims; d += kVectorFloats) {
    FloatVector q[kRows];
#pragma GCC unroll 4
    for (u32 r = 0; r < kRows; ++r) q[r] = *reinterpret_cast<const FloatVector*>(row[r]->q + d);
#pragma GCC unroll 4
    for (u32 p = 0; p < kPositions; ++p) {
      const FloatVector b = *reinterpret_cast<const FloatVector*>(from + p * k.stride + d);
#pragma GCC unroll 4
      for (u32 r = 0; r < kRows; ++r) acc[r][p] += q[r] * b;
    }
  }
  for (u32 r = 0; r < kRows; ++r)
    for (u32 p = 0; p < kPositions; ++p) {
      float s = sum_lanes(acc[r][p]);
      for (u32 e = d; e < dims; ++e) s += row[r]->q[e] * from[p * k.stride + e];
      row[r]->p[j + p] = s;
    }
}
template <u32 kRows>
CCKS_INLINE void scores(AttentionRow* const (&row)[kRows], const ContextBlock& k, u32 dims, u32 begin, u32 end) {
  u32 j = begin;
  for (; j + 4 <= end; j += 4) score_positions<kRows, 4>(row, k, dims, j);
  for (; j < end; ++j) score_positions<kRows, 1>(row, k, dims, j);
}

/// acc += sum of p[j] * v[j] over [begin, end); kVectors vectors of each row stay in registers.
template <u32 kRows, u32 kVectors>
CCKS_INLINE void add_values_at(AttentionRow* const (&row)[kRows], const ContextBlock& v, u32 d, u32 begin, u32 end) {
  FloatVector acc[kRows][kVectors];
#pragma GCC unroll 4
  for (u32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (u32 i = 0; i < kVectors; ++i)
      acc[r][i] = *reinterpret_cast<const FloatVector*>(row[r]->acc + d + i * kVectorFloats);
  for (u32 j = begin; j < end; ++j) {
    const float* from = v.data + j * v.stride + d;
#pragma GCC unroll 4
    for (u32 i = 0; i < kVectors; ++i) {
      const FloatVector b = *reinterpret_cast<const FloatVector*>(from + i * kVectorFloats);
#pragma GCC unroll 4
      for (u32 r = 0; r < kRows; ++r) acc[r][i] += b * row[r]->p[j];
    }
  }
#pragma GCC unroll 4
  for (u32 r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (u32 i = 0; i < kVectors; ++i) *reinterpret_cast<FloatVector*>(row[r]->acc + d + i * kVectorFloats) = acc[r][i];
}
template <u32 kRows>
CCKS_INLINE void add_values(AttentionRow* const (&row)[kRows], const ContextBlock& v, u32 dims, u32 begin, u32 end) {
  u32 d = 0;
  for (; d + 4 * kVectorFloats <= dims; d += 4 * kVectorFloats) add_values_at<kRows, 4>(row, v, d, begin, end);
  for (; d + kVectorFloats <= dims; d += kVectorFloats) add_values_at<kRows, 1>(row, v, d, begin, end);
  for (; d < dims; ++d)
    for (u32 r = 0; r < kRows; ++r)
      for (u32 j = begin; j < end; ++j) row[r]->acc[d] += row[r]->p[j] * v.data[j * v.stride + d];
}

/// Turns scores [begin, n) into weights and rescales what was summed so far.
CCKS_INLINE void weigh(AttentionRow& row, u32 begin, u32 n, u32 dims) {
  for (u32 j = 0; j < begin; ++j) row.p[j] = -f_infinity();
  for (u32 j = n; j < kContextBlock; ++j) row.p[j] = -f_infinity();
  float lane[16];
  for (u32 i = 0; i < 16; ++i) lane[i] = row.p[i];
  for (u32 j = 16; j < kContextBlock; j += 16)
    for (u32 i = 0; i < 16; ++i) lane[i] = most(row.p[j + i], lane[i]);
  float top = row.top;
  for (u32 i = 0; i < 16; ++i) top = most(top, lane[i]);
  const float shrink = f_exp(row.top - top);
  for (u32 j = 0; j < kContextBlock; ++j) row.p[j] = f_exp(row.p[j] - top);
  for (u32 i = 0; i < 16; ++i) lane[i] = 0;
  for (u32 j = 0; j < kContextBlock; j += 16)
    for (u32 i = 0; i < 16; ++i) lane[i] += row.p[j + i];
  float sum = 0;
  for (u32 i = 0; i < 16; ++i) sum += lane[i];
  row.sum = row.sum * shrink + sum;
  row.top = top;
  if (shrink != 1.0f)
    for (u32 d = 0; d < dims; ++d) row.acc[d] *= shrink;
}

/// One block of the context for two rows (or the same row twice: then only the first counts).
CCKS_INLINE void attend_block(AttentionRow* a, AttentionRow* b, const ContextBlock& k, const ContextBlock& v, u32 dims,
                              u32 j0) {
  const auto left = [&](const AttentionRow& r) { return r.seen <= j0 ? 0 : least(kContextBlock, r.seen - j0); };
  const auto late = [&](const AttentionRow& r) { return r.first <= j0 ? 0 : least(kContextBlock, r.first - j0); };
  const u32 na = left(*a), nb = b != nullptr ? left(*b) : 0, both = least(na, nb);
  AttentionRow* const first[1] = {a};
  if (late(*a) > 0 || (b != nullptr && late(*b) > 0)) {  // they share no loads: what one does not look at may hold anything
    for (u32 i = 0; i < 2; ++i) {
      AttentionRow* const row = i == 0 ? a : b;
      const u32 begin = row == nullptr ? kContextBlock : late(*row), end = row == nullptr ? 0 : left(*row);
      if (begin >= end) continue;
      AttentionRow* const alone[1] = {row};
      scores<1>(alone, k, dims, begin, end);
      weigh(*row, begin, end, dims);
      add_values<1>(alone, v, dims, begin, end);
    }
    return;
  }
  AttentionRow* const second[1] = {b};
  AttentionRow* const pair[2] = {a, b};
  if (both > 0) scores<2>(pair, k, dims, 0, both);
  if (na > both) scores<1>(first, k, dims, both, na);
  if (nb > both) scores<1>(second, k, dims, both, nb);
  if (na > 0) weigh(*a, 0, na, dims);
  if (nb > 0) weigh(*b, 0, nb, dims);
  if (both > 0) add_values<2>(pair, v, dims, 0, both);
  if (na > both) add_values<1>(first, v, dims, both, na);
  if (nb > both) add_values<1>(second, v, dims, both, nb);
}

/// `n` rows of k or v from position j0 on; in place where they are f32 already.
template <class T>
CCKS_INLINE ContextBlock fetch_context(const View<T>& from, i32 c0, i32 c1, u32 j0, i32 at, u32 n, u32 dims,
                                       float* buffer) {
  const u8* data = from.at(c0, c1, static_cast<i32>(j0), at);
  if (from.type.get() == Dtype::f32 && from.stride[3] == 1)
    return {reinterpret_cast<const float*>(data), from.stride[2]};
  for (u32 j = 0; j < n; ++j)
    load_run(from.type, data + j * from.stride[2] * bytes_of(from.type), from.stride[3], dims, buffer + j * dims);
  return {buffer, dims};
}

/// Row `index` of the tile, counted (row, head) with the `heads` heads of one kv head innermost.
template <class Task>
CCKS_INLINE void start_row(const Task& t, i32 c0, i32 c1, i32 head0, u32 heads, u32 index, AttentionRow& row) {
  const i32 i = t.box.lo[2] + static_cast<i32>(index / heads);
  const i32 at = (head0 + static_cast<i32>(index % heads)) * t.head_dim;
  const u32 dims = static_cast<u32>(t.head_dim);
  load_run(t.q.type, t.q.at(c0, c1, i, at), t.q.stride[3], dims, row.q);
  for (u32 d = 0; d < dims; ++d) {
    row.q[d] *= t.scale;
    row.acc[d] = 0;
  }
  row.top = -f_infinity();
  row.sum = 0;
  row.first = t.first(i);
  row.seen = t.seen(i);
  row.out = t.out.at(c0, c1, i, at);
}

/// `n` rows under way, which have begun, over the positions [begin, seen) of any of them.
template <class Task>
CCKS_INLINE void walk_context(const Task& t, i32 c0, i32 c1, i32 kv_at, u32 n, AttentionRow* rows, u32 begin, u32 seen, float* k_buffer, float* v_buffer) {
  const u32 dims = static_cast<u32>(t.head_dim);
  for (u32 j0 = begin; j0 < seen; j0 += kContextBlock) {
    const u32 here = least(kContextBlock, seen - j0);
    const ContextBlock k = fetch_context(t.k, c0, c1, j0, kv_at, here, dims, k_buffer);
    const ContextBlock v = fetch_context(t.v, c0, c1, j0, kv_at, here, dims, v_buffer);
    for (u32 s = 0; s < n; s += 2) attend_block(&rows[s], s + 1 < n ? &rows[s + 1] : nullptr, k, v, dims, j0);
  }
}

/// The same of heads of row `i`, page by page: `first` and `seen` of each are then rows of k and v.
template <class Task>
CCKS_INLINE void walk_pages(const Task& t, i32 c0, i32 c1, i32 kv_at, i32 i, u32 n, AttentionRow* rows, float* k_buffer, float* v_buffer) {
  const u32 end = t.seen(i);
  for (u32 j = t.first(i), count; j < end; j += count) {
    count = least(t.pages.run(j), end - j);
    const i32 at = t.pages.at(i, j);
    if (at < 0) continue;
    for (u32 s = 0; s < n; ++s) {
      rows[s].first = static_cast<u32>(at);
      rows[s].seen = static_cast<u32>(at) + count;
    }
    walk_context(t, c0, c1, kv_at, n, rows, static_cast<u32>(at), static_cast<u32>(at) + count, k_buffer, v_buffer);
  }
}

/// Rows [first, first + n) of the tile, all of one kv head; of a paged one, all of one row.
template <class Task>
CCKS_INLINE void attend_rows(const Task& t, i32 c0, i32 c1, i32 head0, u32 heads, u32 first, u32 n, AttentionRow* rows,
                             float* k_buffer, float* v_buffer) {
  const u32 dims = static_cast<u32>(t.head_dim);
  u32 begin = 0xffffffffu, seen = 0;
  for (u32 s = 0; s < n; ++s) {
    start_row(t, c0, c1, head0, heads, first + s, rows[s]);
    begin = least(begin, rows[s].first);
    seen = most(seen, rows[s].seen);
  }
  const i32 kv_at = head0 / t.group * t.head_dim;
  if constexpr (Task::kPaged)
    walk_pages(t, c0, c1, kv_at, t.box.lo[2] + static_cast<i32>(first / heads), n, rows, k_buffer, v_buffer);
  else
    walk_context(t, c0, c1, kv_at, n, rows, begin, seen, k_buffer, v_buffer);
  for (u32 s = 0; s < n; ++s) {
    const bool none = Task::kPaged ? rows[s].sum == 0 : rows[s].seen <= rows[s].first;
    const float inverse = none ? 0.0f : 1.0f / rows[s].sum;
    for (u32 d = 0; d < dims; ++d) rows[s].acc[d] *= inverse;
    store_run(t.out.type, rows[s].out, t.out.stride[3], dims, rows[s].acc);
  }
}

/// Room for as many rows as the scratch holds; 0 if not even one.
template <class Task>
CCKS_INLINE u32 place_rows(Scratch scratch, const Task& t, u32 wanted, AttentionRow*& rows, float*& k, float*& v) {
  const u32 dims = static_cast<u32>(t.head_dim);
  k = scratch.take<float>(kContextBlock * dims);
  v = scratch.take<float>(kContextBlock * dims);
  if (v == nullptr) return 0;
  const u32 each = sizeof(AttentionRow) + 4 * (round_up(dims, 16) * 2 + kContextBlock);
  const u32 count = least(wanted, scratch.left < 128 ? 0 : (scratch.left - 128) / each);
  rows = scratch.take<AttentionRow>(count);
  for (u32 s = 0; s < count; ++s)
    rows[s] = {
        scratch.take<float>(dims), scratch.take<float>(dims), scratch.take<float>(kContextBlock), 0, 0, 0, 0, nullptr};
  return count;
}

/// False where the scratch is too small.
template <class Task>
CCKS_INLINE bool host_attention(Scratch scratch, const Task& t) {
  const i32 head_begin = t.box.lo[3] / t.head_dim, head_end = (t.box.lo[3] + t.box.size[3]) / t.head_dim;
  const u32 rows_wanted = static_cast<u32>(t.box.size[2]) * static_cast<u32>(least(t.group, head_end - head_begin));
  AttentionRow* rows = nullptr;
  float *k = nullptr, *v = nullptr;
  if (rows_wanted == 0) return true;
  const u32 room = place_rows(scratch, t, rows_wanted, rows, k, v);
  if (room == 0) return false;
  for (i32 c0 = t.box.lo[0]; c0 < t.box.lo[0] + t.box.size[0]; ++c0)
    for (i32 c1 = t.box.lo[1]; c1 < t.box.lo[1] + t.box.size[1]; ++c1)
      for (i32 head = head_begin; head < head_end;) {
        const i32 next = least(head_end, (head / t.group + 1) * t.group);
        const u32 heads = static_cast<u32>(next - head), all = heads * static_cast<u32>(t.box.size[2]);
        for (u32 first = 0, n; first < all; first += n) {
          n = least(room, Task::kPaged ? heads - first % heads : all - first);
          attend_rows(t, c0, c1, head, heads, first, n, rows, k, v);
        }
        head = next;
      }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

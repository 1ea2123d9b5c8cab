// Mixture of experts besides the matmul: route decides which rows exist, combine puts them together again.
#pragma once

#include "ccks/worker/combine_warps.hpp"
#include "ccks/worker/ops_index.hpp"
#include "ccks/worker/ops_rows.hpp"
#include "ccks/worker/route_tiles.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class L, class W, class E, class C, class R, class S>
struct RouteTask {
  View<L> logits;
  View<W> weight;
  View<E> expert;
  View<C> count;
  View<R> row;
  View<S> source;
  u32 tokens, experts, k;
  bool over_all, renormalize;

  CCKS_INLINE u32 pairs() const { return tokens * k; }
  CCKS_INLINE u32 chosen(u32 pair) const { return static_cast<u32>(load_int(expert.type, of_pair(expert, pair), 0)); }
  CCKS_INLINE void place(u32 pair, u32 at) const {
    store_int(row.type, of_pair(row, pair), 0, at);
    store_int(source.type, source.at(0, 0, 0, static_cast<i32>(at)), 0, pair);
  }
  /// The pair's row, and which pair is at the row of that number.
  CCKS_INLINE void place(u32 pair, u32 at, u32 its) const {
    store_int(row.type, of_pair(row, pair), 0, at);
    store_int(source.type, source.at(0, 0, 0, static_cast<i32>(pair)), 0, its);
  }

 private:
  /// Pairs mostly lie one after the other, and need not be told apart.
  template <class T>
  CCKS_INLINE u8* of_pair(const View<T>& of, u32 pair) const {
    if (of.stride[2] == k * of.stride[3]) return of.data + pair * of.stride[3] * bytes_of(of.type);
    return of.at(0, 0, static_cast<i32>(pair / k), static_cast<i32>(pair % k));
  }
};

/// Sum of e^(x - top) over all logits of a token.
template <u32 W, class T>
CCKS_INLINE float exp_sum(T type, const u8* row, i64 stride, u32 n, float top) {
  float sum = 0;
  for (u32 at = 0; at < n; at += W) {
    float v[W];
    const u32 here = least(W, n - at);
    load_run(type, row + at * stride * bytes_of(type), stride, here, v);
    for (u32 i = 0; i < here; ++i) v[i] = f_exp(v[i] - top);
    for (u32 i = here; i < W; ++i) v[i] = 0;
    sum += sum_chunk<W>(v);
  }
  return sum;
}

/// One token on one lane: its k experts and their weights. The first one found has the largest logit.
template <u32 W, class Task>
CCKS_INLINE void route_token(const Task& t, u32 token) {
  const i32 at = static_cast<i32>(token);
  const u8* logits = t.logits.at(0, 0, at, 0);
  const i64 stride = t.logits.stride[3];
  Found last = before_all();
  float top = 0, sum = 0;
  for (u32 j = 0; j < t.k; ++j) {
    last = search_share<W>(t.logits.type, logits, stride, t.experts, last, 0, 1);
    const float logit = load_float(t.logits.type, logits, last.index * stride);
    if (j == 0) top = logit;
    sum += f_exp(logit - top);
    store_int(t.expert.type, t.expert.at(0, 0, at, static_cast<i32>(j)), 0, last.index);
  }
  if (t.over_all && !t.renormalize) sum = exp_sum<W>(t.logits.type, logits, stride, t.experts, top);
  for (u32 j = 0; j < t.k; ++j) {
    const float logit = load_float(t.logits.type, logits, t.chosen(token * t.k + j) * stride);
    store_float(t.weight.type, t.weight.at(0, 0, at, static_cast<i32>(j)), 0, f_exp(logit - top) / sum);
  }
}

/// Counts, and places for all pairs sorted by expert, then token. One lane: a counting sort with cursors in scratch.
template <class Task>
CCKS_INLINE bool sort_alone(Scratch scratch, const Task& t) {
  u32* cursor = scratch.take<u32>(t.experts);
  if (cursor == nullptr) return false;
  for (u32 e = 0; e < t.experts; ++e) cursor[e] = 0;
  for (u32 pair = 0; pair < t.pairs(); ++pair) ++cursor[t.chosen(pair)];
  u32 first = 0;
  for (u32 e = 0; e < t.experts; ++e) {
    store_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(e)), 0, cursor[e]);
    const u32 taken = cursor[e];
    cursor[e] = first;
    first += taken;
  }
  for (u32 pair = 0; pair < t.pairs(); ++pair) t.place(pair, cursor[t.chosen(pair)]++);
  return true;
}

/// Many lanes: each takes whole experts and walks all pairs, so that order needs no atomics.
template <class Lanes, class Task>
CCKS_INLINE void sort_together(Lanes& lanes, const Task& t) {
  for (u32 e = lanes.lane(); e < t.experts; e += lanes.lanes()) {
    u32 taken = 0;
    for (u32 pair = 0; pair < t.pairs(); ++pair) taken += t.chosen(pair) == e;
    store_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(e)), 0, taken);
  }
  lanes.sync();
  for (u32 e = lanes.lane(); e < t.experts; e += lanes.lanes()) {
    u32 at = 0;
    for (u32 other = 0; other < e; ++other)
      at += static_cast<u32>(load_int(t.count.type, t.count.at(0, 0, 0, static_cast<i32>(other)), 0));
    for (u32 pair = 0; pair < t.pairs(); ++pair)
      if (t.chosen(pair) == e) t.place(pair, at++);
  }
}

/// Counts and places, by whatever these lanes do best.
template <class Lanes, class Task>
CCKS_INLINE void sort_pairs(Lanes& lanes, const Task& task) {
  if constexpr (MatchLanes<Lanes>) {
    if (sort_by_lanes(lanes, task) || sort_in_warps(lanes, task)) return;
  }
  if (!Lanes::kSingleLane || !sort_alone(scratch_of(lanes), task)) sort_together(lanes, task);
}

template <class V, class F, class W, class E>
struct ChosenTask {
  View<V> values;
  View<F> found;
  View<W> weight;
  View<E> expert;
  u32 tokens, experts, k;

  static constexpr u32 kFlight = 8;  // experts of a token that come from the L2 at once
  CCKS_INLINE float value(i32 t, u32 j) const { return load_float(values.type, values.at(0, 0, t, static_cast<i32>(j)), 0); }
  CCKS_INLINE i64 index(i32 t, u32 j) const { return load_int(found.type, found.at(0, 0, t, static_cast<i32>(j)), 0); }
  /// False: there is no such expert.
  CCKS_INLINE bool put(i32 t, u32 j, float share, i64 chosen) const {
    store_float(weight.type, weight.at(0, 0, t, static_cast<i32>(j)), 0, share);
    store_int(expert.type, expert.at(0, 0, t, static_cast<i32>(j)), 0, chosen);
    return chosen >= 0 && chosen < experts;
  }

  /// From there on `count` tokens alone.
  CCKS_INLINE void begin_at(u32 token, u32 count) {
    const i32 t = static_cast<i32>(token);
    values.data = values.at(0, 0, t, 0);
    found.data = found.at(0, 0, t, 0);
    weight.data = weight.at(0, 0, t, 0);
    expert.data = expert.at(0, 0, t, 0);
    tokens = count;
  }

  /// Whether pairs lie one after the other in all of them, so that a pair's place is its number.
  CCKS_INLINE bool is_dense() const { return follow(values) && follow(found) && follow(weight) && follow(expert); }
  CCKS_INLINE float value_of(u32 pair) const { return load_float(values.type, values.data, pair * values.stride[3]); }
  CCKS_INLINE i64 index_of(u32 pair) const { return load_int(found.type, found.data, pair * found.stride[3]); }
  CCKS_INLINE void put_of(u32 pair, float share, i64 chosen) const {
    store_float(weight.type, weight.data, pair * weight.stride[3], share);
    store_int(expert.type, expert.data, pair * expert.stride[3], chosen);
  }

 private:
  template <class T>
  CCKS_INLINE bool follow(const View<T>& of) const { return of.stride[2] == k * of.stride[3]; }
};

/// A lane a pair, each of which looks at all values of its token: what few tokens take least time by.
template <class Lanes, class Task>
CCKS_INLINE bool weigh_pairs(Lanes& lanes, const Task& task) {
  bool sound = true;
  for (u32 pair = lanes.lane(); pair < task.tokens * task.k; pair += lanes.lanes()) {
    const u32 j = pair % task.k;
    const i32 t = static_cast<i32>(pair / task.k);
    const i64 chosen = task.index(t, j);
    const float top = task.value(t, 0), mine = task.value(t, j);
    float sum = 0;
    for (u32 j0 = 0; j0 < task.k; j0 += Task::kFlight) {
      float v[Task::kFlight];
      CCKS_UNROLL
      for (u32 i = 0; i < Task::kFlight; ++i) v[i] = task.value(t, least(j0 + i, task.k - 1));
      CCKS_UNROLL
      for (u32 i = 0; i < Task::kFlight; ++i) sum += j0 + i < task.k ? f_exp(v[i] - top) : 0.0f;
    }
    if (!task.put(t, j, f_exp(mine - top) / sum, chosen)) sound = false;
  }
  return sound;
}

/// A lane a token: of many each value is looked at once, or twice where there are more than a flight.
template <class Lanes, class Task>
CCKS_INLINE bool weigh_tokens(Lanes& lanes, const Task& task) {
  constexpr u32 kFlight = Task::kFlight;
  bool sound = true;
  for (u32 token = lanes.lane(); token < task.tokens; token += lanes.lanes()) {
    const i32 t = static_cast<i32>(token);
    float v[kFlight], top = 0, sum = 0;
    i64 chosen[kFlight];
    const auto load = [&](u32 j0) {
      CCKS_UNROLL
      for (u32 i = 0; i < kFlight; ++i) {
        const u32 j = least(j0 + i, task.k - 1);
        v[i] = task.value(t, j);
        chosen[i] = task.index(t, j);
      }
      if (j0 == 0) top = v[0];
      CCKS_UNROLL
      for (u32 i = 0; i < kFlight; ++i) v[i] = f_exp(v[i] - top);
    };
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < task.k; j0 += kFlight) {
      load(j0);
      CCKS_UNROLL
      for (u32 i = 0; i < kFlight; ++i) sum += j0 + i < task.k ? v[i] : 0.0f;
    }
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < task.k; j0 += kFlight) {
      if (task.k > kFlight) load(j0);
      CCKS_UNROLL
      for (u32 i = 0; i < kFlight; ++i) {
        if (j0 + i < task.k && !task.put(t, j0 + i, v[i] / sum, chosen[i])) sound = false;
      }
    }
  }
  return sound;
}

/// One tile of several: weights and places of its tokens; the first also says how many pairs experts have.
template <class Lanes, class Chosen, class Task>
CCKS_INLINE FaultCode route_tokens(Lanes& lanes, const Chosen& all, const Task& task, u32 first, u32 tokens) {
  const u32 k = task.k, pairs = tokens * k;
  Scratch scratch = scratch_of(lanes);
  PairCounts counts(scratch, task.experts, first * k);
  u32* own = scratch.take<u32>(pairs);
  if (!counts.fits() || own == nullptr) return FaultCode::op_fault;
  Chosen mine = all;
  mine.begin_at(first, tokens);
  bool sound = weigh_pairs(lanes, mine);
  for (u32 pair = lanes.lane(); pair < pairs; pair += lanes.lanes()) own[pair] = static_cast<u32>(mine.index(static_cast<i32>(pair / k), pair % k));
  sound = count_pairs(lanes, all, task.pairs(), counts) && sound;
  if (lanes.max(sound ? 0 : 1) != 0) return FaultCode::bad_index;  // a barrier, too
  if (first == 0)
    for (u32 e = lanes.lane(); e < task.experts; e += lanes.lanes()) store_int(task.count.type, task.count.at(0, 0, 0, static_cast<i32>(e)), 0, counts.starts[e]);
  begin_experts(lanes, counts.starts, task.experts);
  place_pairs(lanes, task, counts, own, pairs);
  return FaultCode::none;
}

/// route of what another op has found: values [t, k] that fall, and the experts they belong to. Weights are the softmax of those values.
template <class Lanes, class Types>
CCKS_INLINE FaultCode route_chosen(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const auto values = view_of<0>(call, types);
  const auto found = view_of<1>(call, types);
  const auto weight = view_of<2>(call, types);
  const auto expert = view_of<3>(call, types);
  const auto count = view_of<4>(call, types);
  const auto row = view_of<5>(call, types);
  const auto source = view_of<6>(call, types);
  const u32 k = static_cast<u32>(call.op.dims[0]), tokens = static_cast<u32>(weight.dim[2]), experts = static_cast<u32>(count.dim[3]);
  const ChosenTask<decltype(values.type), decltype(found.type), decltype(weight.type), decltype(expert.type)> chosen{values, found, weight, expert, tokens, experts, k};
  const RouteTask<decltype(values.type), decltype(weight.type), decltype(expert.type), decltype(count.type), decltype(row.type), decltype(source.type)>
      task{values, weight, expert, count, row, source, tokens, experts, k, false, true};
  if (call.op.grid[2] > 1) {
    const Box box = tile_box(call.op, tile, weight.dim);
    return route_tokens(lanes, chosen, task, static_cast<u32>(box.lo[2]), static_cast<u32>(box.size[2]));
  }
  bool sound = true;
  if constexpr (MatchLanes<Lanes>) {
    if (route_many(lanes, chosen, task, sound)) return sound ? FaultCode::none : FaultCode::bad_index;
  }
  sound = tokens < lanes.lanes() ? weigh_pairs(lanes, chosen) : weigh_tokens(lanes, chosen);
  if (lanes.max(sound ? 0 : 1) != 0) return FaultCode::bad_index;  // a barrier, too: experts are there for all lanes
  sort_pairs(lanes, task);
  return FaultCode::none;
}

template <class Lanes, class Types>
CCKS_INLINE FaultCode route_logits(Lanes& lanes, const Call& call, const Types& types) {
  const auto logits = view_of<0>(call, types);
  const auto weight = view_of<1>(call, types);
  const auto expert = view_of<2>(call, types);
  const auto count = view_of<3>(call, types);
  const auto row = view_of<4>(call, types);
  const auto source = view_of<5>(call, types);
  const RouteTask<decltype(logits.type), decltype(weight.type), decltype(expert.type), decltype(count.type),
                  decltype(row.type), decltype(source.type)>
      task{logits,
           weight,
           expert,
           count,
           row,
           source,
           static_cast<u32>(logits.dim[2]),
           static_cast<u32>(logits.dim[3]),
           static_cast<u32>(call.op.dims[0]),
           call.op.dims[1] != 0,
           call.op.dims[2] != 0};
  if (task.k > task.experts) return FaultCode::op_fault;
  if constexpr (MatchLanes<Lanes>) {
    if (route_few(lanes, task)) return FaultCode::none;
  }
  for (u32 token = lanes.lane(); token < task.tokens; token += lanes.lanes()) route_token<kChunk<Lanes>>(task, token);
  lanes.sync();
  sort_pairs(lanes, task);
  return FaultCode::none;
}

/// Of logits, or of two inputs that say what a topk in front has found.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_route(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (Types::kCount == 0) {
    return call.op.input_count == 2 ? route_chosen(lanes, call, tile, types) : route_logits(lanes, call, types);
  } else if constexpr (Types::kCount == 7) {
    return route_chosen(lanes, call, tile, types);
  } else {
    return route_logits(lanes, call, types);
  }
}

/// combine: out[t] = expr(sum over j of weight[t, j] * x[row[t, j]]). Every lane checks every row of the tile.
template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_combine(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  constexpr u32 W = kChunk<Lanes>;
  const auto x = view_of<0>(call, types);
  const auto weight = view_of<1>(call, types);
  const auto row = view_of<2>(call, types);
  const auto out = make_view(call, call.op.input_count, types.last(call.op.input_count));
  const Box box = tile_box(call.op, tile, out.dim);
  const i32 k = call.op.dims[0];
  const auto finish_by = [&](const float* sums) { return Arguments<Types>{call, types, sums, static_cast<u32>(call.op.dims[wire::kEpilogueDim])}; };
  if constexpr (WarpLanes<Lanes>) {
    bool sound = true;
    if (combine_in_vectors(lanes, x, weight, row, out, box, static_cast<u32>(k), finish_by, expr, sound)) return sound ? FaultCode::none : FaultCode::bad_index;
  }
  for (i32 t = box.lo[2]; t < box.lo[2] + box.size[2]; ++t)
    for (i32 j = 0; j < k; ++j) {
      const i64 r = load_int(row.type, row.at(0, 0, t, j), 0);
      if (r < 0 || r >= x.dim[2]) return FaultCode::bad_index;
    }
  for_each_chunk<W>(lanes, box, [&](const Place& p) {
    float acc[W], v[W];
    for (u32 i = 0; i < p.n; ++i) acc[i] = 0;
    for (i32 j = 0; j < k; ++j) {
      const i32 r = static_cast<i32>(load_int(row.type, row.at(0, 0, p.c[2], j), 0));
      const float w = load_float(weight.type, weight.at(0, 0, p.c[2], j), 0);
      load_run(x.type, x.at(0, 0, r, p.c[3]), x.stride[3], p.n, v);
      for (u32 i = 0; i < p.n; ++i) acc[i] += w * v[i];
    }
    evaluate<W>(finish_by(acc), expr, p, out);
  });
  return FaultCode::none;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

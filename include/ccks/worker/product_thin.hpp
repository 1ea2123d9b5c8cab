// matmul of few rows where lanes run in warps and b lies in rows: b is read once, a vector of four columns at a time, many
// under way. A lane has four columns and every n-th k; lanes with the same columns add up, then warps.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"
#include "ccks/worker/tagged_values.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kThinColumns = 128;  // of a tile, at most: a warp's lanes times four

/// How lanes share a product: groups of four columns, slices of k.
struct ThinShare {
  u32 groups_log, group, slice, slices;
  bool mine;  // else the columns are beyond the tile

  CCKS_INLINE ThinShare(const OpParams& op, u32 lane, u32 lanes, u32 n)
      : groups_log(static_cast<u32>(op.dims[2])), group(lane & ((1u << groups_log) - 1)), slice(lane >> groups_log),
        slices(lanes >> groups_log), mine(group * kVector < n) {}
};

/// Vectors of b along one lane's columns, k by k. What stands behind `at` may be global or shared memory.
template <class T>
struct ColumnStream {
  const u8* at;  // of the next k
  u64 step;      // bytes to the next k of this lane
  u64 row;       // bytes to the next k
  T type;

  CCKS_INLINE void load(u32 f, float* to) const { load_four(type, at + f * step, to); }
  CCKS_INLINE void skip(u32 count) { at += count * step; }
};
template <class T, class Types>
CCKS_INLINE ColumnStream<T> stream_columns(const Call& call, T type, const ProductTile<Types>& t, const ThinShare& s) {
  const OperandParams& b = call.operands[1];
  const u32 row = static_cast<u32>(b.stride[2]);
  const u32 first = row_offset(b, t.c0, t.c1, s.slice) + t.column + (s.mine ? s.group * kVector : 0);
  return {operand_base(call.frame, b) + u64{first} * bytes_of(type), u64{row} * (s.slices * bytes_of(type)),
          u64{row} * bytes_of(type), type};
}

/// Calls body(p, f) with f vectors of b loaded into b[0..f) that belong to k = p, p + slices, ...
template <u32 kFlight, class T, class Body>
CCKS_INLINE void walk_columns(ColumnStream<T> b, u32 p, u32 end, u32 slices, Body&& body) {
  float v[kFlight][kVector];
  CCKS_NO_UNROLL
  for (; p + (kFlight - 1) * slices < end; p += kFlight * slices) {
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) b.load(f, v[f]);
    b.skip(kFlight);
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) body(p + f * slices, v[f]);
  }
  constexpr u32 kRest = kFlight / 2;
  CCKS_NO_UNROLL
  for (; p < end; p += kRest * slices) {
    CCKS_UNROLL
    for (u32 f = 0; f < kRest; ++f) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) v[f][q] = 0;
      if (p + f * slices < end) b.load(f, v[f]);
    }
    b.skip(kRest);
    CCKS_UNROLL
    for (u32 f = 0; f < kRest; ++f)
      if (p + f * slices < end) body(p + f * slices, v[f]);
  }
}

/// The same from `slice` on where the compiler knows all but that: what is beyond the end then leaves no instructions. With vectors
/// under way inputs(p, end, x) gets what they are multiplied with, for k = p, p + slices, ..., and says whether to go on; then body(x, f).
template <u32 kFlight, class T, class Inputs, class Body>
CCKS_INLINE bool walk_known_columns(ColumnStream<T> b, u32 slice, u32 k, bool mine, u32 slices, Inputs&& inputs, Body&& body) {
  const u32 end = mine ? k : 0;
  CCKS_NO_UNROLL
  for (u32 from = 0; from < k; from += kFlight * slices) {
    float v[kFlight][kVector] = {};
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f)
      if (from + slice + f * slices < end) b.load(f, v[f]);
    b.skip(kFlight);
    float x[kFlight] = {};
    if (!inputs(from, end, x)) return false;
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f)
      if (from + slice + f * slices < end) body(x[f], v[f]);
  }
  return true;
}

/// Sums of kRows x 128 results of every warp, a row after the other.
template <u32 kRows, class Lanes>
CCKS_INLINE void keep_sums(Lanes& lanes, float* sums, const float* acc, const ThinShare& s) {
  float* mine = sums + lanes.lane() / Lanes::kWarp * (kRows * kThinColumns) + s.group * kVector;
  scatter_sums<kRows * kVector>(lanes, acc, 1u << s.groups_log, Lanes::kWarp, 0, [&](u32 first, u32 count, const float* v) {
    CCKS_UNROLL
    for (u32 i = 0; i < count; ++i) mine[(first + i) / kVector * kThinColumns + (first + i) % kVector] = v[i];
  });
}

/// One row.
struct ThinRow {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp;
    const OperandParams& a = call.operands[0];
    const auto type = types.template type<0>();
    const u32 k = static_cast<u32>(a.dim[3]);
    const u8* row = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * bytes_of(type);
    const ThinShare share(call.op, lanes.lane(), Lanes::kLanes, t.n);
    const u32 j = lanes.lane();  // of the result that this lane finishes
    EpilogueValues<1, Types> values;
    const TaggedInput<kShaped<Types>, Lanes, TypeOf<0, Types>> tagged(lanes, a, row_offset(a, t.c0, t.c1, t.row), row, type);
    const auto ready = [&] {
      if (!tagged.overtakes() && !await_inputs(lanes)) return false;
      if (j < t.n) values.load(call, types, t.c0, t.c1, t.row, t.column + j);
      return true;
    };
    float acc[kVector] = {};
    const auto multiply = [&](float x, const float* b) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) acc[q] += x * b[q];
    };
    const auto columns = stream_columns(call, types.template type<1>(), t, share);
    if constexpr (kShaped<Types>) {
      constexpr u32 kFlight = 8;
      const auto inputs = [&](u32 from, u32 end, float* x) {
        if (from == 0 && !ready()) return false;
        const auto place = [&](u32 f) { return from + share.slice + f * share.slices; };
        tagged.template load<kFlight>(place, [&](u32 f) { return place(f) < end; }, x);
        return true;
      };
      if (!walk_known_columns<kFlight>(columns, share.slice, k, share.mine, share.slices, inputs, multiply)) return;
    } else {
      if (!ready()) return;
      const auto step = [&](u32 p, const float* b) { multiply(load_float(type, row, p), b); };
      walk_columns<8>(columns, share.slice, share.mine ? k : 0, share.slices, step);
    }
    float* sums = reinterpret_cast<float*>(lanes.scratch());
    keep_sums<1>(lanes, sums, acc, share);
    lanes.sync();
    static_assert(kThinColumns <= Lanes::kLanes);
    if (j < t.n && tagged.holds()) {
      float all = sums[j];
      CCKS_UNROLL
      for (u32 w = 1; w < kWarps; ++w) all += sums[w * kThinColumns + j];
      finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, t.row, t.column + j, TaggedOutput<Lanes, decltype(types.last(0))>{lanes});
    }
    tagged.settle();
  }
};

/// Rows [0, m) of a window to [k][kAll], zeros beyond m; rows `pitch` elements apart, of which k begins at `k0`.
template <u32 kAll, class Lanes, class T, class Tagged>
CCKS_INLINE void stage_rows(Lanes& lanes, float* to, T type, const u8* from, const Tagged& tagged, u32 pitch, u32 k0, u32 m, u32 depth) {
  // By whole warps, for those that look for tags.
  CCKS_NO_UNROLL
  for (u32 first = 0; first < depth / kVector * kAll; first += 2 * Lanes::kLanes) {
    const auto line = [&](u32 u) { return (first + lanes.lane() + u * Lanes::kLanes) % kAll; };
    const auto depth_of = [&](u32 u) { return (first + lanes.lane() + u * Lanes::kLanes) / kAll * kVector; };
    float v[2 * kVector] = {};
    if (tagged.overtakes()) {
      const auto place = [&](u32 e) { return line(e / kVector) * pitch + k0 + depth_of(e / kVector) + e % kVector; };
      tagged.template load<2 * kVector>(place, [&](u32 e) { return line(e / kVector) < m && depth_of(e / kVector) < depth; }, v);
    } else {
      CCKS_UNROLL
      for (u32 u = 0; u < 2; ++u)  // both are under way before the first is stored
        if (line(u) < m && depth_of(u) < depth) load_four(type, from + u64{line(u) * pitch + k0 + depth_of(u)} * bytes_of(type), v + u * kVector);
    }
    CCKS_UNROLL
    for (u32 u = 0; u < 2; ++u) {
      if (depth_of(u) >= depth) break;
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) to[(depth_of(u) + q) * kAll + line(u)] = v[u * kVector + q];
    }
  }
}

/// Up to 4 * kParts rows: the lanes in kParts parts, each with four rows and all of b, which comes from the nearest cache
/// after the first part. a stands in scratch, [k][row].
template <u32 kParts>
struct ThinRows {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    constexpr u32 kFlight = 8, kRows = 4, kAll = kRows * kParts, kPart = Lanes::kLanes / kParts;
    constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kSums = kWarps * kRows * kThinColumns;
    static_assert(kSums * sizeof(float) < kMinScratchBytes / 2);
    constexpr u32 kDepth = (kMinScratchBytes / static_cast<u32>(sizeof(float)) - kSums) / kAll / kVector * kVector;
    const OperandParams& a = call.operands[0];
    const auto type = types.template type<0>();
    const u32 k = static_cast<u32>(a.dim[3]), pitch = static_cast<u32>(a.stride[2]);
    const u8* rows = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * bytes_of(type);
    float* sums = reinterpret_cast<float*>(lanes.scratch());
    float* staged = sums + kSums;
    const u32 part = lanes.lane() / kPart;
    const ThinShare share(call.op, lanes.lane() % kPart, kPart, t.n);
    const u32 shift = share.groups_log + 2, j = lanes.lane() & ((1u << shift) - 1);
    u32 i = lanes.lane() >> shift;  // (i, j): the first result that this lane finishes
    EpilogueValues<1, Types> values;
    const TaggedInput<true, Lanes, TypeOf<0, Types>> tagged(lanes, a, row_offset(a, t.c0, t.c1, t.row), rows, type);
    const auto b = stream_columns(call, types.template type<1>(), t, share);
    float acc[kRows * kVector] = {};
    CCKS_NO_UNROLL
    for (u32 k0 = 0; k0 < k; k0 += kDepth) {
      const u32 depth = least(kDepth, k - k0), mine = share.mine ? depth : 0;
      auto piece = b;
      piece.at += k0 * b.row;
      CCKS_NO_UNROLL
      for (u32 p0 = 0; p0 < depth; p0 += kFlight * share.slices) {
        const u32 p = p0 + share.slice;
        float v[kFlight][kVector];
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) {
          CCKS_UNROLL
          for (u32 q = 0; q < kVector; ++q) v[f][q] = 0;
          if (p + f * share.slices < mine) piece.load(f, v[f]);
        }
        piece.skip(kFlight);
        if (p0 == 0) {  // a is fetched while b is under way
          if (k0 != 0) lanes.sync();
          if (k0 == 0 && !tagged.overtakes() && !await_inputs(lanes)) return;
          if (k0 == 0 && i < t.m && j < t.n) values.load(call, types, t.c0, t.c1, t.row + i, t.column + j);
          stage_rows<kAll>(lanes, staged, type, rows, tagged, pitch, k0, t.m, depth);
          lanes.sync();
        }
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) {
          if (p + f * share.slices >= mine) break;
          const Four<float> x = *reinterpret_cast<const Four<float>*>(staged + (p + f * share.slices) * kAll + part * kRows);
          CCKS_UNROLL
          for (u32 r = 0; r < kRows; ++r)
            for (u32 q = 0; q < kVector; ++q) acc[r * kVector + q] += x.v[r] * v[f][q];
        }
      }
    }
    keep_sums<kRows>(lanes, sums, acc, share);
    lanes.sync();
    while (i < t.m && tagged.holds()) {
      if (j < t.n) {
        const float* at = sums + (i / kRows * (kWarps / kParts) * kRows + i % kRows) * kThinColumns + j;
        float all = at[0];
        CCKS_UNROLL
        for (u32 w = 1; w < kWarps / kParts; ++w) all += at[w * kRows * kThinColumns];
        finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, t.row + i, t.column + j, TaggedOutput<Lanes, decltype(types.last(0))>{lanes});
      }
      i += Lanes::kLanes >> shift;
      if (i < t.m && j < t.n) values.load(call, types, t.c0, t.c1, t.row + i, t.column + j);
    }
    tagged.settle();
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

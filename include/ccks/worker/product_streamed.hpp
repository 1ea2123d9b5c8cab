// matmul of up to eight rows of a by weights that come through a worker's ring (weight_stream.hpp), 16-bit floats on matrix units.
//
// While the tile waited for its inputs its weights were on their way, so what counts is what lies between the inputs and the end.
// The rows of a are put into scratch at once; then, stage by stage, each warp has its slices of k for all columns of the stage. A matrix unit takes 16 columns of b
// as its rows and the rows of a as its columns. A packet of 16 bytes a lane along k holds what two products want of it, if k is
// taken in another order: the same for both, and sums do not mind. Sums of warps meet in scratch.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/staged_rows.hpp"
#include "ccks/worker/turned_heads.hpp"
#include "ccks/worker/weight_stream.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kStreamedRows = 8;

template <class A, class B>
inline constexpr bool kStreamedTypes = false;
template <>
inline constexpr bool kStreamedTypes<Runtime, Runtime> = true;
template <Dtype kType>
inline constexpr bool kStreamedTypes<Fixed<kType>, Fixed<kType>> = kType == Dtype::bf16 || kType == Dtype::f16;

/// From one row of a in scratch to the next: rows that lanes read together lie in different banks.
CCKS_INLINE constexpr u32 streamed_pitch(u32 k) { return k * 2 + 64; }
/// From one row of a warp's sums to the next.
CCKS_INLINE constexpr u32 streamed_columns(u32 n) { return (n + kStageColumns - 1) & ~(kStageColumns - 1); }

/// Puts m rows of k elements into scratch as they are. Packets of a lane are all under way before the first is stored: what other workers have
/// written comes through the L2.
template <class Lanes>
CCKS_INLINE void stage_plain_rows(Lanes& lanes, u8* to, const u8* from, u32 pitch, u32 m, u32 k) {
  constexpr u32 kFlight = 4, kStep = Lanes::kLanes * 16;
  CCKS_NO_UNROLL
  for (u32 i = 0; i < m; ++i) {
    CCKS_NO_UNROLL
    for (u32 at = lanes.lane() * 16; at < k * 2; at += kFlight * kStep) {
      Sixteen x[kFlight];
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f)
        if (at + f * kStep < k * 2) x[f] = *reinterpret_cast<const Sixteen*>(from + u64{i} * pitch + at + f * kStep);
      CCKS_UNROLL
      for (u32 f = 0; f < kFlight; ++f)
        if (at + f * kStep < k * 2) *reinterpret_cast<Sixteen*>(to + i * streamed_pitch(k) + at + f * kStep) = x[f];
    }
  }
}

/// The rows as the product wants them, at byte `to` of scratch. Ends with a barrier.
template <Dtype D, class Norm, class Lanes>
CCKS_INLINE void stage_streamed_rows(Lanes& lanes, Fixed<D> type, const Norm& norm, u32 to, const u8* from, u32 pitch, u32 m, u32 k) {
  if constexpr (Norm::kNorms) {
    if (norm.on()) {
      u8* staged = lanes.scratch() + to;
      norm_rows(lanes, type, from, pitch, norm, m, k, [&](u32 i, u32 p, const float (&v)[kVector]) {
        store_four(type, staged + i * streamed_pitch(k) + p * 2, v);
      });
      return lanes.sync();
    }
  }
  stage_plain_rows(lanes, lanes.scratch() + to, from, pitch, m, k);
  lanes.sync();
}
template <class Norm, class Lanes>
CCKS_INLINE void stage_streamed_rows(Lanes& lanes, Runtime type, const Norm& norm, u32 to, const u8* from, u32 pitch, u32 m, u32 k) {
  if (type.get() == Dtype::f16) return stage_streamed_rows(lanes, Fixed<Dtype::f16>{}, norm, to, from, pitch, m, k);
  stage_streamed_rows(lanes, Fixed<Dtype::bf16>{}, norm, to, from, pitch, m, k);
}

/// [warp][row][streamed_columns(n)] at the beginning of scratch: what each warp has of the products of m rows and n columns. dry: of stages as
/// they stand, none of which is freed. Inline, and in small steps: a call of a function keeps registers in memory, of which 256 lanes
/// have more than the L1 that a ring leaves holds, and to bring back 188 bytes a lane took 2,400 cycles.
template <Dtype kType, class Lanes, class Stream>
CCKS_INLINE void walk_streamed(Lanes& lanes, Stream& stream, const u8* rows, u32 pitch, u32 m, u32 n, u32 k, bool dry) {
  constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kWarpBytes = 64, kStep = kWarps * kWarpBytes, kSteps = 2;
  static_assert(kStageDepth * 2 % (kSteps * kStep) == 0);
  const u32 lane = lanes.lane() % Lanes::kWarp, warp = lanes.lane() / Lanes::kWarp, group = lane / 4, part = lane % 4;
  const u32 first = warp * kWarpBytes + part * 16;
  const u8* row = rows + (group < m ? group : 0) * pitch + first;  // of those beyond the last the results are not kept
  float* mine = reinterpret_cast<float*>(lanes.scratch()) + warp * m * streamed_columns(n) + group;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < n; j += kStageColumns) {
    float acc[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    CCKS_NO_UNROLL
    for (u32 at = 0; at < k * 2; at += kStageDepth * 2) {
      const u8* column = stream.await(dry) + group * kStagePitch + first;
      CCKS_NO_UNROLL
      for (u32 from = 0; from < kStageDepth * 2; from += kSteps * kStep) {
        Sixteen low[kSteps], high[kSteps], x[kSteps];
        CCKS_UNROLL
        for (u32 s = 0; s < kSteps; ++s) {  // beyond k there may be anything, and even zero times that need not be zero
          const u32 p = from + s * kStep;
          const bool within = at + first + p < k * 2;
          x[s] = within ? *reinterpret_cast<const Sixteen*>(row + at + p) : Sixteen{};
          low[s] = within ? *reinterpret_cast<const Sixteen*>(column + p) : Sixteen{};
          high[s] = within ? *reinterpret_cast<const Sixteen*>(column + 8 * kStagePitch + p) : Sixteen{};
        }
        CCKS_UNROLL
        for (u32 s = 0; s < kSteps; ++s) {
          CCKS_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 columns[4] = {low[s].word[2 * half], high[s].word[2 * half], low[s].word[2 * half + 1], high[s].word[2 * half + 1]};
            const u32 values[2] = {x[s].word[2 * half], x[s].word[2 * half + 1]};
            lanes.template multiply_wide<kType>(acc[half], columns, values);
          }
        }
      }
      stream.free(dry);
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 r = 2 * part + i;
      if (r >= m) break;
      mine[r * streamed_columns(n) + j] = acc[0][i] + acc[1][i];
      mine[r * streamed_columns(n) + j + 8] = acc[0][2 + i] + acc[1][2 + i];
    }
  }
}

/// Code passes through all caches between two tiles of an op, as weights do, and to fetch it takes longer than to run it. So a body
/// that has begun before its inputs goes through its code once on what lies in scratch, and the wait pays for that.
struct StreamedBody {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    auto t = product_tile<Types>(call, tile);
    auto stream = lanes.stream();
    if constexpr (kShaped<Types>) {
      OperandParams own[Types::kCount];
      const u32 rows = t.m;
      bool dry = has_begun_early(lanes) && static_cast<u32>(call.operands[0].dim[3]) * 2 <= kMinScratchBytes;
      CCKS_NO_UNROLL
      for (;; dry = false) {
        if (!dry && !await_inputs(lanes)) return;
        CCKS_UNROLL
        for (u32 i = 0; i < Types::kCount; ++i) own[i] = dry ? in_scratch<Types>(lanes, call.operands[i], t, i) : call.operands[i];
        t.m = dry ? 1 : rows;
        run_once(lanes, stream, Call(call.frame, call.op, own), t, types, expr, dry);
        if (!dry) return;
      }
    } else {
      if (await_inputs(lanes)) run_once(lanes, stream, call, t, types, expr, false);
    }
  }

 private:
  template <u32 kWarps>
  static CCKS_INLINE float sum_of_warps(const float* sums, u32 warp) {
    float all = sums[0];
    CCKS_UNROLL
    for (u32 w = 1; w < kWarps; ++w) all += sums[w * warp];
    return all;
  }

  /// The operand moved so that what the tile's first row reads or writes of it lies in scratch. Not the weight of a norm, which no op
  /// writes.
  template <class Types, class Lanes>
  static CCKS_INLINE OperandParams in_scratch(Lanes& lanes, OperandParams o, const ProductTile<Types>& t, u32 index) {
    if (kNormed<Types> && index == Types::kCount - 2) return o;
    const u32 column = index < 2 || index == kRopeTable<Types> || o.stride[3] == 0 ? 0 : t.column;
    o.offset = reinterpret_cast<u64>(lanes.scratch()) - u64{row_offset(o, t.c0, t.c1, t.row) + column} * Types::bytes_at(index);
    o.space = static_cast<u8>(wire::Space::absolute);
    return o;
  }

  template <class Types, class Lanes, class Stream, class Expr>
  static CCKS_INLINE void run_once(Lanes& lanes, Stream& stream, const Call& call, const ProductTile<Types>& t, const Types& types, const Expr& expr, bool dry) {
    constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp;
    const bool turns = rope_table<Types>(call) != 0;
    EpilogueValues<1, Types> values;
    PairAngle angle;
    u32 done = lanes.lane();  // of the results, or pairs of them, row by row: the next that this lane finishes
    const auto load_next = [&] {
      if (done >= t.m * t.n) return;
      if (turns) return angle.load<Types>(call, t.row + done / t.n, t.column + done % t.n);
      values.load(call, types, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
    };
    load_next();
    const OperandParams& a = call.operands[0];
    const u32 k = static_cast<u32>(a.dim[3]), n = turns ? 2 * t.n : t.n, columns = streamed_columns(n), sums_bytes = kWarps * t.m * columns * 4;
    const u8* rows = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * 2;
    u32 pitch = static_cast<u32>(a.stride[2]) * 2;
    if (sums_bytes + t.m * streamed_pitch(k) <= kMinScratchBytes) {  // as rows that are normed always do
      stage_streamed_rows(lanes, types.template type<0>(), norm_of(call, types), sums_bytes, rows, pitch, t.m, k);
      rows = lanes.scratch() + sums_bytes;
      pitch = streamed_pitch(k);
    }
    walk(lanes, stream, types.template type<1>(), rows, pitch, t.m, dry ? kStageColumns : n, dry ? kStageDepth : k, dry);
    lanes.sync();
    stream.leave(dry);
    const float* sums = reinterpret_cast<const float*>(lanes.scratch());
    CCKS_NO_UNROLL
    while (done < t.m * t.n) {
      const float* at = sums + done / t.n * columns + done % t.n;
      const u32 row = t.row + done / t.n, column = t.column + done % t.n;
      const float all = sum_of_warps<kWarps>(at, t.m * columns);
      if (turns)
        finish_pair(call, types, angle, all, sum_of_warps<kWarps>(at + t.n, t.m * columns), t.c1, row, column);
      else
        finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, row, column);
      done += Lanes::kLanes;
      load_next();
    }
  }

  template <Dtype kType, class Lanes, class Stream>
  static CCKS_INLINE void walk(Lanes& lanes, Stream& stream, Fixed<kType>, const u8* rows, u32 pitch, u32 m, u32 n, u32 k, bool dry) {
    walk_streamed<kType>(lanes, stream, rows, pitch, m, n, k, dry);
  }
  template <class Lanes, class Stream>
  static CCKS_INLINE void walk(Lanes& lanes, Stream& stream, Runtime type, const u8* rows, u32 pitch, u32 m, u32 n, u32 k, bool dry) {
    if (type.get() == Dtype::bf16) return walk_streamed<Dtype::bf16>(lanes, stream, rows, pitch, m, n, k, dry);
    walk_streamed<Dtype::f16>(lanes, stream, rows, pitch, m, n, k, dry);
  }
};

/// False: nothing is done, and no stage is taken.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool streamed_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (StreamLanes<Lanes> && kStreamedTypes<TypeOf<0, Types>, TypeOf<1, Types>>) {
    // What is known when the body is compiled rules most products out; whether the tile streams only the worker knows.
    const auto body = static_cast<wire::ProductBody>(call.op.dims[0]);
    const bool turned = body >= wire::ProductBody::turned_row && body <= wire::ProductBody::turned_eight_rows;
    if (!in_vectors(call.op) || !turned || !lanes.streams()) return false;
    run_product<StreamedBody>(lanes, call, tile, types, expr);
    return true;
  } else {
    return false;
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

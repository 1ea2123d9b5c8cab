// matmul of up to eight rows of a by weights that come through a worker's ring (weight_stream.hpp), 16-bit floats on matrix units.
//
// While the tile waited for its inputs its weights were on their way, so what counts is what lies between the inputs and the end. A worker
// does what all these products have in common (multiply_streamed), and an op's own body what is left (StreamedBody).
// The rows of a are put into scratch at once; then, stage by stage, each warp has its slices of k for all columns of the stage. A matrix unit
// takes 16 columns of b as its rows and the rows of a as its columns. A packet of 16 bytes a lane along k holds what two products want of it, if k is
// taken in another order: the same for both, and sums do not mind. Sums of warps meet in scratch.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/tagged_rows.hpp"
#include "ccks/worker/turned_heads.hpp"
#include "ccks/worker/twin_products.hpp"
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

/// [warp][row][streamed_columns(n)] at the beginning of scratch: what each warp has of the products of m rows and n columns. kWhole: k is a
/// multiple of kStageDepth.
template <Dtype kType, bool kWhole, class Lanes, class Stream>
CCKS_INLINE void walk_streamed(Lanes& lanes, Stream& stream, const u8* rows, u32 pitch, u32 m, u32 n, u32 k) {
  constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kWarpBytes = 64, kStep = kWarps * kWarpBytes, kSteps = kStageDepth * 2 / kStep;
  static_assert(kSteps % 2 == 0 && kSteps * kStep == kStageDepth * 2);
  const u32 lane = lanes.lane() % Lanes::kWarp, warp = lanes.lane() / Lanes::kWarp, group = lane / 4, part = lane % 4;
  const u32 first = warp * kWarpBytes + part * 16;
  const u8* row = rows + (group < m ? group : 0) * pitch + first;
  float* mine = reinterpret_cast<float*>(lanes.scratch()) + warp * m * streamed_columns(n) + group;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < n; j += kStageColumns) {
    float acc[4][4];  // few products that wait for one another
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i)
      for (u32 q = 0; q < 4; ++q) acc[i][q] = 0;
    CCKS_NO_UNROLL
    for (u32 at = 0; at < k * 2; at += kStageDepth * 2) {
      Sixteen low[kSteps], high[kSteps], x[kSteps];
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s)  // of rows beyond the last the results are not kept
        x[s] = group < m && (kWhole || at + s * kStep + first < k * 2) ? *reinterpret_cast<const Sixteen*>(row + at + s * kStep) : Sixteen{};
      const u8* column = stream.await() + group * kStagePitch + first;
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {  // beyond k there may be anything, and even zero times that need not be zero
        const bool within = kWhole || at + s * kStep + first < k * 2;
        low[s] = within ? *reinterpret_cast<const Sixteen*>(column + s * kStep) : Sixteen{};
        high[s] = within ? *reinterpret_cast<const Sixteen*>(column + 8 * kStagePitch + s * kStep) : Sixteen{};
      }
      stream.free();
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        CCKS_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 columns[4] = {low[s].word[2 * half], high[s].word[2 * half], low[s].word[2 * half + 1], high[s].word[2 * half + 1]};
          const u32 values[2] = {x[s].word[2 * half], x[s].word[2 * half + 1]};
          lanes.template multiply_wide<kType>(acc[s % 2 * 2 + half], columns, values);
        }
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 r = 2 * part + i;
      if (r >= m) break;
      mine[r * streamed_columns(n) + j] = acc[0][i] + acc[1][i] + (acc[2][i] + acc[3][i]);
      mine[r * streamed_columns(n) + j + 8] = acc[0][2 + i] + acc[1][2 + i] + (acc[2][2 + i] + acc[3][2 + i]);
    }
  }
}

/// What of a tile that streams is found out before its inputs are there: behind them every instruction counts.
struct StreamedCall {
  static constexpr u32 kUnstaged = 0xffffffffu;
  const u8* rows;    // of a
  const u8* weight;  // of a norm; null: rows stay as they are
  float eps;
  u32 pitch, m, n, k;
  u32 staged;  // where rows go in scratch, behind the sums; kUnstaged: they do not fit, as those that are normed always do
  const u64* words = nullptr;  // the row's tagged copy; null: there is none, or more rows
  bool half, whole_weight;  // f16; the weight is of f32

  template <class Lanes>
  CCKS_INLINE StreamedCall(const Lanes&, const RunFrame& frame, const OpParams& op, u32 tile) {
    const Call call(frame, op);
    const StreamedTile t(call, tile);
    const OperandParams& a = call.operands[0];
    m = t.m;
    n = op.dims[wire::kRopeDim] != 0 || op.dims[wire::kTwinDim] != 0 ? 2 * t.n : t.n;  // of a tile of pairs both, and of a twin
    k = static_cast<u32>(a.dim[3]);
    pitch = static_cast<u32>(a.stride[2]) * 2;
    rows = operand_base(frame, a) + u64{row_offset(a, t.c[0], t.c[1], t.c[2] * static_cast<u32>(op.tile[2]))} * 2;
    const u32 normed = static_cast<u32>(op.dims[wire::kNormDim]);
    weight = normed == 0 ? nullptr : operand_base(frame, call.operands[normed]);
    eps = op.scalars[0];
    half = static_cast<Dtype>(a.dtype) == Dtype::f16;
    whole_weight = static_cast<Dtype>(call.operands[normed].dtype) == Dtype::f32;
    staged = Lanes::kLanes / Lanes::kWarp * m * streamed_columns(n) * 4;
    if (staged + m * streamed_pitch(k) > kMinScratchBytes) staged = kUnstaged;
    if constexpr (RowTaggingLanes<Lanes>) words = m == 1 && staged != kUnstaged ? tagged_row(frame, a) : nullptr;
  }
};

/// Puts the rows of a tile into scratch. Not inlined: few registers and no calls, so that nothing is kept in memory. Ends with a barrier.
template <class A, class W, class Lanes>
CCKS_OUTLINE void stage_streamed(Lanes& lanes, A type, W norm_type, const u8* rows, u32 pitch, const u8* weight, float eps, u32 to, u32 m, u32 k) {
  u8* staged = lanes.scratch() + to;
  if (weight == nullptr) {
    stage_plain_rows(lanes, staged, rows, pitch, m, k);
  } else {
    norm_rows(lanes, type, rows, pitch, RowNorm<W>{norm_type, weight, eps}, m, k, [&](u32 i, u32 p, const float (&v)[kVector]) {
      store_four(type, staged + i * streamed_pitch(k) + p * 2, v);
    });
  }
  lanes.sync();
}
/// A norm's weight has the rows' own dtype or is of f32 (wire::may_stream).
template <Dtype D, class Lanes>
CCKS_INLINE void stage_of_type(Lanes& lanes, const StreamedCall& c) {
  if (c.whole_weight && c.weight != nullptr)
    stage_streamed(lanes, Fixed<D>{}, Fixed<Dtype::f32>{}, c.rows, c.pitch, c.weight, c.eps, c.staged, c.m, c.k);
  else
    stage_streamed(lanes, Fixed<D>{}, Fixed<D>{}, c.rows, c.pitch, c.weight, c.eps, c.staged, c.m, c.k);
}

template <Dtype D, class Lanes, class Inputs>
CCKS_INLINE bool stage_tagged_of_type(Lanes& lanes, Inputs inputs, const StreamedCall& c, u32 tag) {
  if (c.whole_weight && c.weight != nullptr) return stage_tagged(lanes, inputs, Fixed<D>{}, Fixed<Dtype::f32>{}, c.words, tag, c.weight, c.eps, c.staged, c.k);
  return stage_tagged(lanes, inputs, Fixed<D>{}, Fixed<D>{}, c.words, tag, c.weight, c.eps, c.staged, c.k);
}
/// Before the inputs of a tile are there: waits for its row's tags, and puts it into scratch. False: it does not lie there, and has to be awaited.
template <class Lanes, class Inputs>
CCKS_INLINE bool overtake_streamed(Lanes& lanes, Inputs inputs, const StreamedCall& c, u32 tag) {
  if (c.words == nullptr || tag == 0) return false;
  return c.half ? stage_tagged_of_type<Dtype::f16>(lanes, inputs, c, tag) : stage_tagged_of_type<Dtype::bf16>(lanes, inputs, c, tag);
}

/// What a body that is kOpStreams, called behind it, finishes: sums of a tile whose weights come through the ring. Inline where a worker runs
/// bodies: one copy for all products, which is therefore in the caches, and what a called function would keep in memory takes thousands of cycles to
/// come back while weights pass by. `has_row`: it lies in scratch, by overtake_streamed.
template <class Lanes, class Stream>
CCKS_INLINE void multiply_streamed(Lanes& lanes, Stream stream, const StreamedCall& c, bool has_row = false) {
  const u8* rows = c.rows;
  u32 pitch = c.pitch;
  if (c.staged != StreamedCall::kUnstaged) {
    if (!has_row) {
      if (c.half)
        stage_of_type<Dtype::f16>(lanes, c);
      else
        stage_of_type<Dtype::bf16>(lanes, c);
    }
    rows = lanes.scratch() + c.staged;
    pitch = streamed_pitch(c.k);
  }
  if (c.k % kStageDepth == 0 && !c.half)
    walk_streamed<Dtype::bf16, true>(lanes, stream, rows, pitch, c.m, c.n, c.k);
  else if (!c.half)
    walk_streamed<Dtype::bf16, false>(lanes, stream, rows, pitch, c.m, c.n, c.k);
  else
    walk_streamed<Dtype::f16, false>(lanes, stream, rows, pitch, c.m, c.n, c.k);
  lanes.sync();
  stream.leave();
}

/// Brings a streamed tile's sums together. That bodies went through this code once while they waited for their inputs, to have it in the caches, had
/// come to cost more than it gained (bench/README.md).
struct StreamedBody {
  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp;
    const ProductTile<Types> t = product_tile<Types>(call, tile);
    const bool turns = rope_table<Types>(call) != 0;  // results are pairs
    const bool twins = has_twin<Types>(call);
    const u32 columns = streamed_columns(turns || twins ? 2 * t.n : t.n);
    const float* sums = reinterpret_cast<const float*>(lanes.scratch());
    const u32 index = Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count;
    StreamedEnd<Lanes, Types> end(lanes, call.operands[index], t.m * t.n);
    if (!end.begin()) return;
    CCKS_NO_UNROLL
    for (u32 at = lanes.lane(); at < end.lanes_end(); at += Lanes::kLanes) {
      const u32 done = end.result_of(at);
      const u32 row = t.row + done / t.n, column = t.column + done % t.n;
      const float* of_warp = sums + done / t.n * columns + done % t.n;
      if (turns) {
        PairAngle angle;
        angle.load<Types>(call, row, column);
        const float first = sum_of_warps<kWarps>(of_warp, t.m * columns), second = sum_of_warps<kWarps>(of_warp + t.n, t.m * columns);
        finish_pair(call, types, angle, first, second, t.c1, row, column);
      } else {
        EpilogueValues<1, Types> values;
        values.template load<kTwins<Types> ? 1 : 0>(call, types, t.c0, t.c1, row, column);
        if (!end.take_beside(call, types, values, t, row, column)) break;
        const float all = sum_of_warps<kWarps>(of_warp, t.m * columns);
        const auto also = end.also(at);
        if (twins) {
          if constexpr (kMayTwin<Types>)
            finish_twins(call, types, expr, all, sum_of_warps<kWarps>(of_warp + t.n, t.m * columns), values, t.c0, t.c1, row, column, also);
        } else if constexpr (!kTwins<Types>) {
          finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, row, column, also);
        }
      }
    }
    end.finish(call);
  }

 private:
  template <u32 kWarps>
  static CCKS_INLINE float sum_of_warps(const float* sums, u32 warp) {
    float all = sums[0];
    CCKS_UNROLL
    for (u32 w = 1; w < kWarps; ++w) all += sums[w * warp];
    return all;
  }
};

/// False: nothing is done, and no stage is taken.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool streamed_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (StreamLanes<Lanes> && kStreamedTypes<TypeOf<0, Types>, TypeOf<1, Types>>) {
    // What is known when the body is compiled rules most products out; whether the tile streams only the worker knows, who has run
    // multiply_streamed.
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

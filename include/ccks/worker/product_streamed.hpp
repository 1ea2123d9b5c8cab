// matmul of up to eight rows of a by weights that come through a worker's ring (weight_stream.hpp), 16-bit floats on matrix units.
//
// While the tile waited for its inputs its weights were on their way, so what counts is what lies between the inputs and the end. A worker
// does what all these products have in common (multiply_streamed, the walk of streamed_walk.hpp), and an op's own body what is left (StreamedBody).
// Sums of warps meet in scratch.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/staged_rows.hpp"
#include "ccks/worker/streamed_walk.hpp"
#include "ccks/worker/turned_heads.hpp"
#include "ccks/worker/twin_products.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class A, class B>
inline constexpr bool kStreamedTypes = false;
template <>
inline constexpr bool kStreamedTypes<Runtime, Runtime> = true;
template <Dtype kType>
inline constexpr bool kStreamedTypes<Fixed<kType>, Fixed<kType>> = kType == Dtype::bf16 || kType == Dtype::f16;

/// Rows of f16, normed as an rmsnorm op would, into scratch.
template <class Lanes>
CCKS_INLINE void stage_normed_halves(Lanes& lanes, const StreamedCall& c) {
  constexpr Fixed<Dtype::f16> kType{};
  if (c.whole_weight)
    stage_normed_rows(lanes, kType, c.rows, c.pitch, Fixed<Dtype::f32>{}, c.weight, c.eps, c.m, c.k, c.kept, streamed_pitch(c.k));
  else
    stage_normed_rows(lanes, kType, c.rows, c.pitch, kType, c.weight, c.eps, c.m, c.k, c.kept, streamed_pitch(c.k));
}

/// A walk, and what stands behind each.
template <Dtype kType, bool kWhole, class Lanes, class Stream, class Inputs>
CCKS_INLINE bool walk_streamed(Lanes& lanes, Stream& stream, const StreamedCall& c, Inputs& inputs, bool staged) {
  if (!StreamedWalk<kType, kWhole, Lanes, Stream>(lanes, stream, c).run(inputs, staged)) return false;
  lanes.sync();
  stream.leave();
  return true;
}
/// What is rare: f16, pieces of k, rows too many for scratch, norms with a weight of another dtype. A function of its own, which takes copies: what the other walk keeps in
/// registers must have no address.
template <class Lanes, class Stream, class Inputs>
CCKS_OUTLINE bool walk_apart(Lanes& lanes, Stream stream, const StreamedCall c, Inputs inputs) {
  if (!c.half) return walk_streamed<Dtype::bf16, false>(lanes, stream, c, inputs, false);
  const bool normed = c.norms_rows();
  if (normed && !inputs.await()) return false;
  if (normed) stage_normed_halves(lanes, c);
  return walk_streamed<Dtype::f16, false>(lanes, stream, c, inputs, normed);
}

/// What a body that is kOpStreams, called behind it, finishes: sums of a tile whose weights come through the ring. Inline where a worker runs
/// bodies: one copy for all products, which is therefore in the caches, and what a called function would keep in memory takes thousands of cycles to
/// come back while weights pass by.
/// Inputs: bool are_there(), whether what other ops write is there, or the worker leaves before the tile; bool await(), by all lanes: until it is
/// so; false: the worker leaves. False: nothing is done, though stages may have been taken.
template <class Lanes, class Stream, class Inputs>
CCKS_INLINE bool multiply_streamed(Lanes& lanes, Stream stream, const StreamedCall& c, Inputs inputs) {
  if (c.half || c.kept == StreamedCall::kNowhere || c.k % kStageDepth != 0 || (c.weight != nullptr && (c.gain == StreamedCall::kNowhere || c.whole_weight)))
    return walk_apart<Lanes, Stream, Inputs>(lanes, stream, c, inputs);
  return walk_streamed<Dtype::bf16, true>(lanes, stream, c, inputs, false);
}

template <class T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<Fixed<Dtype::bf16>> = true;

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
    const bool factors = has_factors(call, types);
    CCKS_NO_UNROLL
    for (u32 done = lanes.lane(); done < t.m * t.n; done += Lanes::kLanes) {
      const u32 row = t.row + done / t.n, column = t.column + done % t.n;
      const float* at = sums + done / t.n * columns + done % t.n;
      const float factor = factors ? row_factor(lanes, call, t.m, columns, done / t.n) : 1.0f;
      if (turns) {
        PairAngle angle;
        angle.load<Types>(call, row, column);
        const float first = sum_of_warps<kWarps>(at, t.m * columns) * factor, second = sum_of_warps<kWarps>(at + t.n, t.m * columns) * factor;
        finish_pair(call, types, angle, first, second, t.c1, row, column);
      } else {
        EpilogueValues<1, Types> values;
        values.template load<kTwins<Types> ? 1 : 0>(call, types, t.c0, t.c1, row, column);
        const float all = sum_of_warps<kWarps>(at, t.m * columns) * factor;
        if (twins) {
          if constexpr (kMayTwin<Types>)
            finish_twins(call, types, expr, all, sum_of_warps<kWarps>(at + t.n, t.m * columns) * factor, values, t.c0, t.c1, row, column);
        } else if constexpr (!kTwins<Types>) {
          finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, row, column);
        }
      }
    }
  }

 private:
  /// Whether rows' factors wait for the sums (StreamedCall::has_factors).
  template <class Types>
  static CCKS_INLINE bool has_factors(const Call& call, const Types& types) {
    if constexpr (Types::kCount == 0)
      return call.op.dims[wire::kNormDim] != 0 && types.type_at(0).get() == Dtype::bf16;
    else
      return kNormed<Types> && kIsBf16<TypeOf<0, Types>>;
  }
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

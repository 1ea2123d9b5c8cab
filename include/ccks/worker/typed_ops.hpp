// TypedOp: one op with dtypes and code as template arguments. What generated workers run; README.md has the vocabulary.
#pragma once

#include "ccks/worker/generic_ops.hpp"
#include "ccks/worker/typed_expr.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// First epilogue operand of a kind, as OpParams::dims[kEpilogueDim] has it; 0 where there is no accumulator.
CCKS_INLINE constexpr u32 epilogue_first(OpCode kind) {
  return kind == OpCode::matmul || kind == OpCode::conv2d ? 2 : kind == OpCode::combine ? 3 : kind == OpCode::expert_matmul ? 4 : 0;
}

/// Code of a matmul that norms its rows first (wire::kNormDim).
template <class CodeOf>
struct Normed : CodeOf {};
template <class CodeOf>
inline constexpr bool kNormedCode = false;
template <class CodeOf>
inline constexpr bool kNormedCode<Normed<CodeOf>> = true;

/// Code of a matmul that turns heads (wire::kRopeDim), around Normed<> where both are so.
template <class CodeOf>
struct Roped : CodeOf {};
template <class CodeOf>
inline constexpr bool kRopedCode = false;
template <class CodeOf>
inline constexpr bool kRopedCode<Roped<CodeOf>> = true;
template <class CodeOf>
inline constexpr bool kNormedCode<Roped<CodeOf>> = kNormedCode<CodeOf>;

/// Code of a matmul or expert_matmul that has a twin (wire::kTwinDim): TwinOf for that, CodeOf for what it ends in. Inside of Normed<>.
template <class TwinOf, class CodeOf>
struct Twinned {
  template <u32 kEpilogueFirst>
  struct Bind {
    using Twin = typename TwinOf::template Bind<kEpilogueFirst>;
    using End = typename CodeOf::template Bind<kEpilogueFirst>;
  };
};
template <class CodeOf>
inline constexpr bool kTwinnedCode = false;
template <class TwinOf, class CodeOf>
inline constexpr bool kTwinnedCode<Twinned<TwinOf, CodeOf>> = true;
template <class CodeOf>
inline constexpr bool kTwinnedCode<Normed<CodeOf>> = kTwinnedCode<CodeOf>;

template <class CodeOf, class Types>
struct TypesOfCode {
  using type = Types;
};
template <class CodeOf, class Types>
struct TypesOfCode<Normed<CodeOf>, Types> {
  using type = NormedTypes<typename TypesOfCode<CodeOf, Types>::type>;
};
template <class TwinOf, class CodeOf, class Types>
struct TypesOfCode<Twinned<TwinOf, CodeOf>, Types> {
  using type = TwinTypes<Types>;
};
template <class CodeOf, class Types>
struct TypesOfCode<Roped<CodeOf>, Types> {
  using type = RopedTypes<typename TypesOfCode<CodeOf, Types>::type>;
};

/// CodeOf is Code<Ins<...>...>, or Twinned<>, Normed<> or Roped<> of it; kTypes are the dtypes of all operands, inputs then outputs.
template <OpCode kKind, class CodeOf, Dtype... kTypes>
struct TypedOp {
  using Types = typename TypesOfCode<CodeOf, FixedTypes<kTypes...>>::type;
  using Expr = typename CodeOf::template Bind<epilogue_first(kKind)>;

  template <class Lanes>
  static CCKS_OUTLINE FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run_inline(lanes, frame, op, tile);
  }
  /// For callers that are functions of this op alone.
  template <class Lanes>
  static CCKS_INLINE FaultCode run_inline(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    if (tile >= op.tile_count) return FaultCode::bad_op;
    const Call call(frame, op);
    return run_kind<kKind>(lanes, call, tile, Types{}, expr_of<Expr>(call));
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// TypedOp: one op with dtypes and code as template arguments. What generated workers run; README.md has the vocabulary.
#pragma once

#include "ccks/worker/generic_ops.hpp"
#include "ccks/worker/typed_expr.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// First epilogue operand of a kind, as OpParams::dims[kEpilogueDim] has it; 0 where there is no accumulator.
CCKS_INLINE constexpr u32 epilogue_first(OpCode kind) {
  return kind == OpCode::matmul || kind == OpCode::conv2d ? 2 : kind == OpCode::expert_matmul ? 4 : 0;
}

/// Code of a matmul that norms its rows first (wire::kNormDim).
template <class CodeOf>
struct Normed : CodeOf {};
template <class CodeOf>
inline constexpr bool kNormedCode = false;
template <class CodeOf>
inline constexpr bool kNormedCode<Normed<CodeOf>> = true;

template <bool kNormed, class Types>
struct TypesOfCode {
  using type = Types;
};
template <class Types>
struct TypesOfCode<true, Types> {
  using type = NormedTypes<Types>;
};

/// CodeOf is Code<Ins<...>...>, or Normed<> of it; kTypes are the dtypes of all operands, inputs then outputs.
template <OpCode kKind, class CodeOf, Dtype... kTypes>
struct TypedOp {
  using Types = typename TypesOfCode<kNormedCode<CodeOf>, FixedTypes<kTypes...>>::type;
  using Expr = typename CodeOf::template Bind<epilogue_first(kKind)>;

  template <class Lanes>
  static CCKS_OUTLINE FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run_inline(lanes, frame, op, tile);
  }
  /// For callers that are functions of this op alone.
  template <class Lanes>
  static CCKS_INLINE FaultCode run_inline(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    if (tile >= op.tile_count) return FaultCode::bad_op;
    return run_kind<kKind>(lanes, Call(frame, op), tile, Types{}, Expr{});
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

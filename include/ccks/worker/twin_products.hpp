// A matmul or expert_matmul with two weights (wire::kTwinDim): the product by the second, its twin, is argument 1 of what finishes the product by the first. What
// lies between two tiles of a worker it then pays once, and the twin's results go through no memory.
//
// A body that streams has both sums in scratch (finish_twins), as has that of experts on matrix units (finish_expert). Others multiply twice: the twin's results go to the output, and what finishes the
// other product reads them there, element by element, as it would read any operand.
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/turned_heads.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <class Types>
inline constexpr bool kMayTwin = Types::kCount == 0 || kTwins<Types>;

/// What finishes the twin, and what finishes the op.
template <class Expr>
CCKS_INLINE auto code_of_twin(const Call& call, const Expr& expr) {
  if constexpr (requires { typename Expr::Twin; })
    return typename Expr::Twin{};
  else
    return FrameCode{expr.code, static_cast<u32>(call.op.dims[wire::kTwinDim] - 1)};
}
template <class Expr>
CCKS_INLINE auto code_behind_twin(const Call& call, const Expr& expr) {
  if constexpr (requires { typename Expr::End; }) {
    return typename Expr::End{};
  } else {
    const u32 twins = static_cast<u32>(call.op.dims[wire::kTwinDim] - 1);
    return FrameCode{expr.code + twins, expr.count - twins};
  }
}

/// Keeps a value as a store of it and a load would.
template <class T>
struct KeepRounded {
  T type;
  float* to;
  template <class Value>
  CCKS_INLINE void operator()(const Value* v) const {
    *to = rounded_to(type, static_cast<float>(*v));
  }
};

/// Writes the result at (c0, c1, row, column) from its two products. `values`: those from the second operand of the epilogue on; `also` as in finish_marked.
template <class Types, class Expr, class Also = OnlyStores>
CCKS_INLINE void finish_twins(const Call& call, const Types& types, const Expr& expr, float own, float twin, const EpilogueValues<1, Types>& values,
                              u32 c0, u32 c1, u32 row, u32 column, const Also& also = {}) {
  const auto type = types.last(Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count);
  float between;
  evaluate_marked<1, Types>({call, types, &twin, epilogue_operand<Types>(call), c0, c1, row, column}, code_of_twin(call, expr), values,
                            KeepRounded<decltype(types.last(0))>{type, &between});
  finish_marked<1>(call, types, code_behind_twin(call, expr), &own, values, c0, c1, row, column, also, &between);
}

/// One of the two products of a call, as an op of its own. second: the input that is the twin's b.
template <class Types>
struct OneOfTwins {
  OperandParams operands[Types::kCount != 0 ? Types::kCount : wire::kMostTwinOperands];
  OpParams op;

  CCKS_INLINE OneOfTwins(const Call& call, bool twin, u32 second = 2) : op(call.op) {
    const u32 out = Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count;
    CCKS_UNROLL
    for (u32 i = 0; i <= out; ++i) operands[i] = call.operands[i];
    if (twin) operands[1] = call.operands[second];
    operands[second] = call.operands[out];  // where the twin leaves its results
    op.dims[wire::kTwinDim] = 0;
    if constexpr (!kShaped<Types>) op.operands = reinterpret_cast<u64>(operands);  // for bodies that make a call anew
  }
  CCKS_INLINE Call call(const RunFrame& frame) const { return Call(frame, op, operands); }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

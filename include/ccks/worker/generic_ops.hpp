// GenericOps: every op kind, with dtypes and code read from the frame. What generic workers run.
#pragma once

#include "ccks/worker/ops_attention.hpp"
#include "ccks/worker/ops_conv.hpp"
#include "ccks/worker/ops_index.hpp"
#include "ccks/worker/ops_map.hpp"
#include "ccks/worker/ops_matmul.hpp"
#include "ccks/worker/ops_moe.hpp"
#include "ccks/worker/ops_reduce.hpp"
#include "ccks/worker/ops_rows.hpp"
#include "ccks/worker/prefetch.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// One op kind on given dtypes and code; FaultCode is the same on all lanes.
template <OpCode kKind, class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_kind(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (kKind == OpCode::map)
    return run_map(lanes, call, tile, types, expr);
  else if constexpr (kKind == OpCode::reduce)
    return run_reduce(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::softmax)
    return run_softmax(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::rmsnorm)
    return run_rmsnorm(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::layernorm)
    return run_layernorm(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::matmul)
    return run_matmul(lanes, call, tile, types, expr);
  else if constexpr (kKind == OpCode::attention)
    return run_attention(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::rope)
    return run_rope(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::gather)
    return run_gather(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::scatter)
    return run_scatter(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::argmax)
    return run_argmax(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::topk)
    return run_topk(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::conv2d)
    return run_conv2d(lanes, call, tile, types, expr);
  else if constexpr (kKind == OpCode::route)
    return run_route(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::expert_matmul)
    return run_expert_matmul(lanes, call, tile, types, expr);
  else if constexpr (kKind == OpCode::combine)
    return run_combine(lanes, call, tile, types, expr);
  else if constexpr (kKind == OpCode::report)
    return run_report(lanes, call, tile, types);
  else if constexpr (kKind == OpCode::select)
    return run_select(lanes, call, tile, types);
  else
    return FaultCode::bad_op;
}

struct GenericOps {
  static constexpr bool kAwaitsInputs = true;  // bodies of ops that are kOpEarly do
  template <class Lanes>
  static CCKS_HD FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    const Call call(frame, op);
    if (tile >= op.tile_count) return FaultCode::bad_op;
    switch (static_cast<OpCode>(op.kind)) {
      case OpCode::map:
        return kind<OpCode::map>(lanes, call, tile);
      case OpCode::reduce:
        return kind<OpCode::reduce>(lanes, call, tile);
      case OpCode::softmax:
        return kind<OpCode::softmax>(lanes, call, tile);
      case OpCode::rmsnorm:
        return kind<OpCode::rmsnorm>(lanes, call, tile);
      case OpCode::layernorm:
        return kind<OpCode::layernorm>(lanes, call, tile);
      case OpCode::matmul:
        return kind<OpCode::matmul>(lanes, call, tile);
      case OpCode::attention:
        return kind<OpCode::attention>(lanes, call, tile);
      case OpCode::rope:
        return kind<OpCode::rope>(lanes, call, tile);
      case OpCode::gather:
        return kind<OpCode::gather>(lanes, call, tile);
      case OpCode::scatter:
        return kind<OpCode::scatter>(lanes, call, tile);
      case OpCode::argmax:
        return kind<OpCode::argmax>(lanes, call, tile);
      case OpCode::topk:
        return kind<OpCode::topk>(lanes, call, tile);
      case OpCode::conv2d:
        return kind<OpCode::conv2d>(lanes, call, tile);
      case OpCode::route:
        return kind<OpCode::route>(lanes, call, tile);
      case OpCode::expert_matmul:
        return kind<OpCode::expert_matmul>(lanes, call, tile);
      case OpCode::combine:
        return kind<OpCode::combine>(lanes, call, tile);
      case OpCode::report:
        return kind<OpCode::report>(lanes, call, tile);
      case OpCode::select:
        return kind<OpCode::select>(lanes, call, tile);
      default:
        return FaultCode::bad_op;
    }
  }

  /// Starts loads of operands that depend on no other op. Lanes are a subset of the worker's; there is no barrier.
  static CCKS_HD void prefetch(u32 lane, u32 lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    prefetch_tile(lane, lanes, Call(frame, op), tile);
  }

 private:
  template <OpCode kKind, class Lanes>
  static CCKS_OUTLINE FaultCode kind(Lanes& lanes, const Call& call, u32 tile) {
    return run_kind<kKind>(lanes, call, tile, RuntimeTypes{call.operands}, FrameCode{call.code(), call.op.code_count});
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

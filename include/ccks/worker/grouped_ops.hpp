// GroupedOp, BlocksOp: the body of matmuls that are kOpGroups, of any shape, but that it may know how wide their blocks are (ProductBlocks). What all products of a program run in turn has room
// where a GPU keeps instructions; a body for each shape had not: a step of 64 rows of a Llama layer ran seven of them, each anew from memory. Other lanes run a TypedOp.
#pragma once

#include "ccks/worker/product_held.hpp"
#include "ccks/worker/typed_ops.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <OpCode kKind, class CodeOf, u32 kColumns, Dtype... kTypes>
struct GroupedOp {
  using Types = FixedTypes<kTypes...>;
  using Expr = typename CodeOf::template Bind<epilogue_first(kKind)>;
  static_assert(kKind == OpCode::matmul);

  template <class Lanes>
  static CCKS_OUTLINE FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run_inline(lanes, frame, op, tile);
  }
  /// bad_op: the op is not kOpGroups, or scratch has no room for stages.
  template <class Lanes>
  static CCKS_INLINE FaultCode run_inline(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    if constexpr (GroupLanes<Lanes> && kGroupedTypes<Types, Expr>) {
      if (tile >= op.tile_count || (op.flags & wire::kOpGroups) == 0 || lanes.scratch_bytes() < kCudaGroupedScratchBytes) return FaultCode::bad_op;
      run_grouped<Types, Expr, kColumns>(lanes, frame, op, tile);
      return FaultCode::none;
    } else {
      return TypedOp<kKind, CodeOf, kTypes...>::run(lanes, frame, op, tile);
    }
  }
};

/// The same where tiles may be blocks: where the op is kOpBlocks and the worker has made a copy of it. kMoves: as run_near_block has it.
template <OpCode kKind, class CodeOf, u32 kColumns, u32 kMoves, Dtype... kTypes>
struct BlocksOp : GroupedOp<kKind, CodeOf, kColumns, kTypes...> {
  using Whole = GroupedOp<kKind, CodeOf, kColumns, kTypes...>;
  using typename Whole::Expr;
  using typename Whole::Types;
  static_assert(kColumns != 0 && Types::kCount <= kNearOperands && are_halves<Types>());

  template <class Lanes>
  static CCKS_OUTLINE FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run_inline(lanes, frame, op, tile);
  }
  template <class Lanes>
  static CCKS_INLINE FaultCode run_inline(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return wire::has_blocks(op) ? run_block(lanes, frame, op, tile) : run_other(lanes, frame, op, tile);
  }
  // run_inline in two, for those who have a function for each.
  template <class Lanes>
  static CCKS_INLINE FaultCode run_block(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    if constexpr (GroupLanes<Lanes> && NearLanes<Lanes> && kGroupedTypes<Types, Expr>) {
      const NearOp& near = *lanes.nearby(reinterpret_cast<const NearOp*>(&op));
      if (tile >= near.op.tile_count || lanes.scratch_bytes() < kCudaGroupedScratchBytes) return FaultCode::bad_op;
      if constexpr (kMayBeHeld<Expr>)
        HeldBlock<Types, Expr, kColumns, kMoves, Lanes>(lanes, near, tile).run();
      else
        run_near_block<Types, Expr, kColumns, kMoves>(lanes, Call(frame, op), near, tile);
      return FaultCode::none;
    } else {
      return run_other(lanes, frame, op, tile);
    }
  }
  template <class Lanes>
  static CCKS_INLINE FaultCode run_other(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return Whole::run_inline(lanes, frame, op, tile);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// ShapedOp: a TypedOp whose windows, tiles and grid are template arguments too. For ops that no dim of the program changes, on
// lanes in warps: what a body works out of its frame is then known to the compiler, and a body is a third as long.
// The frame still says where operands begin. Only for ops that mark_shape marks.
#pragma once

#include "ccks/worker/typed_ops.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Extents and strides of an operand that begins at a multiple of 16.
template <i32 kDim0, i32 kDim1, i32 kDim2, i32 kDim3, i64 kStride0, i64 kStride1, i64 kStride2, i64 kStride3, u32 kFlags>
struct Window {
  static constexpr i32 kRows = kDim2;
  CCKS_HD static constexpr OperandParams params(Dtype dtype) {
    OperandParams o{};
    o.stride[0] = kStride0, o.stride[1] = kStride1, o.stride[2] = kStride2, o.stride[3] = kStride3;
    o.dim[0] = kDim0, o.dim[1] = kDim1, o.dim[2] = kDim2, o.dim[3] = kDim3;
    o.space = static_cast<u8>(wire::Space::absolute);
    o.dtype = static_cast<u8>(dtype);
    o.flags = static_cast<u8>(kFlags);
    return o;
  }
};
template <class... Ws>
struct Windows;

/// tile[4], then grid[4].
template <i32... kValues>
struct Tiles;

template <class... Ws>
CCKS_HD constexpr i32 rows_of_last() {
  i32 rows = 0;
  ((rows = Ws::kRows), ...);
  return rows;
}
/// That a tile of the output, the last window, has at most: tiles are made for more rows than there may be.
template <class TilesOf, class WindowsOf>
inline constexpr i32 kMostTileRows = 0;
template <i32 k0, i32 k1, i32 kTileRows, i32... kOthers, class... Ws>
inline constexpr i32 kMostTileRows<Tiles<k0, k1, kTileRows, kOthers...>, Windows<Ws...>> =
    rows_of_last<Ws...>() < kTileRows ? rows_of_last<Ws...>() : kTileRows;

template <OpCode kKind, class CodeOf, class TilesOf, class WindowsOf, Dtype... kTypes>
struct ShapedOp;

template <OpCode kKind, class CodeOf, i32... kTiles, class... Ws, Dtype... kTypes>
struct ShapedOp<kKind, CodeOf, Tiles<kTiles...>, Windows<Ws...>, kTypes...> {
  static constexpr u32 kCount = sizeof...(kTypes);
  static_assert(sizeof...(Ws) == kCount && sizeof...(kTiles) == 8);
  using Types = typename TypesOfCode<CodeOf, ShapedTypes<kMostTileRows<Tiles<kTiles...>, Windows<Ws...>>, kTypes...>>::type;
  using Expr = typename CodeOf::template Bind<epilogue_first(kKind)>;

  struct Operands {
    OperandParams of[kCount];
  };
  CCKS_HD static constexpr Operands operands() { return {{Ws::params(kTypes)...}}; }
  /// The op as its frame has it, but for what is not of its shape.
  CCKS_HD static constexpr OpParams params() {
    OpParams op{};
    const i32 tiles[8] = {kTiles...};
    op.kind = static_cast<u8>(kKind);
    op.tile_count = 1;
    for (u32 i = 0; i < 4; ++i) {
      op.tile[i] = tiles[i];
      op.grid[i] = tiles[4 + i];
      op.tile_count *= static_cast<u32>(op.grid[i]);
    }
    op.input_count = static_cast<u16>(kCount - 1);
    op.output_count = 1;
    op.dims[wire::kEpilogueDim] = static_cast<i32>(epilogue_first(kKind));
    if (kNormedCode<CodeOf>) op.dims[wire::kNormDim] = static_cast<i32>(kCount - 2);
    if (kRopedCode<CodeOf>) op.dims[wire::kRopeDim] = static_cast<i32>(kCount - 2 - (kNormedCode<CodeOf> ? 1 : 0));
    if (kTwinnedCode<CodeOf>) op.dims[wire::kTwinDim] = 1;  // of the code only types know
    const Operands all = operands();
    wire::mark_shape(op, all.of);
    return op;
  }

  template <class Lanes>
  static CCKS_OUTLINE FaultCode run(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    return run_inline(lanes, frame, op, tile);
  }
  template <class Lanes>
  static CCKS_INLINE FaultCode run_inline(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
    constexpr OpParams kParams = params();
    constexpr Operands kOperands = operands();
    static_assert((kParams.flags & (wire::kOpFlat | wire::kOpVectors)) != 0, "only for ops that are marked");
    if (tile >= kParams.tile_count) return FaultCode::bad_op;
    // Apart: registers that a body keeps over calls are saved in memory for whatever else stands in its function.
    if constexpr (StreamLanes<Lanes> && kKind == OpCode::matmul) {
      if (!lanes.streams()) return run(static_cast<PlainLanes<Lanes>&>(lanes), frame, op, tile);
    }
    OpParams shaped = kParams;
    Operands own = kOperands;
    place(own, frame, op);
    for (u32 i = 0; i < 4; ++i) shaped.scalars[i] = op.scalars[i];
    if constexpr (kKind == OpCode::layernorm) shaped.dims[0] = kCount == 4 ? 1 : 0;  // whether there is a bias
    return run_kind<kKind>(lanes, Call(frame, shaped, own.of), tile, Types{}, Expr{});
  }

 private:
  /// Where a worker has made a copy of the op, the operands follow it and hold addresses.
  static CCKS_INLINE void place(Operands& own, const RunFrame& frame, const OpParams& op) {
    const bool copied = op.operands != 0;
    const auto* behind = reinterpret_cast<const OperandParams*>(&op + 1);
    // Read beside `copied`, not behind it: in a frame, too, operands stand behind the ops.
    CCKS_UNROLL
    for (u32 i = 0; i < kCount; ++i) {
      own.of[i].offset = behind[i].offset;
      if constexpr (kKind == OpCode::matmul) own.of[i].tags = behind[i].tags;
    }
    if constexpr (kKind == OpCode::matmul) own.of[0].flags |= behind[0].flags & wire::kOperandTagsAlone;
    if (!copied) {
      const Call call(frame, op);
      CCKS_UNROLL
      for (u32 i = 0; i < kCount; ++i) {
        own.of[i].offset = reinterpret_cast<u64>(operand_base(frame, call.operands[i]));
        own.of[i].tags = 0;  // who runs an op by itself has no run
      }
    }
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

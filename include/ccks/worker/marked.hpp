// What bodies share that rely on kOpVectors (wire/op_shape.hpp): tiles, 32-bit offsets, and expressions at a place. Kept to
// few instructions: with eight warps on an SM each costs some five cycles.
#pragma once

#include "ccks/worker/expr.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

CCKS_INLINE bool in_vectors(const OpParams& op) { return (op.flags & wire::kOpVectors) != 0; }

/// Of the first element along axis 3, in elements.
CCKS_INLINE u32 row_offset(const OperandParams& o, u32 c0, u32 c1, u32 c2) {
  return c0 * static_cast<u32>(o.stride[0]) + c1 * static_cast<u32>(o.stride[1]) + c2 * static_cast<u32>(o.stride[2]);
}

/// Arguments of kWidth (1 or 4) elements along axis 3. With an accumulator that is argument 0, and argument 1 + i is operand
/// `first` + i; else argument i is operand i.
template <bool kAccumulates, class Types>
struct MarkedArguments {
  const Call& call;
  Types types;
  const float* acc;
  u32 first, c0, c1, c2, c3;

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    if (kAccumulates && in.c == 0) {
      CCKS_UNROLL
      for (u32 i = 0; i < W; ++i) to[i] = Arguments<Types>::template from_acc<Value>(acc[i]);
      return;
    }
    const u32 index = kAccumulates ? first + in.c - 1 : in.c;
    const OperandParams& o = call.operands[index];
    const auto type = in.type(types, index);
    const bool moves = o.stride[3] != 0;
    const u8* from = operand_base(call.frame, o) + u64{row_offset(o, c0, c1, c2) + (moves ? c3 : 0)} * bytes_of(type);
    if constexpr (W == kVector) {
      if (moves) return load_four(type, from, to);
    }
    load_value(type, from, to);
    CCKS_UNROLL
    for (u32 i = 1; i < W; ++i) to[i] = to[0];
  }
};

/// Writes expr(arguments) for W elements at the arguments' place; operand `out` is the op's output.
template <u32 W, bool kAccumulates, class Types, class Expr>
CCKS_INLINE void evaluate_marked(const MarkedArguments<kAccumulates, Types>& args, const Expr& expr) {
  const u32 index = args.call.op.input_count;
  const OperandParams& out = args.call.operands[index];
  const auto type = args.types.last(index);
  u8* to = operand_base(args.call.frame, out) + u64{row_offset(out, args.c0, args.c1, args.c2) + args.c3} * bytes_of(type);
  const StoreAt<W, decltype(args.types.last(0))> store{to, type};
  if constexpr (kAccumulates) {
    if (expr.identity()) return store(args.acc);
  }
  Machine<W> machine(W);
  expr.run(machine, args, Place{{}, W});
  if (expr.result_is_int())
    store(machine.ints(expr.result()));
  else
    store(machine.floats(expr.result()));
}

/// The product of a tile: rows [row, row + m) and columns [column, column + n) at batch index (c0, c1).
struct ProductTile {
  u32 c0, c1, row, column, m, n;

  CCKS_INLINE ProductTile(const Call& call, u32 tile) {
    const OpParams& op = call.op;
    const OperandParams& out = call.operands[op.input_count];
    i32 c[4];
    tile_coordinates(op, tile, c);
    c0 = static_cast<u32>(c[0]);
    c1 = static_cast<u32>(c[1]);
    row = static_cast<u32>(c[2] * op.tile[2]);
    column = static_cast<u32>(c[3] * op.tile[3]);
    m = least(static_cast<u32>(op.tile[2]), static_cast<u32>(out.dim[2]) - row);
    n = least(static_cast<u32>(op.tile[3]), static_cast<u32>(out.dim[3]) - column);
  }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

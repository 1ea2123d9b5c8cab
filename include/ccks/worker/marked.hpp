// What bodies share that rely on kOpVectors (wire/op_shape.hpp): tiles, 32-bit offsets, and expressions at a place. Kept to
// few instructions: with eight warps on an SM each costs some five cycles.
#pragma once

#include "ccks/worker/expr.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

CCKS_INLINE bool in_vectors(const OpParams& op) { return (op.flags & wire::kOpVectors) != 0; }

/// tile_coordinates, without divisions.
CCKS_INLINE void marked_coordinates(const OpParams& op, u32 tile, i32 (&c)[4]) {
  const u32 packed = static_cast<u32>(op.dims[wire::kCoordinateDim]);
  if (packed == 0xffffffffu) return tile_coordinates(op, tile, c);
  CCKS_UNROLL
  for (u32 i = 3; i >= 1; --i) {
    const u32 bits = packed >> (8 * (3 - i)) & 31;
    c[i] = static_cast<i32>(tile & ((1u << bits) - 1));
    tile >>= bits;
  }
  c[0] = static_cast<i32>(tile);
}
/// Of a tile from `lo` on along a dim; without a look at the coordinate where all tiles are whole and the compiler can know it.
template <class Types>
CCKS_INLINE i32 marked_size(i32 tile, i32 dim, i32 lo) {
  if (kShaped<Types> && dim % tile == 0) return tile;
  return least(tile, dim - lo);
}
template <class Types>
CCKS_INLINE Box marked_box(const OpParams& op, u32 tile, const i32 (&dim)[4]) {
  Box box;
  i32 c[4];
  marked_coordinates(op, tile, c);
  CCKS_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    box.lo[i] = c[i] * op.tile[i];
    box.size[i] = marked_size<Types>(op.tile[i], dim[i], box.lo[i]);
  }
  return box;
}

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
  const float* twin = nullptr;  // argument 1, where it is no operand

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    if (kAccumulates && (in.c == 0 || (in.c == 1 && twin != nullptr))) {
      const float* from = in.c == 0 ? acc : twin;
      CCKS_UNROLL
      for (u32 i = 0; i < W; ++i) to[i] = Arguments<Types>::template from_acc<Value>(from[i]);
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

/// The operands of an epilogue for W elements, loaded before the product is there. Nothing where only the frame knows how many
/// there are, or where one is no float: those are loaded when their turn comes.
template <u32 W, class Types>
struct EpilogueValues {
  static constexpr u32 kFirst = 2;  // of a matmul
  static constexpr u32 kOthers = kFirst + 1 + (kNormed<Types> ? 1 : 0) + (kRoped<Types> ? 1 : 0);
  static constexpr u32 kCount = Types::kCount > kOthers ? Types::kCount - kOthers : 0;
  float v[kCount == 0 ? 1 : kCount][W] = {};

  /// kFrom: those before it are not operands.
  template <u32 kFrom = 0>
  CCKS_INLINE void load(const Call& call, const Types& types, u32 c0, u32 c1, u32 c2, u32 c3) {
    load_each<kFrom>(call, types, c0, c1, c2, c3);
  }

 private:
  template <u32 kIndex>
  CCKS_INLINE void load_each(const Call& call, const Types& types, u32 c0, u32 c1, u32 c2, u32 c3) {
    if constexpr (kIndex < kCount) {
      const auto type = types.template type<kFirst + kIndex>();
      const OperandParams& o = call.operands[kFirst + kIndex];
      const bool moves = o.stride[3] != 0;
      const u8* from = operand_base(call.frame, o) + u64{row_offset(o, c0, c1, c2) + (moves ? c3 : 0)} * bytes_of(type);
      if (W == kVector && moves) {
        if constexpr (W == kVector) load_four(type, from, v[kIndex]);
      } else {
        load_value(type, from, v[kIndex]);
        CCKS_UNROLL
        for (u32 i = 1; i < W; ++i) v[kIndex][i] = v[kIndex][0];
      }
      load_each<kIndex + 1>(call, types, c0, c1, c2, c3);
    }
  }
};

/// Arguments of an epilogue: accumulators, and what was loaded before.
template <u32 W, class Types>
struct EpilogueArguments {
  MarkedArguments<true, Types> all;
  const EpilogueValues<W, Types>& values;

  template <u32 kWidth, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place& p, Value* to) const {
    if constexpr (EpilogueValues<W, Types>::kCount != 0 && sizeof(Value) == sizeof(float)) {
      if (in.c != 0 && (all.twin == nullptr || in.c > 1)) {
        CCKS_UNROLL
        for (u32 i = 0; i < W; ++i) to[i] = values.v[in.c - 1][i];
        return;
      }
    }
    all.template load<kWidth>(in, p, to);
  }
};

/// Stores expr(accumulators, arguments) of W elements.
template <u32 W, class Types, class Expr, class Store>
CCKS_INLINE void evaluate_marked(const MarkedArguments<true, Types>& all, const Expr& expr, const EpilogueValues<W, Types>& values, const Store& store) {
  if (expr.identity()) return store(all.acc);
  const EpilogueArguments<W, Types> args{all, values};
  Machine<W> machine(W);
  expr.run(machine, args, Place{{static_cast<i32>(all.c0), static_cast<i32>(all.c1), static_cast<i32>(all.c2), static_cast<i32>(all.c3)}, W});
  if (expr.result_is_int())
    store(machine.ints(expr.result()));
  else
    store(machine.floats(expr.result()));
}
template <class Types>
CCKS_INLINE u32 epilogue_operand(const Call& call) {
  return Types::kCount != 0 ? 2 : static_cast<u32>(call.op.dims[wire::kEpilogueDim]);
}

/// What finish_marked does with results beside storing them: floats go to also(output, its begin, the first element's number, values) first, and stay with
/// it unless also.stores(), where it has that.
struct OnlyStores {
  CCKS_INLINE void operator()(const OperandParams&, u8*, u32, const float*) const {}
};
template <class Store, class Also>
struct StoresAlso {
  const Store& store;
  const Also& also;
  const OperandParams& out;
  u8* begin;
  u32 element;

  CCKS_INLINE void operator()(const float* values) const {
    also(out, begin, element, values);
    if constexpr (requires { also.stores(); }) {
      if (!also.stores()) return;
    }
    store(values);
  }
  template <class Int>
  CCKS_INLINE void operator()(const Int* values) const {
    store(values);
  }
};

/// Writes expr(accumulators, arguments) for W elements at (c0, c1, c2, c3) of the output. `twin`: argument 1, where it is no operand.
template <u32 W, class Types, class Expr, class Also = OnlyStores>
CCKS_INLINE void finish_marked(const Call& call, const Types& types, const Expr& expr, const float* acc, const EpilogueValues<W, Types>& values,
                               u32 c0, u32 c1, u32 c2, u32 c3, const Also& also = {}, const float* twin = nullptr) {
  const u32 index = Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count;
  const OperandParams& out = call.operands[index];
  const auto type = types.last(index);
  u8* const begin = operand_base(call.frame, out);
  const u32 element = row_offset(out, c0, c1, c2) + c3;
  using Store = StoreAt<W, decltype(types.last(0))>;
  const Store store{begin + u64{element} * bytes_of(type), type};
  evaluate_marked<W, Types>({call, types, acc, epilogue_operand<Types>(call), c0, c1, c2, c3, twin}, expr, values,
                            StoresAlso<Store, Also>{store, also, out, begin, element});
}

/// The input of a matmul that is a rope's table (wire::kRopeDim), where the types say so; 0: none.
template <class Types>
inline constexpr u32 kRopeTable = kRoped<Types> ? Types::kCount - 2 - (kNormed<Types> ? 1 : 0) : 0;
template <class Types>
CCKS_INLINE u32 rope_table(const Call& call) {
  return Types::kCount == 0 ? static_cast<u32>(call.op.dims[wire::kRopeDim]) : kRopeTable<Types>;
}

/// The product of a tile: rows [row, row + m) and columns [column, column + n) at batch index (c0, c1). Of a tile whose heads are turned
/// those of pairs' first; `tile` plus the op's tiles: those of their second.
template <class Types>
struct ProductTile {
  u32 c0, c1, row, column, m, n;

  CCKS_INLINE ProductTile(const Call& call, u32 tile, u32 out_index) {
    const OpParams& op = call.op;
    const OperandParams& out = call.operands[out_index];
    const bool second = rope_table<Types>(call) != 0 && tile >= op.tile_count;
    i32 c[4];
    marked_coordinates(op, second ? tile - op.tile_count : tile, c);
    c0 = second ? 1 : static_cast<u32>(c[0]);
    c1 = static_cast<u32>(c[1]);
    row = static_cast<u32>(c[2] * op.tile[2]);
    column = static_cast<u32>(c[3] * op.tile[3]);
    m = static_cast<u32>(marked_size<Types>(op.tile[2], out.dim[2], static_cast<i32>(row)));
    n = static_cast<u32>(marked_size<Types>(op.tile[3], out.dim[3], static_cast<i32>(column)));
  }
};

template <class Types>
CCKS_INLINE ProductTile<Types> product_tile(const Call& call, u32 tile) {
  return ProductTile<Types>(call, tile, Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count);
}

/// Runs a body of a product: Body::run(lanes, call, tile, types, expr). A function of its own, so that registers are shared
/// out for one of them at a time; inline where there is only one.
template <class Body, class Types, class Lanes, class Expr>
CCKS_OUTLINE void run_apart(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile, const Expr expr) {
  const Call call(frame, op);
  Body::run(lanes, call, tile, types_of<Types>(call), expr);
}
template <class Body, class Lanes, class Types, class Expr>
CCKS_INLINE void run_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (kShaped<Types>)
    Body::run(lanes, call, tile, types, expr);
  else
    run_apart<Body, Types>(lanes, call.frame, call.op, tile, expr);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

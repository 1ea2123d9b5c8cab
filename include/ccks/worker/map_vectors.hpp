// map where lanes run in warps and the frame says that it goes in vectors of four (kOpFlat, kOpVectors). A lane has two
// vectors under way: loads of both stand before the first result.
#pragma once

#include "ccks/worker/marked.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kMapVectors = 2;

/// Operands that a flat map takes: as many as the op has, or, where only the frame knows, enough for most.
template <class Types>
inline constexpr u32 kMapOperands = Types::kCount != 0 ? Types::kCount : 8;

template <class Types>
CCKS_INLINE u32 operand_count(const Call& call) {
  return Types::kCount != 0 ? Types::kCount : static_cast<u32>(call.op.input_count) + call.op.output_count;
}

/// The argument of an identity.
struct FirstArgument {
  static constexpr u32 c = 0;
  template <class Types>
  static CCKS_INLINE auto type(const Types& types, u32) {
    return types.template type<0>();
  }
};

/// Writes expr(arguments) for W elements; store(values) takes floats or ints. An identity goes through i64 where neither side
/// is a float, so that integers stay exact.
template <u32 W, class Args, class Types, class Expr, class Store>
CCKS_INLINE void evaluate_map(const Args& args, const Types& types, Dtype out, const Expr& expr, const Store& store) {
  Machine<W> machine(W);
  if (!expr.identity()) {
    expr.run(machine, args, Place{{}, W});
    if (expr.result_is_int())
      store(machine.ints(expr.result()));
    else
      store(machine.floats(expr.result()));
  } else if (wire::dtype_is_float(types.template type<0>().get()) || wire::dtype_is_float(out)) {
    args.template load<W>(FirstArgument{}, Place{}, machine.floats(0));
    store(machine.floats(0));
  } else {
    args.template load<W>(FirstArgument{}, Place{}, machine.ints(0));
    store(machine.ints(0));
  }
}

/// Arguments of a kOpFlat op: vectors `unit` and, if `second`, kStep behind it of every operand.
template <class Types, u32 kStep>
struct FlatArguments {
  Types types;
  const u8* base[kMapOperands<Types>];
  u32 unit;
  bool second;

  template <class T>
  CCKS_INLINE u64 offset(T type) const {
    return u64{unit} * (kVector * bytes_of(type));
  }
  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    static_assert(W == 2 * kVector);
    const auto type = in.type(types, in.c);
    const u8* from = base[in.c] + offset(type);
    load_four(type, from, to);
    CCKS_UNROLL
    for (u32 i = kVector; i < W; ++i) to[i] = Value{};
    if (second) load_four(type, from + kStep * kVector * bytes_of(type), to + kVector);
  }
};

template <class T, u32 kStep>
struct FlatStore {
  u8* to;
  T type;
  bool second;
  template <class Value>
  CCKS_INLINE void operator()(const Value* values) const {
    store_four(type, to, values);
    if (second) store_four(type, to + kStep * kVector * bytes_of(type), values + kVector);
  }
};

/// False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool flat_map(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const u32 count = operand_count<Types>(call);
  if (count > kMapOperands<Types>) return false;
  const u32 each = static_cast<u32>(call.op.dims[0]), first = tile * each;
  const u32 units = least(each, static_cast<u32>(call.op.dims[1]) - first) / kVector;
  constexpr u32 kStep = Lanes::kLanes;
  FlatArguments<Types, kStep> args{types, {}, lanes.lane(), false};
  CCKS_UNROLL
  for (u32 i = 0; i < count; ++i)
    args.base[i] = operand_base(call.frame, call.operands[i]) + u64{first} * types.bytes_at(i);
  const auto type = types.last(count - 1);
  u8* out = const_cast<u8*>(args.base[count - 1]);
  CCKS_NO_UNROLL
  for (; args.unit < units; args.unit += kMapVectors * kStep) {
    args.second = args.unit + kStep < units;
    const FlatStore<decltype(types.last(0)), kStep> store{out + args.offset(type), type, args.second};
    evaluate_map<kMapVectors * kVector>(args, types, type.get(), expr, store);
  }
  return true;
}

/// Of a kOpVectors op: rows of vectors, operands that broadcast.
template <class Lanes, class Types, class Expr>
CCKS_INLINE void row_map(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const u32 index = operand_count<Types>(call) - 1;
  const OperandParams& o = call.operands[index];
  const Box box = marked_box<Types>(call.op, tile, o.dim);
  const auto type = types.last(index);
  u8* out = operand_base(call.frame, o);
  const u32 per_row = static_cast<u32>(box.size[3]) / kVector, units = box.rows() * per_row;
  const bool even = (per_row & (per_row - 1)) == 0, plane = box.size[0] == 1 && box.size[1] == 1;
  CCKS_NO_UNROLL
  for (u32 unit = lanes.lane(); unit < units; unit += lanes.lanes()) {
    const u32 row = even ? unit >> log2_of(per_row) : unit / per_row, column = (unit - row * per_row) * kVector;
    i32 c[4] = {box.lo[0], box.lo[1], box.lo[2] + static_cast<i32>(row), 0};
    if (!plane) box.row_start(row, c);
    const MarkedArguments<false, Types> args{call, types, nullptr, 0, static_cast<u32>(c[0]), static_cast<u32>(c[1]),
                                             static_cast<u32>(c[2]), static_cast<u32>(box.lo[3]) + column};
    u8* to = out + u64{row_offset(o, args.c0, args.c1, args.c2) + args.c3} * bytes_of(type);
    evaluate_map<kVector>(args, types, type.get(), expr, StoreAt<kVector, decltype(types.last(0))>{to, type});
  }
}

/// Arguments of an op whose operands lie in the order of elements: element `at` of each.
template <class Types>
struct ElementArguments {
  const Call& call;
  Types types;
  u32 at;

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    static_assert(W == 1);
    const auto type = in.type(types, in.c);
    load_value(type, operand_base(call.frame, call.operands[in.c]) + u64{at} * bytes_of(type), to);
  }
};

/// Those of a tile of an op with kTileElementsDim.
struct TileElements {
  u32 first, end;
  CCKS_INLINE TileElements(const OpParams& op, u32 tile) {
    const u32 each = static_cast<u32>(op.dims[wire::kTileElementsDim]);
    first = tile * each;
    end = least(first + each, static_cast<u32>(op.dims[wire::kAllElementsDim]));
  }
};

template <class Lanes, class Types, class Expr>
CCKS_INLINE void element_map(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const u32 index = operand_count<Types>(call) - 1;
  const TileElements elements(call.op, tile);
  const auto type = types.last(index);
  u8* out = operand_base(call.frame, call.operands[index]);
  CCKS_NO_UNROLL
  for (u32 at = elements.first + lanes.lane(); at < elements.end; at += Lanes::kLanes) {
    const StoreAt<1, decltype(types.last(0))> store{out + u64{at} * bytes_of(type), type};
    evaluate_map<1>(ElementArguments<Types>{call, types, at}, types, type.get(), expr, store);
  }
}

/// out = in, as a map without code. False: nothing is done.
template <u32 kIn, u32 kOut, class Lanes, class Types>
CCKS_INLINE bool copy_elements(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if (call.op.dims[wire::kTileElementsDim] == 0) return false;
  const TileElements elements(call.op, tile);
  const auto from = types.template type<kIn>();
  const auto to = types.template type<kOut>();
  const u8* in = operand_base(call.frame, call.operands[kIn]);
  u8* out = operand_base(call.frame, call.operands[kOut]);
  const bool ints = !wire::dtype_is_float(from.get()) && !wire::dtype_is_float(to.get());  // stay exact
  CCKS_NO_UNROLL
  for (u32 at = elements.first + lanes.lane(); at < elements.end; at += Lanes::kLanes) {
    u8* place = out + u64{at} * bytes_of(to);
    if (ints)
      store_value(to, place, load_int(from, in, at));
    else
      store_value(to, place, load_float(from, in, at));
  }
  return true;
}

/// False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool vector_map(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const bool elements = call.op.dims[wire::kTileElementsDim] != 0;
  if (expr.uses_index()) {  // of one element they are all 0
    if (!elements || call.op.dims[wire::kAllElementsDim] != 1) return false;
    element_map(lanes, call, tile, types, expr);
    return true;
  }
  if ((call.op.flags & wire::kOpFlat) != 0 && flat_map(lanes, call, tile, types, expr)) return true;
  if (in_vectors(call.op)) {
    row_map(lanes, call, tile, types, expr);
    return true;
  }
  if (!elements) return false;
  element_map(lanes, call, tile, types, expr);
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

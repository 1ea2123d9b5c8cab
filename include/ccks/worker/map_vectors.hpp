// map where lanes run in warps and every operand is stepped through in vectors of four, or does not move along the last
// dim at all. A lane has two vectors under way: loads of both stand before the first result.
#pragma once

#include "ccks/worker/expr.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kMapVectors = 2;

/// Operands that a map in vectors takes: as many as the op has, or, where only the frame knows, enough for most.
template <class Types>
inline constexpr u32 kMapOperands = Types::kCount != 0 ? Types::kCount : 8;

template <class Types>
CCKS_INLINE u32 operand_count(const Call& call) {
  return Types::kCount != 0 ? Types::kCount : static_cast<u32>(call.op.input_count) + call.op.output_count;
}

/// Where a vector lies in the box.
struct VectorSpot {
  u32 column;  // elements along axis 3
  i32 c[3];    // along the others, from the box's start
  bool here;
};

/// What an expression's arguments are for the vectors of a lane. Argument i is operand i.
template <class Types>
struct VectorArguments {
  const Call& call;
  Types types;
  const u8* base[kMapOperands<Types>];  // element at the box's start
  bool flat, one_row;                   // flat: every operand moves along
  VectorSpot spot[kMapVectors];

  CCKS_INLINE i64 offset(const OperandParams& o, const VectorSpot& s) const {
    const i64 along = flat || o.stride[3] != 0 ? s.column : 0;
    return one_row ? along : along + s.c[0] * o.stride[0] + s.c[1] * o.stride[1] + s.c[2] * o.stride[2];
  }

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    static_assert(W == kMapVectors * kVector);
    const OperandParams& o = call.operands[in.c];
    const auto type = in.type(types, in.c);
    const bool moves = flat || o.stride[3] != 0;
    CCKS_UNROLL
    for (u32 u = 0; u < kMapVectors; ++u) {
      Value* mine = to + u * kVector;
      for (u32 i = 0; i < kVector; ++i) mine[i] = Value{};
      if (!spot[u].here) continue;
      const u8* from = base[in.c] + offset(o, spot[u]) * bytes_of(type);
      if (moves) {
        load_four(type, from, mine);
      } else {
        load_value(type, from, mine);
        for (u32 i = 1; i < kVector; ++i) mine[i] = mine[0];
      }
    }
  }
};

/// The argument of an identity.
struct FirstArgument {
  static constexpr u32 c = 0;
  template <class Types>
  static CCKS_INLINE auto type(const Types& types, u32) {
    return types.template type<0>();
  }
};

template <class Lanes, class Types, class Expr>
class VectorMap {
 public:
  CCKS_INLINE VectorMap(Lanes& lanes, const Call& call, const Types& types, const Expr& expr)
      : lanes_(lanes), expr_(expr), args_{call, types, {}, true, true, {}} {}

  /// For tiles of a kOpFlat op. False: bases are not aligned as offsets are.
  CCKS_INLINE bool find_flat(u32 tile) {
    const OpParams& op = args_.call.op;
    const u32 count = operand_count<Types>(args_.call);
    if (count > kMapOperands<Types>) return false;
    const u32 each = static_cast<u32>(op.dims[0]), first = tile * each;
    u32 low = 0;
    CCKS_UNROLL
    for (u32 i = 0; i < count; ++i) {
      const OperandParams& o = args_.call.operands[i];
      const u8* start = operand_base(args_.call.frame, o);
      low |= static_cast<u32>(reinterpret_cast<u64>(start));
      args_.base[i] = start + u64{first} * args_.types.bytes_at(i);
    }
    per_row_ = units_ = least(each, static_cast<u32>(op.dims[1]) - first) / kVector;
    args_.flat = args_.one_row = true;
    return low % 16 == 0;
  }

  /// Whether the box is rows of vectors in every operand, or of one element each.
  CCKS_INLINE bool find_rows(const Box& box) {
    const u32 count = operand_count<Types>(args_.call);
    if (count > kMapOperands<Types> || box.size[3] % static_cast<i32>(kVector) != 0) return false;
    bool all = true;
    CCKS_UNROLL
    for (u32 i = 0; i < count; ++i) {
      const OperandParams& o = args_.call.operands[i];
      i64 at = box.lo[3] * o.stride[3], odd = 0;
      for (u32 axis = 0; axis < 3; ++axis) {
        at += box.lo[axis] * o.stride[axis];
        odd |= box.size[axis] == 1 ? 0 : o.stride[axis];
      }
      const u32 bytes = args_.types.bytes_at(i);
      args_.base[i] = operand_base(args_.call.frame, o) + at * bytes;
      const bool along = o.stride[3] == 1 && odd % kVector == 0 && vector_aligned(args_.base[i], bytes);
      all = all && (along || (o.stride[3] == 0 && i + 1 < count));
    }
    per_row_ = static_cast<u32>(box.size[3]) / kVector;
    units_ = box.rows() * per_row_;
    args_.flat = false;
    args_.one_row = units_ == per_row_;
    return all;
  }

  CCKS_INLINE void run(const Box& box) {
    for (u32 unit = lanes_.lane(); unit < units_; unit += kMapVectors * lanes_.lanes()) {
      CCKS_UNROLL
      for (u32 u = 0; u < kMapVectors; ++u) find(box, args_.spot[u], unit + u * lanes_.lanes());
      evaluate();
    }
  }

 private:
  static constexpr u32 W = kMapVectors * kVector;

  CCKS_INLINE void find(const Box& box, VectorSpot& spot, u32 unit) const {
    spot.here = unit < units_;
    spot.column = unit * kVector;
    if (args_.one_row || !spot.here) return;
    const bool even = (per_row_ & (per_row_ - 1)) == 0;
    u32 row = even ? unit >> log2_of(per_row_) : unit / per_row_;
    spot.column = (unit - row * per_row_) * kVector;
    CCKS_UNROLL
    for (u32 axis = 3; axis-- > 0;) {
      const u32 extent = static_cast<u32>(box.size[axis]);
      const u32 outer = row < extent ? 0 : row / extent;
      spot.c[axis] = static_cast<i32>(row - outer * extent);
      row = outer;
    }
  }

  CCKS_INLINE void evaluate() {
    Machine<W> machine(W);
    if (expr_.identity()) return copy(machine);
    expr_.run(machine, args_, Place{{}, W});
    if (expr_.result_is_int())
      store(machine.ints(expr_.result()));
    else
      store(machine.floats(expr_.result()));
  }

  /// Through i64 where neither side is a float, so that integers stay exact.
  CCKS_INLINE void copy(Machine<W>& machine) {
    const auto to = args_.types.last(operand_count<Types>(args_.call) - 1);
    if (wire::dtype_is_float(args_.types.template type<0>().get()) || wire::dtype_is_float(to.get())) {
      args_.template load<W>(FirstArgument{}, Place{}, machine.floats(0));
      store(machine.floats(0));
    } else {
      args_.template load<W>(FirstArgument{}, Place{}, machine.ints(0));
      store(machine.ints(0));
    }
  }

  template <class Value>
  CCKS_INLINE void store(const Value* values) {
    const u32 out = operand_count<Types>(args_.call) - 1;
    const auto type = args_.types.last(out);
    CCKS_UNROLL
    for (u32 u = 0; u < kMapVectors; ++u) {
      if (!args_.spot[u].here) continue;
      const i64 at = args_.offset(args_.call.operands[out], args_.spot[u]) * bytes_of(type);
      store_four(type, const_cast<u8*>(args_.base[out]) + at, values + u * kVector);
    }
  }

  Lanes& lanes_;
  const Expr& expr_;
  VectorArguments<Types> args_;
  u32 per_row_ = 0, units_ = 0;  // vectors
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

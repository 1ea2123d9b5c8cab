// One tile of one op as its body sees it: operands, dtypes, the tile's box, guards.
#pragma once

#include "ccks/worker/element.hpp"
#include "ccks/worker/lanes.hpp"
#include "ccks/worker/tile_hints.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Elements a lane handles at a time: a vector loop on the host, one element where lanes are many.
template <class Lanes>
inline constexpr u32 kChunk = Lanes::kSingleLane ? 128 : 1;

template <class T>
CCKS_INLINE const T* frame_table(const RunFrame& frame, u32 offset) {
  return reinterpret_cast<const T*>(reinterpret_cast<const u8*>(&frame) + offset);
}

/// The frame outlives the call.
struct Call {
  const RunFrame& frame;
  const OpParams& op;
  const OperandParams* operands;

  CCKS_INLINE Call(const RunFrame& f, const OpParams& o)
      : frame(f), op(o),
        operands(o.operands != 0 ? reinterpret_cast<const OperandParams*>(o.operands)
                                 : frame_table<OperandParams>(f, f.operands) + o.operand_first) {}
  /// With operands that stand elsewhere; they outlive the call.
  CCKS_INLINE Call(const RunFrame& f, const OpParams& o, const OperandParams* own) : frame(f), op(o), operands(own) {}
  CCKS_INLINE const ExprInstr* code() const { return frame_table<ExprInstr>(frame, frame.code) + op.code_first; }
};

/// The frame begins with the bases in the order of Space; without a branch, since every lane does this for every operand.
CCKS_INLINE u64 space_base(const RunFrame& frame, wire::Space space) {
  return space == wire::Space::absolute ? 0 : (&frame.arena)[static_cast<u32>(space)];
}

CCKS_INLINE u8* operand_base(const RunFrame& frame, const OperandParams& p) {
  return reinterpret_cast<u8*>(space_base(frame, static_cast<wire::Space>(p.space)) + p.offset);
}

// ---- dtypes of all operands, inputs then outputs --------------------------------------------------------------------

/// Dtypes as the frame has them.
struct RuntimeTypes {
  static constexpr u32 kCount = 0;  // not known when the op is compiled
  const OperandParams* operands;
  template <u32 kIndex>
  CCKS_INLINE Runtime type() const {
    return {static_cast<Dtype>(operands[kIndex].dtype)};
  }
  CCKS_INLINE Runtime type_at(u32 index) const { return {static_cast<Dtype>(operands[index].dtype)}; }
  CCKS_INLINE Runtime last(u32 index) const { return type_at(index); }
  CCKS_INLINE u32 bytes_at(u32 index) const { return wire::dtype_bytes(type_at(index).get()); }
};

/// Dtypes fixed when the op is compiled.
template <Dtype... kTypes>
struct FixedTypes {
  static constexpr u32 kCount = sizeof...(kTypes);
  template <u32 kIndex>
  static CCKS_INLINE auto type() {
    static_assert(kIndex < sizeof...(kTypes), "the op has more operands than dtypes were named");
    constexpr Dtype kDtype = pick<kIndex, kTypes...>();
    return Fixed<kDtype>{};
  }
  /// The type of the last operand, whose index the caller knows only at run time.
  static CCKS_INLINE auto last(u32) { return type<sizeof...(kTypes) - 1>(); }
  static CCKS_INLINE u32 bytes_at(u32 index) {
    constexpr u32 kBytes[] = {wire::dtype_bytes(kTypes)...};
    return kBytes[index];
  }

 private:
  template <u32 kIndex, Dtype kFirst, Dtype... kRest>
  CCKS_HD static constexpr Dtype pick() {
    if constexpr (kIndex == 0)
      return kFirst;
    else
      return pick<kIndex - 1, kRest...>();
  }
};

/// The same where shapes are fixed too (shaped_ops.hpp): such a body is compiled for one op, inline. kRows: of a tile, along axis 2.
template <i32 kRows, Dtype... kTypes>
struct ShapedTypes : FixedTypes<kTypes...> {
  static constexpr i32 kShapedRows = kRows;
};
template <class Types>
inline constexpr bool kShaped = requires { Types::kShapedRows; };
/// Whether tiles may have more rows than `rows`. Asked of types, not of the op: what stands behind a call then is not in the code at all, and a call's
/// address given away keeps all of its op and operands in memory.
template <class Types>
CCKS_HD constexpr bool may_have_rows_beyond(i32 rows) {
  if constexpr (kShaped<Types>)
    return Types::kShapedRows > rows;
  else
    return true;
}

/// The same of a matmul that norms its rows first: the last input is the norm's weight (wire::kNormDim).
template <class Types>
struct NormedTypes : Types {
  static constexpr bool kNormed = true;
};
template <class Types>
inline constexpr bool kNormed = requires { Types::kNormed; };

/// The same of a matmul that turns heads: a rope's table comes behind the other inputs, in front of a norm's weight (wire::kRopeDim).
template <class Types>
struct RopedTypes : Types {
  static constexpr bool kRoped = true;
};
template <class Types>
inline constexpr bool kRoped = requires { Types::kRoped; };

/// The same of a matmul or expert_matmul with a second b (wire::kTwinDim).
template <class Types>
struct TwinTypes : Types {
  static constexpr bool kTwins = true;
};
/// false also where only the frame knows (has_twin).
template <class Types>
inline constexpr bool kTwins = requires { Types::kTwins; };
template <class Types>
CCKS_INLINE bool has_twin(const Call& call) {
  return kTwins<Types> || (Types::kCount == 0 && call.op.dims[wire::kTwinDim] != 0);
}

/// Fixed<...> or Runtime of an operand. `declared` is for decltype only.
template <class T>
CCKS_HD const T& declared();
template <u32 kIndex, class Types>
using TypeOf = decltype(declared<Types>().template type<kIndex>());

/// Types as bodies get them, made anew from the call.
template <class Types>
CCKS_INLINE Types types_of(const Call& call) {
  if constexpr (Types::kCount != 0)
    return Types{};
  else
    return Types{call.operands};
}

// ---- strided windows ------------------------------------------------------------------------------------------------

template <class T>
struct View {
  u8* data;
  i64 stride[4];
  i32 dim[4];
  T type;

  CCKS_INLINE i64 offset(i32 c0, i32 c1, i32 c2, i32 c3) const {
    return c0 * stride[0] + c1 * stride[1] + c2 * stride[2] + c3 * stride[3];
  }
  CCKS_INLINE u8* at(i32 c0, i32 c1, i32 c2, i32 c3) const { return data + offset(c0, c1, c2, c3) * bytes_of(type); }
  CCKS_INLINE u8* at(const i32 (&c)[4]) const { return at(c[0], c[1], c[2], c[3]); }
};

template <class T>
CCKS_INLINE View<T> make_view(const Call& call, u32 index, T type) {
  const OperandParams& p = call.operands[index];
  View<T> v{operand_base(call.frame, p), {}, {}, type};
  for (u32 i = 0; i < 4; ++i) {
    v.stride[i] = p.stride[i];
    v.dim[i] = p.dim[i];
  }
  return v;
}
template <u32 kIndex, class Types>
CCKS_INLINE auto view_of(const Call& call, const Types& types) {
  return make_view(call, kIndex, types.template type<kIndex>());
}

/// A matrix in memory.
template <class T>
struct Matrix {
  const u8* data;
  i64 row_stride, column_stride;  // elements
  T type;

  CCKS_INLINE const u8* at(u32 row, u32 column) const {
    return data + (static_cast<i64>(row) * row_stride + static_cast<i64>(column) * column_stride) * bytes_of(type);
  }
};

/// The part of the tile space that a tile covers.
struct Box {
  i32 lo[4];
  i32 size[4];  // clipped; 0 where the tile lies outside

  CCKS_INLINE u32 rows() const {
    return size[3] == 0 ? 0 : static_cast<u32>(size[0]) * static_cast<u32>(size[1]) * static_cast<u32>(size[2]);
  }
  /// Coordinates of the first element of a row, rows counted in order.
  CCKS_INLINE void row_start(u32 row, i32 (&c)[4]) const {
    c[3] = lo[3];
    for (u32 i = 3; i-- > 0;) {
      const u32 extent = static_cast<u32>(size[i]);
      c[i] = lo[i] + static_cast<i32>(row % extent);
      row /= extent;
    }
  }
};

/// Most grids are long in one dim only, and then nothing is divided.
CCKS_INLINE void tile_coordinates(const OpParams& op, u32 tile, i32 (&c)[4]) {
  u32 extent[4], longer = 0;
  CCKS_UNROLL
  for (u32 i = 0; i < 4; ++i) {
    extent[i] = static_cast<u32>(most(op.grid[i], 1));
    longer += extent[i] > 1;
    c[i] = extent[i] > 1 ? static_cast<i32>(tile) : 0;
  }
  if (longer <= 1) return;
  CCKS_UNROLL
  for (u32 i = 4; i-- > 0;) {
    const bool even = (extent[i] & (extent[i] - 1)) == 0;
    const u32 outer = even ? tile >> log2_of(extent[i]) : tile / extent[i];
    c[i] = static_cast<i32>(tile - outer * extent[i]);
    tile = outer;
  }
}

CCKS_INLINE Box tile_box(const OpParams& op, u32 tile, const i32 (&dim)[4]) {
  Box box;
  i32 c[4];
  tile_coordinates(op, tile, c);
  for (u32 i = 0; i < 4; ++i) {
    box.lo[i] = c[i] * op.tile[i];
    box.size[i] = most(0, least(op.tile[i], dim[i] - box.lo[i]));
  }
  return box;
}

// ---- guards
// -----------------------------------------------------------------------------------------------------------

template <class T>
CCKS_INLINE bool compare_values(T a, u32 how, T b) {
  switch (static_cast<wire::Compare>(how)) {
    case wire::Compare::eq:
      return a == b;
    case wire::Compare::ne:
      return a != b;
    case wire::Compare::lt:
      return a < b;
    case wire::Compare::le:
      return a <= b;
    case wire::Compare::gt:
      return a > b;
    default:
      return a >= b;
  }
}

/// Whether guards [first, first + count) of the frame all hold. The caller has waited for the reports.
CCKS_INLINE bool guards_hold(const RunFrame& frame, u32 first, u32 count) {
  const GuardParams* guards = frame_table<GuardParams>(frame, frame.guards) + first;
  for (u32 i = 0; i < count; ++i) {
    const GuardParams& g = guards[i];
    const u8* word = reinterpret_cast<const u8*>(frame.arena + g.offset);
    const bool holds = g.is_float ? compare_values(*reinterpret_cast<const float*>(word), g.compare, g.float_value)
                                  : compare_values(*reinterpret_cast<const i32*>(word), g.compare, g.int_value);
    if (!holds) return false;
  }
  return true;
}

// ---- scratch
// ------------------------------------------------------------------------------------------------------------

/// Hands out pieces of a worker's scratch, each 64-byte aligned. `take` gives nullptr when it does not fit.
struct Scratch {
  u8* at;
  u32 left;

  template <class T>
  CCKS_INLINE T* take(u32 count) {
    const u64 bytes = (static_cast<u64>(count) * sizeof(T) + 63) & ~u64{63};
    if (bytes > left) return nullptr;
    T* p = reinterpret_cast<T*>(at);
    at += bytes;
    left -= static_cast<u32>(bytes);
    return p;
  }
};
template <class Lanes>
CCKS_INLINE Scratch scratch_of(Lanes& lanes) {
  u32 bytes = lanes.scratch_bytes();
  if constexpr (WarpLanes<Lanes>) bytes = bytes >= kCudaGroupedScratchBytes ? bytes - kCudaKeptBytes : bytes;  // what a body keeps for the next is nobody else's
  return {lanes.scratch(), bytes};
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

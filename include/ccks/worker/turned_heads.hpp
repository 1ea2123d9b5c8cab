// What a matmul with a rope's table (wire::kRopeDim) does beside multiplying: a step's queries and keys need no op of their own to be turned, with
// a hop before and one behind. A product is rounded to the dtype of the output, as if it had been stored and read by a rope, and then
// turned in f32.
#pragma once

#include "ccks/worker/marked.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Turns what the tile's products are, where they lie: (0, head, row, j) and (1, head, row, j) of the output are a pair. For bodies
/// that know nothing of pairs. All lanes take part; the caller's stores to a tile need no barrier behind them.
template <class Lanes, class Types>
CCKS_INLINE void turn_stored(Lanes& lanes, const Call& call, const Types& types, const Box& box) {
  const u32 out_index = call.op.input_count, table_index = rope_table<Types>(call);
  const auto out = make_view(call, out_index, types.last(out_index));
  const OperandParams& table = call.operands[table_index];
  const u8* angles = operand_base(call.frame, table);
  const u32 pairs = static_cast<u32>(box.size[3]), rows = static_cast<u32>(box.size[2]), all = pairs * rows * static_cast<u32>(box.size[1]);
  const i64 sines = table.stride[3] * (table.dim[3] / 2);
  lanes.sync();
  CCKS_NO_UNROLL
  for (u32 o = lanes.lane(); o < all; o += lanes.lanes()) {
    const u32 line = o / pairs, head = line / rows;
    const i32 j = box.lo[3] + static_cast<i32>(o - line * pairs), row = box.lo[2] + static_cast<i32>(line - head * rows);
    u8* at = out.at(0, box.lo[1] + static_cast<i32>(head), row, j);
    const i64 angle = row * table.stride[2] + j * table.stride[3];
    const float u = load_float(out.type, at, 0), v = load_float(out.type, at, out.stride[0]);
    const float cosine = load_float(Fixed<Dtype::f32>{}, angles, angle), sine = load_float(Fixed<Dtype::f32>{}, angles, angle + sines);
    store_float(out.type, at, 0, u * cosine - v * sine);
    store_float(out.type, at, out.stride[0], u * sine + v * cosine);
  }
}

/// The angle of a pair of the tile's.
struct PairAngle {
  float cosine = 0, sine = 0;

  template <class Types>
  CCKS_INLINE void load(const Call& call, u32 row, u32 j) {
    const OperandParams& table = call.operands[rope_table<Types>(call)];
    const float* at = reinterpret_cast<const float*>(operand_base(call.frame, table)) + row * static_cast<u32>(table.stride[2]) + j;
    cosine = at[0];
    sine = at[table.dim[3] / 2];
  }
};

/// Writes a pair, of batch index (0, head), from its products in f32.
template <class Types>
CCKS_INLINE void finish_pair(const Call& call, const Types& types, const PairAngle& angle, float first, float second, u32 head, u32 row, u32 j) {
  const u32 index = Types::kCount != 0 ? Types::kCount - 1 : call.op.input_count;
  const OperandParams& out = call.operands[index];
  const auto type = types.last(index);
  u8* to = operand_base(call.frame, out) + u64{row_offset(out, 0, head, row) + j} * bytes_of(type);
  const float u = rounded_to(type, first), v = rounded_to(type, second);
  store_float(type, to, 0, u * angle.cosine - v * angle.sine);
  store_float(type, to, out.stride[0], u * angle.sine + v * angle.cosine);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

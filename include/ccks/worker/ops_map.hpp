// Ops that give each element its value from the elements at the same place: map, report, select.
#pragma once

#include "ccks/worker/expr.hpp"
#include "ccks/worker/map_vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Steps through the chunks of a box: `body(place)` for every chunk that is this lane's.
template <u32 W, class Lanes, class Body>
CCKS_INLINE void for_each_chunk(Lanes& lanes, const Box& box, Body&& body) {
  const u32 width = static_cast<u32>(box.size[3]), per_row = ceil_div(width, W);
  const u32 units = box.rows() * per_row;
  for (u32 unit = lanes.lane(); unit < units; unit += lanes.lanes()) {
    Place p;
    box.row_start(unit / per_row, p.c);
    const u32 first = unit % per_row * W;
    p.c[3] += static_cast<i32>(first);
    p.n = W == 1 ? 1 : least(W, width - first);
    body(p);
  }
}

/// Joins the two innermost dims of the box while every operand steps through them evenly, so that short rows become
/// long chunks. Coordinates along the joined dims then count elements of axis 3 beyond its extent, which is right for
/// offsets and wrong for index_i.
CCKS_INLINE void join_rows(Box& box, const OperandParams* operands, u32 count, u32 axis) {
  const i64 width = box.size[3];
  bool even = width * box.size[axis] <= 0x7fffffff;
  for (u32 i = 0; i < count; ++i) even = even && operands[i].stride[axis] == operands[i].stride[3] * width;
  if (!even) return;
  box.size[3] = static_cast<i32>(width * box.size[axis]);
  box.size[axis] = 1;
}

/// All windows of the call have the shape of the output or broadcast to it by stride 0.
template <class Types>
CCKS_INLINE void join_box(Box& box, const Call& call) {
  const u32 count = operand_count<Types>(call);
  for (u32 axis = 3; axis-- > 0;) {
    if (box.size[3] == 0) return;
    if (box.size[axis] == 1) continue;
    const i32 before = box.size[axis];
    join_rows(box, call.operands, count, axis);
    if (box.size[axis] == before) return;
  }
}

CCKS_INLINE bool is_float(Dtype d) { return wire::dtype_is_float(d); }

/// Copies one chunk, converting: through i64 where neither side is a float, so that integers stay exact.
template <u32 W, class In, class Out>
CCKS_INLINE void copy_chunk(const View<In>& in, const View<Out>& out, const Place& from, const Place& to) {
  if (!is_float(in.type.get()) && !is_float(out.type.get())) {
    i64 values[W];
    load_run(in.type, in.at(from.c), in.stride[3], from.n, values);
    store_run(out.type, out.at(to.c), out.stride[3], from.n, values);
  } else {
    float values[W];
    load_run(in.type, in.at(from.c), in.stride[3], from.n, values);
    store_run(out.type, out.at(to.c), out.stride[3], from.n, values);
  }
}

/// Same bits on both sides: moves whole rows.
template <class Lanes, class In, class Out>
CCKS_INLINE bool copy_rows(Lanes& lanes, const View<In>& in, const View<Out>& out, const Box& box) {
  if (!Lanes::kSingleLane || in.type.get() != out.type.get() || in.stride[3] != 1 || out.stride[3] != 1) return false;
  const u64 bytes = static_cast<u64>(box.size[3]) * bytes_of(in.type);
  for (u32 row = lanes.lane(); row < box.rows(); row += lanes.lanes()) {
    i32 c[4];
    box.row_start(row, c);
    copy_bytes(out.at(c), in.at(c), bytes);
  }
  return true;
}

template <class Lanes, class In, class Out>
CCKS_INLINE void copy_box(Lanes& lanes, const View<In>& in, const View<Out>& out, const Box& box) {
  constexpr u32 W = kChunk<Lanes>;
  if (copy_rows(lanes, in, out, box)) return;
  for_each_chunk<W>(lanes, box, [&](const Place& p) { copy_chunk<W>(in, out, p, p); });
}

/// map: out = expr(inputs).
template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_map(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (WarpLanes<Lanes>) {
    if (vector_map(lanes, call, tile, types, expr)) return FaultCode::none;
  }
  const u32 out_index = call.op.input_count;
  Box box = tile_box(call.op, tile, call.operands[out_index].dim);
  if (!expr.uses_index()) join_box<Types>(box, call);
  const auto out = make_view(call, out_index, types.last(out_index));
  if (expr.identity()) {
    copy_box(lanes, view_of<0>(call, types), out, box);
    return FaultCode::none;
  }
  constexpr u32 W = kChunk<Lanes>;
  const Arguments<Types> args{call, types, nullptr, 0};
  for_each_chunk<W>(lanes, box, [&](const Place& p) { evaluate<W>(args, expr, p, out); });
  return FaultCode::none;
}

/// report: a copy of at most 1024 elements, i32 or f32.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_report(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  if constexpr (WarpLanes<Lanes>) {
    if (copy_elements<0, 1>(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto out = view_of<1>(call, types);
  copy_box(lanes, view_of<0>(call, types), out, tile_box(call.op, tile, out.dim));
  return FaultCode::none;
}

/// select: copies `then` where the guards hold, else `else`.
template <class Lanes, class Types>
CCKS_INLINE FaultCode run_select(Lanes& lanes, const Call& call, u32 tile, const Types& types) {
  const bool taken = guards_hold(call.frame, static_cast<u32>(call.op.dims[0]), static_cast<u32>(call.op.dims[1]));
  if constexpr (WarpLanes<Lanes>) {
    if (taken ? copy_elements<0, 2>(lanes, call, tile, types) : copy_elements<1, 2>(lanes, call, tile, types)) return FaultCode::none;
  }
  const auto out = view_of<2>(call, types);
  Box box = tile_box(call.op, tile, out.dim);
  join_box<Types>(box, call);
  if (taken)
    copy_box(lanes, view_of<0>(call, types), out, box);
  else
    copy_box(lanes, view_of<1>(call, types), out, box);
  return FaultCode::none;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

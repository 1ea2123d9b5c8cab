// matmul and expert_matmul: problems for gemm.
#pragma once

#include "ccks/worker/expert_product.hpp"
#include "ccks/worker/expr.hpp"
#include "ccks/worker/gemm.hpp"
#include "ccks/worker/normed_matrix.hpp"
#include "ccks/worker/turned_heads.hpp"
#include "ccks/worker/product_block.hpp"
#include "ccks/worker/product_split.hpp"
#include "ccks/worker/product_streamed.hpp"
#include "ccks/worker/twin_products.hpp"
#if CCKS_HOST_BODIES
#include "ccks/worker/gemm_thin_host.hpp"
#endif

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of x that an expert's rows come from; no table: row i is row i.
struct RowTable {
  const u8* source = nullptr;
  i64 stride = 0;
  u32 divisor = 1;

  template <class T>
  CCKS_INLINE u32 row(T type, u32 i) const {
    return source == nullptr ? i : static_cast<u32>(load_int(type, source, i * stride)) / divisor;
  }
};

/// Applied: NotApplied, or what norms rows of a (normed_matrix.hpp).
template <class A, class B, class S, class Types, class Expr, class Out, class Applied>
struct MatmulProblem {
  using Epilogue = Expr;
  static constexpr u32 kThinRows = 4;
  Matrix<A> left;
  Matrix<B> right;
  RowTable table;
  S source_type;
  Arguments<Types> args;  // acc is set by finish
  const Expr& expr;
  View<Out> out;
  i32 c[4];  // of element (0, 0)
  Applied norm;

  CCKS_INLINE u32 row(u32 i) const { return table.row(source_type, i); }
  CCKS_INLINE float a(u32 i, u32 k) const {
    return norm.one(left.type, i, k, load_float(left.type, left.at(row(i), k), 0));
  }
  /// Elements [k, k + 4) of row i, where all_in_vectors says so.
  CCKS_INLINE void four_a(u32 i, u32 k, float (&to)[kVector]) const {
    load_four(left.type, left.at(row(i), k), to);
    norm.apply_four(left.type, i, k, to);
  }
  CCKS_INLINE float b(u32 k, u32 j) const { return load_float(right.type, right.at(k, j), 0); }
  CCKS_INLINE bool b_is_transposed() const { return right.column_stride != 1 && right.row_stride == 1; }

  CCKS_INLINE void run_a(u32 i, u32 k, u32 n, float* to) const {
    load_run(left.type, left.at(row(i), k), left.column_stride, n, to);
    norm.apply(left.type, i, k, n, to);
  }
  CCKS_INLINE void run_b(u32 k, u32 j, u32 n, float* to) const {
    load_run(right.type, right.at(k, j), right.column_stride, n, to);
  }
  CCKS_INLINE void column_b(u32 j, u32 k, u32 n, float* to) const {
    load_run(right.type, right.at(k, j), right.row_stride, n, to);
  }

  template <u32 W>
  CCKS_INLINE void finish(u32 i, u32 j, u32 n, const float* acc) const {
    Place p{{c[0], c[1], c[2] + static_cast<i32>(i), c[3] + static_cast<i32>(j)}, n};
    evaluate<W>(Arguments<Types>{args.call, args.types, acc, args.first}, expr, p, out);
  }
  CCKS_INLINE void finish_four(u32 i, u32 j, u32 n, const float* acc) const {
    const Place p{{c[0], c[1], c[2] + static_cast<i32>(i), c[3] + static_cast<i32>(j)}, n};
    evaluate_four(Arguments<Types>{args.call, args.types, acc, args.first}, expr, p, out);
  }
  /// The same of an op with a twin, from the sums of both.
  CCKS_INLINE void finish_four_twins(u32 i, u32 j, u32 n, const float* acc, float (&twin)[kVector]) const {
    const Place p{{c[0], c[1], c[2] + static_cast<i32>(i), c[3] + static_cast<i32>(j)}, n};
    finish_four_between(FourArguments<Types>{{args.call, args.types, twin, args.first}}, typename Expr::Twin{}, p, out.type, twin);
    evaluate_four(Arguments<Types>{args.call, args.types, acc, args.first}, typename Expr::End{}, p, out, twin);
  }
#if CCKS_HOST_BODIES
  CCKS_INLINE bool thin(Scratch scratch, u32 m, u32 n, u32 k) const { return thin_gemm(scratch, *this, m, n, k); }
#endif
};

template <class Lanes, class Types, class Expr>
CCKS_OUTLINE FaultCode any_matmul(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const auto a = view_of<0>(call, types);
  const auto b = view_of<1>(call, types);
  const u32 out_index = call.op.input_count;
  const auto out = make_view(call, out_index, types.last(out_index));
  const Box box = tile_box(call.op, tile, out.dim);
  using A = decltype(a.type);
  using B = decltype(b.type);
  const u32 m = static_cast<u32>(box.size[2]), n = static_cast<u32>(box.size[3]);
  const auto norm = norm_of(call, types);
  const u32 piece = norm.on() ? least(m, kNormedRows) : m;
  bool first = true;
  for (i32 c0 = box.lo[0]; c0 < box.lo[0] + box.size[0]; ++c0)
    for (i32 c1 = box.lo[1]; c1 < box.lo[1] + box.size[1]; ++c1)
      for (u32 i0 = 0; i0 < m; i0 += piece) {
        if (!first) lanes.sync();  // the product before is done with scratch
        first = false;
        const i32 row = box.lo[2] + static_cast<i32>(i0);
        const u32 rows = least(piece, m - i0);
        const Matrix<A> left{a.at(c0, c1, row, 0), a.stride[2], a.stride[3], a.type};
        Scratch scratch = scratch_of(lanes);
        const auto applied = prepare_norm(lanes, scratch, norm, left, rows, static_cast<u32>(a.dim[3]));
        const MatmulProblem<A, B, A, Types, Expr, decltype(out.type), decltype(applied)> problem{
            left,
            {b.at(c0, c1, 0, box.lo[3]), b.stride[2], b.stride[3], b.type},
            {},
            a.type,
            {call, types, nullptr, static_cast<u32>(call.op.dims[wire::kEpilogueDim])},
            expr,
            out,
            {c0, c1, row, box.lo[3]},
            applied};
        gemm(lanes, scratch, problem, rows, n, static_cast<u32>(a.dim[3]));
      }
  if (rope_table<Types>(call) != 0) turn_stored(lanes, call, types, box);
  return FaultCode::none;
}

/// Rows and columns of a matmul, from (row, column) on at batch index (c0, c1), as multiply_expert takes them.
template <class Types, class Expr>
struct RowsTile {
  static constexpr bool kExperts = false;
  const Call& call;
  const Types& types;
  const Expr& expr;
  i32 c0, c1, row, column;

  CCKS_INLINE auto problem() const {
    const auto a = view_of<0>(call, types);
    const auto b = view_of<1>(call, types);
    const u32 out_index = call.op.input_count;
    const auto out = make_view(call, out_index, types.last(out_index));
    return MatmulProblem<decltype(a.type), decltype(b.type), decltype(a.type), Types, Expr, decltype(out.type), NotApplied>{
        {a.at(c0, c1, row, 0), a.stride[2], a.stride[3], a.type},
        {b.at(c0, c1, 0, column), b.stride[2], b.stride[3], b.type},
        {},
        a.type,
        {call, types, nullptr, static_cast<u32>(call.op.dims[wire::kEpilogueDim])},
        expr,
        out,
        {c0, c1, row, column},
        {}};
  }
};

/// Products of more rows than the bodies for few take, by the walk of expert_matmul. False, and nothing is done, where that does not take them.
template <class Types, class Lanes, class Expr>
CCKS_OUTLINE bool staged_matmul(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  const Box box = tile_box(call.op, tile, call.operands[call.op.input_count].dim);
  const u32 m = static_cast<u32>(box.size[2]), n = static_cast<u32>(box.size[3]), k = static_cast<u32>(call.operands[0].dim[3]);
  for (i32 c0 = box.lo[0]; c0 < box.lo[0] + box.size[0]; ++c0)
    for (i32 c1 = box.lo[1]; c1 < box.lo[1] + box.size[1]; ++c1) {
      const RowsTile<Types, Expr> rows{call, types, expr, c0, c1, box.lo[2], box.lo[3]};
      if (m <= kMatrixRows || !expert_in_packets(lanes, rows.problem(), k)) return false;  // the same for all batch indices
      if (!await_inputs(lanes)) return true;
      if (n != 0) (void)multiply_expert(lanes, rows, m, n, k, 0);  // which names no rows
    }
  return true;
}

/// By one b, which does not stream.
template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode multiply_once(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (WarpLanes<Lanes>) {
    if constexpr (CopyLanes<Lanes> && kExpertUnits<TypeOf<0, Types>, TypeOf<1, Types>> && !kNormed<Types> && !kRoped<Types> &&
                  may_have_rows_beyond<Types>(static_cast<i32>(kMatrixRows))) {
      if (call.op.tile[2] > static_cast<i32>(kMatrixRows) && staged_matmul(lanes, call, tile, types, expr)) return FaultCode::none;
    }
    if (marked_product(lanes, call, tile, types, expr)) return FaultCode::none;
  }
  if constexpr (kShaped<Types>)
    return FaultCode::bad_op;  // not marked, and so no ShapedOp
  else
    return any_matmul(lanes, call, tile, types, expr);
}

template <class Types, class Lanes, class Expr>
CCKS_INLINE FaultCode multiply_one_of_twins(Lanes& lanes, const Call& call, u32 tile, bool twin, const Expr& expr) {
  const OneOfTwins<Types> one(call, twin);
  const Call own = one.call(call.frame);
  return multiply_once(lanes, own, tile, types_of<Types>(own), expr);
}
/// By two (wire::kTwinDim), one after the other.
template <class Types, class Lanes, class Expr>
CCKS_INLINE FaultCode multiply_twins(Lanes& lanes, const Call& call, u32 tile, const Expr& expr) {
  const FaultCode fault = multiply_one_of_twins<Types>(lanes, call, tile, true, code_of_twin(call, expr));
  if (fault != FaultCode::none) return fault;
  lanes.sync();  // scratch, and what lanes have left in the output for others
  return multiply_one_of_twins<Types>(lanes, call, tile, false, code_behind_twin(call, expr));
}

template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_matmul(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if (is_of_later_chunk(call.op, tile)) return FaultCode::none;
  if constexpr (WarpLanes<Lanes>) {
    if (streamed_product(lanes, call, tile, types, expr)) return FaultCode::none;
  }
  if constexpr (kTwins<Types>) {
    return multiply_twins<Types>(lanes, call, tile, expr);
  } else {
    if constexpr (Types::kCount == 0) {
      if (has_twin<Types>(call)) return multiply_twins<Types>(lanes, call, tile, expr);
    }
    return multiply_once(lanes, call, tile, types, expr);
  }
}

/// Finds the expert of row tile `index` by walking the counts: every lane does the same.
template <class C>
CCKS_INLINE ExpertRows find_expert(const View<C>& count, i32 experts, u32 index, u32 rows_per_tile, u32 rows) {
  ExpertRows found;
  i64 first = 0;
  for (i32 e = 0; e < experts; ++e) {
    const i64 taken = load_int(count.type, count.at(0, 0, 0, e), 0);
    if (taken < 0 || first + taken > rows) return found.sound = false, found;
    const u32 tiles = ceil_div(static_cast<u32>(taken), rows_per_tile);
    if (index < tiles) {
      found.expert = e;
      found.first = static_cast<u32>(first) + index * rows_per_tile;
      found.count = least(rows_per_tile, static_cast<u32>(taken) - index * rows_per_tile);
      return found;
    }
    index -= tiles;
    first += taken;
  }
  return found;
}

/// All lanes agree about a fault.
template <class Lanes, class S>
CCKS_INLINE bool sources_sound(Lanes& lanes, const View<S>& source, const ExpertRows& rows, i64 limit) {
  i32 wrong = 0;
  for (u32 i = lanes.lane(); i < rows.count; i += lanes.lanes()) {
    const i64 s = load_int(source.type, source.at(0, 0, 0, static_cast<i32>(rows.first + i)), 0);
    if (s < 0 || s >= limit) wrong = 1;
  }
  return lanes.max(wrong) == 0;
}

inline constexpr u32 kExpertTwin = 4;  // the input that is a twin's b

/// What an expert_matmul multiplies: rows of x, as routed, by the columns of one expert from j0 on.
template <class Types, class Expr>
CCKS_INLINE auto expert_problem(const Call& call, const Types& types, const Expr& expr, const ExpertRows& rows, i32 j0) {
  const auto x = view_of<0>(call, types);
  const auto b = view_of<1>(call, types);
  const auto source = view_of<2>(call, types);
  const u32 out_index = call.op.input_count;
  const auto out = make_view(call, out_index, types.last(out_index));
  const bool gather = call.op.dims[1] != 0;
  RowTable table;
  if (gather) table = {source.at(0, 0, 0, static_cast<i32>(rows.first)), source.stride[3], static_cast<u32>(most(call.op.dims[0], 1))};
  return MatmulProblem<decltype(x.type), decltype(b.type), decltype(source.type), Types, Expr, decltype(out.type), NotApplied>{
      {x.at(0, 0, gather ? 0 : static_cast<i32>(rows.first), 0), x.stride[2], x.stride[3], x.type},
      {b.at(0, rows.expert, 0, j0), b.stride[2], b.stride[3], b.type},
      table,
      source.type,
      {call, types, nullptr, static_cast<u32>(call.op.dims[wire::kEpilogueDim])},
      expr,
      out,
      {0, 0, static_cast<i32>(rows.first), j0},
      {}};
}

/// expert_problem, made where it is asked for.
template <class Types, class Expr>
struct ExpertTile {
  static constexpr bool kExperts = true;
  const Call& call;
  const Types& types;
  const Expr& expr;
  ExpertRows rows;
  i32 j0;
  CCKS_INLINE auto problem() const { return expert_problem(call, types, expr, rows, j0); }
  CCKS_INLINE const u8* twin_columns() const
    requires kTwins<Types>
  {
    return view_of<kExpertTwin>(call, types).at(0, rows.expert, 0, j0);
  }
  /// Whether the twin's columns, if there is one, lie as those of b that expert_in_packets takes.
  CCKS_INLINE bool twin_fits() const {
    if constexpr (kTwins<Types>) {
      const OperandParams &b = call.operands[1], &twin = call.operands[kExpertTwin];
      return b.stride[2] == twin.stride[2] && b.stride[3] == twin.stride[3] && reinterpret_cast<u64>(twin_columns()) % 16 == 0;
    }
    return true;
  }
};

/// For all rows and columns, a function of its own: where lanes run in warps most tiles have no need of it.
template <class Lanes, class Tile>
CCKS_OUTLINE void any_expert_matmul(Lanes& lanes, const Tile tile, u32 n, u32 k) {
  gemm(lanes, scratch_of(lanes), tile.problem(), tile.rows.count, n, k);
}

template <class Types, class Lanes, class Expr>
CCKS_INLINE void any_expert_of_twins(Lanes& lanes, const Call& call, bool twin, const Expr& expr, const ExpertRows& rows, i32 j0, u32 n, u32 k) {
  const OneOfTwins<Types> one(call, twin, kExpertTwin);
  const Call own = one.call(call.frame);
  const Types types = types_of<Types>(own);
  any_expert_matmul(lanes, ExpertTile<Types, Expr>{own, types, expr, rows, j0}, n, k);
}
/// By two (wire::kTwinDim), one after the other. A function of its own: the operands of each are in memory.
template <class Types, class Lanes, class Expr>
CCKS_OUTLINE void any_expert_twins(Lanes& lanes, const Call& call, const Expr expr, const ExpertRows rows, i32 j0, u32 n, u32 k) {
  any_expert_of_twins<Types>(lanes, call, true, code_of_twin(call, expr), rows, j0, n, k);
  lanes.sync();  // scratch, and what lanes have left in the output for others
  any_expert_of_twins<Types>(lanes, call, false, code_behind_twin(call, expr), rows, j0, n, k);
}

/// False: a row of x is named that there is not.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool multiply_tile(Lanes& lanes, const Call& call, const Types& types, const Expr& expr, const ExpertRows& rows, i32 j0, u32 n) {
  const ExpertTile<Types, Expr> tile{call, types, expr, rows, j0};
  const u32 k = static_cast<u32>(call.operands[0].dim[3]);
  const i64 limit = static_cast<i64>(call.operands[0].dim[2]) * most(call.op.dims[0], 1);
  if constexpr (CopyLanes<Lanes> && kExpertUnits<TypeOf<0, Types>, TypeOf<1, Types>>) {
    if (expert_in_packets(lanes, tile.problem(), k) && tile.twin_fits()) return multiply_expert(lanes, tile, rows.count, n, k, limit);
  }
  if (call.op.dims[1] != 0 && !sources_sound(lanes, view_of<2>(call, types), rows, limit)) return false;
  lanes.sync();  // who has looked for the expert is done with scratch
  if constexpr (kTwins<Types>) {
    any_expert_twins<Types>(lanes, call, expr, rows, j0, n, k);
  } else {
    if constexpr (Types::kCount == 0) {
      if (has_twin<Types>(call)) return any_expert_twins<Types>(lanes, call, expr, rows, j0, n, k), true;
    }
    any_expert_matmul(lanes, tile, n, k);
  }
  return true;
}

/// Every lane learns the same.
template <class Lanes, class C>
CCKS_INLINE ExpertRows rows_of_tile(Lanes& lanes, const View<C>& count, i32 experts, u32 index, u32 rows_per_tile, u32 rows, KeptTiles* kept) {
  if constexpr (WarpLanes<Lanes>)
    return find_expert_together(lanes, count, static_cast<u32>(most(experts, 0)), index, rows_per_tile, rows, kept);
  else
    return find_expert(count, experts, index, rows_per_tile, rows);
}

template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode multiply_routed_rows(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr, KeptTiles* kept = nullptr) {
  const OperandParams& out = call.operands[call.op.input_count];
  const u32 wide = static_cast<u32>(most(call.op.grid[3], 1)), down = tile / wide;  // routed rows have no other axes
  const u32 per_tile = static_cast<u32>(most(call.op.tile[2], 1));
  const auto count = view_of<3>(call, types);
  ExpertRows rows;
  if (kept != nullptr && kept->has(count.data))
    rows = kept->at(down);
  else
    rows = rows_of_tile(lanes, count, least(call.op.dims[2], call.operands[1].dim[1]), down, per_tile, static_cast<u32>(out.dim[2]), kept);
  if (!rows.sound) return FaultCode::bad_index;
  const i32 j0 = static_cast<i32>(tile - down * wide) * call.op.tile[3];
  const i32 n = least(call.op.tile[3], out.dim[3] - j0);
  if (rows.count == 0 || n <= 0) return FaultCode::none;
  return multiply_tile(lanes, call, types, expr, rows, j0, static_cast<u32>(n)) ? FaultCode::none : FaultCode::bad_index;
}

/// By a worker's own copy of the op, where there is one: loads of what the compiler knows to be shared memory are shorter.
template <class Lanes, class Types, class Expr>
CCKS_INLINE FaultCode run_expert_matmul(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (NearLanes<Lanes> && Types::kCount != 0 && !kShaped<Types>) {
    if (call.op.operands != 0) {
      const OpParams* near = lanes.nearby(&call.op);
      KeptTiles* kept = nullptr;
      if constexpr (GroupLanes<Lanes>) {
        if (lanes.scratch_bytes() >= kCudaGroupedScratchBytes) kept = &kept_tiles(lanes.scratch());
      }
      return multiply_routed_rows(lanes, Call(call.frame, *near, reinterpret_cast<const OperandParams*>(near + 1)), tile, types, expr, kept);
    }
  }
  return multiply_routed_rows(lanes, call, tile, types, expr);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

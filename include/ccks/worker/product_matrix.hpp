// matmul of up to eight rows of a where b lies in columns, of 16-bit floats, on matrix units: a unit takes eight columns of b and
// eight rows of a at a time, so that one row costs what eight do, and both what it takes to read b once.
//
// A packet of 16 bytes a lane along k holds what two products of 8 x 16 by 16 x 8 want of it, if k is taken in another order:
// the same for a and b, and sums do not mind. Warps have slices of k and all columns; their sums meet in scratch.
// The walk is short and the same for all products of a dtype (product_turned.hpp says why).
#pragma once

#include "ccks/worker/marked.hpp"
#include "ccks/worker/staged_rows.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kMatrixColumns = 16;  // of b at a time: two products of eight by eight, over the same rows of a
inline constexpr u32 kMatrixRows = 8;

template <class A, class B>
inline constexpr bool kInMatrixUnits = false;
template <Dtype kType>
inline constexpr bool kInMatrixUnits<Fixed<kType>, Fixed<kType>> = kType == Dtype::bf16 || kType == Dtype::f16;

/// From one row of a warp's sums to the next.
CCKS_INLINE constexpr u32 sums_pitch(u32 n) { return (n + kMatrixColumns - 1) & ~(kMatrixColumns - 1); }

/// Steps along k of 16 columns and up to eight rows: kSteps packets a lane of the columns `low` and `high`, and of its row, which
/// may have to be waited for. False: the tile does not run.
template <Dtype kType, u32 kSteps, class Lanes>
CCKS_INLINE bool multiply_steps(Lanes& lanes, bool& awaited, float (&acc)[2][2], const u8* low, const u8* high, const u8* row, bool within) {
  constexpr u32 kStepBytes = 64;
  Sixteen w[kSteps][2], x[kSteps];
  CCKS_UNROLL
  for (u32 s = 0; s < kSteps; ++s) {
    w[s][0] = within ? load_once(low + s * kStepBytes) : Sixteen{};
    w[s][1] = within ? load_once(high + s * kStepBytes) : Sixteen{};
  }
  if (!awaited && !await_inputs(lanes)) return false;
  awaited = true;
  CCKS_UNROLL
  for (u32 s = 0; s < kSteps; ++s) x[s] = within ? *reinterpret_cast<const Sixteen*>(row + s * kStepBytes) : Sixteen{};
  CCKS_UNROLL
  for (u32 s = 0; s < kSteps; ++s) {
    CCKS_UNROLL
    for (u32 half = 0; half < 2; ++half) {
      const u32 rows[2] = {x[s].word[2 * half], x[s].word[2 * half + 1]};
      CCKS_UNROLL
      for (u32 i = 0; i < 2; ++i) {
        const u32 columns[2] = {w[s][i].word[2 * half], w[s][i].word[2 * half + 1]};
        lanes.template multiply<kType>(acc[i], columns, rows);
      }
    }
  }
  return true;
}

/// [warp][row][sums_pitch(n)] at `sums` of scratch: what each warp has of the products of m rows and n columns. The first of b is
/// under way while a is waited for. False: the tile does not run.
template <Dtype kType, class Lanes>
CCKS_OUTLINE bool walk_matrix(Lanes& lanes, const u8* rows, const u8* columns, u32 sums, u32 pitch, u32 column_bytes, u32 m, u32 n, u32 k) {
  constexpr u32 kSteps = 4, kPacket = 8, kStep = 4 * kPacket, kSlice = kSteps * kStep, kWarps = Lanes::kLanes / Lanes::kWarp;
  const u32 lane = lanes.lane() % Lanes::kWarp, warp = lanes.lane() / Lanes::kWarp, group = lane / 4, part = lane % 4;
  const u8* row = rows + (group < m ? group : 0) * pitch;  // of those beyond the last the results are not kept
  float* mine = reinterpret_cast<float*>(lanes.scratch() + sums) + warp * m * sums_pitch(n);
  bool awaited = false;
  CCKS_NO_UNROLL
  for (u32 j = 0; j < n; j += kMatrixColumns) {
    const u8* low = columns + u64{least(j + group, n - 1)} * column_bytes;
    const u8* high = columns + u64{least(j + group + 8, n - 1)} * column_bytes;
    float acc[2][2] = {{0, 0}, {0, 0}};
    CCKS_NO_UNROLL
    for (u32 slice = warp * kSlice; slice < k; slice += kWarps * kSlice) {
      const u32 p = slice + part * kPacket;
      if (slice + kSlice <= k) {
        if (!multiply_steps<kType, kSteps>(lanes, awaited, acc, low + p * 2, high + p * 2, row + p * 2, true)) return false;
      } else {
        CCKS_NO_UNROLL
        for (u32 at = p; at - part * kPacket < k; at += kStep)
          if (!multiply_steps<kType, 1>(lanes, awaited, acc, low + at * 2, high + at * 2, row + at * 2, at < k)) return false;
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 r = 2 * part + i;
      if (r >= m) break;
      mine[r * sums_pitch(n) + j + group] = acc[0][i];
      mine[r * sums_pitch(n) + j + group + 8] = acc[1][i];
    }
  }
  return awaited || await_inputs(lanes);
}

/// Normed rows of a in scratch: neighbours begin in different banks.
CCKS_INLINE constexpr u32 normed_pitch(u32 k) { return k * 2 + 64; }

struct MatrixRowsBody {
  /// Whether the sums of m x n results fit into scratch, and k elements of each row where they are normed.
  static CCKS_INLINE constexpr bool takes(u32 m, u32 n, u32 warps, u32 normed) {
    return m <= kMatrixRows && m * (warps * sums_pitch(n) * sizeof(float) + (normed != 0 ? normed_pitch(normed) : 0)) <= kMinScratchBytes;
  }

  template <class Types, class Lanes, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    using T = TypeOf<0, Types>;
    constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kBytes = 2;
    const auto t = product_tile<Types>(call, tile);
    EpilogueValues<1, Types> values;
    u32 done = lanes.lane();  // of the results, row by row: the next that this lane finishes
    const auto load_next = [&] {
      if (done < t.m * t.n) values.load(call, types, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
    };
    const OperandParams &a = call.operands[0], &b = call.operands[1];
    const u32 column_bytes = static_cast<u32>(b.stride[3]) * kBytes, pitch = sums_pitch(t.n);
    const u32 k = static_cast<u32>(a.dim[3]);
    const u8* rows = operand_base(call.frame, a) + u64{row_offset(a, t.c0, t.c1, t.row)} * kBytes;
    u32 row_bytes = static_cast<u32>(a.stride[2]) * kBytes;
    if constexpr (kNormed<Types>) {  // before the walk, which is one for all
      if (!await_inputs(lanes)) return;
      const u32 staged = kWarps * t.m * pitch * static_cast<u32>(sizeof(float));
      const auto norm = norm_of(call, types);
      stage_normed_rows(lanes, T{}, rows, row_bytes, norm.type, norm.weight, norm.eps, t.m, k, staged, normed_pitch(k));
      rows = lanes.scratch() + staged;
      row_bytes = normed_pitch(k);
    }
    const bool runs = walk_matrix<T::kDtype>(
        lanes, rows, operand_base(call.frame, b) + u64{row_offset(b, t.c0, t.c1, 0)} * kBytes + u64{t.column} * column_bytes, 0, row_bytes,
        column_bytes, t.m, t.n, k);
    if (!runs) return;
    load_next();
    lanes.sync();
    const float* sums = reinterpret_cast<const float*>(lanes.scratch());
    CCKS_NO_UNROLL
    while (done < t.m * t.n) {
      const float* at = sums + done / t.n * pitch + done % t.n;
      float all = at[0];
      CCKS_UNROLL
      for (u32 w = 1; w < kWarps; ++w) all += at[w * t.m * pitch];
      finish_marked<1>(call, types, expr, &all, values, t.c0, t.c1, t.row + done / t.n, t.column + done % t.n);
      done += Lanes::kLanes;
      load_next();
    }
  }
};

/// False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool matrix_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if constexpr (MatrixLanes<Lanes> && kInMatrixUnits<TypeOf<0, Types>, TypeOf<1, Types>>) {
    const OperandParams& out = call.operands[Types::kCount - 1];
    const u32 m = static_cast<u32>(least(call.op.tile[2], out.dim[2])), n = static_cast<u32>(least(call.op.tile[3], out.dim[3]));
    if (!MatrixRowsBody::takes(m, n, Lanes::kLanes / Lanes::kWarp, kNormed<Types> ? static_cast<u32>(call.operands[0].dim[3]) : 0))
      return false;
    run_product<MatrixRowsBody>(lanes, call, tile, types, expr);
    return true;
  } else {
    return false;
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

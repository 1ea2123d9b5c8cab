// Products of many rows, 16-bit floats that lie along k in both operands, by groups of four warps (GroupLanes): a block of up to 128 rows by 128 or 256 columns. Those of up
// to 64 rows and 128 columns are product_narrow.hpp's.
//
// Stages have 64 elements along k of all rows and columns. Of five, three are on their way, one is multiplied, and one may still be by warps that are behind; of three, for
// which 256 columns leave room, two are on their way, and warps wait for their products before they meet. The sums are left in scratch and finished row by row (finish_rows.hpp). The walk calls nothing: ptxas
// waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/product_narrow.hpp"
#include "ccks/worker/product_split.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

// Where weights come through a ring there is no room for stages, and no code for them.
#if defined(CCKS_WORKER_STREAMS) && CCKS_WORKER_STREAMS
inline constexpr bool kHasGroups = false;
#else
inline constexpr bool kHasGroups = true;
#endif

/// m rows and n columns of k elements, and from one to the next.
struct GroupedWindow {
  const u8 *rows, *columns;
  u32 row_bytes, column_bytes, m, n, k;
};

/// From one row of sums to the next, in floats: lanes of half a warp store pairs to different banks.
CCKS_INLINE constexpr u32 grouped_pitch(u32 columns) { return columns + 8; }
inline constexpr u32 kGroupedSums = wire::kGroupedTile * grouped_pitch(wire::kGroupedColumns);  // floats of a block's sums, of either walk, at most
static_assert(kGroupedSums >= 2 * kNarrowRows * narrow_pitch(128) && 1024 + (kGroupedSums + 1) * sizeof(float) <= kCudaGroupedScratchBytes);
/// Columns of a block for a tile of n.
CCKS_INLINE constexpr u32 grouped_columns(u32 n) { return n <= 128 ? 128 : 256; }

struct alignas(8) TwoSums {
  float v[2];
};

/// Groups of four warps have 64 rows each.
template <Dtype kType, u32 kColumns, class Lanes>
class GroupedWalk {
 public:
  static constexpr u32 kRows = wire::kGroupedTile;
  static constexpr u32 kStages = kColumns == 128 ? 5 : 3;
  static constexpr bool kOverlap = kStages > 3;  // products of two stages are under way at a time
  static constexpr u32 kAhead = kStages - (kOverlap ? 2 : 1), kPitch = grouped_pitch(kColumns);
  static constexpr u32 kLineBytes = 128, kDepth = kLineBytes / 2, kStageBytes = (kRows + kColumns) * kLineBytes;
  static constexpr u32 kLinesAtOnce = Lanes::kLanes / 8, kRowCopies = kRows / kLinesAtOnce, kColumnCopies = kColumns / kLinesAtOnce;
  static_assert(Lanes::kLanes / (4 * Lanes::kWarp) * 64 == kRows);
  static_assert(kStages * kStageBytes + 1024 - 128 <= kCudaGroupedScratchBytes && kRows * kPitch * sizeof(float) <= kStages * kStageBytes);

  /// Rows and columns that there are not are zero.
  CCKS_INLINE GroupedWalk(Lanes& lanes, const GroupedWindow& w) : lanes_(lanes), m_(w.m), n_(w.n), k_(w.k) {
    const u32 line = lanes.lane() / 8, part = lanes.lane() % 8;
    stages_ = grouped_scratch(lanes);
    rows_ = w.rows + u64{line} * w.row_bytes + part * 16;
    columns_ = w.columns + u64{line} * w.column_bytes + part * 16;
    row_step_ = w.row_bytes * kLinesAtOnce;
    column_step_ = w.column_bytes * kLinesAtOnce;
    depth_ = 0;
  }

  /// Sums [row][kPitch] at grouped_scratch, there for all lanes.
  CCKS_INLINE void run() {
    const u32 steps = ceil_div(k_, kDepth);
    CCKS_NO_UNROLL
    for (u32 s = 0; s < kAhead; ++s) fetch(s);
    CCKS_UNROLL
    for (u32 j = 0; j < kColumns / 8; ++j)
      for (u32 q = 0; q < 4; ++q) sum_[j][q] = 0;
    const u32 row = lanes_.lane() / (4 * Lanes::kWarp) * 64;
    u32 stage = 0, next = kAhead;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.template await_copies<kAhead - 1>();
      lanes_.show_copies();
      if constexpr (!kOverlap) lanes_.template await_groups_before<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage that is fetched next
      const u8* at = stages_ + stage * kStageBytes;
      lanes_.template multiply_group<kType>(sum_, at + row * kLineBytes, at + kRows * kLineBytes);
      fetch(next);
      if constexpr (kOverlap) lanes_.template await_groups_before<1>();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    lanes_.await_group(sum_);
    lanes_.template await_copies<0>();
    lanes_.sync();
    put(row);
    lanes_.sync();
  }

 private:
  /// The next step's rows and columns. Behind k there is zero.
  CCKS_INLINE void fetch(u32 stage) {
    if (depth_ < k_) {
      const u32 line = lanes_.lane() / 8, part = lanes_.lane() % 8;
      u8* to = stages_ + stage * kStageBytes + line * kLineBytes + (part ^ line % 8) * 16;  // kLinesAtOnce is a multiple of eight
      const bool there = depth_ + part * 8 < k_;
      copy<kRowCopies>(to, rows_, row_step_, there ? m_ : 0, line);
      copy<kColumnCopies>(to + kRows * kLineBytes, columns_, column_step_, there ? n_ : 0, line);
      rows_ += kLineBytes;
      columns_ += kLineBytes;
      depth_ += kDepth;
    }
    lanes_.commit_copies();
  }
  /// Of the lines from `line` on, those below `lines`.
  template <u32 kTimes>
  CCKS_INLINE void copy(u8* to, const u8* from, u32 step, u32 lines, u32 line) {
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) {
      lanes_.copy_sixteen(to + i * kLinesAtOnce * kLineBytes, from, line + i * kLinesAtOnce < lines);
      from += step;
    }
  }
  CCKS_INLINE void put(u32 row) const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, warp = lanes_.lane() / Lanes::kWarp % 4;
    float* to = reinterpret_cast<float*>(stages_) + (row + warp * 16 + lane / 4) * kPitch + lane % 4 * 2;
    CCKS_UNROLL
    for (u32 j = 0; j < kColumns / 8; ++j) {
      CCKS_UNROLL
      for (u32 half = 0; half < 2; ++half)
        *reinterpret_cast<TwoSums*>(to + half * 8 * kPitch + j * 8) = {{sum_[j][2 * half], sum_[j][2 * half + 1]}};
    }
  }

  Lanes& lanes_;
  const u8 *rows_, *columns_;  // of this lane, of the step that is fetched next
  u8* stages_;
  u32 row_step_, column_step_, m_, n_, k_, depth_;
  float sum_[kColumns / 8][4];
};

/// Whether a block is product_narrow.hpp's.
CCKS_INLINE constexpr bool is_narrow(u32 m, u32 n) { return m <= kNarrowRows && n <= 128; }

template <Dtype kType, u32 kColumns, class Lanes>
CCKS_OUTLINE void walk_grouped(Lanes& lanes, const u8* rows, const u8* columns, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k) {
  GroupedWalk<kType, kColumns, Lanes>(lanes, {rows, columns, row_bytes, column_bytes, m, n, k}).run();
}
/// Sums of a block, from grouped_scratch on: of grouped_columns(w.n), or as multiply_narrow leaves them.
template <Dtype kType, class Lanes>
CCKS_INLINE void multiply_packets(Lanes& lanes, const GroupedWindow& w) {
#if CCKS_LINKED_WALKS
  (kType == Dtype::bf16 ? ccks_walk_packets_bf16 : ccks_walk_packets_f16)(w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k);
#else
  if (is_narrow(w.m, w.n)) {
    (void)multiply_narrow<kType>(lanes, {w.rows, w.columns, nullptr, w.row_bytes, w.column_bytes, w.m, w.n, w.k, 0, 0, 1, 0, false});  // which names no rows
  } else if (grouped_columns(w.n) == 128) {
    walk_grouped<kType, 128>(lanes, w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k);
  } else {
    walk_grouped<kType, 256>(lanes, w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k);
  }
#endif
}

/// Types for a tile of a kOpGroups matmul.
template <class Types, class Expr>
inline constexpr bool kGroupedTypes = kHasGroups && kExpertUnits<TypeOf<0, Types>, TypeOf<1, Types>> && !kNormed<Types> && !kRoped<Types> && !kTwins<Types> &&
                                      kEpilogueFirst<Expr> != 0;

/// A tile of a kOpGroups op, whose shape is taken from the op.
template <class Types, class Expr, class Lanes>
CCKS_INLINE void run_grouped(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
  constexpr u32 kFirst = kEpilogueFirst<Expr>, kOut = Types::kCount - 1;
  const Call call(frame, op);
  const OperandParams &a = call.operands[0], &b = call.operands[1], &out = call.operands[kOut];
  i32 c[4] = {0, 0, 0, static_cast<i32>(tile)};
  if (tile >= static_cast<u32>(op.grid[3])) tile_coordinates(op, tile, c);
  DepthChunk chunk{0, static_cast<u32>(a.dim[3]), 0, 1};
  if (wire::shares_depth(op) && op.grid[0] > 1) {
    chunk = depth_chunk(chunk.end, static_cast<u32>(c[0]), static_cast<u32>(op.grid[0]));
    c[0] = 0;
  }
  c[2] *= op.tile[2];
  c[3] *= op.tile[3];
  const u32 m = static_cast<u32>(least(op.tile[2], out.dim[2] - c[2])), n = static_cast<u32>(least(op.tile[3], out.dim[3] - c[3]));
  const bool narrow = is_narrow(m, n);
  const u32 row_bytes = static_cast<u32>(a.stride[2]) * 2, column_bytes = static_cast<u32>(b.stride[3]) * 2;  // below 2^24
  i64 batch[3] = {chunk.begin, chunk.begin, 0};
  if ((c[0] | c[1]) != 0) {
    batch[0] += c[0] * a.stride[0] + c[1] * a.stride[1];
    batch[1] += c[0] * b.stride[0] + c[1] * b.stride[1];
    batch[2] = c[0] * out.stride[0] + c[1] * out.stride[1];
  }
  multiply_packets<TypeOf<0, Types>::kDtype>(lanes, {operand_base(frame, a) + batch[0] * 2 + u64{static_cast<u32>(c[2])} * row_bytes,
                                                     operand_base(frame, b) + batch[1] * 2 + u64{static_cast<u32>(c[3])} * column_bytes, row_bytes, column_bytes, m, n,
                                                     chunk.end - chunk.begin});
  const u32 columns = narrow ? narrow_columns(n) : grouped_columns(n), shift = columns == 64 ? 4 : columns == 128 ? 5 : 6;  // of columns / kVector
  const u32 j = (lanes.lane() & (columns / kVector - 1)) * kVector, first = lanes.lane() >> shift, step = Lanes::kLanes >> shift;
  float* const block = reinterpret_cast<float*>(grouped_scratch(lanes));
  SlicedSums sums{block + j, narrow ? narrow_pitch(columns) : grouped_pitch(columns), narrow ? kNarrowRows : 0};
  if (chunk.count > 1) {
    u32* const told = reinterpret_cast<u32*>(block) + kGroupedSums;
    if (!add_chunks(lanes, call, tile, chunk, {block + j, sums.pitch, first, step, j < n ? m : 0}, c[2], c[3] + static_cast<i32>(j), sums, told)) return;
    sums.slice_rows = 0;
  }
  if (j >= n) return;  // n is a multiple of four
  c[3] += static_cast<i32>(j);
  const auto type = TypeOf<kOut, Types>{};
  const i64 at = batch[2] + c[2] * out.stride[2] + c[3];
  const Types types{};
  const Arguments<Types> args{call, types, nullptr, kFirst};
  finish_fitting_rows(RowOperands<kFirst, Types>(call, types, c), args, Expr{}, type, c, operand_base(frame, out) + at * bytes_of(type), out.stride[2] * bytes_of(type),
                      first, step, m, sums);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Products of many rows, 16-bit floats that lie along k in both operands, by groups of four warps (GroupLanes): a block of up to 128 rows by 64, 128, 192 or 256 columns. Those of up
// to 64 rows and 128 columns are product_narrow.hpp's.
//
// Stages have 64 elements along k of all rows and columns. Of six, five or four all but two are on their way, one is multiplied, and one may still be by warps that are behind; of three, for
// which 256 columns leave room, two are on their way, and warps wait for their products before they meet. The sums are left in scratch and finished row by row (finish_rows.hpp). The walk calls nothing: ptxas
// waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/finish_rows.hpp"
#include "ccks/worker/near_op.hpp"
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

/// Where a line of 32 rows or columns stands among those that units multiply, where sums stay in registers: a lane's are of two columns in every eight, so eight that lie side by side are one lane's.
CCKS_INLINE constexpr u32 held_slot(u32 line) { return line % 8 / 2 * 8 + line / 8 * 2 + line % 2; }
CCKS_INLINE constexpr u32 held_line(u32 slot) { return slot / 2 % 4 * 8 + slot / 8 * 2 + slot % 2; }
/// From one row of sums to the next, in floats: lanes of half a warp store pairs to different banks.
CCKS_INLINE constexpr u32 grouped_pitch(u32 columns) { return columns + 8; }
inline constexpr u32 kGroupedSums = wire::kGroupedTile * grouped_pitch(wire::kGroupedColumns);  // floats of a block's sums, of either walk, at most
static_assert(kGroupedSums >= 2 * kNarrowRows * narrow_pitch(128) && 1024 + (kGroupedSums + 1) * sizeof(float) <= kCudaGroupedScratchBytes);
/// Columns of a block.
using wire::product_columns;

/// What a lane finishes of a block's sums: four columns from j on of rows row, row + step, ... One that has none begins behind the block's columns.
struct ShareOfBlock {
  u32 j, row, step;
};
template <u32 kLanes>
CCKS_INLINE constexpr ShareOfBlock share_of_block(u32 lane, u32 columns) {
  constexpr u32 kOfThree = 192 / kVector, kRowsOfThree = kLanes / kOfThree;
  if (columns == 192) {
    const u32 row = lane / kOfThree;
    return {row < kRowsOfThree ? (lane - row * kOfThree) * kVector : columns, row, kRowsOfThree};
  }
  const u32 shift = columns == 64 ? 4 : columns == 128 ? 5 : 6;
  return {(lane & ((1u << shift) - 1)) * kVector, lane >> shift, kLanes >> shift};
}

struct alignas(8) TwoSums {
  float v[2];
};

/// Groups of four warps have 64 rows each. kHeld: sums stay in registers, lines stand by held_slot.
template <Dtype kType, u32 kColumns, class Lanes, bool kHeld = false>
class GroupedWalk {
 public:
  using Sums = float[kColumns / 8][4];
  static constexpr u32 kRows = wire::kGroupedTile;
  static constexpr u32 kStages = kColumns == 64 ? 6 : kColumns == 128 ? 5 : kColumns == 192 ? 4 : 3;
  static constexpr bool kOverlap = kStages > 3;  // products of two stages are under way at a time
  static constexpr u32 kAhead = kStages - (kOverlap ? 2 : 1), kPitch = grouped_pitch(kColumns);
  static constexpr u32 kLineBytes = kExpertRowBytes, kDepth = kLineBytes / 2, kStageBytes = (kRows + kColumns) * kLineBytes;
  static constexpr u32 kLinesAtOnce = Lanes::kLanes / 8, kRowCopies = kRows / kLinesAtOnce, kColumnCopies = kColumns / kLinesAtOnce;
  static_assert(Lanes::kLanes / (4 * Lanes::kWarp) * 64 == kRows && kLinesAtOnce == 32);
  static_assert(kStages * kStageBytes + 1024 - 128 <= kCudaGroupedScratchBytes && kRows * kPitch * sizeof(float) <= kStages * kStageBytes);

  /// Rows and columns that there are not are zero.
  CCKS_INLINE GroupedWalk(Lanes& lanes, const GroupedWindow& w) : lanes_(lanes), w_(w), rows_(w, lanes.lane() / 8, lanes.lane() % 8 * 16) {
    const u32 line = lanes.lane() / 8, packet = lanes.lane() % 8 * 16;
    stages_ = grouped_scratch(lanes);
    columns_ = w.columns + u64{line} * w.column_bytes + packet;
  }

  /// Sums [row][kPitch] at grouped_scratch, there for all lanes.
  CCKS_INLINE void run() {
    start();
    walk<false>();
    const Sums& sums = await();
    lanes_.template await_copies<0>();
    lanes_.sync();
    put(sums);
    lanes_.sync();
  }

  // The parts of it, for those who have the sums in registers: rows of groups of four warps begin at 64 times the group.
  /// Asks for the first stages.
  CCKS_INLINE void start() {
    CCKS_NO_UNROLL
    for (u32 s = 0; s < kAhead; ++s) fetch(s);
  }
  /// What there is at first, and will be multiplied on to by walk<true>.
  CCKS_INLINE Sums& sums() { return sum_; }
  /// The last products are still under way.
  template <bool kBegun>
  CCKS_INLINE void walk() {
    const u32 steps = ceil_div(w_.k, kDepth), row = first_row();
    u32 stage = 0, next = kAhead;
    u32 step = 0;
    CCKS_NO_UNROLL
    do {
      lanes_.template await_copies<kAhead - 1>();
      lanes_.show_copies();
      if constexpr (!kOverlap) lanes_.template await_groups_before<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage that is fetched next
      const u32 at = stage * kStageBytes;
      lanes_.template multiply_parts<kType, kDepth / 16>(sum_, stages_, at + row * kLineBytes, at + kRows * kLineBytes, 0, kBegun || step != 0);
      fetch(next);
      if constexpr (kOverlap) lanes_.template await_groups_before<1>();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    } while (++step < steps);
  }
  CCKS_INLINE const Sums& await() {
    lanes_.await_group(sum_);
    return sum_;
  }
  CCKS_INLINE u32 first_row() const { return lanes_.lane() / (4 * Lanes::kWarp) * 64; }

 private:
  CCKS_INLINE u8* place(u32 stage) const {
    const u32 own = lanes_.lane() / 8, line = kHeld ? held_slot(own) : own, part = lanes_.lane() % 8;
    return stages_ + stage * kStageBytes + line * kLineBytes + (part ^ line % 8) * 16;  // kLinesAtOnce is 32
  }
  CCKS_INLINE void fetch(u32 stage) {
    if (depth_ < w_.k || depth_ == 0) {  // there is one step at least
      fetch_rows(stage);
      fetch_columns(stage);
    }
    depth_ += kDepth;
    lanes_.commit_copies();
  }
  /// The next step's columns. Behind k there is zero.
  CCKS_INLINE void fetch_columns(u32 stage) {
    u8* to = place(stage) + kRows * kLineBytes;
    const u32 lines = depth_ + lanes_.lane() % 8 * 8 < w_.k ? w_.n : 0, step = w_.column_bytes * kLinesAtOnce;
    const u32 line = lanes_.lane() / 8;
    const u8* from = columns_;
    CCKS_UNROLL
    for (u32 i = 0; i < kColumnCopies; ++i) {
      lanes_.copy_sixteen(to + i * kLinesAtOnce * kLineBytes, from, line + i * kLinesAtOnce < lines);
      from += step;
    }
    columns_ += kLineBytes;
  }
  CCKS_INLINE void fetch_rows(u32 stage) {
    u8* to = place(stage);
    const u32 line = lanes_.lane() / 8, lines = depth_ + lanes_.lane() % 8 * 8 < w_.k ? w_.m : 0;
    CCKS_UNROLL
    for (u32 i = 0; i < kRowCopies; ++i)
      lanes_.copy_sixteen(to + i * kLinesAtOnce * kLineBytes, rows_.row(i), line + i * kLinesAtOnce < lines);
    rows_.step(kLineBytes);
  }
  CCKS_INLINE void put(const Sums& sums) const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, warp = lanes_.lane() / Lanes::kWarp % 4;
    float* to = reinterpret_cast<float*>(stages_) + (first_row() + warp * 16 + lane / 4) * kPitch + lane % 4 * 2;
    CCKS_UNROLL
    for (u32 j = 0; j < kColumns / 8; ++j) {
      CCKS_UNROLL
      for (u32 half = 0; half < 2; ++half)
        *reinterpret_cast<TwoSums*>(to + half * 8 * kPitch + j * 8) = {{sums[j][2 * half], sums[j][2 * half + 1]}};
    }
  }

  Lanes& lanes_;
  const GroupedWindow& w_;
  EvenRows<kLinesAtOnce> rows_;
  const u8* columns_;  // of this lane, of the step that is fetched next
  u8* stages_;
  u32 depth_ = 0;
  Sums sum_;
};

/// Whether a block is product_narrow.hpp's.
CCKS_INLINE constexpr bool is_narrow(u32 m, u32 n) { return m <= kNarrowRows && n <= 128; }

template <Dtype kType, u32 kColumns, class Lanes>
CCKS_OUTLINE void walk_grouped(Lanes& lanes, const u8* rows, const u8* columns, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k) {
  const GroupedWindow window{rows, columns, row_bytes, column_bytes, m, n, k};
  GroupedWalk<kType, kColumns, Lanes>(lanes, window).run();
}
/// Blocks of a product whose tiles have product_columns(n) == kColumns, or fewer behind the last whole one; 0: of any.
template <u32 kColumns>
struct ProductBlocks {
  static_assert(kColumns == 0 || kColumns == product_columns(kColumns));
  /// Whether one of m rows and n columns is product_narrow.hpp's.
  CCKS_INLINE static constexpr bool are_narrow(u32 m, u32 n) { return kColumns <= 128 && is_narrow(m, n); }
  CCKS_INLINE static constexpr u32 columns(u32 n) { return kColumns == 0 ? product_columns(n) : kColumns; }
  CCKS_INLINE static constexpr u32 narrow(u32 n) { return kColumns == 64 ? 64 : narrow_columns(n); }
};

/// Sums of a block, from grouped_scratch on, as ProductBlocks says, or as multiply_narrow leaves them.
template <Dtype kType, u32 kColumns = 0, class Lanes>
CCKS_INLINE void multiply_packets(Lanes& lanes, const GroupedWindow& w) {
  constexpr bool kBf16 = kType == Dtype::bf16;
  const auto with = [&](auto walk) { return walk(w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k); };
#if CCKS_LINKED_WALKS
  if constexpr (kColumns == 64) return with(kBf16 ? ccks_walk_packets_64_bf16 : ccks_walk_packets_64_f16);
  if constexpr (kColumns == 128) return with(kBf16 ? ccks_walk_packets_128_bf16 : ccks_walk_packets_128_f16);
  if constexpr (kColumns == 192) return with(kBf16 ? ccks_walk_grouped_192_bf16 : ccks_walk_grouped_192_f16);
  if constexpr (kColumns == 256) return with(kBf16 ? ccks_walk_grouped_256_bf16 : ccks_walk_grouped_256_f16);
  if constexpr (kColumns == 0) return with(kBf16 ? ccks_walk_packets_256_bf16 : ccks_walk_packets_256_f16);
#else
  if (ProductBlocks<kColumns>::are_narrow(w.m, w.n)) return multiply_narrow<kType>(lanes, w);
  switch (ProductBlocks<kColumns>::columns(w.n)) {
    case 64: return with([&](auto... of) { walk_grouped<kType, 64>(lanes, of...); });
    case 128: return with([&](auto... of) { walk_grouped<kType, 128>(lanes, of...); });
    case 192: return with([&](auto... of) { walk_grouped<kType, 192>(lanes, of...); });
    default: return with([&](auto... of) { walk_grouped<kType, 256>(lanes, of...); });
  }
#endif
}

/// Types for a tile of a kOpGroups matmul.
template <class Types, class Expr>
inline constexpr bool kGroupedTypes = kHasGroups && kExpertUnits<TypeOf<0, Types>, TypeOf<1, Types>> && !kNormed<Types> && !kRoped<Types> && !kTwins<Types> &&
                                      kEpilogueFirst<Expr> != 0;

/// A tile of a kOpGroups op, whose shape is taken from the op but for ProductBlocks<kColumns>.
template <class Types, class Expr, u32 kColumns, class Lanes>
CCKS_INLINE void run_grouped(Lanes& lanes, const RunFrame& frame, const OpParams& op, u32 tile) {
  using Blocks = ProductBlocks<kColumns>;
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
  const bool narrow = Blocks::are_narrow(m, n);
  const u32 row_bytes = static_cast<u32>(a.stride[2]) * 2, column_bytes = static_cast<u32>(b.stride[3]) * 2;  // below 2^24
  i64 batch[3] = {chunk.begin, chunk.begin, 0};
  if ((c[0] | c[1]) != 0) {
    batch[0] += c[0] * a.stride[0] + c[1] * a.stride[1];
    batch[1] += c[0] * b.stride[0] + c[1] * b.stride[1];
    batch[2] = c[0] * out.stride[0] + c[1] * out.stride[1];
  }
  multiply_packets<TypeOf<0, Types>::kDtype, kColumns>(lanes, {operand_base(frame, a) + batch[0] * 2 + u64{static_cast<u32>(c[2])} * row_bytes,
                                                               operand_base(frame, b) + batch[1] * 2 + u64{static_cast<u32>(c[3])} * column_bytes, row_bytes, column_bytes, m, n,
                                                               chunk.end - chunk.begin});
  const u32 columns = narrow ? Blocks::narrow(n) : Blocks::columns(n);
  const auto [j, first, step] = share_of_block<Lanes::kLanes>(lanes.lane(), columns);
  float* const block = reinterpret_cast<float*>(grouped_scratch(lanes));
  const u32 pitch = narrow ? narrow_pitch(columns) : grouped_pitch(columns);
  SumsOf sums{block + j, pitch, narrow ? kNarrowRows : 0};
  if (chunk.count > 1) {
    u32* const told = reinterpret_cast<u32*>(block) + kGroupedSums;
    const SumsShare share{block + j, pitch, first, step, j < n ? m : 0};
    const i32 column = c[3] + static_cast<i32>(j);
    if (!add_chunks(lanes, call, tile, chunk, share, c[2], column, sums, told)) return;
    sums.slice_rows = 0;
  }
  if (j >= n) return;  // n is a multiple of four
  c[3] += static_cast<i32>(j);
  const auto type = TypeOf<kOut, Types>{};
  const i64 at = batch[2] + c[2] * out.stride[2] + c[3], out_bytes = out.stride[2] * bytes_of(type);
  const Types types{};
  const Arguments<Types> args{call, types, nullptr, kFirst};
  const RowOperands<kFirst, Types> operands(call, types, c);
  u8* const to = operand_base(frame, out) + at * bytes_of(type);
  finish_fitting_rows(operands, args, Expr{}, type, c, to, out_bytes, first, step, m, sums);
}

/// A tile of a kOpBlocks op of which the worker has made a copy.
struct NearBlock {
  u32 row, column, m, n;  // of the output

  CCKS_INLINE NearBlock(const NearOp& near, const OperandParams& out, u32 tile) {
    const u32 wide = static_cast<u32>(near.op.grid[3]), down = tile / wide, rows = static_cast<u32>(near.op.tile[2]), columns = static_cast<u32>(near.op.tile[3]);
    row = down * rows;
    column = (tile - down * wide) * columns;
    m = least(rows, static_cast<u32>(out.dim[2]) - row);
    n = least(columns, static_cast<u32>(out.dim[3]) - column);
  }
  CCKS_INLINE GroupedWindow window(const NearOp& near) const {
    const u32 row_bytes = step_of(near.operands[0].stride[2]), column_bytes = step_of(near.operands[1].stride[3]);
    return {near.begin(0) + u64{row} * row_bytes, near.begin(1) + u64{column} * column_bytes, row_bytes, column_bytes, m, n, static_cast<u32>(near.operands[0].dim[3])};
  }
  /// In bytes: below 2^24.
  CCKS_INLINE static u32 step_of(i64 stride) { return static_cast<u32>(stride) * 2; }
};

/// Such a tile, through scratch. kMoves: operands of the epilogue (bit i: argument i + 1) of which rows have their own.
template <class Types, class Expr, u32 kColumns, u32 kMoves, class Lanes>
CCKS_INLINE void run_near_block(Lanes& lanes, const Call& call, const NearOp& near, u32 tile) {
  constexpr u32 kFirst = kEpilogueFirst<Expr>, kOut = Types::kCount - 1;
  const OperandParams& out = near.operands[kOut];
  const NearBlock block(near, out, tile);
  multiply_packets<TypeOf<0, Types>::kDtype, kColumns>(lanes, block.window(near));
  const bool narrow = ProductBlocks<kColumns>::are_narrow(block.m, block.n);
  const u32 columns = narrow ? ProductBlocks<kColumns>::narrow(block.n) : kColumns;
  const auto [j, first, step] = share_of_block<Lanes::kLanes>(lanes.lane(), columns);
  if (j >= block.n) return;
  const SumsOf sums{reinterpret_cast<float*>(grouped_scratch(lanes)) + j, narrow ? narrow_pitch(columns) : grouped_pitch(columns), narrow ? kNarrowRows : 0};
  const i32 c[4] = {0, 0, static_cast<i32>(block.row), static_cast<i32>(block.column + j)};
  const Types types{};
  const RowOperands<kFirst, Types> operands(near, block.row, block.column + j, RowsMove<kMoves>{});
  const u32 out_bytes = NearBlock::step_of(out.stride[2]);
  u8* const to = near.begin(kOut) + u64{block.row} * out_bytes + (block.column + j) * 2;
  finish_fitting_rows(operands, Arguments<Types>{call, types, nullptr, kFirst}, Expr{}, TypeOf<kOut, Types>{}, c, to, out_bytes, first, step, block.m, sums);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

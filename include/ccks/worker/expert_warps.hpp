// expert_matmul where lanes run in warps: which rows a tile has, and their product with an expert's weights in columns, 16-bit floats, on
// matrix units. One body for one row and for 128: weights take the units' sixteen rows and rows of x their eight columns, so that an
// expert of three rows costs what one of eight does.
//
// Rows of x, gathered, and 64 or 128 columns of weights come through stages of scratch, 64 elements along k at a time, by copies that go on in the
// background: fifty to ninety kilobytes are under way, which is what memory needs to be read at full speed by all workers. What a step costs beside its
// copies, a hundred instructions and a barrier, is as long as memory takes for 16 KB: so 128 columns where a tile has them. Of a stage's row of 128
// bytes the halves are changed in every other row, so that eight lanes that read 16 bytes each, of two rows, meet all banks. A packet of 16
// bytes along k holds what two products want of it, if k is taken in another order: the same for both, and sums do not mind.
#pragma once

#include "ccks/worker/tile_hints.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows of one tile of an expert_matmul.
struct ExpertRows {
  i32 expert = 0;
  u32 first = 0;  // routed row
  u32 count = 0;  // 0: the tile does not exist
  bool sound = true;
};

/// Lanes that copy from global memory into what they share in the background, in groups: of a group that a lane has waited for its own copies
/// are done, those of others behind a barrier.
template <class Lanes>
concept CopyLanes = MatrixLanes<Lanes> && requires(Lanes& lanes) { lanes.commit_copies(); };

/// What experts of a lane have taken: of one after the other. Four are loaded at a time, since counts come from the L2.
template <class C, class Visit>
CCKS_INLINE void walk_counts(const View<C>& count, u32 begin, u32 end, Visit&& visit) {
  constexpr u32 kFlight = 4;
  CCKS_NO_UNROLL
  for (u32 first = begin; first < end; first += kFlight) {
    i64 taken[kFlight];
    CCKS_UNROLL
    for (u32 i = 0; i < kFlight; ++i) taken[i] = load_int(count.type, count.at(0, 0, 0, static_cast<i32>(least(first + i, end - 1))), 0);
    CCKS_UNROLL
    for (u32 i = 0; i < kFlight; ++i)
      if (first + i < end) visit(first + i, taken[i]);
  }
}

/// As find_expert (ops_matmul.hpp), by lanes of a warp that share out the experts. All lanes of the warp call it.
template <class Lanes, class C>
CCKS_INLINE ExpertRows find_expert_together(Lanes& lanes, const View<C>& count, u32 experts, u32 index, u32 rows_per_tile, u32 rows) {
  constexpr u32 kWarp = Lanes::kWarp;
  const u32 each = ceil_div(experts, kWarp), begin = least(lanes.lane() % kWarp * each, experts), end = least(begin + each, experts);
  u32 taken = 0, tiles = 0, wrong = 0;
  walk_counts(count, begin, end, [&](u32, i64 of_expert) {
    const bool fits = of_expert >= 0 && of_expert <= rows;
    const u32 own = fits ? static_cast<u32>(of_expert) : 0u;
    taken += own;
    tiles += ceil_div(own, rows_per_tile);
    wrong |= fits && taken <= rows ? 0u : 1u;
  });
  u32 taken_before = 0, tiles_before = 0, all_taken = least(taken, rows), all_tiles = tiles;
  CCKS_UNROLL
  for (u32 step = 1; step < kWarp; step *= 2) {
    const u32 other_taken = lanes.shuffle_xor(all_taken, step), other_tiles = lanes.shuffle_xor(all_tiles, step);
    wrong |= lanes.shuffle_xor(wrong, step);
    if ((lanes.lane() & step) != 0) taken_before += other_taken, tiles_before += other_tiles;
    all_taken += other_taken;  // of 32 lanes with no more than `rows` each
    all_tiles += other_tiles;
  }
  ExpertRows found;
  found.sound = wrong == 0 && all_taken <= rows;
  u32 mine = 0;  // the expert, and one more
  if (found.sound && index >= tiles_before && index < tiles_before + tiles) {
    walk_counts(count, begin, end, [&](u32 e, i64 of_expert) {
      const u32 own = static_cast<u32>(of_expert), its_tiles = ceil_div(own, rows_per_tile);
      if (mine == 0 && index < tiles_before + its_tiles) {
        mine = e + 1;
        const u32 skipped = (index - tiles_before) * rows_per_tile;
        found.first = taken_before + skipped;
        found.count = least(rows_per_tile, own - skipped);
      }
      tiles_before += its_tiles;
      taken_before += own;
    });
  }
  CCKS_UNROLL
  for (u32 step = 1; step < kWarp; step *= 2) {  // one lane at most has found anything
    mine |= lanes.shuffle_xor(mine, step);
    found.first |= lanes.shuffle_xor(found.first, step);
    found.count |= lanes.shuffle_xor(found.count, step);
  }
  found.expert = mine == 0 ? 0 : static_cast<i32>(mine - 1);
  return found;
}

inline constexpr u32 kExpertRows = 128;         // of a block
inline constexpr u32 kExpertTableBytes = 1024;  // at the beginning of scratch: the block's rows of x
inline constexpr u32 kExpertStagesBytes = kCudaExpertScratchBytes - kExpertTableBytes;
inline constexpr u32 kExpertRowBytes = 128;  // of a stage
static_assert(kExpertRows * sizeof(u32) <= kExpertTableBytes);

/// Columns of a block of a tile of n columns.
CCKS_INLINE constexpr u32 expert_columns(u32 n) { return n <= 64 ? 64 : 128; }
/// From one row of sums to the next, in floats: lanes of a warp store to different banks.
CCKS_INLINE constexpr u32 expert_pitch(u32 columns) { return columns + 4; }

/// What the walk over k goes by: `m` rows of x named in scratch, `n` columns of b.
struct ExpertWindow {
  const u8 *rows, *columns;
  u32 row_bytes, column_bytes, m, n, k;
};

/// Blocks of kColumns. kM groups of sixteen columns and kN groups of eight rows a warp; warps share out columns, then rows (kWarpsN), then what is
/// left of k.
template <Dtype kType, u32 kColumns, u32 kM, u32 kN, u32 kWarpsN, class Lanes>
class ExpertWalk {
 public:
  static constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kWarpsM = kColumns / 16 / kM, kSplit = kWarps / (kWarpsM * kWarpsN);
  static constexpr u32 kRows = kN * 8 * kWarpsN, kStageBytes = (kRows + kColumns) * kExpertRowBytes, kPitch = expert_pitch(kColumns);
  static constexpr u32 kStages = least(kExpertStagesBytes / kStageBytes, 10u);
  static constexpr u32 kDepth = kExpertRowBytes / 2, kRowsAtOnce = Lanes::kLanes / 8;
  static constexpr u32 kCopies = (kRows + kRowsAtOnce - 1) / kRowsAtOnce, kColumnCopies = kColumns / kRowsAtOnce;
  static_assert(kSplit * kWarpsM * kWarpsN == kWarps && (kSplit == 1 || kSplit == 2) && kStages >= 3);
  static_assert(kSplit * kRows * kPitch * sizeof(float) <= kExpertStagesBytes);

  /// Columns and rows that there are not are others once more: nobody keeps their sums.
  CCKS_INLINE ExpertWalk(Lanes& lanes, const ExpertWindow& w) : lanes_(lanes), w_(w) {
    const u32 line = lanes.lane() / 8, part = lanes.lane() % 8;
    const u32* table = reinterpret_cast<const u32*>(lanes.scratch());
    to_ = line * kExpertRowBytes + half(part / 4, line) + part % 4 * 16;  // kRowsAtOnce is even
    CCKS_UNROLL
    for (u32 i = 0; i < kColumnCopies; ++i) column_[i] = w.columns + u64{least(line + i * kRowsAtOnce, w.n - 1)} * w.column_bytes + part * 16;
    CCKS_UNROLL
    for (u32 i = 0; i < kCopies; ++i) row_[i] = w.rows + u64{table[least(line + i * kRowsAtOnce, w.m - 1)]} * w.row_bytes + part * 16;
  }

  /// Sums [slice of k][row][kPitch] behind the table, there for all lanes.
  CCKS_INLINE void run() {
    clear();
    const u32 steps = ceil_div(w_.k, kDepth);
    CCKS_NO_UNROLL
    for (u32 s = 0; s + 1 < kStages; ++s) fetch(s, s, steps);
    u32 stage = 0, next = kStages - 1;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.template await_copies<kStages - 2>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage before
      fetch(next, step + kStages - 1, steps);
      multiply(stages() + stage * kStageBytes);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    lanes_.template await_copies<0>();
    lanes_.sync();
    put();
    lanes_.sync();
  }

 private:
  CCKS_INLINE u8* stages() const { return lanes_.scratch() + kExpertTableBytes; }
  /// Where a half of a stage's row lies in it.
  CCKS_INLINE static constexpr u32 half(u32 which, u32 row) { return (which ^ (row & 1)) * 64; }

  /// Every call ends a group, so that as many are younger than the one waited for at every step. Behind k there is zero.
  CCKS_INLINE void fetch(u32 stage, u32 step, u32 steps) {
    u8* to = stages() + stage * kStageBytes + to_;
    if (step < w_.k / kDepth) {
      copy(to, true);
    } else if (step < steps) {
      copy(to, step * kDepth + lanes_.lane() % 8 * 8 < w_.k);
    }
    lanes_.commit_copies();
  }
  CCKS_INLINE void copy(u8* to, bool within) {
    const u32 line = lanes_.lane() / 8;
    CCKS_UNROLL
    for (u32 i = 0; i < kColumnCopies; ++i) {
      lanes_.copy_sixteen(to + (kRows + i * kRowsAtOnce) * kExpertRowBytes, column_[i], within);
      column_[i] += kExpertRowBytes;
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kCopies; ++i) {
      if (line + i * kRowsAtOnce < least(kRows, w_.m)) lanes_.copy_sixteen(to + i * kRowsAtOnce * kExpertRowBytes, row_[i], within);
      row_[i] += kExpertRowBytes;
    }
  }

  CCKS_INLINE void multiply(const u8* stage) {
    const u32 lane = lanes_.lane() % Lanes::kWarp, group = lane / 4, part = lane % 4;
    const u8* rows = stage + (first_row() + group) * kExpertRowBytes + part * 16;
    const u8* columns = stage + (kRows + first_column() + group) * kExpertRowBytes + part * 16;
    CCKS_UNROLL
    for (u32 turn = 0; turn < 2 / kSplit; ++turn) {
      const u32 at = half(kSplit == 2 ? warp() / (kWarpsM * kWarpsN) : turn, group);
      Sixteen x[kN];
      CCKS_UNROLL
      for (u32 j = 0; j < kN; ++j) x[j] = *reinterpret_cast<const Sixteen*>(rows + j * 8 * kExpertRowBytes + at);
      CCKS_UNROLL
      for (u32 m = 0; m < kM; ++m) {
        const Sixteen low = *reinterpret_cast<const Sixteen*>(columns + m * 16 * kExpertRowBytes + at);
        const Sixteen high = *reinterpret_cast<const Sixteen*>(columns + (m * 16 + 8) * kExpertRowBytes + at);
        CCKS_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 weights[4] = {low.word[2 * half], high.word[2 * half], low.word[2 * half + 1], high.word[2 * half + 1]};
          CCKS_UNROLL
          for (u32 j = 0; j < kN; ++j) {
            const u32 values[2] = {x[j].word[2 * half], x[j].word[2 * half + 1]};
            lanes_.template multiply_wide<kType>(acc_[m][j], weights, values);
          }
        }
      }
    }
  }

  CCKS_INLINE void put() const {
    const u32 lane = lanes_.lane() % Lanes::kWarp, group = lane / 4, part = lane % 4;
    float* sums = reinterpret_cast<float*>(stages()) + (warp() / (kWarpsM * kWarpsN)) * kRows * kPitch;
    CCKS_UNROLL
    for (u32 m = 0; m < kM; ++m) {
      CCKS_UNROLL
      for (u32 j = 0; j < kN; ++j) {
        CCKS_UNROLL
        for (u32 q = 0; q < 4; ++q)
          sums[(first_row() + j * 8 + part * 2 + q % 2) * kPitch + first_column() + m * 16 + group + q / 2 * 8] = acc_[m][j][q];
      }
    }
  }
  /// No initializer: that would be loaded from memory.
  CCKS_INLINE void clear() {
    CCKS_UNROLL
    for (u32 m = 0; m < kM; ++m)
      for (u32 j = 0; j < kN; ++j)
        for (u32 q = 0; q < 4; ++q) acc_[m][j][q] = 0;
  }

  CCKS_INLINE u32 warp() const { return lanes_.lane() / Lanes::kWarp; }
  CCKS_INLINE u32 first_column() const { return warp() % kWarpsM * kM * 16; }
  CCKS_INLINE u32 first_row() const { return warp() / kWarpsM % kWarpsN * kN * 8; }

  Lanes& lanes_;
  const ExpertWindow& w_;
  const u8 *row_[kCopies], *column_[kColumnCopies];  // of what is fetched next
  u32 to_;
  float acc_[kM][kN][4];
};

/// Not inlined and without the op's shape and epilogue: one copy for all of a program (product_turned.hpp says why). Arguments one by one, which stay in
/// registers. Rows of a slice of sums where there are two of them, else 0.
template <Dtype kType, u32 kColumns, u32 kM, u32 kN, u32 kWarpsN, class Lanes>
CCKS_OUTLINE u32 walk_expert(Lanes& lanes, const u8* rows, const u8* columns, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k) {
  const ExpertWindow window{rows, columns, row_bytes, column_bytes, m, n, k};
  using Walk = ExpertWalk<kType, kColumns, kM, kN, kWarpsN, Lanes>;
  Walk(lanes, window).run();
  return Walk::kSplit == 2 ? Walk::kRows : 0;
}
/// columns: of the block, as expert_columns says.
template <Dtype kType, class Lanes>
CCKS_INLINE u32 walk_expert_rows(Lanes& lanes, const ExpertWindow& w, u32 columns) {
  const auto walk = [&]<u32 kColumns, u32 kM, u32 kN, u32 kWarpsN>() {
    return walk_expert<kType, kColumns, kM, kN, kWarpsN>(lanes, w.rows, w.columns, w.row_bytes, w.column_bytes, w.m, w.n, w.k);
  };
  if (columns == 64) {
    if (w.m <= 8) return walk.template operator()<64, 1, 1, 1>();
    if (w.m <= 16) return walk.template operator()<64, 1, 2, 1>();
    if (w.m <= 32) return walk.template operator()<64, 2, 2, 2>();
    if (w.m <= 64) return walk.template operator()<64, 2, 4, 2>();
    return walk.template operator()<64, 2, 4, 4>();
  }
  if (w.m <= 8) return walk.template operator()<128, 1, 1, 1>();
  if (w.m <= 16) return walk.template operator()<128, 1, 2, 1>();
  if (w.m <= 32) return walk.template operator()<128, 1, 4, 1>();
  if (w.m <= 64) return walk.template operator()<128, 2, 4, 2>();
  return walk.template operator()<128, 2, 8, 2>();
}

template <class A, class B>
inline constexpr bool kExpertUnits = false;
template <Dtype kType>
inline constexpr bool kExpertUnits<Fixed<kType>, Fixed<kType>> = kType == Dtype::bf16 || kType == Dtype::f16;

/// Whether packets of 16 bytes along k lie so that they can be copied, and scratch is large enough.
template <class Lanes, class Problem>
CCKS_INLINE bool expert_in_packets(Lanes& lanes, const Problem& p, u32 k) {
  constexpr u32 kPacket = 8;
  const u64 starts = reinterpret_cast<u64>(p.left.data) | reinterpret_cast<u64>(p.right.data);
  return lanes.scratch_bytes() >= kCudaExpertScratchBytes && p.left.column_stride == 1 && p.right.row_stride == 1 && k % kPacket == 0 && k != 0 &&
         p.left.row_stride % kPacket == 0 && p.right.column_stride % kPacket == 0 && starts % 16 == 0;
}

/// What a walk over a block left in scratch, brought together and finished.
template <class Lanes, class Problem>
CCKS_INLINE void finish_expert(Lanes& lanes, const Problem& problem, u32 i0, u32 j0, u32 m, u32 n, u32 columns, u32 slice_rows) {
  const u32 wide = columns / kVector, pitch = expert_pitch(columns);
  const float* sums = reinterpret_cast<const float*>(lanes.scratch() + kExpertTableBytes);
  CCKS_NO_UNROLL
  for (u32 o = lanes.lane(); o < m * wide; o += Lanes::kLanes) {
    const u32 i = o / wide, j = o % wide * kVector;
    if (j >= n) continue;
    Four<float> all = *reinterpret_cast<const Four<float>*>(sums + i * pitch + j);
    if (slice_rows != 0) {
      const Four<float> more = *reinterpret_cast<const Four<float>*>(sums + (slice_rows + i) * pitch + j);
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) all.v[q] += more.v[q];
    }
    problem.finish_four(i0 + i, j0 + j, least(kVector, n - j), all.v);
  }
}

/// The product of a tile of m rows and n columns; rows of x are those that tile.problem().row names. Only where expert_in_packets. What the walk and what
/// the end want of the op is found out apart: kept over the walk it would lie in memory, from which weights drive it.
template <class Lanes, class Tile>
CCKS_INLINE void multiply_expert(Lanes& lanes, const Tile& tile, u32 m, u32 n, u32 k) {
  u32* table = reinterpret_cast<u32*>(lanes.scratch());
  CCKS_NO_UNROLL
  for (u32 i0 = 0; i0 < m; i0 += kExpertRows) {
    const u32 here = least(kExpertRows, m - i0), block = expert_columns(n);
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < n; j0 += block) {
      const u32 columns = least(block, n - j0);
      u32 slice_rows = 0;
      {
        const auto p = tile.problem();
        if (i0 + j0 != 0) lanes.sync();  // results are read to the end
        for (u32 i = lanes.lane(); i < here; i += Lanes::kLanes) table[i] = p.row(i0 + i);
        lanes.sync();
        const u32 row_bytes = static_cast<u32>(p.left.row_stride) * 2, column_bytes = static_cast<u32>(p.right.column_stride) * 2;
        const ExpertWindow window{p.left.data, p.right.data + u64{j0} * column_bytes, row_bytes, column_bytes, here, columns, k};
        slice_rows = walk_expert_rows<decltype(p.left.type)::kDtype>(lanes, window, block);
      }
      finish_expert(lanes, tile.problem(), i0, j0, here, columns, block, slice_rows);
    }
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// expert_matmul where lanes run in warps: which rows a tile has, and, where warps do not multiply together (product_narrow.hpp, product_group.hpp), their product with an
// expert's weights in columns, 16-bit floats, on matrix units. One body for one row and for 128: weights take the units' sixteen rows and rows of x their eight columns, so that an
// expert of three rows costs what one of eight does.
//
// Rows of x, gathered, and 64 or 128 columns of weights come through stages of scratch, 64 elements along k at a time, by copies that go on in the
// background: fifty to ninety kilobytes are under way, which is what memory needs to be read at full speed by all workers. What a step costs beside its
// copies, some hundred instructions and a barrier, is spread over 16 KB: so 128 columns where a tile has them. Of a stage's row of 128
// bytes the halves are changed in every other row, so that eight lanes that read 16 bytes each, of two rows, meet all banks. A packet of 16
// bytes along k holds what two products want of it, if k is taken in another order: the same for both, and sums do not mind.
#pragma once

#include "ccks/worker/expert_window.hpp"
#include "ccks/worker/kept_tiles.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Rows that an expert has taken. One that takes less than nothing or more than all rows takes more than there are, which whoever adds sees.
template <class C>
CCKS_INLINE u32 load_count(const View<C>& count, u32 expert, u32 rows) {
  const i64 found = load_int(count.type, count.at(0, 0, 0, static_cast<i32>(expert)), 0);
  return found >= 0 && found <= rows ? static_cast<u32>(found) : rows + 1;
}

/// Row tiles of an expert, `each` rows in one, of `rows` in all: how many are full, and what is left over. By a shift where `each` is a power of two or all of them, else by as many steps as
/// there are full ones: a division is some 25 instructions, which a tile would go through whether they do anything or not.
class RowTiles {
 public:
  struct Of {
    u32 full, left;
  };
  CCKS_INLINE RowTiles(u32 each, u32 rows) : each_(each), log_((each & (each - 1)) == 0 || rows <= each ? log2_of(ceil_pow2(each)) : kUneven) {}
  CCKS_INLINE Of of(u32 taken) const {
    if (log_ != kUneven) return {taken >> log_, taken - (taken >> log_) * each_};
    Of of{0, taken};
    CCKS_NO_UNROLL
    for (; of.left >= each_; of.left -= each_) ++of.full;
    return of;
  }

 private:
  static constexpr u32 kUneven = 32;
  u32 each_, log_;
};

/// How many row tiles there are of each size, of experts' rows that are left over. Of more experts than a byte counts all are one size.
class SizedTiles {
 public:
  static constexpr u32 kSizes = 8;
  CCKS_INLINE explicit SizedTiles(u32 experts) : most_(experts <= 255 ? 255 : ~u64{0}) {}

  /// From 0, what takes longest, to what takes least: as routed_rows (product_routed.hpp), two of its steps one here and there.
  CCKS_INLINE u32 size(u32 rows) const {
    const u32 last = rows - 1, step = rows <= 64 ? last >> 4 : rows <= 128 ? 2 + (last >> 5) : 4 + (last >> 6);
    return most_ == 255 ? kSizes - 1 - least(step, kSizes - 1) : 0;
  }
  /// No rows are none.
  CCKS_INLINE void add(u32 rows) { counts_ += rows != 0 ? u64{1} << (size(rows) * 8) : 0; }
  CCKS_INLINE void add(const SizedTiles& more) { counts_ += more.counts_; }
  CCKS_INLINE u32 of(u32 size) const { return most_ == 255 || size == 0 ? static_cast<u32>(counts_ >> (size * 8) & most_) : 0; }
  template <class Lanes>
  CCKS_INLINE SizedTiles of_lane(Lanes& lanes, u32 step) const {
    SizedTiles other = *this;
    other.counts_ = lanes.shuffle_xor(counts_, step);
    return other;
  }

 private:
  u64 most_, counts_ = 0;
};

/// What some experts have: rows, full row tiles, and what is left over.
struct ExpertTiles {
  u32 taken = 0, full = 0;
  SizedTiles left;

  CCKS_INLINE explicit ExpertTiles(u32 experts) : left(experts) {}
  CCKS_INLINE void add(const ExpertTiles& more) {
    taken += more.taken;
    full += more.full;
    left.add(more.left);
  }
};

/// All row tiles into what is kept for later tiles of the op, by lanes that have experts [begin, end) each: `all` of the experts, and those `before` this lane's. Lanes meet behind it.
/// False: there are too many, or counts are not sound.
template <class Lanes, class C>
CCKS_INLINE bool keep_row_tiles(Lanes& lanes, const View<C>& count, u32 begin, u32 end, const RowTiles& row_tiles, u32 rows_per_tile, u32 rows, const ExpertTiles& all, ExpertTiles before,
                                KeptTiles& kept) {
  u32 tiles = all.full;
  CCKS_NO_UNROLL
  for (u32 size = 0; size < SizedTiles::kSizes; ++size) tiles += all.left.of(size);
  if (all.taken > rows || tiles > KeptTiles::kMost || rows_per_tile > 0xffff || end > 0xffff) return false;
  CCKS_NO_UNROLL
  for (u32 expert = begin; expert < end; ++expert) {
    const u32 its = load_count(count, expert, rows);
    const RowTiles::Of of = row_tiles.of(its);
    CCKS_NO_UNROLL
    for (u32 i = 0; i < of.full; ++i) kept.rows[before.full++] = {before.taken + i * rows_per_tile, static_cast<u16>(expert), static_cast<u16>(rows_per_tile)};
    if (of.left != 0) {
      const u32 its_size = all.left.size(of.left);
      u32 at = all.full + before.left.of(its_size);
      CCKS_NO_UNROLL
      for (u32 size = 0; size < its_size; ++size) at += all.left.of(size);
      kept.rows[at] = {before.taken + of.full * rows_per_tile, static_cast<u16>(expert), static_cast<u16>(of.left)};
      before.left.add(of.left);
    }
    before.taken += its;
  }
  if (lanes.lane() == 0) {
    kept.of = {count.data, kept.op, kept.tag};
    kept.tiles = tiles;
  }
  lanes.sync();
  return true;
}

/// As find_expert (ops_matmul.hpp), by all lanes, which share out the experts, but that row tiles are numbered by how long they take: full ones first, then what is left over of each expert,
/// by its size, then by expert. Dealt out in turn, workers have as many long ones each, and short ones last. All lanes call it, done with scratch, and read what it says there before
/// any of them goes on to use it (a barrier). kept: where all of them are kept, if they have room. Loops, and an expert a lane where there are no more: a tile goes through this once, and
/// straight code is fetched as slowly as it runs.
template <class Lanes, class C>
CCKS_INLINE ExpertRows find_expert_together(Lanes& lanes, const View<C>& count, u32 experts, u32 index, u32 rows_per_tile, u32 rows, KeptTiles* kept = nullptr) {
  constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp;
  const u32 each = ceil_div(experts, Lanes::kLanes), begin = least(lanes.lane() * each, experts), end = least(begin + each, experts);
  const RowTiles row_tiles(rows_per_tile, rows);
  ExpertTiles all(experts), before(experts);
  u32 its = 0;
  CCKS_NO_UNROLL
  for (u32 expert = begin; expert < end; ++expert) {
    its = load_count(count, expert, rows);
    const RowTiles::Of of = row_tiles.of(its);
    all.taken = least(all.taken + its, rows + 1);
    all.full += of.full;
    all.left.add(of.left);
  }
  CCKS_NO_UNROLL
  for (u32 step = 1; step < kWarp; step *= 2) {
    ExpertTiles other(experts);
    other.taken = lanes.shuffle_xor(all.taken, step);
    other.full = lanes.shuffle_xor(all.full, step);
    other.left = all.left.of_lane(lanes, step);
    if ((lanes.lane() & step) != 0) before.add(other);
    all.add(other);
    all.taken = least(all.taken, rows + 1);
  }
  struct Told {
    ExpertTiles of_warp[kWarps];
    ExpertRows rows;
  };
  static_assert(sizeof(Told) <= sizeof(KeptTiles::told));
  Told& told = *(kept != nullptr ? reinterpret_cast<Told*>(kept->told) : reinterpret_cast<Told*>(lanes.scratch()));
  if (lanes.lane() % kWarp == 0) told.of_warp[lanes.lane() / kWarp] = all;
  if (lanes.lane() == 0) told.rows = ExpertRows{};
  lanes.sync();
  all = ExpertTiles(experts);
  CCKS_NO_UNROLL
  for (u32 w = 0; w < kWarps; ++w) {
    if (w == lanes.lane() / kWarp) before.add(all);
    all.add(told.of_warp[w]);
    all.taken = least(all.taken, rows + 1);
  }
  if (kept != nullptr && keep_row_tiles(lanes, count, begin, end, row_tiles, rows_per_tile, rows, all, before, *kept)) return kept->at(index);
  const bool is_full = index < all.full;
  u32 ahead = index - before.full, size = 0;  // how many of its kind, beginning with this lane's
  if (!is_full) {
    ahead = index - all.full;
    CCKS_NO_UNROLL
    while (size < SizedTiles::kSizes && ahead >= all.left.of(size)) ahead -= all.left.of(size++);
    ahead -= before.left.of(least(size, SizedTiles::kSizes - 1));
  }
  const bool sound = all.taken <= rows;
  if (sound && size < SizedTiles::kSizes) {
    CCKS_NO_UNROLL
    for (u32 expert = begin; expert < end; ++expert) {
      if (each > 1) its = load_count(count, expert, rows);
      const RowTiles::Of of = row_tiles.of(its);
      const u32 here = is_full ? of.full : of.left != 0 && all.left.size(of.left) == size ? 1 : 0;
      if (ahead < here) told.rows = {static_cast<i32>(expert), before.taken + (is_full ? ahead : of.full) * rows_per_tile, is_full ? rows_per_tile : of.left, true};
      ahead -= here;  // from the one that is meant on below zero, as for lanes behind its
      before.taken += its;
    }
  }
  lanes.sync();
  ExpertRows found = told.rows;
  found.sound = sound;
  return found;
}

inline constexpr u32 kExpertRows = 128;         // of a block
inline constexpr u32 kExpertTableBytes = 1024;  // at the beginning of scratch: the block's rows of x
inline constexpr u32 kExpertStagesBytes = kCudaExpertScratchBytes - kExpertTableBytes;
static_assert(kExpertRows * sizeof(u32) <= kExpertTableBytes);

/// Columns of a block of a tile of n columns.
CCKS_INLINE constexpr u32 expert_columns(u32 n) { return n <= 64 ? 64 : 128; }
/// From one row of sums to the next, in floats: lanes of a warp store to different banks.
CCKS_INLINE constexpr u32 expert_pitch(u32 columns) { return columns + 4; }

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
  static_assert(kTwinColumns % kRowsAtOnce == 0);
  static constexpr bool kWeightsOnce = kRows < kExpertRows;  // a tile of all rows that there can be has neighbours with the same weights
  static_assert(kSplit * kWarpsM * kWarpsN == kWarps && (kSplit == 1 || kSplit == 2) && kStages >= 3);
  static_assert(kSplit * kRows * kPitch * sizeof(float) <= kExpertStagesBytes);

  /// Columns that there are not are the last once more, rows that there are not whatever lies in the stage: nobody keeps their sums.
  CCKS_INLINE ExpertWalk(Lanes& lanes, const ExpertWindow& w) : lanes_(lanes), w_(w) {
    const u32 line = lanes.lane() / 8, part = lanes.lane() % 8;
    to_ = line * kExpertRowBytes + half(part / 4, line) + part % 4 * 16;  // kRowsAtOnce is a multiple of eight
    CCKS_UNROLL
    for (u32 i = 0; i < kColumnCopies; ++i) {
      const bool twin = kColumns == 2 * kTwinColumns && i * kRowsAtOnce >= kTwinColumns && w.twin_columns != nullptr;
      const u32 j = line + i * kRowsAtOnce - (twin ? kTwinColumns : 0);
      column_[i] = (twin ? w.twin_columns : w.columns) + u64{least(j, w.n - 1)} * w.column_bytes + part * 16;
    }
  }

  /// Sums [slice of k][row][kPitch] behind the table, there for all lanes. False: a row is named that there is not. Which rows they are comes from
  /// the L2: the first weights are on their way meanwhile.
  CCKS_INLINE bool run() {
    clear();
    const u32 steps = ceil_div(w_.k, kDepth);
    CCKS_NO_UNROLL
    for (u32 s = 0; s + 1 < kStages; ++s) {
      fetch_columns(s, s, steps);
      lanes_.commit_copies();
    }
    const bool sound = find_rows();
    CCKS_NO_UNROLL
    for (u32 s = 0; s + 1 < kStages; ++s) {
      if (sound) fetch_rows(s, s, steps);
      lanes_.commit_copies();
    }
    if (!sound) lanes_.template await_copies<0>();
    if (!sound) return false;
    u32 stage = 0, next = kStages - 1;
    CCKS_NO_UNROLL
    for (u32 step = 0; step < steps; ++step) {
      lanes_.template await_copies<kStages - 2>();
      lanes_.sync();  // what others have copied is there, and all are done with the stage before
      fetch_columns(next, step + kStages - 1, steps);
      fetch_rows(next, step + kStages - 1, steps);
      lanes_.commit_copies();
      multiply(stages() + stage * kStageBytes);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    lanes_.template await_copies<0>();
    lanes_.sync();
    put();
    lanes_.sync();
    return true;
  }

 private:
  CCKS_INLINE u8* stages() const { return lanes_.scratch() + kExpertTableBytes; }
  /// Where a half of a stage's row lies in it.
  CCKS_INLINE static constexpr u32 half(u32 which, u32 row) { return (which ^ (row & 1)) * 64; }

  /// A lane a row. All lanes learn whether all are there.
  CCKS_INLINE bool find_rows() {
    u32* table = reinterpret_cast<u32*>(lanes_.scratch());
    const u32 i = lanes_.lane();
    bool sound = true;
    if (w_.source == nullptr) {
      if (i < w_.m) table[i] = w_.first + i;
      lanes_.sync();
    } else {
      i64 from = 0;
      if (i < w_.m) {
        const u8* at = w_.source + i * w_.source_bytes;
        from = w_.wide ? *reinterpret_cast<const i64*>(at) : *reinterpret_cast<const i32*>(at);
        table[i] = static_cast<u32>(from) / w_.divisor;
      }
      sound = lanes_.max(from < 0 || from >= w_.limit ? 1 : 0) == 0;  // a barrier, too
    }
    const u32 line = lanes_.lane() / 8, part = lanes_.lane() % 8;
    CCKS_UNROLL
    for (u32 c = 0; c < kCopies; ++c) row_[c] = w_.rows + u64{table[least(line + c * kRowsAtOnce, w_.m - 1)]} * w_.row_bytes + part * 16;
    return sound;
  }

  /// Weights of a step, and rows of x. Behind k there is zero.
  CCKS_INLINE void fetch_columns(u32 stage, u32 step, u32 steps) {
    u8* to = stages() + stage * kStageBytes + to_ + kRows * kExpertRowBytes;
    if (step < w_.k / kDepth) {
      copy<kWeightsOnce>(to, column_, kColumns, true);
    } else if (step < steps) {
      copy<kWeightsOnce>(to, column_, kColumns, is_within(step));
    }
  }
  CCKS_INLINE void fetch_rows(u32 stage, u32 step, u32 steps) {
    u8* to = stages() + stage * kStageBytes + to_;
    if (step < w_.k / kDepth) {
      copy<false>(to, row_, w_.m, true);
    } else if (step < steps) {
      copy<false>(to, row_, w_.m, is_within(step));
    }
  }
  CCKS_INLINE bool is_within(u32 step) const { return step * kDepth + lanes_.lane() % 8 * 8 < w_.k; }
  template <bool kOnce, u32 kTimes>
  CCKS_INLINE void copy(u8* to, const u8* (&from)[kTimes], u32 lines, bool within) {
    const u32 line = lanes_.lane() / 8;
    CCKS_UNROLL
    for (u32 i = 0; i < kTimes; ++i) {
      if (line + i * kRowsAtOnce < lines) copy_packet<kOnce>(lanes_, to + i * kRowsAtOnce * kExpertRowBytes, from[i], within);
      from[i] += kExpertRowBytes;
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
    float* sums = reinterpret_cast<float*>(lanes_.scratch() + kExpertTableBytes) + (warp() / (kWarpsM * kWarpsN)) * kRows * kPitch;
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
/// registers. Rows of a slice of sums where there are two of them, else 0; kUnsound: a row is named that there is not.
inline constexpr u32 kUnsound = 0xffffffffu;
template <Dtype kType, u32 kColumns, u32 kM, u32 kN, u32 kWarpsN, class Lanes>
CCKS_OUTLINE u32 walk_expert(Lanes& lanes, const u8* rows, const u8* columns, const u8* source, u32 row_bytes, u32 column_bytes, u32 m, u32 n, u32 k,
                             u32 first, u32 source_bytes, u32 divisor, i64 limit, bool wide, const u8* twin_columns) {
  const ExpertWindow window{rows, columns, source, row_bytes, column_bytes, m, n, k, first, source_bytes, divisor, limit, wide, twin_columns};
  using Walk = ExpertWalk<kType, kColumns, kM, kN, kWarpsN, Lanes>;
  if (!Walk(lanes, window).run()) return kUnsound;
  return Walk::kSplit == 2 ? Walk::kRows : 0;
}
/// columns: of the block, as expert_columns says.
template <Dtype kType, class Lanes>
CCKS_INLINE u32 walk_expert_rows(Lanes& lanes, const ExpertWindow& w, u32 columns) {
  const auto walk = [&]<u32 kColumns, u32 kM, u32 kN, u32 kWarpsN>() {
    return walk_expert<kType, kColumns, kM, kN, kWarpsN>(lanes, w.rows, w.columns, w.source, w.row_bytes, w.column_bytes, w.m, w.n, w.k, w.first, w.source_bytes,
                                                           w.divisor, w.limit, w.wide, w.twin_columns);
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

}  // namespace CCKS_ISA
}  // namespace ccks::worker

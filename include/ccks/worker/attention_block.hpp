// attention of many rows, heads of 64 or 128 dims, elements of two bytes, on matrix units. Warps share out the rows of a tile, sixteen each; keys
// and values come through scratch, a block of positions at a time and the next one meanwhile, for all of them.
//
// In a warp, with g = lane / 4 and c = lane % 4, a lane has rows g and g + 8. Products add dims up in any order, as long as both sides have the same:
// of queries and keys it takes packets of eight dims c, c + 4, ..., so that eight lanes that read 16 bytes each meet all banks, the packets of odd rows
// being stored four further on. Scores of positions 2c and 2c + 1 of each eight come out there, and go in again as weights. Of values it takes packet
// g of the dims at positions 2c, 2c + 1, 2c + 8 and 2c + 9; dims 16c to 16c + 15 of the sums come out there.
//
// Rows may have limits of their own, as rows of sequences of different lengths have. A warp goes over a block once for each sequence that its rows are
// of: weights of other rows are zero and their sums are left alone, and values of positions outside are zero too, so that nothing, not even
// NaN, gets from one sequence into another.
#pragma once

#include "ccks/worker/expert_window.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Up to sixteen rows a warp, and heads [head, head_end) of them. q and out: of the first row, k and v: of the first position, all of head 0. Rows attend to positions
/// below `reach`, row i to i * reach_step more, or, where there are limits, to those of [begin, end) that are.
struct AttentionRows {
  const u8 *q, *k, *v;
  u8* out;
  const u8* limits;  // null: none
  u32 q_row, k_row, v_row, out_row, limits_row, limits_column;  // bytes from one to the next
  u32 rows = 0, context = 0, head = 0, head_end = 0, group = 1;
  i32 reach = 0, reach_step = 0;
  float scale = 1;
  bool deep = false;  // scratch has kCudaGroupedScratchBytes

  struct Limits {
    u32 begin, end;
  };
  /// What `limits` says of a row, as it lies there.
  struct Said {
    i32 begin, end;
  };
  CCKS_INLINE Said said_of(u32 row) const {
    Said said{0, 0x7fffffff};
    if (limits != nullptr) {
      const u8* of = limits + row * u64{limits_row};
      said = {*reinterpret_cast<const i32*>(of), *reinterpret_cast<const i32*>(of + limits_column)};
    }
    return said;
  }
  /// The positions that row `row` attends to, none of them outside the context; begin is at most end.
  CCKS_INLINE Limits limits_of(u32 row, const Said& said) const {
    const i32 reached = most(0, least(static_cast<i32>(context), reach + static_cast<i32>(row) * reach_step));
    const u32 begin = static_cast<u32>(most(0, said.begin)), end = static_cast<u32>(least(reached, most(0, said.end)));
    return {begin, most(begin, end)};
  }
  CCKS_INLINE Limits limits_of(u32 row) const { return limits_of(row, said_of(row)); }
};

template <u32 kDims, Dtype D, class Lanes>
class BlockAttention {
 public:
  static constexpr u32 kWarp = Lanes::kWarp, kWarps = Lanes::kLanes / kWarp, kRows = 16 * kWarps;
  static constexpr u32 kBlock = 4096 / kDims;                          // positions in scratch
  static constexpr u32 kRowBytes = kDims * 2, kPackets = kDims / 8;    // of a position
  static constexpr u32 kHalfBytes = kBlock * kRowBytes;                // keys, then values
  static constexpr u32 kStages = 2, kTableBytes = kRows * 8;           // [begin, end) of each row
  static constexpr u32 kSteps = kDims / 16, kGroups = kBlock / 8, kHalves = kDims / 64;
  static constexpr float kLog2E = 1.44269504088896340736f;
  static_assert(kTableBytes + kStages * 2 * kHalfBytes <= kMinScratchBytes && Lanes::kLanes % kPackets == 0);

  CCKS_INLINE BlockAttention(Lanes& lanes, const AttentionRows& of)
      : lanes_(lanes), t_(of), scale_(of.scale * kLog2E), warp_(lanes.lane() / kWarp), g_(lanes.lane() % kWarp / 4), c_(lanes.lane() % 4) {}

  CCKS_INLINE void run() {
    find_limits();
    CCKS_NO_UNROLL
    for (u32 head = t_.head; head < t_.head_end; ++head) attend(head);
  }

 private:
  using Limits = AttentionRows::Limits;
  struct Sums {
    float top[2], sum[2], value[kHalves][8][4];
  };

  CCKS_INLINE Limits* table() const { return reinterpret_cast<Limits*>(lanes_.scratch()); }
  CCKS_INLINE u8* stage(u32 i) const { return lanes_.scratch() + kTableBytes + i % kStages * 2 * kHalfBytes; }
  CCKS_INLINE static constexpr u32 key_place(u32 position, u32 packet) { return position * kRowBytes + (packet ^ ((position & 1) * 4)) * 16; }
  CCKS_INLINE static constexpr u32 value_place(u32 position, u32 packet) { return position * kRowBytes + (packet ^ ((position >> 1 & 3) * 2)) * 16; }

  /// Of each row, in scratch, and of all of them together.
  CCKS_INLINE void find_limits() {
    u32 begin = 0xffffffffu, end = 0;
    if (lanes_.lane() < kRows) {
      const u32 row = lanes_.lane();
      Limits own{0, 0};
      if (row < t_.rows) own = t_.limits_of(row);
      table()[row] = own;
      if (own.begin < own.end) begin = own.begin, end = own.end;
    }
    begin_ = ~static_cast<u32>(lanes_.max(static_cast<i64>(~begin)));  // barriers, too
    end_ = static_cast<u32>(lanes_.max(static_cast<i64>(end)));
  }

  CCKS_INLINE void attend(u32 head) {
    const u32 column = head * kRowBytes;
    const u64 kv = u64{head / t_.group} * kRowBytes;
    const u32 blocks = begin_ < end_ ? ceil_div(end_ - begin_, kBlock) : 0;
    const u8 *keys = t_.k + kv, *values = t_.v + kv;
    Sums s;
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) s.top[r] = -f_infinity(), s.sum[r] = 0;
    CCKS_UNROLL
    for (u32 h = 0; h < kHalves; ++h)
      for (u32 i = 0; i < 8; ++i)
        for (u32 q = 0; q < 4; ++q) s.value[h][i][q] = 0;
    u32 query[2][kSteps * 2];
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const u8* own = t_.q + u64{least(warp_ * 16 + g_ + r * 8, t_.rows - 1)} * t_.q_row + column;
      CCKS_UNROLL
      for (u32 p = 0; p < kPackets / 4; ++p) {
        const Sixteen q = *reinterpret_cast<const Sixteen*>(own + (p * 4 + c_) * 16);
        CCKS_UNROLL
        for (u32 w = 0; w < 4; ++w) query[r][p * 4 + w] = q.word[w];
      }
    }
    lanes_.sync();  // what the head before has left in scratch is read
    fetch(keys, values, 0);
    const Group front = group_from(0);
    CCKS_NO_UNROLL
    for (u32 i = 0; i < blocks; ++i) {
      lanes_.template await_copies<0>();
      lanes_.sync();  // what others have copied is there, and all are done with the block before
      fetch(keys, values, i + 1);
      take(s, query, begin_ + i * kBlock, stage(i), front);
    }
    lanes_.template await_copies<0>();
    put(s, column);
  }

  /// Block `i` of the positions, zeros behind the last.
  CCKS_INLINE void fetch(const u8* keys, const u8* values, u32 i) {
    constexpr u32 kAtOnce = Lanes::kLanes / kPackets;
    const u32 packet = lanes_.lane() % kPackets, first = lanes_.lane() / kPackets, from = begin_ + i * kBlock;
    if (begin_ < end_ && from < end_) {
      u8* to = stage(i);
      CCKS_UNROLL
      for (u32 p = 0; p < kBlock / kAtOnce; ++p) {
        const u32 position = first + p * kAtOnce, at = from + position;
        const bool there = at < end_;
        const u64 row = there ? at : from;
        lanes_.copy_sixteen(to + key_place(position, packet), keys + row * t_.k_row + packet * 16, there);
        lanes_.copy_sixteen(to + kHalfBytes + value_place(position, packet), values + row * t_.v_row + packet * 16, there);
      }
    }
    lanes_.commit_copies();
  }

  /// Neighbouring rows of the warp that begin at one position: of one sequence.
  struct Group {
    u32 first, last, begin, end, least_end;  // the last two: of the row that ends last, and first
  };
  CCKS_INLINE Group group_from(u32 first) const {
    const Limits* rows = table() + warp_ * 16;
    Group g{first, first, rows[first].begin, rows[first].end, rows[first].end};
    CCKS_NO_UNROLL
    while (g.last + 1 < 16 && rows[g.last + 1].begin == g.begin) {
      ++g.last;
      g.end = most(g.end, rows[g.last].end);
      g.least_end = least(g.least_end, rows[g.last].end);
    }
    return g;
  }

  /// One block for each sequence that the warp's rows are of; `front` is the first of them.
  CCKS_INLINE void take(Sums& s, const u32 (&query)[2][kSteps * 2], u32 from, const u8* block, const Group& front) {
    const Limits* rows = table() + warp_ * 16;
    Group g = front;
    CCKS_NO_UNROLL
    for (;;) {
      if (g.begin < g.end && g.begin < from + kBlock && g.end > from) {
        if (g.first == 0 && g.last == 15 && g.begin <= from && g.least_end >= from + kBlock)
          add<true>(s, query, from, block, {g.begin, g.end}, {}, {}, 3);
        else
          add<false>(s, query, from, block, {g.begin, g.end}, rows[g_], rows[g_ + 8],
                     (g_ >= g.first && g_ <= g.last ? 1u : 0u) | (g_ + 8 >= g.first && g_ + 8 <= g.last ? 2u : 0u));
      }
      if (g.last == 15) return;
      g = group_from(g.last + 1);
    }
  }

  /// kWhole: all rows attend to all of the block. all: positions of the sequence; low, high: of rows g and g + 8; mine: which of them are of it.
  template <bool kWhole>
  CCKS_INLINE void add(Sums& s, const u32 (&query)[2][kSteps * 2], u32 from, const u8* block, Limits all, Limits low, Limits high, u32 mine) {
    float score[kGroups][4];
    CCKS_UNROLL
    for (u32 j = 0; j < kGroups; ++j) {
      CCKS_UNROLL
      for (u32 q = 0; q < 4; ++q) score[j][q] = 0;
      CCKS_UNROLL
      for (u32 p = 0; p < kPackets / 4; ++p) {
        const Sixteen key = *reinterpret_cast<const Sixteen*>(block + key_place(j * 8 + g_, p * 4 + c_));
        CCKS_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 a[4] = {query[0][p * 4 + 2 * half], query[1][p * 4 + 2 * half], query[0][p * 4 + 2 * half + 1], query[1][p * 4 + 2 * half + 1]};
          const u32 b[2] = {key.word[2 * half], key.word[2 * half + 1]};
          lanes_.template multiply_wide<D>(score[j], a, b);
        }
      }
    }
    float shrink[2];
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float top = s.top[r];
      CCKS_UNROLL
      for (u32 j = 0; j < kGroups; ++j) {
        CCKS_UNROLL
        for (u32 q = 2 * r; q < 2 * r + 2; ++q) {
          score[j][q] *= scale_;
          if constexpr (!kWhole) {
            const u32 at = from + j * 8 + 2 * c_ + q % 2;
            const Limits own = r == 0 ? low : high;
            if ((mine >> r & 1) == 0 || at < own.begin || at >= own.end) score[j][q] = -f_infinity();
          }
          top = most(top, score[j][q]);
        }
      }
      top = most(top, lanes_.shuffle_xor(top, 1));
      top = most(top, lanes_.shuffle_xor(top, 2));
      const float base = top == -f_infinity() ? 0.0f : top;
      shrink[r] = lanes_.power_of_two(s.top[r] - base);
      s.top[r] = top;
      s.sum[r] *= shrink[r];
      CCKS_UNROLL
      for (u32 j = 0; j < kGroups; ++j) {
        CCKS_UNROLL
        for (u32 q = 2 * r; q < 2 * r + 2; ++q) s.sum[r] += score[j][q] = lanes_.power_of_two(score[j][q] - base);
      }
    }
    CCKS_UNROLL
    for (u32 h = 0; h < kHalves; ++h) {
      CCKS_UNROLL
      for (u32 i = 0; i < 8; ++i) {
        CCKS_UNROLL
        for (u32 q = 0; q < 4; ++q) {
          const float v = s.value[h][i][q];
          s.value[h][i][q] = kWhole || (mine >> (q / 2) & 1) != 0 ? v * shrink[q / 2] : v;
        }
      }
    }
    CCKS_UNROLL
    for (u32 j = 0; j < kGroups; j += 2) {
      const u32 a[4] = {lanes_.template pair<D>(score[j][0], score[j][1]), lanes_.template pair<D>(score[j][2], score[j][3]),
                        lanes_.template pair<D>(score[j + 1][0], score[j + 1][1]), lanes_.template pair<D>(score[j + 1][2], score[j + 1][3])};
      CCKS_UNROLL
      for (u32 h = 0; h < kHalves; ++h) add_values<kWhole>(s.value[h], a, from, block + kHalfBytes, j * 8, h, all, mine);
    }
  }

  /// Positions [at, at + 16) of the block, 64 dims of their values.
  template <bool kWhole>
  CCKS_INLINE void add_values(float (&sum)[8][4], const u32 (&a)[4], u32 from, const u8* values, u32 at, u32 half, Limits all, u32 mine) {
    Sixteen v[4];
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 position = at + 2 * c_ + i % 2 + i / 2 * 8;
      v[i] = *reinterpret_cast<const Sixteen*>(values + value_place(position, half * 8 + g_));
      if constexpr (!kWhole) {
        const bool there = from + position >= all.begin && from + position < all.end;
        CCKS_UNROLL
        for (u32 w = 0; w < 4; ++w) v[i].word[w] = there ? v[i].word[w] : 0;
      }
    }
    CCKS_UNROLL
    for (u32 w = 0; w < 4; ++w) {
      CCKS_UNROLL
      for (u32 odd = 0; odd < 2; ++odd) {
        const u32 b[2] = {odd != 0 ? lanes_.high_halves(v[0].word[w], v[1].word[w]) : lanes_.low_halves(v[0].word[w], v[1].word[w]),
                          odd != 0 ? lanes_.high_halves(v[2].word[w], v[3].word[w]) : lanes_.low_halves(v[2].word[w], v[3].word[w])};
        if constexpr (kWhole) {
          lanes_.template multiply_wide<D>(sum[2 * w + odd], a, b);
        } else {
          float more[4] = {0, 0, 0, 0};
          lanes_.template multiply_wide<D>(more, a, b);
          CCKS_UNROLL
          for (u32 q = 0; q < 4; ++q) sum[2 * w + odd][q] += (mine >> (q / 2) & 1) != 0 ? more[q] : 0.0f;
        }
      }
    }
  }

  /// Dim 8 * (2c + e) + i of a half of row g, and of row g + 8.
  CCKS_INLINE void put(const Sums& s, u32 column) {
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float sum = s.sum[r];
      sum += lanes_.shuffle_xor(sum, 1);
      sum += lanes_.shuffle_xor(sum, 2);
      const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
      const u32 own = warp_ * 16 + g_ + r * 8;
      if (own >= t_.rows) continue;
      u8* const to = t_.out + u64{own} * t_.out_row + column;
      CCKS_UNROLL
      for (u32 h = 0; h < kHalves; ++h) {
        CCKS_UNROLL
        for (u32 e = 0; e < 2; ++e) {
          Sixteen packet;
          CCKS_UNROLL
          for (u32 w = 0; w < 4; ++w)
            packet.word[w] = lanes_.template pair<D>(s.value[h][2 * w][2 * r + e] * inverse, s.value[h][2 * w + 1][2 * r + e] * inverse);
          *reinterpret_cast<Sixteen*>(to + (h * 64 + (2 * c_ + e) * 8) * 2) = packet;
        }
      }
    }
  }

  Lanes& lanes_;
  const AttentionRows t_;
  float scale_;
  u32 warp_, g_, c_, begin_ = 0, end_ = 0;
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// attention of many rows, heads of 64 or 128 dims, elements of two bytes, by groups of four warps (GroupLanes): 64 rows each. Queries and weights stay in
// registers, keys and values come through scratch, a block of positions at a time and the next ones meanwhile, for all groups.
//
// Rows may have limits of their own, as rows of sequences of different lengths have. Neighbours that begin at one position are a *sequence*: blocks have positions
// of one sequence alone, zeros behind its end, and are taken by the groups that have rows of it; of what comes out only those rows are put. So nothing, not even NaN,
// gets from one sequence into another. The walk calls nothing: ptxas waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/attention_block.hpp"
#include "ccks/worker/linked_walks.hpp"
#include "ccks/worker/near_op.hpp"
#include "ccks/worker/product_narrow.hpp"
#include "ccks/worker/route_warps.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// GroupLanes that also multiply what they hold in registers.
template <class Lanes>
concept HoldingLanes = GroupLanes<Lanes> && MatchLanes<Lanes> && requires(Lanes& lanes) { lanes.commit_group(); };

template <u32 kDims, Dtype D, class Lanes>
class GroupAttention {
 public:
  static constexpr u32 kWarp = Lanes::kWarp, kGroupRows = 64, kRows = Lanes::kLanes / (4 * kWarp) * kGroupRows;
  static constexpr u32 kBlock = 4096 / kDims;                     // positions of a stage
  static constexpr u32 kLineBytes = 128, kHalves = kDims / 64;    // of a position, in planes of their own
  static constexpr u32 kPlaneBytes = kBlock * kLineBytes, kStageBytes = 2 * kHalves * kPlaneBytes;  // keys, then values
  static constexpr u32 kTableBytes = kRows * 8, kListBytes = (kRows + 1) * 16, kWordsBytes = kRows / 8;
  static constexpr u32 kStagesFrom = (kTableBytes + kListBytes + kWordsBytes + 1023) / 1024 * 1024;
  static constexpr u32 kScores = kBlock / 8, kSteps = kDims / 16;
  static constexpr float kLog2E = 1.44269504088896340736f;
  // Where scratch is small, a block is through before the next but one is asked for.
  static constexpr u32 kFewStages = 2, kManyStages = 5, kManyAhead = kManyStages - 2;
  static_assert(kRows == 2 * kGroupRows);
  static_assert(kStagesFrom + kFewStages * kStageBytes + 1024 - 128 <= kMinScratchBytes);
  static_assert(kStagesFrom + kManyStages * kStageBytes + 1024 - 128 <= kCudaGroupedScratchBytes - kCudaKeptBytes);

  CCKS_INLINE GroupAttention(Lanes& lanes, const AttentionRows& of)
      : lanes_(lanes), t_(of), scratch_(grouped_scratch(lanes)), deep_(lanes.of_warp(of.deep ? 1 : 0) != 0), scale_(exponent_scale(of.scale)),
        group_row_(lanes.of_warp(lanes.lane() / (4 * kWarp)) * kGroupRows), own_row_(group_row_ + lanes.lane() / kWarp % 4 * 16 + lanes.lane() % kWarp / 4),
        c_(lanes.lane() % 4) {}

  CCKS_INLINE void run() {
    const AttentionRows::Said first = t_.said_of(0), own = t_.said_of(least(lanes_.lane(), t_.rows - 1));  // all on their way together with queries
    load_queries(t_.head);
    Cursor next = fetch_first(t_.limits_of(0, first));
    find_sequences(own);
    next.end = list()[0].end;  // the first row may end before others of its sequence do
    CCKS_NO_UNROLL
    while (next.asked < ahead()) fetch(next);
    CCKS_UNROLL
    for (u32 j = 0; j < kScores; ++j)
      for (u32 q = 0; q < 4; ++q) score_[j][q] = 0;
    clear();
    u32 at = 0;
    arrived_ = 0;
    arrive();
    CCKS_NO_UNROLL
    for (u32 head = t_.head;;) {  // one head's blocks follow the other's
      attend(head, next, at);
      if (++head == t_.head_end) break;
      load_queries(head);
    }
    meet();
    lanes_.template await_copies<0>();
  }

 private:
  using Limits = AttentionRows::Limits;
  struct Sequence {
    u32 first, begin, end, unused;
  };
  /// The block that is asked for next, of which head, and how many have been. of_group: heads until the next has other keys.
  struct Cursor {
    u32 asked, sequence, from, end, stage, head, of_group;
    const u8 *keys, *values;
  };

  /// Of powers of two, without its sign (load_queries). Above 0: nothing times what stands for no position would be NaN.
  CCKS_INLINE static float exponent_scale(float scale) { return most(1e-30f, (scale < 0 ? -scale : scale) * kLog2E); }
  CCKS_INLINE Limits* table() const { return reinterpret_cast<Limits*>(scratch_); }
  CCKS_INLINE Sequence* list() const { return reinterpret_cast<Sequence*>(scratch_ + kTableBytes); }
  CCKS_INLINE u32* words() const { return reinterpret_cast<u32*>(scratch_ + kTableBytes + kListBytes); }
  CCKS_INLINE u8* stage(u32 i) const { return scratch_ + kStagesFrom + i * kStageBytes; }
  CCKS_INLINE u32 stages() const { return deep_ ? kManyStages : kFewStages; }
  CCKS_INLINE u32 ahead() const { return deep_ ? kManyAhead : 1; }

  /// Packets of a lane's two rows, as products take them; of the other sign where the scale is negative.
  CCKS_INLINE void load_queries(u32 head) {
    const u32 sign = t_.scale < 0 ? 0x80008000u : 0;
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const u8* own = t_.q + u64{least(own_row_ + r * 8, t_.rows - 1)} * t_.q_row + head * (kDims * 2) + c_ * 4;
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) {
        query_[s][r] = *reinterpret_cast<const u32*>(own + s * 32) ^ sign;
        query_[s][r + 2] = *reinterpret_cast<const u32*>(own + s * 32 + 16) ^ sign;
      }
    }
  }

  /// The first blocks, before it is known where sequences end: those that the first row attends to all of.
  CCKS_INLINE Cursor fetch_first(const Limits& first) {
    const u32 kv_head = t_.head / t_.group;
    const u64 at = u64{kv_head} * (kDims * 2);
    Cursor next{0, 0, first.begin, first.end, 0, t_.head, t_.group * (kv_head + 1) - t_.head, t_.k + at, t_.v + at};
    CCKS_NO_UNROLL
    while (next.asked < ahead() && next.from + kBlock <= next.end) fetch(next);
    return next;
  }

  /// Limits of each row and the list of sequences, in scratch. said: of the lane's row, where there is one.
  CCKS_INLINE void find_sequences(const AttentionRows::Said& said) {
    const u32 row = lanes_.lane();
    Limits own{0, 0};
    if (row < t_.rows) own = t_.limits_of(row, said);
    if (row < kRows) table()[row] = own;
    lanes_.sync();
    bool begins = false, differs = false;
    if (row < t_.rows) {
      begins = row == 0 || table()[row - 1].begin != own.begin;
      differs = !begins && table()[row - 1].end != own.end;
    }
    const u32 same = lanes_.same_in_warp(begins ? 1 : 0), starts = begins ? same : ~same;
    if (row < kRows && row % kWarp == 0) words()[row / kWarp] = starts;
    const bool uneven = lanes_.max(differs ? 1 : 0) != 0;  // barriers, too
    u32 before = 0;
    count_ = 0;
    CCKS_UNROLL
    for (u32 w = 0; w < kRows / kWarp; ++w) {
      const u32 ones = lanes_.ones_of(words()[w]);
      before += w < row / kWarp ? ones : 0;
      count_ += ones;
    }
    if (begins) list()[before + lanes_.ones_of(starts & ((1u << row % kWarp) - 1))] = {row, own.begin, own.end, 0};
    if (row == 0) list()[count_].first = t_.rows;
    lanes_.sync();
    if (uneven) find_ends(row, own);
  }
  /// A sequence ends where the longest of its rows does.
  CCKS_INLINE void find_ends(u32 row, const Limits& own) {
    CCKS_NO_UNROLL
    for (u32 s = 0; s < count_; ++s) {
      const bool mine = row < t_.rows && row >= list()[s].first && row < list()[s + 1].first;
      const i32 end = lanes_.max(mine ? static_cast<i32>(own.end) : 0);
      if (row == 0) list()[s].end = static_cast<u32>(end);
    }
    lanes_.sync();
  }

  /// at: the stage of the block that is taken next.
  CCKS_INLINE void attend(u32 head, Cursor& next, u32& at) {
    CCKS_NO_UNROLL
    for (u32 s = 0; s < count_; ++s) {
      const Sequence sequence = list()[s];
      const u32 last = list()[s + 1].first;
      const bool taken = lanes_.of_warp(sequence.first < group_row_ + kGroupRows && last > group_row_ ? 1 : 0) != 0;
      find_rows(sequence.first, last);
      // Two loops: what is under way behind a block must not depend on who takes it.
      if (taken) {
        CCKS_NO_UNROLL
        for (u32 from = sequence.begin; from < sequence.end; from += kBlock) {
          meet();
          fetch(next);
          take(from, stage(at));
          at = at + 1 == stages() ? 0 : at + 1;
        }
        put(head * (kDims * 2));
        clear();
      } else {
        CCKS_NO_UNROLL
        for (u32 from = sequence.begin; from < sequence.end; from += kBlock) {
          meet();
          fetch(next);
          arrive();
          at = at + 1 == stages() ? 0 : at + 1;
        }
      }
    }
  }

  // Groups may be half a block apart: one multiplies while the other finds weights. Before a group takes a block it meets what the others have said of it by arriving: that
  // their share of its copies is there, and that they are done with the block whose place the next one gets, which is asked for then.
  CCKS_INLINE void arrive() {
    if (deep_)
      lanes_.template await_copies<kManyAhead - 1>();
    else
      lanes_.template await_copies<0>();
    lanes_.show_copies();
    lanes_.arrive_at((group_row_ == 0 ? 2 : 0) + arrived_ % 2);
    ++arrived_;
  }
  CCKS_INLINE void meet() { lanes_.meet_at((group_row_ == 0 ? 0 : 2) + (arrived_ - 1) % 2); }

  /// The block at `next`, and then the next one, of the next head behind the last sequence; nothing behind the last.
  CCKS_INLINE void fetch(Cursor& next) {
    CCKS_NO_UNROLL
    while (next.from >= next.end) {
      if (next.sequence + 1 < count_) {
        ++next.sequence;
      } else {
        if (next.head + 1 == t_.head_end) break;
        ++next.head;
        next.sequence = 0;
        if (--next.of_group == 0) {
          next.of_group = t_.group;
          next.keys += kDims * 2;
          next.values += kDims * 2;
        }
      }
      next.from = list()[next.sequence].begin;
      next.end = list()[next.sequence].end;
    }
    if (next.from < next.end) {
      constexpr u32 kPackets = kDims / 8, kAtOnce = Lanes::kLanes / kPackets;
      const u32 packet = lanes_.lane() % kPackets, first = lanes_.lane() / kPackets;
      u8* to = stage(next.stage) + packet / 8 * kPlaneBytes;
      CCKS_UNROLL
      for (u32 p = 0; p < kBlock / kAtOnce; ++p) {
        const u32 line = first + p * kAtOnce, place = line * kLineBytes + (packet % 8 ^ line % 8) * 16, position = next.from + line;
        const bool there = position < next.end;
        const u64 row = there ? position : next.from;
        lanes_.copy_sixteen(to + place, next.keys + row * t_.k_row + packet * 16, there);
        lanes_.copy_sixteen(to + kHalves * kPlaneBytes + place, next.values + row * t_.v_row + packet * 16, there);
      }
      next.from += kBlock;
      next.stage = next.stage + 1 == stages() ? 0 : next.stage + 1;
    }
    ++next.asked;
    lanes_.commit_copies();
  }

  /// Which of the lane's rows are of the sequence of rows [first, last), and where all of the warp's that are attend to everything.
  CCKS_INLINE void find_rows(u32 first, u32 last) {
    whole_ = {0, ~0u};
    mine_ = 0;
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      const u32 row = own_row_ + r * 8;
      own_[r] = {0, ~0u};  // of others whatever comes out is dropped
      if (row < first || row >= last) continue;
      mine_ |= 1u << r;
      own_[r] = table()[row];
      whole_.begin = most(whole_.begin, own_[r].begin);
      whole_.end = least(whole_.end, own_[r].end);
    }
    CCKS_UNROLL
    for (u32 step = 4; step < kWarp; step *= 2) {
      whole_.begin = most(whole_.begin, lanes_.shuffle_xor(whole_.begin, step));
      whole_.end = least(whole_.end, lanes_.shuffle_xor(whole_.end, step));
    }
  }

  CCKS_INLINE void clear() {
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) top_[r] = -f_infinity(), sum_[r] = 0;
    CCKS_UNROLL
    for (u32 h = 0; h < kHalves; ++h)
      for (u32 j = 0; j < 8; ++j)
        for (u32 q = 0; q < 4; ++q) value_[h][j][q] = 0;
  }

  CCKS_INLINE void take(u32 from, const u8* block) {
    lanes_.begin_group();
    lanes_.template multiply_held<D, true>(score_, query_[0], block, 0);
    CCKS_UNROLL
    for (u32 s = 1; s < kSteps; ++s) lanes_.template multiply_held<D>(score_, query_[s], block + s / 4 * kPlaneBytes, s % 4);
    lanes_.commit_group();
    await_all();
    if (deep_) arrive();
    if (lanes_.of_warp(from >= whole_.begin && from + kBlock <= whole_.end ? 1 : 0) != 0)
      weigh<true>(from);
    else
      weigh<false>(from);
    lanes_.begin_group();
    CCKS_UNROLL
    for (u32 j = 0; j < kScores / 2; ++j) {
      CCKS_UNROLL
      for (u32 h = 0; h < kHalves; ++h)
        lanes_.template multiply_down<D>(value_[h], weight_[j], block + (kHalves + h) * kPlaneBytes + j * 16 * kLineBytes);
    }
    lanes_.commit_group();
    if (!deep_) {
      lanes_.template await_groups_before<0>();
      arrive();
    }
  }
  CCKS_INLINE void await_all() {
    lanes_.await_group(score_);
    CCKS_UNROLL
    for (u32 h = 0; h < kHalves; ++h) lanes_.await_group(value_[h]);
  }

  /// Weights of a block's positions from their scores, and the sums so far on their scale. kWhole: all of the warp's rows attend to all of the block.
  template <bool kWhole>
  CCKS_INLINE void weigh(u32 from) {
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float top = top_[r];
      CCKS_UNROLL
      for (u32 j = 0; j < kScores; ++j) {
        CCKS_UNROLL
        for (u32 q = 2 * r; q < 2 * r + 2; ++q) {
          if constexpr (!kWhole) {
            const u32 at = from + j * 8 + 2 * c_ + q % 2;
            if (at < own_[r].begin || at >= own_[r].end) score_[j][q] = -f_infinity();
          }
          top = lanes_.larger(top, score_[j][q]);
        }
      }
      top = lanes_.larger(top, lanes_.shuffle_xor(top, 1));
      top = lanes_.larger(top, lanes_.shuffle_xor(top, 2));
      const float base = top == -f_infinity() ? 0.0f : top * scale_;
      const float shrink = lanes_.power_of_two(top_[r] * scale_ - base);
      top_[r] = top;
      float sum = sum_[r] * shrink;
      CCKS_UNROLL
      for (u32 j = 0; j < kScores; ++j) {
        CCKS_UNROLL
        for (u32 q = 2 * r; q < 2 * r + 2; ++q) sum += score_[j][q] = lanes_.power_of_two(score_[j][q] * scale_ - base);
      }
      sum_[r] = sum;
      CCKS_UNROLL
      for (u32 h = 0; h < kHalves; ++h) {
        CCKS_UNROLL
        for (u32 j = 0; j < 8; ++j) value_[h][j][2 * r] *= shrink, value_[h][j][2 * r + 1] *= shrink;
      }
    }
    CCKS_UNROLL
    for (u32 j = 0; j < kScores; ++j) {
      CCKS_UNROLL
      for (u32 r = 0; r < 2; ++r) weight_[j / 2][j % 2 * 2 + r] = lanes_.template pair<D>(score_[j][2 * r], score_[j][2 * r + 1]);
    }
  }

  /// The lane's rows of the sequence, dims 8j + 2c and 8j + 2c + 1 of each half.
  CCKS_INLINE void put(u32 column) {
    await_all();
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += lanes_.shuffle_xor(sum, 1);
      sum += lanes_.shuffle_xor(sum, 2);
      const float inverse = sum == 0 ? 0.0f : lanes_.inverse(sum);
      if ((mine_ >> r & 1) == 0) continue;
      u8* const to = t_.out + u64{own_row_ + r * 8} * t_.out_row + column + c_ * 4;
      CCKS_UNROLL
      for (u32 h = 0; h < kHalves; ++h) {
        CCKS_UNROLL
        for (u32 j = 0; j < 8; ++j)
          *reinterpret_cast<u32*>(to + h * 128 + j * 16) = lanes_.template pair<D>(value_[h][j][2 * r] * inverse, value_[h][j][2 * r + 1] * inverse);
      }
    }
  }

  Lanes& lanes_;
  const AttentionRows t_;
  u8* scratch_;
  bool deep_;
  float scale_;
  u32 group_row_, own_row_, c_, count_ = 0, mine_ = 0, arrived_ = 0;
  Limits own_[2], whole_;
  float top_[2], sum_[2], score_[kScores][4], value_[kHalves][8][4];
  u32 query_[kSteps][4], weight_[kScores / 2][4];
};

template <u32 kDims, Dtype D, class Lanes>
struct AttentionWalkOf {
  using Type = BlockAttention<kDims, D, Lanes>;
};
template <u32 kDims, Dtype D, HoldingLanes Lanes>
struct AttentionWalkOf<kDims, D, Lanes> {
  using Type = GroupAttention<kDims, D, Lanes>;
};
/// Of a tile's rows, by what its lanes can do.
template <u32 kDims, Dtype D, class Lanes>
using AttentionWalk = typename AttentionWalkOf<kDims, D, Lanes>::Type;

template <u32 kDims, Dtype D, class Lanes>
CCKS_OUTLINE void walk_attention(Lanes& lanes, const AttentionRows& of) {
  AttentionWalk<kDims, D, Lanes>(lanes, of).run();
}
template <u32 kDims, Dtype D, class Lanes>
CCKS_INLINE void run_block_attention(Lanes& lanes, const AttentionRows& of) {
#if CCKS_LINKED_WALKS
  constexpr auto kWalk = D == Dtype::bf16 ? (kDims == 64 ? ccks_walk_attention_64_bf16 : ccks_walk_attention_128_bf16)
                                          : (kDims == 64 ? ccks_walk_attention_64_f16 : ccks_walk_attention_128_f16);
  kWalk(of.q, of.k, of.v, of.out, of.limits, of.q_row, of.k_row, of.v_row, of.out_row, of.limits_row, of.limits_column, of.rows, of.context, of.head, of.head_end,
        of.group, of.reach, of.reach_step, of.scale, of.deep);
#else
  walk_attention<kDims, D>(lanes, of);
#endif
}

/// Whether four types are one that is known when the body is compiled, of two bytes.
template <class Q, class K, class V, class Out>
inline constexpr bool kBlockTypes = false;
template <Dtype D>
inline constexpr bool kBlockTypes<Fixed<D>, Fixed<D>, Fixed<D>, Fixed<D>> = D == Dtype::bf16 || D == Dtype::f16;

/// A tile of a kOpGroups op; kOut: the operand that is the output, 4 where rows have limits. False: nothing is done.
template <u32 kOut, class Lanes, class Types>
CCKS_INLINE bool grouped_attention(Lanes& lanes, const Call& call, u32 tile) {
  using Q = TypeOf<0, Types>;
  if constexpr (CopyLanes<Lanes> && kBlockTypes<Q, TypeOf<1, Types>, TypeOf<2, Types>, TypeOf<kOut, Types>>) {
    const OpParams& op = call.op;
    if ((op.flags & wire::kOpGroups) == 0) return false;
    const OperandParams &q = call.operands[0], &k = call.operands[1], &v = call.operands[2], &out = call.operands[kOut];
    i32 c[4];
    tile_coordinates(op, tile, c);
    const i32 first = c[2] * op.tile[2], end = first + static_cast<i32>(least(op.tile[2], out.dim[2] - first)), column = c[3] * op.tile[3];
    const auto at = [&](const OperandParams& o, i32 row) { return operand_base(call.frame, o) + (c[1] * o.stride[1] + row * o.stride[2]) * 2; };
    const auto bytes = [](const OperandParams& o) { return static_cast<u32>(o.stride[2]) * 2; };
    const u32 heads = static_cast<u32>(op.dims[0]), kv_heads = static_cast<u32>(op.dims[1]);
    const bool wide = static_cast<u32>(q.dim[3]) != heads * 64;  // 128 dims
    const u32 dims_log = wide ? 7 : 6;
    constexpr i32 kRows = Lanes::kLanes / Lanes::kWarp * 16;
    // What a walk goes by is found anew for the next rows, of which there are hardly any: kept over the walk it would go through memory for the first, too.
    CCKS_NO_UNROLL
    for (i32 row = first;;) {
      AttentionRows of{at(q, row), at(k, 0), at(v, 0), at(out, row), nullptr, bytes(q), bytes(k), bytes(v), bytes(out), 0, 0};
      of.context = static_cast<u32>(k.dim[2]);
      of.head = static_cast<u32>(column) >> dims_log;
      of.head_end = of.head + (static_cast<u32>(least(op.tile[3], out.dim[3] - column)) >> dims_log);
      of.group = heads == kv_heads ? 1 : heads / kv_heads;
      of.reach = op.dims[2] != 0 ? row + 1 + k.dim[2] - q.dim[2] : k.dim[2];
      of.reach_step = op.dims[2] != 0 ? 1 : 0;
      of.scale = op.scalars[0];
      of.deep = lanes.scratch_bytes() >= kCudaGroupedScratchBytes;
      of.rows = static_cast<u32>(least(end - row, kRows));
      if constexpr (kOut == 4) {
        const OperandParams& limits = call.operands[3];
        of.limits = operand_base(call.frame, limits) + row * limits.stride[2] * static_cast<i64>(sizeof(i32));
        of.limits_row = static_cast<u32>(limits.stride[2]) * static_cast<u32>(sizeof(i32));
        of.limits_column = static_cast<u32>(limits.stride[3]) * static_cast<u32>(sizeof(i32));
      }
      if (wide)
        run_block_attention<128, Q::kDtype>(lanes, of);
      else
        run_block_attention<64, Q::kDtype>(lanes, of);
      row += kRows;
      if (row >= end) break;
      lanes.sync();  // what these rows have left in scratch is read
    }
    return true;
  }
  return false;
}

/// The same of rows with limits, of one batch and no more than a walk takes, by a worker that has made a copy of the op: half of what goes by before the walk is spared. False: nothing is done.
template <class Lanes, class Types>
CCKS_INLINE bool near_attention(Lanes& lanes, const OpParams& op, u32 tile) {
  using Q = TypeOf<0, Types>;
  constexpr u32 kOut = 4;
  if constexpr (CopyLanes<Lanes> && NearLanes<Lanes> && kBlockTypes<Q, TypeOf<1, Types>, TypeOf<2, Types>, TypeOf<kOut, Types>>) {
    constexpr u32 kRows = Lanes::kLanes / Lanes::kWarp * 16;
    if ((op.flags & wire::kOpGroups) == 0 || op.operands == 0) return false;
    const NearOp& near = *lanes.nearby(reinterpret_cast<const NearOp*>(&op));
    const OperandParams &q = near.operands[0], &k = near.operands[1], &limits = near.operands[3], &out = near.operands[kOut];
    const u32 tile_rows = static_cast<u32>(near.op.tile[2]), tile_columns = static_cast<u32>(near.op.tile[3]), wide = static_cast<u32>(near.op.grid[3]), down = tile / wide;
    if (tile_rows > kRows || out.dim[1] != 1) return false;
    const u32 row = down * tile_rows, column = (tile - down * wide) * tile_columns, heads = static_cast<u32>(near.op.dims[0]), kv_heads = static_cast<u32>(near.op.dims[1]);
    const auto step = [&](u32 i) { return static_cast<u32>(near.operands[i].stride[2]) * 2; };
    const bool of_128 = static_cast<u32>(q.dim[3]) != heads * 64;
    const u32 dims_log = of_128 ? 7 : 6;
    AttentionRows of{near.begin(0) + u64{row} * step(0), near.begin(1), near.begin(2), near.begin(kOut) + u64{row} * step(kOut), nullptr, step(0), step(1), step(2), step(kOut), 0, 0};
    of.rows = least(tile_rows, static_cast<u32>(out.dim[2]) - row);
    of.context = static_cast<u32>(k.dim[2]);
    of.head = column >> dims_log;
    of.head_end = of.head + (least(tile_columns, static_cast<u32>(out.dim[3]) - column) >> dims_log);
    of.group = heads == kv_heads ? 1 : heads / kv_heads;
    of.reach = near.op.dims[2] != 0 ? static_cast<i32>(row) + 1 + k.dim[2] - q.dim[2] : k.dim[2];
    of.reach_step = near.op.dims[2] != 0 ? 1 : 0;
    of.scale = near.op.scalars[0];
    of.deep = lanes.scratch_bytes() >= kCudaGroupedScratchBytes;
    of.limits_row = static_cast<u32>(limits.stride[2]) * static_cast<u32>(sizeof(i32));
    of.limits_column = static_cast<u32>(limits.stride[3]) * static_cast<u32>(sizeof(i32));
    of.limits = near.begin(3) + u64{row} * of.limits_row;
    if (of_128)
      run_block_attention<128, Q::kDtype>(lanes, of);
    else
      run_block_attention<64, Q::kDtype>(lanes, of);
    return true;
  }
  return false;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

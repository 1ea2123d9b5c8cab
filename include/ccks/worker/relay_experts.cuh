// Steps of a relay (relay.cuh) by the experts that a route has chosen for its rows (relay_route.cuh), each of which multiplies those rows alone that chose it.
//
// Gate and up, RelayExperts::share. What all of them have is shared out among lists once experts are known (wire::relay_share, by the route), so a list has some columns of one or two experts, whose stages each hold two of gate
// and two of up. Rows are those that the step in front has staged, whole. What one row makes of its expert it leaves as words times its share.
//
// Down and the sum of all experts, RelayExperts::all. A list has some columns of every expert, eight to a stage, and their sums stay in registers from the first expert to the last. The units take eight or sixteen columns by
// eight rows at a time; of rows that have not chosen an expert they take zero (so weights of an expert that are no finite numbers reach all rows). A warp has of every expert's depth the 32 elements in its turn, takes their words four rows ahead, and
// keeps them in scratch as elements, some rows long: nobody else reads them.
#pragma once

#include "ccks/worker/relay_product.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayExpertProducts : public RelayProducts {
 protected:
  __device__ __forceinline__ RelayExpertProducts(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayProducts(memory, frame, tag) {}

  /// False, both: the worker leaves, and nothing is stored.
  __device__ __forceinline__ bool product_of_share(const wire::RelayStep& s) {
    const bool again = s.part != 0;
    if (!again) steps_ ^= 1;
    const u32 k = s.k;
    float squares[kRows];
    CCKS_UNROLL
    for (u32 r = 0; r < kRows; ++r) squares[r] = 0;
    if (!again) kMostPasses == 1 || k <= kPass ? stage<1>(s, squares) : stage<kMostPasses>(s, squares);
    mark_ready();
    __syncwarp();
    if (!again && s.norm != 0) leave_squares(squares, steps_);
    if (s.slot >= shared_.part_count) return true;
    const RelayShared::Part share = shared_.parts[s.slot];
    const RelayShared::Active& expert = shared_.active[share.active];
    tell_filler(1);
    const u32 rows = static_cast<u32>(__popc(expert.rows));
    if (kRows == 1) return walk_share<1>(s, share, expert);
    if (kRows == 2 || rows <= 2) return walk_share<least(kRows, 2u)>(s, share, expert);
    if (kRows <= 4 || rows <= 4) return walk_share<least(kRows, 4u)>(s, share, expert);
    return walk_share<kRows>(s, share, expert);
  }

  __device__ __forceinline__ bool sum_of_experts(const wire::RelayStep& s) {
    Ending ending(*this, s);
    const u32 turn = turn_;
    turn_ ^= 1;
    Sums16 sums;
    add_up(s, sums);
    if (ending.waits) ending.word = await_word(reinterpret_cast<const u64*>(s.beside) + beside_of(s, s.n) / 2, ending.word);
    __syncwarp();
    float* to = shared_.sums[turn][warp_];
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = part_ * 2 + i % 2, column = group_ + i / 2 * wire::kRelayExpertColumns;
      if (row < kRows && column < s.n) to[row * kRelaySumsPitch + column] = sums.of(i);
    }
    tell_filler(0);
    sync();
    if (has_given_up()) return false;
    finish(s, ending, 0, s.n, turn, 0);
    return true;
  }

 private:
  using Active = RelayShared::Active;

  /// The `which`-th of them, of which there are more.
  static __device__ __forceinline__ u32 row_of(u32 rows, u32 which) {
    CCKS_NO_UNROLL
    for (; which != 0; --which) rows &= rows - 1;
    return static_cast<u32>(__ffs(static_cast<i32>(rows))) - 1;
  }

  // ---- a share of all experts ---------------------------------------------------------------------------------------------

  /// kOf: as many rows as the expert has, or some more.
  template <u32 kOf>
  __device__ __forceinline__ bool walk_share(const wire::RelayStep& s, const RelayShared::Part& share, const Active& expert) {
    constexpr u32 kAtOnce = wire::relay_columns(kOf) / 2;  // of a run
    const u32 k = s.k, pieces = pieces_of(k);
    const auto row_at = [&](u32 at) { return look_up_rows<kOf>(expert.rows, at, pieces); };
    CCKS_NO_UNROLL
    for (u32 first = 0; first < share.columns; first += kAtOnce) {
      const u32 columns = least(share.columns - first, kAtOnce), turn = turn_;
      turn_ ^= 1;
      float* sums = shared_.sums[turn][warp_];
      if (k == kRelayDepth)
        walk_whole(2 * columns, row_at(0), sums);
      else
        walk<false, kOf>(k, 2 * columns, row_at, sums);
      if (first + columns == share.columns) tell_filler(0);
      sync();
      if (has_given_up()) return false;
      finish_share<kOf>(s, expert, share.first + first, columns, turn);
    }
    return true;
  }
  template <u32 kOf>
  __device__ __forceinline__ Rows<false, kOf> look_up_rows(u32 rows, u32 at, u32 pieces) const {
    using Of = Rows<false, kOf>;
    const u32 all = static_cast<u32>(__popc(rows));
    Of found;
    CCKS_UNROLL
    for (u32 set = 0; set < Of::kSets; ++set) {
      const u32 which = set * Of::kOfSet + group_ / Of::kColumns;
      if (which >= all) continue;
      const u8* from = slice_of((kRows == 1 ? 0 : row_of(rows, which) * pieces) + at, group_ % Of::kColumns);
      found.packets[set][0] = *reinterpret_cast<const uint4*>(from);
      found.packets[set][1] = *reinterpret_cast<const uint4*>(from + 256);
    }
    return found;
  }
  /// Columns [first, first + columns) of the expert, a lane a row's result. Of a stage's sums two are of the first run and two of the second.
  template <u32 kOf>
  __device__ __forceinline__ void finish_share(const wire::RelayStep& s, const Active& expert, u32 first, u32 columns, u32 turn) const {
    const u32 all = columns * static_cast<u32>(__popc(expert.rows));
    if (warp_ * kWarpLanes >= all) return;
    const u32 place = least(threadIdx.x, all - 1), which = kRows == 1 ? 0 : place / columns, mine = place - which * columns, row = kRows == 1 ? 0 : row_of(expert.rows, which);
    const u32 sums = which * relay_sums_pitch(kOf) + mine / 2 * wire::kRelayColumns + mine % 2;
    float v = sum_of_warps(turn, sums), other = sum_of_warps(turn, sums + wire::kRelayShareColumns);
    if (s.norm != 0) {
      const float factor = factor_of_norm(s, steps_, row);
      v *= factor;
      other *= factor;
    }
    v *= rounded(act(static_cast<wire::RelayAct>(s.act), other));
    v = rounded(v) * shared_.share[row][expert.place[row]];
    const float next = __shfl_down_sync(kFullWarp, v, 1);
    const u32 element = row * s.words_pitch + expert.place[row] * s.n + first + mine;
    if (threadIdx.x < all && mine % 2 == 0) store_word(reinterpret_cast<u64*>(s.words) + element / 2, ptx::cvt_bf16x2(v, next));
  }

  // ---- all experts ----------------------------------------------------------------------------------------------------------

  static constexpr u32 kSlice = wire::kRelayExpertSlice, kAhead = wire::kRelayExpertRowsAhead, kRowSlots = wire::relay_expert_rows(kRows);
  static constexpr u32 kSliceSlots = wire::kRelayExpertDepth / kSlice / kWarps;  // slices of a warp, of a piece
  /// Of sixteen columns by eight rows, one to a slice, so that few products wait for the one in front.
  struct Sums16 {
    float acc[kSliceSlots][4] = {};
    __device__ __forceinline__ float of(u32 i) const {
      float all = 0;
      CCKS_UNROLL
      for (u32 slice = 0; slice < kSliceSlots; ++slice) all += acc[slice][i];
      return all;
    }
  };
  struct Weights16 {
    uint4 one[kSliceSlots], other[kSliceSlots];  // of column g, and of the one eight behind
  };
  static_assert(kSliceSlots * kSlice / 4 == kWarpLanes && kRowSlots >= kAhead + kRows - 1);

  /// Words of rows on their way: of each this lane's part, four elements. Rows of experts are multiplied in the order of RelayShared::pairs, of all a piece, then of all what is behind it.
  struct Coming {
    u64 words[kAhead][2];
    const u64* from[kAhead];
    u32 pair = 0, depth = 0;  // what is asked for next
  };

  __device__ __forceinline__ void ask(const wire::RelayStep& s, u32 pairs, Coming& coming) const {
    const u32 element = (lane_ / 8 * kWarps + warp_) * kSlice + lane_ % 8 * 4, k = s.k;
    const u64* words = reinterpret_cast<const u64*>(s.row) + element / 2;
    CCKS_UNROLL
    for (u32 i = 0; i < kAhead; ++i) {
      coming.words[i][0] = coming.words[i][1] = wire::tagged_value(0, tag_);
      if (coming.depth + element < k) {
        coming.from[i] = words + (shared_.pairs[coming.pair] * k + coming.depth) / 2;
        load_two(coming.from[i], coming.words[i][0], coming.words[i][1]);
      }
      if (++coming.pair == pairs) coming.pair = 0, coming.depth += wire::kRelayExpertDepth;
    }
  }
  /// Into slots of scratch from `slot` on. A row's slices lie the other way round in every second slot, so that two groups read different banks.
  __device__ __forceinline__ void put(Coming& coming, u32 slot) const {
    for (u32 spins = 0;; ++spins) {
      bool late = false;
      CCKS_UNROLL
      for (u32 i = 0; i < kAhead; ++i) late = late || is_late(coming.words[i][0]) || is_late(coming.words[i][1]);
      if (__any_sync(kFullWarp, late) == 0 || __any_sync(kFullWarp, is_over(spins)) != 0) break;
      CCKS_UNROLL
      for (u32 i = 0; i < kAhead; ++i) {
        if (is_late(coming.words[i][0]) || is_late(coming.words[i][1])) load_two(coming.from[i], coming.words[i][0], coming.words[i][1]);
      }
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kAhead; ++i) {
      const uint2 elements = {static_cast<u32>(coming.words[i][0]), static_cast<u32>(coming.words[i][1])};
      *reinterpret_cast<uint2*>(slice_slot(slot + i, lane_ / 8) + lane_ % 8 * 8) = elements;
    }
  }
  __device__ __forceinline__ u8* slice_slot(u32 slot, u32 slice) const {
    const u32 at = slot % kRowSlots;
    return row_ + (at * kWarps + warp_) * (kSliceSlots * kSlice * 2) + (slice ^ (at & 1)) * (kSlice * 2);
  }

  __device__ __forceinline__ void add_up(const wire::RelayStep& s, Sums16& sums) {
    const u32 active = shared_.active_count, pairs = kRows * (s.row_pitch / s.k);
    Coming coming;
    ask(s, pairs, coming);
    const bool two = s.n > wire::kRelayExpertColumns;
    u32 there = 0, used = 0;  // rows that have been put into scratch, and multiplied
    Weights16 weights;
    take_expert(weights, least(s.k, wire::kRelayExpertDepth), two);
    CCKS_NO_UNROLL
    for (u32 depth = 0; depth < s.k; depth += wire::kRelayExpertDepth) {
      const u32 elements = least(s.k - depth, wire::kRelayExpertDepth);
      CCKS_NO_UNROLL
      for (u32 i = 0; i < active; ++i) {
        const u32 rows = shared_.active[i].rows, count = static_cast<u32>(__popc(rows));
        while (there < used + count) {
          put(coming, there);
          if (there == 0) {
            mark_ready();
            tell_filler(1);
          }
          there += kAhead;
          ask(s, pairs, coming);
          __syncwarp();
        }
        multiply_expert(sums, weights, rows, used, elements);
        used += count;
        // The next ones, while these products are on their way.
        if (i + 1 < active)
          take_expert(weights, elements, two);
        else if (depth + wire::kRelayExpertDepth < s.k)
          take_expert(weights, least(s.k - depth - wire::kRelayExpertDepth, wire::kRelayExpertDepth), two);
      }
    }
  }
  /// The rows `rows`, which lie in slots from `first` on.
  __device__ __forceinline__ void multiply_expert(Sums16& sums, const Weights16& weights, u32 rows, u32 first, u32 elements) const {
    const bool is_of = (rows >> group_ & 1) != 0;
    const u32 slot = first + static_cast<u32>(__popc(rows & ((1u << group_) - 1)));
    uint4 x[kSliceSlots];
    CCKS_UNROLL
    for (u32 i = 0; i < kSliceSlots; ++i) x[i] = is_of && has_slice(i, elements) ? *reinterpret_cast<const uint4*>(slice_slot(slot, i) + part_ * 16) : uint4{};
    CCKS_UNROLL
    for (u32 i = 0; i < kSliceSlots; ++i) {
      if (!has_slice(i, elements)) continue;
      const uint4 &one = weights.one[i], &other = weights.other[i];
      ptx::mma_16x16x8_bf16(sums.acc[i], {one.x, other.x, one.y, other.y}, {x[i].x, x[i].y});
      ptx::mma_16x16x8_bf16(sums.acc[i], {one.z, other.z, one.w, other.w}, {x[i].z, x[i].w});
    }
  }
  /// The warp's slices of the next stage or two, of eight columns of `elements` each.
  __device__ __forceinline__ void take_expert(Weights16& weights, u32 elements, bool two) {
    take_slices(weights.one, elements);
    if (two) {
      take_slices(weights.other, elements);
    } else {
      CCKS_UNROLL
      for (u32 i = 0; i < kSliceSlots; ++i) weights.other[i] = uint4{};
    }
  }
  __device__ __forceinline__ void take_slices(uint4 (&slices)[kSliceSlots], u32 elements) {
    const u8* from = stages_.at(place_.stage) + group_ * (elements * 2) + warp_ * (kSlice * 2) + part_ * 16;
    while (!ptx::mbarrier_ended_acquire(&shared_.full[place_.stage], place_.round % 2)) {  // [P18] pairs with [P17]
    }
    CCKS_UNROLL
    for (u32 i = 0; i < kSliceSlots; ++i) slices[i] = has_slice(i, elements) ? *reinterpret_cast<const uint4*>(from + i * (kWarps * kSlice * 2)) : uint4{};
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive_release(&shared_.empty[place_.stage]);  // [P19] pairs with [P20]
    place_.step(stages_.count);
  }
  __device__ __forceinline__ bool has_slice(u32 i, u32 elements) const { return (i * kWarps + warp_) * kSlice < elements; }
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

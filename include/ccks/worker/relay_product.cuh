// Steps of a relay (relay.cuh) that multiply a row, or as many rows as the worker was made for, by weights which come through the relay's ring.
#pragma once

#include "ccks/worker/argmax_split.hpp"
#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayProducts : public RelayWords {
 protected:
  __device__ __forceinline__ RelayProducts(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayWords(memory, frame, tag), stages_(memory.relay) {}

  /// False: the worker leaves, and nothing is stored.
  __device__ __forceinline__ bool product(const wire::RelayStep& s) {
    const bool again = s.part != 0;
    if (!again) steps_ ^= 1;
    const u32 step = steps_, k = s.k, n = s.n;
    Ending ending(*this, s);
    float squares[kRows];
    CCKS_UNROLL
    for (u32 r = 0; r < kRows; ++r) squares[r] = 0;
    const bool by_pieces = kRows > 1 && s.by_pieces != 0;
    if (by_pieces)
      stage_piece(s, 0);
    else if (!again)
      kMostPasses == 1 || k <= kPass ? stage<1>(s, squares) : stage<kMostPasses>(s, squares);
    mark_ready();
    tell_filler(1);
    // Before the barrier, as all waits are: behind it everybody goes by what has been found.
    if (ending.waits) ending.word = await_word(reinterpret_cast<const u64*>(s.beside) + beside_of(s, s.n) / 2, ending.word);
    __syncwarp();
    if (kWorkerRelayExperts && n == 0 && s.norm != 0) leave_squares(squares, step);
    CCKS_NO_UNROLL
    for (u32 first = 0; first < n; first += kRelayColumnsAtOnce) {
      const u32 columns = least(n - first, kRelayColumnsAtOnce), turn = turn_;
      turn_ ^= 1;
      float* sums = shared_.sums[turn][warp_];
      if (by_pieces)
        walk_by_pieces(s, columns, sums);
      else if ((s.flags & wire::kRelayWide) != 0)
        walk<true>(k, columns, [&](u32 at) { return look_up<true>(at, pieces_of(k)); }, sums);
      else if (k == kRelayDepth)
        walk_whole(columns, look_up<false>(0, 1), sums);
      else
        walk<false>(k, columns, [&](u32 at) { return look_up<false>(at, pieces_of(k)); }, sums);
      if (first == 0 && s.norm != 0 && !again) leave_squares(squares, step);
      if (first + columns == n) tell_filler(0);
      sync();
      if (has_given_up()) return false;
      if ((s.flags & wire::kRelayRanks) != 0 && first == 0 && threadIdx.x == 0)  // behind a barrier, and so all that this block's steps in front have stored
        ptx::st_release_gpu(reinterpret_cast<u64*>(s.beside) + 2 * kRows * kRankPairs, wire::tagged_value(0, tag_));  // [RL11] pairs with [RL12]
      finish(s, ending, first, columns, turn, step);
    }
    if ((s.flags & wire::kRelayRanks) != 0) leave_rank(s, n);
    return true;
  }

  static constexpr u32 kPass = kCudaLanes * 8;  // elements of a row that lanes hold eight each of: a piece's
  static constexpr u32 kRows = kWorkerRelayRows;
  static constexpr u32 kMostPasses = kRows == 1 ? 4 : most(8 / kRows, 1u);  // at a time, of all rows
  static constexpr u32 kRankPairs = wire::relay_rank_pairs(kRows);
  static constexpr u32 kHalfBytes = kRelayDepth / 2 * 2;  // of a column of a stage
  static_assert(kPass == kRelayDepth && wire::kRelayColumns == 4);
  static_assert(kRows * kRelayColumnsAtOnce <= kCudaLanes && kRows <= wire::kMostRelayRows);

  /// Which element of what is beside the product is for the result that this lane finishes, of `results` of each row.
  static __device__ __forceinline__ u32 beside_of(const wire::RelayStep& s, u32 results) { return kRows == 1 ? threadIdx.x : threadIdx.x / results * s.beside_pitch + threadIdx.x % results; }

  /// What the end of a product wants besides sums and the step, on its way while the row is waited for. All of what it reads of the step would be more registers than there are.
  struct Ending {
    u64 store;     // where results lie as they are; 0: nowhere
    u64 word = 0;  // what is added to the lane's result and its neighbour's
    float cosine = 1, sine = 0;
    u32 run;
    wire::RelayEnd end;
    bool waits;  // this lane finishes a result to which a word is added

    __device__ __forceinline__ Ending(const RelayProducts& lane, const wire::RelayStep& s)
        : store(s.store), run(s.run), end(static_cast<wire::RelayEnd>(s.end)), waits(false) {
      if ((s.flags & wire::kRelayMoves) != 0) {
        const auto* op = reinterpret_cast<const wire::OpParams*>(s.block);
        const wire::OperandParams& out = reinterpret_cast<const wire::OperandParams*>(op + 1)[op->input_count];
        store += out.offset + (out.space == static_cast<u8>(wire::Space::state) ? lane.frame_.state : 0);
      }
      const u32 results = end == wire::RelayEnd::turned ? run : u32{s.n};
      const u32 row = kRows == 1 ? 0 : threadIdx.x / results, element = kRows == 1 ? threadIdx.x : threadIdx.x % results, beside = beside_of(s, results);
      if (end == wire::RelayEnd::turned && threadIdx.x < results * kRows && s.beside != 0) {
        const u8* angle = reinterpret_cast<const u8*>(s.beside) + beside * sizeof(float);
        cosine = *reinterpret_cast<const float*>(angle);
        sine = *reinterpret_cast<const float*>(angle + s.sines);
      } else if (end == wire::RelayEnd::sum && threadIdx.x < results * kRows) {
        waits = (s.flags & wire::kRelayPlainBeside) == 0;
        word = waits ? ptx::ld_relaxed_gpu(reinterpret_cast<const u64*>(s.beside) + beside / 2) : reinterpret_cast<const u32*>(s.beside + lane.row_at(s, wire::kRelayLookedUpBeside, row, s.beside_pitch))[element / 2];
      }
    }
  };

  /// Whether the product is at its stages. Relaxed: a hint.
  __device__ __forceinline__ void tell_filler(u32 multiplies) const {
    if (threadIdx.x == 0) ptx::st_relaxed_cta_shared(&memory_.relay.multiplies, multiplies);
  }

  /// The warp has of every 256 elements the 32 that it multiplies, its slice: lanes of a group eight each of one. Of a piece's second half it is another's than of the first, so that lanes
  /// that read both at once (take()) find them in different banks.
  __device__ __forceinline__ u32 slice(u32 half) const { return (warp_ ^ half) * 32; }
  __device__ __forceinline__ u32 packet_at(u32 pass) const { return pass * kPass + group_ * 256 + slice(group_ / 4) + part_ * 8; }

  /// The warp's slices of the rows into scratch, kPasses passes at a time: there times the norm's weights, where there is a norm, whose squares, of this lane, are added to `squares`;
  /// the factors that come of all of them results are multiplied by in the end (finish()), so that nobody waits for them.
  template <u32 kPasses>
  __device__ __forceinline__ void stage(const wire::RelayStep& s, float (&squares)[kRows]) const {
    CCKS_NO_UNROLL
    for (u32 from = 0; from * kPass < s.k; from += kPasses) {
      const u32 k = s.k;
      const u64 norm = s.norm;
      uint4 row[kPasses * kRows], weight[kPasses];
      CCKS_UNROLL
      for (u32 p = 0; p < kPasses; ++p) {
        const u32 at = packet_at(from + p);
        weight[p] = norm != 0 && at < k ? *reinterpret_cast<const uint4*>(norm + at * 2) : uint4{};
      }
      if ((s.flags & wire::kRelayPlainRow) != 0)
        load_plain<kPasses>(s, from, row);
      else
        await_row<kPasses>(s, from, row);
      CCKS_UNROLL
      for (u32 i = 0; i < kPasses * kRows; ++i) {
        const uint4 packet = norm != 0 ? weighed(row[i], weight[i % kPasses], squares[i / kPasses]) : row[i];
        if ((from + i % kPasses) * kPass < k) put_packet(from + i % kPasses + (i < kPasses ? 0 : i / kPasses * pieces_of(k)), packet);  // rows lie one behind the other
      }
    }
  }
  /// One alone of each row, without a norm.
  __device__ __forceinline__ void stage_piece(const wire::RelayStep& s, u32 piece) const {
    uint4 row[kRows];
    if ((s.flags & wire::kRelayPlainRow) != 0)
      load_plain<1>(s, piece, row);
    else
      await_row<1>(s, piece, row);
    CCKS_UNROLL
    for (u32 r = 0; r < kRows; ++r) put_packet(r, row[r]);
  }
  static __device__ __forceinline__ uint4 weighed(const uint4& row, const uint4& weight, float& squares) {
    const auto times = [&](u32 x, u32 w) {
      squares = fmaf(low(x), low(x), fmaf(high(x), high(x), squares));
      return ptx::cvt_bf16x2(low(x) * low(w), high(x) * high(w));
    };
    return {times(row.x, weight.x), times(row.y, weight.y), times(row.z, weight.z), times(row.w, weight.w)};
  }
  // Of a piece of kRelayDepth elements the warp's 256 are 512 bytes: of packets 0 and 1 of each half, then of 2 and 3, words 0 and 2 of each for one column of the units' second matrix,
  // and words 1 and 3 for the next; see multiply().
  __device__ __forceinline__ u8* slice_of(u32 piece, u32 column) const { return row_ + (piece * kWarps + warp_) * 512 + column * 64 + part_ * 16; }
  static __device__ __forceinline__ u32 pieces_of(u32 k) { return (k + kRelayDepth - 1) / kRelayDepth; }
  /// What lies beyond the row in its last piece is zero.
  __device__ __forceinline__ void put_packet(u32 piece, const uint4& packet) const {
    const u32 half = group_ / 4, i = group_ % 4;
    const u32 at = i / 2 * 256 + i % 2 * 8;
    *reinterpret_cast<uint2*>(slice_of(piece, 2 * half) + at) = {packet.x, packet.z};
    *reinterpret_cast<uint2*>(slice_of(piece, 2 * half + 1) + at) = {packet.y, packet.w};
  }

  template <u32 kPasses>
  __device__ __forceinline__ void load_plain(const wire::RelayStep& s, u32 from, uint4 (&row)[kPasses * kRows]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kPasses * kRows; ++i) {
      const u32 at = packet_at(from + i % kPasses);
      row[i] = at < s.k ? *reinterpret_cast<const uint4*>(s.row + row_at(s, wire::kRelayLookedUpRow, i / kPasses, s.row_pitch) + at * 2) : uint4{};
    }
  }
  /// All words are asked for at once, and those that have not come again.
  template <u32 kPasses>
  __device__ __forceinline__ void await_row(const wire::RelayStep& s, u32 from, uint4 (&row)[kPasses * kRows]) const {
    constexpr u32 kAll = kPasses * kRows;
    const u64* words = reinterpret_cast<const u64*>(s.row);
    const auto place = [&](u32 i) { return (i / kPasses * s.row_pitch + packet_at(from + i % kPasses)) / 2; };
    u64 w[kAll][4];
    CCKS_UNROLL
    for (u32 p = 0; p < kAll; ++p) {
      w[p][0] = w[p][1] = w[p][2] = w[p][3] = wire::tagged_value(0, tag_);
      if (packet_at(from + p % kPasses) < s.k) load(words + place(p), w[p]);
    }
    for (u32 spins = 0;; ++spins) {
      bool late = false;
      CCKS_UNROLL
      for (u32 p = 0; p < kAll; ++p) late = late || is_late(w[p][0]) || is_late(w[p][1]) || is_late(w[p][2]) || is_late(w[p][3]);
      if (__any_sync(kFullWarp, late) == 0 || __any_sync(kFullWarp, is_over(spins)) != 0) break;
      CCKS_UNROLL
      for (u32 p = 0; p < kAll; ++p) {
        const u64* at = words + place(p);
        if (is_late(w[p][0]) || is_late(w[p][1])) load_two(at, w[p][0], w[p][1]);
        if (is_late(w[p][2]) || is_late(w[p][3])) load_two(at + 2, w[p][2], w[p][3]);
      }
    }
    CCKS_UNROLL
    for (u32 p = 0; p < kAll; ++p) row[p] = {static_cast<u32>(w[p][0]), static_cast<u32>(w[p][1]), static_cast<u32>(w[p][2]), static_cast<u32>(w[p][3])};
  }
  static __device__ __forceinline__ void load(const u64* at, u64 (&w)[4]) {
    load_two(at, w[0], w[1]);
    load_two(at + 2, w[2], w[3]);
  }

  __device__ __forceinline__ void leave_squares(float (&squares)[kRows], u32 step) const {
    CCKS_UNROLL
    for (u32 r = 0; r < kRows; ++r) {
      CCKS_UNROLL
      for (u32 far = kWarpLanes / 2; far > 0; far /= 2) squares[r] += __shfl_xor_sync(kFullWarp, squares[r], far);
      if (lane_ == 0) shared_.squares[step][r][warp_] = squares[r];
    }
  }
  __device__ __forceinline__ float factor_of_norm(const wire::RelayStep& s, u32 step, u32 row) const {
    float squares = 0;
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) squares += shared_.squares[step][row][w];
    const float v = squares * ptx::rcp(static_cast<float>(s.k)) + s.scale, near = ptx::rsqrt(v);
    return near * (1.5f - 0.5f * v * near * near);
  }

  /// A stage of the ring, as lanes multiply it: group g has half g % 2 of column g / 2, or where the stage is wide all of column g, of which a lane holds four packets of eight weights.
  struct Weights {
    uint4 packets[4];
  };
  /// Of the rows a piece, or for a wide stage half of it, as columns of the units' second matrix, eight of which are a set: four of each row, or two. A group has one of each set, or zero.
  template <bool kWide, u32 kOf = kRows>
  struct Rows {
    static constexpr u32 kColumns = kWide ? 2 : 4, kOfSet = 8 / kColumns, kSets = (kOf + kOfSet - 1) / kOfSet;
    uint4 packets[kSets][2] = {};
  };

  /// `at`: the piece, or the half of one. `pieces`: from a row to the next.
  template <bool kWide>
  __device__ __forceinline__ Rows<kWide> look_up(u32 at, u32 pieces) const {
    using Of = Rows<kWide>;
    Of rows;
    CCKS_UNROLL
    for (u32 set = 0; set < Of::kSets; ++set) {
      const u32 row = set * Of::kOfSet + group_ / Of::kColumns;
      if (row >= kRows) continue;
      const u32 piece = kRows == 1 ? 0 : row * pieces;
      const u32 column = kRows == 1 ? group_ : group_ % Of::kColumns;
      const u8* from = kWide ? slice_of(piece + at / 2, at % 2 * 2 + column) : slice_of(piece + at, column);
      rows.packets[set][0] = *reinterpret_cast<const uint4*>(from);
      rows.packets[set][1] = *reinterpret_cast<const uint4*>(from + 256);
    }
    return rows;
  }
  /// The next stage. `half`: of a piece of the row, which the group has; it has `packets`, four or less.
  template <bool kWhole>
  __device__ __forceinline__ void take(Weights& weights, u32 half, i32 packets = 4) {
    const u8* from = stages_.at(place_.stage) + group_ * kHalfBytes + slice(half) * 2 + part_ * 16;
    while (!ptx::mbarrier_ended_acquire(&shared_.full[place_.stage], place_.round % 2)) {  // [P18] pairs with [P17]
    }
    CCKS_UNROLL
    for (i32 i = 0; i < 4; ++i) weights.packets[i] = kWhole || i < packets ? *reinterpret_cast<const uint4*>(from + i * 512) : uint4{};  // beyond k there may be anything
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive_release(&shared_.empty[place_.stage]);  // [P19] pairs with [P20]
    place_.step(stages_.count);
  }
  /// Two to a set where there is one, so that no product waits for the one in front.
  template <bool kWide, u32 kOf = kRows>
  struct Sums {
    static constexpr u32 kSets = Rows<kWide, kOf>::kSets, kChains = kSets == 1 ? 2 : 1;
    float acc[kSets][kChains][4] = {};

    __device__ __forceinline__ float of(u32 set) const {
      const float one = acc[set][0][0] + acc[set][0][3];
      if constexpr (kChains == 1) return one;
      return one + (acc[set][kChains - 1][0] + acc[set][kChains - 1][3]);
    }
  };
  /// A packet of weights is the units' first matrix as it comes: words 0 and 2 count as row g, 1 and 3 as row g + 8. The second has four columns for each row of the product: of its half h words 0
  /// and 2 are column 2h, 1 and 3 column 2h + 1. So with h = g % 2 what counts of the set's first row is [g][2h] and [g + 8][2h + 1], which lane h of a group has; of its second those of
  /// lane 2 + h. Of a wide stage it is two columns, and lane r of a group has what counts of row r.
  template <bool kWide, u32 kOf>
  static __device__ __forceinline__ void multiply(Sums<kWide, kOf>& sums, const Weights& weights, const Rows<kWide, kOf>& rows) {
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const uint4& w = weights.packets[i];
      CCKS_UNROLL
      for (u32 set = 0; set < Rows<kWide, kOf>::kSets; ++set) {
        const uint4& x = rows.packets[set][i / 2];
        if (i % 2 == 0)
          ptx::mma_16x16x8_bf16(sums.acc[set][0], {w.x, w.y, w.z, w.w}, {x.x, x.y});
        else
          ptx::mma_16x16x8_bf16(sums.acc[set][Sums<kWide, kOf>::kChains - 1], {w.x, w.y, w.z, w.w}, {x.z, x.w});
      }
    }
  }
  /// Of eight columns.
  __device__ __forceinline__ void leave(const Sums<true>& sums, float* to) const {
    CCKS_UNROLL
    for (u32 set = 0; set < Sums<true>::kSets; ++set) {
      const u32 row = set * 4 + part_;
      if (row < kRows) to[row * kRelaySumsPitch + group_] = sums.of(set);
    }
  }
  /// Of four. `adds`: to what is there.
  template <u32 kOf>
  __device__ __forceinline__ void leave(const Sums<false, kOf>& sums, float* to, bool adds = false) const {
    CCKS_UNROLL
    for (u32 set = 0; set < Sums<false, kOf>::kSets; ++set) {
      const float half = sums.of(set), other = __shfl_down_sync(kFullWarp, half, 5);  // from the next part of the next group
      const u32 row = set * 2 + part_ / 2;
      float& sum = to[row * relay_sums_pitch(kOf) + group_ / 2];
      if (group_ % 2 == 0 && part_ % 2 == 0 && row < kOf) sum = adds ? sum + (half + other) : half + other;
    }
  }

  /// Products of the warp's slices by `columns` columns, four a stage: to `to`. A piece is multiplied while the next is on its way into registers, and its sums are looked at behind the
  /// next one's product.
  template <u32 kOf>
  __device__ __forceinline__ void walk_whole(u32 columns, const Rows<false, kOf>& row, float* to) {
    u32 left = columns / wire::kRelayColumns;
    Weights a, b;
    Sums<false, kOf> of_a, of_b;
    bool owes = false;  // of_b, four columns back
    take<true>(a, group_ % 2);
    CCKS_NO_UNROLL
    for (; left > 1; left -= 2) {
      take<true>(b, group_ % 2);
      of_a = {};
      multiply(of_a, a, row);
      if (owes) leave(of_b, to - wire::kRelayColumns);
      if (left > 2) take<true>(a, group_ % 2);
      of_b = {};
      multiply(of_b, b, row);
      leave(of_a, to);
      owes = true;
      to += 2 * wire::kRelayColumns;
    }
    if (left != 0) {
      of_a = {};
      multiply(of_a, a, row);
    }
    if (owes) leave(of_b, to - wire::kRelayColumns);
    if (left != 0) leave(of_a, to);
  }
  /// The same of columns of several pieces, or of one that is not full; of wide stages or of others. row_at(piece, or half of one).
  template <bool kWide, u32 kOf = kRows, class RowAt>
  __device__ __forceinline__ void walk(u32 k, u32 columns, const RowAt& row_at, float* to) {
    constexpr u32 kDeep = kWide ? kRelayDepth / 2 : kRelayDepth, kColumns = kWide ? 2 * wire::kRelayColumns : wire::kRelayColumns;
    const u32 pieces = (k + kDeep - 1) / kDeep;
    u32 taken = 0, at = 0, left = pieces;  // the piece of a column that is next taken and multiplied; of a stage's columns
    Weights a, b;
    Sums<kWide, kOf> sums;
    const auto next = [&](Weights& weights) {
      const u32 half = kWide ? taken % 2 : group_ % 2;
      take<false>(weights, half, static_cast<i32>((k - taken * kDeep) / 256) - (kWide ? 0 : static_cast<i32>(half * 4)));
      if (++taken == pieces) taken = 0;
    };
    const auto end = [&](const Weights& weights, const Rows<kWide, kOf>& row) {
      multiply(sums, weights, row);
      if (++at == pieces) at = 0;
      if (--left != 0) return;
      leave(sums, to);
      sums = {};
      to += kColumns;
      left = pieces;
    };
    next(a);
    CCKS_NO_UNROLL
    for (u32 all = columns / kColumns * pieces;; all -= 2) {
      Rows<kWide, kOf> row = row_at(at);
      if (all == 1) return end(a, row);
      next(b);
      end(a, row);
      row = row_at(at);
      if (all == 2) return end(b, row);
      next(a);
      end(b, row);
    }
  }

  /// The same, a piece of the rows after the other (RelayStep::by_pieces), the first of which is there.
  __device__ __forceinline__ void walk_by_pieces(const wire::RelayStep& s, u32 columns, float* first) {
    CCKS_NO_UNROLL
    for (u32 piece = 0; piece < pieces_of(s.k); ++piece) {
      if (piece != 0) {
        __syncwarp();
        stage_piece(s, piece);
        __syncwarp();
      }
      const Rows<false> rows = look_up<false>(0, 1);
      const i32 packets = static_cast<i32>((s.k - piece * kRelayDepth) / 256) - static_cast<i32>(group_ % 2 * 4);
      float* to = first;
      const auto end = [&](const Weights& weights) {
        Sums<false> sums;
        multiply(sums, weights, rows);
        leave(sums, to, piece != 0);
        to += wire::kRelayColumns;
      };
      Weights a, b;
      take<false>(a, group_ % 2, packets);
      CCKS_NO_UNROLL
      for (u32 left = columns / wire::kRelayColumns;; left -= 2) {
        if (left > 1) take<false>(b, group_ % 2, packets);
        end(a);
        if (left == 1) break;
        if (left > 2) take<false>(a, group_ % 2, packets);
        end(b);
        if (left == 2) break;
      }
    }
  }

  // ---- ends of products -------------------------------------------------------------------------------------------------

  __device__ __forceinline__ float sum_of_warps(u32 turn, u32 column) const {
    float all = 0;
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) all += shared_.sums[turn][w][column];
    return all;
  }
  static __device__ __forceinline__ float act(wire::RelayAct which, float v) {
    switch (which) {
      case wire::RelayAct::silu: return v * ptx::rcp(1.0f + ptx::ex2(v * -1.44269504f));
      case wire::RelayAct::gelu_tanh: {  // v times the sigmoid of twice what tanh is of
        const float inner = v * (1.5957691216f + 0.07135481283f * v * v);
        return v * ptx::rcp(1.0f + ptx::ex2(inner * -1.44269504f));
      }
      case wire::RelayAct::relu: return fmaxf(v, 0.0f);
      default: return v;
    }
  }

  /// Results [first, first + columns) of the tile. A lane a result, or a pair.
  __device__ __forceinline__ void finish(const wire::RelayStep& s, const Ending& e, u32 first, u32 columns, u32 turn, u32 step) const {
    const bool paired = e.end == wire::RelayEnd::twin || e.end == wire::RelayEnd::turned;
    const bool ranks = (s.flags & wire::kRelayRanks) != 0;
    // Of rows that are ranked warps have no more than one each.
    const u32 results = paired ? e.run : columns, of_row = kRows > 1 && ranks ? kRelayColumnsAtOnce : results, all = of_row * kRows;
    if (warp_ * kWarpLanes >= all) return;
    const u32 place = least(threadIdx.x, all - 1), row = kRows == 1 ? 0 : place / of_row, mine = kRows == 1 ? place : least(place - row * of_row, results - 1), sums = row * kRelaySumsPitch + mine;
    float v = sum_of_warps(turn, sums), other = 0;
    if (paired) other = sum_of_warps(turn, e.run + sums);
    if (s.norm != 0) {
      const float factor = factor_of_norm(s, step, row);
      v *= factor;
      other *= factor;
    }
    if (e.end == wire::RelayEnd::twin) {
      v *= rounded(act(static_cast<wire::RelayAct>(s.act), other));
    } else if (e.end == wire::RelayEnd::turned) {
      const float u = rounded(v), w = rounded(other);
      v = u * e.cosine - w * e.sine;
      other = u * e.sine + w * e.cosine;
    } else if (e.end == wire::RelayEnd::sum) {
      const u32 word = static_cast<u32>(e.word);
      v += mine % 2 != 0 ? high(word) : low(word);
    }
    const bool stores = kRows == 1 ? threadIdx.x < all : threadIdx.x - row * of_row < results;
    if (ranks) rank(s.second + first + mine, v, first == 0);
    put(s, e, row, first + mine, v, stores);
    if (e.end == wire::RelayEnd::turned) put(s, e, row, s.second + mine, other, stores);
  }
  /// By whole warps; lanes beyond the last have its result.
  __device__ __forceinline__ void rank(u32 index, float v, bool begins) const {
    const RelayShared::Rank best = best_of_warp({rank_of(v), index});
    RelayShared::Rank& kept = shared_.best[warp_];
    if (lane_ == 0 && (begins || best.rank > kept.rank)) kept = best;  // what comes later stands behind
  }
  __device__ __forceinline__ void leave_rank(const wire::RelayStep& s, u32 n) const {
    if (warp_ >= kRows * kRankPairs || lane_ != 0) return;
    const RelayShared::Rank best = warp_ % kRankPairs * kWarpLanes < n ? shared_.best[warp_] : RelayShared::Rank{kLeastRank, kNowhere};
    u64* words = reinterpret_cast<u64*>(s.beside) + warp_ * 2;
    store_word(words, static_cast<u32>(best.rank));
    store_word(words + 1, best.index);
  }
  /// By whole warps.
  __device__ __forceinline__ void put(const wire::RelayStep& s, const Ending& e, u32 row, u32 element, float v, bool stores) const {
    const float next = __shfl_down_sync(kFullWarp, v, 1);
    if (kWorkerRelayExperts && s.float_words != 0) {
      if (s.words != 0 && stores) store_word(reinterpret_cast<u64*>(s.words) + (kRows == 1 ? element : row * s.words_pitch + element), __float_as_uint(v));
    } else if (s.words != 0 && stores && element % 2 == 0) store_word(reinterpret_cast<u64*>(s.words) + (kRows == 1 ? element : row * s.words_pitch + element) / 2, ptx::cvt_bf16x2(v, next));
    if (e.store == 0 || !stores) return;
    const u64 at = kRows == 1 ? element : u64{row} * s.store_pitch + element;
    if ((s.flags & wire::kRelayFloats) != 0)
      reinterpret_cast<float*>(e.store)[at] = v;
    else
      reinterpret_cast<wire::u16*>(e.store)[at] = ptx::cvt_rn_bf16(v);
  }

  RelayStages stages_;
  StreamPlace place_;
  u32 turn_ = 0, steps_ = 0;  // which of two sets of sums and of squares is next: a warp may be one barrier ahead of another
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// Steps of a relay (relay.cuh) that multiply a row by weights which come through the relay's ring.
#pragma once

#include "ccks/worker/relay_words.cuh"

namespace ccks::worker {
inline namespace CCKS_ISA {

class RelayProducts : public RelayWords {
 protected:
  __device__ __forceinline__ RelayProducts(CudaPipelineMemory& memory, const wire::RunFrame& frame, u32 tag) : RelayWords(memory, frame, tag), stages_(memory.relay) {}

  /// False: the worker leaves, and nothing is stored.
  __device__ __forceinline__ bool product(const wire::RelayStep& s) {
    const u32 turn = turn_;
    turn_ ^= 1;
    Beside beside = ask_beside(s);
    if (s.k <= kPass)
      stage<1>(s, turn);
    else
      stage<kMostPasses>(s, turn);
    mark_ready();
    // Before the barrier, as all waits are: behind it everybody goes by what has been found.
    if (waits_beside(s)) beside.word = await_word(reinterpret_cast<const u64*>(s.beside) + threadIdx.x / 2, beside.word);
    __syncwarp();
    CCKS_NO_UNROLL
    for (u32 first = 0; first < s.n; first += wire::kMostRelayColumns) {
      const u32 columns = least(u32{s.n} - first, static_cast<u32>(wire::kMostRelayColumns));
      if (first != 0) sync();  // sums of the columns before have been read
      walk(s, columns, shared_.sums[turn][warp_]);
      sync();
      if (has_given_up()) return false;
      finish(s, beside, first, columns, turn);
    }
    return true;
  }

 private:
  static constexpr u32 kPass = kCudaLanes * 8;  // elements of a row that lanes hold eight each of
  static constexpr u32 kMostPasses = 4;         // at a time
  static_assert(wire::kMostRelayNormed <= static_cast<i32>(kMostPasses * kPass) && wire::kMostRelayColumns <= static_cast<i32>(kCudaLanes));

  /// What the end of a product wants besides sums, on its way while the row is waited for.
  struct Beside {
    u64 store = 0;  // where results lie as they are; 0: nowhere
    u64 word = 0;
    float cosine = 1, sine = 0;
  };

  /// Whether this lane finishes a result to which a word is added.
  static __device__ __forceinline__ bool waits_beside(const wire::RelayStep& s) {
    return static_cast<wire::RelayEnd>(s.end) == wire::RelayEnd::sum && (s.flags & wire::kRelayPlainBeside) == 0 && threadIdx.x < s.n;
  }
  __device__ __forceinline__ Beside ask_beside(const wire::RelayStep& s) const {
    Beside b;
    b.store = s.store;
    if ((s.flags & wire::kRelayMoves) != 0) {
      const auto* op = reinterpret_cast<const wire::OpParams*>(s.block);
      const wire::OperandParams& out = reinterpret_cast<const wire::OperandParams*>(op + 1)[op->input_count];
      b.store += out.offset + (out.space == static_cast<u8>(wire::Space::state) ? frame_.state : 0);
    }
    const auto end = static_cast<wire::RelayEnd>(s.end);
    const u32 mine = threadIdx.x;
    if (end == wire::RelayEnd::turned && mine < s.run && s.beside != 0) {
      const u8* angle = reinterpret_cast<const u8*>(s.beside) + mine * sizeof(float);
      b.cosine = *reinterpret_cast<const float*>(angle);
      b.sine = *reinterpret_cast<const float*>(angle + s.sines);
    } else if (end == wire::RelayEnd::sum && mine < s.n) {
      if ((s.flags & wire::kRelayPlainBeside) != 0)
        b.word = reinterpret_cast<const u32*>(s.beside)[mine / 2];
      else
        b.word = ptx::ld_relaxed_gpu(reinterpret_cast<const u64*>(s.beside) + mine / 2);
    }
    return b;
  }

  /// The warp has of every 256 elements the 32 that it multiplies: lanes of a group eight each of one slice.
  __device__ __forceinline__ u32 packet_at(u32 pass) const { return pass * kPass + group_ * 256 + warp_ * 32 + part_ * 8; }

  /// The warp's slices of the row, normed where there is a norm, into scratch: kPasses passes at a time, of which a row that is normed has no more.
  template <u32 kPasses>
  __device__ __forceinline__ void stage(const wire::RelayStep& s, u32 turn) const {
    CCKS_NO_UNROLL
    for (u32 from = 0; from * kPass < s.k; from += kPasses) {
      uint4 row[kPasses], weight[kPasses];
      CCKS_UNROLL
      for (u32 p = 0; p < kPasses; ++p) {
        const u32 at = packet_at(from + p);
        weight[p] = s.norm != 0 && at < s.k ? *reinterpret_cast<const uint4*>(s.norm + at * 2) : uint4{};
      }
      if ((s.flags & wire::kRelayPlainRow) != 0)
        load_plain(s, from, row);
      else
        await_row(s, from, row);
      if (s.norm != 0) norm(s, turn, row, weight);
      CCKS_UNROLL
      for (u32 p = 0; p < kPasses; ++p) put_packet(s.k, from + p, row[p]);
    }
  }
  // Of a piece of kRelayDepth elements the warp's 128 are 256 bytes: of packets 0 and 1, then of 2 and 3, words 0 and 2 of each for one column of the units' second matrix, and words 1
  // and 3 for the next; see multiply().
  __device__ __forceinline__ u8* slice_of(u32 piece, u32 column) const { return row_ + (piece * kWarps + warp_) * 256 + column * 64 + part_ * 16; }
  /// What lies beyond the row in its last piece is zero.
  __device__ __forceinline__ void put_packet(u32 k, u32 pass, const uint4& packet) const {
    if (pass * kPass + group_ / 4 * kRelayDepth >= k) return;
    const u32 piece = pass * 2 + group_ / 4, i = group_ % 4;
    const u32 at = i / 2 * 128 + i % 2 * 8;
    *reinterpret_cast<uint2*>(slice_of(piece, 0) + at) = {packet.x, packet.z};
    *reinterpret_cast<uint2*>(slice_of(piece, 1) + at) = {packet.y, packet.w};
  }

  template <u32 kPasses>
  __device__ __forceinline__ void load_plain(const wire::RelayStep& s, u32 from, uint4 (&row)[kPasses]) const {
    CCKS_UNROLL
    for (u32 p = 0; p < kPasses; ++p) {
      const u32 at = packet_at(from + p);
      row[p] = at < s.k ? *reinterpret_cast<const uint4*>(s.row + at * 2) : uint4{};
    }
  }
  /// All words are asked for at once, and those that have not come again.
  template <u32 kPasses>
  __device__ __forceinline__ void await_row(const wire::RelayStep& s, u32 from, uint4 (&row)[kPasses]) const {
    const u64* words = reinterpret_cast<const u64*>(s.row);
    u64 w[kPasses][4];
    CCKS_UNROLL
    for (u32 p = 0; p < kPasses; ++p) {
      const u32 at = packet_at(from + p);
      w[p][0] = w[p][1] = w[p][2] = w[p][3] = wire::tagged_value(0, tag_);
      if (at < s.k) load(words + at / 2, w[p]);
    }
    for (u32 spins = 0;; ++spins) {
      bool late = false;
      CCKS_UNROLL
      for (u32 p = 0; p < kPasses; ++p) late = late || is_late(w[p][0]) || is_late(w[p][1]) || is_late(w[p][2]) || is_late(w[p][3]);
      if (__any_sync(kFullWarp, late) == 0 || __any_sync(kFullWarp, is_over(spins)) != 0) break;
      CCKS_UNROLL
      for (u32 p = 0; p < kPasses; ++p) {
        const u64* at = words + packet_at(from + p) / 2;
        if (is_late(w[p][0]) || is_late(w[p][1])) load_two(at, w[p][0], w[p][1]);
        if (is_late(w[p][2]) || is_late(w[p][3])) load_two(at + 2, w[p][2], w[p][3]);
      }
    }
    CCKS_UNROLL
    for (u32 p = 0; p < kPasses; ++p) row[p] = {static_cast<u32>(w[p][0]), static_cast<u32>(w[p][1]), static_cast<u32>(w[p][2]), static_cast<u32>(w[p][3])};
  }
  static __device__ __forceinline__ void load_two(const u64* at, u64& a, u64& b) {
    u64 two[2];
    ptx::ld_relaxed_gpu(at, two);
    a = two[0], b = two[1];
  }
  static __device__ __forceinline__ void load(const u64* at, u64 (&w)[4]) {
    load_two(at, w[0], w[1]);
    load_two(at + 2, w[2], w[3]);
  }

  /// Rounded as an rmsnorm op's results are, so that relays give what other workers do. Of a warp that gives up the others get what it has.
  template <u32 kPasses>
  __device__ __forceinline__ void norm(const wire::RelayStep& s, u32 turn, uint4 (&row)[kPasses], const uint4 (&weight)[kPasses]) const {
    float squares = 0;
    CCKS_UNROLL
    for (u32 p = 0; p < kPasses; ++p) {
      const u32 x[4] = {row[p].x, row[p].y, row[p].z, row[p].w};
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) squares = fmaf(low(x[i]), low(x[i]), fmaf(high(x[i]), high(x[i]), squares));
    }
    CCKS_UNROLL
    for (u32 step = kWarpLanes / 2; step > 0; step /= 2) squares += __shfl_xor_sync(kFullWarp, squares, step);
    if (lane_ == 0) shared_.squares[turn][warp_] = squares;
    sync();
    squares = 0;
    CCKS_UNROLL
    for (u32 w = 0; w < kWarps; ++w) squares += shared_.squares[turn][w];
    const float factor = inverse_root(squares * ptx::rcp(static_cast<float>(s.k)) + s.scale);
    CCKS_UNROLL
    for (u32 p = 0; p < kPasses; ++p) {
      row[p].x = normed(row[p].x, weight[p].x, factor);
      row[p].y = normed(row[p].y, weight[p].y, factor);
      row[p].z = normed(row[p].z, weight[p].z, factor);
      row[p].w = normed(row[p].w, weight[p].w, factor);
    }
  }
  static __device__ __forceinline__ u32 normed(u32 x, u32 weight, float factor) {
    return ptx::cvt_bf16x2(low(x) * factor * low(weight), high(x) * factor * high(weight));
  }
  static __device__ __forceinline__ float inverse_root(float v) {
    const float near = ptx::rsqrt(v);
    return near * (1.5f - 0.5f * v * near * near);
  }

  /// A stage of the ring and the row's piece, as lanes multiply them: of column `group_` four packets of eight weights.
  struct Piece {
    uint4 weights[4];
    uint4 row[2] = {};  // of lanes of the first two groups; what others have is of no use
  };
  /// Where in a tile the next piece lies.
  struct Pieces {
    u32 left;       // of the tile
    u32 at, k;      // along k, in elements
  };

  __device__ __forceinline__ void take(Piece& piece, Pieces& next) {
    if (group_ < 2) {
      const u8* row = slice_of(next.at / kRelayDepth, group_);
      piece.row[0] = *reinterpret_cast<const uint4*>(row);
      piece.row[1] = *reinterpret_cast<const uint4*>(row + 128);
    }
    const u8* from = stages_.at(place_.stage) + group_ * kRelayPitch + warp_ * 64 + part_ * 16;
    const u32 packets = (next.k - next.at) / 256;
    while (!ptx::mbarrier_ended_acquire(&shared_.full[place_.stage], place_.round % 2)) {  // [P18] pairs with [P17]
    }
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) piece.weights[i] = i < packets ? *reinterpret_cast<const uint4*>(from + i * 512) : uint4{};  // beyond k there may be anything
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive_release(&shared_.empty[place_.stage]);  // [P19] pairs with [P20]
    place_.step(stages_.count);
    next.at += kRelayDepth;
    if (next.at >= next.k) next.at = 0;
    --next.left;
  }
  /// A packet of weights is the units' first matrix as it comes: words 0 and 2 count as row g, 1 and 3 as row g + 8, so the row's words 0 and 2 are column 0 of the second, 1 and 3
  /// column 1. What counts is [g][0] and [g + 8][1], of the group's first lane.
  static __device__ __forceinline__ void multiply(float (&acc)[2][4], const Piece& p) {
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const uint4 &w = p.weights[i], &x = p.row[i / 2];
      if (i % 2 == 0)
        ptx::mma_16x16x8_bf16(acc[0], {w.x, w.y, w.z, w.w}, {x.x, x.y});
      else
        ptx::mma_16x16x8_bf16(acc[1], {w.x, w.y, w.z, w.w}, {x.z, x.w});
    }
  }

  /// Products of the warp's slices by `columns` columns, eight a stage: to `sums`. A piece is multiplied while the next is on its way into registers.
  __device__ __forceinline__ void walk(const wire::RelayStep& s, u32 columns, float* sums) {
    const u32 pieces = (s.k + kRelayDepth - 1) / kRelayDepth;
    Pieces next{columns / wire::kRelayColumns * pieces, 0, s.k};
    Piece a, b;
    float acc[2][4] = {};
    u32 left = pieces;  // of eight columns
    const auto end = [&](const Piece& piece) {
      multiply(acc, piece);
      if (--left != 0) return;
      if (part_ == 0) sums[group_] = acc[0][0] + acc[0][3] + (acc[1][0] + acc[1][3]);
      sums += wire::kRelayColumns;
      left = pieces;
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) acc[0][i] = acc[1][i] = 0;
    };
    take(a, next);
    CCKS_NO_UNROLL
    for (;;) {
      if (next.left == 0) return end(a);
      take(b, next);
      end(a);
      if (next.left == 0) return end(b);
      take(a, next);
      end(b);
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
  __device__ __forceinline__ void finish(const wire::RelayStep& s, const Beside& beside, u32 first, u32 columns, u32 turn) const {
    const auto end = static_cast<wire::RelayEnd>(s.end);
    const bool paired = end == wire::RelayEnd::twin || end == wire::RelayEnd::turned;
    const u32 results = paired ? s.run : columns;
    if (warp_ * kWarpLanes >= results) return;
    const u32 mine = least(threadIdx.x, results - 1);
    float v = sum_of_warps(turn, mine), other = 0;
    if (paired) other = sum_of_warps(turn, s.run + mine);
    if (end == wire::RelayEnd::twin) {
      v *= rounded(act(static_cast<wire::RelayAct>(s.act), other));
    } else if (end == wire::RelayEnd::turned) {
      const float u = rounded(v), w = rounded(other);
      v = u * beside.cosine - w * beside.sine;
      other = u * beside.sine + w * beside.cosine;
    } else if (end == wire::RelayEnd::sum) {
      const u32 word = static_cast<u32>(beside.word);
      v += mine % 2 != 0 ? high(word) : low(word);
    }
    const bool stores = threadIdx.x < results;
    put(s, beside.store, first + mine, v, stores);
    if (end == wire::RelayEnd::turned) put(s, beside.store, s.second + mine, other, stores);
  }
  /// By whole warps.
  __device__ __forceinline__ void put(const wire::RelayStep& s, u64 store, u32 element, float v, bool stores) const {
    const float next = __shfl_down_sync(kFullWarp, v, 1);
    if (s.words != 0 && stores && element % 2 == 0) store_word(reinterpret_cast<u64*>(s.words) + element / 2, ptx::cvt_bf16x2(v, next));
    if (store == 0 || !stores) return;
    if ((s.flags & wire::kRelayFloats) != 0)
      reinterpret_cast<float*>(store)[element] = v;
    else
      reinterpret_cast<wire::u16*>(store)[element] = ptx::cvt_rn_bf16(v);
  }

  RelayStages stages_;
  StreamPlace place_;
  u32 turn_ = 0;  // of the two sets of sums: a warp may be one product ahead of another
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

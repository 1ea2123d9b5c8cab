// The walk of a product of few rows over weights that come through a worker's ring (weight_stream.hpp), on matrix units.
//
// Between a tile's inputs and its first product no barrier stands: each warp has its slices of k for all columns, and copies into scratch what it
// needs of the rows of a itself. A stage of weights it takes into registers before the inputs are there: so much more may memory bring meanwhile. Not two:
// the registers for it are paid with others in memory, and code (README.md, 2026-11-23).
// A norm of the rows is linear but for one factor a row: here they are multiplied by its weight alone, their squares are summed beside, on the same
// units, and who brings the sums together multiplies by the factor (row_factor). Rows of f16 might overflow without it: they are normed in scratch
// first.
//
// A matrix unit takes 16 columns of b as its rows and the rows of a as its columns. A packet of 16 bytes a lane along k holds what two products want
// of it, if k is taken in another order: the same for both, and sums do not mind.
#pragma once

#include "ccks/worker/staged_rows.hpp"
#include "ccks/worker/weight_stream.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// From one row of a in scratch to the next: rows that lanes read together lie in different banks.
CCKS_INLINE constexpr u32 streamed_pitch(u32 k) { return k * 2 + 64; }
/// From one row of a warp's sums to the next.
CCKS_INLINE constexpr u32 streamed_columns(u32 n) { return (n + kStageColumns - 1) & ~(kStageColumns - 1); }

inline constexpr u32 kStreamedRows = 8;

/// What of a tile that streams is found out before its inputs are there: behind them every instruction counts.
/// Scratch: [warp][row][streamed_columns(n)] sums; the rows, RowSquares behind each; the norm's weight.
struct StreamedCall {
  static constexpr u32 kNowhere = 0xffffffffu;
  const u8* rows;    // of a
  const u8* weight;  // of a norm; null: rows stay as they are
  float eps;
  u32 pitch, m, n, k;
  u32 kept, gain;  // where rows and weight begin; kNowhere: there is no room (rows that are normed always fit), or no use
  bool half, whole_weight;  // f16; the weight is of f32

  template <class Lanes>
  CCKS_INLINE StreamedCall(const Lanes&, const RunFrame& frame, const OpParams& op, u32 tile) {
    const Call call(frame, op);
    const StreamedTile t(call, tile);
    const OperandParams& a = call.operands[0];
    m = t.m;
    n = op.dims[wire::kRopeDim] != 0 || op.dims[wire::kTwinDim] != 0 ? 2 * t.n : t.n;  // of a tile of pairs both, and of a twin
    k = static_cast<u32>(a.dim[3]);
    pitch = static_cast<u32>(a.stride[2]) * 2;
    rows = operand_base(frame, a) + u64{row_offset(a, t.c[0], t.c[1], t.c[2] * static_cast<u32>(op.tile[2]))} * 2;
    const u32 normed = static_cast<u32>(op.dims[wire::kNormDim]);
    weight = normed == 0 ? nullptr : operand_base(frame, call.operands[normed]);
    eps = op.scalars[0];
    half = static_cast<Dtype>(a.dtype) == Dtype::f16;
    whole_weight = normed != 0 && static_cast<Dtype>(call.operands[normed].dtype) == Dtype::f32;
    const u32 sums = rows_in_scratch<Lanes>(m, n), end = sums + m * streamed_pitch(k);
    kept = end <= kMinScratchBytes ? sums : kNowhere;
    gain = has_factors() && end + k * (whole_weight ? 4 : 2) <= kMinScratchBytes ? end : kNowhere;
  }
  /// Rows are multiplied by the norm's weight alone; their factors wait for the sums.
  CCKS_INLINE bool has_factors() const { return weight != nullptr && !half; }
  /// Rows are normed in scratch.
  CCKS_INLINE bool norms_rows() const { return weight != nullptr && half; }
  template <class Lanes>
  static CCKS_INLINE constexpr u32 rows_in_scratch(u32 m, u32 n) {
    return Lanes::kLanes / Lanes::kWarp * m * streamed_columns(n) * 4;
  }
};

/// Behind each row in scratch, where its sums want a factor: what warps have of the sum of its squares, and what that is multiplied by and added to.
struct RowSquares {
  static constexpr u32 kWarps = 8;
  float of_warp[kWarps], part, eps;  // part: 1 / k
};
static_assert(sizeof(RowSquares) <= streamed_pitch(0));

/// For bodies: 1 / sqrt(mean(x^2) + eps) of a row of the tile, where its sums want it (StreamedCall::has_factors); m x n results.
template <class Lanes>
CCKS_INLINE float row_factor(Lanes& lanes, const Call& call, u32 m, u32 n, u32 row) {
  const u32 k = static_cast<u32>(call.operands[0].dim[3]);
  const RowSquares& squares =
      *reinterpret_cast<const RowSquares*>(lanes.scratch() + StreamedCall::rows_in_scratch<Lanes>(m, n) + row * streamed_pitch(k) + k * 2);
  float all = squares.of_warp[0];
  CCKS_UNROLL
  for (u32 w = 1; w < RowSquares::kWarps; ++w) all += squares.of_warp[w];
  return lanes.inverse_root(all * squares.part + squares.eps);
}

/// Of a body that begins once its inputs are there.
struct InputsThere {
  CCKS_INLINE bool are_there() const { return true; }
  CCKS_INLINE bool await() const { return true; }
};

/// kWhole: k is a multiple of kStageDepth, the rows fit into scratch and so does a norm's weight, which has their dtype.
template <Dtype kType, bool kWhole, class Lanes, class Stream>
class StreamedWalk {
  static constexpr u32 kWarps = Lanes::kLanes / Lanes::kWarp, kPieceBytes = kStageDepth * 2, kSlice = kPieceBytes / kWarps, kStep = 64;
  static constexpr u32 kSteps = kSlice / kStep, kPackets = kSlice / 16;
  static constexpr bool kFactors = kType == Dtype::bf16;
  static_assert(kSteps * kStep == kSlice && Lanes::kWarp % kPackets == 0 && kWarps == RowSquares::kWarps && kStreamedRows <= Lanes::kWarp);

 public:
  CCKS_INLINE StreamedWalk(Lanes& lanes, Stream& stream, const StreamedCall& c) : lanes_(lanes), stream_(stream), c_(c) {
    const u32 lane = lanes.lane() % Lanes::kWarp, warp = lanes.lane() / Lanes::kWarp;
    group_ = lane / 4;
    first_ = warp * kSlice + lane % 4 * 16;
  }

  /// Leaves the sums in scratch; the caller puts a barrier behind. staged: rows lie there already. False: the worker leaves before this tile.
  template <class Inputs>
  CCKS_INLINE bool run(Inputs& inputs, bool staged) {
    u32 left = ceil_div(c_.k, kStageDepth) * (streamed_columns(c_.n) / kStageColumns), untaken = left;
    Weights held;
    bool admitted = false, landed = false;
    clear();
    copy_gain();
    CCKS_NO_UNROLL
    for (u32 turn = 0;; ++turn) {  // in the first a stage is only taken
      const bool multiplies = turn >= 1;
      if (!admitted && (multiplies || !may_take(inputs, untaken != 0))) {
        admitted = inputs.await();
        if (admitted && !staged) copy_rows();
        lanes_.commit_copies();
        if (!admitted) return lanes_.template await_copies<0>(), false;
      }
      Sixteen x[kSteps] = {};
      if (multiplies) {
        if (!landed) {
          lanes_.template await_copies<0>();
          lanes_.sync_warp();
          landed = true;
        }
        load_row(x);
        if (kFactors && column_ == 0 && c_.weight != nullptr) scale(x);
      }
      step(held, x, multiplies, untaken != 0);
      untaken -= untaken != 0 ? 1 : 0;
      if (!multiplies) continue;
      at_ += kPieceBytes;
      if (at_ >= c_.k * 2) put();
      if (--left == 0) return true;
    }
  }

 private:
  /// What a lane has of a stage: of two columns.
  struct Weights {
    Sixteen low[kSteps], high[kSteps];
  };

  CCKS_INLINE bool is_within(u32 at, u32 s) const { return kWhole || at + s * kStep + first_ < c_.k * 2; }
  CCKS_INLINE RowSquares& squares_behind(u32 row) const {
    return *reinterpret_cast<RowSquares*>(lanes_.scratch() + c_.kept + row * streamed_pitch(c_.k) + c_.k * 2);
  }
  CCKS_INLINE u8* kept_row() const { return lanes_.scratch() + c_.kept + group_ * streamed_pitch(c_.k) + first_; }

  /// Of the warp's slices, packets side by side: a lane copies the one at this byte of k, and at each kPacketStep from there.
  CCKS_INLINE u32 first_packet() const {
    const u32 lane = lanes_.lane() % Lanes::kWarp;
    return lane / kPackets * kPieceBytes + lanes_.lane() / Lanes::kWarp * kSlice + lane % kPackets * 16;
  }
  static constexpr u32 kPacketStep = Lanes::kWarp / kPackets * kPieceBytes;
  /// Copies on their way into scratch: the warp's slices of the norm's weight.
  CCKS_INLINE void copy_gain() {
    if (!kFactors || c_.weight == nullptr) return;
    if (lanes_.lane() < c_.m) {
      squares_behind(lanes_.lane()).part = 1.0f / static_cast<float>(c_.k);
      squares_behind(lanes_.lane()).eps = c_.eps;
    }
    if (!kWhole && c_.gain == StreamedCall::kNowhere) return;
    const u32 parts = !kWhole && c_.whole_weight ? 2 : 1;  // of as many elements as a packet of a row has
    u8* to = lanes_.scratch() + c_.gain;
    CCKS_NO_UNROLL
    for (u32 at = first_packet(); at < c_.k * 2; at += kPacketStep) {
      lanes_.copy_sixteen(to + parts * at, c_.weight + parts * at, true);
      if (parts != 1) lanes_.copy_sixteen(to + parts * at + 16, c_.weight + parts * at + 16, true);
    }
  }
  /// And of the rows.
  CCKS_INLINE void copy_rows() {
    if (!kWhole && c_.kept == StreamedCall::kNowhere) return;
    CCKS_NO_UNROLL
    for (u32 i = 0; i < c_.m; ++i) {
      u8* to = lanes_.scratch() + c_.kept + i * streamed_pitch(c_.k);
      const u8* from = c_.rows + i * c_.pitch;
      CCKS_NO_UNROLL
      for (u32 at = first_packet(); at < c_.k * 2; at += kPacketStep) lanes_.copy_sixteen(to + at, from + at, true);
    }
  }

  /// Waits for the next stage, if there is one; false: the inputs are there first. The same on all lanes of a warp.
  template <class Inputs>
  CCKS_INLINE bool may_take(Inputs& inputs, bool more) {
    for (;;) {
      if (lanes_.any(inputs.are_there())) return false;
      if (!more || !lanes_.any(!stream_.is_filled())) return true;
    }
  }
  /// The next stage.
  CCKS_INLINE void take(Weights& w) {
    const u8* column = stream_.await() + group_ * kStagePitch + first_;
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {  // beyond k there may be anything, and even zero times that need not be zero
      w.low[s] = is_within(next_, s) ? *reinterpret_cast<const Sixteen*>(column + s * kStep) : Sixteen{};
      w.high[s] = is_within(next_, s) ? *reinterpret_cast<const Sixteen*>(column + 8 * kStagePitch + s * kStep) : Sixteen{};
    }
    stream_.free();
    next_ += kPieceBytes;
    if (next_ >= c_.k * 2) next_ = 0;
  }

  /// One stage, and the next in its place.
  CCKS_INLINE void step(Weights& w, const Sixteen (&x)[kSteps], bool multiplies, bool takes) {
    if (multiplies) multiply(w, x);
    if (takes) take(w);
  }
  CCKS_INLINE void multiply(const Weights& w, const Sixteen (&x)[kSteps]) {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      CCKS_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 columns[4] = {w.low[s].word[2 * half], w.high[s].word[2 * half], w.low[s].word[2 * half + 1], w.high[s].word[2 * half + 1]};
        const u32 values[2] = {x[s].word[2 * half], x[s].word[2 * half + 1]};
        lanes_.template multiply_wide<kType>(acc_[half], columns, values);
      }
    }
  }
  /// Of rows beyond the last the results are not kept.
  CCKS_INLINE void load_row(Sixteen (&x)[kSteps]) const {
    if (kWhole || c_.kept != StreamedCall::kNowhere) {
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s)
        x[s] = group_ < c_.m && is_within(at_, s) ? *reinterpret_cast<const Sixteen*>(kept_row() + at_ + s * kStep) : Sixteen{};
    } else {
      const u8* row = c_.rows + group_ * c_.pitch + first_ + at_;
      CCKS_UNROLL
      for (u32 s = 0; s < kSteps; ++s) x[s] = group_ < c_.m && is_within(at_, s) ? *reinterpret_cast<const Sixteen*>(row + s * kStep) : Sixteen{};
    }
  }
  /// Squares of a piece of the row, and the piece by the norm's weight, here and in scratch. A lane reads what it has written.
  CCKS_INLINE void scale(Sixteen (&x)[kSteps]) {
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      CCKS_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 low = x[s].word[2 * half], high = x[s].word[2 * half + 1], both[4] = {low, 0, high, 0}, values[2] = {low, high};
        lanes_.template multiply_wide<kType>(squares_, both, values);
      }
    }
    CCKS_UNROLL
    for (u32 s = 0; s < kSteps; ++s) {
      if (!is_within(at_, s)) continue;
      scale_packet(x[s], at_ + s * kStep + first_);
      if (group_ < c_.m) *reinterpret_cast<Sixteen*>(kept_row() + at_ + s * kStep) = x[s];
    }
  }
  /// From byte `at` of the row on.
  CCKS_INLINE void scale_packet(Sixteen& x, u32 at) const {
    if (kWhole || (c_.gain != StreamedCall::kNowhere && !c_.whole_weight)) {
      multiply_pairs(x, *reinterpret_cast<const Sixteen*>(lanes_.scratch() + c_.gain + at));
    } else if (!c_.whole_weight) {
      multiply_pairs(x, *reinterpret_cast<const Sixteen*>(c_.weight + at));
    } else {
      const u8* from = c_.gain != StreamedCall::kNowhere ? lanes_.scratch() + c_.gain : c_.weight;
      float v[8], g[8];
      unpack<kType>(x, v);
      load_four(Fixed<Dtype::f32>{}, from + 2 * at, g);
      load_four(Fixed<Dtype::f32>{}, from + 2 * at + 16, g + 4);
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) x.word[i] = lanes_.template pair<kType>(v[2 * i] * g[2 * i], v[2 * i + 1] * g[2 * i + 1]);
    }
  }
  CCKS_INLINE void multiply_pairs(Sixteen& x, const Sixteen& g) const {
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) x.word[i] = lanes_.template product<kType>(x.word[i], g.word[i]);
  }

  /// The sums of 16 columns, and with the first of them the squares.
  CCKS_INLINE void put() {
    const u32 part = lanes_.lane() % 4, warp = lanes_.lane() / Lanes::kWarp, columns = streamed_columns(c_.n);
    float* mine = reinterpret_cast<float*>(lanes_.scratch()) + warp * c_.m * columns + column_ + group_;
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 r = 2 * part + i;
      if (r >= c_.m) break;
      mine[r * columns] = acc_[0][i] + acc_[1][i];
      mine[r * columns + 8] = acc_[0][2 + i] + acc_[1][2 + i];
    }
    // The product of a row with itself one lane has.
    if (kFactors && column_ == 0 && c_.weight != nullptr && part == group_ / 2 && group_ < c_.m)
      squares_behind(group_).of_warp[warp] = group_ % 2 == 0 ? squares_[0] : squares_[1];
    clear();
    column_ += kStageColumns;
    at_ = 0;
  }
  CCKS_INLINE void clear() {
    CCKS_UNROLL
    for (u32 i = 0; i < 2; ++i)
      for (u32 q = 0; q < 4; ++q) acc_[i][q] = 0;
    CCKS_UNROLL
    for (u32 q = 0; q < 4; ++q) squares_[q] = 0;
  }

  Lanes& lanes_;
  Stream& stream_;
  const StreamedCall& c_;
  u32 group_, first_;        // of the warp's lanes; bytes along k
  u32 column_ = 0, at_ = 0;   // of the piece that is multiplied next
  u32 next_ = 0;              // the same of the stage taken next
  float acc_[2][4];           // of every other product, so that fewer wait for one another
  float squares_[4];
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

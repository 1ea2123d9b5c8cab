// matmul in blocks of up to 64 x 64 results from scratch, 4 x 4 a lane, where lanes run in warps. Where a block has fewer
// cells than there are lanes, lanes share a cell and take every n-th k: a block of 16 x 16 has all lanes at work. The next two pieces of a and b are
// under way while one is multiplied, and pieces of few lines are as much deeper: what one takes is memory's answer, not its own work.
#pragma once

#include "ccks/worker/gemm_warps.hpp"
#include "ccks/worker/marked.hpp"
#include "ccks/worker/product_head.hpp"
#include "ccks/worker/product_matrix.hpp"
#include "ccks/worker/product_thin.hpp"
#include "ccks/worker/product_turned.hpp"
#include "ccks/worker/turned_heads.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// A piece of a or b on its way into scratch: [k][line], lines padded. Vectors run along k (`down`) or along lines.
template <class Lanes>
struct PieceShape {
  static constexpr u32 kPad = 4;  // lines of neighbouring k begin in different banks
  // Neighbouring lanes along k, `down`: 128 bytes of floats. An SM asks for so many lines of its caches a cycle, whatever it wants of each: two lanes a line took
  // twice the time, four wavefronts to store what eight have loaded are less.
  static constexpr u32 kAlongLog = 3;
  u32 lines_log;    // log2 of the lines, rounded up
  bool down;
  u32 line, p;      // of this lane's first vector
  u32 next_p;       // from one of its vectors to the next, along k

  CCKS_INLINE PieceShape(u32 lane, u32 log, bool along_k) : lines_log(log), down(along_k) {
    const u32 units_log = down ? lines_log : lines_log - 2, step = Lanes::kLanes >> units_log;
    const u32 along_log = !down ? 0 : least(kAlongLog, log2_of(step)), along = lane & ((1u << along_log) - 1);
    const u32 unit = lane >> along_log & ((1u << units_log) - 1), high = lane >> (along_log + units_log) << along_log | along;
    line = down ? unit : unit * kVector;
    p = down ? high * kVector : high;
    next_p = down ? step * kVector : step;
  }
  CCKS_INLINE u32 pitch() const { return (1u << lines_log) + kPad; }
};

template <class Lanes, class Types, class Expr>
class BlockProduct {
 public:
  static constexpr u32 kLanes = Lanes::kLanes, kWarp = Lanes::kWarp;
  static constexpr u32 kDepth = 64, kDeepest = 256;  // of a piece of 64 lines; of few
  static constexpr u32 kFlight = 4;                  // vectors of a piece a lane
  static constexpr u32 kPieces = 2;                  // on their way together
  using Values = float[kFlight][kVector];

  CCKS_INLINE BlockProduct(Lanes& lanes, const Call& call, const ProductTile<Types>& t, const Types& types)
      : lanes_(lanes), call_(call), t_(t), types_(types), k_(static_cast<u32>(call.operands[0].dim[3])),
        share_(static_cast<u32>(call.op.dims[2])),
        a_(lanes.lane(), share_ & 31, true), b_(lanes.lane(), share_ >> 8 & 31, call.op.dims[1] != 0) {}

  CCKS_INLINE void run(const Expr& expr) {
    const u32 wide_log = b_.lines_log - 2, cells_log = a_.lines_log - 2 + wide_log;
    const u32 slices_log = share_ >> 16, slices = 1u << slices_log;
    const u32 cell = lanes_.lane() >> slices_log, slice = lanes_.lane() & (slices - 1);
    const u32 ci = (cell >> wide_log) * kVector, cj = (cell & ((1u << wide_log) - 1)) * kVector;
    const bool busy = cell >> cells_log == 0;
    float* a = reinterpret_cast<float*>(lanes_.scratch());
    const u32 most = piece_depth();
    float* b = a + least(most, k_) * a_.pitch();
    float* results = a;
    float acc[kVector * kVector] = {};
    Values from_a[kPieces], from_b[kPieces];
    const auto fetch_both = [&](u32 piece, u32 k0) {
      if (k0 >= k_) return;
      fetch(from_a[piece], types_.template type<0>(), call_.operands[0], a_, t_.row, t_.m, k0, least(most, k_ - k0));
      fetch(from_b[piece], types_.template type<1>(), call_.operands[1], b_, t_.column, t_.n, k0, least(most, k_ - k0));
    };
    CCKS_UNROLL
    for (u32 piece = 0; piece < kPieces; ++piece) fetch_both(piece, piece * most);
    CCKS_NO_UNROLL
    for (u32 first = 0; first < k_; first += kPieces * most) {
      CCKS_UNROLL
      for (u32 piece = 0; piece < kPieces; ++piece) {
        const u32 k0 = first + piece * most;
        if (k0 >= k_) break;
        const u32 depth = least(most, k_ - k0);
        if (k0 != 0) lanes_.sync();
        keep(a, from_a[piece], a_, depth);
        keep(b, from_b[piece], b_, depth);
        lanes_.sync();
        fetch_both(piece, k0 + kPieces * most);
        if (busy) multiply(acc, a + ci, b + cj, slice, slices_log, depth);
      }
    }
    lanes_.sync();
    if (busy) {
      scatter_sums<kVector * kVector>(lanes_, acc, 1, slices, 0, [&](u32 first, u32 count, const float* v) {
        CCKS_UNROLL
        for (u32 e = 0; e < count; ++e)
          results[((ci + (first + e) / kVector) << b_.lines_log) + cj + (first + e) % kVector] = v[e];
      });
    }
    lanes_.sync();
    finish(results, wide_log, expr);
  }

 private:
  /// As deep as lanes can fetch at once, of both.
  CCKS_INLINE u32 piece_depth() const {
    constexpr u32 kMostLog = 6;  // of lines
    static_assert((kDepth << kMostLog) == kFlight * kVector * kLanes);
    const u32 log = a_.lines_log < b_.lines_log ? b_.lines_log : a_.lines_log;
    const u32 depth = least(kDeepest, kDepth << (kMostLog - log));
    static_assert(2 * (kDepth + PieceShape<Lanes>::kPad) * kDepth * sizeof(float) <= kMinScratchBytes);
    static_assert(2 * (16 + PieceShape<Lanes>::kPad) * kDeepest * sizeof(float) <= kMinScratchBytes);
    return depth;
  }
  /// Vectors of lines [line0, line0 + lines) at k0 + p; zeros beyond the lines.
  template <class T>
  CCKS_INLINE void fetch(Values& v, T type, const OperandParams& o, const PieceShape<Lanes>& shape, u32 line0, u32 lines,
                         u32 k0, u32 depth) const {
    const bool a = &o == call_.operands;
    const u32 across = static_cast<u32>(a ? o.stride[2] : o.stride[3]), along = static_cast<u32>(a ? o.stride[3] : o.stride[2]);
    const u32 first = row_offset(o, t_.c0, t_.c1, 0) + (line0 + shape.line) * across + (k0 + shape.p) * along;
    const u8* from = operand_base(call_.frame, o) + u64{first} * bytes_of(type);
    const u32 step = shape.next_p * along * bytes_of(type);
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      CCKS_UNROLL
      for (u32 q = 0; q < kVector; ++q) v[f][q] = 0;
      if (shape.line < lines && shape.p + f * shape.next_p < depth) load_four(type, from + u64{f} * step, v[f]);
    }
  }
  CCKS_INLINE void keep(float* to, const Values& v, const PieceShape<Lanes>& shape, u32 depth) const {
    const u32 pitch = shape.pitch();
    CCKS_UNROLL
    for (u32 f = 0; f < kFlight; ++f) {
      const u32 p = shape.p + f * shape.next_p;
      if (p >= depth) break;
      float* at = to + p * pitch + shape.line;
      if (shape.down) {
        CCKS_UNROLL
        for (u32 q = 0; q < kVector; ++q) at[q * pitch] = v[f][q];
      } else {
        *reinterpret_cast<Four<float>*>(at) = {{v[f][0], v[f][1], v[f][2], v[f][3]}};
      }
    }
  }

  CCKS_INLINE void multiply(float* acc, const float* a, const float* b, u32 slice, u32 slices_log, u32 depth) const {
    const u32 a_pitch = a_.pitch(), b_pitch = b_.pitch(), turns = (depth + (1u << slices_log) - 1) >> slices_log;
    CCKS_UNROLL
    for (u32 turn = 0; turn < turns; ++turn) {  // counted, so that the compiler knows how often where it knows the depth
      const u32 p = slice + (turn << slices_log);
      if (p >= depth) break;
      const Four<float> x = *reinterpret_cast<const Four<float>*>(a + p * a_pitch);
      const Four<float> y = *reinterpret_cast<const Four<float>*>(b + p * b_pitch);
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i)
        for (u32 j = 0; j < kVector; ++j) acc[i * kVector + j] += x.v[i] * y.v[j];
    }
  }

  CCKS_INLINE void finish(const float* results, u32 wide_log, const Expr& expr) const {
    CCKS_NO_UNROLL
    for (u32 o = lanes_.lane(); o < t_.m << wide_log; o += kLanes) {
      const u32 i = o >> wide_log, j = (o & ((1u << wide_log) - 1)) * kVector;
      if (j >= t_.n) continue;
      EpilogueValues<kVector, Types> values;
      values.load(call_, types_, t_.c0, t_.c1, t_.row + i, t_.column + j);
      const Four<float> acc = *reinterpret_cast<const Four<float>*>(results + (i << b_.lines_log) + j);
      finish_marked<kVector>(call_, types_, expr, acc.v, values, t_.c0, t_.c1, t_.row + i, t_.column + j);
    }
  }
  Lanes& lanes_;
  const Call& call_;
  const ProductTile<Types>& t_;
  const Types& types_;
  u32 k_, share_;
  PieceShape<Lanes> a_, b_;
};

struct BlockBody {
  template <class Lanes, class Types, class Expr>
  static CCKS_INLINE void run(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
    const auto t = product_tile<Types>(call, tile);
    BlockProduct<Lanes, Types, Expr>(lanes, call, t, types).run(expr);
  }
};

/// Rows of a are normed. False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool normed_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  using wire::ProductBody;
  const ProductBody body = static_cast<ProductBody>(call.op.dims[0]);
  const u32 m = static_cast<u32>(least(call.op.tile[2], call.operands[call.op.input_count].dim[2]));
  if (matrix_product(lanes, call, tile, types, expr)) return true;
  if constexpr (kShaped<Types> && MatrixLanes<Lanes> && kInMatrixUnits<TypeOf<0, Types>, TypeOf<1, Types>>)
    return false;  // marked, and so taken
  if (!normed_rows_stay<Types>(call, m, kMinScratchBytes)) return false;
  if (body == ProductBody::turned_row)
    run_product<TurnedRows<1, 2, 4>>(lanes, call, tile, types, expr);
  else if (body == ProductBody::turned_four_rows)
    run_product<TurnedRows<4, 2, 4>>(lanes, call, tile, types, expr);
  else
    run_product<TurnedRows<8, 2, 4>>(lanes, call, tile, types, expr);
  return true;
}

template <class Lanes, class Types, class Expr>
CCKS_INLINE void plain_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  using wire::ProductBody;
  const ProductBody body = static_cast<ProductBody>(call.op.dims[0]);
  const bool turned = body >= ProductBody::turned_row && body <= ProductBody::turned_eight_rows;
  if (turned && matrix_product(lanes, call, tile, types, expr)) return;
  if (body == ProductBody::row)  // comparisons: a jump through a table takes longer than most of them
    run_product<ThinRow>(lanes, call, tile, types, expr);
  else if (body == ProductBody::head)
    run_product<HeadBody>(lanes, call, tile, types, expr);
  else if (body == ProductBody::turned_row)
    run_product<TurnedRows<1, 2, 4>>(lanes, call, tile, types, expr);
  else if (body == ProductBody::eight_rows)
    run_product<ThinRows<2>>(lanes, call, tile, types, expr);
  else if (body == ProductBody::four_rows)
    run_product<ThinRows<1>>(lanes, call, tile, types, expr);
  else if (body == ProductBody::turned_four_rows)
    run_product<TurnedRows<4, 2, 4>>(lanes, call, tile, types, expr);
  else if (body == ProductBody::turned_eight_rows)
    run_product<TurnedRows<8, 2, 4>>(lanes, call, tile, types, expr);
  else
    run_product<BlockBody>(lanes, call, tile, types, expr);
}

/// False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool one_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  using Norm = NormOf<Types>;
  if constexpr (Norm::kNorms) {
    if (norm_of(call, types).on()) return normed_product(lanes, call, tile, types, expr);
  }
  if constexpr (!Norm::kAlways) plain_product(lanes, call, tile, types, expr);
  return true;
}

/// False: nothing is done.
template <class Lanes, class Types, class Expr>
CCKS_INLINE bool marked_product(Lanes& lanes, const Call& call, u32 tile, const Types& types, const Expr& expr) {
  if (!in_vectors(call.op)) return false;
  if (rope_table<Types>(call) == 0) return one_product(lanes, call, tile, types, expr);
  CCKS_NO_UNROLL
  for (u32 run = 0; run < 2; ++run) {
    if (!one_product(lanes, call, tile + run * call.op.tile_count, types, expr)) return false;
    lanes.sync();
  }
  if (await_inputs(lanes)) turn_stored(lanes, call, types, tile_box(call.op, tile, call.operands[call.op.input_count].dim));
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

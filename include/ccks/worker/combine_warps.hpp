// combine where lanes run in warps: rows of x of each token, by weights, and what the epilogue makes of their sum.
#pragma once

#include "ccks/worker/expert_window.hpp"
#include "ccks/worker/finish_rows.hpp"
#include "ccks/worker/ops_rows.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Which rows of x a tile's tokens take, k each, and by what weight.
struct ChosenRows {
  const i32* from;
  const float* share;
  u32 k;
};

template <class X, class Args, class Expr>
inline constexpr bool kCombinesPackets = false;
template <Dtype kType, class Types, class Expr>
inline constexpr bool kCombinesPackets<Fixed<kType>, Arguments<Types>, Expr> = Types::kCount != 0 && kEpilogueFirst<Expr> != 0 && wire::dtype_bytes(kType) <= 4;

/// A lane's packets of 16 bytes of rows, through stages in scratch that are its own: no lane waits for others, and what is on its way takes no registers. A token's code is what counts: as
/// loads of vectors, addresses of each found anew, a tile took twice as long.
template <class Lanes, class X, class Types, class Expr, class Out>
class CombinedPackets {
 public:
  static constexpr Dtype kType = X::kDtype;
  static constexpr u32 kColumns = 16 / wire::dtype_bytes(kType), kStages = 3, kAhead = kStages - 1, kFirst = kEpilogueFirst<Expr>;
  static_assert(kColumns == kVector || kColumns == 2 * kVector);

  CCKS_INLINE CombinedPackets(Lanes& lanes, const Arguments<Types>& args, const Expr& expr, const View<X>& x, const View<Out>& out, const Box& box, const ChosenRows& chosen)
      : lanes_(lanes), args_(args), expr_(expr), x_(x), out_(out), box_(box), chosen_(chosen) {}

  /// False, and nothing is done, where packets do not lie so or lanes cannot share them out evenly.
  CCKS_INLINE bool run(Scratch& scratch) {
    const u32 wide = static_cast<u32>(box_.size[3]) / kColumns, bytes = bytes_of(out_.type);
    if (box_.lo[3] % static_cast<i32>(kColumns) != 0 || box_.size[3] % static_cast<i32>(kColumns) != 0 || wide == 0) return false;
    if (x_.stride[3] != 1 || x_.stride[2] % kColumns != 0 || reinterpret_cast<u64>(x_.data) % 16 != 0 || static_cast<u64>(x_.stride[2]) >> 29 != 0) return false;
    if (out_.stride[3] != 1 || !vector_aligned(out_.data, bytes) || out_.stride[2] * bytes % vector_alignment(bytes) != 0) return false;
    if (Lanes::kLanes % wide != 0 && wide % Lanes::kLanes != 0) return false;
    stages_ = reinterpret_cast<u8*>(scratch.take<Sixteen>(kStages * chosen_.k * Lanes::kLanes));
    if (stages_ == nullptr) return false;
    row_bytes_ = static_cast<u32>(x_.stride[2]) * wire::dtype_bytes(kType);
    step_ = wide < Lanes::kLanes ? Lanes::kLanes / wide : 1;
    const u32 token = step_ == 1 ? 0 : lanes_.lane() / wide;
    CCKS_NO_UNROLL
    for (u32 packet = lanes_.lane() - token * wide; packet < wide; packet += Lanes::kLanes) {
      if (!columns(token, box_.lo[3] + static_cast<i32>(packet * kColumns))) return false;
    }
    return true;
  }

 private:
  using Operands = RowOperands<kFirst, Types>;

  /// The packets of tokens first, first + step, ... in these columns.
  CCKS_INLINE bool columns(u32 first, i32 column) {
    const u32 rows = static_cast<u32>(box_.size[2]), bytes = bytes_of(out_.type);
    const i32 c[4] = {0, 0, box_.lo[2], column}, behind[4] = {0, 0, box_.lo[2], column + static_cast<i32>(kColumns - kVector)};
    const Operands operands(args_.call, args_.types, c), of_second(args_.call, args_.types, behind);
    if (!operands.fits() || !of_second.fits()) return false;  // the same for all columns
    from_ = x_.data + static_cast<u32>(column) * u64{wire::dtype_bytes(kType)};
    u8* to = out_.at(c) + first * out_.stride[2] * bytes;
    const i64 to_step = step_ * out_.stride[2] * bytes;
    u32 next = 0, stage = 0;
    CCKS_NO_UNROLL
    for (; next < kAhead; ++next) fetch(next, first + next * step_);
    typename Operands::template Rows<1> coming, coming_second;
    if (first < rows) load(operands, of_second, first, coming, coming_second);
    CCKS_NO_UNROLL
    for (u32 i = first; i < rows; i += step_) {
      const typename Operands::template Rows<1> own = coming, own_second = coming_second;
      if (i + step_ < rows) load(operands, of_second, i + step_, coming, coming_second);
      fetch(next, i + kAhead * step_);
      lanes_.template await_copies<kAhead>();
      float sum[kColumns];
      add(stage, i, sum);
      finish<0>(operands, own, i, c, to, sum);
      if constexpr (kColumns > kVector) finish<kVector>(of_second, own_second, i, behind, to + kVector * bytes, sum);
      to += to_step;
      stage = stage + 1 == kStages ? 0 : stage + 1;
      next = next + 1 == kStages ? 0 : next + 1;
    }
    lanes_.template await_copies<0>();  // groups without copies, too: others count their own
    return true;
  }
  CCKS_INLINE void load(const Operands& operands, const Operands& of_second, u32 row, typename Operands::template Rows<1>& rows, typename Operands::template Rows<1>& second) const {
    operands.load(rows, row, 1, row + 1);
    if constexpr (kColumns > kVector) of_second.load(second, row, 1, row + 1);
  }
  CCKS_INLINE u8* place(u32 stage, u32 j) const { return stages_ + ((stage * chosen_.k + j) * Lanes::kLanes + lanes_.lane()) * 16; }
  CCKS_INLINE void fetch(u32 stage, u32 token) {
    if (token < static_cast<u32>(box_.size[2])) {
      const i32* row = chosen_.from + token * chosen_.k;
      CCKS_NO_UNROLL
      for (u32 j = 0; j < chosen_.k; ++j) lanes_.copy_sixteen(place(stage, j), from_ + u64{static_cast<u32>(row[j])} * row_bytes_, true);
    }
    lanes_.commit_copies();
  }
  CCKS_INLINE void add(u32 stage, u32 token, float (&sum)[kColumns]) const {
    CCKS_UNROLL
    for (u32 i = 0; i < kColumns; ++i) sum[i] = 0;
    const float* share = chosen_.share + token * chosen_.k;
    CCKS_NO_UNROLL
    for (u32 j = 0; j < chosen_.k; ++j) {
      float own[kColumns];
      unpack<kType>(*reinterpret_cast<const Sixteen*>(place(stage, j)), own);
      const float by = share[j];
      CCKS_UNROLL
      for (u32 i = 0; i < kColumns; ++i) sum[i] += by * own[i];
    }
  }
  template <u32 kFrom>
  CCKS_INLINE void finish(const Operands& operands, const typename Operands::template Rows<1>& rows, u32 row, const i32 (&c)[4], u8* to, const float (&sum)[kColumns]) const {
    float own[kVector];
    CCKS_UNROLL
    for (u32 i = 0; i < kVector; ++i) own[i] = sum[kFrom + i];
    const auto values = operands.values(rows, 0);
    const Place place{{c[0], c[1], c[2] + static_cast<i32>(row), c[3]}, kVector};
    using Args = RowArguments<Types, typename Operands::Values, 0>;
    store_finished(Args{{Arguments<Types>{args_.call, args_.types, own, args_.first}, nullptr}, values}, expr_, out_.type, place, to);
  }

  Lanes& lanes_;
  const Arguments<Types> args_;
  const Expr& expr_;
  const View<X>& x_;
  const View<Out>& out_;
  const Box& box_;
  const ChosenRows chosen_;
  const u8* from_ = nullptr;  // of the lane's columns
  u8* stages_ = nullptr;
  u32 row_bytes_ = 0, step_ = 1;
};

/// combine in vectors of four columns, finished by `expr` and finish_by(sums), its arguments: the rows and weights of the tile's tokens first, then packets of rows as they come, or all rows of
/// two vectors under way. False, and nothing is done, where vectors do not lie so.
template <class Lanes, class X, class W, class R, class Out, class FinishBy, class Expr>
CCKS_INLINE bool combine_in_vectors(Lanes& lanes, const View<X>& x, const View<W>& weight, const View<R>& row, const View<Out>& out, const Box& box, u32 k,
                                    const FinishBy& finish_by, const Expr& expr, bool& sound) {
  constexpr u32 kFlight = 8, kUnits = 2;
  const auto fits = [&](const u8* data, const i64* stride, u32 bytes) {
    return stride[3] == 1 && stride[2] % kVector == 0 && vector_aligned(data, bytes);
  };
  if (!fits(x.data, x.stride, bytes_of(x.type)) || !fits(out.data, out.stride, bytes_of(out.type)) || box.lo[3] % kVector != 0 || box.size[3] % kVector != 0)
    return false;
  const u32 rows = static_cast<u32>(box.size[2]);
  Scratch scratch = scratch_of(lanes);
  i32* from = scratch.take<i32>(rows * k);
  float* share = scratch.take<float>(rows * k);
  if (share == nullptr) return false;
  i32 wrong = 0;
  for (u32 at = lanes.lane(); at < rows * k; at += Lanes::kLanes) {
    const i32 t = box.lo[2] + static_cast<i32>(at / k), j = static_cast<i32>(at % k);
    const i64 r = load_int(row.type, row.at(0, 0, t, j), 0);
    if (r < 0 || r >= x.dim[2]) wrong = 1;
    from[at] = static_cast<i32>(r);
    share[at] = load_float(weight.type, weight.at(0, 0, t, j), 0);
  }
  sound = lanes.max(wrong) == 0;  // a barrier, too
  if (!sound) return true;
  if constexpr (CopyLanes<Lanes> && kCombinesPackets<X, decltype(finish_by(nullptr)), Expr>) {
    if (CombinedPackets(lanes, finish_by(nullptr), expr, x, out, box, {from, share, k}).run(scratch)) return true;
  }
  const u32 wide = static_cast<u32>(box.size[3]) / kVector, units = rows * wide;
  CCKS_NO_UNROLL
  for (u32 first = lanes.lane(); first < units; first += kUnits * Lanes::kLanes) {
    u32 t[kUnits];
    i32 column[kUnits];
    float sum[kUnits][kVector];
    CCKS_UNROLL
    for (u32 u = 0; u < kUnits; ++u) {
      const u32 unit = least(first + u * Lanes::kLanes, units - 1);
      t[u] = unit / wide;
      column[u] = box.lo[3] + static_cast<i32>((unit - t[u] * wide) * kVector);
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i) sum[u][i] = 0;
    }
    CCKS_NO_UNROLL
    for (u32 j0 = 0; j0 < k; j0 += kFlight) {
      RawFour<X> v[kUnits][kFlight];
      CCKS_UNROLL
      for (u32 u = 0; u < kUnits; ++u) {
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) v[u][f].load(x.type, x.at(0, 0, from[t[u] * k + least(j0 + f, k - 1)], column[u]));
      }
      CCKS_UNROLL
      for (u32 u = 0; u < kUnits; ++u) {
        CCKS_UNROLL
        for (u32 f = 0; f < kFlight; ++f) {
          float four[kVector];
          v[u][f].unpack(four);
          const float w = j0 + f < k ? share[t[u] * k + j0 + f] : 0.0f;
          CCKS_UNROLL
          for (u32 i = 0; i < kVector; ++i) sum[u][i] = j0 + f < k ? sum[u][i] + w * four[i] : sum[u][i];
        }
      }
    }
    CCKS_UNROLL
    for (u32 u = 0; u < kUnits; ++u)  // before any store, so that operands of all come at once
      finish_four_between(finish_by(sum[u]), expr, Place{{0, 0, box.lo[2] + static_cast<i32>(t[u]), column[u]}, kVector}, out.type, sum[u]);
    CCKS_UNROLL
    for (u32 u = 0; u < kUnits; ++u)
      if (first + u * Lanes::kLanes < units) store_four(out.type, out.at(0, 0, box.lo[2] + static_cast<i32>(t[u]), column[u]), sum[u]);
  }
  return true;
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

// The end of a product whose sums lie in scratch: a lane has four columns of every so many rows, some of them at a time. Where an operand of the epilogue lies is
// found out once for all rows. One that is the same for all rows (a bias) is read once; of others those of the next eight rows are on their way while four are finished, of the last few those of one.
// As long as that was done row by row, or asked in each row, it took longer than the product.
#pragma once

#include "ccks/worker/near_op.hpp"
#include "ccks/worker/typed_expr.hpp"
#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// The input that is argument 1 of code that is known when the body is compiled; 0: it is not.
template <class Expr>
inline constexpr u32 kEpilogueFirst = 0;
template <u32 kFirst, class... Is>
inline constexpr u32 kEpilogueFirst<BoundCode<kFirst, Is...>> = kFirst;

/// Code of a product with a twin (typed_ops.hpp): what finishes the twin, and the op.
template <class Expr>
concept TwinnedCode = requires {
  typename Expr::Twin;
  typename Expr::End;
};
template <class Expr>
CCKS_INLINE auto own_code(const Expr& expr) {
  if constexpr (TwinnedCode<Expr>)
    return typename Expr::End{};
  else
    return expr;
}
/// The first input that code for rows reads: with a twin argument 1 is none. 0: not known.
template <class Expr>
inline constexpr u32 kRowsFirst = kEpilogueFirst<Expr>;
template <TwinnedCode Expr>
inline constexpr u32 kRowsFirst<Expr> = kEpilogueFirst<typename Expr::End> == 0 ? 0 : kEpilogueFirst<typename Expr::End> + 1;

/// Four elements of an operand in each of some rows, as they lie in memory: what is loaded is not looked at before its rows' turn.
template <u32 kIndex, class Types, u32 kRows>
struct RowsOf {
  using Type = TypeOf<kIndex, Types>;
  RawFour<Type> row[kRows];

  CCKS_INLINE void load(u32 i, const u8* from) { row[i].load(Type{}, from); }
  /// four: else one for all.
  CCKS_INLINE void load(u32 i, const u8* from, bool four) {
    if (four) return load(i, from);
    using Stored = Storage<Type::kDtype>;
    const Stored one = *reinterpret_cast<const Stored*>(from);
    row[i].raw = bit_cast<typename RawFour<Type>::Words>(Four<Stored>{{one, one, one, one}});
  }
};
template <u32 kFirst, class Types, u32 kLeft, u32 kRows>
struct RowsOfAll {};
template <u32 kFirst, class Types, u32 kLeft, u32 kRows>
  requires(kLeft > 0)
struct RowsOfAll<kFirst, Types, kLeft, kRows> {
  RowsOf<kFirst, Types, kRows> own;
  RowsOfAll<kFirst + 1, Types, kLeft - 1, kRows> others;
};

/// Operands (bit i: the i'th that rows read) of which rows have their own.
template <u32 kMask>
struct RowsMove {};

template <u32 kFirst, class Types>
class RowOperands {
 public:
  static constexpr u32 kCount = kFirst == 0 || Types::kCount <= kFirst + 1 ? 0 : Types::kCount - kFirst - 1;
  template <u32 kRows>
  using Rows = RowsOfAll<kFirst, Types, kCount, kRows>;
  struct Values {
    float v[kCount == 0 ? 1 : kCount][kVector] = {};
  };

  /// Of four columns that begin at element `c`, and those below it.
  CCKS_INLINE RowOperands(const Call& call, const Types& types, const i32 (&c)[4]) { find<0>(call, types, c); }
  /// The same of a kOpBlocks op, at a row and column.
  template <u32 kMoves>
  CCKS_INLINE RowOperands(const NearOp& near, u32 row, u32 column, RowsMove<kMoves>) {
    find_near<0, kMoves>(near, row, column);
  }
  /// Whether all lie in vectors, or are the same for all columns.
  CCKS_INLINE bool fits() const { return fits_; }
  /// Whether all rows have all of them alike.
  CCKS_INLINE bool are_alike() const { return kCount == 0 || alike_; }
  /// Whether those that rows have their own of lie in vectors.
  CCKS_INLINE bool are_fours() const { return fours_; }
  /// Asks for rows row, row + step, ... below m.
  template <u32 kRows>
  CCKS_INLINE void load(Rows<kRows>& rows, u32 row, u32 step, u32 m) const { load_each<0, kRows>(rows, row, step, m); }
  /// The same of rows that all are there, where are_fours(), but for what all rows have alike, which stays as it is.
  template <u32 kRows>
  CCKS_INLINE void load_whole(Rows<kRows>& rows, u32 row, u32 step) const { load_whole_each<0, kRows>(rows, row, step); }
  template <u32 kRows>
  CCKS_INLINE Values values(const Rows<kRows>& rows, u32 i) const {
    Values values;
    values_of<0>(rows, i, values);
    return values;
  }

 private:
  struct Operand {
    const u8* at = nullptr;
    i64 row_bytes = 0;
    bool moves = false;
  };

  template <u32 kIndex>
  CCKS_INLINE void find(const Call& call, const Types& types, const i32 (&c)[4]) {
    if constexpr (kIndex < kCount) {
      const OperandParams& o = call.operands[kFirst + kIndex];
      const u32 bytes = bytes_of(types.template type<kFirst + kIndex>());
      i64 at = 0;
      CCKS_UNROLL
      for (u32 i = 0; i < 4; ++i) at += c[i] * o.stride[i];
      Operand& own = operands_[kIndex];
      own = {operand_base(call.frame, o) + at * bytes, o.stride[2] * bytes, o.stride[3] != 0};
      const u32 align = vector_alignment(bytes);
      alike_ = alike_ && own.row_bytes == 0;
      fours_ = fours_ && (own.row_bytes == 0 || own.moves);
      if (own.moves) fits_ = fits_ && o.stride[3] == 1 && vector_aligned(own.at, bytes) && own.row_bytes % align == 0;
      find<kIndex + 1>(call, types, c);
    }
  }
  template <u32 kIndex, u32 kMoves>
  CCKS_INLINE void find_near(const NearOp& near, u32 row, u32 column) {
    if constexpr (kIndex < kCount) {
      constexpr bool kMovesDown = (kMoves >> kIndex & 1) != 0;
      const u32 bytes = kMovesDown ? static_cast<u32>(near.operands[kFirst + kIndex].stride[2]) * 2 : 0;
      operands_[kIndex] = {near.begin(kFirst + kIndex) + u64{row} * bytes + column * 2, bytes, true};
      alike_ = alike_ && !kMovesDown;
      find_near<kIndex + 1, kMoves>(near, row, column);
    }
  }
  template <u32 kIndex, u32 kRows, class Own>
  CCKS_INLINE void load_each(Own& rows, u32 row, u32 step, u32 m) const {
    if constexpr (kIndex < kCount) {
      const Operand& o = operands_[kIndex];
      CCKS_UNROLL
      for (u32 r = 0; r < kRows; ++r) rows.own.load(r, o.at + least(row + r * step, m - 1) * o.row_bytes, o.moves);
      load_each<kIndex + 1, kRows>(rows.others, row, step, m);
    }
  }
  template <u32 kIndex, u32 kRows, class Own>
  CCKS_INLINE void load_whole_each(Own& rows, u32 row, u32 step) const {
    if constexpr (kIndex < kCount) {
      const Operand& o = operands_[kIndex];
      if (o.row_bytes != 0) {
        const u8* from = o.at + row * o.row_bytes;
        CCKS_UNROLL
        for (u32 r = 0; r < kRows; ++r, from += step * o.row_bytes) rows.own.load(r, from);
      }
      load_whole_each<kIndex + 1, kRows>(rows.others, row, step);
    }
  }
  template <u32 kIndex, class Own>
  CCKS_INLINE void values_of(const Own& rows, u32 i, Values& values) const {
    if constexpr (kIndex < kCount) {
      rows.own.row[i].unpack(values.v[kIndex]);
      values_of<kIndex + 1>(rows.others, i, values);
    }
  }

  Operand operands_[kCount == 0 ? 1 : kCount];
  bool fits_ = true, alike_ = true, fours_ = true;
};

/// Arguments of an epilogue for four elements: sums, and operands as they were loaded, those from argument kSkipped + 1 on. Integers are read as such, when
/// their turn comes.
template <class Types, class Values, u32 kSkipped>
struct RowArguments {
  FourArguments<Types> all;
  const Values& values;

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place& p, Value* to) const {
    if constexpr (sizeof(Value) == sizeof(float)) {
      if (in.c > kSkipped) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) to[i] = values.v[in.c - 1 - kSkipped][i];
        return;
      }
    }
    all.template load<W>(in, p, to);
  }
};

/// Binary digits of a float of this dtype, as far as Machine asks.
template <class Out>
inline constexpr u32 kDigitsOf = 24;
template <>
inline constexpr u32 kDigitsOf<Fixed<Dtype::f16>> = 11;
template <>
inline constexpr u32 kDigitsOf<Fixed<Dtype::bf16>> = 8;

/// Four columns of a row into `at`: what code makes of its arguments, of which the first are the sums.
template <class Args, class Code, class Out>
CCKS_INLINE void store_finished(const Args& args, const Code& code, Out type, const Place& place, u8* at) {
  if (code.identity()) return store_four(type, at, args.all.all.acc);
  Machine<kVector, kDigitsOf<Out>> machine(kVector);
  code.run(machine, args, place);
  if (code.result_is_int())
    store_four(type, at, static_cast<const i64*>(machine.ints(code.result())));
  else
    store_four(type, at, static_cast<const float*>(machine.floats(code.result())));
}

/// Finishes rows row, row + step, ... below m of a product, four columns from element c of the output on, which lies at `to`: sums(i, acc) gives those of
/// row i, sums.twin(i, acc) those of a twin, and of Sums::kRowsAtOnce rows a lane looks at them all before it stores any. Columns and operands lie in vectors.
template <class Types, class Expr, class Out, class Sums>
CCKS_INLINE void finish_fitting_rows(const RowOperands<kRowsFirst<Expr>, Types>& operands, const Arguments<Types>& args, const Expr& expr, Out type, const i32 (&c)[4],
                                     u8* to, i64 row_bytes, u32 row, u32 step, u32 m, const Sums& sums) {
  constexpr u32 kRowsAtOnce = Sums::kRowsAtOnce;
  using Operands = RowOperands<kRowsFirst<Expr>, Types>;
  using Args = RowArguments<Types, typename Operands::Values, TwinnedCode<Expr> ? 1 : 0>;
  if (row >= m) return;
  const auto code = own_code(expr);
  struct Found {
    float sum[kVector], twin[TwinnedCode<Expr> ? kVector : 1];
  };
  const auto find = [&](u32 i, Found& found) {
    sums(i, found.sum);
    if constexpr (TwinnedCode<Expr>) sums.twin(i, found.twin);
  };
  const auto finish = [&](u32 i, u8* at, Found& found, const typename Operands::Values& values) {
    const Place place{{c[0], c[1], c[2] + static_cast<i32>(i), c[3]}, kVector};
    const float* twin = nullptr;
    if constexpr (TwinnedCode<Expr>) {
      finish_four_between(Args{{Arguments<Types>{args.call, args.types, found.twin, args.first}}, values}, typename Expr::Twin{}, place, type, found.twin);
      twin = found.twin;
    }
    store_finished(Args{{Arguments<Types>{args.call, args.types, found.sum, args.first}, twin}, values}, code, type, place, at);
  };
  const i64 stride = step * row_bytes;
  u8* at = to + row * row_bytes;
  u32 i = row;
  // Whole groups of rows, whose sums are all there before the first is stored: behind a condition each row would wait for its own.
  const auto next_group = [&](const auto& values) {
    Found found[kRowsAtOnce];
    CCKS_UNROLL
    for (u32 r = 0; r < kRowsAtOnce; ++r) find(i + r * step, found[r]);
    CCKS_UNROLL
    for (u32 r = 0; r < kRowsAtOnce; ++r) finish(i + r * step, at + r * stride, found[r], values(r));
    i += kRowsAtOnce * step;
    at += kRowsAtOnce * stride;
  };
  if (operands.are_alike()) {
    typename Operands::template Rows<1> rows;
    operands.load(rows, row, step, m);
    const typename Operands::Values values = operands.values(rows, 0);
    CCKS_NO_UNROLL
    while (i + (kRowsAtOnce - 1) * step < m) next_group([&](u32) { return values; });
  } else if (operands.are_fours() && i + (kRowsAtOnce - 1) * step < m) {
    typename Operands::template Rows<kRowsAtOnce> rows, behind;
    operands.load(rows, row, step, m);
    operands.load(behind, row + kRowsAtOnce * step, step, m);
    CCKS_NO_UNROLL
    while (i + (kRowsAtOnce - 1) * step < m) {
      const typename Operands::template Rows<kRowsAtOnce> own = rows;
      rows = behind;
      const u32 far = i + 2 * kRowsAtOnce * step;
      if (far + (kRowsAtOnce - 1) * step < m) operands.load_whole(behind, far, step);
      next_group([&](u32 r) { return operands.values(own, r); });
    }
  }
  if (i >= m) return;
  typename Operands::template Rows<1> coming;
  operands.load(coming, i, step, m);
  CCKS_NO_UNROLL
  for (;;) {
    const typename Operands::template Rows<1> own = coming;
    if (i + step < m) operands.load(coming, i + step, step, m);
    Found found;
    find(i, found);
    finish(i, at, found, operands.values(own, 0));
    i += step;
    at += stride;
    if (i >= m) return;
  }
}

/// The same of a problem, from `column` on. False, and nothing is done, where code or types are read from the frame, or where those columns do not lie
/// in vectors.
template <class Problem, class Types, class Expr, class Sums>
CCKS_INLINE bool finish_rows(const Problem& p, const Arguments<Types>& args, const Expr& expr, u32 row, u32 step, u32 m, u32 column, const Sums& sums) {
  constexpr u32 kFirst = kRowsFirst<Expr>;
  if constexpr (kFirst == 0 || kTwins<Types> != TwinnedCode<Expr> || Types::kCount == 0) {
    return false;
  } else {
    const i32 c[4] = {p.c[0], p.c[1], p.c[2], p.c[3] + static_cast<i32>(column)};
    const RowOperands<kFirst, Types> operands(args.call, args.types, c);
    u8* const to = p.out.at(c);
    const u32 bytes = bytes_of(p.out.type);
    const i64 row_bytes = p.out.stride[2] * bytes;
    if (!operands.fits() || p.out.stride[3] != 1 || !vector_aligned(to, bytes) || row_bytes % vector_alignment(bytes) != 0) return false;
    finish_fitting_rows(operands, args, expr, p.out.type, c, to, row_bytes, row, step, m, sums);
    return true;
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

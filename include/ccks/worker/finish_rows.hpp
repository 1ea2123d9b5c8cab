// The end of a product whose sums lie in scratch: a lane has four columns of every so many rows, four of them at a time. Where an operand of the epilogue lies is
// found out once for all rows, and those of the next four are on their way while these are finished: a row at a time, each with its addresses from the frame and a wait
// for memory, took longer than the product.
#pragma once

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

/// Rows that a lane finishes side by side.
inline constexpr u32 kRowsAtOnce = 4;

/// Four elements of an operand in each of some rows, as they lie in memory: what is loaded is not looked at before its rows' turn.
template <u32 kIndex, class Types>
struct RowsOf {
  using Type = TypeOf<kIndex, Types>;
  RawFour<Type> row[kRowsAtOnce];

  /// four: else one for all.
  CCKS_INLINE void load(u32 i, const u8* from, bool four) {
    using Stored = Storage<Type::kDtype>;
    if (four) return row[i].load(Type{}, from);
    const Stored one = *reinterpret_cast<const Stored*>(from);
    if constexpr (sizeof(Stored) == 8) {
      const u64 bits = bit_cast<u64>(one);
      row[i].raw.word[0] = static_cast<u32>(bits), row[i].raw.word[1] = static_cast<u32>(bits >> 32);
    } else if constexpr (sizeof(Stored) == 4) {
      row[i].raw.word[0] = bit_cast<u32>(one);
    } else if constexpr (sizeof(Stored) == 2) {
      row[i].raw.word[0] = bit_cast<u16>(one);
    } else {
      row[i].raw.word[0] = bit_cast<u8>(one);
    }
  }
  CCKS_INLINE void unpack(u32 i, bool four, float (&to)[kVector]) const {
    row[i].unpack(to);
    if (four) return;
    CCKS_UNROLL
    for (u32 q = 1; q < kVector; ++q) to[q] = to[0];
  }
};
template <u32 kFirst, class Types, u32 kLeft>
struct RowsOfAll {};
template <u32 kFirst, class Types, u32 kLeft>
  requires(kLeft > 0)
struct RowsOfAll<kFirst, Types, kLeft> {
  RowsOf<kFirst, Types> own;
  RowsOfAll<kFirst + 1, Types, kLeft - 1> others;
};

template <u32 kFirst, class Types>
class RowOperands {
 public:
  static constexpr u32 kCount = kFirst == 0 || Types::kCount <= kFirst + 1 ? 0 : Types::kCount - kFirst - 1;
  using Rows = RowsOfAll<kFirst, Types, kCount>;
  struct Values {
    float v[kCount == 0 ? 1 : kCount][kVector] = {};
  };

  /// Of four columns that begin at element `c`, and those below it.
  CCKS_INLINE RowOperands(const Call& call, const Types& types, const i32 (&c)[4]) { find<0>(call, types, c); }
  /// Whether all lie in vectors, or are the same for all columns.
  CCKS_INLINE bool fits() const { return fits_; }
  /// Asks for rows row, row + step, ... below m, if `first` also for what all rows have alike.
  CCKS_INLINE void load(Rows& rows, u32 row, u32 step, u32 m, bool first) const { load_each<0>(rows, row, step, m, first); }
  CCKS_INLINE Values values(const Rows& rows, u32 i) const {
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
      if (own.moves) fits_ = fits_ && o.stride[3] == 1 && vector_aligned(own.at, bytes) && own.row_bytes % align == 0;
      find<kIndex + 1>(call, types, c);
    }
  }
  template <u32 kIndex, class Own>
  CCKS_INLINE void load_each(Own& rows, u32 row, u32 step, u32 m, bool first) const {
    if constexpr (kIndex < kCount) {
      const Operand& o = operands_[kIndex];
      if (first || o.row_bytes != 0) {
        CCKS_UNROLL
        for (u32 r = 0; r < kRowsAtOnce; ++r) rows.own.load(r, o.at + least(row + r * step, m - 1) * o.row_bytes, o.moves);
      }
      load_each<kIndex + 1>(rows.others, row, step, m, first);
    }
  }
  template <u32 kIndex, class Own>
  CCKS_INLINE void values_of(const Own& rows, u32 i, Values& values) const {
    if constexpr (kIndex < kCount) {
      rows.own.unpack(i, operands_[kIndex].moves, values.v[kIndex]);
      values_of<kIndex + 1>(rows.others, i, values);
    }
  }

  Operand operands_[kCount == 0 ? 1 : kCount];
  bool fits_ = true;
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

/// Finishes rows row, row + step, ... below m of a product, four columns from element c of the output on, which lies at `to`: sums(i, acc) gives those of
/// row i, sums.twin(i, acc) those of a twin. Columns and operands lie in vectors.
template <class Types, class Expr, class Out, class Sums>
CCKS_INLINE void finish_fitting_rows(const RowOperands<kRowsFirst<Expr>, Types>& operands, const Arguments<Types>& args, const Expr& expr, Out type, const i32 (&c)[4],
                                     u8* to, i64 row_bytes, u32 row, u32 step, u32 m, const Sums& sums) {
  using Operands = RowOperands<kRowsFirst<Expr>, Types>;
  using Args = RowArguments<Types, typename Operands::Values, TwinnedCode<Expr> ? 1 : 0>;
  if (row >= m) return;
  const auto code = own_code(expr);
  const auto finish = [&](u32 i, bool there, const typename Operands::Values& values) {
    const Place place{{c[0], c[1], c[2] + static_cast<i32>(i), c[3]}, kVector};
    float acc[kVector];
    const float* twin = nullptr;
    [[maybe_unused]] float between[kVector];
    if constexpr (TwinnedCode<Expr>) {
      sums.twin(i, between);
      finish_four_between(Args{{Arguments<Types>{args.call, args.types, between, args.first}}, values}, typename Expr::Twin{}, place, type, between);
      twin = between;
    }
    sums(i, acc);
    u8* const at = to + i * row_bytes;
    if (code.identity()) {
      if (there) store_four(type, at, static_cast<const float*>(acc));
      return;
    }
    Machine<kVector> machine(kVector);
    code.run(machine, Args{{Arguments<Types>{args.call, args.types, acc, args.first}, twin}, values}, place);
    if (!there) return;
    if (code.result_is_int())
      store_four(type, at, static_cast<const i64*>(machine.ints(code.result())));
    else
      store_four(type, at, static_cast<const float*>(machine.floats(code.result())));
  };
  typename Operands::Rows next;
  operands.load(next, row, step, m, true);
  CCKS_NO_UNROLL
  for (u32 i = row; i < m; i += kRowsAtOnce * step) {
    const typename Operands::Rows rows = next;
    if (i + kRowsAtOnce * step < m) operands.load(next, i + kRowsAtOnce * step, step, m, false);
    CCKS_UNROLL
    for (u32 r = 0; r < kRowsAtOnce; ++r) finish(least(i + r * step, m - 1), i + r * step < m, operands.values(rows, r));
  }
}

/// The same of a problem, from `column` on. False, and nothing is done, where code or types are read from the frame, or where those columns do not lie in vectors.
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

// The end of a product whose sums lie in scratch: a lane has four columns of every so many rows. Where an operand of the epilogue lies is found out once for
// all of them, and those of the next row are on their way while this one is finished: a row at a time, each with its addresses from the frame and a wait for
// memory, took longer than the product.
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

template <u32 kFirst, class Types>
class RowOperands {
 public:
  static constexpr u32 kCount = kFirst == 0 || kTwins<Types> || Types::kCount <= kFirst + 1 ? 0 : Types::kCount - kFirst - 1;
  struct Values {
    float v[kCount == 0 ? 1 : kCount][kVector] = {};
  };

  /// Of four columns that begin at element `c`, and those below it.
  CCKS_INLINE RowOperands(const Call& call, const Types& types, const i32 (&c)[4]) { find<0>(call, types, c); }
  /// Whether all lie in vectors, or are the same for all columns.
  CCKS_INLINE bool fits() const { return fits_; }
  CCKS_INLINE Values load(const Types& types, u32 row) const {
    Values values;
    load_each<0>(types, row, values);
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
  template <u32 kIndex>
  CCKS_INLINE void load_each(const Types& types, u32 row, Values& values) const {
    if constexpr (kIndex < kCount) {
      const auto type = types.template type<kFirst + kIndex>();
      const u8* from = operands_[kIndex].at + row * operands_[kIndex].row_bytes;
      if (operands_[kIndex].moves) {
        load_four(type, from, values.v[kIndex]);
      } else {
        load_value(type, from, values.v[kIndex]);
        CCKS_UNROLL
        for (u32 i = 1; i < kVector; ++i) values.v[kIndex][i] = values.v[kIndex][0];
      }
      load_each<kIndex + 1>(types, row, values);
    }
  }

  Operand operands_[kCount == 0 ? 1 : kCount];
  bool fits_ = true;
};

/// Arguments of an epilogue for four elements: sums, and operands as they were loaded. Integers are read as such, when their turn comes.
template <class Types, class Values>
struct RowArguments {
  FourArguments<Types> all;
  const Values& values;

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place& p, Value* to) const {
    if constexpr (sizeof(Value) == sizeof(float)) {
      if (in.c != 0) {
        CCKS_UNROLL
        for (u32 i = 0; i < kVector; ++i) to[i] = values.v[in.c - 1][i];
        return;
      }
    }
    all.template load<W>(in, p, to);
  }
};

/// Finishes rows row, row + step, ... below m of a product, columns [column, column + 4): sums(i, to) gives those of row i. False, and nothing is done,
/// where code or types are read from the frame, or where those columns do not lie in vectors.
template <class Problem, class Types, class Expr, class Sums>
CCKS_INLINE bool finish_rows(const Problem& p, const Arguments<Types>& args, const Expr& expr, u32 row, u32 step, u32 m, u32 column, const Sums& sums) {
  constexpr u32 kFirst = kEpilogueFirst<Expr>;
  if constexpr (kFirst == 0 || kTwins<Types> || Types::kCount == 0) {
    return false;
  } else {
    using Operands = RowOperands<kFirst, Types>;
    const i32 c[4] = {p.c[0], p.c[1], p.c[2], p.c[3] + static_cast<i32>(column)};
    const Operands operands(args.call, args.types, c);
    u8* const to = p.out.at(c);
    const u32 bytes = bytes_of(p.out.type);
    const i64 row_bytes = p.out.stride[2] * bytes;
    if (!operands.fits() || p.out.stride[3] != 1 || !vector_aligned(to, bytes) || row_bytes % vector_alignment(bytes) != 0) return false;
    if (row >= m) return true;
    typename Operands::Values next = operands.load(args.types, row);
    CCKS_NO_UNROLL
    for (u32 i = row; i < m; i += step) {
      const typename Operands::Values values = next;
      if (i + step < m) next = operands.load(args.types, i + step);
      float acc[kVector];
      sums(i, acc);
      u8* const at = to + i * row_bytes;
      if (expr.identity()) {
        store_four(p.out.type, at, static_cast<const float*>(acc));
        continue;
      }
      const Place place{{c[0], c[1], c[2] + static_cast<i32>(i), c[3]}, kVector};
      Machine<kVector> machine(kVector);
      expr.run(machine, RowArguments<Types, typename Operands::Values>{{Arguments<Types>{args.call, args.types, acc, args.first}}, values}, place);
      if (expr.result_is_int())
        store_four(p.out.type, at, static_cast<const i64*>(machine.ints(expr.result())));
      else
        store_four(p.out.type, at, static_cast<const float*>(machine.floats(expr.result())));
    }
    return true;
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

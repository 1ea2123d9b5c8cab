// Blocks of products whose sums stay in registers to the end (GroupedWalk, kHeld), of ops that are kOpBlocks: lanes finish the sums that they have, eight columns of a row at a time, without
// a way through scratch and without a barrier. What is added to the sums and has a row of its own for each of theirs is there before the first product.
//
// Nothing here calls anything: ptxas waits for each product in a function that calls another.
#pragma once

#include "ccks/worker/product_group.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// Bits up to the highest that is set.
CCKS_HD constexpr u32 bits_of(u32 v) { return v == 0 ? 0 : 1 + bits_of(v >> 1); }
template <class Types, u32 kIndex = 0>
CCKS_HD constexpr bool are_halves() {
  if constexpr (kIndex == Types::kCount)
    return true;
  else
    return wire::dtype_is_half(TypeOf<kIndex, Types>::kDtype) && are_halves<Types, kIndex + 1>();
}
/// Code that may be finished so. Each register has code of its own, which a tile goes through once: of a function, a dozen instructions an element, that takes longer than a loop
/// over sums in scratch, and a division calls one.
template <class Expr>
inline constexpr bool kMayBeHeld = !Expr::result_is_int() && !Expr::kIsLong;

/// Arguments of an epilogue for eight elements of a row: the sums, and operands as floats.
template <class Types, u32 kOperands>
struct HeldArguments {
  const float (&sums)[8];
  const float (&operands)[kOperands][8];

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place&, Value* to) const {
    CCKS_UNROLL
    for (u32 i = 0; i < 8; ++i) to[i] = Arguments<Types>::template from_acc<Value>(in.c == 0 ? sums[i] : operands[in.c == 0 ? 0 : in.c - 1][i]);
  }
};

/// kMoves: operands of the epilogue (bit i: argument i + 1) of which rows have their own.
template <class Types, class Expr, u32 kColumns, u32 kMoves, class Lanes>
class HeldBlock {
 public:
  CCKS_INLINE HeldBlock(Lanes& lanes, const NearOp& near, u32 tile) : lanes_(lanes), near_(near), block_(near, near.operands[kOut], tile), column_(lanes.lane() % 4 * 8) {
    const u32 slot = lanes.lane() / Lanes::kWarp * 16 + lanes.lane() % Lanes::kWarp / 4;
    row_ = slot / 32 * 32 + held_line(slot % 32);
  }

  CCKS_INLINE void run() const {
    const GroupedWindow window = block_.window(near_);
    Walk walk(lanes_, window);
    Packets begin;
    if constexpr (kBegin != 0) {
      CCKS_UNROLL
      for (u32 r = 0; r < 2; ++r) load(kBegin, r, begin.row[r]);
    }
    walk.start();
    if constexpr (kBegin != 0) {
      typename Walk::Sums& sums = walk.sums();
      CCKS_UNROLL
      for (u32 g = 0; g < kGroups; ++g) {
        CCKS_UNROLL
        for (u32 r = 0; r < 2; ++r) {
          float v[8];
          unpack<TypeOf<kFirst + kBegin - 1, Types>::kDtype>(begin.row[r][g], v);
          CCKS_UNROLL
          for (u32 i = 0; i < 8; ++i) sums[g * 4 + i / 2][2 * r + i % 2] = v[i];
        }
      }
    }
    walk.template walk<kBegin != 0>();
    Still still;
    load_still<0>(0, still);
    finish(walk.await(), still);
  }

 private:
  using Walk = GroupedWalk<TypeOf<0, Types>::kDtype, kColumns, Lanes, true>;
  static constexpr u32 kFirst = kEpilogueFirst<Expr>, kOut = Types::kCount - 1, kOperands = kOut - kFirst, kGroups = kColumns / 32;
  static constexpr u32 kBegin = bits_of(Expr::kAddends & kMoves);  // the argument that sums begin with; 0: none
  /// Of a lane's row, its eight columns of each 32.
  using Row = Sixteen[kGroups];
  struct Packets {
    Row row[2];
  };
  /// Of operands that are the same in all rows, of some of them: all at once would be more registers than are left beside the sums.
  static constexpr u32 kAtOnce = kGroups < 4 ? kGroups : 4, kFreed = 2;
  struct Still {
    Sixteen of[kOperands == 0 ? 1 : kOperands][kAtOnce];
  };

  CCKS_INLINE u8* at(u32 operand, u32 r) const {
    return near_.begin(operand) + u64{block_.row + row_ + 2 * r} * NearBlock::step_of(near_.operands[operand].stride[2]) + (block_.column + column_) * 2;
  }
  /// Packets of an argument in row r of the lane's two, zero where there are none. No branch: ptxas waits for each product where sums begin in one of two ways.
  CCKS_INLINE void load(u32 argument, u32 r, Row& row) const {
    const u32 columns = row_ + 2 * r < block_.m ? block_.n : 0;
    const u8* const from = at(kFirst + argument - 1, r);
    CCKS_UNROLL
    for (u32 g = 0; g < kGroups; ++g) row[g] = g * 32 + column_ < columns ? *reinterpret_cast<const Sixteen*>(from + g * 64) : Sixteen{};
  }
  template <u32 kOperand>
  CCKS_INLINE void load_still(u32 first, Still& still) const {
    if constexpr (kOperand < kOperands) {
      if constexpr ((kMoves >> kOperand & 1) == 0) {
        const u8* const from = near_.begin(kFirst + kOperand) + (block_.column + column_) * 2;
        CCKS_UNROLL
        for (u32 i = 0; i < kAtOnce; ++i) {
          const u32 g = first + i;
          if (g < kGroups) still.of[kOperand][i] = g * 32 + column_ < block_.n ? *reinterpret_cast<const Sixteen*>(from + g * 64) : Sixteen{};
        }
      }
      load_still<kOperand + 1>(first, still);
    }
  }
  template <u32 kOperand>
  CCKS_INLINE void values(const Still& still, const Packets (&moving)[kOperands == 0 ? 1 : kOperands], u32 g, u32 r, float (&to)[kOperands == 0 ? 1 : kOperands][8]) const {
    if constexpr (kOperand < kOperands) {
      constexpr Dtype kType = TypeOf<kFirst + kOperand, Types>::kDtype;
      if constexpr (kOperand + 1 == kBegin) {
        CCKS_UNROLL
        for (u32 i = 0; i < 8; ++i) to[kOperand][i] = -0.0f;  // what adds nothing, not even a sign
      } else if constexpr ((kMoves >> kOperand & 1) != 0) {
        unpack<kType>(moving[kOperand].row[r][g], to[kOperand]);
      } else {
        unpack<kType>(still.of[kOperand][g % kAtOnce], to[kOperand]);
      }
      values<kOperand + 1>(still, moving, g, r, to);
    }
  }
  template <u32 kOperand>
  CCKS_INLINE void load_moving(Packets (&moving)[kOperands == 0 ? 1 : kOperands]) const {
    if constexpr (kOperand < kOperands) {
      if constexpr ((kMoves >> kOperand & 1) != 0 && kOperand + 1 != kBegin) {
        CCKS_UNROLL
        for (u32 r = 0; r < 2; ++r) load(kOperand + 1, r, moving[kOperand].row[r]);
      }
      load_moving<kOperand + 1>(moving);
    }
  }

  CCKS_INLINE void finish(const typename Walk::Sums& sums, Still& still) const {
    constexpr Dtype kType = TypeOf<kOut, Types>::kDtype;
    Packets moving[kOperands == 0 ? 1 : kOperands];
    load_moving<0>(moving);
    const Expr expr{};
    u8* to[2];
    CCKS_UNROLL
    for (u32 r = 0; r < 2; ++r) to[r] = at(kOut, r);
    Still next;
    CCKS_UNROLL
    for (u32 g = 0; g < kGroups; ++g) {
      if (g % kAtOnce == kFreed && g + kAtOnce - kFreed < kGroups) load_still<0>(g + kAtOnce - kFreed, next);
      if (g != 0 && g % kAtOnce == 0) still = next;
      CCKS_UNROLL
      for (u32 r = 0; r < 2; ++r) {
        float own[8], operands[kOperands == 0 ? 1 : kOperands][8];
        CCKS_UNROLL
        for (u32 i = 0; i < 8; ++i) own[i] = sums[g * 4 + i / 2][2 * r + i % 2];
        values<0>(still, moving, g, r, operands);
        const Place place{{0, 0, static_cast<i32>(block_.row + row_ + 2 * r), static_cast<i32>(block_.column + column_ + g * 32)}, 8};
        Machine<8, kDigitsOf<Fixed<kType>>> machine(8);
        expr.run(machine, HeldArguments<Types, kOperands == 0 ? 1 : kOperands>{own, operands}, place);
        const float* const result = expr.identity() ? own : machine.floats(expr.result());
        Sixteen packet;
        CCKS_UNROLL
        for (u32 w = 0; w < 4; ++w) packet.word[w] = lanes_.template pair<kType>(result[2 * w], result[2 * w + 1]);
        if (row_ + 2 * r < block_.m && g * 32 + column_ < block_.n) *reinterpret_cast<Sixteen*>(to[r] + g * 64) = packet;
      }
    }
  }

  Lanes& lanes_;
  const NearOp& near_;
  const NearBlock block_;
  u32 column_, row_;  // the lane's first, of the block's
};

}  // namespace CCKS_ISA
}  // namespace ccks::worker

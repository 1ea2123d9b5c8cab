// Element expressions as types, for generated workers: the same instructions as in the frame, fixed when the op is
// compiled. See README.md for the vocabulary.
#pragma once

#include "ccks/worker/expr.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

/// One instruction; the fields of wire::ExprInstr in order.
template <ExprOp kOp, u8 kDst, u8 kA, u8 kB, u32 kC>
struct Ins {
  static constexpr ExprOp op = kOp;
  static constexpr u8 dst = kDst, a = kA, b = kB;
  static constexpr u32 c = kC;
};

/// A constant that ops which share a body have each their own of: it stands in the frame, in instruction kAt of the op's code.
template <ExprOp kOp, u8 kDst, u32 kAt>
struct FrameConst {};

namespace detail {

/// An instruction within an op: knows which operand an argument is.
template <class I, u32 kEpilogueFirst>
struct Bound : I {
  template <class Types>
  static CCKS_INLINE auto type(const Types& types, u32) {
    constexpr bool kLoads = I::op == ExprOp::arg_f || I::op == ExprOp::arg_i;
    constexpr u32 kOperand = !kLoads ? 0 : kEpilogueFirst == 0 ? I::c : I::c == 0 ? 0 : kEpilogueFirst + I::c - 1;
    return types.template type<kOperand>();
  }
};

/// Arguments (bit i - 1: argument i) that code adds to argument 0 before anything else sees either: their sum may as well be there beforehand.
template <class... Is>
CCKS_HD constexpr u32 addends() {
  constexpr u32 kCount = sizeof...(Is);
  constexpr ExprOp op[] = {Is::op..., ExprOp::arg_f};
  constexpr u32 dst[] = {Is::dst..., 0}, a[] = {Is::a..., 0}, b[] = {Is::b..., 0}, c[] = {Is::c..., 0};
  const auto from = [&](u32 before, u32 r) {  // the instruction that last wrote a register
    u32 i = before;
    while (i > 0 && dst[i - 1] != r) --i;
    return i == 0 ? kCount : i - 1;
  };
  const auto only_reader = [&](u32 of) {  // of what an instruction gives; kCount: there is none, or several
    u32 reader = kCount, readers = 0;
    for (u32 i = of + 1; i < kCount && (i == of + 1 || dst[i - 1] != dst[of]); ++i) {
      if (op[i] <= ExprOp::index_i) continue;
      if (a[i] == dst[of]) reader = i, ++readers;
      if (b[i] == dst[of]) reader = i, ++readers;
      if ((op[i] == ExprOp::select_f || op[i] == ExprOp::select_i) && c[i] == dst[of]) reader = i, ++readers;
    }
    return readers == 1 ? reader : kCount;
  };
  const auto loads = [&](u32 argument) {
    u32 count = 0;
    for (u32 i = 0; i < kCount; ++i) count += (op[i] == ExprOp::arg_f || op[i] == ExprOp::arg_i) && c[i] == argument ? 1 : 0;
    return count;
  };
  u32 sum = 0;
  while (sum < kCount && (op[sum] != ExprOp::arg_f || c[sum] != 0)) ++sum;
  if (sum == kCount || loads(0) != 1) return 0;
  u32 found = 0;
  for (;;) {
    const u32 next = only_reader(sum);
    if (next == kCount || op[next] != ExprOp::add_f) return found;
    const u32 other = from(next, a[next] == dst[sum] ? b[next] : a[next]);
    if (other != kCount && op[other] == ExprOp::arg_f && c[other] != 0 && c[other] <= 32 && only_reader(other) == next && loads(c[other]) == 1) found |= 1u << (c[other] - 1);
    sum = next;
  }
}

/// Whether an instruction is many of a GPU's, or calls a function there.
CCKS_HD constexpr bool is_long(ExprOp op) {
  return (op >= ExprOp::exp_f && op <= ExprOp::softplus_f && op != ExprOp::relu_f) || op == ExprOp::div_f || op == ExprOp::mod_f || op == ExprOp::pow_f || op == ExprOp::div_i || op == ExprOp::mod_i;
}

template <class... Rest>
struct Last;
template <class I>
struct Last<I> {
  using type = I;
};
template <class I, class... Rest>
struct Last<I, Rest...> : Last<Rest...> {};

}  // namespace detail

/// Instructions in order; the last one gives the result. Code<> is the identity of argument 0.
template <class... Is>
struct Code;

/// Code of an op whose first epilogue operand is input kEpilogueFirst; 0: a map.
template <u32 kEpilogueFirst, class... Is>
struct BoundCode {
  CCKS_HD static constexpr bool identity() { return false; }
  CCKS_HD static constexpr bool uses_index() { return ((Is::op == ExprOp::index_i) || ...); }
  static constexpr u32 kAddends = detail::addends<Is...>();
  static constexpr bool kIsLong = (detail::is_long(Is::op) || ...);

  template <u32 W, u32 kDigits, class Args>
  CCKS_INLINE void run(Machine<W, kDigits>& machine, const Args& args, const Place& p) const {
    (machine.step(detail::Bound<Is, kEpilogueFirst>{}, args, p), ...);
  }
  CCKS_HD static constexpr bool result_is_int() { return gives_int(detail::Last<Is...>::type::op); }
  CCKS_HD static constexpr u32 result() { return detail::Last<Is...>::type::dst; }
};
template <u32 kEpilogueFirst>
struct BoundCode<kEpilogueFirst> {
  CCKS_HD static constexpr bool identity() { return true; }
  static constexpr u32 kAddends = 0;
  static constexpr bool kIsLong = false;
  CCKS_HD static constexpr bool uses_index() { return false; }
  CCKS_HD static constexpr bool result_is_int() { return false; }
  CCKS_HD static constexpr u32 result() { return 0; }
  template <u32 W, u32 kDigits, class Args>
  CCKS_INLINE void run(Machine<W, kDigits>&, const Args&, const Place&) const {}
};

namespace detail {

/// A FrameConst once it has been read.
template <ExprOp kOp, u8 kDst>
struct OwnConst {
  static constexpr ExprOp op = kOp;
  static constexpr u8 dst = kDst, a = 0, b = 0;
  u32 c;
  template <class Types>
  static CCKS_INLINE auto type(const Types& types, u32) {
    return types.template type<0>();
  }
};
template <class I>
struct OfFrame {
  static constexpr ExprOp op = I::op;
  static constexpr u8 dst = I::dst;
  template <u32 kEpilogueFirst>
  static CCKS_INLINE Bound<I, kEpilogueFirst> bound(const ExprInstr*) {
    return {};
  }
};
template <ExprOp kOp, u8 kDst, u32 kAt>
struct OfFrame<FrameConst<kOp, kDst, kAt>> {
  static constexpr ExprOp op = kOp;
  static constexpr u8 dst = kDst;
  template <u32 kEpilogueFirst>
  static CCKS_INLINE OwnConst<kOp, kDst> bound(const ExprInstr* code) {
    return {code[kAt].c};
  }
};
template <class I>
inline constexpr bool kOfFrame = false;
template <ExprOp kOp, u8 kDst, u32 kAt>
inline constexpr bool kOfFrame<FrameConst<kOp, kDst, kAt>> = true;

}  // namespace detail

/// Code with constants of the frame; `code` is the op's there.
template <u32 kEpilogueFirst, class... Is>
struct FrameBoundCode {
  const ExprInstr* code = nullptr;

  CCKS_HD static constexpr bool identity() { return false; }
  CCKS_HD static constexpr bool uses_index() { return ((detail::OfFrame<Is>::op == ExprOp::index_i) || ...); }

  template <u32 W, u32 kDigits, class Args>
  CCKS_INLINE void run(Machine<W, kDigits>& machine, const Args& args, const Place& p) const {
    (machine.step(detail::OfFrame<Is>::template bound<kEpilogueFirst>(code), args, p), ...);
  }
  CCKS_HD static constexpr bool result_is_int() { return gives_int(detail::OfFrame<typename detail::Last<Is...>::type>::op); }
  CCKS_HD static constexpr u32 result() { return detail::OfFrame<typename detail::Last<Is...>::type>::dst; }
};

namespace detail {

template <bool kFrame, u32 kEpilogueFirst, class... Is>
struct BindCode {
  using type = BoundCode<kEpilogueFirst, Is...>;
};
template <u32 kEpilogueFirst, class... Is>
struct BindCode<true, kEpilogueFirst, Is...> {
  using type = FrameBoundCode<kEpilogueFirst, Is...>;
};

}  // namespace detail

template <class... Is>
struct Code {
  template <u32 kEpilogueFirst>
  using Bind = typename detail::BindCode<(detail::kOfFrame<Is> || ...), kEpilogueFirst, Is...>::type;
};

/// The code of an op as its body runs it.
template <class Expr>
CCKS_INLINE Expr expr_of(const Call& call) {
  if constexpr (requires(Expr expr) { expr.code; }) {
    return {call.code()};
  } else {
    return {};
  }
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

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

  template <u32 W, class Args>
  CCKS_INLINE void run(Machine<W>& machine, const Args& args, const Place& p) const {
    (machine.step(detail::Bound<Is, kEpilogueFirst>{}, args, p), ...);
  }
  CCKS_HD static constexpr bool result_is_int() { return gives_int(detail::Last<Is...>::type::op); }
  CCKS_HD static constexpr u32 result() { return detail::Last<Is...>::type::dst; }
};
template <u32 kEpilogueFirst>
struct BoundCode<kEpilogueFirst> {
  CCKS_HD static constexpr bool identity() { return true; }
  CCKS_HD static constexpr bool uses_index() { return false; }
  CCKS_HD static constexpr bool result_is_int() { return false; }
  CCKS_HD static constexpr u32 result() { return 0; }
  template <u32 W, class Args>
  CCKS_INLINE void run(Machine<W>&, const Args&, const Place&) const {}
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

  template <u32 W, class Args>
  CCKS_INLINE void run(Machine<W>& machine, const Args& args, const Place& p) const {
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

// Element expressions: a register machine whose registers are rows of W elements. W is 128 on the host, where each
// instruction is one vector loop, and 1 where every lane has its own element.
//
// The instructions come from the frame (FrameCode) or are template arguments (Code<Ins<...>, ...>, typed_expr.hpp);
// both run through `step` below.
#pragma once

#include "ccks/worker/vectors.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

template <u32 W>
struct Registers {
  union Row {
    float f[W];
    i64 i[W];
  };
  Row row[wire::kMaxExprRegisters];
};

/// n elements along axis 3 of the output, from coordinates c on.
struct Place {
  i32 c[4];
  u32 n;
};

/// Where an expression's arguments come from. With an accumulator that is argument 0, and argument 1 + i is operand
/// `first` + i; without, argument i is operand i.
template <class Types>
struct Arguments {
  const Call& call;
  Types types;
  const float* acc;  // n values, or nullptr
  u32 first;

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place& p, Value* to) const {
    if (acc != nullptr && in.c == 0) {
      for (u32 i = 0; i < p.n; ++i) to[i] = from_acc<Value>(acc[i]);
    } else {
      const u32 index = acc != nullptr ? first + in.c - 1 : in.c;
      const OperandParams& o = call.operands[index];
      const auto type = in.type(types, index);
      i64 at = 0;
      for (u32 i = 0; i < 4; ++i) at += p.c[i] * o.stride[i];
      load_run(type, operand_base(call.frame, o) + at * bytes_of(type), o.stride[3], p.n, to);
    }
    if constexpr (W > 1)
      for (u32 i = p.n; i < W; ++i) to[i] = Value{};
  }

  template <class Value>
  static CCKS_INLINE Value from_acc(float v) {
    if constexpr (sizeof(Value) == sizeof(i64))
      return i_from_f(v);
    else
      return v;
  }
};

/// An instruction of the frame.
struct FrameIns {
  ExprOp op;
  u8 dst, a, b;
  u32 c;
  CCKS_INLINE Runtime type(const RuntimeTypes& types, u32 index) const { return types.type_at(index); }
};

/// kDigits: binary digits of what the result is stored as, beyond which functions need not be good.
template <u32 W, u32 kDigits = 24>
class Machine {
 public:
  /// Elements per instruction: n rounded up to whole vectors. Elements beyond n are zero, so they cannot fault.
  CCKS_INLINE explicit Machine(u32 n) : count_(W < 16 ? W : least(W, round_up(n, 16))) {}

  CCKS_INLINE float* floats(u32 r) { return regs_.row[r].f; }
  CCKS_INLINE i64* ints(u32 r) { return regs_.row[r].i; }

  template <class I, class Args>
  CCKS_INLINE void step(const I& in, const Args& args, const Place& p) {
    if (in.op <= ExprOp::index_i)
      leaf(in, args, p);
    else if (in.op <= ExprOp::pow_f)
      float_arithmetic(in);
    else if (in.op <= ExprOp::max_i)
      int_arithmetic(in);
    else if (in.op <= ExprOp::sign_i)
      simple(in);
    else if (in.op <= ExprOp::softplus_f)
      function(in);
    else if (in.op <= ExprOp::ne_i)
      comparison(in);
    else
      logic(in);
  }

 private:
  template <class F>
  CCKS_INLINE void each(F&& f) {
    if constexpr (W < 16) {
      CCKS_UNROLL
      for (u32 i = 0; i < W; ++i) f(i);
    } else {
      CCKS_IVDEP
      for (u32 i = 0; i < count_; ++i) f(i);
    }
  }
  template <class I, class F>
  CCKS_INLINE void ff(const I& in, F&& f) {
    float* d = floats(in.dst);
    const float* a = floats(in.a);
    each([&](u32 i) { d[i] = f(a[i]); });
  }
  template <class I, class F>
  CCKS_INLINE void fff(const I& in, F&& f) {
    float* d = floats(in.dst);
    const float *a = floats(in.a), *b = floats(in.b);
    each([&](u32 i) { d[i] = f(a[i], b[i]); });
  }
  template <class I, class F>
  CCKS_INLINE void ii(const I& in, F&& f) {
    i64* d = ints(in.dst);
    const i64* a = ints(in.a);
    each([&](u32 i) { d[i] = f(a[i]); });
  }
  template <class I, class F>
  CCKS_INLINE void iii(const I& in, F&& f) {
    i64* d = ints(in.dst);
    const i64 *a = ints(in.a), *b = ints(in.b);
    each([&](u32 i) { d[i] = f(a[i], b[i]); });
  }
  // Operand and result have different widths: where they share a register, a row is not read before it is written over.
  template <class To, class From, class F>
  CCKS_INLINE void widen(To* d, const From* a, const From* b, F&& f) {
    if constexpr (W == 1) {
      d[0] = f(a[0], b[0]);
    } else {
      To out[W];
      each([&](u32 i) { out[i] = f(a[i], b[i]); });
      each([&](u32 i) { d[i] = out[i]; });
    }
  }

  template <class I, class Args>
  CCKS_INLINE void leaf(const I& in, const Args& args, const Place& p) {
    switch (in.op) {
      case ExprOp::const_f: {
        const float v = bit_cast<float>(in.c);
        float* d = floats(in.dst);
        return each([&](u32 i) { d[i] = v; });
      }
      case ExprOp::const_i: {
        const i64 v = static_cast<i32>(in.c);
        i64* d = ints(in.dst);
        return each([&](u32 i) { d[i] = v; });
      }
      case ExprOp::arg_f:
        return args.template load<W>(in, p, floats(in.dst));
      case ExprOp::arg_i:
        return args.template load<W>(in, p, ints(in.dst));
      default: {
        const i64 first = in.c == 0 ? p.c[0] : in.c == 1 ? p.c[1] : in.c == 2 ? p.c[2] : p.c[3], step = in.c == 3;
        i64* d = ints(in.dst);
        return each([&](u32 i) { d[i] = first + step * i; });
      }
    }
  }

  template <class I>
  CCKS_INLINE void float_arithmetic(const I& in) {
    switch (in.op) {
      case ExprOp::add_f:
        return fff(in, [](float a, float b) { return a + b; });
      case ExprOp::sub_f:
        return fff(in, [](float a, float b) { return a - b; });
      case ExprOp::mul_f:
        return fff(in, [](float a, float b) { return a * b; });
      case ExprOp::div_f:
        return fff(in, [](float a, float b) { return a / b; });
      case ExprOp::mod_f:
        return fff(in, [](float a, float b) { return f_mod(a, b); });
      case ExprOp::min_f:
        return fff(in, [](float a, float b) { return f_min(a, b); });
      case ExprOp::max_f:
        return fff(in, [](float a, float b) { return f_max(a, b); });
      default:
        return fff(in, [](float a, float b) { return f_pow(a, b); });
    }
  }

  template <class I>
  CCKS_INLINE void int_arithmetic(const I& in) {
    switch (in.op) {
      case ExprOp::add_i:
        return iii(in, [](i64 a, i64 b) { return i_add(a, b); });
      case ExprOp::sub_i:
        return iii(in, [](i64 a, i64 b) { return i_sub(a, b); });
      case ExprOp::mul_i:
        return iii(in, [](i64 a, i64 b) { return i_mul(a, b); });
      case ExprOp::div_i:
        return iii(in, [](i64 a, i64 b) { return i_div(a, b); });
      case ExprOp::mod_i:
        return iii(in, [](i64 a, i64 b) { return i_mod(a, b); });
      case ExprOp::min_i:
        return iii(in, [](i64 a, i64 b) { return least(a, b); });
      default:
        return iii(in, [](i64 a, i64 b) { return most(a, b); });
    }
  }

  template <class I>
  CCKS_INLINE void simple(const I& in) {
    switch (in.op) {
      case ExprOp::neg_f:
        return ff(in, [](float a) { return -a; });
      case ExprOp::abs_f:
        return ff(in, [](float a) { return f_abs(a); });
      case ExprOp::floor_f:
        return ff(in, [](float a) { return f_floor(a); });
      case ExprOp::ceil_f:
        return ff(in, [](float a) { return f_ceil(a); });
      case ExprOp::round_f:
        return ff(in, [](float a) { return f_round(a); });
      case ExprOp::sign_f:
        return ff(in, [](float a) { return f_sign(a); });
      case ExprOp::neg_i:
        return ii(in, [](i64 a) { return i_sub(0, a); });
      case ExprOp::abs_i:
        return ii(in, [](i64 a) { return a < 0 ? i_sub(0, a) : a; });
      default:
        return ii(in, [](i64 a) { return static_cast<i64>(a > 0) - static_cast<i64>(a < 0); });
    }
  }

  template <class I>
  CCKS_INLINE void function(const I& in) {
    switch (in.op) {
      case ExprOp::exp_f:
        return ff(in, [](float a) { return f_exp(a); });
      case ExprOp::log_f:
        return ff(in, [](float a) { return f_log(a); });
      case ExprOp::sqrt_f:
        return ff(in, [](float a) { return f_sqrt(a); });
      case ExprOp::rsqrt_f:
        return ff(in, [](float a) { return f_rsqrt(a); });
      case ExprOp::sin_f:
        return ff(in, [](float a) { return f_sin(a); });
      case ExprOp::cos_f:
        return ff(in, [](float a) { return f_cos(a); });
      case ExprOp::tanh_f:
        return ff(in, [](float a) { return f_tanh(a); });
      case ExprOp::erf_f:
        return ff(in, [](float a) { return f_erf(a); });
      case ExprOp::sigmoid_f:
        return ff(in, [](float a) { return f_sigmoid(a); });
      case ExprOp::silu_f:
        return ff(in, [](float a) { return f_silu(a); });
      case ExprOp::gelu_f:
        return ff(in, [](float a) {
          if constexpr (kDigits <= 11)
            return f_gelu_brief<kDigits>(a);
          else
            return f_gelu(a);
        });
      case ExprOp::gelu_tanh_f:
        return ff(in, [](float a) { return f_gelu_tanh(a); });
      case ExprOp::relu_f:
        return ff(in, [](float a) { return f_max(a, 0.0f); });
      default:
        return ff(in, [](float a) { return f_softplus(a); });
    }
  }

  template <class I>
  CCKS_INLINE void comparison(const I& in) {
    i64* d = ints(in.dst);
    const float *a = floats(in.a), *b = floats(in.b);
    switch (in.op) {
      case ExprOp::lt_f:
        return widen(d, a, b, [](float x, float y) { return static_cast<i64>(x < y); });
      case ExprOp::le_f:
        return widen(d, a, b, [](float x, float y) { return static_cast<i64>(x <= y); });
      case ExprOp::eq_f:
        return widen(d, a, b, [](float x, float y) { return static_cast<i64>(x == y); });
      case ExprOp::ne_f:
        return widen(d, a, b, [](float x, float y) { return static_cast<i64>(x != y); });
      case ExprOp::lt_i:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>(x < y); });
      case ExprOp::le_i:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>(x <= y); });
      case ExprOp::eq_i:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>(x == y); });
      default:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>(x != y); });
    }
  }

  template <class I>
  CCKS_INLINE void logic(const I& in) {
    switch (in.op) {
      case ExprOp::and_i:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>((x != 0) & (y != 0)); });
      case ExprOp::or_i:
        return iii(in, [](i64 x, i64 y) { return static_cast<i64>((x != 0) | (y != 0)); });
      case ExprOp::not_i:
        return ii(in, [](i64 x) { return static_cast<i64>(x == 0); });
      case ExprOp::select_f:
        return select_float(in);
      case ExprOp::select_i: {
        i64* d = ints(in.dst);
        const i64 *a = ints(in.a), *b = ints(in.b), *c = ints(in.c);
        return each([&](u32 i) { d[i] = a[i] != 0 ? b[i] : c[i]; });
      }
      case ExprOp::f_from_i: {
        const i64* a = ints(in.a);
        return widen(floats(in.dst), a, a, [](i64 x, i64) { return static_cast<float>(x); });
      }
      default: {
        const float* a = floats(in.a);
        return widen(ints(in.dst), a, a, [](float x, float) { return i_from_f(x); });
      }
    }
  }

  template <class I>
  CCKS_INLINE void select_float(const I& in) {
    const i64* a = ints(in.a);
    const float *b = floats(in.b), *c = floats(in.c);
    float out[W];
    each([&](u32 i) { out[i] = a[i] != 0 ? b[i] : c[i]; });
    float* d = floats(in.dst);
    each([&](u32 i) { d[i] = out[i]; });
  }

  Registers<W> regs_;
  u32 count_;
};

CCKS_INLINE constexpr bool gives_int(ExprOp op) {
  return op == ExprOp::const_i || op == ExprOp::arg_i || op == ExprOp::index_i ||
         (op >= ExprOp::add_i && op <= ExprOp::max_i) || (op >= ExprOp::neg_i && op <= ExprOp::sign_i) ||
         (op >= ExprOp::lt_f && op <= ExprOp::not_i) || op == ExprOp::select_i || op == ExprOp::i_from_f;
}

/// Code of the frame. No instructions: the identity of argument 0.
struct FrameCode {
  const ExprInstr* code;
  u32 count;

  CCKS_INLINE bool identity() const { return count == 0; }
  CCKS_INLINE bool uses_index() const {
    for (u32 i = 0; i < count; ++i)
      if (static_cast<ExprOp>(code[i].op) == ExprOp::index_i) return true;
    return false;
  }
  template <u32 W, class Args>
  CCKS_OUTLINE void run(Machine<W>& machine, const Args& args, const Place& p) const {
    for (u32 i = 0; i < count; ++i) {
      const ExprInstr& in = code[i];
      machine.step(FrameIns{static_cast<ExprOp>(in.op), in.dst, in.a, in.b, in.c}, args, p);
    }
  }
  CCKS_INLINE bool result_is_int() const { return gives_int(static_cast<ExprOp>(code[count - 1].op)); }
  CCKS_INLINE u32 result() const { return code[count - 1].dst; }
};

/// Arguments of up to four elements, in one vector where they lie in one.
template <class Types>
struct FourArguments {
  Arguments<Types> all;
  const float* twin = nullptr;  // argument 1, where it is no operand

  template <u32 W, class I, class Value>
  CCKS_INLINE void load(const I& in, const Place& p, Value* to) const {
    if (in.c == 0 || (in.c == 1 && twin != nullptr)) {
      const float* from = in.c == 0 ? all.acc : twin;
      CCKS_UNROLL
      for (u32 i = 0; i < kVector; ++i) to[i] = Arguments<Types>::template from_acc<Value>(from[i]);
      return;
    }
    const u32 index = all.first + in.c - 1;
    const OperandParams& o = all.call.operands[index];
    const auto type = in.type(all.types, index);
    i64 at = 0;
    CCKS_UNROLL
    for (u32 i = 0; i < 4; ++i) at += p.c[i] * o.stride[i];
    const u8* from = operand_base(all.call.frame, o) + at * bytes_of(type);
    if (o.stride[3] == 1 && p.n == kVector && vector_aligned(from, bytes_of(type))) return load_four(type, from, to);
    CCKS_UNROLL
    for (u32 i = 0; i < kVector; ++i) {
      to[i] = Value{};
      if (i < p.n) load_value(type, from + i * o.stride[3] * bytes_of(type), to + i);
    }
  }
};

/// Stores the n <= 4 values at `p`.
template <class Out, class Value>
CCKS_INLINE void store_up_to_four(const View<Out>& out, const Place& p, const Value* values) {
  u8* to = out.at(p.c);
  if (out.stride[3] == 1 && p.n == kVector && vector_aligned(to, bytes_of(out.type))) return store_four(out.type, to, values);
  CCKS_UNROLL
  for (u32 i = 0; i < kVector; ++i)
    if (i < p.n) store_value(out.type, to + i * out.stride[3] * bytes_of(out.type), values[i]);
}

/// Writes expr(accumulators, arguments) for the n <= 4 elements at `p`; `args.acc` has four values, as has `twin` (FourArguments).
template <class Types, class Expr, class Out>
CCKS_INLINE void evaluate_four(const Arguments<Types>& args, const Expr& expr, const Place& p, const View<Out>& out, const float* twin = nullptr) {
  if (expr.identity()) return store_up_to_four(out, p, args.acc);
  Machine<kVector> machine(kVector);
  expr.run(machine, FourArguments<Types>{args, twin}, p);
  if (expr.result_is_int())
    store_up_to_four(out, p, machine.ints(expr.result()));
  else
    store_up_to_four(out, p, machine.floats(expr.result()));
}

/// What a store of `v` and a load would give.
template <class T>
CCKS_INLINE float rounded_to(T type, float v) {
  u64 stored;
  store_float(type, reinterpret_cast<u8*>(&stored), 0, v);
  return load_float(type, reinterpret_cast<const u8*>(&stored), 0);
}
template <Dtype D>
CCKS_INLINE float rounded_to(Fixed<D>, float v) {
  return to_float<D>(from_float<D>(v));
}
/// Makes four sums what would be read where expr(sums, arguments) was stored: `args` has `sums` as its accumulators.
template <class Args, class Expr, class T>
CCKS_INLINE void finish_four_between(const Args& args, const Expr& expr, const Place& p, T type, float (&sums)[kVector]) {
  if (!expr.identity()) {
    Machine<kVector> machine(kVector);
    expr.run(machine, args, p);
    CCKS_UNROLL
    for (u32 i = 0; i < kVector; ++i) sums[i] = expr.result_is_int() ? static_cast<float>(machine.ints(expr.result())[i]) : machine.floats(expr.result())[i];
  }
  CCKS_UNROLL
  for (u32 i = 0; i < kVector; ++i) sums[i] = rounded_to(type, sums[i]);
}

/// Writes expr(arguments) for the n elements at `p` of view `out`.
template <u32 W, class Args, class Expr, class Out>
CCKS_INLINE void evaluate(const Args& args, const Expr& expr, const Place& p, const View<Out>& out) {
  u8* to = out.at(p.c);
  if (expr.identity()) {
    if (args.acc != nullptr) store_run(out.type, to, out.stride[3], p.n, args.acc);
    return;
  }
  Machine<W> machine(p.n);
  expr.run(machine, args, p);
  if (expr.result_is_int())
    store_run(out.type, to, out.stride[3], p.n, machine.ints(expr.result()));
  else
    store_run(out.type, to, out.stride[3], p.n, machine.floats(expr.result()));
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

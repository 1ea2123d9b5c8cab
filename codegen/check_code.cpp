// compare_code: two small interpreters, one over the tree, one over the register code, on the same seeded values.
#include "codegen/check_code.hpp"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "codegen/check_code_functions.hpp"
#include "codegen/plan_turn.hpp"

namespace ccks::codegen::check {
namespace {

// ---- the tree ----

std::optional<Fn> shared(spec::ExprFn fn) {
  using S = spec::ExprFn;
  constexpr std::pair<S, Fn> kTable[] = {{S::add, Fn::add},
                                         {S::sub, Fn::sub},
                                         {S::mul, Fn::mul},
                                         {S::div, Fn::div},
                                         {S::mod, Fn::mod},
                                         {S::min, Fn::min},
                                         {S::max, Fn::max},
                                         {S::pow, Fn::pow},
                                         {S::neg, Fn::neg},
                                         {S::abs, Fn::abs},
                                         {S::floor, Fn::floor},
                                         {S::ceil, Fn::ceil},
                                         {S::round, Fn::round},
                                         {S::sign, Fn::sign},
                                         {S::exp, Fn::exp},
                                         {S::log, Fn::log},
                                         {S::sqrt, Fn::sqrt},
                                         {S::rsqrt, Fn::rsqrt},
                                         {S::sin, Fn::sin},
                                         {S::cos, Fn::cos},
                                         {S::tanh, Fn::tanh},
                                         {S::erf, Fn::erf},
                                         {S::sigmoid, Fn::sigmoid},
                                         {S::silu, Fn::silu},
                                         {S::gelu, Fn::gelu},
                                         {S::gelu_tanh, Fn::gelu_tanh},
                                         {S::relu, Fn::relu},
                                         {S::softplus, Fn::softplus},
                                         {S::lt, Fn::lt},
                                         {S::le, Fn::le},
                                         {S::eq, Fn::eq},
                                         {S::ne, Fn::ne},
                                         {S::logical_and, Fn::land},
                                         {S::logical_or, Fn::lor},
                                         {S::logical_not, Fn::lnot}};
  for (const auto& [from, to] : kTable)
    if (from == fn) return to;
  return std::nullopt;
}

struct Sample {
  std::vector<Number> arguments;
  std::array<std::int64_t, 4> index{};  // by axis of rank 4
};

Number run_node(const spec::ExprNode& n, std::span<const Number> v, const Sample& s, std::size_t rank) {
  using S = spec::ExprFn;
  switch (n.fn) {
    case S::constant:
      return n.type == spec::ScalarType::f32 ? of(static_cast<double>(static_cast<float>(n.value)))
                                             : of_int(static_cast<std::int64_t>(n.value));
    case S::argument:
      return n.index < s.arguments.size() ? s.arguments[n.index] : of(0);
    case S::index:
      return of_int(s.index[std::min<std::size_t>(3, n.index + 4 - rank)]);
    case S::gt:
      return apply(Fn::lt, false, v[n.b], v[n.a]);
    case S::ge:
      return apply(Fn::le, false, v[n.b], v[n.a]);
    case S::select: {
      const Number chosen = v[n.a].truth() ? v[n.b] : v[n.c];
      return v[n.b].is_float || v[n.c].is_float ? of(chosen.as_float()) : chosen;
    }
    case S::to_f32:
      return of(v[n.a].as_float());
    case S::to_i64:
      return v[n.a].is_float ? of_int(truncated(v[n.a].f)) : v[n.a];
    case S::to_bool:
      return of_int(v[n.a].truth());
    default:
      break;
  }
  const bool unary = n.b == spec::kNone;
  return apply(*shared(n.fn), unary, v[n.a], unary ? Number{} : v[n.b]);
}

Number run_tree(const spec::ElementExpr& expr, const Sample& s, std::size_t rank) {
  if (expr.empty()) return s.arguments[0];
  std::vector<Number> values;
  for (const spec::ExprNode& n : expr.nodes) values.push_back(run_node(n, values, s, rank));
  return values.back();
}

// ---- the code ----

struct Meaning {
  int reads;        // registers: 1 a, 2 a b, 3 a b c; 0 a leaf
  bool from_float;  // class of what it reads
  bool to_float;
  Fn fn;
};

/// Nothing for an op that does not exist; leaves, selects and conversions are handled by run_instr.
std::optional<Meaning> meaning(wire::ExprOp op) {
  using O = wire::ExprOp;
  const int i = static_cast<int>(op);
  const auto between = [&](O a, O b) { return i >= static_cast<int>(a) && i <= static_cast<int>(b); };
  const auto at = [&](O first, std::initializer_list<Fn> list) {
    return *(list.begin() + (i - static_cast<int>(first)));
  };
  if (between(O::add_f, O::pow_f))
    return Meaning{2, true, true,
                   at(O::add_f, {Fn::add, Fn::sub, Fn::mul, Fn::div, Fn::mod, Fn::min, Fn::max, Fn::pow})};
  if (between(O::add_i, O::max_i))
    return Meaning{2, false, false, at(O::add_i, {Fn::add, Fn::sub, Fn::mul, Fn::div, Fn::mod, Fn::min, Fn::max})};
  if (between(O::neg_f, O::sign_f))
    return Meaning{1, true, true, at(O::neg_f, {Fn::neg, Fn::abs, Fn::floor, Fn::ceil, Fn::round, Fn::sign})};
  if (between(O::neg_i, O::sign_i)) return Meaning{1, false, false, at(O::neg_i, {Fn::neg, Fn::abs, Fn::sign})};
  if (between(O::exp_f, O::softplus_f))
    return Meaning{1, true, true,
                   at(O::exp_f, {Fn::exp, Fn::log, Fn::sqrt, Fn::rsqrt, Fn::sin, Fn::cos, Fn::tanh, Fn::erf,
                                 Fn::sigmoid, Fn::silu, Fn::gelu, Fn::gelu_tanh, Fn::relu, Fn::softplus})};
  if (between(O::lt_f, O::ne_f)) return Meaning{2, true, false, at(O::lt_f, {Fn::lt, Fn::le, Fn::eq, Fn::ne})};
  if (between(O::lt_i, O::ne_i)) return Meaning{2, false, false, at(O::lt_i, {Fn::lt, Fn::le, Fn::eq, Fn::ne})};
  if (between(O::and_i, O::not_i))
    return Meaning{op == O::not_i ? 1 : 2, false, false, at(O::and_i, {Fn::land, Fn::lor, Fn::lnot})};
  return std::nullopt;
}

/// Registers of one run; a register holds a class from its last write.
class Machine {
 public:
  Machine(std::span<const wire::ExprInstr> code, const Sample& sample) : code_(code), sample_(sample) {}

  std::string run(Number& out) {
    for (const wire::ExprInstr& instr : code_) {
      if (std::string why = step(instr); !why.empty()) return why;
      last_ = instr.dst;
    }
    out = *registers_[last_];
    return {};
  }

 private:
  std::string step(const wire::ExprInstr& in) {
    if (in.dst >= wire::kMaxExprRegisters) return fmt::format("code writes register {}", in.dst);
    const auto op = static_cast<wire::ExprOp>(in.op);
    using O = wire::ExprOp;
    if (op == O::const_f) return set(in, of(static_cast<double>(std::bit_cast<float>(in.c))));
    if (op == O::const_i) return set(in, of_int(static_cast<std::int32_t>(in.c)));
    if (op == O::arg_f || op == O::arg_i) return argument(in, op == O::arg_f);
    if (op == O::index_i)
      return in.c < 4 ? set(in, of_int(sample_.index[in.c])) : "code reads an axis that does not exist";
    if (op == O::select_f || op == O::select_i) return select(in, op == O::select_f);
    if (op == O::f_from_i)
      return readable(in.a, false) ? set(in, of(static_cast<double>(registers_[in.a]->i))) : kClass;
    if (op == O::i_from_f) return readable(in.a, true) ? set(in, of_int(truncated(registers_[in.a]->f))) : kClass;
    const std::optional<Meaning> how = meaning(op);
    if (!how) return fmt::format("code has an instruction {} that does not exist", in.op);
    if (!readable(in.a, how->from_float) || (how->reads == 2 && !readable(in.b, how->from_float))) return kClass;
    return set(in, apply(how->fn, how->reads == 1, *registers_[in.a], how->reads == 2 ? *registers_[in.b] : Number{}));
  }

  std::string set(const wire::ExprInstr& in, Number v) {
    registers_[in.dst] = v;
    return {};
  }
  std::string argument(const wire::ExprInstr& in, bool f) {
    if (in.c >= sample_.arguments.size())
      return fmt::format("code reads argument {} of {}", in.c, sample_.arguments.size());
    const Number v = sample_.arguments[in.c];
    return set(in, f ? of(v.as_float()) : v.is_float ? of_int(truncated(v.f)) : v);
  }
  std::string select(const wire::ExprInstr& in, bool f) {
    if (!readable(in.a, false) || !readable(in.b, f) || !readable(in.c, f)) return kClass;
    return set(in, registers_[in.a]->i != 0 ? *registers_[in.b] : *registers_[in.c]);
  }
  bool readable(std::uint32_t r, bool f) const {
    return r < wire::kMaxExprRegisters && registers_[r] && registers_[r]->is_float == f;
  }

  static constexpr const char* kClass = "code reads a register that holds nothing, or the other class";
  std::span<const wire::ExprInstr> code_;
  const Sample& sample_;
  std::array<std::optional<Number>, wire::kMaxExprRegisters> registers_;
  std::size_t last_ = 0;
};

bool same(Number have, Number want, bool out_float) {
  if (have.is_float != out_float) return false;
  if (!out_float) return have.i == (want.is_float ? truncated(want.f) : want.i);
  const double a = have.as_float(), b = want.as_float();
  if (std::isnan(a) || std::isnan(b) || std::isinf(b))
    return std::isnan(a) == std::isnan(b) && (std::isnan(a) || a == b);
  return std::abs(a - b) <=
         1e-5 * std::max(1.0, std::abs(b));  // constants are f32 on one side, folded in f64 on the other
}

Sample sample_of(const CodeContext& context, std::uint64_t& state) {
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>(state >> 33);
  };
  Sample s;
  for (const wire::Dtype t : context.arguments) {
    if (t == wire::Dtype::boolean)
      s.arguments.push_back(of_int(next() % 2));
    else if (!wire::dtype_is_float(t))
      s.arguments.push_back(of_int(next() % 11 - 5));
    else
      s.arguments.push_back(of(static_cast<double>(next() % 4001 - 2000) / 800.0));
  }
  for (std::int64_t& i : s.index) i = next() % 7;
  return s;
}

}  // namespace

CodeContext code_context(const Model& m, std::size_t op) {
  const plan::OpDesc& d = *m.ops[op].desc;
  const std::span<const Operand> operands = m.operands_of(op);
  CodeContext context;
  const bool map = m.spec_op(op).kind() == spec::OpKind::map;
  if (!map) context.arguments.push_back(wire::Dtype::f32);
  const std::size_t end = epilogue_end(m.spec_op(op));
  for (std::size_t k = map ? 0 : m.spec_op(op).kind() == spec::OpKind::expert_matmul ? 4 : 2; k < end; ++k)
    context.arguments.push_back(operands[k].dtype);
  context.out = operands[d.input_count].dtype;
  context.rank = m.spec_op(op).outputs[0].dims.size();
  return context;
}

std::string compare_code(const spec::ElementExpr& expr, std::span<const wire::ExprInstr> code,
                         const CodeContext& context) {
  constexpr int kSamples = 12;  // each distinguishes nearly any two expressions; a handful covers branches of selects
  const bool out_float = wire::dtype_is_float(context.out);
  if (context.arguments.empty() && (code.empty() || expr.empty())) return "an identity of nothing";
  std::uint64_t state = 0x243f6a8885a308d3u;
  for (int i = 0; i < kSamples; ++i) {
    const Sample sample = sample_of(context, state);
    Number have = sample.arguments.empty() ? Number{} : sample.arguments[0];
    const Number want = run_tree(expr, sample, context.rank);
    if (code.empty())
      have = out_float ? of(have.as_float()) : have.is_float ? of_int(truncated(have.f)) : have;
    else if (std::string why = Machine(code, sample).run(have); !why.empty())
      return why;
    if (!same(have, want, out_float))
      return fmt::format("code computes {}, its expression {}", have.as_float(), want.as_float());
  }
  return {};
}

}  // namespace ccks::codegen::check

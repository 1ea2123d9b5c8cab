#include "codegen/plan_code.hpp"

#include <array>
#include <bit>
#include <limits>
#include <optional>

namespace ccks::codegen {
namespace {

using spec::ExprFn;
using spec::ExprNode;
using spec::ScalarType;
using wire::ExprInstr;
using wire::ExprOp;

bool is_float(ScalarType t) { return t == ScalarType::f32; }

struct OpPair {
  ExprOp f, i;
};

/// Functions of one kind of operand on both sides. Missing variants repeat the float one: integers are converted first.
std::optional<OpPair> arithmetic(ExprFn fn) {
  switch (fn) {
    case ExprFn::add:
      return OpPair{ExprOp::add_f, ExprOp::add_i};
    case ExprFn::sub:
      return OpPair{ExprOp::sub_f, ExprOp::sub_i};
    case ExprFn::mul:
      return OpPair{ExprOp::mul_f, ExprOp::mul_i};
    case ExprFn::div:
      return OpPair{ExprOp::div_f, ExprOp::div_i};
    case ExprFn::mod:
      return OpPair{ExprOp::mod_f, ExprOp::mod_i};
    case ExprFn::min:
      return OpPair{ExprOp::min_f, ExprOp::min_i};
    case ExprFn::max:
      return OpPair{ExprOp::max_f, ExprOp::max_i};
    case ExprFn::neg:
      return OpPair{ExprOp::neg_f, ExprOp::neg_i};
    case ExprFn::abs:
      return OpPair{ExprOp::abs_f, ExprOp::abs_i};
    case ExprFn::sign:
      return OpPair{ExprOp::sign_f, ExprOp::sign_i};
    case ExprFn::lt:
    case ExprFn::gt:
      return OpPair{ExprOp::lt_f, ExprOp::lt_i};
    case ExprFn::le:
    case ExprFn::ge:
      return OpPair{ExprOp::le_f, ExprOp::le_i};
    case ExprFn::eq:
      return OpPair{ExprOp::eq_f, ExprOp::eq_i};
    case ExprFn::ne:
      return OpPair{ExprOp::ne_f, ExprOp::ne_i};
    default:
      return std::nullopt;
  }
}

std::optional<ExprOp> float_only(ExprFn fn) {
  switch (fn) {
    case ExprFn::pow:
      return ExprOp::pow_f;
    case ExprFn::exp:
      return ExprOp::exp_f;
    case ExprFn::log:
      return ExprOp::log_f;
    case ExprFn::sqrt:
      return ExprOp::sqrt_f;
    case ExprFn::rsqrt:
      return ExprOp::rsqrt_f;
    case ExprFn::sin:
      return ExprOp::sin_f;
    case ExprFn::cos:
      return ExprOp::cos_f;
    case ExprFn::tanh:
      return ExprOp::tanh_f;
    case ExprFn::erf:
      return ExprOp::erf_f;
    case ExprFn::sigmoid:
      return ExprOp::sigmoid_f;
    case ExprFn::silu:
      return ExprOp::silu_f;
    case ExprFn::gelu:
      return ExprOp::gelu_f;
    case ExprFn::gelu_tanh:
      return ExprOp::gelu_tanh_f;
    case ExprFn::relu:
      return ExprOp::relu_f;
    case ExprFn::softplus:
      return ExprOp::softplus_f;
    default:
      return std::nullopt;
  }
}

std::optional<ExprOp> rounding(ExprFn fn) {
  switch (fn) {
    case ExprFn::floor:
      return ExprOp::floor_f;
    case ExprFn::ceil:
      return ExprOp::ceil_f;
    case ExprFn::round:
      return ExprOp::round_f;
    default:
      return std::nullopt;
  }
}

std::optional<ExprOp> logical(ExprFn fn) {
  switch (fn) {
    case ExprFn::logical_and:
      return ExprOp::and_i;
    case ExprFn::logical_or:
      return ExprOp::or_i;
    case ExprFn::logical_not:
      return ExprOp::not_i;
    default:
      return std::nullopt;
  }
}

/// A value of the code being made: virtual register (index of the instruction that sets it) and its class.
struct Value {
  std::uint32_t reg = 0;
  bool is_float = true;
};

/// Instruction on virtual registers; `reads` of a, b, c say which fields are registers.
struct Virtual {
  ExprOp op;
  std::uint32_t a = 0, b = 0, c = 0;
  std::uint8_t reads = 0;
};

class CodeBuilder {
 public:
  CodeBuilder(const spec::ElementExpr& expr, std::span<const wire::Dtype> args, std::size_t rank)
      : expr_(expr), args_(args), rank_(rank) {}

  Result<std::vector<ExprInstr>> build(wire::Dtype out);

 private:
  std::uint32_t emit(ExprOp op, std::uint8_t reads, std::uint32_t a = 0, std::uint32_t b = 0, std::uint32_t c = 0) {
    code_.push_back({op, a, b, c, reads});
    return static_cast<std::uint32_t>(code_.size() - 1);
  }
  std::uint32_t as_float(Value v) { return v.is_float ? v.reg : emit(ExprOp::f_from_i, 1, v.reg); }
  std::uint32_t as_int(Value v) { return v.is_float ? emit(ExprOp::i_from_f, 1, v.reg) : v.reg; }
  std::uint32_t as_bool(Value v);
  std::uint32_t zero_int() { return emit(ExprOp::const_i, 0); }

  std::optional<std::int64_t> folded(const ExprNode& node) const;
  std::optional<Value> leaf(const ExprNode& node);
  Value inner(const ExprNode& node);
  Value two_sided(const ExprNode& node, OpPair ops);
  Value converted(const ExprNode& node);
  Status check_constant(const ExprNode& node) const;
  Value fit_to(Value v, wire::Dtype out);
  Result<std::vector<ExprInstr>> allocate() const;

  const spec::ElementExpr& expr_;
  std::span<const wire::Dtype> args_;
  std::size_t rank_;
  std::vector<Virtual> code_;
  std::vector<Value> values_;
  std::vector<std::optional<std::int64_t>> folded_;  // per node
};

std::uint32_t CodeBuilder::as_bool(Value v) {
  if (v.is_float) {
    const std::uint32_t zero = emit(ExprOp::const_f, 0);
    return emit(ExprOp::ne_f, 3, v.reg, zero);
  }
  const std::uint32_t zero = zero_int();
  return emit(ExprOp::ne_i, 3, v.reg, zero);
}

Status CodeBuilder::check_constant(const ExprNode& node) const {
  if (is_float(node.type)) return {};
  const bool fits =
      node.value >= std::numeric_limits<std::int32_t>::min() && node.value <= std::numeric_limits<std::int32_t>::max();
  return fits ? Status()
              : Status(ErrorCode::unsupported, "an integer constant of an expression needs more than 32 bits");
}

std::optional<Value> CodeBuilder::leaf(const ExprNode& node) {
  switch (node.fn) {
    case ExprFn::constant:
      if (is_float(node.type))
        return Value{emit(ExprOp::const_f, 0, 0, 0, std::bit_cast<std::uint32_t>(static_cast<float>(node.value))),
                     true};
      return Value{emit(ExprOp::const_i, 0, 0, 0, static_cast<std::uint32_t>(static_cast<std::int32_t>(node.value))),
                   false};
    case ExprFn::argument: {
      const bool f = node.index < args_.size() ? wire::dtype_is_float(args_[node.index]) : is_float(node.type);
      return Value{emit(f ? ExprOp::arg_f : ExprOp::arg_i, 0, 0, 0, node.index), f};
    }
    case ExprFn::index:
      return Value{emit(ExprOp::index_i, 0, 0, 0, static_cast<std::uint32_t>(node.index + wire::kMaxRank - rank_)),
                   false};
    default:
      return std::nullopt;
  }
}

Value CodeBuilder::two_sided(const ExprNode& node, OpPair ops) {
  Value a = values_[node.a], b = node.b == spec::kNone ? a : values_[node.b];
  const bool f = a.is_float || b.is_float;
  const bool unary = node.b == spec::kNone;
  const bool compare = node.type == ScalarType::boolean;
  const std::uint32_t ra = f ? as_float(a) : a.reg;
  if (unary) return {emit(f ? ops.f : ops.i, 1, ra), f};
  const std::uint32_t rb = f ? as_float(b) : b.reg;
  const bool swap = node.fn == ExprFn::gt || node.fn == ExprFn::ge;
  return {emit(f ? ops.f : ops.i, 3, swap ? rb : ra, swap ? ra : rb), f && !compare};
}

Value CodeBuilder::converted(const ExprNode& node) {
  const Value a = values_[node.a];
  if (node.fn == ExprFn::to_f32) return {as_float(a), true};
  if (node.fn == ExprFn::to_bool) return {as_bool(a), false};
  return {as_int(a), false};
}

Value CodeBuilder::inner(const ExprNode& node) {
  if (const auto ops = arithmetic(node.fn)) return two_sided(node, *ops);
  if (const auto op = float_only(node.fn)) {
    const std::uint32_t a = as_float(values_[node.a]);
    if (node.b == spec::kNone) return {emit(*op, 1, a), true};
    const std::uint32_t b = as_float(values_[node.b]);
    return {emit(*op, 3, a, b), true};
  }
  if (const auto op = rounding(node.fn)) {
    const Value a = values_[node.a];
    return a.is_float ? Value{emit(*op, 1, a.reg), true} : a;  // integers are whole already
  }
  if (const auto op = logical(node.fn)) {
    const std::uint32_t a = values_[node.a].is_float ? as_bool(values_[node.a]) : values_[node.a].reg;
    if (node.b == spec::kNone) return {emit(*op, 1, a), false};
    const std::uint32_t b = values_[node.b].is_float ? as_bool(values_[node.b]) : values_[node.b].reg;
    return {emit(*op, 3, a, b), false};
  }
  if (node.fn == ExprFn::select) {
    const Value cond = values_[node.a], b = values_[node.b], c = values_[node.c];
    const bool f = b.is_float || c.is_float;
    const std::uint32_t rc = cond.is_float ? as_bool(cond) : cond.reg;
    const std::uint32_t rb = f ? as_float(b) : b.reg, re = f ? as_float(c) : c.reg;
    return {emit(f ? ExprOp::select_f : ExprOp::select_i, 7, rc, rb, re), f};
  }
  return converted(node);
}

Value CodeBuilder::fit_to(Value v, wire::Dtype out) {
  if (wire::dtype_is_float(out)) return {as_float(v), true};
  if (out == wire::Dtype::boolean && v.is_float) return {as_bool(v), false};
  return {as_int(v), false};
}

/// The value of an integer node that follows from constants, as `i + 1` in a pass of a loop; none if it needs more than 32 bits.
std::optional<std::int64_t> CodeBuilder::folded(const ExprNode& node) const {
  if (is_float(node.type)) return std::nullopt;
  const auto fit = [](std::int64_t value) { return value == static_cast<std::int32_t>(value) ? std::optional(value) : std::nullopt; };
  if (node.fn == ExprFn::constant) return check_constant(node).ok() ? fit(static_cast<std::int64_t>(node.value)) : std::nullopt;
  if (node.a == spec::kNone || !folded_[node.a]) return std::nullopt;
  const std::int64_t a = *folded_[node.a];
  if (node.fn == ExprFn::neg) return fit(-a);
  if (node.b == spec::kNone || !folded_[node.b]) return std::nullopt;
  const std::int64_t b = *folded_[node.b];
  switch (node.fn) {
    case ExprFn::add: return fit(a + b);
    case ExprFn::sub: return fit(a - b);
    case ExprFn::mul: return fit(a * b);
    default: return std::nullopt;
  }
}

Result<std::vector<ExprInstr>> CodeBuilder::build(wire::Dtype out) {
  for (const ExprNode& node : expr_.nodes) folded_.push_back(folded(node));
  std::vector<bool> needed(expr_.nodes.size(), false);
  needed.back() = true;
  for (std::size_t i = expr_.nodes.size(); i-- > 0;) {
    if (!needed[i] || folded_[i]) continue;
    for (const std::uint32_t child : {expr_.nodes[i].a, expr_.nodes[i].b, expr_.nodes[i].c})
      if (child != spec::kNone) needed[child] = true;
  }
  values_.resize(expr_.nodes.size());
  for (std::size_t i = 0; i < expr_.nodes.size(); ++i) {
    if (!needed[i]) continue;
    const ExprNode& node = expr_.nodes[i];
    if (folded_[i]) {
      values_[i] = {emit(ExprOp::const_i, 0, 0, 0, static_cast<std::uint32_t>(static_cast<std::int32_t>(*folded_[i]))), false};
      continue;
    }
    if (node.fn == ExprFn::constant) CCKS_RETURN_IF_ERROR(check_constant(node));
    const auto value = leaf(node);
    values_[i] = value ? *value : inner(node);
  }
  fit_to(values_.back(), out);
  return allocate();
}

/// Every value is defined once; its register is free again after its last reader.
Result<std::vector<ExprInstr>> CodeBuilder::allocate() const {
  const std::size_t n = code_.size();
  std::vector<std::size_t> last(n, 0);
  const auto fields = [](const Virtual& v) { return std::array<std::uint32_t, 3>{v.a, v.b, v.c}; };
  for (std::size_t i = 0; i < n; ++i)
    for (int k = 0; k < 3; ++k)
      if (code_[i].reads >> k & 1) last[fields(code_[i])[static_cast<std::size_t>(k)]] = i;
  std::vector<std::uint8_t> home(n, 0);
  std::uint32_t busy = 0;  // one bit a register
  std::vector<ExprInstr> out;
  for (std::size_t i = 0; i < n; ++i) {
    const Virtual& v = code_[i];
    std::array<std::uint32_t, 3> f = fields(v);
    for (std::size_t k = 0; k < 3; ++k) {
      if (!(v.reads >> k & 1)) continue;
      const std::uint32_t source = f[k];
      f[k] = home[source];
      if (last[source] == i) busy &= ~(1u << home[source]);
    }
    const int free = std::countr_one(busy);
    if (free >= static_cast<int>(wire::kMaxExprRegisters))
      return {ErrorCode::unsupported, "the expression keeps more than 32 values at once; split it into two ops"};
    home[i] = static_cast<std::uint8_t>(free);
    busy |= 1u << free;
    if (last[i] == 0 && i + 1 != n) busy &= ~(1u << free);
    out.push_back({static_cast<std::uint8_t>(v.op), home[i], static_cast<std::uint8_t>(f[0]),
                   static_cast<std::uint8_t>(f[1]), f[2]});
  }
  return out;
}

}  // namespace

Result<std::vector<ExprInstr>> compile_element_expr(const spec::ElementExpr& expr, std::span<const wire::Dtype> args,
                                                    wire::Dtype out, std::size_t rank) {
  if (!expr.empty()) return CodeBuilder(expr, args, rank).build(out);
  const bool to_bool = !args.empty() && out == wire::Dtype::boolean && args[0] != out;
  if (args.empty() || (wire::dtype_is_float(args[0]) == wire::dtype_is_float(out) && !to_bool))
    return std::vector<ExprInstr>{};
  spec::ElementExpr identity;
  ExprNode argument;
  argument.fn = ExprFn::argument;
  argument.type = wire::dtype_is_float(args[0]) ? ScalarType::f32 : ScalarType::i64;
  identity.nodes.push_back(argument);
  if (to_bool) {
    ExprNode convert;
    convert.fn = ExprFn::to_bool;
    convert.type = ScalarType::boolean;
    convert.a = 0;
    identity.nodes.push_back(convert);
  }
  return CodeBuilder(identity, args, rank).build(out);
}

}  // namespace ccks::codegen

// emit_bodies: ops of equal kind, code and dtypes share one instantiation.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "codegen/emit_sources.hpp"
#include "codegen/emit_text.hpp"

namespace ccks::codegen {
namespace {

// In the order of wire::ExprOp.
constexpr const char* kExprOps[] = {
    "const_f",  "const_i",   "arg_f",    "arg_i",   "index_i",     "add_f",   "sub_f",      "mul_f",  "div_f",
    "mod_f",    "min_f",     "max_f",    "pow_f",   "add_i",       "sub_i",   "mul_i",      "div_i",  "mod_i",
    "min_i",    "max_i",     "neg_f",    "abs_f",   "floor_f",     "ceil_f",  "round_f",    "sign_f", "neg_i",
    "abs_i",    "sign_i",    "exp_f",    "log_f",   "sqrt_f",      "rsqrt_f", "sin_f",      "cos_f",  "tanh_f",
    "erf_f",    "sigmoid_f", "silu_f",   "gelu_f",  "gelu_tanh_f", "relu_f",  "softplus_f", "lt_f",   "le_f",
    "eq_f",     "ne_f",      "lt_i",     "le_i",    "eq_i",        "ne_i",    "and_i",      "or_i",   "not_i",
    "select_f", "select_i",  "f_from_i", "i_from_f"};
static_assert(std::size(kExprOps) == static_cast<std::size_t>(wire::ExprOp::i_from_f) + 1);

const char* dtype_enumerator(wire::Dtype t) { return t == wire::Dtype::boolean ? "boolean" : wire::dtype_name(t); }

bool is_constant(const wire::ExprInstr& in) {
  const auto op = static_cast<wire::ExprOp>(in.op);
  return op == wire::ExprOp::const_f || op == wire::ExprOp::const_i;
}

/// `of_frame`: constants stand in the frame, so that ops of equal code but for those have one type.
std::string code_type(std::span<const wire::ExprInstr> code, bool of_frame = false) {
  std::string text = "Code<";
  for (std::size_t i = 0; i < code.size(); ++i) {
    const wire::ExprInstr& in = code[i];
    if (of_frame && is_constant(in)) {
      text += fmt::format("{}FrameConst<ExprOp::{}, {}, {}>", i ? ", " : "", kExprOps[in.op], in.dst, i);
      continue;
    }
    text += fmt::format("{}Ins<ExprOp::{}, {}, {}, {}, {}u>", i ? ", " : "", kExprOps[in.op], in.dst, in.a, in.b, in.c);
  }
  return text + ">";
}

/// kind: TypedOp, ShapedOp (of `shape`), GroupedOp (whose blocks are as wide as `shape`), BlocksOp (and which operands move).
std::string op_type(const char* kind, const PlanImage& image, const plan::OpDesc& op, const std::string& shape = "", bool of_frame = false) {
  const std::span instructions = std::span(image.code).subspan(op.code_first, op.code_count);
  std::string code = code_type(instructions, of_frame);
  if (const std::int64_t twin = twin_dim(image, op); twin != 0) {
    const auto others = static_cast<std::size_t>(twin - 1);
    code = fmt::format("Twinned<{}, {}>", code_type(instructions.first(others)), code_type(instructions.subspan(others)));
  }
  if (norms_rows(image, op)) code = "Normed<" + code + ">";
  if (turns_heads(image, op)) code = "Roped<" + code + ">";
  std::string text = fmt::format("{}<OpCode::{}, {}", kind, spec::op_kind_name(static_cast<spec::OpKind>(op.kind)), code);
  if (!shape.empty()) text += ", " + shape;
  // What tiles of a matmul share is of the same types in each, and no body's.
  const std::uint32_t typed = op.input_count + (op.kind == wire::OpCode::matmul ? 1u : op.output_count);
  for (std::uint32_t k = 0; k < typed; ++k)
    text += fmt::format(", Dtype::{}", dtype_enumerator(image.operands[op.operand_first + k].dtype));
  return text + ">";
}

bool reserved(const std::string& name) {
  static const std::set<std::string> kNames = {
      "alignas", "alignof",  "and",      "asm",      "auto",      "bool",      "box",       "break",    "call",
      "case",    "catch",    "char",     "class",    "concept",   "const",     "constexpr", "continue", "decltype",
      "default", "delete",   "do",       "double",   "else",      "enum",      "explicit",  "export",   "extern",
      "false",   "float",    "for",      "for_each", "frame",     "friend",    "goto",      "if",       "inline",
      "int",     "lanes",    "long",     "mutable",  "namespace", "new",       "noexcept",  "not",      "nullptr",
      "op",      "operator", "or",       "out",      "private",   "protected", "public",    "register", "requires",
      "return",  "short",    "signed",   "sizeof",   "static",    "struct",    "switch",    "template", "this",
      "throw",   "tile",     "true",     "try",      "typedef",   "typename",  "union",     "unsigned", "using",
      "virtual", "void",     "volatile", "while",    "xor"};
  return kNames.contains(name) || identifier(name) != name || name[0] == '_' || name.find("__") != std::string::npos;
}

Result<std::string> custom_struct(const spec::CustomAttrs& attrs, const PlanImage& image, const plan::OpDesc& op,
                                  std::size_t number) {
  const auto refuse = [&](const std::string& why) {
    return Status(ErrorCode::invalid_data, fmt::format("op '{}': {}", op.name, why));
  };
  if (const Status code = check_inline_code(attrs.code); !code.ok()) return refuse(code.message());
  std::string operands;
  for (std::uint32_t k = 0; k < op.input_count; ++k) {
    const std::string& name = attrs.input_names[k];
    if (reserved(name)) return refuse(fmt::format("'{}' cannot name an input of inline code", name));
    operands += fmt::format("    [[maybe_unused]] const auto {} = custom_input<{}, Dtype::{}>(call);\n", name, k,
                            dtype_enumerator(image.operands[op.operand_first + k].dtype));
  }
  operands += fmt::format("    [[maybe_unused]] const auto out = custom_output<{}, Dtype::{}>(call);\n", op.input_count,
                          dtype_enumerator(image.operands[op.operand_first + op.input_count].dtype));
  return fill_template(template_text("custom_op.in"), {{"NUMBER", fmt::format("{}", number)},
                                                       {"OP", comment_text(op.name)},
                                                       {"OPERANDS", operands},
                                                       {"CODE", attrs.code},
                                                       {"OUTPUT", fmt::format("{}", op.input_count)}});
}

/// Maps whose constants are read from the frame, since several have the same body but for those: passes of a loop that use its index. A body each would have to be
/// compiled, and be read by a worker that comes to it, for each pass.
class SharedMaps {
 public:
  explicit SharedMaps(const PlanImage& image) : image_(image) {
    for (const plan::OpDesc& op : image.ops) {
      if (may_share(op)) types_[op_type("TypedOp", image, op, "", true)].insert(op_type("TypedOp", image, op));
    }
  }
  /// The type of `op`, which is no ShapedOp.
  std::string type(const plan::OpDesc& op) const {
    if (may_share(op)) {
      const std::string shared = op_type("TypedOp", image_, op, "", true);
      if (types_.at(shared).size() > 1) return shared;
    }
    return op_type("TypedOp", image_, op);
  }

 private:
  bool may_share(const plan::OpDesc& op) const {
    const auto code = std::span(image_.code).subspan(op.code_first, op.code_count);
    return op.kind == wire::OpCode::map && std::any_of(code.begin(), code.end(), is_constant);
  }
  const PlanImage& image_;
  std::map<std::string, std::set<std::string>> types_;  // with constants of the frame: those with constants of their own
};

/// Collects bodies, equal ones once.
class BodyList {
 public:
  Result<std::uint16_t> add(const std::string& type, std::string custom, const char* op) {
    const auto [at, fresh] = known_.try_emplace(type, static_cast<std::uint16_t>(bodies.count));
    if (!fresh) return at->second;
    if (bodies.count == 0xffff) return Status(ErrorCode::unsupported, "a program has at most 65535 different ops");
    bodies.aliases += fmt::format("using Op{} = {};  // {}\n", bodies.count, type, comment_text(op));
    bodies.cases +=
        fmt::format("      case {}: return Op{}::run(lanes, frame, op, tile);\n", bodies.count, bodies.count);
    bodies.list.push_back({type, std::move(custom)});
    ++bodies.count;
    return at->second;
  }

  Bodies bodies;

 private:
  std::map<std::string, std::uint16_t> known_;
};

}  // namespace

Result<Bodies> emit_bodies(const spec::Program& program, const PlanImage& image, bool allow_inline, BodyShapes shapes) {
  BodyList all;
  const SharedMaps maps(image);
  all.bodies.scratch_bytes = image.scratch_bytes;
  if (shapes == BodyShapes::fixed) all.bodies.rows_handed_on = rows_handed_on(image), all.bodies.routed_rows = routed_rows(image);
  for (std::size_t i = 0; i < image.ops.size(); ++i) {
    const plan::OpDesc& op = image.ops[i];
    all.bodies.decides |= op.guard_count > 0 || op.dynamic_report != plan::kNone;
    const auto* custom = std::get_if<spec::CustomAttrs>(&program.ops[image.spec_ops[i]].attrs);
    const bool fixed = shapes == BodyShapes::fixed && !custom;
    const TakesGroups groups = custom ? TakesGroups{} : takes_groups(image, op);
    const OpShape shape = fixed && !groups.always ? shape_of_op(image, op) : OpShape{};
    const auto grouped_type = [&] {
      if (!groups.blocks) return op_type("GroupedOp", image, op, fmt::format("{}u", groups.columns));
      return op_type("BlocksOp", image, op, fmt::format("{}u, {}u", groups.columns, groups.moves));
    };
    const bool one_shape = !shape.typical && !shape.text.empty();
    std::string type = custom          ? fmt::format("Custom{}", all.bodies.count)
                       : groups.always ? grouped_type()
                       : one_shape     ? op_type("ShapedOp", image, op, shape.text)
                                       : maps.type(op);
    std::string code;
    if (custom) {
      if (!allow_inline)
        return Status(ErrorCode::invalid_argument,
                      fmt::format("op '{}' carries code, which is refused by default", op.name));
      Result<std::string> text = custom_struct(*custom, image, op, all.bodies.count);
      if (!text) return text.status();
      all.bodies.custom += *text;
      code = std::move(*text);
    }
    const Result<std::uint16_t> any = all.add(type, std::move(code), op.name);
    if (!any) return any.status();
    const Result<std::uint16_t> typical = shape.typical ? all.add(op_type("ShapedOp", image, op, shape.text), "", op.name) : any;
    if (!typical) return typical.status();
    const Result<std::uint16_t> grouped = groups.ever && !groups.always ? all.add(grouped_type(), "", op.name) : any;
    if (!grouped) return grouped.status();
    all.bodies.of_op.push_back(*any);
    all.bodies.typical_of_op.push_back(*typical);
    all.bodies.groups_of_op.push_back(*grouped);
  }
  return std::move(all.bodies);
}

}  // namespace ccks::codegen

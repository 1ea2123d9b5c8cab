#include "spec/builder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "spec/view.hpp"

namespace ccks::spec {

std::optional<Expr> Builder::find_dim(std::string_view name) const {
  if (const auto index = scopes.find_index(name)) return Expr(*index);
  const auto it = dims.find(name);
  return it == dims.end() ? std::nullopt : std::optional(it->second);
}

std::vector<std::string> Builder::dim_names() const {
  std::vector<std::string> names = scopes.index_names();
  for (const auto& [name, value] : dims) names.push_back(name);
  return names;
}

std::string Builder::print(const Shape& s) const {
  std::string out = "[";
  for (std::size_t i = 0; i < s.size(); ++i) out += (i ? ", " : "") + print(s[i]);
  return out + "]";
}

std::string Builder::print_shape(const View& v) const { return print(shape_of(v)); }

namespace {

// A 126-layer model of 20 ops a layer takes 1 M; the whole budget takes about a second.
constexpr std::size_t kMaxEffort = 5'000'000;
constexpr std::size_t kEffortPerNode = 8;  // a proof visits each node a few times
constexpr std::size_t kBytesPerOp = 1000;
constexpr std::size_t kBytesPerExpr = 100;  // a node and its control block

std::size_t bytes_of(const View& v) {
  std::size_t n = sizeof(View);
  for (const ViewDim& d : v.dims) n += sizeof(ViewDim) + d.offset.weight() * kBytesPerExpr;
  return n;
}

std::size_t bytes_of(const Op& op) {
  std::size_t n = sizeof(Op) + 3 * op.name.size();
  for (const View& v : op.inputs) n += bytes_of(v);
  for (const View& v : op.outputs) n += bytes_of(v);
  if (const auto* map = std::get_if<MapAttrs>(&op.attrs)) n += map->expr.nodes.size() * sizeof(ExprNode);
  if (const auto* matmul = std::get_if<MatmulAttrs>(&op.attrs)) n += (matmul->epilogue.nodes.size() + (matmul->twin ? matmul->twin->nodes.size() : 0)) * sizeof(ExprNode);
  if (const auto* conv = std::get_if<Conv2dAttrs>(&op.attrs)) n += conv->epilogue.nodes.size() * sizeof(ExprNode);
  if (const auto* experts = std::get_if<ExpertMatmulAttrs>(&op.attrs))
    n += (experts->epilogue.nodes.size() + (experts->twin ? experts->twin->nodes.size() : 0)) * sizeof(ExprNode);
  if (const auto* combine = std::get_if<CombineAttrs>(&op.attrs)) n += combine->epilogue.nodes.size() * sizeof(ExprNode);
  if (const auto* custom = std::get_if<CustomAttrs>(&op.attrs)) n += custom->code.size();
  return n;
}

}  // namespace

bool Builder::spend(std::size_t effort, std::size_t bytes, const Span& where) {
  effort_ += effort;
  bytes_ += bytes;
  if (exhausted_) return false;
  if (effort_ <= kMaxEffort && bytes_ <= options.max_ops * kBytesPerOp) return true;
  exhausted_ = true;
  diagnostics.error(code::kTooManyOps, where, "the program grows too large", "look at the bounds of 'repeat'");
  return false;
}

void Builder::add_check(RuntimeCheck check, const Span& where) {
  const std::size_t key = check.lhs.hash() * 31 + check.rhs.hash() + static_cast<std::size_t>(check.relation);
  const auto [begin, end] = checks_by_hash_.equal_range(key);
  for (auto it = begin; it != end; ++it) {
    const RuntimeCheck& known = program.checks[it->second];
    if (known.relation == check.relation && known.lhs == check.lhs && known.rhs == check.rhs) return;
  }
  const std::size_t nodes = check.lhs.weight() + check.rhs.weight();
  if (!spend(0, sizeof check + check.message.size() + nodes * kBytesPerExpr, where)) return;
  checks_by_hash_.emplace(key, program.checks.size());
  program.checks.push_back(std::move(check));
}

bool Builder::require_equal(const Expr& a, const Expr& b, Code code, const Span& where, const std::string& message) {
  if (a == b) return true;
  if (!spend((a.weight() + b.weight()) * kEffortPerNode, 0, where)) return false;
  const Truth truth = equal(a, b);
  if (truth == Truth::unknown)
    add_check({RuntimeCheck::Relation::equal, a, b, message, where.location}, where);
  else if (truth == Truth::no)
    diagnostics.error(code, where, fmt::format("{} ({} == {} cannot hold)", message, print(a), print(b)));
  return truth != Truth::no;
}

bool Builder::require_less_equal(const Expr& a, const Expr& b, Code code, const Span& where,
                                 const std::string& message) {
  if (a == b) return true;
  if (!spend((a.weight() + b.weight()) * kEffortPerNode, 0, where)) return false;
  const Truth truth = prove_less_equal(a, b, program.symbols);
  if (truth == Truth::unknown)
    add_check({RuntimeCheck::Relation::less_equal, a, b, message, where.location}, where);
  else if (truth == Truth::no)
    diagnostics.error(code, where, fmt::format("{} ({} <= {} cannot hold)", message, print(a), print(b)));
  return truth != Truth::no;
}

TensorId Builder::add_tensor(Tensor tensor) {
  bytes_ += sizeof(Tensor) + 3 * tensor.name.size() + tensor.from.size() + tensor.shape.size() * kBytesPerExpr;
  tensor_names_.insert(tensor.name);
  program.tensors.push_back(std::move(tensor));
  return static_cast<TensorId>(program.tensors.size() - 1);
}

std::string Builder::unique_tensor_name(const std::string& name) {
  if (!tensor_name_taken(name)) return name;
  std::uint32_t& suffix = next_suffix_["tensor " + name];
  std::string candidate;
  do candidate = name + "@" + std::to_string(++suffix);
  while (tensor_name_taken(candidate));
  return candidate;
}

View Builder::whole_view(TensorId id) const {
  View v;
  v.tensor = id;
  const Shape& shape = program.tensors[id].shape;
  v.dims.reserve(shape.size());
  for (std::uint32_t i = 0; i < shape.size(); ++i) v.dims.push_back({shape[i], i, Expr(0), 1});
  return v;
}

TensorId Builder::root_of(TensorId id) const {
  const TensorId alias = program.tensors[id].alias_of;
  return alias == kNone ? id : alias;
}

void Builder::mark_written(TensorId id, bool always) {
  written_.insert(root_of(id));
  if (always) always_written_.insert(root_of(id));
}

bool Builder::check_in_place(const Op& op, const Span& where) {
  const bool elementwise = op.kind() == OpKind::map;
  for (const View& out : op.outputs) {
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const View& in = op.inputs[i];
      if (root_of(in.tensor) != root_of(out.tensor)) continue;
      // The same element read and then written by the same tile is fine: maps, and operands of an epilogue.
      const bool same_element = views_equal(in, out) && (elementwise || i >= fixed_inputs(op));
      if (same_element || views_disjoint(in, out, program.symbols)) continue;
      diagnostics.error(
          code::kReadsWhatItWrites, where,
          fmt::format("'{}' is read and overwritten by one op", program.tensors[root_of(out.tensor)].name),
          "write to a new name first, or to a window that the op does not read");
      return false;
    }
  }
  return true;
}

bool Builder::emit(Op op, const std::string& wanted, const Span& where, bool masks) {
  if (!check_in_place(op, where) || !check_counted(*this, op, masks, where) || !spend(0, bytes_of(op), where)) return false;
  op.location = where.location;
  op.condition = scopes.top().condition;
  op.name = wanted;
  if (!op_names_.insert(op.name).second) {
    std::uint32_t& suffix = next_suffix_["op " + wanted];
    do op.name = wanted + "@" + std::to_string(++suffix);
    while (!op_names_.insert(op.name).second);
  }
  for (const View& v : op.outputs) mark_written(v.tensor, op.condition == kNone);
  program.ops.push_back(std::move(op));
  return true;
}

bool Builder::count_work(const Span& where) {
  if (!spend(0, 0, where)) return false;
  if (++work_ <= options.max_ops && program.ops.size() <= options.max_ops) return true;
  exhausted_ = true;
  diagnostics.error(code::kTooManyOps, where, fmt::format("the program grows past {} ops", options.max_ops),
                    "look at the bounds of 'repeat'");
  return false;
}

Shape shape_of(const View& v) {
  Shape s;
  s.reserve(v.dims.size());
  for (const ViewDim& d : v.dims) s.push_back(d.extent);
  return s;
}

}  // namespace ccks::spec

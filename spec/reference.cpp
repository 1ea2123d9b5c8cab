// interpret: binds tensors, runs the ops in order, collects what came out.
#include "spec/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "spec/reference_internal.hpp"

namespace ccks::spec {
namespace {

using reference::Call;
using reference::Window;

// Above this a tensor is a mistake: no machine holds it in f64.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.size(); ++d) text += (d ? ", " : "") + std::to_string(shape[d]);
  return text + "]";
}

bool is_bound(TensorKind kind) {
  return kind == TensorKind::input || kind == TensorKind::weight || kind == TensorKind::state;
}

class Machine {
 public:
  Machine(const Program& program, std::span<const std::int64_t> dims)
      : program_(program), dims_(dims), storage_(program.tensors.size()), reported_(program.reports.size(), false) {}

  Status check_dims() const;
  Status bind(const TensorMap& bound);
  Status run();
  Result<TensorMap> collect() const;

 private:
  TensorId root(TensorId id) const {
    return program_.tensors[id].alias_of == kNone ? id : program_.tensors[id].alias_of;
  }
  Result<std::vector<std::int64_t>> shape_of(TensorId id) const;
  Status bind_tensor(TensorId id, const TensorMap& bound);
  Status resolve_dim(const ViewDim& dim, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides, Window& window) const;
  Status resolve(const View& view, Window& window);
  Status resolve_all(const Op& op, Call& call);
  std::int64_t rows_of(std::uint32_t counted) const;
  void leave_out_rows(const Op& op, Call& call) const;
  Status check_written(const Call& call) const;
  Result<bool> holds(std::uint32_t condition) const;
  Status run_op(const Op& op);
  Status dispatch(const Call& call);

  const Program& program_;
  std::span<const std::int64_t> dims_;
  std::vector<std::vector<double>> storage_;  // by TensorId; empty for aliases
  std::vector<bool> reported_;                // by report: its op has run
};

Status Machine::check_dims() const {
  if (dims_.size() != program_.symbols.size())
    return {ErrorCode::invalid_argument, "the program has " + std::to_string(program_.symbols.size()) + " dims, " +
                                             std::to_string(dims_.size()) + " are given"};
  for (std::size_t i = 0; i < dims_.size(); ++i) {
    const Symbol& symbol = program_.symbols[i];
    if (dims_[i] < symbol.range.lo || dims_[i] > symbol.range.hi)
      return {ErrorCode::out_of_range, "dim '" + symbol.name + "' is " + std::to_string(dims_[i]) + ", outside " +
                                           std::to_string(symbol.range.lo) + " to " + std::to_string(symbol.range.hi)};
  }
  for (const RuntimeCheck& check : program_.checks) {
    const auto lhs = check.lhs.evaluate(dims_), rhs = check.rhs.evaluate(dims_);
    const bool held = lhs && rhs && (check.relation == RuntimeCheck::Relation::equal ? *lhs == *rhs : *lhs <= *rhs);
    if (held) continue;
    const auto text = [](const std::optional<std::int64_t>& v) {
      return v ? std::to_string(*v) : std::string("undefined");
    };
    return {ErrorCode::out_of_range, check.message + " (" + text(lhs) + " against " + text(rhs) + ")"};
  }
  return {};
}

Result<std::vector<std::int64_t>> Machine::shape_of(TensorId id) const {
  const Tensor& tensor = program_.tensors[id];
  std::vector<std::int64_t> shape;
  std::int64_t count = 1;
  for (const Expr& dim : tensor.shape) {
    const auto extent = dim.evaluate(dims_);
    if (!extent || *extent < 0)
      return Status(ErrorCode::out_of_range, "tensor '" + tensor.name + "' has a dim without a value of at least 0");
    if (*extent != 0 && count > kMaxElements / *extent)
      return Status(ErrorCode::out_of_memory, "tensor '" + tensor.name + "' is too large");
    count *= *extent;
    shape.push_back(*extent);
  }
  return shape;
}

Status Machine::bind_tensor(TensorId id, const TensorMap& bound) {
  const Tensor& tensor = program_.tensors[id];
  const auto shape = shape_of(id);
  CCKS_RETURN_IF_ERROR(shape.status());
  std::size_t count = 1;
  for (const std::int64_t extent : *shape) count *= static_cast<std::size_t>(extent);
  if (!is_bound(tensor.kind)) {  // poison: reading what nobody wrote shows
    storage_[id].assign(count, std::numeric_limits<double>::quiet_NaN());
    return {};
  }
  const auto given = bound.find(tensor.name);
  if (given == bound.end()) {
    if (tensor.kind != TensorKind::state)
      return {ErrorCode::invalid_argument, "tensor '" + tensor.name + "' is missing"};
    storage_[id].assign(count, 0);
    return {};
  }
  if (given->second.shape != *shape || given->second.values.size() != count)
    return {ErrorCode::invalid_argument, "tensor '" + tensor.name + "' has the shape " +
                                             shape_text(given->second.shape) + ", the program says " +
                                             shape_text(*shape)};
  storage_[id] = given->second.values;
  for (double& v : storage_[id]) v = round_to(tensor.dtype, v);
  return {};
}

Status Machine::bind(const TensorMap& bound) {
  for (TensorId id = 0; id < program_.tensors.size(); ++id)
    if (program_.tensors[id].alias_of == kNone) CCKS_RETURN_IF_ERROR(bind_tensor(id, bound));
  for (TensorId id = 0; id < program_.tensors.size(); ++id) {
    const auto shape = shape_of(id);
    CCKS_RETURN_IF_ERROR(shape.status());
    std::size_t count = 1;
    for (const std::int64_t extent : *shape) count *= static_cast<std::size_t>(extent);
    if (count != storage_[root(id)].size())
      return {ErrorCode::out_of_range,
              "tensor '" + program_.tensors[id].name + "' has not as many elements as what it reshapes"};
  }
  return {};
}

Status Machine::resolve_dim(const ViewDim& dim, const std::vector<std::int64_t>& shape,
                            const std::vector<std::int64_t>& strides, Window& window) const {
  const auto extent = dim.extent.evaluate(dims_), offset = dim.offset.evaluate(dims_);
  if (!extent || *extent < 0) return {ErrorCode::out_of_range, "a view has no extent of at least 0"};
  window.extents.push_back(*extent);
  window.strides.push_back(dim.base_dim == kNone ? 0 : strides[dim.base_dim] * dim.step);
  if (dim.base_dim == kNone) return {};
  const std::int64_t base = shape[dim.base_dim];
  if (dim.step < 1 || !offset || *offset < 0 || *offset > base ||
      (*extent > 0 && (*offset >= base || (*extent - 1) > (base - 1 - *offset) / dim.step)))
    return {ErrorCode::out_of_range, "a view of " + std::to_string(*extent) + " from " +
                                         std::to_string(offset.value_or(-1)) + " in steps of " +
                                         std::to_string(dim.step) + " leaves a dim of " + std::to_string(base)};
  window.data += *offset * strides[dim.base_dim];
  return {};
}

Status Machine::resolve(const View& view, Window& window) {
  const auto shape = shape_of(view.tensor);
  CCKS_RETURN_IF_ERROR(shape.status());
  std::vector<std::int64_t> strides(shape->size(), 1);
  for (std::size_t d = shape->size(); d-- > 1;) strides[d - 1] = strides[d] * (*shape)[d];
  std::vector<bool> covered(shape->size(), false);
  window.data = storage_[root(view.tensor)].data();
  window.dtype = program_.tensors[view.tensor].dtype;
  std::vector<std::int64_t> last(shape->size(), 0);  // index of each dim; several view dims may share one
  for (const ViewDim& dim : view.dims) {
    if (dim.base_dim != kNone && dim.base_dim >= covered.size())
      return {ErrorCode::internal, "a view covers a dim that its tensor does not have"};
    CCKS_RETURN_IF_ERROR(resolve_dim(dim, *shape, strides, window));
    if (dim.base_dim == kNone) continue;
    covered[dim.base_dim] = true;
    last[dim.base_dim] += dim.offset.evaluate(dims_).value_or(0) + (window.extents.back() - 1) * dim.step;
  }
  for (std::size_t d = 0; d < covered.size(); ++d) {
    if (covered[d] && last[d] >= (*shape)[d] && window.count() > 0)
      return {ErrorCode::out_of_range, "index " + std::to_string(last[d]) + " is outside a dim of " + std::to_string((*shape)[d])};
    if (covered[d]) continue;
    const auto at = view.fixed[d].evaluate(dims_);
    if (!at || *at < 0 || *at >= (*shape)[d])
      return {ErrorCode::out_of_range,
              "index " + std::to_string(at.value_or(-1)) + " is outside a dim of " + std::to_string((*shape)[d])};
    window.data += *at * strides[d];
  }
  return {};
}

Status Machine::resolve_all(const Op& op, Call& call) {
  const auto add = [&](const View& view, std::vector<Window>& to) -> Status {
    const Status status = resolve(view, to.emplace_back());
    if (status.ok()) return {};
    return {status.code(),
            "op '" + op.name + "', tensor '" + program_.tensors[view.tensor].name + "': " + status.message()};
  };
  for (const View& view : op.inputs) CCKS_RETURN_IF_ERROR(add(view, call.in));
  for (const View& view : op.outputs) CCKS_RETURN_IF_ERROR(add(view, call.out));
  return {};
}

/// How many rows of a counted dim count.
std::int64_t Machine::rows_of(std::uint32_t counted) const {
  const CountedDim& dim = program_.counted[counted];
  const std::vector<double>& count = storage_[root(program_.reports[dim.report].tensor)];
  const double most = static_cast<double>(dim.most.evaluate(dims_).value_or(0));
  return static_cast<std::int64_t>(count.empty() || !(count[0] > 0) ? 0 : std::min(count[0], most));
}

// Rows that do not count hold what nobody should read: NaN, or what no index is.
void Machine::leave_out_rows(const Op& op, Call& call) const {
  const auto cut = [&](const View& view, Window& window, bool poison) {
    if (view.dims.empty() || view.dims[0].counted == kNone) return;
    const std::int64_t all = window.extents[0], rows = std::min(all, rows_of(view.dims[0].counted));
    if (poison && rows < all) {
      Window behind = window;
      behind.data += rows * window.strides[0];
      behind.extents[0] = all - rows;
      const double nothing = wire::dtype_is_float(window.dtype) ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<std::int32_t>::min();
      reference::write(behind, std::vector<double>(static_cast<std::size_t>(behind.count()), nothing));
    }
    window.extents[0] = rows;
  };
  for (std::size_t k = 0; k < op.outputs.size(); ++k) cut(op.outputs[k], call.out[k], true);
  for (std::size_t k = 0; k < op.inputs.size(); ++k) cut(op.inputs[k], call.in[k], false);
}

// Floats carry the poison along as NaN; ints cannot, so reading one that nobody wrote stops here.
Status Machine::check_written(const Call& call) const {
  for (std::size_t k = 0; k < call.in.size(); ++k) {
    if (wire::dtype_is_float(call.in[k].dtype) || (call.op.kind() == OpKind::select && k != (call.taken ? 0u : 1u)))
      continue;
    for (const double v : reference::read(call.in[k]))
      if (std::isnan(v))
        return {ErrorCode::internal, "op '" + call.op.name + "' reads elements of '" +
                                         program_.tensors[call.op.inputs[k].tensor].name +
                                         "' that nothing has written"};
  }
  return {};
}

Result<bool> Machine::holds(std::uint32_t condition) const {
  const Condition& c = program_.conditions[condition];
  if (c.parent != kNone) {
    const auto parent = holds(c.parent);
    if (!parent.ok() || !*parent) return parent;
  }
  const Report& report = program_.reports[c.report];
  if (!reported_[c.report])
    return Status(ErrorCode::internal, "a condition reads report '" + report.name + "' before it is made");
  const std::vector<double>& reported = storage_[root(report.tensor)];
  if (reported.empty())
    return Status(ErrorCode::out_of_range, "a condition reads report '" + report.name + "', which has no elements");
  const double value = reported[0];
  switch (c.cmp) {
    case Condition::Cmp::eq:
      return value == c.value;
    case Condition::Cmp::ne:
      return value != c.value;
    case Condition::Cmp::lt:
      return value < c.value;
    case Condition::Cmp::le:
      return value <= c.value;
    case Condition::Cmp::gt:
      return value > c.value;
    case Condition::Cmp::ge:
      return value >= c.value;
  }
  return false;
}

Status Machine::run_op(const Op& op) {
  if (op.condition != kNone) {
    const auto held = holds(op.condition);
    CCKS_RETURN_IF_ERROR(held.status());
    if (!*held) return {};
  }
  Call call{op, dims_, {}, {}, true};
  if (const auto* attrs = std::get_if<SelectAttrs>(&op.attrs)) {
    const auto held = holds(attrs->condition);
    CCKS_RETURN_IF_ERROR(held.status());
    call.taken = *held;
  }
  CCKS_RETURN_IF_ERROR(resolve_all(op, call));
  leave_out_rows(op, call);
  if (!call.out.empty() && call.out[0].rank() > 0 && op.outputs[0].dims[0].counted != kNone && call.out[0].extents[0] == 0) return {};
  CCKS_RETURN_IF_ERROR(check_written(call));
  CCKS_RETURN_IF_ERROR(dispatch(call));
  if (const auto* attrs = std::get_if<ReportAttrs>(&op.attrs)) reported_[attrs->report] = true;
  return {};
}

// One overload per op kind.
struct Runner {
  const Call& call;
  Status operator()(const MapAttrs& a) const { return run_map(call, a.expr); }
  Status operator()(const ReduceAttrs& a) const { return run_reduce(call, a); }
  Status operator()(const SoftmaxAttrs& a) const { return run_softmax(call, a); }
  Status operator()(const RmsnormAttrs& a) const { return run_rmsnorm(call, a); }
  Status operator()(const LayernormAttrs& a) const { return run_layernorm(call, a); }
  Status operator()(const MatmulAttrs& a) const { return run_matmul(call, a); }
  Status operator()(const AttentionAttrs& a) const { return run_attention(call, a); }
  Status operator()(const RopeAttrs& a) const { return run_rope(call, a); }
  Status operator()(const GatherAttrs&) const { return run_gather(call); }
  Status operator()(const ScatterAttrs&) const { return run_scatter(call); }
  Status operator()(const ArgmaxAttrs&) const { return run_argmax(call); }
  Status operator()(const TopkAttrs& a) const { return run_topk(call, a); }
  Status operator()(const Conv2dAttrs& a) const { return run_conv2d(call, a); }
  Status operator()(const RouteAttrs& a) const { return run_route(call, a); }
  Status operator()(const ExpertMatmulAttrs& a) const { return run_expert_matmul(call, a); }
  Status operator()(const CombineAttrs& a) const { return run_combine(call, a); }
  Status operator()(const ReportAttrs&) const { return run_report(call); }
  Status operator()(const SelectAttrs&) const { return run_select(call); }
  Status operator()(const CustomAttrs& a) const {
    if (!a.reference.empty()) return run_map(call, a.reference);
    return {ErrorCode::unsupported, "op '" + call.op.name + "' is custom code without a reference expression"};
  }
};

struct Arity {
  std::size_t inputs, outputs;
};  // the least of each that the kind needs

Arity arity(const Op& op) {
  switch (op.kind()) {
    case OpKind::map:
    case OpKind::custom:
      return {0, 1};
    case OpKind::matmul: {
      const auto& a = std::get<MatmulAttrs>(op.attrs);
      return {2u + (a.norm ? 1u : 0u) + (a.rope ? 1u : 0u) + (a.twin ? 1u : 0u), 1};
    }
    case OpKind::rmsnorm:
    case OpKind::gather:
    case OpKind::scatter:
    case OpKind::conv2d:
    case OpKind::select:
      return {2, 1};
    case OpKind::layernorm:
      return {std::get<LayernormAttrs>(op.attrs).has_bias ? 3u : 2u, 1};
    case OpKind::rope:
      return {std::get<RopeAttrs>(op.attrs).has_positions ? 2u : 1u, 1};
    case OpKind::attention:
    case OpKind::combine:
      return {3, 1};
    case OpKind::expert_matmul:
      return {4u + (std::get<ExpertMatmulAttrs>(op.attrs).twin ? 1u : 0u), 1};
    case OpKind::topk:
      return {1, 2};
    case OpKind::route:
      return {1, 5};
    default:
      return {1, 1};
  }
}

Status Machine::dispatch(const Call& call) {
  const Arity needed = arity(call.op);
  if (call.in.size() < needed.inputs || call.out.size() < needed.outputs) return call.misshapen("has too few operands");
  return std::visit(Runner{call}, call.op.attrs);
}

Status Machine::run() {
  for (const Op& op : program_.ops) CCKS_RETURN_IF_ERROR(run_op(op));
  return {};
}

Result<TensorMap> Machine::collect() const {
  TensorMap out;
  const auto add = [&](TensorId id) -> Status {
    auto shape = shape_of(id);
    CCKS_RETURN_IF_ERROR(shape.status());
    const std::uint32_t counted = program_.tensors[id].counted;
    out[program_.tensors[id].name] = {*std::move(shape), storage_[root(id)], counted == kNone ? -1 : rows_of(counted)};
    return {};
  };
  for (TensorId id = 0; id < program_.tensors.size(); ++id) {
    const TensorKind kind = program_.tensors[id].kind;
    if (kind == TensorKind::output || kind == TensorKind::state) CCKS_RETURN_IF_ERROR(add(id));
  }
  for (const Report& report : program_.reports) CCKS_RETURN_IF_ERROR(add(report.tensor));
  return out;
}

}  // namespace

Result<TensorMap> interpret(const Program& program, std::span<const std::int64_t> dims, const TensorMap& bound) {
  try {
    Machine machine(program, dims);
    CCKS_RETURN_IF_ERROR(machine.check_dims());
    CCKS_RETURN_IF_ERROR(machine.bind(bound));
    CCKS_RETURN_IF_ERROR(machine.run());
    return machine.collect();
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::out_of_memory, "the reference interpreter ran out of memory");
  }
}

}  // namespace ccks::spec

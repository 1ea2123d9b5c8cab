// check_operands: operand descriptors against the views of the program; tensors in their spaces.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "codegen/check_model.hpp"
#include "codegen/plan_split.hpp"

namespace ccks::codegen::check {
namespace {

/// A view with numbers in it, in elements.
struct Shape {
  std::vector<std::int64_t> extent, stride;
  std::int64_t offset = 0;
};

std::optional<Shape> concrete(const Model& m, const spec::View& view) {
  const spec::Tensor& tensor = m.program->tensors[view.tensor];
  std::vector<std::int64_t> strides(tensor.shape.size(), 1);
  for (std::size_t d = strides.size(); d-- > 1;) {
    const auto extent = tensor.shape[d].evaluate(m.symbols);
    if (!extent) return std::nullopt;
    strides[d - 1] = strides[d] * *extent;
  }
  Shape shape;
  std::array<bool, spec::kMaxRank> covered{};
  for (const spec::ViewDim& dim : view.dims) {
    const auto extent = dim.extent.evaluate(m.symbols), offset = dim.offset.evaluate(m.symbols);
    if (!extent || (dim.base_dim != spec::kNone && !offset)) return std::nullopt;
    shape.extent.push_back(*extent);
    shape.stride.push_back(dim.base_dim == spec::kNone ? 0 : strides[dim.base_dim] * dim.step);
    if (dim.base_dim == spec::kNone) continue;
    covered[dim.base_dim] = true;
    shape.offset += *offset * strides[dim.base_dim];
  }
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (covered[d]) continue;
    const auto at = view.fixed[d].evaluate(m.symbols);
    if (!at) return std::nullopt;
    shape.offset += *at * strides[d];
  }
  return shape;
}

/// Makes dims [from, to) one; false where they do not lie without gaps.
bool flatten(Shape& s, std::size_t from, std::size_t to) {
  std::int64_t extent = 1, stride = 0;
  for (std::size_t d = to; d-- > from;) {
    if (s.extent[d] != 1) {
      if (stride == 0 && extent == 1)
        stride = s.stride[d];
      else if (s.stride[d] != stride * extent && s.extent[d] != 0 && extent != 0)
        return false;
    }
    extent *= s.extent[d];
  }
  const auto cut = [&](std::vector<std::int64_t>& v, std::int64_t value) {
    v.erase(v.begin() + static_cast<std::ptrdiff_t>(from), v.begin() + static_cast<std::ptrdiff_t>(to));
    v.insert(v.begin() + static_cast<std::ptrdiff_t>(from), value);
  };
  cut(s.extent, extent);
  cut(s.stride, stride);
  return true;
}

/// The forms of wire/op_layout.hpp that differ from the view.
bool to_layout(const spec::Op& op, std::size_t k, Shape& s) {
  const bool output = k >= op.inputs.size();
  if (const auto* reduce = std::get_if<spec::ReduceAttrs>(&op.attrs); reduce && output && !reduce->keepdims) {
    for (const std::uint32_t axis : reduce->axes) {
      s.extent.insert(s.extent.begin() + axis, 1);
      s.stride.insert(s.stride.begin() + axis, 0);
    }
  }
  if (op.kind() == spec::OpKind::gather) {
    const std::size_t index_rank = op.inputs[1].dims.size();
    if (k == 1) return flatten(s, 0, s.extent.size());
    const std::size_t rows = k == 0 ? 1 : index_rank;
    return flatten(s, rows, s.extent.size()) && flatten(s, 0, rows);
  }
  if (op.kind() == spec::OpKind::scatter && k != 1) return flatten(s, 1, s.extent.size()) && flatten(s, 0, 1);
  if (op.kind() == spec::OpKind::argmax && k == op.inputs.size()) {
    s.extent.push_back(1);
    s.stride.push_back(0);
  }
  return true;
}

std::optional<Operand> expected(const Model& m, const spec::Op& op, std::size_t k) {
  const spec::View& view = k < op.inputs.size() ? op.inputs[k] : op.outputs[k - op.inputs.size()];
  std::optional<Shape> shape = concrete(m, view);
  if (!shape || !to_layout(op, k, *shape) || shape->extent.size() > 4) return std::nullopt;
  const plan::TensorDesc& tensor = m.plan->tensors[view.tensor];
  Operand o{tensor.space, tensor.dtype, 0, 0, view.tensor, 0, {1, 1, 1, 1}, {}};
  o.offset = static_cast<std::int64_t>(tensor.offset) + shape->offset * o.element_bytes();
  const std::size_t missing = 4 - shape->extent.size();
  std::copy(shape->extent.begin(), shape->extent.end(), o.dim.begin() + static_cast<std::ptrdiff_t>(missing));
  std::copy(shape->stride.begin(), shape->stride.end(), o.stride.begin() + static_cast<std::ptrdiff_t>(missing));
  return o;
}

bool empty(const Operand& o) {
  return std::any_of(o.dim.begin(), o.dim.end(), [](std::int64_t d) { return d == 0; });
}

bool is_contiguous(const Operand& o) {
  std::int64_t next = 1;
  for (std::size_t d = 4; d-- > 0;) {
    if (o.dim[d] != 1 && o.stride[d] != next) return false;
    next *= o.dim[d];
  }
  return true;
}

std::string text(const Operand& o) {
  return fmt::format("{} at {} [{} {} {} {}] by [{} {} {} {}]", wire::dtype_name(o.dtype), o.offset, o.dim[0], o.dim[1],
                     o.dim[2], o.dim[3], o.stride[0], o.stride[1], o.stride[2], o.stride[3]);
}

/// Strides count only where there is a second element.
bool agree(const Operand& have, const Operand& want) {
  if (have.space != want.space || have.dtype != want.dtype || have.dim != want.dim) return false;
  if (empty(want)) return true;
  for (std::size_t d = 0; d < 4; ++d)
    if (want.dim[d] > 1 && have.stride[d] != want.stride[d]) return false;
  return have.offset == want.offset;
}

void check_operand(const Model& m, std::size_t op, std::size_t k, Faults& faults) {
  const Operand& have = m.operands_of(op)[k];
  const std::optional<Operand> want = expected(m, m.spec_op(op), k);
  if (!want)
    return faults.add("operand.view", fmt::format("op '{}': operand {} has no value here, or not the form its op needs",
                                                  m.name(op), k));
  const auto root = [&](std::uint32_t t) {
    const auto a = m.program->tensors[t].alias_of;
    return a == spec::kNone ? t : a;
  };
  if (!agree(have, *want) || root(have.tensor) != root(want->tensor))
    faults.add("operand.view",
               fmt::format("op '{}': operand {} is {}, the program says {}", m.name(op), k, text(have), text(*want)));
  if ((have.flags & wire::kOperandContiguous) && !empty(have) && !is_contiguous(have))
    faults.add("operand.flags", fmt::format("op '{}': operand {} is called contiguous and is not", m.name(op), k));
}

/// The tile space by wire/op_layout.hpp, from the program.
std::array<std::int64_t, 4> tile_space(const Model& m, std::size_t op) {
  const spec::Op& spec_op = m.spec_op(op);
  const bool found = spec_op.kind() == spec::OpKind::argmax || spec_op.kind() == spec::OpKind::topk;
  const bool by_input = found || spec_op.kind() == spec::OpKind::scatter;
  const std::optional<Operand> o = expected(m, spec_op, by_input ? 0 : spec_op.inputs.size());
  std::array<std::int64_t, 4> space = o ? o->dim : std::array<std::int64_t, 4>{};
  if (found) space[3] = shares_rows(spec_op) ? sharers_of(spec_op).evaluate(m.symbols).value_or(-1) : 1;
  if (is_split(spec_op)) space[0] = chunks_of(spec_op).evaluate(m.symbols).value_or(-1);
  return space;
}

}  // namespace

void check_operands(Model& m, Faults& faults) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const spec::Op& spec_op = m.spec_op(op);
    const plan::OpDesc& d = *m.ops[op].desc;
    if (d.input_count != spec_op.inputs.size() || d.output_count != spec_op.outputs.size()) {
      faults.add("operand.count",
                 fmt::format("op '{}' has {} inputs and {} outputs, the program says {} and {}", d.name, d.input_count,
                             d.output_count, spec_op.inputs.size(), spec_op.outputs.size()));
      return;
    }
    for (std::size_t k = 0; k < m.operands_of(op).size(); ++k) check_operand(m, op, k, faults);
    m.ops[op].space = tile_space(m, op);
  }
}

namespace {

/// Bytes of tensor `t` at these dims; nothing where its shape has no value or is not the declared one.
std::optional<std::int64_t> tensor_bytes(const Model& m, std::size_t t) {
  const plan::TensorDesc& d = m.plan->tensors[t];
  __int128 bytes = wire::dtype_bytes(d.dtype);
  for (std::size_t i = 0; i < d.rank; ++i) {
    const std::int64_t have = m.values[d.shape[i]];
    const auto want = m.program->tensors[t].shape[i].evaluate(m.symbols);
    if (!want || *want != have || have < 0) return std::nullopt;
    bytes *= have;
    if (bytes > INT64_MAX) return std::nullopt;
  }
  return static_cast<std::int64_t>(bytes);
}

struct Life {
  std::size_t tensor;
  std::uint64_t first_byte, end;  // at these dims
  std::int64_t from, to;          // plan ops, both inclusive; from > to: never
};

void touch(Life& life, std::size_t op) {
  life.from = std::min(life.from, static_cast<std::int64_t>(op));
  life.to = std::max(life.to, static_cast<std::int64_t>(op));
}

/// When each root tensor must keep its bytes, in plan ops.
std::vector<Life> lives(const Model& m, std::span<const std::int64_t> bytes) {
  const auto ops = static_cast<std::int64_t>(m.ops.size());
  std::vector<Life> out;
  for (std::size_t t = 0; t < bytes.size(); ++t) {
    const std::uint64_t first = m.plan->tensors[t].offset;
    Life life{t, first, first + static_cast<std::uint64_t>(bytes[t]), ops, -1};
    const spec::TensorKind kind = m.program->tensors[t].kind;
    if (kind == spec::TensorKind::output)
      life.to = ops;  // the client reads it
    else if (kind != spec::TensorKind::intermediate)
      life.from = -1, life.to = ops;  // and may bind it once for many runs
    out.push_back(life);
  }
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    for (const Operand& o : m.operands_of(op)) {
      const std::uint32_t alias = m.program->tensors[o.tensor].alias_of;
      touch(out[alias == spec::kNone ? o.tensor : alias], op);
    }
    for (const Access& access : accesses_of(m, op)) {
      if (access.operand != Access::kGuard) continue;
      for (const plan::ReportDesc& report : m.plan->reports)
        if (m.operands[report.operand].offset == access.guard_offset) touch(out[m.operands[report.operand].tensor], op);
    }
  }
  return out;
}

void check_disjoint(const Model& m, std::vector<Life> all, Faults& faults) {
  const auto space = [&](const Life& l) { return m.plan->tensors[l.tensor].space; };
  std::erase_if(all, [&](const Life& l) {
    return l.first_byte == l.end || l.from > l.to || m.program->tensors[l.tensor].alias_of != spec::kNone;
  });
  std::sort(all.begin(), all.end(), [&](const Life& a, const Life& b) {
    return space(a) != space(b) ? space(a) < space(b) : a.first_byte < b.first_byte;
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = i + 1; j < all.size() && space(all[j]) == space(all[i]) && all[j].first_byte < all[i].end;
         ++j) {
      if (all[i].to < all[j].from || all[j].to < all[i].from) continue;
      faults.add("memory.overlap",
                 fmt::format("tensors '{}' and '{}' share bytes while both are in use",
                             m.program->tensors[all[i].tensor].name, m.program->tensors[all[j].tensor].name));
    }
  }
}

}  // namespace

void check_tensors(const Model& m, Faults& faults) {
  std::vector<std::int64_t> bytes;
  for (std::size_t t = 0; t < m.plan->tensors.size(); ++t) {
    const plan::TensorDesc& d = m.plan->tensors[t];
    const std::optional<std::int64_t> now = tensor_bytes(m, t);
    if (!now) return faults.add("tensor.shape", fmt::format("tensor '{}' has not the declared shape", d.name));
    bytes.push_back(*now);
    const std::uint64_t size = d.space == wire::Space::arena     ? m.plan->arena_bytes
                               : d.space == wire::Space::weights ? m.plan->weight_bytes
                                                                 : m.plan->state_bytes;
    if (static_cast<std::uint64_t>(*now) > d.max_bytes || d.offset > size || d.max_bytes > size - d.offset)
      faults.add("tensor.bounds", fmt::format("tensor '{}' of {} bytes at {} leaves its {} bytes or its space", d.name,
                                              *now, d.offset, d.max_bytes));
    if (d.offset % wire::dtype_bytes(d.dtype) != 0)
      faults.add("tensor.align", fmt::format("tensor '{}' is not aligned", d.name));
    const std::uint32_t alias = m.program->tensors[t].alias_of;
    if (alias != spec::kNone && (m.plan->tensors[alias].offset != d.offset || m.plan->tensors[alias].space != d.space))
      faults.add("tensor.alias", fmt::format("tensor '{}' lies elsewhere than what it reshapes", d.name));
  }
  check_disjoint(m, lives(m, bytes), faults);
}

}  // namespace ccks::codegen::check

// What the race oracle knows of ops: which elements an output element is made of, and a hash for how.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "codegen/plan_image.hpp"
#include "spec/program.hpp"

namespace ccks::codegen::oracle {

using Index4 = std::array<std::int64_t, 4>;
using Hash = std::uint64_t;

inline Hash mix(Hash h, Hash v) {
  h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdu;
  return h ^ (h >> 33);
}
inline Hash hash_text(const std::string& text) {
  Hash h = 1469598103934665603u;
  for (const char c : text) h = mix(h, static_cast<unsigned char>(c));
  return h;
}

/// An operand as cells of its space.
struct Cells {
  int space = 0;
  std::int64_t base = 0;  // in cells
  Index4 dim{1, 1, 1, 1}, stride{};
  std::int64_t at(const Index4& i) const {
    return base + i[0] * stride[0] + i[1] * stride[1] + i[2] * stride[2] + i[3] * stride[3];
  }
};

struct Range4 {
  Index4 lo{}, hi{};
  auto operator<=>(const Range4&) const = default;
  template <class F>
  void each(F f) const {
    Index4 i{};
    for (i[0] = lo[0]; i[0] < hi[0]; ++i[0])
      for (i[1] = lo[1]; i[1] < hi[1]; ++i[1])
        for (i[2] = lo[2]; i[2] < hi[2]; ++i[2])
          for (i[3] = lo[3]; i[3] < hi[3]; ++i[3]) f(i);
  }
};

inline Range4 whole(const Cells& c) { return {{0, 0, 0, 0}, c.dim}; }

/// The row of x that a scatter writes to row `row` of its output, of `rows`, or the other way round: one of many ways an index may be.
inline std::int64_t scattered(std::int64_t rows, std::int64_t row) { return rows - 1 - row; }

/// What output element `o` of output `k` is made of: a range of operand `input`.
inline Range4 needs(const spec::Op& op, std::span<const Cells> in, std::size_t input, const Cells& out,
                    const Index4& o) {
  const Cells& c = in[input];
  Range4 one{o, {o[0] + 1, o[1] + 1, o[2] + 1, o[3] + 1}};
  const auto full = [&](std::size_t a) { one.lo[a] = 0, one.hi[a] = c.dim[a]; };
  using K = spec::OpKind;
  switch (op.kind()) {
    case K::map:
    case K::select:
      break;
    case K::softmax:
    case K::rmsnorm:
    case K::layernorm:
    case K::argmax:
    case K::topk:
      full(3);
      break;
    case K::reduce:
      for (const std::uint32_t axis : std::get<spec::ReduceAttrs>(op.attrs).axes)
        full(4 - op.inputs[0].dims.size() + axis);
      break;
    case K::matmul:
      if (input == 0)
        full(3);
      else if (input == 1 || (input == 2 && std::get<spec::MatmulAttrs>(op.attrs).twin))
        full(2);
      break;
    case K::attention: {
      const auto& a = std::get<spec::AttentionAttrs>(op.attrs);
      if (input >= 3) return {{0, 0, o[2], 0}, {1, 1, o[2] + 1, c.dim[3]}};  // limits, pages
      const std::int64_t d = in[0].dim[3] / a.heads;
      const std::int64_t head = o[3] / d, kv = head / (a.heads / a.kv_heads);
      one.lo[3] = (input == 0 ? head : kv) * d;
      one.hi[3] = one.lo[3] + d;
      if (input != 0)
        one.lo[2] = 0, one.hi[2] = a.causal ? std::min(c.dim[2], o[2] + c.dim[2] - in[0].dim[2] + 1) : c.dim[2];
      break;
    }
    case K::rope: {
      const auto& a = std::get<spec::RopeAttrs>(op.attrs);
      const std::int64_t d = out.dim[3] / a.heads, head = o[3] / d;
      if (input == 0)
        one.lo[3] = head * d, one.hi[3] = head * d + d;  // the pair lies in the head
      else
        return {{0, 0, 0, o[2]}, {1, 1, 1, o[2] + 1}};
      break;
    }
    case K::gather:
      if (input == 1) return {{0, 0, 0, o[2]}, {1, 1, 1, o[2] + 1}};
      full(2);
      break;
    case K::scatter: {
      const std::int64_t row = scattered(out.dim[2], o[2]);
      if (input == 1) return {{0, 0, 0, row}, {1, 1, 1, row + 1}};
      return {{0, 0, row, o[3]}, {1, 1, row + 1, o[3] + 1}};
    }
    case K::conv2d: {
      if (input >= 2) break;
      const auto& a = std::get<spec::Conv2dAttrs>(op.attrs);
      if (input == 1) return {{o[1], 0, 0, 0}, {o[1] + 1, c.dim[1], c.dim[2], c.dim[3]}};
      full(1);
      for (std::size_t i = 0; i < 2; ++i) {
        one.lo[2 + i] = std::max<std::int64_t>(0, o[2 + i] * a.stride[i] - a.padding[i]);
        one.hi[2 + i] = std::min<std::int64_t>(
            c.dim[2 + i], o[2 + i] * a.stride[i] - a.padding[i] + (in[1].dim[2 + i] - 1) * a.dilation[i] + 1);
      }
      break;
    }
    case K::expert_matmul:
      one = whole(c);
      if (input == 1 || input >= 4) one.lo[3] = o[3], one.hi[3] = o[3] + 1;
      if (input >= (std::get<spec::ExpertMatmulAttrs>(op.attrs).twin ? 5u : 4u) || (input == 0 && !std::get<spec::ExpertMatmulAttrs>(op.attrs).gather)) one.lo[2] = o[2], one.hi[2] = o[2] + 1;
      break;
    case K::combine:
      if (input == 0) full(2);
      if (input == 1 || input == 2) full(3);
      break;
    default:
      return whole(c);
  }
  for (std::size_t a = 0; a < 4; ++a)
    if (c.dim[a] == 1 && one.hi[a] > one.lo[a]) one.lo[a] = 0, one.hi[a] = 1;
  return one;
}

/// The concrete form of a program's view, on separate storage per tensor.
inline Cells cells_of_view(const spec::Program& p, const spec::Op& op, std::size_t k,
                           std::span<const std::int64_t> dims, const std::vector<std::int64_t>& bases) {
  const spec::View& v = k < op.inputs.size() ? op.inputs[k] : op.outputs[k - op.inputs.size()];
  const spec::Tensor& t = p.tensors[v.tensor];
  std::vector<std::int64_t> strides(t.shape.size(), 1), extent, stride;
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * *t.shape[d].evaluate(dims);
  Cells c;
  c.base = bases[t.alias_of == spec::kNone ? v.tensor : t.alias_of];
  std::set<std::uint32_t> covered;
  for (const spec::ViewDim& d : v.dims) {
    extent.push_back(*d.extent.evaluate(dims));
    stride.push_back(d.base_dim == spec::kNone ? 0 : strides[d.base_dim] * d.step);
    if (d.base_dim == spec::kNone) continue;
    covered.insert(d.base_dim);
    c.base += *d.offset.evaluate(dims) * strides[d.base_dim];
  }
  for (std::uint32_t d = 0; d < strides.size(); ++d)
    if (!covered.contains(d)) c.base += *v.fixed[d].evaluate(dims) * strides[d];
  if (const auto* r = std::get_if<spec::ReduceAttrs>(&op.attrs); r && k >= op.inputs.size() && !r->keepdims)
    for (const std::uint32_t axis : r->axes)
      extent.insert(extent.begin() + axis, 1), stride.insert(stride.begin() + axis, 0);
  if (op.kind() == spec::OpKind::argmax && k >= op.inputs.size()) extent.push_back(1), stride.push_back(0);
  // Gather programs for the oracle index a table of rank 2 with a list, which needs no flattening but that of the
  // index.
  for (std::size_t i = 0; i < extent.size(); ++i) {
    c.dim[4 - extent.size() + i] = extent[i];
    c.stride[4 - extent.size() + i] = stride[i];
  }
  return c;
}

/// How an op computes beyond what it reads: equal salts compute alike.
inline Hash salt_of(const PlanImage& image, const plan::OpDesc& op, std::span<const std::int64_t> values) {
  Hash h = hash_text(op.name);
  h = mix(h, static_cast<Hash>(op.kind));
  for (const plan::DimId d : op.dims) h = mix(h, static_cast<Hash>(values[d]));
  for (const float s : op.scalars) h = mix(h, static_cast<Hash>(static_cast<double>(s) * 1e9));
  for (std::uint32_t i = op.code_first; i < op.code_first + op.code_count; ++i) {
    const wire::ExprInstr& in = image.code[i];
    h = mix(mix(h, Hash{in.op} << 24 | Hash{in.dst} << 16 | Hash{in.a} << 8 | in.b), in.c);
  }
  return h;
}

/// Hashes of the output elements of one op. `read` gives the value of a cell; elements outside `written` are not asked
/// for.
template <class Read, class Emit>
void compute(const spec::Op& op, std::span<const Cells> operands, Hash salt, Read read, Emit emit) {
  const std::size_t inputs = op.inputs.size();
  std::vector<std::map<Range4, Hash>> known(inputs);
  const auto fold = [&](std::size_t k, const Range4& r) {
    if (r.hi[0] - r.lo[0] == 1 && r.hi[1] - r.lo[1] == 1 && r.hi[2] - r.lo[2] == 1 && r.hi[3] - r.lo[3] == 1)
      return mix(7, read(operands[k], r.lo));
    const auto found = known[k].find(r);
    if (found != known[k].end()) return found->second;
    Hash h = 7;
    r.each([&](const Index4& i) { h = mix(h, read(operands[k], i)); });
    return known[k].emplace(r, h).first->second;
  };
  for (std::size_t k = inputs; k < operands.size(); ++k) {
    whole(operands[k]).each([&](const Index4& o) {
      if (op.kind() == spec::OpKind::scatter && scattered(operands[k].dim[2], o[2]) >= operands[0].dim[2]) return;  // stays as it is
      Hash h = mix(salt, k - inputs);
      for (const std::int64_t i : o) h = mix(h, static_cast<Hash>(i));
      for (std::size_t in = 0; in < inputs; ++in) h = mix(h, fold(in, needs(op, operands, in, operands[inputs], o)));
      emit(k, o, h);
    });
  }
}

}  // namespace ccks::codegen::oracle

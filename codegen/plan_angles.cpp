// The table is a rope too, of pairs (1, 0): they become (cosine, sine), in f32 as a rope has them, so that results stay the same to the bit.
#include "codegen/plan_angles.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

namespace ccks::codegen {
namespace {

using spec::Expr;

/// Ropes that can share a table agree in all of it.
struct Angles {
  spec::RopeAttrs attrs;
  Expr rows;
  std::int64_t head_dim;
  std::vector<std::size_t> ops;
  spec::View positions = {};  // of attrs.has_positions: a whole input

  bool same(const Angles& o) const {
    const spec::RopeScaling &a = attrs.scaling, &b = o.attrs.scaling;
    if (attrs.has_positions != o.attrs.has_positions || (attrs.has_positions && positions.tensor != o.positions.tensor)) return false;
    return attrs.theta == o.attrs.theta && attrs.position == o.attrs.position && rows == o.rows && head_dim == o.head_dim &&
           a.factor == b.factor && a.low == b.low && a.high == b.high && a.original == b.original;
  }
};

/// Given with the run, so that it is there before all ops, and seen as it lies.
bool is_whole_input(const spec::Program& program, const spec::View& view) {
  const spec::Tensor& tensor = program.tensors[view.tensor];
  return tensor.kind == spec::TensorKind::input && tensor.shape.size() == 1 && view.dims.size() == 1 && view.dims[0].base_dim == 0 &&
         view.dims[0].offset == Expr(0) && view.dims[0].step == 1 && view.dims[0].extent == tensor.shape[0];
}

std::vector<Angles> find_angles(const spec::Program& program) {
  std::vector<Angles> found;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto* rope = std::get_if<spec::RopeAttrs>(&program.ops[i].attrs);
    if (rope == nullptr || rope->interleaved) continue;
    if (rope->has_positions && !is_whole_input(program, program.ops[i].inputs[1])) continue;
    const std::vector<spec::ViewDim>& dims = program.ops[i].inputs[0].dims;
    const auto width = dims.back().extent.as_constant();
    if (dims.size() < 2 || !width || *width % rope->heads != 0) continue;
    Angles own{*rope, dims[dims.size() - 2].extent, *width / rope->heads, {i}};
    if (rope->has_positions) own.positions = program.ops[i].inputs[1];
    if (own.head_dim < 2 || !std::has_single_bit(static_cast<std::uint64_t>(own.head_dim))) continue;
    const auto same = std::find_if(found.begin(), found.end(), [&](const Angles& a) { return a.same(own); });
    if (same == found.end())
      found.push_back(std::move(own));
    else
      same->ops.push_back(i);
  }
  std::erase_if(found, [](const Angles& a) { return a.ops.size() < 2; });
  return found;
}

class Tables {
 public:
  explicit Tables(spec::Program& program) : program_(program) {}

  void make(const Angles& angles, std::size_t number) {
    const std::string name = "rope.angles." + std::to_string(number);
    const spec::View pairs = tensor(name + ".pairs", angles), table = tensor(name, angles);
    for (const std::size_t op : angles.ops) {
      program_.ops[op].inputs.resize(1);
      program_.ops[op].inputs.push_back(table);
      std::get<spec::RopeAttrs>(program_.ops[op].attrs).has_positions = false;
    }
    spec::Op ones;
    ones.name = name + ".pairs";
    ones.attrs = spec::MapAttrs{one_then_zero(angles.head_dim / 2)};
    ones.outputs = {pairs};
    spec::Op turned;
    turned.name = name;
    turned.attrs = angles.attrs;
    std::get<spec::RopeAttrs>(turned.attrs).heads = 1;
    turned.inputs = {pairs};
    if (angles.attrs.has_positions) turned.inputs.push_back(angles.positions);
    turned.outputs = {table};
    made_.push_back(std::move(ones));
    made_.push_back(std::move(turned));
  }

  void put_in_front() {
    for (spec::Report& report : program_.reports) report.op += static_cast<spec::OpId>(made_.size());
    program_.ops.insert(program_.ops.begin(), std::make_move_iterator(made_.begin()), std::make_move_iterator(made_.end()));
  }

 private:
  spec::View tensor(const std::string& name, const Angles& angles) {
    spec::Tensor t;
    t.name = name;
    t.shape = {angles.rows, Expr(angles.head_dim)};
    spec::View all;
    all.tensor = static_cast<spec::TensorId>(program_.tensors.size());
    for (std::uint32_t d = 0; d < 2; ++d) all.dims.push_back({t.shape[d], d, 0, 1});
    program_.tensors.push_back(std::move(t));
    return all;
  }
  /// Of the last dim of two: 1 in its first `half`.
  static spec::ElementExpr one_then_zero(std::int64_t half) {
    spec::ExprNode at, limit, within, value;
    at.fn = spec::ExprFn::index, at.type = spec::ScalarType::i64, at.index = 1;
    limit.type = spec::ScalarType::i64, limit.value = static_cast<double>(half);
    within.fn = spec::ExprFn::lt, within.type = spec::ScalarType::boolean, within.a = 0, within.b = 1;
    value.fn = spec::ExprFn::to_f32, value.a = 2;
    return {{at, limit, within, value}};
  }

  spec::Program& program_;
  std::vector<spec::Op> made_;
};

}  // namespace

void share_angles(spec::Program& program) {
  const std::vector<Angles> found = find_angles(program);
  Tables tables(program);
  for (std::size_t i = 0; i < found.size(); ++i) tables.make(found[i], i);
  tables.put_in_front();
}

}  // namespace ccks::codegen

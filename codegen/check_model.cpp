// build_model: a plan's numbers at one set of dims.
#include "codegen/check_model.hpp"

#include <fmt/format.h>

#include <unordered_map>

namespace ccks::codegen::check {

Faults::Faults(CheckReport& report, std::span<const std::int64_t> dims, std::size_t limit)
    : report_(report), dims_(dims.begin(), dims.end()), limit_(limit), at_start_(report.faults.size()) {}

void Faults::add(const std::string& code, std::string message) {
  if (!full()) report_.faults.push_back({code, std::move(message), dims_});
}

std::string Model::name(std::size_t op) const { return ops[op].desc->name; }

namespace {

constexpr std::int64_t kMaxI32 = 0x7fffffff;

bool apply(const plan::DimNode& node, std::int64_t a, std::int64_t b, std::int64_t& out) {
  const auto floor = [&] { return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0); };
  const bool divides =
      node.op == plan::DimOp::floordiv || node.op == plan::DimOp::floormod || node.op == plan::DimOp::ceildiv;
  if (divides && (b == 0 || (b == -1 && a == INT64_MIN))) return false;
  switch (node.op) {
    case plan::DimOp::add:
      return !__builtin_add_overflow(a, b, &out);
    case plan::DimOp::sub:
      return !__builtin_sub_overflow(a, b, &out);
    case plan::DimOp::mul:
      return !__builtin_mul_overflow(a, b, &out);
    case plan::DimOp::floordiv:
      out = floor();
      return true;
    case plan::DimOp::floormod:
      out = a - floor() * b;
      return true;
    case plan::DimOp::ceildiv:
      out = floor() + (a % b != 0 ? 1 : 0);
      return true;
    case plan::DimOp::min:
      out = a < b ? a : b;
      return true;
    case plan::DimOp::max:
      out = a < b ? b : a;
      return true;
    default:
      return false;
  }
}

bool evaluate(const plan::PlanView& plan, std::span<const std::int64_t> symbols, std::vector<std::int64_t>& values) {
  values.resize(plan.dims.size());
  for (std::size_t i = 0; i < plan.dims.size(); ++i) {
    const plan::DimNode& node = plan.dims[i];
    if (node.op == plan::DimOp::constant)
      values[i] = node.value;
    else if (node.op == plan::DimOp::symbol)
      values[i] = symbols[static_cast<std::size_t>(node.value)];
    else if (!apply(node, values[node.a], values[node.b], values[i]))
      return false;
  }
  return true;
}

/// Evaluates table rows into the model.
class Builder {
 public:
  Builder(Model& model, Faults& faults) : m_(model), faults_(faults) {}

  bool run() {
    operands();
    ops();
    waits();
    signals();
    totals();
    return ok_;
  }

 private:
  std::int64_t at(plan::DimId id) const { return m_.values[id]; }
  void require(bool held, const char* code, const std::string& message) {
    if (held) return;
    ok_ = false;
    faults_.add(code, message);
  }

  void operands() {
    for (const plan::OperandDesc& d : m_.plan->operands) {
      Operand o{d.space, d.dtype, d.rank, d.flags, d.tensor, at(d.offset), {}, {}};
      for (std::size_t a = 0; a < 4; ++a) {
        o.dim[a] = at(d.dim[a]);
        o.stride[a] = at(d.stride[a]);
        require(o.dim[a] >= 0 && o.dim[a] <= kMaxI32, "limit.dim",
                fmt::format("operand {}: {} is no extent", m_.operands.size(), o.dim[a]));
      }
      require(in_space(o), "operand.bounds",
              fmt::format("operand {} of tensor '{}' leaves its space", m_.operands.size(),
                          m_.plan->tensors[d.tensor].name));
      m_.operands.push_back(o);
    }
  }

  /// In 128 bits, so that everything after may multiply in 64.
  bool in_space(const Operand& o) const {
    const std::uint64_t size = o.space == wire::Space::arena     ? m_.plan->arena_bytes
                               : o.space == wire::Space::weights ? m_.plan->weight_bytes
                                                                 : m_.plan->state_bytes;
    __int128 lo = o.offset, hi = o.offset;
    for (std::size_t a = 0; a < 4; ++a) {
      if (o.dim[a] <= 0) return o.offset >= 0;  // touches nothing
      const __int128 reach = static_cast<__int128>(o.dim[a] - 1) * o.stride[a] * o.element_bytes();
      (reach < 0 ? lo : hi) += reach;
    }
    return lo >= 0 && hi + o.element_bytes() <= static_cast<__int128>(size) && o.offset % o.element_bytes() == 0;
  }

  void ops() {
    std::unordered_map<std::string_view, std::uint32_t> by_name;
    for (std::uint32_t i = 0; i < m_.program->ops.size(); ++i) by_name[m_.program->ops[i].name] = i;
    for (const plan::OpDesc& d : m_.plan->ops) {
      OpNow op;
      op.desc = &d;
      op.spec_op = by_name.at(d.name);
      __int128 tiles = 1;
      bool good = true;
      for (std::size_t a = 0; a < 4; ++a) {
        op.grid[a] = at(d.grid[a]);
        op.tile[a] = at(d.tile[a]);
        good = good && op.grid[a] >= 0 && op.grid[a] <= kMaxI32 && op.tile[a] >= 1 && op.tile[a] <= kMaxI32;
        tiles = tiles > wire::kMaxTilesPerOp ? tiles : tiles * op.grid[a];
      }
      for (std::size_t a = 0; a < 4; ++a)
        if (op.grid[a] == 0) tiles = 0;
      require(good, "limit.tile", fmt::format("op '{}': a tile has no extent or a grid is negative", d.name));
      require(tiles <= wire::kMaxTilesPerOp, "limit.tiles", fmt::format("op '{}' has more than 2^24 tiles", d.name));
      for (std::size_t a = 0; a < 8; ++a) op.dims[a] = at(d.dims[a]);
      op.tiles = static_cast<std::int64_t>(tiles);
      m_.ops.push_back(op);
    }
  }

  void waits() {
    for (const plan::WaitDesc& d : m_.plan->waits) {
      WaitNow w{d.signal, d.producer, {}};
      for (std::size_t i = 0; i < 2; ++i) {
        const plan::WaitAxisDesc& a = d.axis[i];
        w.axis[i] = {a.grid_axis, at(a.step), at(a.offset), at(a.length), at(a.extent), at(a.block), at(a.stride)};
        const WaitAxisNow& now = w.axis[i];
        for (const std::int64_t v : {now.step, now.offset, now.length, now.extent, now.block, now.stride})
          require(v >= -kMaxI32 && v <= kMaxI32, "limit.wait",
                  fmt::format("wait {}: {} does not fit a frame", m_.waits.size(), v));
        require(now.block >= 1 && now.extent >= 0, "event.block",
                fmt::format("wait {}: blocks of {} on an extent of {}", m_.waits.size(), now.block, now.extent));
      }
      m_.waits.push_back(w);
    }
  }

  void signals() {
    for (const plan::SignalDesc& d : m_.plan->signals) {
      SignalNow s;
      s.op = d.op;
      s.event_first = d.event_first;
      s.event_max = d.event_max;
      s.count = at(d.event_count);
      s.total = at(d.total);
      for (std::size_t i = 0; i < 2; ++i) {
        s.stride[i] = at(d.stride[i]);
        if (s.stride[i] == 0) continue;  // all values of the coordinate share an event: as good as no axis
        s.axis[i] = d.grid_axis[i];
        if (s.axis[i] >= 0) s.values[i] = m_.ops[d.op].grid[static_cast<std::size_t>(s.axis[i])];
      }
      s.first_id = m_.event_ids;
      const bool good =
          s.count >= 0 && s.count <= d.event_max && std::uint64_t{d.event_first} + d.event_max <= m_.plan->event_count;
      require(good, "event.range",
              fmt::format("op '{}' signals {} events from {}, {} are reserved, the slot has {}",
                          m_.plan->ops[d.op].name, s.count, d.event_first, d.event_max, m_.plan->event_count));
      if (good) m_.event_ids += static_cast<std::uint32_t>(s.count);
      m_.signals.push_back(s);
    }
  }

  void totals() {
    std::int64_t tiles = 0;
    for (const OpNow& op : m_.ops) tiles += op.tiles;
    require(tiles <= m_.plan->max_tasks, "limit.tasks",
            fmt::format("{} tiles in all, room for {}", tiles, m_.plan->max_tasks));
  }

  Model& m_;
  Faults& faults_;
  bool ok_ = true;
};

}  // namespace

bool build_model(const spec::Program& program, const plan::PlanView& plan, std::span<const std::int64_t> dims,
                 Faults& faults, Model& model) {
  model.program = &program;
  model.plan = &plan;
  model.symbols.assign(dims.begin(), dims.end());
  if (!evaluate(plan, dims, model.values)) {
    faults.add("table.dim", "a dim of the plan overflows or divides by zero");
    return false;
  }
  return Builder(model, faults).run();
}

}  // namespace ccks::codegen::check

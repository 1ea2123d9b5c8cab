// Writes the tables of a PlanImage from what the earlier stages found.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "ccks/worker/tile_hints.hpp"
#include "codegen/plan_dims.hpp"
#include "codegen/plan_events.hpp"

namespace ccks::codegen {
namespace {

// Event counters of a slot: 64 Mi of them are 256 MiB, far beyond any sensible plan.
constexpr std::uint64_t kMaxEvents = std::uint64_t{1} << 26;

class TableWriter {
 public:
  TableWriter(Planner& planner, PlanImage& image) : planner_(planner), program_(planner.program), image_(image) {}
  Status write();

 private:
  const char* keep(std::string text) { return image_.strings->emplace_back(std::move(text)).c_str(); }
  plan::DimId dim(const Expr& e) { return dims_.of(e); }

  void write_symbols();
  void write_tensors();
  void write_conditions();
  Status write_signals();
  void write_waits();
  plan::WaitAxisDesc wait_axis(const AxisWindow& w, const Expr& stride);
  void write_ops();
  void write_op(OpIndex index);
  void write_operands(const LoweredOp& op);
  void select_guards(const spec::Op& source, plan::OpDesc& desc);
  std::uint16_t body_of(const LoweredOp& op);
  Status write_reports();
  Status add_report(const std::string& name, OpIndex op, std::uint32_t output);
  void link_dynamic_ops();
  Status write_totals();
  void write_tool_info();

  Planner& planner_;
  const spec::Program& program_;
  PlanImage& image_;
  DimTable dims_;
  EventPlan events_;
  std::vector<std::array<std::uint32_t, 2>> guards_;  // per condition: first, count of its chain
  std::map<std::string, std::uint16_t> bodies_;
};

void TableWriter::write_symbols() {
  for (const spec::Symbol& s : program_.symbols)
    image_.symbols.push_back({keep(s.name), s.range.lo, s.range.hi, s.preset.value_or(0), s.preset.has_value()});
  for (const spec::RaggedDim& r : program_.ragged) {
    plan::RaggedDesc d{r.rows, dim(r.count), r.length.lo, r.length.hi, r.pad, r.round, {}};
    std::copy(r.tables.begin(), r.tables.end(), d.tables);
    image_.ragged.push_back(d);
  }
  for (const spec::RuntimeCheck& c : program_.checks) {
    const bool equal = c.relation == spec::RuntimeCheck::Relation::equal;
    image_.checks.push_back(
        {equal ? plan::Relation::equal : plan::Relation::less_equal, dim(c.lhs), dim(c.rhs), keep(c.message)});
  }
}

void TableWriter::write_tensors() {
  for (TensorIndex id = 0; id < program_.tensors.size(); ++id) {
    const spec::Tensor& t = program_.tensors[id];
    const Placement& p = planner_.memory.placements[id];
    plan::TensorDesc d{};
    d.name = keep(t.name);
    d.source = keep(t.from.empty() ? t.name : t.from);
    d.dtype = t.dtype;
    d.kind = static_cast<plan::TensorKind>(t.kind);
    d.rank = static_cast<std::uint8_t>(t.shape.size());
    for (std::size_t i = 0; i < 4; ++i) d.shape[i] = i < t.shape.size() ? dim(t.shape[i]) : dims_.constant(1);
    d.space = p.space;
    d.offset = p.offset;
    d.max_bytes = p.bytes;
    image_.tensors.push_back(d);
  }
}

/// Each condition's chain of guards, parents first.
void TableWriter::write_conditions() {
  for (const spec::Condition& condition : program_.conditions) {
    std::vector<const spec::Condition*> chain;
    for (const spec::Condition* c = &condition; c;
         c = c->parent == spec::kNone ? nullptr : &program_.conditions[c->parent])
      chain.insert(chain.begin(), c);
    guards_.push_back({static_cast<std::uint32_t>(image_.guards.size()), static_cast<std::uint32_t>(chain.size())});
    for (const spec::Condition* c : chain) {
      const spec::Report& report = program_.reports[c->report];
      const bool is_float = program_.tensor(report.tensor).dtype == wire::Dtype::f32;
      image_.guards.push_back({planner_.memory.placements[report.tensor].offset, static_cast<std::uint32_t>(c->cmp),
                               is_float, c->value, c->report});
    }
  }
}

Status TableWriter::write_signals() {
  std::uint64_t first = 0;
  for (const SignalGroup& g : events_.groups) {
    const std::int64_t most = planner_.upper_bound(g.count);
    plan::SignalDesc d{};
    d.op = g.op;
    d.event_first = static_cast<std::uint32_t>(first);
    d.event_max = static_cast<std::uint32_t>(most);
    d.event_count = dim(g.count);
    d.total = dim(g.total);
    for (std::size_t i = 0; i < 2; ++i) {
      d.grid_axis[i] = g.axes[i];
      d.stride[i] = dim(g.stride[i]);
    }
    first += static_cast<std::uint64_t>(most);
    if (first > kMaxEvents)
      return {ErrorCode::unsupported,
              "the plan would need more than 2^26 events; bound its symbols or ask for coarser events"};
    image_.signals.push_back(d);
  }
  image_.event_count = static_cast<std::uint32_t>(first);
  return {};
}

plan::WaitAxisDesc TableWriter::wait_axis(const AxisWindow& w, const Expr& stride) {
  return {w.consumer_axis, dim(w.step), dim(w.offset), dim(w.length), dim(w.extent), dim(w.block), dim(stride)};
}

void TableWriter::write_waits() {
  for (const GroupWait& w : events_.waits) {
    const SignalGroup& g = events_.groups[w.group];
    plan::WaitDesc d{};
    d.signal = w.group;
    d.producer = w.producer;
    for (std::size_t i = 0; i < 2; ++i) d.axis[i] = wait_axis(w.axis[i], g.stride[i]);
    image_.waits.push_back(d);
  }
}

void TableWriter::write_operands(const LoweredOp& op) {
  for (const LoweredOperand& o : op.operands) {
    const Placement& p = planner_.memory.placements[o.tensor];
    plan::OperandDesc d{};
    d.space = p.space;
    d.dtype = o.dtype;
    d.rank = o.rank;
    d.flags = o.flags;
    d.tensor = o.tensor;
    const Expr bytes = o.offset * Expr(static_cast<std::int64_t>(wire::dtype_bytes(o.dtype)));
    d.offset = dim(Expr(static_cast<std::int64_t>(p.offset)) + bytes);
    for (std::size_t i = 0; i < 4; ++i) {
      d.dim[i] = dim(o.dim[i]);
      d.stride[i] = dim(o.stride[i]);
    }
    image_.operands.push_back(d);
  }
}

/// Ops share a body where kind, types and code agree: dims and addresses are data.
std::uint16_t TableWriter::body_of(const LoweredOp& op) {
  std::string key;
  key += static_cast<char>(op.kind);
  key += static_cast<char>(op.inputs);
  for (const LoweredOperand& o : op.operands) key += static_cast<char>(o.dtype);
  if (op.kind == wire::OpCode::matmul || op.kind == wire::OpCode::expert_matmul) key += std::to_string(op.dims[wire::kTwinDim].as_constant().value_or(0));
  key.append(reinterpret_cast<const char*>(op.code.data()), op.code.size() * sizeof(wire::ExprInstr));
  if (op.kind == wire::OpCode::custom) key += std::get<spec::CustomAttrs>(program_.ops[op.spec_op].attrs).code;
  return bodies_.try_emplace(key, static_cast<std::uint16_t>(bodies_.size())).first->second;
}

void TableWriter::select_guards(const spec::Op& source, plan::OpDesc& desc) {
  const auto* select = std::get_if<spec::SelectAttrs>(&source.attrs);
  if (!select) return;
  desc.dims[0] = dims_.constant(guards_[select->condition][0]);
  desc.dims[1] = dims_.constant(guards_[select->condition][1]);
}

void TableWriter::write_op(OpIndex index) {
  const LoweredOp& op = planner_.ops[index];
  const spec::Op& source = program_.ops[op.spec_op];
  plan::OpDesc d{};
  d.name = keep(source.name);
  d.kind = op.kind;
  d.flags = op.flags;
  d.body = d.typical_body = d.groups_body = body_of(op);
  for (std::size_t i = 0; i < 4; ++i) {
    d.grid[i] = dim(op.grid[i]);
    d.tile[i] = dim(op.tile[i]);
    d.scalars[i] = op.scalars[i];
  }
  for (std::size_t i = 0; i < 8; ++i) d.dims[i] = dim(op.dims[i]);
  select_guards(source, d);
  d.operand_first = static_cast<std::uint32_t>(image_.operands.size());
  d.input_count = op.inputs;
  d.output_count = op.outputs;
  write_operands(op);
  d.wait_first = events_.op_waits[index][0];
  d.wait_count = events_.op_waits[index][1];
  d.signal_first = events_.op_groups[index][0];
  d.signal_count = events_.op_groups[index][1];
  if (source.condition != spec::kNone) {
    d.guard_first = guards_[source.condition][0];
    d.guard_count = guards_[source.condition][1];
  }
  d.code_first = static_cast<std::uint32_t>(image_.code.size());
  d.code_count = static_cast<std::uint32_t>(op.code.size());
  image_.code.insert(image_.code.end(), op.code.begin(), op.code.end());
  d.report = d.dynamic_report = plan::kNone;
  d.counted_rank = op.counted_rank;
  d.bytes_read = dim(op.bytes_read);
  d.bytes_written = dim(op.bytes_written);
  d.operations = dim(op.operations);
  image_.ops.push_back(d);
  image_.spec_ops.push_back(op.spec_op);
}

void TableWriter::write_ops() {
  for (OpIndex i = 0; i < planner_.ops.size(); ++i) write_op(i);
}

Status TableWriter::add_report(const std::string& name, OpIndex op, std::uint32_t output) {
  plan::OpDesc& desc = image_.ops[op];
  const LoweredOperand& operand = planner_.ops[op].operands[desc.input_count + output];
  const Expr elements = product(operand.dim);
  constexpr std::int64_t kMaxElements = 1 << 20;  // a report crosses the link; larger things are outputs
  constexpr std::uint32_t kAlign = 16;            // workers copy reports in 16-byte pieces
  const std::int64_t most = planner_.upper_bound(elements);
  if (most > kMaxElements)
    return {ErrorCode::unsupported, fmt::format("report '{}' may hold more than {} elements", name, kMaxElements)};
  const std::int64_t bytes = most * 4;  // i32 or f32
  desc.report = static_cast<std::uint32_t>(image_.reports.size());
  image_.reports.push_back({keep(name), op, desc.operand_first + desc.input_count + output, operand.dtype,
                            dim(elements), image_.report_bytes, static_cast<std::uint32_t>(bytes)});
  image_.report_bytes += (static_cast<std::uint32_t>(bytes) + kAlign - 1) / kAlign * kAlign;
  return {};
}

Status TableWriter::write_reports() {
  for (const spec::Report& r : program_.reports) CCKS_RETURN_IF_ERROR(add_report(r.name, r.op, 0));
  constexpr std::uint32_t kCountOutput = 2;  // of a route op
  for (OpIndex op = 0; op < planner_.ops.size(); ++op)
    if (planner_.ops[op].kind == wire::OpCode::route)
      CCKS_RETURN_IF_ERROR(add_report(fmt::format("{}.count", image_.ops[op].name), op, kCountOutput));
  link_dynamic_ops();
  return {};
}

/// A dynamic op learns which tiles exist from the counts that a route op publishes, or from the report of its counted dim. Counts from elsewhere are not
/// known to the host: then every tile is sent, and those that do not exist do nothing.
void TableWriter::link_dynamic_ops() {
  std::map<TensorIndex, std::uint32_t> count_reports;
  for (std::uint32_t r = 0; r < image_.reports.size(); ++r) {
    const plan::ReportDesc& report = image_.reports[r];
    if (planner_.ops[report.op].kind == wire::OpCode::route) count_reports[image_.operands[report.operand].tensor] = r;
  }
  for (OpIndex op = 0; op < planner_.ops.size(); ++op) {
    if (!planner_.ops[op].dynamic()) continue;
    if (planner_.ops[op].counted_rank != 0) {
      image_.ops[op].dynamic_report = program_.counted[program_.ops[planner_.ops[op].spec_op].outputs[0].dims[0].counted].report;
      continue;
    }
    const auto it = count_reports.find(planner_.ops[op].operands[3].tensor);
    if (it != count_reports.end()) image_.ops[op].dynamic_report = it->second;
  }
}

Status TableWriter::write_totals() {
  const MemoryPlan& m = planner_.memory;
  image_.arena_bytes = m.arena_bytes;
  image_.unplanned_arena_bytes = m.unplanned_arena_bytes;
  image_.weight_bytes = m.weight_bytes;
  image_.state_bytes = m.state_bytes;
  image_.scratch_bytes = planner_.scratch_bytes;
  std::uint64_t tasks = 0;
  for (const LoweredOp& op : planner_.ops) {
    std::uint64_t tiles = 1;
    for (const Expr& g : op.grid)
      tiles *= static_cast<std::uint64_t>(std::max<std::int64_t>(0, planner_.upper_bound(g)));
    tasks += tiles;
  }
  if (tasks > std::numeric_limits<std::uint32_t>::max())
    return {ErrorCode::unsupported, "the plan would have more than 2^32 tiles; bound its symbols"};
  image_.max_tasks = static_cast<std::uint32_t>(tasks);
  return {};
}

void TableWriter::write_tool_info() {
  image_.live_ranges = planner_.memory.live;
  for (const Edge& e : planner_.edges) {
    const Granularity g = e.windows.empty()       ? Granularity::whole
                          : e.windows.size() == 1 ? Granularity::row
                                                  : Granularity::tile;
    image_.dependencies.push_back({e.producer, e.consumer, e.tensor, e.kind, g, e.wait, e.why});
  }
}

Status TableWriter::write() {
  image_.name = program_.name;
  image_.options = planner_.options;
  events_ = plan_events(planner_);
  write_symbols();
  write_tensors();
  write_conditions();
  CCKS_RETURN_IF_ERROR(write_signals());
  write_waits();
  write_ops();
  CCKS_RETURN_IF_ERROR(write_reports());
  CCKS_RETURN_IF_ERROR(write_totals());
  write_tool_info();
  image_.dims = dims_.take();
  image_.hash = hash_tables(image_.view());
  return {};
}

}  // namespace

Result<std::shared_ptr<const PlanImage>> write_tables(Planner& planner) {
  auto image = std::make_shared<PlanImage>();
  CCKS_RETURN_IF_ERROR(TableWriter(planner, *image).write());
  return std::shared_ptr<const PlanImage>(std::move(image));
}

}  // namespace ccks::codegen

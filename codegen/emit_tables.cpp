// emit_tables: the plan as C++ initialisers, one row per line, fields in the order of plan.hpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/emit_sources.hpp"
#include "codegen/emit_text.hpp"

namespace ccks::codegen {
namespace {

constexpr const char* kDimOps[] = {"constant", "symbol",   "add",     "sub", "mul",
                                   "floordiv", "floormod", "ceildiv", "min", "max"};
constexpr const char* kTensorKinds[] = {"input", "weight", "state", "output", "intermediate"};
constexpr const char* kSpaces[] = {"arena", "weights", "state"};

template <class T>
std::string list(const T& values) {
  return fmt::format("{{{}}}", fmt::join(values, ", "));
}
std::string u32(std::uint32_t v) { return v == plan::kNone ? "kNone" : fmt::format("{}u", v); }
std::string dtype(wire::Dtype t) {
  return fmt::format("Dtype::{}", t == wire::Dtype::boolean ? "boolean" : wire::dtype_name(t));
}
std::string space(wire::Space s) { return fmt::format("Space::{}", kSpaces[static_cast<int>(s)]); }

std::string row(const plan::SymbolDesc& s) {
  return fmt::format("{}, {}, {}, {}, {}", cpp_string(s.name), int_literal(s.lo), int_literal(s.hi),
                     int_literal(s.preset), s.has_preset);
}
std::string row(const plan::DimNode& n) {
  return fmt::format("DimOp::{}, {}, {}, {}", kDimOps[static_cast<int>(n.op)], n.a, n.b, int_literal(n.value));
}
std::string row(const plan::RaggedDesc& r) {
  return fmt::format("{}, {}, {}, {}, {}, {}, {{{}, {}, {}}}", r.symbol, r.count, int_literal(r.length_lo), int_literal(r.length_hi),
                     int_literal(r.pad), int_literal(r.round), u32(r.tables[0]), u32(r.tables[1]), u32(r.tables[2]));
}
std::string row(const plan::CheckDesc& c) {
  return fmt::format("Relation::{}, {}, {}, {}", c.relation == plan::Relation::equal ? "equal" : "less_equal", c.lhs,
                     c.rhs, cpp_string(c.message));
}
std::string row(const plan::TensorDesc& t) {
  return fmt::format("{}, {}, {}, TensorKind::{}, {}, {}, {}, {}u, {}u", cpp_string(t.name), cpp_string(t.source),
                     dtype(t.dtype), kTensorKinds[static_cast<int>(t.kind)], t.rank, list(t.shape), space(t.space),
                     t.offset, t.max_bytes);
}
std::string row(const plan::OperandDesc& o) {
  return fmt::format("{}, {}, {}, {}, {}, {}, {}, {}", space(o.space), dtype(o.dtype), o.rank, o.flags, u32(o.tensor),
                     o.offset, list(o.dim), list(o.stride));
}
std::string row(const plan::WaitAxisDesc& a) {
  return fmt::format("{{{}, {}, {}, {}, {}, {}, {}}}", a.grid_axis, a.step, a.offset, a.length, a.extent, a.block,
                     a.stride);
}
std::string row(const plan::WaitDesc& w) {
  return fmt::format("{}, {}, {{{}, {}}}", w.signal, w.producer, row(w.axis[0]), row(w.axis[1]));
}
std::string row(const plan::SignalDesc& s) {
  return fmt::format("{}, {}, {}, {}, {}, {}, {}", s.op, s.event_first, s.event_max, s.event_count, s.total,
                     list(s.grid_axis), list(s.stride));
}
std::string row(const plan::GuardDesc& g) {
  return fmt::format("{}u, {}, {}, {}, {}", g.offset, g.compare, g.is_float, double_literal(g.value), g.report);
}
std::string row(const wire::ExprInstr& i) { return fmt::format("{}, {}, {}, {}, {}u", i.op, i.dst, i.a, i.b, i.c); }
std::string row(const plan::ReportDesc& r) {
  return fmt::format("{}, {}, {}, {}, {}, {}, {}", cpp_string(r.name), r.op, r.operand, dtype(r.dtype), r.elements,
                     r.offset, r.max_bytes);
}
std::string row(const plan::OpDesc& o) {
  std::vector<std::string> scalars;
  for (const float s : o.scalars) scalars.push_back(float_literal(s));
  return fmt::format(
      "{}, OpCode::{}, {}, {}, {}, {}, {}, {}, {}, {},\n   {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}",
      cpp_string(o.name), spec::op_kind_name(static_cast<spec::OpKind>(o.kind)), o.flags, o.body, o.typical_body, o.groups_body, list(o.grid),
      list(o.tile), list(o.dims), list(scalars), o.operand_first, o.input_count, o.output_count, o.wait_first,
      o.wait_count, o.signal_first, o.signal_count, o.guard_first, o.guard_count, o.code_first, o.code_count,
      u32(o.report), u32(o.dynamic_report), o.counted_rank, o.bytes_read, o.bytes_written, o.operations);
}

/// An array and what the view takes of it. An empty table is an empty span: C++ has no empty arrays.
template <class T>
void table(std::map<std::string, std::string>& holes, const std::string& hole, const char* type, const char* name,
           const std::vector<T>& rows) {
  std::string text;
  if (!rows.empty()) {
    text = fmt::format("constexpr {} {}[] = {{\n", type, name);
    for (const T& r : rows) text += fmt::format("  {{{}}},\n", row(r));
    text += "};\n";
  } else {
    text = fmt::format("constexpr std::span<const {}> {};\n", type, name);
  }
  holes[hole] = std::move(text);
}

}  // namespace

std::map<std::string, std::string> emit_tables(const PlanImage& image, const Bodies& bodies) {
  std::map<std::string, std::string> holes;
  std::vector<plan::OpDesc> ops = image.ops;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i].body = bodies.of_op[i];
    ops[i].typical_body = bodies.typical_of_op[i];
    ops[i].groups_body = bodies.groups_of_op[i];
  }
  table(holes, "SYMBOLS", "SymbolDesc", "kSymbols", image.symbols);
  table(holes, "DIMS", "DimNode", "kDims", image.dims);
  table(holes, "RAGGED", "RaggedDesc", "kRagged", image.ragged);
  table(holes, "CHECKS", "CheckDesc", "kChecks", image.checks);
  table(holes, "TENSORS", "TensorDesc", "kTensors", image.tensors);
  table(holes, "OPS", "OpDesc", "kOps", ops);
  table(holes, "OPERANDS", "OperandDesc", "kOperands", image.operands);
  table(holes, "WAITS", "WaitDesc", "kWaits", image.waits);
  table(holes, "SIGNALS", "SignalDesc", "kSignals", image.signals);
  table(holes, "GUARDS", "GuardDesc", "kGuards", image.guards);
  table(holes, "CODE", "ExprInstr", "kCode", image.code);
  table(holes, "REPORTS", "ReportDesc", "kReports", image.reports);
  const std::pair<const char*, std::string> numbers[] = {{"HASH", fmt::format("0x{:016x}u", image.hash)},
                                                         {"EVENT_COUNT", fmt::format("{}u", image.event_count)},
                                                         {"MAX_TASKS", fmt::format("{}u", image.max_tasks)},
                                                         {"REPORT_BYTES", fmt::format("{}u", image.report_bytes)},
                                                         {"ARENA_BYTES", fmt::format("{}u", image.arena_bytes)},
                                                         {"WEIGHT_BYTES", fmt::format("{}u", image.weight_bytes)},
                                                         {"STATE_BYTES", fmt::format("{}u", image.state_bytes)},
                                                         {"SCRATCH_BYTES", fmt::format("{}u", image.scratch_bytes)},
                                                         {"NAME_STRING", cpp_string(image.name)}};
  for (const auto& [hole, text] : numbers) holes[hole] = text;
  return holes;
}

}  // namespace ccks::codegen

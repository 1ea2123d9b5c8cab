// A hash over the contents of a plan's tables, field by field: padding and addresses do not take part.
#include <bit>
#include <string_view>

#include "codegen/plan_image.hpp"

namespace ccks::codegen {
namespace {

/// FNV-1a, 64 bits, over little-endian bytes of every value.
class TableHash {
 public:
  std::uint64_t value() const { return state_; }

  void number(std::uint64_t v) {
    for (int i = 0; i < 8; ++i) byte(static_cast<std::uint8_t>(v >> (8 * i)));
  }
  void text(const char* s) {
    const std::string_view view = s ? s : "";
    number(view.size());
    for (const char c : view) byte(static_cast<std::uint8_t>(c));
  }
  void real(double v) { number(std::bit_cast<std::uint64_t>(v)); }
  template <class... T>
  void numbers(T... v) {
    (number(static_cast<std::uint64_t>(v)), ...);
  }
  template <class T>
  void array(const T& values) {
    for (const auto v : values) number(static_cast<std::uint64_t>(v));
  }

 private:
  void byte(std::uint8_t b) { state_ = (state_ ^ b) * 0x100000001b3ull; }
  std::uint64_t state_ = 0xcbf29ce484222325ull;
};

void add(TableHash& h, const plan::SymbolDesc& s) {
  h.text(s.name);
  h.numbers(s.lo, s.hi, s.preset, s.has_preset);
}
void add(TableHash& h, const plan::DimNode& n) { h.numbers(n.op, n.a, n.b, n.value); }
void add(TableHash& h, const plan::RaggedDesc& r) {
  h.numbers(r.symbol, r.count, r.length_lo, r.length_hi, r.pad, r.round);
  h.array(r.tables);
}
void add(TableHash& h, const plan::CheckDesc& c) {
  h.numbers(c.relation, c.lhs, c.rhs);
  h.text(c.message);
}
void add(TableHash& h, const plan::TensorDesc& t) {
  h.text(t.name);
  h.text(t.source);
  h.numbers(t.dtype, t.kind, t.rank, t.space, t.offset, t.max_bytes);
  h.array(t.shape);
}
void add(TableHash& h, const plan::OperandDesc& o) {
  h.numbers(o.space, o.dtype, o.rank, o.flags, o.tensor, o.offset);
  h.array(o.dim);
  h.array(o.stride);
}
void add(TableHash& h, const plan::WaitDesc& w) {
  h.numbers(w.signal, w.producer);
  for (const plan::WaitAxisDesc& a : w.axis)
    h.numbers(a.grid_axis, a.step, a.offset, a.length, a.extent, a.block, a.stride);
}
void add(TableHash& h, const plan::SignalDesc& s) {
  h.numbers(s.op, s.event_first, s.event_max, s.event_count, s.total);
  h.array(s.grid_axis);
  h.array(s.stride);
}
void add(TableHash& h, const plan::GuardDesc& g) {
  h.numbers(g.offset, g.compare, g.is_float, g.report);
  h.real(g.value);
}
void add(TableHash& h, const wire::ExprInstr& i) { h.numbers(i.op, i.dst, i.a, i.b, i.c); }
void add(TableHash& h, const plan::ReportDesc& r) {
  h.text(r.name);
  h.numbers(r.op, r.operand, r.dtype, r.elements, r.offset, r.max_bytes);
}
void add(TableHash& h, const plan::OpDesc& o) {
  h.text(o.name);
  h.numbers(o.kind, o.flags, o.body, o.typical_body, o.groups_body);
  h.array(o.grid);
  h.array(o.tile);
  h.array(o.dims);
  for (const float s : o.scalars) h.real(s);
  h.numbers(o.operand_first, o.input_count, o.output_count, o.wait_first, o.wait_count, o.signal_first, o.signal_count);
  h.numbers(o.guard_first, o.guard_count, o.code_first, o.code_count, o.report, o.dynamic_report, o.counted_rank);
  h.numbers(o.bytes_read, o.bytes_written, o.operations);
}

template <class T>
void table(TableHash& h, std::span<const T> rows) {
  h.number(rows.size());
  for (const T& row : rows) add(h, row);
}

}  // namespace

std::uint64_t hash_tables(const plan::PlanView& view) {
  TableHash h;
  h.text(view.name);
  table(h, view.symbols);
  table(h, view.dims);
  table(h, view.ragged);
  table(h, view.checks);
  table(h, view.tensors);
  table(h, view.ops);
  table(h, view.operands);
  table(h, view.waits);
  table(h, view.signals);
  table(h, view.guards);
  table(h, view.code);
  table(h, view.reports);
  h.numbers(view.event_count, view.max_tasks, view.report_bytes, view.arena_bytes, view.weight_bytes, view.state_bytes,
            view.scratch_bytes);
  return h.value();
}

}  // namespace ccks::codegen

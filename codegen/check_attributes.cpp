// check_attributes: kind, dims, scalars, code, reports and guards of each op against the program.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codegen/check_code.hpp"
#include "codegen/check_model.hpp"
#include "codegen/plan_angles.hpp"
#include "codegen/plan_split.hpp"
#include "codegen/plan_turn.hpp"
#include "codegen/plan_twin.hpp"

namespace ccks::codegen::check {
namespace {

/// What wire/op_layout.hpp wants in dims and scalars.
struct Expected {
  std::vector<std::pair<std::size_t, std::int64_t>> dims;
  double scalar = 0;
  bool has_scalar = false;
  std::vector<double> more_scalars;  // from the second on
  const spec::ElementExpr* code = nullptr;
  const spec::ElementExpr* twin = nullptr;
  std::size_t epilogue_first = 0;
};

/// One overload per kind that has something to say.
struct Expect {
  const Model& m;
  const spec::Op& op;
  Expected e;

  void scalar(double v) { e.scalar = v, e.has_scalar = true; }
  void epilogue(const spec::ElementExpr& code, std::int64_t first) {
    e.code = &code;
    if (!code.empty()) e.dims.push_back({wire::kEpilogueDim, first});
  }
  void twin(const std::optional<spec::ElementExpr>& code) {
    if (code)
      e.twin = &*code;
    else
      e.dims.push_back({wire::kTwinDim, 0});
  }
  void operator()(const spec::MapAttrs& a) { e.code = &a.expr; }
  void operator()(const spec::ReduceAttrs& a) {
    std::int64_t mask = 0;
    for (const std::uint32_t axis : a.axes) mask |= std::int64_t{1} << (4 - op.inputs[0].dims.size() + axis);
    e.dims = {{0, static_cast<std::int64_t>(a.fn)}, {1, mask}};
  }
  void operator()(const spec::SoftmaxAttrs& a) { scalar(a.scale); }
  void operator()(const spec::RmsnormAttrs& a) { scalar(a.eps); }
  void operator()(const spec::LayernormAttrs& a) { scalar(a.eps), e.dims = {{0, a.has_bias}}; }
  void operator()(const spec::MatmulAttrs& a) {
    epilogue(a.epilogue, 2);
    e.dims.push_back({wire::kNormDim, a.norm ? static_cast<std::int64_t>(op.inputs.size() - 1) : 0});
    twin(a.twin);
    e.dims.push_back({wire::kRopeDim, a.rope ? static_cast<std::int64_t>(table_input(op)) : 0});
    if (a.norm) scalar(a.norm->eps);
  }
  void operator()(const spec::AttentionAttrs& a) {
    scalar(a.scale), e.dims = {{0, a.heads}, {1, a.kv_heads}, {2, a.causal}, {3, is_split(op) ? chunks_of(op).evaluate(m.symbols).value_or(-1) : 0}, {wire::kPageDim, a.page}};
  }
  void operator()(const spec::RopeAttrs& a) {
    scalar(a.theta);
    e.dims = {{0, a.heads}, {2, a.has_positions ? 1 : has_table(op) ? 2 : 0}, {3, a.interleaved}};
    if (a.scaling.original > 0) e.dims.push_back({4, a.scaling.original});
    if (a.scaling.original > 0) e.more_scalars = {a.scaling.factor, a.scaling.low, a.scaling.high};
    // The logarithm of the rate, where the size of a head is known; its two words.
    const auto width = op.inputs[0].dims.back().extent.as_constant();
    const std::int64_t pairs = width ? *width / a.heads / 2 : 0;
    const double rate = pairs > 0 ? -std::log(static_cast<double>(static_cast<float>(a.theta))) / static_cast<double>(pairs) : 0;
    std::int32_t words[2];
    std::memcpy(words, &rate, sizeof rate);
    e.dims.insert(e.dims.end(), {{5, words[0]}, {7, words[1]}});
    if (!a.has_positions) e.dims.push_back({1, a.position.evaluate(m.symbols).value_or(-1)});
  }
  void operator()(const spec::TopkAttrs& a) { e.dims = {{0, a.k}}; }
  void operator()(const spec::Conv2dAttrs& a) {
    epilogue(a.epilogue, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      e.dims.push_back({i, a.stride[i]});
      e.dims.push_back({2 + i, a.padding[i]});
      e.dims.push_back({4 + i, a.dilation[i]});
    }
  }
  void operator()(const spec::RouteAttrs& a) { e.dims = {{0, a.k}, {1, a.softmax_over_all}, {2, a.renormalize}}; }
  void operator()(const spec::ExpertMatmulAttrs& a) {
    epilogue(a.epilogue, 4);
    twin(a.twin);
    e.dims.insert(e.dims.end(),
                  {{0, a.top_k}, {1, a.gather}, {2, op.inputs[1].dims[0].extent.evaluate(m.symbols).value_or(-1)}});
  }
  void operator()(const spec::CombineAttrs& a) {
    epilogue(a.epilogue, 3);
    e.dims.push_back({0, a.top_k});
  }
  void operator()(const spec::GatherAttrs&) {}
  void operator()(const spec::ScatterAttrs&) {}
  void operator()(const spec::ArgmaxAttrs&) {
    e.dims = {{0, shares_rows(op) ? columns_of_sharer(op).evaluate(m.symbols).value_or(-1) : 0}};
  }
  void operator()(const spec::ReportAttrs&) {}
  void operator()(const spec::SelectAttrs&) {}
  void operator()(const spec::CustomAttrs&) {}
};

bool same_float(double have, double want) { return std::abs(have - want) <= 1e-6 * std::max(1e-30, std::abs(want)); }

/// The axis of the tile space, counted from the last as from 1, that the first dim of the op's result is; 0: none.
std::size_t rank_of_result(const spec::Op& op) {
  if (op.kind() == spec::OpKind::gather) return op.inputs[1].dims.size() == 1 ? 2 : 0;
  const bool reduces = op.kind() == spec::OpKind::reduce || op.kind() == spec::OpKind::argmax || op.kind() == spec::OpKind::topk;
  return (reduces ? op.inputs[0] : op.outputs[0]).dims.size();
}

/// An op whose rows a report counts: tiles that it says are not there are the last ones, and hold no rows that count.
void check_counted(const Model& m, std::size_t op, Faults& faults) {
  const plan::OpDesc& d = *m.ops[op].desc;
  const spec::View& rows = m.spec_op(op).outputs[0];
  const bool counted = !rows.dims.empty() && rows.dims[0].counted != spec::kNone;
  bool right = counted && (d.flags & wire::kOpDynamic) != 0 && d.counted_rank == rank_of_result(m.spec_op(op));
  for (std::size_t axis = 0; right && axis + d.counted_rank < 4; ++axis) right = m.ops[op].grid[axis] <= 1;
  if (!right) faults.add("op.flags", fmt::format("op '{}': its tiles are not counted along axis {}", d.name, 4 - int{d.counted_rank}));
  if (right && d.dynamic_report != plan::kNone && d.dynamic_report != m.program->counted[rows.dims[0].counted].report)
    faults.add("op.flags", fmt::format("op '{}' counts its rows by report '{}', which is another value", d.name, m.plan->reports[d.dynamic_report].name));
}

void check_flags(const Model& m, std::size_t op, Faults& faults) {
  const plan::OpDesc& d = *m.ops[op].desc;
  if (d.counted_rank != 0) return check_counted(m, op, faults);
  const bool dynamic = m.spec_op(op).kind() == spec::OpKind::expert_matmul;
  if ((d.flags & wire::kOpDynamic) && !dynamic)
    faults.add("op.flags", fmt::format("op '{}' is called dynamic and is not", d.name));
  if (d.dynamic_report == plan::kNone) return;
  const plan::ReportDesc& report = m.plan->reports[d.dynamic_report];
  if (!dynamic || m.operands[report.operand].offset != m.operands_of(op)[3].offset)
    faults.add("op.flags",
               fmt::format("op '{}' counts its tiles by report '{}', which is another value", d.name, report.name));
}

/// The code behind the twin's, which is checked.
std::span<const wire::ExprInstr> check_twin(const Model& m, std::size_t op, const spec::ElementExpr& expr, std::span<const wire::ExprInstr> code,
                                            Faults& faults) {
  const std::int64_t twins = m.ops[op].dims[wire::kTwinDim] - 1;
  if (twins < 0 || twins > static_cast<std::int64_t>(code.size()) || m.ops[op].dims[wire::kEpilogueDim] != (m.spec_op(op).kind() == spec::OpKind::expert_matmul ? 4 : 2)) {
    faults.add("op.dims", fmt::format("op '{}': {} instructions of a twin, of {}", m.name(op), twins, code.size()));
    return code;
  }
  CodeContext context = code_context(m, op);
  const std::span<const wire::ExprInstr> own = code.first(static_cast<std::size_t>(twins));
  for (const wire::ExprInstr& in : own)
    if ((in.op == static_cast<std::uint8_t>(wire::ExprOp::arg_f) || in.op == static_cast<std::uint8_t>(wire::ExprOp::arg_i)) && in.c == 1)
      faults.add("op.code", fmt::format("op '{}': a twin reads itself", m.name(op)));
  if (const std::string why = compare_code(expr, own, context); !why.empty())
    faults.add("op.code", fmt::format("op '{}', its twin: {}", m.name(op), why));
  return code.subspan(static_cast<std::size_t>(twins));
}

void check_op(const Model& m, std::size_t op, Faults& faults) {
  const OpNow& now = m.ops[op];
  const spec::Op& s = m.spec_op(op);
  if (static_cast<int>(now.desc->kind) != static_cast<int>(s.kind()))
    return faults.add("op.kind", fmt::format("op '{}' is planned as another kind", m.name(op)));
  Expect expect{m, s, {}};
  std::visit(expect, s.attrs);
  for (const auto& [i, want] : expect.e.dims)
    if (now.dims[i] != want)
      faults.add("op.dims",
                 fmt::format("op '{}': dims[{}] is {}, the program says {}", m.name(op), i, now.dims[i], want));
  for (std::size_t i = 0; i < expect.e.more_scalars.size(); ++i) {
    if (same_float(now.desc->scalars[1 + i], expect.e.more_scalars[i])) continue;
    faults.add("op.scalar", fmt::format("op '{}': scalar {} is {}, the program says {}", m.name(op), 1 + i, now.desc->scalars[1 + i],
                                        expect.e.more_scalars[i]));
  }
  if (expect.e.has_scalar && !same_float(now.desc->scalars[0], expect.e.scalar))
    faults.add("op.scalar", fmt::format("op '{}': scalar is {}, the program says {}", m.name(op), now.desc->scalars[0],
                                        expect.e.scalar));
  if (expect.e.code) {
    std::span<const wire::ExprInstr> code = m.plan->code.subspan(now.desc->code_first, now.desc->code_count);
    if (expect.e.twin) code = check_twin(m, op, *expect.e.twin, code, faults);
    if (const std::string why = compare_code(*expect.e.code, code, code_context(m, op)); !why.empty())
      faults.add("op.code", fmt::format("op '{}': {}", m.name(op), why));
  }
  check_flags(m, op, faults);
}

// ---- guards ----

bool holds(std::uint32_t compare, double a, double b) {
  switch (static_cast<wire::Compare>(compare)) {
    case wire::Compare::eq:
      return a == b;
    case wire::Compare::ne:
      return a != b;
    case wire::Compare::lt:
      return a < b;
    case wire::Compare::le:
      return a <= b;
    case wire::Compare::gt:
      return a > b;
    case wire::Compare::ge:
      return a >= b;
  }
  return false;
}

/// Same answer wherever it could change: at both values and beside them.
bool same_test(const plan::GuardDesc& g, const spec::Condition& c, bool is_float) {
  const auto have_value = is_float ? static_cast<double>(static_cast<float>(g.value))
                                   : static_cast<double>(static_cast<std::int32_t>(g.value));
  const double want_value = is_float ? static_cast<double>(static_cast<float>(c.value)) : c.value;
  for (const double v : {have_value, want_value}) {
    const double step = is_float ? std::max(1e-3, std::abs(v) * 1e-3) : 1;
    const double middle = is_float ? v : std::floor(v);
    for (const double at : {middle - step, middle, middle + step, middle + 2 * step})
      if (holds(g.compare, at, have_value) != holds(static_cast<std::uint32_t>(c.cmp), at, want_value)) return false;
  }
  return true;
}

void check_chain(const Model& m, std::size_t op, std::uint32_t condition, std::uint64_t first, std::uint64_t count,
                 Faults& faults) {
  std::vector<const spec::Condition*> chain;
  for (; condition != spec::kNone; condition = m.program->conditions[condition].parent)
    chain.push_back(&m.program->conditions[condition]);
  std::reverse(chain.begin(), chain.end());
  if (chain.size() != count || first + count > m.plan->guards.size())
    return faults.add("guard.count",
                      fmt::format("op '{}' tests {} guards, the program says {}", m.name(op), count, chain.size()));
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const plan::GuardDesc& g = m.plan->guards[first + i];
    const spec::Condition& c = *chain[i];
    const plan::ReportDesc& report = m.plan->reports[g.report];
    const Operand& word = m.operands[report.operand];
    const bool is_float = word.dtype == wire::Dtype::f32;
    if (g.report != c.report || word.space != wire::Space::arena ||
        static_cast<std::uint64_t>(word.offset) != g.offset || g.is_float != is_float || !same_test(g, c, is_float))
      faults.add("guard.test", fmt::format("op '{}': guard {} does not test report '{}' as the program says",
                                           m.name(op), i, m.program->reports[c.report].name));
  }
}

}  // namespace

void check_attributes(const Model& m, Faults& faults) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) check_op(m, op, faults);
}

void check_guards(const Model& m, Faults& faults) {
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const plan::OpDesc& d = *m.ops[op].desc;
    const spec::Op& s = m.spec_op(op);
    check_chain(m, op, s.condition, d.guard_first, d.guard_count, faults);
    if (const auto* select = std::get_if<spec::SelectAttrs>(&s.attrs))
      check_chain(m, op, select->condition, static_cast<std::uint64_t>(std::max<std::int64_t>(0, m.ops[op].dims[0])),
                  static_cast<std::uint64_t>(std::max<std::int64_t>(0, m.ops[op].dims[1])), faults);
  }
}

namespace {

/// The op and output that publish report `r`: as the program says, or the counts of a route op.
bool publishes(const Model& m, std::size_t r) {
  const plan::ReportDesc& d = m.plan->reports[r];
  const plan::OpDesc& op = m.plan->ops[d.op];
  if (op.report != r) return false;
  const bool listed = r < m.program->reports.size();
  if (listed && (m.program->reports[r].name != d.name || m.ops[d.op].spec_op != m.program->reports[r].op)) return false;
  if (!listed && m.spec_op(d.op).kind() != spec::OpKind::route) return false;
  const std::uint32_t output = listed ? 0 : 2;
  return d.operand == op.operand_first + op.input_count + output && output < op.output_count;
}

}  // namespace

void check_reports(const Model& m, Faults& faults) {
  const plan::PlanView& plan = *m.plan;
  if (plan.reports.size() < m.program->reports.size())
    return faults.add("report.count", "a report of the program is missing");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> areas;
  for (std::size_t r = 0; r < plan.reports.size(); ++r) {
    const plan::ReportDesc& d = plan.reports[r];
    if (!publishes(m, r)) return faults.add("report.op", fmt::format("report '{}' is not published by its op", d.name));
    const Operand& o = m.operands[d.operand];
    const std::int64_t elements = o.dim[0] * o.dim[1] * o.dim[2] * o.dim[3];
    if ((d.dtype != wire::Dtype::i32 && d.dtype != wire::Dtype::f32) || o.dtype != d.dtype ||
        m.values[d.elements] != elements)
      faults.add("report.type", fmt::format("report '{}' has not the type or size of its operand", d.name));
    if (static_cast<std::uint64_t>(elements) * 4 > d.max_bytes || d.offset % 4 != 0 ||
        std::uint64_t{d.offset} + d.max_bytes > plan.report_bytes)
      faults.add("report.bounds", fmt::format("report '{}' leaves the report area", d.name));
    areas.push_back({d.offset, std::uint64_t{d.offset} + d.max_bytes});
  }
  std::sort(areas.begin(), areas.end());
  for (std::size_t i = 1; i < areas.size(); ++i)
    if (areas[i].first < areas[i - 1].second) faults.add("report.bounds", "two reports share bytes of the report area");
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    const std::uint32_t r = m.ops[op].desc->report;
    const bool must = m.spec_op(op).kind() == spec::OpKind::report;
    if ((must && r == plan::kNone) || (r != plan::kNone && plan.reports[r].op != op))
      faults.add("report.op", fmt::format("op '{}' publishes the wrong report", m.name(op)));
  }
}

}  // namespace ccks::codegen::check

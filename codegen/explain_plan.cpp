// explain_plan: collects the numbers. The checker's model of a plan serves as its evaluator.
#include "codegen/explain_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/check_events.hpp"
#include "codegen/plan_twin.hpp"
#include "codegen/predict_plan.hpp"

namespace ccks::codegen {
namespace {

using check::Model;

constexpr const char* kKinds[] = {"input", "weight", "state", "output", "intermediate"};
constexpr const char* kSpaces[] = {"arena", "weights", "state"};
constexpr const char* kCompare[] = {"==", "!=", "<", "<=", ">", ">="};

double micros(const GpuFigures& gpu, std::int64_t bytes, std::int64_t operations) {
  return 1e6 *
         std::max(static_cast<double>(bytes) / gpu.bytes_per_s, static_cast<double>(operations) / gpu.operations_per_s);
}

std::string guard_text(const Model& m, const plan::OpDesc& d) {
  std::string text;
  for (std::uint32_t g = d.guard_first; g < d.guard_first + d.guard_count; ++g) {
    const plan::GuardDesc& guard = m.plan->guards[g];
    text += fmt::format("{}{} {} {}", text.empty() ? "" : " and ", m.plan->reports[guard.report].name,
                        kCompare[guard.compare], guard.value);
  }
  return text;
}

ExplainedOp explain_op(const Model& m, std::size_t i, const GpuFigures& gpu) {
  const check::OpNow& op = m.ops[i];
  const plan::OpDesc& d = *op.desc;
  ExplainedOp out;
  out.name = d.name;
  out.kind = spec::op_kind_name(m.spec_op(i).kind());
  if (const auto* matmul = std::get_if<spec::MatmulAttrs>(&m.spec_op(i).attrs))
    out.kind = std::string(matmul->norm ? "rmsnorm+" : "") + "matmul" + (matmul->twin ? "+matmul" : "") + (matmul->rope ? "+rope" : "");
  if (const auto* experts = std::get_if<spec::ExpertMatmulAttrs>(&m.spec_op(i).attrs); experts && experts->twin) out.kind += "+expert_matmul";
  out.guard = guard_text(m, d);
  out.grid = op.grid;
  out.tile = op.tile;
  out.tiles = op.tiles;
  out.bytes_read = m.values[d.bytes_read];
  out.bytes_written = m.values[d.bytes_written];
  out.operations = m.values[d.operations];
  out.dynamic = (d.flags & wire::kOpDynamic) != 0;
  out.floor_us = micros(gpu, out.bytes_read + out.bytes_written, out.operations);
  return out;
}

std::string reasons(const PlanImage& image, std::uint32_t wait) {
  std::string text;
  for (const Dependency& d : image.dependencies) {
    if (d.wait != wait) continue;
    const std::string one = fmt::format("{} of '{}'", dependency_kind_name(d.kind), image.tensors[d.tensor].name);
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : ", ") + one;
  }
  return text;
}

std::int64_t most_waited(const check::OpNow& op, const check::WaitNow& w) {
  std::int64_t events = 1;
  for (const check::WaitAxisNow& axis : w.axis) {
    std::int64_t most = 0;
    const std::int64_t values = check::coordinate_values(op, axis);
    for (const std::int64_t c :
         {std::int64_t{0}, values / 2, values - 1}) {  // windows are widest away from a clipped end
      const check::Blocks b = check::blocks_at(axis, std::max<std::int64_t>(0, c));
      most = std::max(most, b.hi - b.lo);
    }
    events *= most;
  }
  return events;
}

void explain_waits(const Model& m, const PlanImage& image, Explanation& out) {
  for (std::uint32_t op = 0; op < m.ops.size(); ++op) {
    const plan::OpDesc& d = *m.ops[op].desc;
    for (std::uint32_t w = d.wait_first; w < d.wait_first + d.wait_count; ++w) {
      const check::WaitNow& wait = m.waits[w];
      const check::SignalNow& signal = m.signals[wait.signal];
      const int split = (signal.axis[0] >= 0 ? 1 : 0) + (signal.axis[1] >= 0 ? 1 : 0);
      out.waits.push_back({wait.producer, op,
                           split == 0   ? "whole"
                           : split == 1 ? "row"
                                        : "tile",
                           reasons(image, w), signal.count, signal.total, most_waited(m.ops[op], wait)});
    }
  }
  for (const Dependency& d : image.dependencies) out.dropped_waits += d.wait == plan::kNone ? 1 : 0;
}

std::int64_t tensor_bytes(const Model& m, const plan::TensorDesc& d) {
  std::int64_t bytes = wire::dtype_bytes(d.dtype);
  for (std::size_t i = 0; i < d.rank; ++i) bytes *= m.values[d.shape[i]];
  return bytes;
}

void explain_tensors(const Model& m, const PlanImage& image, Explanation& out) {
  for (std::size_t t = 0; t < m.plan->tensors.size(); ++t) {
    const plan::TensorDesc& d = m.plan->tensors[t];
    if (m.program->tensors[t].alias_of != spec::kNone) continue;
    ExplainedTensor tensor{d.name,
                           kKinds[static_cast<int>(d.kind)],
                           wire::dtype_name(d.dtype),
                           kSpaces[static_cast<int>(d.space)],
                           {},
                           d.offset,
                           static_cast<std::uint64_t>(tensor_bytes(m, d)),
                           d.max_bytes,
                           -1,
                           -1};
    for (std::size_t i = 0; i < d.rank; ++i) tensor.shape.push_back(m.values[d.shape[i]]);
    if (t < image.live_ranges.size() && image.live_ranges[t].first <= image.live_ranges[t].last) {
      tensor.first_op = image.live_ranges[t].first;
      tensor.last_op = image.live_ranges[t].last;
    }
    out.tensors.push_back(std::move(tensor));
  }
}

/// Bytes of an operand that its op touches. Of a table as many rows as are asked for.
std::int64_t touched_bytes(const Model& m, std::size_t op, std::size_t k) {
  const check::Operand& o = m.operands_of(op)[k];
  std::int64_t bytes = o.element_bytes();
  for (std::size_t d = 0; d < 4; ++d)
    if (o.stride[d] != 0) bytes *= o.dim[d];
  if (m.spec_op(op).kind() == spec::OpKind::gather && k == 0)
    bytes = std::min(bytes, m.operands_of(op)[2].dim[2] * o.dim[3] * o.element_bytes());
  if (m.spec_op(op).kind() == spec::OpKind::scatter && k == 2)
    bytes = std::min(bytes, m.operands_of(op)[0].dim[2] * o.dim[3] * o.element_bytes());
  if (const auto* a = std::get_if<spec::AttentionAttrs>(&m.spec_op(op).attrs); a && a->page > 0 && (k == 1 || k == 2))
    bytes = std::min(bytes, m.operands_of(op)[4].dim[2] * m.operands_of(op)[4].dim[3] * a->page * o.dim[3] * o.element_bytes());
  if (m.spec_op(op).kind() == spec::OpKind::expert_matmul && (k == 1 || is_twin_operand(m.spec_op(op), k)))  // no more experts than routed rows
    bytes = o.dim[1] == 0 ? 0 : bytes / o.dim[1] * std::min(o.dim[1], m.operands_of(op)[2].dim[3]);
  return bytes;
}

std::int64_t compulsory_bytes(const Model& m) {
  std::vector<std::int64_t> touched(m.plan->tensors.size());
  for (std::size_t op = 0; op < m.ops.size(); ++op) {
    for (std::size_t k = 0; k < m.operands_of(op).size(); ++k) {
      const std::uint32_t t = m.operands_of(op)[k].tensor, alias = m.program->tensors[t].alias_of;
      touched[alias == spec::kNone ? t : alias] += touched_bytes(m, op, k);
    }
  }
  std::int64_t bytes = 0;
  for (std::size_t t = 0; t < touched.size(); ++t)
    if (m.program->tensors[t].kind != spec::TensorKind::intermediate)
      bytes += std::min(touched[t], tensor_bytes(m, m.plan->tensors[t]));
  return bytes;
}

void add_totals(const Model& m, Explanation& out) {
  for (const ExplainedOp& op : out.ops) {
    out.tiles += op.tiles;
    out.bytes_read += op.bytes_read;
    out.bytes_written += op.bytes_written;
    out.operations += op.operations;
    out.op_by_op_us += op.floor_us;
  }
  out.compulsory_bytes = compulsory_bytes(m);
  out.floor_us = micros(out.gpu, out.compulsory_bytes, out.operations);
}

void add_prediction(const Model& m, const PlanImage& image, Explanation& out) {
  const PredictCosts costs = predict_costs(out.gpu.name);
  if (costs.source.empty() || image.options.device != "cuda") return;
  constexpr std::uint32_t kWorkers = 132;  // of the GPU that was measured
  const Prediction p = predict_plan(m, costs, image.options.workers != 0 ? image.options.workers : kWorkers);
  out.predicted_us = p.run_us;
  out.predicted_busy_us = p.busy_us;
  out.predicted_workers = p.workers;
  out.predicted_by = costs.source;
  for (std::size_t i = 0; i < p.ops.size(); ++i) {
    out.ops[i].body_us = p.ops[i].body_us;
    out.ops[i].begin_us = p.ops[i].begin_us;
    out.ops[i].end_us = p.ops[i].end_us;
  }
}

// Measured on an H200, bench/README.md, control_flow: an op that is not wanted; what PyTorch's graph between two decisions adds to one graph of all.
constexpr double kUnwantedUs = 0.4, kHostDecisionUs = 10;

std::string advice_on_conditions(const spec::Program& program, const Explanation& e) {
  std::set<std::uint32_t> decide;
  for (const spec::Condition& c : program.conditions) decide.insert(c.report);
  const auto guarded = static_cast<double>(std::count_if(e.ops.begin(), e.ops.end(), [](const ExplainedOp& op) { return !op.guard.empty(); }));
  const double unwanted = kUnwantedUs * guarded, host = kHostDecisionUs * static_cast<double>(decide.size());
  std::string text = fmt::format(
      "What runs depends on values computed on the way (conditions on reports): a captured graph has to run every branch, or come back to the host: about {:.0f} us a decision, {:.0f} for all. "
      "Here everything is sent ahead and nobody comes back, but each of {:.0f} ops under a condition costs about {:.1f} us where it is not wanted. ",
      kHostDecisionUs, host, guarded, kUnwantedUs);
  if (unwanted > host)
    text += fmt::format("If most runs want little of it ({:.0f} us for nothing, {:.0f} by way of the host), graphs between decisions are faster: measure both (bench/control_flow.py).", unwanted, host);
  else
    text += "Worth it where ops are about as fast as a library's.";
  return text;
}

std::string advice_on_static(const Explanation& e) {
  // A kernel boundary of a captured graph costs about a microsecond of draining and filling; a plan hides part of it.
  constexpr double kBoundaryUs = 1.0;
  const double per_op = e.ops.empty() ? 0 : e.floor_us / static_cast<double>(e.ops.size());
  const double boundaries = kBoundaryUs * static_cast<double>(e.ops.size());
  if (per_op > 20 * kBoundaryUs || e.ops.size() <= 2)
    return fmt::format(
        "Everything is static and ops are long (about {:.1f} us each at best): a CUDA graph of library kernels does as well. Use this for many runs in flight, or not at all.", per_op);
  if (boundaries < 0.1 * e.floor_us)
    return fmt::format("Everything is static; {} kernel boundaries (about {:.0f} us) are little beside a floor of {:.0f} us: a CUDA graph comes close.", e.ops.size(), boundaries, e.floor_us);
  return fmt::format(
      "Everything is static, but {} ops in {:.1f} us at best are short: about {:.0f} us of kernel boundaries would remain in a CUDA graph, and waits per tile remove most of them. "
      "Worth measuring against a graph.",
      e.ops.size(), e.floor_us, boundaries);
}

/// Honest, short: who gains from deciding on the host, and who would do as well with what everybody has.
std::string advice(const spec::Program& program, const Explanation& e) {
  std::string text;
  const auto is_routed = [](const ExplainedOp& op) { return op.kind == "route" || op.kind.starts_with("expert_matmul"); };
  const bool routed = std::any_of(e.ops.begin(), e.ops.end(), is_routed);
  if (!program.counted.empty())
    text = "How many rows there are is counted on the way: here tiles of rows that are not there are left out once that is known, where a graph computes the most that there may be.";
  if (routed)
    text += std::string(text.empty() ? "" : " ") + "How much there is to do depends on values computed on the way (routed experts): here tiles are placed once they are counted, while other work goes on. "
           "A layer of 128 experts took an H200 0.4 (1 token), 0.55 (8), 0.65 (512) and 0.55 (2,048) of the time of PyTorch's grouped products in a CUDA graph: measure both (bench/moe_layer.py).";
  if (!program.ragged.empty())
    text += std::string(text.empty() ? "" : " ") + "Sequences of any lengths lie one behind the other: a captured graph pads all to the longest, or is captured for each set of lengths. "
           "A layer of an encoder in bf16 took an H200 0.53 to 0.90 of the time of PyTorch's padded graph, the more of that is padding the less: measure both (bench/ragged_encoder.py).";
  if (!program.conditions.empty()) text += (text.empty() ? "" : " ") + advice_on_conditions(program, e);
  if (!text.empty()) return text;
  text = advice_on_static(e);
  if (!program.symbols.empty()) text += " A graph must be captured once per set of dims; this plan serves all of them.";
  return text;
}

}  // namespace

Result<Explanation> explain_plan(const spec::Program& program, const PlanImage& image,
                                 std::span<const std::int64_t> dims, const GpuFigures& gpu) {
  CheckReport report;
  check::Faults faults(report, dims, 5);
  Model m;
  const plan::PlanView view = image.view();
  if (!check::check_tables(program, view, faults) || !check::build_model(program, view, dims, faults, m))
    return report.status();
  Explanation out;
  out.program = image.name;
  out.hash = image.hash;
  out.gpu = gpu;
  for (std::size_t i = 0; i < program.symbols.size(); ++i) out.dims.emplace_back(program.symbols[i].name, dims[i]);
  for (std::size_t op = 0; op < m.ops.size(); ++op) out.ops.push_back(explain_op(m, op, gpu));
  explain_waits(m, image, out);
  explain_tensors(m, image, out);
  out.arena_bytes = image.arena_bytes;
  out.unplanned_arena_bytes = image.unplanned_arena_bytes;
  out.weight_bytes = image.weight_bytes;
  out.state_bytes = image.state_bytes;
  out.report_bytes = image.report_bytes;
  out.event_count = image.event_count;
  out.scratch_bytes = image.scratch_bytes;
  add_totals(m, out);
  add_prediction(m, image, out);
  out.advice = advice(program, out);
  return out;
}

Result<std::vector<std::int64_t>> choose_dims(const spec::Program& program,
                                              const std::vector<std::pair<std::string, std::int64_t>>& given) {
  std::vector<std::int64_t> dims;
  for (const spec::Symbol& s : program.symbols) dims.push_back(s.preset.value_or(s.range.lo));
  for (const auto& [name, value] : given) {
    for (std::size_t i = 0; i < dims.size(); ++i) {
      const spec::Symbol& s = program.symbols[i];
      if (s.name != name) continue;
      if (value < s.range.lo || value > s.range.hi)
        return Status(ErrorCode::out_of_range,
                      fmt::format("dim '{}' is {}, outside {} to {}", name, value, s.range.lo, s.range.hi));
      dims[i] = value;
    }
  }
  for (const spec::RuntimeCheck& check : program.checks) {
    const auto lhs = check.lhs.evaluate(dims), rhs = check.rhs.evaluate(dims);
    const bool held =
        lhs && rhs && (check.relation == spec::RuntimeCheck::Relation::equal ? *lhs == *rhs : *lhs <= *rhs);
    if (!held) return Status(ErrorCode::out_of_range, check.message + " at these dims");
  }
  return dims;
}

}  // namespace ccks::codegen

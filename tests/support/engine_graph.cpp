#include "tests/support/engine_graph.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "ccks/worker/host_entry.hpp"
#include "tests/support/graph_ops.hpp"

namespace ccks::test {
namespace {

constexpr std::uint64_t kSeedBytes = 256;
constexpr std::int64_t kOperationsPerUs = 16'000;  // as instance.cpp estimates

std::atomic<std::uint64_t> tiles_run{0};  // relaxed throughout: a counter

// Sleeps, so that other workers may have the core.
struct HostTime {
  static std::uint64_t begin(float us) {
    if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(us)));
    tiles_run.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  static void end(std::uint64_t, float) {}
};

void graph_entry(const wire::WorkerParams* params, std::uint32_t index, void* context) {
  worker::host_worker_main<GraphOps<HostTime>>(params, index, context);
}

}  // namespace

std::uint64_t graph_tiles_run() { return tiles_run.load(std::memory_order_relaxed); }

WorkerImage graph_worker(const void* cuda_image) {
  WorkerImage image;
  image.host = graph_entry;
  image.cuda_image = cuda_image;
  return image;
}

plan::DimId GraphPlan::constant(std::int64_t value) {
  dims_.push_back({plan::DimOp::constant, 0, 0, value});
  return static_cast<plan::DimId>(dims_.size()) - 1;
}

GraphPlan::GraphPlan(std::vector<GraphOp> ops, std::uint32_t max_n) : ops_(std::move(ops)) {
  symbols_.push_back({"n", 1, max_n, 1, true});
  dims_.push_back({plan::DimOp::symbol, 0, 0, 0});
  arena_ = kSeedBytes;
  plan::TensorDesc seed{};
  seed.name = "seed";
  seed.dtype = wire::Dtype::i64;
  seed.kind = plan::TensorKind::input;
  seed.rank = 1;
  seed.shape[0] = constant(1);
  seed.max_bytes = 8;
  tensors_.push_back(seed);
  for (std::uint32_t i = 0; i < ops_.size(); ++i) add_op(i, max_n);
  finish(max_n);
}

plan::DimId GraphPlan::scaled(const GraphOp& op) {
  const plan::DimId base = constant(op.tiles);
  if (!op.scaled) return base;
  dims_.push_back({plan::DimOp::mul, 0, base, 0});
  return static_cast<plan::DimId>(dims_.size()) - 1;
}

const plan::TensorDesc& GraphPlan::add_tensor(std::uint32_t index, std::uint32_t max_n) {
  const GraphOp& op = ops_[index];
  names_.push_back(output(index));
  plan::TensorDesc tensor{};
  tensor.name = names_.back().c_str();
  tensor.dtype = wire::Dtype::i64;
  tensor.kind = plan::TensorKind::output;
  tensor.rank = 1;
  tensor.shape[0] = tile_dims_[index];
  tensor.offset = arena_;
  tensor.max_bytes = std::uint64_t{op.tiles} * (op.scaled ? max_n : 1) * 8;
  arena_ += (tensor.max_bytes + 255) / 256 * 256;
  return tensors_.emplace_back(tensor);
}

void GraphPlan::add_operand(wire::Space space, std::uint64_t offset, plan::DimId count) {
  plan::OperandDesc operand{};
  operand.space = space;
  operand.dtype = wire::Dtype::i64;
  operand.rank = 1;
  operand.offset = constant(static_cast<std::int64_t>(offset));
  for (int i = 0; i < 4; ++i) operand.dim[i] = operand.stride[i] = constant(1);
  operand.dim[3] = count;
  operands_.push_back(operand);
}

// Operand 2: the op's own report, or the one it counts its tiles with.
void GraphPlan::add_report_operand(std::uint32_t index, plan::OpDesc& desc) {
  const GraphOp& op = ops_[index];
  if (op.report < 0 && op.dynamic_report < 0) return add_operand(wire::Space::arena, 0, constant(1));
  if (op.report < 0) {
    desc.flags = wire::kOpDynamic;
    desc.dynamic_report = static_cast<std::uint32_t>(op.dynamic_report);
    const plan::OperandDesc counts = operands_[reports_[desc.dynamic_report].operand];
    operands_.push_back(counts);
    return;
  }
  plan::ReportDesc report{};
  names_.push_back("r" + std::to_string(op.report));
  report.name = names_.back().c_str();
  report.op = index;
  report.operand = static_cast<std::uint32_t>(operands_.size());
  report.dtype = wire::Dtype::i32;
  report.elements = constant(op.report_count);
  report.offset = reports_.empty() ? 0 : reports_.back().offset + reports_.back().max_bytes;
  report.max_bytes = op.report_count * 4;
  desc.report = static_cast<std::uint32_t>(reports_.size());
  add_operand(wire::Space::arena, arena_, report.elements);
  arena_ += (report.max_bytes + 255) / 256 * 256;
  reports_.push_back(report);
}

void GraphPlan::add_guard(const GraphOp& op, plan::OpDesc& desc) {
  if (op.guard_report < 0) return;
  const auto index = static_cast<std::uint32_t>(op.guard_report);
  desc.guard_first = static_cast<std::uint32_t>(guards_.size());
  desc.guard_count = 1;
  const auto offset = static_cast<std::uint64_t>(dims_[operands_[reports_[index].operand].offset].value);
  guards_.push_back({offset, static_cast<std::uint32_t>(wire::Compare::ne), false, 0.0, index});
}

void GraphPlan::add_op(std::uint32_t index, std::uint32_t max_n) {
  const GraphOp& op = ops_[index];
  tile_dims_.push_back(scaled(op));
  const std::uint64_t offset = add_tensor(index, max_n).offset;
  plan::OpDesc desc{};
  names_.push_back("op" + std::to_string(index));
  desc.name = names_.back().c_str();
  desc.kind = wire::OpCode::map;
  for (plan::DimId& g : desc.grid) g = constant(1);
  desc.grid[op.dynamic_report >= 0 ? 2 : 3] = tile_dims_[index];
  for (plan::DimId& t : desc.tile) t = constant(1);
  for (plan::DimId& d : desc.dims) d = constant(0);
  desc.report = desc.dynamic_report = plan::kNone;
  desc.bytes_read = desc.bytes_written = constant(64);
  desc.operations = constant(64 + std::int64_t{op.estimated_us} * op.tiles * kOperationsPerUs);
  desc.scalars[0] = static_cast<float>(op.spin_us);
  desc.scalars[1] = op.faults ? 1.0f : 0.0f;
  desc.operand_first = static_cast<std::uint32_t>(operands_.size());
  if (!op.bare) add_operands(index, offset, desc);
  add_guard(op, desc);
  op_descs_.push_back(desc);
  add_waits(index);
}

void GraphPlan::add_operands(std::uint32_t index, std::uint64_t offset, plan::OpDesc& desc) {
  const GraphOp& op = ops_[index];
  add_operand(wire::Space::arena, 0, constant(1));
  add_operand(wire::Space::arena, offset, tile_dims_[index]);
  add_report_operand(index, desc);
  add_operand(op.state ? wire::Space::state : wire::Space::arena, 0, constant(1));
  desc.dims[0] = constant(index);
  desc.dims[1] = constant(static_cast<std::int64_t>(op.edges.size()));
  for (std::size_t e = 0; e < op.edges.size(); ++e) {
    const std::uint32_t producer = op.edges[e].producer;
    add_operand(wire::Space::arena, tensors_[producer + 1].offset, tile_dims_[producer]);
    if (op.edges[e].reads == Reads::all) desc.dims[2 + e] = tile_dims_[producer];
  }
  desc.input_count = static_cast<std::uint16_t>(operands_.size() - desc.operand_first);
}

void GraphPlan::add_waits(std::uint32_t index) {
  const GraphOp& op = ops_[index];
  plan::OpDesc& desc = op_descs_[index];
  const plan::DimId one = constant(1);
  const plan::DimId zero = constant(0);
  const std::uint64_t max_tiles = tensors_[index + 1].max_bytes / 8;
  plan::SignalDesc signal{};
  signal.op = index;
  signal.event_first = signals_.empty() ? 0 : signals_.back().event_first + signals_.back().event_max;
  signal.event_max = op.per_tile_events ? static_cast<std::uint32_t>(max_tiles) : 1;
  signal.event_count = op.per_tile_events ? tile_dims_[index] : one;
  signal.total = op.per_tile_events ? one : tile_dims_[index];
  signal.grid_axis[0] = op.per_tile_events ? (op.dynamic_report >= 0 ? 2 : 3) : -1;
  signal.grid_axis[1] = -1;
  signal.stride[0] = one;
  signal.stride[1] = zero;
  desc.signal_first = index;
  desc.signal_count = 1;
  signals_.push_back(signal);
  desc.wait_first = static_cast<std::uint32_t>(waits_.size());
  for (const GraphEdge& edge : op.edges) {
    const GraphOp& producer = ops_[edge.producer];
    plan::WaitDesc wait{};
    wait.signal = edge.producer;
    wait.producer = edge.producer;
    for (plan::WaitAxisDesc& axis : wait.axis) axis = {-1, zero, zero, zero, one, one, zero};
    if (producer.per_tile_events) {
      wait.axis[0] = {-1, zero, zero, zero, tile_dims_[edge.producer], one, one};
      if (edge.reads == Reads::same_tile)
        wait.axis[0] = {op.dynamic_report >= 0 ? 2 : 3, one, zero, one, tile_dims_[edge.producer], one, one};
    }
    waits_.push_back(wait);
  }
  desc.wait_count = static_cast<std::uint32_t>(waits_.size()) - desc.wait_first;
}

void GraphPlan::add_state() {
  plan::TensorDesc state{};
  state.name = "s";
  state.dtype = wire::Dtype::i64;
  state.kind = plan::TensorKind::state;
  state.space = wire::Space::state;
  state.rank = 1;
  state.shape[0] = constant(1);
  state.max_bytes = 8;
  tensors_.push_back(state);
  view_.state_bytes = 8;
}

void GraphPlan::finish(std::uint32_t max_n) {
  if (std::any_of(ops_.begin(), ops_.end(), [](const GraphOp& op) { return op.state; })) add_state();
  view_.name = "graph";
  std::uint64_t hash = 0x5eed;
  for (const GraphOp& op : ops_) hash = graph_mix(hash, op.tiles + 16 * op.edges.size());
  view_.hash = hash;
  view_.symbols = symbols_;
  view_.dims = dims_;
  view_.tensors = tensors_;
  view_.ops = op_descs_;
  view_.operands = operands_;
  view_.waits = waits_;
  view_.signals = signals_;
  view_.guards = guards_;
  view_.reports = reports_;
  view_.event_count = signals_.back().event_first + signals_.back().event_max;
  for (std::uint32_t i = 0; i < ops_.size(); ++i) view_.max_tasks += tiles(i, max_n);
  view_.report_bytes = reports_.empty() ? 0 : reports_.back().offset + reports_.back().max_bytes;
  view_.arena_bytes = arena_;
}

void GraphPlan::demand_too_much(std::uint32_t op) {
  dims_.push_back({plan::DimOp::add, signals_[op].total, constant(1), 0});
  signals_[op].total = static_cast<plan::DimId>(dims_.size()) - 1;
  view_.dims = dims_;
}

Program GraphPlan::program(const void* cuda_image) const { return Program(nullptr, view_, graph_worker(cuda_image)); }

std::vector<std::vector<std::uint64_t>> GraphPlan::expected(std::uint32_t n, std::uint64_t seed) const {
  std::vector<std::vector<std::uint64_t>> out;
  std::vector<std::vector<std::int32_t>> reports(reports_.size());
  std::uint64_t state = 0;
  for (std::uint32_t index = 0; index < ops_.size(); ++index) {
    const GraphOp& op = ops_[index];
    out.emplace_back(tiles(index, n), 0);
    std::uint32_t rows = tiles(index, n);
    if (op.dynamic_report >= 0) {
      rows = 0;
      for (const std::int32_t count : reports[static_cast<std::size_t>(op.dynamic_report)])
        rows += static_cast<std::uint32_t>(count);
    }
    if (op.guard_report >= 0 && reports[static_cast<std::size_t>(op.guard_report)].at(0) == 0) continue;
    for (std::uint32_t tile = 0; tile < std::min(rows, tiles(index, n)); ++tile) {
      std::uint64_t value = graph_mix(seed, (std::uint64_t{index} << 32) + tile);
      for (const GraphEdge& edge : op.edges) {
        if (edge.reads == Reads::same_tile) value = graph_mix(value, out[edge.producer][tile]);
        if (edge.reads == Reads::all)
          for (const std::uint64_t v : out[edge.producer]) value = graph_mix(value, v);
      }
      if (op.state) value = state = graph_mix(state, value);
      out[index][tile] = value;
    }
    if (op.report >= 0) {
      for (std::uint32_t i = 0; i < op.report_count; ++i)
        reports[static_cast<std::size_t>(op.report)].push_back(graph_report(out[index][0], i));
    }
  }
  return out;
}

std::vector<GraphOp> layered_graph(std::uint32_t layers) {
  std::vector<GraphOp> ops;
  ops.push_back({.tiles = 2, .scaled = true, .per_tile_events = true});
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const std::uint32_t in = static_cast<std::uint32_t>(ops.size()) - 1;
    ops.push_back({.tiles = 2, .scaled = true, .edges = {{in, Reads::same_tile}}});
    ops.push_back({.tiles = 7, .per_tile_events = true, .edges = {{in, Reads::all}}});
    ops.push_back({.tiles = 1, .edges = {{in + 1, Reads::all}, {in + 2, Reads::all}}});
    ops.push_back(
        {.tiles = 2, .scaled = true, .per_tile_events = true, .edges = {{in + 3, Reads::all}, {in, Reads::same_tile}}});
  }
  return ops;
}

}  // namespace ccks::test

// A plan of products made by hand, for tests of which of them may overtake the events of another: matrices that lie dense, an event for each op, which its tiles make
// together and tiles of others wait for.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "ccks/plan_eval.hpp"
#include "scheduler/instance.hpp"

namespace ccks::scheduler::test {

struct ProductPlan {
  std::vector<plan::SymbolDesc> symbols;
  std::vector<plan::DimNode> dims;
  std::vector<plan::TensorDesc> tensors;
  std::vector<plan::OpDesc> ops;
  std::vector<plan::OperandDesc> operands;
  std::vector<plan::WaitDesc> waits;
  std::vector<plan::SignalDesc> signals;
  std::vector<std::int64_t> values;
  plan::PlanView view;
  PlanTables tables;
  Instance instance;

  plan::DimId constant(std::int64_t value) {
    dims.push_back({plan::DimOp::constant, 0, 0, value});
    return static_cast<plan::DimId>(dims.size() - 1);
  }
  void add_tensor(plan::TensorKind kind, wire::Dtype dtype, std::uint64_t offset, std::uint64_t bytes) {
    plan::TensorDesc tensor{};
    tensor.name = "t";
    tensor.kind = kind;
    tensor.space = kind == plan::TensorKind::weight ? wire::Space::weights : wire::Space::arena;
    tensor.dtype = dtype;
    tensor.offset = offset;
    tensor.max_bytes = bytes;
    tensors.push_back(tensor);
  }
  /// A whole tensor; turned: rows lie along the second of its dims.
  void add_operand(std::uint32_t tensor, std::int64_t rows, std::int64_t columns, std::uint8_t flags, bool turned = false) {
    plan::OperandDesc operand{};
    operand.space = tensors[tensor].space;
    operand.dtype = tensors[tensor].dtype;
    operand.rank = 2;
    operand.flags = flags;
    operand.tensor = tensor;
    operand.offset = constant(static_cast<std::int64_t>(tensors[tensor].offset));
    const plan::DimId one = constant(1), none = constant(0), pitch = constant(turned ? rows : columns);
    std::copy_n(std::array{one, one, constant(rows), constant(columns)}.data(), 4, operand.dim);
    std::copy_n(std::array{none, none, turned ? one : pitch, turned ? pitch : one}.data(), 4, operand.stride);
    operands.push_back(operand);
  }
  /// A product of `rows` rows and `columns` columns, so many in a tile. Its operands, of which the last is its result, are added behind it, then finish_op().
  plan::OpDesc& begin_op(std::int64_t rows, std::int64_t columns, std::int64_t in_a_tile) {
    const plan::DimId one = constant(1);
    plan::OpDesc op{};
    op.name = "product";
    op.kind = wire::OpCode::matmul;
    std::fill(std::begin(op.grid), std::end(op.grid), one);
    std::fill(std::begin(op.tile), std::end(op.tile), one);
    std::fill(std::begin(op.dims), std::end(op.dims), constant(0));
    op.grid[3] = constant(columns / in_a_tile);
    op.tile[2] = constant(rows);
    op.tile[3] = constant(in_a_tile);
    op.output_count = 1;
    op.report = op.dynamic_report = plan::kNone;
    op.bytes_read = op.bytes_written = op.operations = one;
    op.operand_first = static_cast<std::uint32_t>(operands.size());
    ops.push_back(op);
    return ops.back();
  }
  void finish_op(const std::vector<std::uint32_t>& producers) {
    const auto index = static_cast<std::uint32_t>(ops.size() - 1);
    plan::OpDesc& op = ops.back();
    op.input_count = static_cast<std::uint16_t>(operands.size() - op.operand_first - 1);
    op.wait_first = static_cast<std::uint32_t>(waits.size());
    for (const std::uint32_t producer : producers) add_wait(producer);
    op.signal_first = index;
    op.signal_count = 1;
    signals.push_back({index, index, 1, constant(1), op.grid[3], {-1, -1}, {constant(0), constant(0)}});
  }
  /// Of the op added last.
  void add_wait(std::uint32_t producer) {
    const plan::DimId one = constant(1);
    waits.push_back({producer, producer, {{-1, one, one, one, one, one, one}, {-1, one, one, one, one, one, one}}});
    ++ops.back().wait_count;
  }
  void show(const char* name, std::uint64_t arena_bytes, std::uint64_t weight_bytes) {
    view.name = name;
    view.symbols = symbols;
    view.dims = dims;
    view.tensors = tensors;
    view.ops = ops;
    view.operands = operands;
    view.waits = waits;
    view.signals = signals;
    view.event_count = static_cast<std::uint32_t>(ops.size());
    view.max_tasks = 256;
    view.arena_bytes = arena_bytes;
    view.weight_bytes = weight_bytes;
  }
};

}  // namespace ccks::scheduler::test

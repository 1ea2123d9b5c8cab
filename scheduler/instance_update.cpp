// Instance: what changes in a frame from one run to the next where lists and events stay: a position, an input's address.
#include <algorithm>
#include <cstring>

#include "scheduler/instance.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// The input itself or another shape of it: nothing else shares its place.
bool is_of_input(const PlanTables& tables, const plan::OperandDesc& operand, std::uint32_t input) {
  const plan::TensorDesc& of = tables.plan.tensors[operand.tensor];
  const plan::TensorDesc& tensor = tables.plan.tensors[input];
  return of.space == tensor.space && of.offset >= tensor.offset && of.offset < tensor.offset + tensor.max_bytes;
}

}  // namespace

Result<bool> Instance::update(const PlanTables& tables, std::span<const std::int64_t> symbols,
                              std::span<const std::int64_t> dims) {
  if (!built_) return false;
  for (const plan::DimId id : tables.fixed_dims) {
    if (dims[id] != dims_[id]) return false;
  }
  feed(tables, {});
  built_ = false;
  std::copy(symbols.begin(), symbols.end(), symbols_.begin());
  std::copy(dims.begin(), dims.end(), dims_.begin());
  dims_hash_ = hash_symbols(symbols);
  for (const std::uint32_t op : tables.varying_ops) CCKS_RETURN_IF_ERROR(update_op(tables, op));
  built_ = true;
  return true;
}

// What an op costs and where its tiles go stays as it was when the lists were made.
Status Instance::update_op(const PlanTables& tables, std::uint32_t index) {
  const plan::OpDesc& desc = tables.plan.ops[index];
  const std::uint32_t operands = desc.input_count + std::uint32_t{desc.output_count};
  for (std::uint32_t i = 0; i < operands; ++i) fill_operand(tables, desc.operand_first + i);
  const OpInstance kept = ops_[index];
  CCKS_RETURN_IF_ERROR(fill_op(tables, index));
  ops_[index] = kept;
  fill_block(tables, index);
  changed(head().ops + index * static_cast<std::uint32_t>(sizeof(wire::OpParams)), sizeof(wire::OpParams));
  changed(head().operands + desc.operand_first * static_cast<std::uint32_t>(sizeof(wire::OperandParams)),
          operands * sizeof(wire::OperandParams));
  changed(tables.blocks[index].offset, tables.blocks[index].bytes);
  return {};
}

void Instance::feed(const PlanTables& tables, std::span<const Feed> feeds) {
  if (std::equal(feeds.begin(), feeds.end(), feeds_.begin(), feeds_.end())) return;
  for (const Feed& old : feeds_) move_input(tables, old.tensor, 0);
  for (const Feed& feed : feeds) move_input(tables, feed.tensor, feed.address);
  feeds_.assign(feeds.begin(), feeds.end());
}

// Offsets count from the arena in either case; arithmetic on addresses wraps.
void Instance::move_input(const PlanTables& tables, std::uint32_t tensor, std::uint64_t address) {
  const std::uint64_t shift = address == 0 ? 0 : address - (head().arena + tables.plan.tensors[tensor].offset);
  for (std::uint32_t i = 0; i < tables.plan.operands.size(); ++i) {
    const plan::OperandDesc& desc = tables.plan.operands[i];
    if (!is_of_input(tables, desc, tensor) || tables.operand_op[i] == plan::kNone) continue;
    wire::OperandParams& operand = table<wire::OperandParams>(head().operands)[i];
    operand.offset = static_cast<std::uint64_t>(dim(desc.offset)) + shift;
    fill_block(tables, tables.operand_op[i]);
    changed(head().operands + i * static_cast<std::uint32_t>(sizeof(operand)), sizeof(operand));
    changed(tables.blocks[tables.operand_op[i]].offset, tables.blocks[tables.operand_op[i]].bytes);
  }
}

void Instance::changed(std::uint32_t first, std::size_t bytes) {
  changes_.push_back({first, first + static_cast<std::uint32_t>(bytes)});
}

std::span<const FrameRange> Instance::take_changes() {
  taken_.clear();
  std::sort(changes_.begin(), changes_.end(), [](const FrameRange& a, const FrameRange& b) { return a.first < b.first; });
  for (const FrameRange& range : changes_) {
    if (!taken_.empty() && range.first <= taken_.back().end + kFrameGapBytes) {
      taken_.back().end = std::max(taken_.back().end, range.end);
    } else {
      taken_.push_back(range);
    }
  }
  changes_.clear();
  return taken_;
}

}  // namespace ccks::scheduler

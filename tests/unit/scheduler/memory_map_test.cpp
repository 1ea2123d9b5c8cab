// Rings for weights take shared memory from caches, so only programs that may use one ask for it.
#include "scheduler/memory_map.hpp"

#include <gtest/gtest.h>

#include <array>

namespace ccks::scheduler {
namespace {

bool streams(wire::OpCode kind, wire::Space space, wire::Dtype dtype, std::uint32_t guards = 0) {
  plan::OpDesc other{}, op{};
  other.kind = wire::OpCode::map;
  op.kind = kind;
  op.operand_first = 2;
  op.input_count = 2;
  op.guard_count = guards;
  std::array<plan::OperandDesc, 5> operands{};
  operands[3].space = space;
  operands[3].dtype = dtype;
  const std::array ops = {other, op};
  plan::PlanView view;
  view.ops = ops;
  view.operands = operands;
  return may_stream(view);
}

TEST(MemoryMap, ARingIsForProductsOfSixteenBitWeights) {
  EXPECT_TRUE(streams(wire::OpCode::matmul, wire::Space::weights, wire::Dtype::bf16));
  EXPECT_TRUE(streams(wire::OpCode::matmul, wire::Space::weights, wire::Dtype::f16));
  EXPECT_FALSE(streams(wire::OpCode::matmul, wire::Space::weights, wire::Dtype::f32));
  EXPECT_FALSE(streams(wire::OpCode::matmul, wire::Space::arena, wire::Dtype::bf16));
  EXPECT_FALSE(streams(wire::OpCode::matmul, wire::Space::weights, wire::Dtype::bf16, 1));
  EXPECT_FALSE(streams(wire::OpCode::gather, wire::Space::weights, wire::Dtype::bf16));
}

}  // namespace
}  // namespace ccks::scheduler

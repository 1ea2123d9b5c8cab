// GraphOps: the op bodies of GraphPlan (engine_graph.hpp), for workers of every device.
//
// Operands of a graph op: 0 the seed word, 1 the op's own output, 2 its report words, 3 the state word, then one for
// each edge. dims: [0] op number, [1] edges, [2 + i] tiles of producer i or 0 for "same tile", at most six edges.
// scalars: [0] microseconds that a tile takes at least, [1] not 0: each tile reports a fault.
#pragma once

#include "ccks/wire/frame.hpp"
#include "ccks/wire/task.hpp"

namespace ccks::test {

CCKS_HD inline wire::u64 graph_mix(wire::u64 a, wire::u64 b) {
  wire::u64 x = a ^ (b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2));
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ x >> 29;
}

/// Element `i` of what a report publishes: how many rows of its dynamic consumers exist, or whether its guards hold.
CCKS_HD inline wire::i32 graph_report(wire::u64 hash, wire::u32 i) { return static_cast<wire::i32>((hash >> i % 64) % 4); }

/// Machine is how a tile spends its time: u64 begin(float us) at its start, void end(begin, us) when its work is done.
template <class Machine>
struct GraphOps {
  template <class Lanes>
  CCKS_HD static wire::FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tile) {
    if (lanes.lane() != 0) return wire::FaultCode::none;
    const wire::u64 begin = Machine::begin(op.scalars[0]);
    body(frame, op, tile);
    Machine::end(begin, op.scalars[0]);
    return op.scalars[1] != 0 ? wire::FaultCode::op_fault : wire::FaultCode::none;
  }

 private:
  CCKS_HD static wire::u64* words(const wire::RunFrame& frame, const wire::OperandParams& operand) {
    const bool state = operand.space == static_cast<wire::u8>(wire::Space::state);
    return reinterpret_cast<wire::u64*>((state ? frame.state : frame.arena) + operand.offset);
  }

  CCKS_HD static void body(const wire::RunFrame& frame, const wire::OpParams& op, wire::u32 tile) {
    const auto* operands =
        reinterpret_cast<const wire::OperandParams*>(reinterpret_cast<const char*>(&frame) + frame.operands) +
        op.operand_first;
    if (operands[1].dim[0] > 0 && missing(frame, operands, op, tile)) return;
    wire::u64 value = graph_mix(words(frame, operands[0])[0], (static_cast<wire::u64>(op.dims[0]) << 32) + tile);
    for (int e = 0; e < op.dims[1]; ++e) {
      const wire::u64* in = words(frame, operands[4 + e]);
      const int count = op.dims[2 + e];
      for (int i = 0; i < count; ++i) value = graph_mix(value, in[i]);
      if (count == 0) value = graph_mix(value, in[tile]);
    }
    if (operands[3].space == static_cast<wire::u8>(wire::Space::state)) {
      wire::u64* state = words(frame, operands[3]);
      value = *state = graph_mix(*state, value);
    }
    words(frame, operands[1])[tile] = value;
    if (op.report < 0 || tile != 0) return;
    auto* report = reinterpret_cast<wire::i32*>(words(frame, operands[2]));
    const wire::u32 count = op.report_bytes / sizeof(wire::i32);
    for (wire::u32 i = 0; i < count; ++i) report[i] = graph_report(value, i);
  }

  // Dynamic ops: operand 2 points at the report they count with; one row is one tile.
  CCKS_HD static bool missing(const wire::RunFrame& frame, const wire::OperandParams* operands, const wire::OpParams& op,
                              wire::u32 tile) {
    if ((op.flags & wire::kOpDynamic) == 0) return false;
    const auto* counts = reinterpret_cast<const wire::i32*>(frame.arena + operands[2].offset);
    wire::u32 rows = 0;
    for (int i = 0; i < operands[2].dim[3]; ++i) rows += static_cast<wire::u32>(counts[i]);
    return tile / static_cast<wire::u32>(op.grid[3]) >= rows;
  }
};

}  // namespace ccks::test

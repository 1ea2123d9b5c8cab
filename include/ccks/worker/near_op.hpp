// Bodies of a decode step that read what they want of their op from memory the lanes share, where a worker has copied it, and
// leave to the host what is the same for all tiles (wire/op_shape.hpp). Such a body is a tenth of one that takes any op.
#pragma once

#include "ccks/wire/op_shape.hpp"
#include "ccks/worker/call.hpp"

namespace ccks::worker {
inline namespace CCKS_ISA {

inline constexpr u32 kNearOperands = wire::kBlockOperands;
/// An op whose operands follow it and hold addresses.
struct NearOp {
  OpParams op;
  OperandParams operands[kNearOperands];

  CCKS_INLINE u8* begin(u32 operand) const { return reinterpret_cast<u8*>(operands[operand].offset); }
};

/// Lanes that can do with it.
template <class Lanes>
concept NearLanes = requires(Lanes& lanes, const NearOp* op) { lanes.nearby(op); };

/// Where a worker has made no copy of the op: one at the end of scratch.
template <class Lanes>
CCKS_OUTLINE const NearOp* copy_near(Lanes& lanes, const Call& call) {
  NearOp* copy = reinterpret_cast<NearOp*>(lanes.scratch() + kMinScratchBytes - sizeof(NearOp));
  if (lanes.lane() == 0) {
    copy->op = call.op;
    for (u32 i = 0; i < u32{call.op.input_count} + call.op.output_count; ++i) {
      copy->operands[i] = call.operands[i];
      copy->operands[i].offset = reinterpret_cast<u64>(operand_base(call.frame, call.operands[i]));
    }
  }
  lanes.sync();
  return copy;
}
template <class Lanes>
CCKS_INLINE const NearOp* near_op(Lanes& lanes, const Call& call) {
  return call.op.operands != 0 ? reinterpret_cast<const NearOp*>(&call.op) : copy_near(lanes, call);
}

}  // namespace CCKS_ISA
}  // namespace ccks::worker

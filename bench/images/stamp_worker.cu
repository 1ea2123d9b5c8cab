// Workers for hand-made plans (tests/support/engine_graph.hpp) whose tiles write down when they ran: the low 32 bits of the
// GPU's clock at the start of the body, and in the upper half those at its end. A reporting op publishes kStampRows rows.
// An op whose producers have not run just before it is a fault.
#define CCKS_WORKER_STREAMS 0  // as the JIT makes workers of programs in which nothing streams
#include "bench/images/stamp.hpp"
#include "ccks/worker/cuda_entry.cuh"

namespace {

using namespace ccks;
using wire::u32;
using wire::u64;

struct StampOps {
  template <class Lanes>
  static __device__ wire::FaultCode run(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op, u32 tile) {
    if (lanes.lane() != 0) return wire::FaultCode::none;
    const u32 start = static_cast<u32>(worker::ptx::globaltimer());
    const auto* operands =
        reinterpret_cast<const wire::OperandParams*>(reinterpret_cast<const char*>(&frame) + frame.operands) +
        op.operand_first;
    for (int e = 0; e < op.dims[1]; ++e) {
      const auto* words = reinterpret_cast<const u64*>(frame.arena + operands[4 + e].offset);
      const u32 ended = static_cast<u32>(words[0] >> 32);
      if (start - ended > bench::kStampLimitNs) return wire::FaultCode::op_fault;
    }
    if (op.report >= 0) *reinterpret_cast<wire::i32*>(frame.arena + operands[2].offset) = bench::kStampRows;
    const u64 end = static_cast<u32>(worker::ptx::globaltimer());
    reinterpret_cast<u64*>(frame.arena + operands[1].offset)[tile] = end << 32 | start;
    return wire::FaultCode::none;
  }
};

}  // namespace

CCKS_CUDA_WORKER(StampOps)

// Bodies of a decode step that are called, as the JIT compiles them: what they keep on a stack is stored and loaded by every tile.
#define CCKS_WORKER_STREAMS 1
#include "ccks/worker/linked_ops.cuh"

namespace {

using namespace ccks::worker;
using Attention = TypedOp<OpCode::attention, Code<>, Dtype::bf16, Dtype::bf16, Dtype::bf16, Dtype::bf16>;

}  // namespace

CCKS_CUDA_LINKED_BODY(probe_step_attention, Attention)

// Bodies of products whose sums stay in registers to the end, as the JIT compiles them: of each width, with a bias alone, and with rows of their own that are added to the sums.
#define CCKS_WORKER_STREAMS 0
#define CCKS_WORKER_ROW_TAGS 0
#include "ccks/worker/linked_ops.cuh"

namespace {

using namespace ccks::worker;
using Biased = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
using Residual = Code<Ins<ExprOp::arg_f, 0, 0, 0, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 1>, Ins<ExprOp::add_f, 0, 0, 1, 0>, Ins<ExprOp::arg_f, 1, 0, 0, 2>, Ins<ExprOp::add_f, 0, 0, 1, 0>>;
template <u32 kColumns, Dtype D>
using Bias = BlocksOp<OpCode::matmul, Biased, kColumns, 0, D, D, D, D>;
template <u32 kColumns, Dtype D>
using Rows = BlocksOp<OpCode::matmul, Residual, kColumns, 2, D, D, D, D, D>;

}  // namespace

#define PROBE(columns, type)                                                 \
  using Bias##columns##type = Bias<columns, Dtype::type>;                     \
  using Rows##columns##type = Rows<columns, Dtype::type>;                     \
  CCKS_CUDA_LINKED_BLOCKS(probe_bias_##columns##_##type, Bias##columns##type) \
  CCKS_CUDA_LINKED_BLOCKS(probe_rows_##columns##_##type, Rows##columns##type)
PROBE(64, bf16)
PROBE(128, bf16)
PROBE(192, bf16)
PROBE(256, bf16)
PROBE(256, f16)

// The op bodies of test plans as an image of their own: what a handoff under graph_loop.cu loads.
#define CCKS_WORKER_QUEUES 0
#define CCKS_WORKER_STREAMS 0
#define CCKS_WORKER_DECIDES 0
#include "ccks/worker/apart_ops.cuh"
#include "tests/support/graph_ops_cuda.hpp"

CCKS_CUDA_APART_BODIES(ccks::test::GraphOps<ccks::test::GpuTime>)

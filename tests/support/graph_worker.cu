// Workers on a GPU for plans made by hand (engine_graph.hpp).
#include "ccks/worker/cuda_entry.cuh"
#include "tests/support/graph_ops_cuda.hpp"

CCKS_CUDA_WORKER(ccks::test::GraphOps<ccks::test::GpuTime>)

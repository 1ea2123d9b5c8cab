// The workers that `ccks-bench handoff` loads: as those of test plans, made for all arms but gpu_queue, without a ring for weights, without guards and of machine code
// alone, as the JIT makes them.
#define CCKS_WORKER_QUEUES 0
#define CCKS_WORKER_STREAMS 0
#define CCKS_WORKER_DECIDES 0
#include "tests/support/graph_worker.cu"

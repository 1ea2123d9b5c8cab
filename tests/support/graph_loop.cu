// The loop of workers whose op bodies are an image of their own, with what handoff_worker.cu is made with.
#define CCKS_WORKER_QUEUES 0
#define CCKS_WORKER_STREAMS 0
#define CCKS_WORKER_DECIDES 0
#include "ccks/worker/apart_ops.cuh"

CCKS_CUDA_APART_LOOP()

// The generic CUDA worker: every op, driven by the frame.
#include "ccks/worker/cuda_entry.cuh"
#include "ccks/worker/generic_ops.hpp"

CCKS_CUDA_WORKER(ccks::worker::GenericOps)

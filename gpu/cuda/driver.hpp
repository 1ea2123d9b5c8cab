// The CUDA driver API, opened at run time: a machine without a driver runs everything but the cuda device.
#pragma once

#include <cuda.h>

#include <string>

#include "ccks/result.hpp"

namespace ccks::gpu {

// The functions we call, by the names of <cuda.h>, which macros turn into versioned symbols (cuMemAlloc_v2).
#define CCKS_CU_FUNCTIONS(X)                                                                       \
  X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetErrorString)                            \
  X(cuDeviceGet) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDeviceTotalMem)\
  X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent)  \
  X(cuCtxGetLimit) X(cuCtxSetLimit)                                                                \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuStreamQuery)                     \
  X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostGetDevicePointer)       \
  X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync)                                                        \
  X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction)                                     \
  X(cuFuncGetAttribute) X(cuFuncSetAttribute) X(cuOccupancyMaxActiveBlocksPerMultiprocessor)       \
  X(cuLaunchKernel) X(cuLaunchCooperativeKernel)

// Functions that an old driver may lack: null there. Whoever calls one asks first.
#define CCKS_CU_OPTIONAL_FUNCTIONS(X)                                                              \
  X(cuLaunchKernelEx) X(cuStreamBeginCapture) X(cuStreamEndCapture)                                \
  X(cuGraphCreate) X(cuGraphAddKernelNode) X(cuGraphInstantiate) X(cuGraphLaunch)                  \
  X(cuGraphExecDestroy) X(cuGraphDestroy)                                                          \
  X(cuModuleGetLoadingMode) X(cuLibraryLoadData) X(cuLibraryUnload) X(cuLibraryGetKernel) X(cuKernelGetFunction)   \
  X(cuLibraryGetGlobal) X(cuModuleGetGlobal)

/// One pointer a function; every one but the optional ones is set once load_driver() has succeeded.
struct Driver {
#define CCKS_CU_MEMBER(name) decltype(&::name) name = nullptr;
  CCKS_CU_FUNCTIONS(CCKS_CU_MEMBER)
  CCKS_CU_OPTIONAL_FUNCTIONS(CCKS_CU_MEMBER)
#undef CCKS_CU_MEMBER
};

/// Opens the driver and calls cuInit, once in a process. `unavailable` with the reason where there is no driver or GPU.
Result<const Driver*> load_driver();

/// The Status of a failed call: expression, place, and the driver's own name and words.
Status driver_error(const Driver& driver, CUresult result, const char* expression, const char* file, int line);

/// Returns from the enclosing function if `expr`, a call of the driver, fails.
#define CCKS_CU(driver, expr)                                                                      \
  do {                                                                                             \
    if (const CUresult ccks_cu_ = (driver).expr; ccks_cu_ != CUDA_SUCCESS)                         \
      return ::ccks::gpu::driver_error((driver), ccks_cu_, #expr, __FILE__, __LINE__);             \
  } while (0)

/// Makes a context current for one scope and gives back what was current before: clients may use CUDA themselves.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, CUcontext context) : driver_(driver) {
    pushed_ = driver_.cuCtxPushCurrent(context) == CUDA_SUCCESS;
  }
  ~ScopedContext() {
    CUcontext popped;
    if (pushed_) (void)driver_.cuCtxPopCurrent(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
};

}  // namespace ccks::gpu

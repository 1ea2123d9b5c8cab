#include "tests/support/cuda_kernels.hpp"

#include <thread>

namespace ccks::test {

Result<std::unique_ptr<CudaKernels>> CudaKernels::open(const void* image) {
  auto driver = gpu::load_driver();
  if (!driver.ok()) return driver.status();
  std::unique_ptr<CudaKernels> kernels(new CudaKernels(*driver.value()));
  CCKS_RETURN_IF_ERROR(kernels->init(image));
  return kernels;
}

Status CudaKernels::init(const void* image) {
  auto device = open_device({.kind = "cuda"});
  if (!device.ok()) return device.status();
  device_ = std::move(device.value());
  CCKS_CU(driver_, cuDeviceGet(&gpu_, 0));
  CCKS_CU(driver_, cuDevicePrimaryCtxRetain(&context_, gpu_));  // the device's own context: its memory is ours to use
  const gpu::ScopedContext current(driver_, context_);
  CCKS_CU(driver_, cuModuleLoadData(&module_, image));
  CCKS_CU(driver_, cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  return {};
}

CudaKernels::~CudaKernels() {
  if (context_ == nullptr) return;
  {
    const gpu::ScopedContext current(driver_, context_);
    if (stream_ != nullptr) (void)driver_.cuStreamDestroy(stream_);
    if (module_ != nullptr) (void)driver_.cuModuleUnload(module_);
  }
  device_.reset();
  (void)driver_.cuDevicePrimaryCtxRelease(gpu_);
}

Status CudaKernels::launch(const char* kernel, std::uint32_t blocks, std::uint32_t threads, void* argument) {
  const gpu::ScopedContext current(driver_, context_);
  CUfunction function = nullptr;
  CCKS_CU(driver_, cuModuleGetFunction(&function, module_, kernel));
  void* arguments[] = {argument};
  CCKS_CU(driver_, cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_, arguments));
  // A launch need not reach the GPU while the host only spins on memory.
  return ended().status();
}

Result<bool> CudaKernels::ended() {
  const gpu::ScopedContext current(driver_, context_);
  const CUresult result = driver_.cuStreamQuery(stream_);
  if (result == CUDA_ERROR_NOT_READY) return false;
  if (result == CUDA_SUCCESS) return true;
  return gpu::driver_error(driver_, result, "cuStreamQuery(stream_)", __FILE__, __LINE__);
}

Status CudaKernels::wait(std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    const Result<bool> over = ended();
    if (!over.ok() || over.value()) return over.status();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return {ErrorCode::deadline_exceeded, "a kernel has not ended"};
}

}  // namespace ccks::test

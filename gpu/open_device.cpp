#include <fmt/format.h>

#include "ccks/device.hpp"
#include "gpu/host/host_device.hpp"
#if defined(CCKS_HAVE_CUDA)
#include "gpu/cuda/cuda_device.hpp"
#endif

namespace ccks {
namespace {

Result<std::unique_ptr<Device>> open_cuda(const DeviceOptions& options) {
#if defined(CCKS_HAVE_CUDA)
  return gpu::open_cuda_device(options);
#else
  (void)options;
  return {ErrorCode::unavailable, "this build has no CUDA side: nvcc was not found when it was configured"};
#endif
}

}  // namespace

Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options) {
  if (options.kind == "host") return gpu::HostDevice::open(options);
  if (options.kind == "cuda") return open_cuda(options);
  if (options.kind == "auto") {
    auto device = open_cuda(options);
    // A wrong option stays an error; a missing GPU does not.
    if (device.ok() || device.status().code() == ErrorCode::invalid_argument) return device;
    return gpu::HostDevice::open(options, device.status().message());
  }
  return {ErrorCode::invalid_argument, fmt::format("unknown device '{}': use auto, host or cuda", options.kind)};
}

}  // namespace ccks

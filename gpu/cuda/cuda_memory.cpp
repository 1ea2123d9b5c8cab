#include "gpu/cuda/cuda_memory.hpp"

#include <algorithm>
#include <cstring>

namespace ccks::gpu {
namespace {

class PinnedTransport final : public Transport {
 public:
  PinnedTransport(const Driver& driver, CUcontext context) : driver_(driver), context_(context) {}
  const char* name() const override { return "pinned"; }
  // A look takes 1.2 us, and the host's word is there 1.65 us after the event: with no rest every second look found it (gpu/README.md).
  std::uint32_t verdict_rest_ns() const override { return 300; }

  Result<Block> allocate(std::uint64_t bytes) override {
    const ScopedContext current(driver_, context_);
    const std::uint64_t size = std::max<std::uint64_t>(bytes, 256);
    void* address = nullptr;
    CCKS_CU(driver_, cuMemHostAlloc(&address, size, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    CUdeviceptr mapped = 0;
    const CUresult result = driver_.cuMemHostGetDevicePointer(&mapped, address, 0);
    if (result != CUDA_SUCCESS || mapped != reinterpret_cast<CUdeviceptr>(address)) {
      (void)driver_.cuMemFreeHost(address);
      return {ErrorCode::unsupported, "the GPU does not see pinned memory at its host address (no unified addressing)"};
    }
    std::memset(address, 0, size);
    return Block{address, size};
  }
  void release(const Block& block) override {
    const ScopedContext current(driver_, context_);
    (void)driver_.cuMemFreeHost(block.address);  // nobody to tell: the device is being torn down
  }

 private:
  const Driver& driver_;
  CUcontext context_;
};

}  // namespace

std::unique_ptr<Transport> make_pinned_transport(const Driver& driver, CUcontext context) {
  return std::make_unique<PinnedTransport>(driver, context);
}

Status CopyEngine::open(const Driver& driver, CUcontext context) {
  driver_ = &driver;
  context_ = context;
  const ScopedContext current(driver, context);
  for (Channel& channel : channels_) CCKS_RETURN_IF_ERROR(open_channel(channel));
  return {};
}

Status CopyEngine::open_channel(Channel& channel) {
  CCKS_CU(*driver_, cuStreamCreate(&channel.stream, CU_STREAM_NON_BLOCKING));
  CCKS_CU(*driver_, cuMemHostAlloc(&channel.staging, kStagingBytes, CU_MEMHOSTALLOC_PORTABLE));
  return {};
}

void CopyEngine::close() {
  if (driver_ == nullptr) return;
  const ScopedContext current(*driver_, context_);
  for (Channel& channel : channels_) {
    if (channel.stream != nullptr) (void)driver_->cuStreamDestroy(channel.stream);
    if (channel.staging != nullptr) (void)driver_->cuMemFreeHost(channel.staging);
    channel.stream = nullptr;
    channel.staging = nullptr;
  }
}

CopyEngine::Channel& CopyEngine::take(std::unique_lock<std::mutex>& lock) {
  { const std::lock_guard free(paused_); }  // what has begun may go on beside a load
  for (Channel& channel : channels_) {
    lock = std::unique_lock(channel.mutex, std::try_to_lock);
    if (lock.owns_lock()) return channel;
  }
  lock = std::unique_lock(channels_[0].mutex);
  return channels_[0];
}

Status CopyEngine::write(CUdeviceptr to, const void* from, std::uint64_t bytes) {
  std::unique_lock<std::mutex> lock;
  Channel& channel = take(lock);
  const ScopedContext current(*driver_, context_);
  return write_chunks(channel, to, static_cast<const char*>(from), bytes);
}

Status CopyEngine::read(void* to, CUdeviceptr from, std::uint64_t bytes) {
  std::unique_lock<std::mutex> lock;
  Channel& channel = take(lock);
  const ScopedContext current(*driver_, context_);
  return read_chunks(channel, static_cast<char*>(to), from, bytes);
}

// By copies, not by a memset: that is a kernel, and resident workers may have taken every register of every SM.
Status CopyEngine::fill_zero(CUdeviceptr to, std::uint64_t bytes) {
  if (bytes == 0) return {};
  std::unique_lock<std::mutex> lock;
  Channel& channel = take(lock);
  const ScopedContext current(*driver_, context_);
  std::memset(channel.staging, 0, std::min(bytes, kStagingBytes));
  for (; bytes > 0; to += std::min(bytes, kStagingBytes), bytes -= std::min(bytes, kStagingBytes)) {
    CCKS_CU(*driver_, cuMemcpyHtoDAsync(to, channel.staging, std::min(bytes, kStagingBytes), channel.stream));
  }
  CCKS_CU(*driver_, cuStreamSynchronize(channel.stream));
  return {};
}

Status CopyEngine::write_chunks(Channel& channel, CUdeviceptr to, const char* from, std::uint64_t bytes) {
  while (bytes > 0) {
    const std::uint64_t size = std::min(bytes, kStagingBytes);
    std::memcpy(channel.staging, from, size);
    CCKS_CU(*driver_, cuMemcpyHtoDAsync(to, channel.staging, size, channel.stream));
    CCKS_CU(*driver_, cuStreamSynchronize(channel.stream));
    to += size;
    from += size;
    bytes -= size;
  }
  return {};
}

Status CopyEngine::read_chunks(Channel& channel, char* to, CUdeviceptr from, std::uint64_t bytes) {
  while (bytes > 0) {
    const std::uint64_t size = std::min(bytes, kStagingBytes);
    CCKS_CU(*driver_, cuMemcpyDtoHAsync(channel.staging, from, size, channel.stream));
    CCKS_CU(*driver_, cuStreamSynchronize(channel.stream));
    std::memcpy(to, channel.staging, size);
    to += size;
    from += size;
    bytes -= size;
  }
  return {};
}

}  // namespace ccks::gpu

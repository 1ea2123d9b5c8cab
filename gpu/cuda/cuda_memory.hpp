// Copies to and from GPU memory while workers are resident, and link memory of the pinned kind.
#pragma once

#include <array>
#include <mutex>

#include "gpu/cuda/driver.hpp"
#include "gpu/transport.hpp"

namespace ccks::gpu {

/// Page-locked host memory, mapped into the GPU at the same address. The context must outlive it.
std::unique_ptr<Transport> make_pinned_transport(const Driver& driver, CUcontext context);

/// CopyEngine copies through pinned staging on non-blocking streams of its own, so it never waits for the workers' stream.
/// Thread-safe; up to kChannels copies at once. `open` before use; `close` before the context goes.
class CopyEngine {
 public:
  Status open(const Driver& driver, CUcontext context);
  void close();
  Status write(CUdeviceptr to, const void* from, std::uint64_t bytes);
  Status read(void* to, CUdeviceptr from, std::uint64_t bytes);
  Status fill_zero(CUdeviceptr to, std::uint64_t bytes);
  /// While the lock is held no copy begins. For module loads: copies beside them take turns with them at the context's lock,
  /// and those who wait for the load wait for all of it.
  [[nodiscard]] std::unique_lock<std::mutex> pause() { return std::unique_lock(paused_); }

 private:
  static constexpr std::uint64_t kStagingBytes = 4u << 20;  // long enough to reach PCIe's full rate
  static constexpr std::size_t kChannels = 4;

  struct Channel {
    std::mutex mutex;
    CUstream stream = nullptr;
    void* staging = nullptr;
  };
  /// A channel nobody uses, or else the next in turn; `lock` holds it.
  Channel& take(std::unique_lock<std::mutex>& lock);
  Status write_chunks(Channel& channel, CUdeviceptr to, const char* from, std::uint64_t bytes);
  Status read_chunks(Channel& channel, char* to, CUdeviceptr from, std::uint64_t bytes);
  Status open_channel(Channel& channel);

  const Driver* driver_ = nullptr;
  CUcontext context_ = nullptr;
  std::array<Channel, kChannels> channels_;
  std::mutex paused_;
};

}  // namespace ccks::gpu

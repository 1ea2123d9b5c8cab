// The GPU that the fake driver plays: memory is the host's, a grid is a set of threads.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace ccks::test {

class FakeGpu {
 public:
  void reset();
  bool set(const std::string& name, long value);
  std::uint64_t modules_loaded();
  std::uint64_t loads() const { return loads_.load(std::memory_order_relaxed); }  // relaxed: a counter
  std::uint64_t launches() const { return launches_.load(std::memory_order_relaxed); }  // relaxed, both: counters
  std::uint64_t calls_that_blocked() const { return blocked_.load(std::memory_order_relaxed); }

  // By the names of the driver's functions, without "cu".
  CUresult init() const { return static_cast<CUresult>(settings_.init_error); }
  CUresult device_count(int* count) const;
  CUresult device_name(char* name, int length) const;
  CUresult attribute(int* value, CUdevice_attribute which) const;
  CUresult total_memory(std::size_t* bytes) const;
  CUresult stream_create(CUstream* stream);
  CUresult stream_query();
  CUresult stream_synchronize();
  CUresult allocate(void** address, std::size_t bytes, bool device);
  CUresult release(void* address);
  CUresult copy(void* to, const void* from, std::size_t bytes);
  CUresult fill(void* to, unsigned char value, std::size_t bytes);
  CUresult module_load(CUmodule* module, const void* image);
  CUresult module_unload(CUmodule module);
  CUresult module_function(CUfunction* function, CUmodule module, const char* name) const;
  CUresult module_global(CUdeviceptr* address, std::size_t* bytes, CUmodule module, const char* name) const;
  CUresult loading_mode(CUmoduleLoadingMode* mode) const;
  CUresult library_load(CUlibrary* library, const void* image);
  CUresult kernel_function(CUfunction* function, CUkernel kernel);
  CUresult get_limit(std::size_t* value, CUlimit limit) const;
  CUresult set_limit(CUlimit limit, std::size_t value);
  std::size_t stack_limit() const { return stack_limit_.load(std::memory_order_relaxed); }  // relaxed: a lone word
  CUresult function_attribute(int* value, CUfunction_attribute which, CUfunction function) const;
  CUresult occupancy(int* blocks, std::size_t dynamic_shared) const;
  CUresult launch_clock(void** arguments);
  CUresult launch_grid(CUfunction function, unsigned blocks, void** arguments);

 private:
  static constexpr std::size_t kStackLimit = 1024;  // as a driver has it unless told otherwise
  CUresult sticky() const;
  void wait_for_grid();
  CUresult make_module(CUmodule* module, const void* image);
  bool grid_alive() const { return alive_.load(std::memory_order_acquire) != 0; }  // [F2] pairs with [F1]

  FakeSettings settings_;
  std::mutex mutex_;  // guards the three below
  std::map<void*, std::size_t> host_blocks_, device_blocks_;
  std::set<CUmodule> modules_;
  std::atomic<std::uint32_t> alive_{0};  // threads of grids; [F1] released by each as its last act
  std::atomic<std::size_t> stack_limit_{kStackLimit};
  std::atomic<std::uint64_t> loads_{0}, launches_{0}, blocked_{0};
  std::atomic<std::int64_t> launched_at_ns_{0};
};

FakeGpu& fake_gpu();

}  // namespace ccks::test

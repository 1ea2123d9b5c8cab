// A CUDA driver for tests: libcuda's functions, as far as the library calls them. It either plays a GPU on threads of this
// process, with faults on request, or forwards to the real driver. Both ways it counts calls by the name of the thread.
//
// CCKS_CUDA_DRIVER names the library file in the driver's place. CCKS_FAKE_CUDA is a list of settings, "name=value,...":
//   forward=1         calls go to the real libcuda.so.1
//   log=PATH          at exit: one line "thread-name calls" for each thread that called
//   times=PATH        at exit: one line "begin duration thread-name function" for each call, in microseconds
//   and the numbers of FakeSettings by their names
#pragma once

#include <cstddef>
#include <cstdint>

#include "ccks/device.hpp"

namespace ccks::test {

/// What the played GPU is like. All of it may be changed at any time through FakeCuda::set.
struct FakeSettings {
  long devices = 1;
  long processors = 4;
  long cooperative = 1;
  long shared_bytes = 232448;        // of a block, with opt-in
  long memory_bytes = 1l << 30;
  long coherent = 0;                 // 1: page tables of the CPU and native atomics, as on a Grace-class machine
  long init_error = 0;               // CUresult of cuInit
  long launch_error = 0;             // CUresult of cooperative launches
  long load_error = 0;               // CUresult of module loads
  long lazy = 0;                     // 1: as under CUDA_MODULE_LOADING=LAZY a library is opened without waiting for grids
  long sticky_error = 0;             // CUresult of every call once `sticky_after_ms` have passed since the last launch
  long sticky_after_ms = 0;
  long start_delay_ms = 0;           // between a launch and the first instruction of a worker
};

/// An image that the played GPU can load: WorkerImage::cuda_image points at one. Anything else is the generic worker.
struct FakeImage {
  char magic[16] = "ccks-fake-image";
  HostWorkerEntry entry = nullptr;  // of bodies that are an image of their own: of a worker that has them
  unsigned registers = 168, stack_bytes = 0;
};

/// What `ccks_fake_cuda`, exported by the library, returns. One in a process.
struct FakeCuda {
  /// Forgets settings, sticky errors and counts; CCKS_FAKE_CUDA counts again. No grid may be alive.
  void (*reset)();
  /// False if there is no such setting.
  bool (*set)(const char* name, long value);
  std::uint64_t (*calls)(const char* thread_name);
  std::uint64_t (*modules_loaded)();      // alive now
  std::uint64_t (*loads)();               // of modules, until now
  std::size_t (*stack_limit)();           // of a thread, in bytes
  std::uint64_t (*launches)();            // cooperative
  std::uint64_t (*calls_that_blocked)();  // loads, unloads and frees behind a resident grid
};

using FakeCudaEntry = const FakeCuda* (*)();

}  // namespace ccks::test

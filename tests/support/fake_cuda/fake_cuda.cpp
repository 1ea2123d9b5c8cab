// The exported functions: count, then play or forward.
#include <dlfcn.h>
#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/fake_gpu.hpp"

namespace ccks::test {
namespace {

using Clock = std::chrono::steady_clock;

struct TimedCall {
  Clock::time_point begin, end;
  const char* function;
  char thread[16];
};

class Driver {
 public:
  Driver() {
    read_settings();
    std::atexit([] { driver().write_log(); });
  }
  static Driver& driver() {
    static Driver* one = new Driver;
    return *one;
  }

  void count() {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof(name));
    const std::lock_guard lock(mutex_);
    ++calls_[name];
  }
  bool timing() const { return !times_.empty(); }
  void add_time(const char* function, Clock::time_point begin) {
    const Clock::time_point end = Clock::now();
    TimedCall call{begin, end, function, ""};
    pthread_getname_np(pthread_self(), call.thread, sizeof(call.thread));
    const std::lock_guard lock(mutex_);
    timed_.push_back(call);
  }
  std::uint64_t calls(const char* name) {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(name);
    return found == calls_.end() ? 0 : found->second;
  }
  /// The real driver's function, or null when a GPU is played.
  void* real(const char* symbol) const { return real_ == nullptr ? nullptr : dlsym(real_, symbol); }
  void reset() {
    fake_gpu().reset();
    read_settings();
    const std::lock_guard lock(mutex_);
    calls_.clear();
  }

 private:
  void read_settings() {
    const char* text = std::getenv("CCKS_FAKE_CUDA");
    std::string rest = text == nullptr ? "" : text;
    while (!rest.empty()) {
      const std::string one = rest.substr(0, rest.find(','));
      rest.erase(0, one.size() + 1);
      const std::size_t at = one.find('=');
      if (at != std::string::npos) apply(one.substr(0, at), one.substr(at + 1));
    }
  }
  void apply(const std::string& name, const std::string& value) {
    if (name == "log") {
      log_ = value;
    } else if (name == "times") {
      times_ = value;
    } else if (name == "forward") {
      if (real_ == nullptr) real_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
      if (real_ == nullptr) std::abort();
    } else if (!fake_gpu().set(name, std::atol(value.c_str()))) {
      std::fprintf(stderr, "CCKS_FAKE_CUDA: no setting '%s'\n", name.c_str());
      std::abort();
    }
  }
  void write_log() {
    const std::lock_guard lock(mutex_);
    if (std::FILE* file = log_.empty() ? nullptr : std::fopen(log_.c_str(), "w"); file != nullptr) {
      for (const auto& [name, calls] : calls_) std::fprintf(file, "%s %llu\n", name.c_str(), (unsigned long long)calls);
      std::fclose(file);
    }
    if (std::FILE* file = times_.empty() ? nullptr : std::fopen(times_.c_str(), "w"); file != nullptr) {
      for (const TimedCall& call : timed_) {
        const auto us = [](Clock::duration t) { return std::chrono::duration<double, std::micro>(t).count(); };
        std::fprintf(file, "%.1f %.1f %s %s\n", us(call.begin - timed_.front().begin), us(call.end - call.begin), call.thread, call.function);
      }
      std::fclose(file);
    }
  }

  std::mutex mutex_;
  std::map<std::string, std::uint64_t> calls_;
  std::string log_, times_;
  std::vector<TimedCall> timed_;
  void* real_ = nullptr;
};

Driver& driver() { return Driver::driver(); }

CUresult error_text(CUresult error, const char** text, bool name) {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY: *text = name ? "CUDA_ERROR_OUT_OF_MEMORY" : "out of memory"; break;
    case CUDA_ERROR_NO_DEVICE: *text = name ? "CUDA_ERROR_NO_DEVICE" : "no CUDA-capable device is detected"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *text = name ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "an illegal memory access"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *text = name ? "CUDA_ERROR_LAUNCH_FAILED" : "unspecified launch failure"; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ccks::test

using ccks::test::driver;
using ccks::test::fake_gpu;

// Two levels, so that the versioned name behind the macro of <cuda.h> becomes the string.
#define TEXT2(name) #name
#define TEXT(name) TEXT2(name)
// EXPORT(name, (parameters), (arguments), what to do when a GPU is played)
#define EXPORT(name, parameters, arguments, play)                                            \
  extern "C" CUresult CUDAAPI name parameters {                                              \
    driver().count();                                                                        \
    const auto begin = std::chrono::steady_clock::now();                                     \
    void* real = driver().real(TEXT(name));                                                  \
    const CUresult result = real != nullptr ? reinterpret_cast<decltype(&::name)>(real) arguments : (play); \
    if (driver().timing()) driver().add_time(TEXT(name), begin);                             \
    return result;                                                                           \
  }

EXPORT(cuInit, (unsigned flags), (flags), fake_gpu().init())
EXPORT(cuDriverGetVersion, (int* version), (version), (*version = CUDA_VERSION, CUDA_SUCCESS))
EXPORT(cuGetErrorName, (CUresult error, const char** text), (error, text), ccks::test::error_text(error, text, true))
EXPORT(cuGetErrorString, (CUresult error, const char** text), (error, text), ccks::test::error_text(error, text, false))
EXPORT(cuDeviceGet, (CUdevice* device, int ordinal), (device, ordinal), (*device = ordinal, CUDA_SUCCESS))
EXPORT(cuDeviceGetCount, (int* count), (count), fake_gpu().device_count(count))
EXPORT(cuDeviceGetName, (char* name, int length, CUdevice device), (name, length, device),
       fake_gpu().device_name(name, length))
EXPORT(cuDeviceGetAttribute, (int* value, CUdevice_attribute which, CUdevice device), (value, which, device),
       fake_gpu().attribute(value, which))
EXPORT(cuDeviceTotalMem, (size_t* bytes, CUdevice device), (bytes, device), fake_gpu().total_memory(bytes))
EXPORT(cuDevicePrimaryCtxRetain, (CUcontext* context, CUdevice device), (context, device),
       (*context = reinterpret_cast<CUcontext>(&fake_gpu()), CUDA_SUCCESS))
EXPORT(cuDevicePrimaryCtxRelease, (CUdevice device), (device), CUDA_SUCCESS)
EXPORT(cuCtxGetLimit, (size_t* value, CUlimit limit), (value, limit), fake_gpu().get_limit(value, limit))
EXPORT(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value), fake_gpu().set_limit(limit, value))
EXPORT(cuCtxPushCurrent, (CUcontext context), (context), CUDA_SUCCESS)
EXPORT(cuCtxPopCurrent, (CUcontext* context), (context), CUDA_SUCCESS)
EXPORT(cuStreamCreate, (CUstream* stream, unsigned flags), (stream, flags), fake_gpu().stream_create(stream))
EXPORT(cuStreamDestroy, (CUstream stream), (stream), CUDA_SUCCESS)
EXPORT(cuStreamSynchronize, (CUstream stream), (stream), fake_gpu().stream_synchronize())
EXPORT(cuStreamQuery, (CUstream stream), (stream), fake_gpu().stream_query())
EXPORT(cuMemAlloc, (CUdeviceptr* address, size_t bytes), (address, bytes),
       fake_gpu().allocate(reinterpret_cast<void**>(address), bytes, true))
EXPORT(cuMemFree, (CUdeviceptr address), (address), fake_gpu().release(reinterpret_cast<void*>(address)))
EXPORT(cuMemHostAlloc, (void** address, size_t bytes, unsigned flags), (address, bytes, flags),
       fake_gpu().allocate(address, bytes, false))
EXPORT(cuMemFreeHost, (void* address), (address), fake_gpu().release(address))
EXPORT(cuMemHostGetDevicePointer, (CUdeviceptr* mapped, void* address, unsigned flags), (mapped, address, flags),
       (*mapped = reinterpret_cast<CUdeviceptr>(address), CUDA_SUCCESS))
EXPORT(cuMemcpyHtoDAsync, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream), (to, from, bytes, stream),
       fake_gpu().copy(reinterpret_cast<void*>(to), from, bytes))
EXPORT(cuMemcpyDtoHAsync, (void* to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),
       fake_gpu().copy(to, reinterpret_cast<void*>(from), bytes))
EXPORT(cuMemsetD8Async, (CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream), (to, value, bytes, stream),
       fake_gpu().fill(reinterpret_cast<void*>(to), value, bytes))
EXPORT(cuModuleLoadData, (CUmodule* module, const void* image), (module, image), fake_gpu().module_load(module, image))
EXPORT(cuModuleUnload, (CUmodule module), (module), fake_gpu().module_unload(module))
EXPORT(cuModuleGetFunction, (CUfunction* function, CUmodule module, const char* name), (function, module, name),
       fake_gpu().module_function(function, module, name))
EXPORT(cuModuleGetGlobal, (CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name), (address, bytes, module, name),
       fake_gpu().module_global(address, bytes, module, name))
EXPORT(cuLibraryGetGlobal, (CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name), (address, bytes, library, name),
       fake_gpu().module_global(address, bytes, reinterpret_cast<CUmodule>(library), name))
EXPORT(cuModuleGetLoadingMode, (CUmoduleLoadingMode* mode), (mode), fake_gpu().loading_mode(mode))
EXPORT(cuLibraryLoadData,
       (CUlibrary* library, const void* code, CUjit_option* jit, void** jit_values, unsigned jit_count, CUlibraryOption* options,
        void** values, unsigned count),
       (library, code, jit, jit_values, jit_count, options, values, count), fake_gpu().library_load(library, code))
EXPORT(cuLibraryUnload, (CUlibrary library), (library), fake_gpu().module_unload(reinterpret_cast<CUmodule>(library)))
EXPORT(cuLibraryGetKernel, (CUkernel* kernel, CUlibrary library, const char* name), (kernel, library, name),
       fake_gpu().module_function(reinterpret_cast<CUfunction*>(kernel), reinterpret_cast<CUmodule>(library), name))
EXPORT(cuKernelGetFunction, (CUfunction* function, CUkernel kernel), (function, kernel), fake_gpu().kernel_function(function, kernel))
EXPORT(cuFuncGetAttribute, (int* value, CUfunction_attribute which, CUfunction function), (value, which, function),
       fake_gpu().function_attribute(value, which, function))
EXPORT(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute which, int value), (function, which, value),
       CUDA_SUCCESS)
EXPORT(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, CUfunction function, int threads, size_t shared),
       (blocks, function, threads, shared), fake_gpu().occupancy(blocks, shared))
EXPORT(cuLaunchKernel,
       (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, CUstream stream, void** arguments, void** extra),
       (function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra), fake_gpu().launch_clock(arguments))
#if !defined(CCKS_FAKE_CUDA_OLD)  // the last one the library looks for: a driver without it is too old
EXPORT(cuLaunchCooperativeKernel,
       (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, CUstream stream, void** arguments),
       (function, gx, gy, gz, bx, by, bz, shared, stream, arguments), fake_gpu().launch_grid(function, gx, arguments))
#endif

extern "C" const ccks::test::FakeCuda* ccks_fake_cuda() {
  static const ccks::test::FakeCuda kControl{
      [] { driver().reset(); },
      [](const char* name, long value) { return fake_gpu().set(name, value); },
      [](const char* name) { return driver().calls(name); },
      [] { return fake_gpu().modules_loaded(); },
      [] { return fake_gpu().loads(); },
      [] { return fake_gpu().stack_limit(); },
      [] { return fake_gpu().launches(); },
      [] { return fake_gpu().calls_that_blocked(); }};
  return &kControl;
}

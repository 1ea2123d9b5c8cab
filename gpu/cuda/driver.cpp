#include "gpu/cuda/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <optional>

namespace ccks::gpu {
namespace {

// Two levels, so that the versioned name behind the macro of <cuda.h> becomes the string.
#define CCKS_CU_TEXT2(name) #name
#define CCKS_CU_TEXT(name) CCKS_CU_TEXT2(name)

Status resolve(void* library, Driver& driver) {
#define CCKS_CU_RESOLVE(name)                                                                                 \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, CCKS_CU_TEXT(name)));                  \
  if (driver.name == nullptr)                                                                                 \
    return {ErrorCode::unavailable, "the CUDA driver is too old: it lacks " CCKS_CU_TEXT(name)};
  CCKS_CU_FUNCTIONS(CCKS_CU_RESOLVE)
#undef CCKS_CU_RESOLVE
#define CCKS_CU_RESOLVE(name) driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, CCKS_CU_TEXT(name)));
  CCKS_CU_OPTIONAL_FUNCTIONS(CCKS_CU_RESOLVE)
#undef CCKS_CU_RESOLVE
  return {};
}

struct Loaded {
  Driver driver;
  Status status;
};

// CCKS_CUDA_DRIVER names another library in the driver's place: one that counts or records calls, or a test's own.
const char* library_name() {
  const char* wanted = std::getenv("CCKS_CUDA_DRIVER");
  return wanted != nullptr && *wanted != 0 ? wanted : "libcuda.so.1";
}

Loaded load() {
  Loaded out;
  void* library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    out.status = {ErrorCode::unavailable, fmt::format("no CUDA driver on this machine ({})", why ? why : "not found")};
    return out;
  }
  out.status = resolve(library, out.driver);
  if (!out.status.ok()) return out;
  // A kernel that any library loads lazily blocks behind resident workers while it holds the context's lock.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const CUresult result = out.driver.cuInit(0);
  if (result != CUDA_SUCCESS) {
    out.status = {ErrorCode::unavailable,
                  driver_error(out.driver, result, "cuInit(0)", __FILE__, __LINE__).message()};
  }
  return out;
}

}  // namespace

Result<const Driver*> load_driver() {
  static const Loaded kLoaded = load();  // the library stays open as long as the process
  if (!kLoaded.status.ok()) return kLoaded.status;
  return &kLoaded.driver;
}

Status driver_error(const Driver& driver, CUresult result, const char* expression, const char* file, int line) {
  const char* name = nullptr;
  const char* words = nullptr;
  (void)driver.cuGetErrorName(result, &name);
  (void)driver.cuGetErrorString(result, &words);
  const char* base = std::strrchr(file, '/');
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::device_fault;
  return {code, fmt::format("{} at {}:{}: {}: {}", expression, base != nullptr ? base + 1 : file, line,
                            name != nullptr ? name : fmt::format("CUresult {}", static_cast<int>(result)),
                            words != nullptr ? words : "no description")};
}

}  // namespace ccks::gpu

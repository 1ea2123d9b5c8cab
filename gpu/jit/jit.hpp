// jit_compile: source of a worker to an image that Device::launch takes, through the cache on disk.
#pragma once

#include <span>
#include <string_view>

#include "gpu/jit/cache.hpp"
#include "gpu/jit/compiler.hpp"

namespace ccks::gpu {

struct EmbeddedHeader {
  std::string_view name;  // as #include has it: "ccks/worker/cuda_entry.cuh"
  std::string_view text;
};
/// The headers of include/ccks/wire and worker, as they were when this library was built.
std::span<const EmbeddedHeader> embedded_headers();

struct JitInput {
  std::vector<SourceText> units;    // compiled apart, linked in this order; one of them defines kernel `ccks_worker`
  std::vector<SourceText> headers;  // besides the embedded ones; one of the same name takes its place
  std::string architecture;         // DeviceInfo::architecture
  std::vector<std::string> flags;   // further options of NVRTC
};

struct JitOptions {
  std::string cache_folder = {};                // empty: no cache
  std::uint64_t cache_bytes = kJitCacheBytes;
  std::string compiler_folder = {};             // where the compiler's libraries are; empty: wherever they are found
};
/// From CCKS_CACHE_DIR (and its like, see default_cache_folder), CCKS_CACHE_MB and CCKS_NVRTC_DIR.
JitOptions jit_options_from_environment();

struct JitImage {
  std::vector<std::byte> image;  // a cubin; must outlive the device's last launch
  bool hit = false;              // it came from the cache whole
  unsigned units = 0, units_compiled = 0;  // what was not compiled came from the cache
  double total_ms = 0;           // all of it, cache included
  double compile_ms = 0, link_ms = 0;
  std::string compiler;  // who made it: "NVRTC 13.0, nvJitLink 13.0"
  std::string notice;    // what a person may want to know: no cache, a damaged entry. Empty: nothing
};

/// Finds the image in the cache, which takes neither NVRTC nor nvJitLink, or makes it: units that the cache does not have
/// are compiled by as many threads as the machine has cores, then all are linked. `unavailable` where there is no
/// compiler, invalid_data with its log where the source does not compile. A cache that does not work is only a notice.
Result<JitImage> jit_compile(const JitInput& input, const JitOptions& options);

}  // namespace ccks::gpu

// Subcommands of ccks-bench that need options.
#pragma once

#include <cstdint>
#include <string>

namespace ccks::bench {

struct DispatchOptions {
  std::string device = "host";
  std::uint32_t workers = 0;  // 0: the device's default; 128 for stub workers
  std::uint32_t runs = 30;    // samples per arm
};

/// 0, or 4 where the device failed.
int bench_dispatch(const DispatchOptions& options);

struct MemoryOptions {
  std::string device = "host";
  std::uint32_t runs = 1'000'000;
};

/// 0; 3 if memory has grown; 4 where the device failed.
int bench_memory(const MemoryOptions& options);

}  // namespace ccks::bench

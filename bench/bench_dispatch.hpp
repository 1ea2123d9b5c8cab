// Subcommands of ccks-bench that need options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ccks/engine.hpp"

namespace ccks::bench {

struct DispatchOptions {
  std::string device = "host";
  std::uint32_t workers = 0;  // 0: the device's default; 128 for stub workers
  std::uint32_t runs = 30;    // samples per arm
};

/// One way to run a plan end to end.
struct DispatchArm {
  std::string name;
  EngineOptions engine;
  bool chain = false;   // has a chain of layers to run
  bool single = false;  // has many ops of one task to run
};
std::vector<DispatchArm> dispatch_arms();

/// The arms with real workers; false where the device failed.
bool dispatch_device_arms(const DispatchOptions& options);

/// 0, or 4 where the device failed.
int bench_dispatch(const DispatchOptions& options);

struct MemoryOptions {
  std::string device = "host";
  std::uint32_t runs = 1'000'000;
};

/// 0; 3 if memory has grown; 4 where the device failed.
int bench_memory(const MemoryOptions& options);

}  // namespace ccks::bench

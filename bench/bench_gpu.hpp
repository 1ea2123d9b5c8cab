// Subcommands of ccks-bench that need a GPU. Each returns 0; 3 if a result was wrong; 4 where a device failed; kNoGpu.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ccks::bench {

inline constexpr int kNoGpu = 77;  // nothing was measured: as tests say it that were skipped

struct ReactionOptions {
  std::uint32_t runs = 300;
  std::uint32_t workers = 0;  // 0: one a multiprocessor
  std::string trace;          // where timelines go, one a policy: this and ".<policy>.json"; empty: none
};

int bench_reaction(const ReactionOptions& options);

struct CrossoverOptions {
  std::vector<std::uint32_t> task_us = {1, 5, 20, 100};
  std::vector<std::uint32_t> delay_us = {0, 2, 5, 10, 20};  // added to the link, each way
  std::uint32_t runs = 30;
  std::uint32_t workers = 0;
  std::vector<std::string> programs = {"fixed", "dynamic"};
  std::vector<std::string> arms;  // empty: all
  std::string trace;              // as for reaction, for the first point of each arm; tracing costs time
};

/// The names that CrossoverOptions::arms may hold.
std::vector<std::string> crossover_arms();

int bench_crossover(const CrossoverOptions& options);

struct HandoffOptions {
  std::uint32_t handoffs = 100;
  std::uint32_t every_ms = 5;
  double load = 0.8;  // of the rate of runs that the engine can do
};

int bench_handoff(const HandoffOptions& options);

}  // namespace ccks::bench

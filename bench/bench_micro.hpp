// Subcommand `micro` of ccks-bench: programs of many small ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ccks::bench {

struct MicroOptions {
  std::string device = "auto";
  std::string code = "auto";  // as in ccks-run: auto, generic, jit
  std::string specs;          // folder of the specs
  std::uint32_t runs = 300;   // samples per arm
  bool no_prime = false;
  std::uint32_t pause_us = 0; // between a run and the next, on average
  std::vector<std::string> only;  // names of workloads; empty: all
  std::vector<std::string> arms;  // names of arms; empty: all
};

/// The names that MicroOptions::only and arms may hold.
std::vector<std::string> micro_workloads();
std::vector<std::string> micro_arms();

/// 0; 3 if a result was wrong; 4 where the device failed.
int bench_micro(const MicroOptions& options);

}  // namespace ccks::bench

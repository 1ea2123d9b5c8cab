// Which code the workers of a run execute: the generic worker, one compiled for the program (JIT), or a module's.
#pragma once

#include <string>

#include "ccks/program.hpp"
#include "scheduler/tools/run_options.hpp"
#include "spec/program.hpp"

namespace ccks::run {

struct CodeReport {
  std::string kind;          // "generic", "jit", "module"
  std::string architecture;  // of JIT code: "sm_90a"
  std::string compiler;      // "NVRTC 13.0, nvJitLink 13.0"
  std::size_t image_bytes = 0;
  bool hit = false;  // from the cache on disk
  unsigned units = 0, units_compiled = 0;
  double total_ms = 0, compile_ms = 0, link_ms = 0;
  std::string notice;  // why it is not what one might expect; empty: nothing to say
};

/// For whom a program is planned and compiled.
struct CodeTarget {
  std::string device;        // "host", "cuda"
  std::string architecture;  // of a GPU
  std::uint32_t workers = 0;
};

/// Plans `program` (of options.spec) and finds code for it as --code says; `auto` takes JIT where there is a GPU and a
/// compiler for it. With --module, the module's plan and code.
Result<Program> load_program(const Options& options, const spec::Program& program, const CodeTarget& target,
                             CodeReport& report);

}  // namespace ccks::run

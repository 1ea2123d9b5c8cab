// Folders and small sources for the tests of gpu/jit.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gpu/jit/jit.hpp"
#include "tests/support/sanitized.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks::gpu {

using TestFolder = test::TemporaryFolder;

/// Compiles within milliseconds.
inline JitInput small_input() {
  JitInput input;
  input.units = {{"worker.cu",
                  "#include \"value.hpp\"\n#include \"ccks/wire/base.hpp\"\n"
                  "extern \"C\" __global__ void ccks_worker(ccks::wire::u32* to) { *to = kValue; }\n"}};
  input.headers = {{"value.hpp", "constexpr unsigned kValue = 7;\n"}};
  input.architecture = "sm_90a";
  return input;
}

/// Skips visibly where there is no NVRTC, and under sanitizers, which take its inner life for the test's.
#define CCKS_NEED_NVRTC()                                                                     \
  do {                                                                                        \
    if (::ccks::test::sanitized()) GTEST_SKIP() << "not under sanitizers";                    \
    const auto ccks_compiler = ::ccks::gpu::JitCompiler::open();                              \
    if (!ccks_compiler.ok()) GTEST_SKIP() << ccks_compiler.status().to_string();              \
  } while (0)

}  // namespace ccks::gpu

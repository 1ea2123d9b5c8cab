// Folders and small sources for the tests of gpu/jit.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gpu/jit/jit.hpp"

namespace ccks::gpu {

/// A folder of this test alone, removed at its end.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ccks-jit-XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// Files whose names end like this.
  std::vector<std::string> files(const std::string& ending) const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      if (entry.is_regular_file() && entry.path().string().ends_with(ending)) out.push_back(entry.path().string());
    return out;
  }

 private:
  std::string path_;
};

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
    if (std::getenv("CCKS_SANITIZED") != nullptr) GTEST_SKIP() << "not under sanitizers";     \
    const auto ccks_compiler = ::ccks::gpu::JitCompiler::open();                              \
    if (!ccks_compiler.ok()) GTEST_SKIP() << ccks_compiler.status().to_string();              \
  } while (0)

}  // namespace ccks::gpu

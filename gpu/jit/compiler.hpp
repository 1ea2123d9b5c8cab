// JitCompiler: NVRTC and nvJitLink, opened at run time. Source text in, a linked cubin out.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ccks/result.hpp"

namespace ccks::gpu {

/// A source or a header by the name that messages and #include know it by.
struct SourceText {
  std::string name;
  std::string text;
};

struct CompileInput {
  std::vector<SourceText> units;    // compiled apart, linked in this order
  std::vector<SourceText> headers;  // whatever they include; nothing is read from disk
  std::string architecture;         // "sm_90a"
  std::vector<std::string> flags;   // of NVRTC, besides what every worker is compiled with
};

struct CompiledImage {
  std::vector<std::byte> cubin;
  double compile_ms = 0;  // wall time of NVRTC over all units
  double link_ms = 0;
};

/// What NVRTC is always told, in order.
std::vector<std::string> worker_flags(const std::string& architecture);

/// The architecture that code for compute capability major.minor is made for: "sm_90a" for 9.0, else "sm_XY".
std::string architecture_of(int major, int minor);

/// A compiler's log as it may stand in a Status: printable, and no longer than people read.
std::string clean_log(std::string_view log);

/// A handle on both libraries, which stay open as long as the process. Copies are cheap; thread-safe.
class JitCompiler {
 public:
  /// Looks in `folder` only, if given; else where CUDA_HOME and CUDA_PATH point, where the system finds libraries, and under
  /// /usr/local/cuda. `unavailable`, with every place that was tried, where a library is missing.
  static Result<JitCompiler> open(const std::string& folder = {});

  /// For people: "NVRTC 13.0, nvJitLink 13.0".
  const std::string& version() const { return version_; }
  /// Tells apart builds of one version too.
  const std::string& identity() const { return identity_; }

  /// invalid_data with the compiler's log where the sources do not compile or link.
  Result<CompiledImage> compile(const CompileInput& input) const;

 private:
  struct Functions;

  Result<std::vector<std::byte>> compile_unit(const CompileInput& input, const SourceText& unit) const;
  Status link(const CompileInput& input, const std::vector<std::vector<std::byte>>& objects,
              std::vector<std::byte>& cubin) const;

  const Functions* functions_ = nullptr;  // of a table that lives as long as the process
  std::string version_, identity_;
};

}  // namespace ccks::gpu

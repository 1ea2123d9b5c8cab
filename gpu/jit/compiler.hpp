// JitCompiler: NVRTC and nvJitLink, opened at run time. Source text in, a linked cubin out.
#pragma once

#include <cstddef>
#include <span>
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

/// What all units of an image share.
struct CompileSettings {
  std::vector<SourceText> headers;  // whatever units include; nothing is read from disk
  std::string architecture;         // "sm_90a"
  std::vector<std::string> flags;   // of NVRTC, besides what every worker is compiled with
};

/// A unit, compiled: a relocatable cubin.
struct CompiledUnit {
  std::string name;
  std::vector<std::byte> code;
};

/// Registers that a thread of a worker may use: those of an SM, shared by the threads of a block (CCKS_CUDA_WORKER's launch
/// bounds; a worker compiled for more threads than this allows does not compile).
inline constexpr unsigned kWorkerRegisters = 168;

/// invalid_argument unless `architecture` is one by its form: "sm_90a".
Status check_architecture(const std::string& architecture);

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

  /// invalid_data with the compiler's log where `unit` does not compile. Several threads may compile at once, and do so in
  /// parallel.
  Result<CompiledUnit> compile(const SourceText& unit, const CompileSettings& settings) const;
  /// One image of all units; invalid_data with the linker's log where they do not fit together.
  Result<std::vector<std::byte>> link(std::span<const CompiledUnit> units, const std::string& architecture) const;

 private:
  struct Functions;

  const Functions* functions_ = nullptr;  // of a table that lives as long as the process
  std::string version_, identity_;
};

}  // namespace ccks::gpu

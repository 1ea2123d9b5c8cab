#include "gpu/jit/compiler.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdlib>
#include <list>
#include <mutex>

namespace ccks::gpu {
namespace {

constexpr std::size_t kLogBytes = 16 * 1024;

}  // namespace

// Declared here and not taken from NVIDIA's headers, so that a build without the toolkit can compile workers too. Both
// libraries have plain C interfaces; every result of 0 is success.
struct JitCompiler::Functions {
  using Program = struct NvrtcProgram*;
  using Linker = struct NvJitLink*;
  static constexpr int kInputCubin = 1;

  int (*nvrtcVersion)(int*, int*);
  const char* (*nvrtcGetErrorString)(int);
  int (*nvrtcCreateProgram)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*nvrtcDestroyProgram)(Program*);
  int (*nvrtcCompileProgram)(Program, int, const char* const*);
  int (*nvrtcGetProgramLogSize)(Program, std::size_t*);
  int (*nvrtcGetProgramLog)(Program, char*);
  int (*nvrtcGetCUBINSize)(Program, std::size_t*);
  int (*nvrtcGetCUBIN)(Program, char*);

  int (*nvJitLinkVersion)(unsigned*, unsigned*);
  int (*nvJitLinkCreate)(Linker*, std::uint32_t, const char**);
  int (*nvJitLinkDestroy)(Linker*);
  int (*nvJitLinkAddData)(Linker, int, const void*, std::size_t, const char*);
  int (*nvJitLinkComplete)(Linker);
  int (*nvJitLinkGetLinkedCubinSize)(Linker, std::size_t*);
  int (*nvJitLinkGetLinkedCubin)(Linker, void*);
  int (*nvJitLinkGetErrorLogSize)(Linker, std::size_t*);
  int (*nvJitLinkGetErrorLog)(Linker, char*);
};

namespace {

/// The places where `library` may be, best first.
std::vector<std::string> candidates(const std::string& library, const std::string& folder) {
  std::vector<std::string> names;
  for (const char* version : {".13", ".12", ""}) names.push_back(library + ".so" + version);
  std::vector<std::string> out;
  const auto add = [&](const std::string& where) {
    for (const std::string& name : names) out.push_back(where + name);
  };
  if (!folder.empty()) {
    add(folder + "/");
    return out;
  }
  const auto add_toolkit = [&](const std::string& root) {
    for (const char* sub : {"/lib64/", "/lib/", "/targets/x86_64-linux/lib/", "/targets/sbsa-linux/lib/"}) add(root + sub);
  };
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* root = std::getenv(variable); root != nullptr && *root == '/') add_toolkit(root);
  add("");
  add_toolkit("/usr/local/cuda");
  return out;
}

struct Library {
  void* handle = nullptr;
  std::string file;  // as the loader found it
  std::string folder;
};

Result<Library> open_library(const std::string& name, const std::string& folder) {
  for (const std::string& path : candidates(name, folder)) {
    void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle != nullptr) return Library{handle, path, folder};
  }
  return {ErrorCode::unavailable,
          folder.empty() ? fmt::format("{}.so (.13, .12) is not on this machine: neither where CUDA_HOME points, nor among "
                                       "the system's libraries, nor under /usr/local/cuda",
                                       name)
                         : fmt::format("{}.so (.13, .12) is not in {}", name, folder)};
}

template <class F>
Status resolve(const Library& library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library.handle, name));
  if (function != nullptr) return {};
  return {ErrorCode::unavailable, fmt::format("{} is too old: it lacks {}", library.file, name)};
}

/// Versions say 13.0 for every update of 13.0; the size of the file tells them apart.
std::string file_mark(void* function) {
  Dl_info info{};
  struct stat about {};
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr || stat(info.dli_fname, &about) != 0) return "?";
  return std::to_string(about.st_size);
}

}  // namespace

std::vector<std::string> worker_flags(const std::string& architecture) {
  return {"--std=c++20",
          "--gpu-architecture=" + architecture,
          "--device-as-default-execution-space",  // constexpr functions of the wire are unmarked
          "--relocatable-device-code=true",       // functions have addresses that mean the same in every module
          "--no-source-include",                  // nothing is taken from the current folder
          fmt::format("--maxrregcount={}", kWorkerRegisters),
          fmt::format("--define-macro=CCKS_WORKER_REGISTERS={}", kWorkerRegisters)};
}

std::string architecture_of(int major, int minor) {
  // Only sm_90a has the instructions that the tile ops of Hopper use.
  return fmt::format("sm_{}{}{}", major, minor, major == 9 && minor == 0 ? "a" : "");
}

Status check_architecture(const std::string& architecture) {
  const bool letter = architecture.ends_with('a') || architecture.ends_with('f');
  const std::string digits = architecture.size() > 3 ? architecture.substr(3, architecture.size() - 3 - letter) : "";
  if (architecture.starts_with("sm_") && !digits.empty() && digits.size() <= 3 &&
      digits.find_first_not_of("0123456789") == std::string::npos)
    return {};
  return {ErrorCode::invalid_argument, fmt::format("'{}' is not a GPU architecture: e.g. sm_90a", clean_log(architecture))};
}

std::string clean_log(std::string_view log) {
  std::string out;
  for (const char c : log.substr(0, log.find('\0'))) {
    if (out.size() >= kLogBytes) return out + "\n(the log goes on)";
    out += (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t' ? c : '?';
  }
  while (!out.empty() && (out.back() == '\n' || out.back() == ' ')) out.pop_back();
  return out;
}

Result<JitCompiler> JitCompiler::open(const std::string& folder) {
  auto nvrtc = open_library("libnvrtc", folder);
  if (!nvrtc.ok()) return nvrtc.status();
  auto linker = open_library("libnvJitLink", folder);
  if (!linker.ok()) return linker.status();
  Functions f{};
#define CCKS_JIT_RESOLVE(library, name) CCKS_RETURN_IF_ERROR(resolve(*library, #name, f.name))
  CCKS_JIT_RESOLVE(nvrtc, nvrtcVersion);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcGetErrorString);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcCreateProgram);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcDestroyProgram);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcCompileProgram);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcGetProgramLogSize);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcGetProgramLog);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcGetCUBINSize);
  CCKS_JIT_RESOLVE(nvrtc, nvrtcGetCUBIN);
  CCKS_JIT_RESOLVE(linker, nvJitLinkVersion);
  CCKS_JIT_RESOLVE(linker, nvJitLinkCreate);
  CCKS_JIT_RESOLVE(linker, nvJitLinkDestroy);
  CCKS_JIT_RESOLVE(linker, nvJitLinkAddData);
  CCKS_JIT_RESOLVE(linker, nvJitLinkComplete);
  CCKS_JIT_RESOLVE(linker, nvJitLinkGetLinkedCubinSize);
  CCKS_JIT_RESOLVE(linker, nvJitLinkGetLinkedCubin);
  CCKS_JIT_RESOLVE(linker, nvJitLinkGetErrorLogSize);
  CCKS_JIT_RESOLVE(linker, nvJitLinkGetErrorLog);
#undef CCKS_JIT_RESOLVE
  int major = 0, minor = 0;
  unsigned link_major = 0, link_minor = 0;
  if (f.nvrtcVersion(&major, &minor) != 0 || f.nvJitLinkVersion(&link_major, &link_minor) != 0)
    return {ErrorCode::unavailable, fmt::format("{} or {} does not say its version", nvrtc->file, linker->file)};
  static std::mutex mutex;
  static std::list<Functions> tables;  // handles stay open: unloading a compiler is not worth its risks
  JitCompiler compiler;
  compiler.version_ = fmt::format("NVRTC {}.{}, nvJitLink {}.{}", major, minor, link_major, link_minor);
  compiler.identity_ = fmt::format("{} ({}, {})", compiler.version_, file_mark(reinterpret_cast<void*>(f.nvrtcVersion)),
                                   file_mark(reinterpret_cast<void*>(f.nvJitLinkVersion)));
  const std::lock_guard lock(mutex);
  compiler.functions_ = &tables.emplace_back(f);
  return compiler;
}

namespace {

/// Ends an object of one of the two libraries with its scope.
template <class Object>
struct Ends {
  Object object = nullptr;
  int (*destroy)(Object*);
  ~Ends() {
    if (object != nullptr) (void)destroy(&object);
  }
};

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> out;
  for (const std::string& text : texts) out.push_back(text.c_str());
  return out;
}

}  // namespace

Result<CompiledUnit> JitCompiler::compile(const SourceText& unit, const CompileSettings& settings) const {
  CCKS_RETURN_IF_ERROR(check_architecture(settings.architecture));
  const Functions& f = *functions_;
  std::vector<const char*> names, texts;
  for (const SourceText& header : settings.headers) {
    names.push_back(header.name.c_str());
    texts.push_back(header.text.c_str());
  }
  Ends<Functions::Program> program{nullptr, f.nvrtcDestroyProgram};
  int result = f.nvrtcCreateProgram(&program.object, unit.text.c_str(), unit.name.c_str(), static_cast<int>(names.size()),
                                    texts.data(), names.data());
  if (result != 0) return {ErrorCode::internal, fmt::format("nvrtcCreateProgram: {}", f.nvrtcGetErrorString(result))};
  std::vector<std::string> flags = worker_flags(settings.architecture);
  flags.insert(flags.end(), settings.flags.begin(), settings.flags.end());
  const std::vector<const char*> options = pointers(flags);
  result = f.nvrtcCompileProgram(program.object, static_cast<int>(options.size()), options.data());
  if (result != 0) {
    std::size_t bytes = 0;
    (void)f.nvrtcGetProgramLogSize(program.object, &bytes);
    std::string log(bytes, '\0');
    if (bytes > 0) (void)f.nvrtcGetProgramLog(program.object, log.data());
    return {ErrorCode::invalid_data, fmt::format("'{}' does not compile for {} ({}): {}\n{}", clean_log(unit.name),
                                                 settings.architecture, version_, f.nvrtcGetErrorString(result), clean_log(log))};
  }
  std::size_t bytes = 0;
  result = f.nvrtcGetCUBINSize(program.object, &bytes);
  CompiledUnit compiled{unit.name, std::vector<std::byte>(bytes)};
  if (result == 0) result = f.nvrtcGetCUBIN(program.object, reinterpret_cast<char*>(compiled.code.data()));
  if (result != 0 || bytes == 0)
    return {ErrorCode::internal, fmt::format("{} made no code: {}", version_, f.nvrtcGetErrorString(result))};
  return compiled;
}

Result<std::vector<std::byte>> JitCompiler::link(std::span<const CompiledUnit> units,
                                                 const std::string& architecture) const {
  CCKS_RETURN_IF_ERROR(check_architecture(architecture));
  const Functions& f = *functions_;
  const std::string target = "-arch=" + architecture;
  const char* options[] = {target.c_str()};
  Ends<Functions::Linker> linker{nullptr, f.nvJitLinkDestroy};
  int result = f.nvJitLinkCreate(&linker.object, 1, options);
  if (result != 0) return {ErrorCode::internal, fmt::format("nvJitLinkCreate({}) gave error {}", target, result)};
  for (std::size_t i = 0; i < units.size() && result == 0; ++i)
    result = f.nvJitLinkAddData(linker.object, Functions::kInputCubin, units[i].code.data(), units[i].code.size(),
                                units[i].name.c_str());
  if (result == 0) result = f.nvJitLinkComplete(linker.object);
  std::size_t bytes = 0;
  if (result == 0) result = f.nvJitLinkGetLinkedCubinSize(linker.object, &bytes);
  std::vector<std::byte> cubin(bytes);
  if (result == 0) result = f.nvJitLinkGetLinkedCubin(linker.object, cubin.data());
  if (result == 0 && bytes > 0) return cubin;
  bytes = 0;
  (void)f.nvJitLinkGetErrorLogSize(linker.object, &bytes);
  std::string log(bytes, '\0');
  if (bytes > 0) (void)f.nvJitLinkGetErrorLog(linker.object, log.data());
  return {ErrorCode::invalid_data, fmt::format("the worker does not link for {} ({}): error {}\n{}", architecture, version_,
                                               result, clean_log(log))};
}

}  // namespace ccks::gpu

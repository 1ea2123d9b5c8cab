// Compiles a generated worker.cu through NVRTC, opened at run time, as far as PTX; no GPU is needed. What ptxas makes of it is compile_nvcc.sh's.
// usage: nvrtc_compile WORKER_CU INCLUDE_DIR... ; 77 where there is no NVRTC.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Program = void*;

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

void* open_nvrtc() {
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", CCKS_NVRTC_PATH})
    if (void* library = name[0] ? dlopen(name, RTLD_NOW) : nullptr) return library;
  return nullptr;
}

std::string log_of(void* library, Program program) {
  std::size_t size = 0;
  symbol<int (*)(Program, std::size_t*)>(library, "nvrtcGetProgramLogSize")(program, &size);
  std::string log(size, ' ');
  symbol<int (*)(Program, char*)>(library, "nvrtcGetProgramLog")(program, log.data());
  return log;
}

}  // namespace

int main(int argc, char** argv) {
  void* library = open_nvrtc();
  if (!library) {
    std::puts("skipped: there is no NVRTC");
    return 77;
  }
  std::ifstream file(argc > 1 ? argv[1] : "");
  std::ostringstream source;
  if (!(source << file.rdbuf())) return std::puts("cannot read the source"), 1;
  std::vector<std::string> options = {"--std=c++20", "--gpu-architecture=compute_90", "-default-device"};
  for (int i = 2; i < argc; ++i) options.push_back(std::string("-I") + argv[i]);
  std::vector<const char*> texts;
  for (const std::string& option : options) texts.push_back(option.c_str());
  Program program = nullptr;
  using Create = int (*)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  if (symbol<Create>(library, "nvrtcCreateProgram")(&program, source.str().c_str(), "worker.cu", 0, nullptr, nullptr) !=
      0)
    return std::puts("nvrtcCreateProgram failed"), 1;
  const int compiled = symbol<int (*)(Program, int, const char* const*)>(library, "nvrtcCompileProgram")(
      program, static_cast<int>(texts.size()), texts.data());
  if (compiled != 0) std::puts(log_of(library, program).c_str());
  if (compiled != 0) return 1;
  std::size_t bytes = 0;
  symbol<int (*)(Program, std::size_t*)>(library, "nvrtcGetPTXSize")(program, &bytes);
  std::string ptx(bytes, '\0');
  symbol<int (*)(Program, char*)>(library, "nvrtcGetPTX")(program, ptx.data());
  std::printf("%zu bytes of PTX\n", bytes);
  return ptx.find(".entry ccks_worker") != std::string::npos ? 0 : (std::puts("no kernel ccks_worker in it"), 1);
}

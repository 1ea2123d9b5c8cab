// Any bytes as a file that ccks-gen finds where it wants to write, the manifest above all: told apart by its first line, never
// a crash. What ccks-gen has written itself is known again, and not after an edit.
#include <cstdint>
#include <cstdlib>

#include "codegen/emit_write.hpp"

namespace ccks::codegen {

// The rest of the generator is not needed here.
const char* generator_version() { return "0"; }
std::vector<std::string> generated_names() { return {}; }

}  // namespace ccks::codegen

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ccks::codegen;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (origin_of(text) == Origin::absent) std::abort();
  for (const char* path : {"manifest.json", "CMakeLists.txt", "worker.cu"}) {
    std::string written = with_marker(path, text);
    if (origin_of(written) != Origin::generated) std::abort();
    written += ' ';
    if (origin_of(written) != Origin::edited) std::abort();
  }
  return 0;
}

#include "gpu/jit/jit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "gpu/jit/sha256.hpp"

namespace ccks::gpu {
namespace {

/// The input as the compiler takes it: embedded headers that the caller has not replaced, then the caller's.
CompileInput with_headers(const JitInput& input) {
  CompileInput out{input.units, {}, input.architecture, input.flags};
  for (const EmbeddedHeader& header : embedded_headers()) {
    const bool replaced = std::any_of(input.headers.begin(), input.headers.end(),
                                      [&](const SourceText& own) { return own.name == header.name; });
    if (!replaced) out.headers.push_back({std::string(header.name), std::string(header.text)});
  }
  out.headers.insert(out.headers.end(), input.headers.begin(), input.headers.end());
  return out;
}

/// Everything that the image depends on but the compiler.
std::string request_hash(const CompileInput& input) {
  Sha256 hash;
  const auto texts = [&](const std::vector<SourceText>& list) {
    hash.field(std::to_string(list.size()));
    for (const SourceText& each : list) {
      hash.field(each.name);
      hash.field(each.text);
    }
  };
  const auto words = [&](const std::vector<std::string>& list) {
    hash.field(std::to_string(list.size()));
    for (const std::string& each : list) hash.field(each);
  };
  texts(input.units);
  texts(input.headers);
  words(worker_flags(input.architecture));
  words(input.flags);
  return hex(hash.finish());
}

std::string compiler_hash(const JitCompiler& compiler) {
  return hex(sha256(std::as_bytes(std::span(compiler.identity().data(), compiler.identity().size()))), 6);
}

void add_notice(JitImage& image, const std::string& text) {
  if (!image.notice.empty()) image.notice += "; ";
  image.notice += text;
}

/// What stands in the cache; with no compiler at hand, whoever made it.
bool find(const JitCache& cache, const std::string& request, const Result<JitCompiler>& compiler, JitImage& image) {
  bool damaged = false;
  auto entry = cache.find(request, compiler.ok() ? compiler_hash(*compiler) : "", damaged);
  if (damaged) add_notice(image, "a damaged entry of the cache was removed");
  if (!entry) return false;
  image.image = std::move(entry->image);
  image.compiler = std::move(entry->compiler);
  image.hit = true;
  return true;
}

}  // namespace

JitOptions jit_options_from_environment() {
  JitOptions options;
  const std::string folder = default_cache_folder();
  if (!folder.empty()) options.cache_folder = folder + "/jit";
  if (const char* megabytes = std::getenv("CCKS_CACHE_MB"); megabytes != nullptr) {
    std::uint64_t value = 0;
    const char* end = megabytes + std::strlen(megabytes);
    const auto read = std::from_chars(megabytes, end, value);
    if (read.ec == std::errc() && read.ptr == end && value < 1ull << 40) options.cache_bytes = value << 20;
  }
  if (const char* compiler = std::getenv("CCKS_NVRTC_DIR"); compiler != nullptr) options.compiler_folder = compiler;
  return options;
}

Result<JitImage> jit_compile(const JitInput& input, const JitOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto timed = [&](JitImage image) {
    image.total_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return image;
  };
  const CompileInput full = with_headers(input);
  const std::string request = request_hash(full);
  const JitCache cache(options.cache_folder, options.cache_bytes);
  const Result<JitCompiler> compiler = JitCompiler::open(options.compiler_folder);
  JitImage image;
  if (find(cache, request, compiler, image)) return timed(std::move(image));
  if (!compiler.ok()) return compiler.status();
  Result<CompiledImage> compiled = compiler->compile(full);
  if (!compiled.ok()) return compiled.status();
  image.image = std::move(compiled->cubin);
  image.compile_ms = compiled->compile_ms;
  image.link_ms = compiled->link_ms;
  image.compiler = compiler->version();
  const Status stored = cache.store(request, compiler_hash(*compiler), {image.image, image.compiler});
  if (!stored.ok()) add_notice(image, "the compiled worker is not kept: " + stored.message());
  return timed(std::move(image));
}

}  // namespace ccks::gpu

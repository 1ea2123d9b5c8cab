#include "gpu/jit/jit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "gpu/jit/sha256.hpp"

namespace ccks::gpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr unsigned kCompileThreadsMax = 16;  // each takes some 100 MB
constexpr const char* kDamaged = "a damaged entry of the cache was removed";

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// What units share: embedded headers that the caller has not replaced, then the caller's.
CompileSettings settings_of(const JitInput& input) {
  CompileSettings out{{}, input.architecture, input.flags};
  for (const EmbeddedHeader& header : embedded_headers()) {
    const bool replaced = std::any_of(input.headers.begin(), input.headers.end(),
                                      [&](const SourceText& own) { return own.name == header.name; });
    if (!replaced) out.headers.push_back({std::string(header.name), std::string(header.text)});
  }
  out.headers.insert(out.headers.end(), input.headers.begin(), input.headers.end());
  return out;
}

/// Everything that code depends on but the units and the compiler.
std::string settings_hash(const CompileSettings& settings) {
  Sha256 hash;
  const auto words = [&](const std::vector<std::string>& list) {
    hash.field(std::to_string(list.size()));
    for (const std::string& each : list) hash.field(each);
  };
  hash.field(std::to_string(settings.headers.size()));
  for (const SourceText& header : settings.headers) {
    hash.field(header.name);
    hash.field(header.text);
  }
  words(worker_flags(settings.architecture));
  words(settings.flags);
  return hex(hash.finish());
}

std::string request_hash(std::string_view what, const std::string& settings, std::span<const SourceText> units) {
  Sha256 hash;
  hash.field(what);
  hash.field(settings);
  hash.field(std::to_string(units.size()));
  for (const SourceText& unit : units) {
    hash.field(unit.name);
    hash.field(unit.text);
  }
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
  if (damaged) add_notice(image, kDamaged);
  if (!entry) return false;
  image.image = std::move(entry->image);
  image.compiler = std::move(entry->compiler);
  image.hit = true;
  return true;
}

/// Makes an image unit by unit.
class Maker {
 public:
  Maker(const JitCompiler& compiler, const JitCache& cache, const JitInput& input, JitImage& image)
      : compiler_(compiler), cache_(cache), input_(input), image_(image), settings_(settings_of(input)),
        settings_hash_(settings_hash(settings_)), compiler_hash_(compiler_hash(compiler)), made_(input.units.size()) {}

  Status make() {
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < input_.units.size(); ++i)
      if (!take(i)) missing.push_back(i);
    image_.units_compiled = static_cast<unsigned>(missing.size());
    auto start = Clock::now();
    CCKS_RETURN_IF_ERROR(compile(missing));
    image_.compile_ms = ms_since(start);
    start = Clock::now();
    auto linked = compiler_.link(made_, input_.architecture);
    if (!linked.ok()) return linked.status();
    image_.link_ms = ms_since(start);
    image_.image = std::move(*linked);
    image_.compiler = compiler_.version();
    return {};
  }

 private:
  std::string request(std::size_t unit) const {
    return request_hash("unit", settings_hash_, std::span(input_.units).subspan(unit, 1));
  }

  bool take(std::size_t unit) {
    bool damaged = false;
    auto entry = cache_.find(request(unit), compiler_hash_, damaged);
    if (damaged) add_notice(image_, kDamaged);
    if (entry) made_[unit] = {input_.units[unit].name, std::move(entry->image)};
    return entry.has_value();
  }

  /// One unit; its Status is of the first that failed, in the order of units.
  Status compile_one(std::size_t unit) {
    auto compiled = compiler_.compile(input_.units[unit], settings_);
    if (!compiled.ok()) return compiled.status();
    made_[unit] = std::move(*compiled);
    // Whether this can be kept shows when the image is stored.
    (void)cache_.store(request(unit), compiler_hash_, {made_[unit].code, compiler_.version()});
    return {};
  }

  Status compile(const std::vector<std::size_t>& units) {
    std::vector<Status> results(units.size());
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      // relaxed: hands out numbers; the threads are joined before anyone looks at results
      for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units.size();)
        results[i] = compile_one(units[i]);
    };
    std::vector<std::thread> threads;
    const std::size_t wanted = std::min<std::size_t>(
        units.size(), std::clamp(std::thread::hardware_concurrency(), 1u, kCompileThreadsMax));
    for (std::size_t i = 1; i < wanted; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    for (Status& status : results) CCKS_RETURN_IF_ERROR(std::move(status));
    return {};
  }

  const JitCompiler& compiler_;
  const JitCache& cache_;
  const JitInput& input_;
  JitImage& image_;
  const CompileSettings settings_;
  const std::string settings_hash_, compiler_hash_;
  std::vector<CompiledUnit> made_;
};

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
  const auto start = Clock::now();
  CCKS_RETURN_IF_ERROR(check_architecture(input.architecture));
  if (input.units.empty()) return {ErrorCode::invalid_argument, "nothing to compile"};
  const std::string request = request_hash("image", settings_hash(settings_of(input)), input.units);
  const JitCache cache(options.cache_folder, options.cache_bytes);
  const Result<JitCompiler> compiler = JitCompiler::open(options.compiler_folder);
  JitImage image;
  image.units = static_cast<unsigned>(input.units.size());
  if (!find(cache, request, compiler, image)) {
    if (!compiler.ok()) return compiler.status();
    CCKS_RETURN_IF_ERROR(Maker(*compiler, cache, input, image).make());
    const Status stored = cache.store(request, compiler_hash(*compiler), {image.image, image.compiler});
    if (!stored.ok()) add_notice(image, "the compiled worker is not kept: " + stored.message());
  }
  image.total_ms = ms_since(start);
  return image;
}

}  // namespace ccks::gpu

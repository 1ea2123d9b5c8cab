#include <fmt/format.h>
#include <sys/wait.h>

#include "tests/paths.hpp"
#include "tests/unit/gpu/jit_fixture.hpp"

namespace ccks::gpu {
namespace {

bool is_elf(const std::vector<std::byte>& image) {
  return image.size() > 4 && image[0] == std::byte{0x7f} && image[1] == std::byte{'E'} && image[2] == std::byte{'L'};
}

TEST(JitCompile, ArchitectureNames) {
  EXPECT_EQ(architecture_of(9, 0), "sm_90a");
  EXPECT_EQ(architecture_of(8, 6), "sm_86");
  EXPECT_EQ(architecture_of(12, 0), "sm_120");
}

TEST(JitCompile, LogsArePrintableAndShort) {
  EXPECT_EQ(clean_log("a\tb\n\x1b[31mred\x80\n\n"), "a\tb\n?[31mred?");
  EXPECT_EQ(clean_log(std::string_view("x\0y", 3)), "x");
  EXPECT_LT(clean_log(std::string(1 << 20, 'x')).size(), 20'000u);
}

TEST(JitCompile, NoHeadersOfTheStandardLibraryOrCuda) {
  // What stands behind an #if for other compilers is not meant, so NVRTC is the judge of the rest; see the generic worker.
  ASSERT_GT(embedded_headers().size(), 20u);
  for (const EmbeddedHeader& header : embedded_headers()) {
    EXPECT_TRUE(header.name.starts_with("ccks/w")) << header.name;
    EXPECT_EQ(header.text.find("<cuda/"), std::string_view::npos) << header.name;
  }
}

TEST(JitCompile, MissThenHit) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  const JitOptions options{.cache_folder = folder.path()};
  const auto made = jit_compile(small_input(), options);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  EXPECT_FALSE(made->hit);
  EXPECT_TRUE(is_elf(made->image));
  EXPECT_GT(made->compile_ms, 0);
  EXPECT_GT(made->link_ms, 0);
  EXPECT_EQ(made->notice, "");
  const auto again = jit_compile(small_input(), options);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->hit);
  EXPECT_EQ(again->compile_ms, 0);
  EXPECT_EQ(again->image, made->image);
  EXPECT_EQ(again->compiler, made->compiler);
  EXPECT_TRUE(again->compiler.starts_with("NVRTC "));
}

TEST(JitCompile, WhateverChangesIsAnotherEntry) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  const JitOptions options{.cache_folder = folder.path()};
  const auto hit = [&](const JitInput& input) {
    const auto image = jit_compile(input, options);
    EXPECT_TRUE(image.ok()) << image.status().to_string();
    return image.ok() && image->hit;
  };
  const JitInput base = small_input();
  EXPECT_FALSE(hit(base));
  JitInput source = base, header = base, own = base, flags = base, arch = base;
  source.units[0].text += "// more\n";
  header.headers[0].text = "constexpr unsigned kValue = 8;\n";
  own.headers.push_back({"ccks/wire/base.hpp", "namespace ccks::wire { using u32 = unsigned; }\n"});  // in place of ours
  flags.flags.push_back("--define-macro=SOMETHING=1");
  arch.architecture = "sm_80";
  for (const JitInput& changed : {source, header, own, flags, arch}) EXPECT_FALSE(hit(changed));
  for (const JitInput& known : {base, source, header, own, flags, arch}) EXPECT_TRUE(hit(known));
  EXPECT_EQ(folder.files(".cubin").size(), 12u);  // an image and its one unit each
}

TEST(JitCompile, ADamagedEntryIsMadeAgain) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  const JitOptions options{.cache_folder = folder.path()};
  const auto made = jit_compile(small_input(), options);
  ASSERT_TRUE(made.ok());
  for (const std::string& path : folder.files(".cubin")) std::ofstream(path, std::ios::app) << "more";
  const auto again = jit_compile(small_input(), options);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->hit);
  EXPECT_NE(again->notice.find("damaged"), std::string::npos);
  EXPECT_EQ(again->image, made->image);
  EXPECT_TRUE(jit_compile(small_input(), options)->hit);
}

TEST(JitCompile, AHitNeedsNoCompiler) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  JitOptions options{.cache_folder = folder / "cache"};
  const auto made = jit_compile(small_input(), options);
  ASSERT_TRUE(made.ok());
  options.compiler_folder = folder.path();  // where there is none
  const auto hit = jit_compile(small_input(), options);
  ASSERT_TRUE(hit.ok()) << hit.status().to_string();
  EXPECT_TRUE(hit->hit);
  EXPECT_EQ(hit->image, made->image);
}

TEST(JitCompile, NoCompilerIsAClearStatus) {
  const TestFolder folder;
  const auto image = jit_compile(small_input(), {.cache_folder = folder.path(), .compiler_folder = folder.path()});
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().code(), ErrorCode::unavailable);
  EXPECT_NE(image.status().message().find("libnvrtc"), std::string::npos);
  EXPECT_NE(image.status().message().find(folder.path()), std::string::npos);
}

TEST(JitCompile, AnUnwritableFolderIsANotice) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  std::ofstream(folder / "file") << "in the way";
  for (const std::string& cache : {folder / "file/jit", std::string("/proc/nowhere/jit"), std::string()}) {
    const auto image = jit_compile(small_input(), {.cache_folder = cache});
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    EXPECT_FALSE(image->hit);
    EXPECT_TRUE(is_elf(image->image));
    EXPECT_NE(image->notice, "") << cache;
  }
}

TEST(JitCompile, ErrorsCarryTheLog) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  const JitOptions options{.cache_folder = folder.path()};
  JitInput input = small_input();
  input.units[0].text += "int broken = no_such_name;\n";
  const auto broken = jit_compile(input, options);
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code(), ErrorCode::invalid_data);
  EXPECT_NE(broken.status().message().find("worker.cu(4)"), std::string::npos) << broken.status().message();
  EXPECT_NE(broken.status().message().find("no_such_name"), std::string::npos);
  // A name that no unit defines shows only when they are linked.
  input = small_input();
  input.units[0].text += "extern __device__ void elsewhere(); __global__ void k() { elsewhere(); }\n";
  const auto unlinked = jit_compile(input, options);
  ASSERT_FALSE(unlinked.ok());
  EXPECT_NE(unlinked.status().message().find("elsewhere"), std::string::npos) << unlinked.status().message();
  EXPECT_FALSE(jit_compile(input, options).ok()) << "a failure was kept";
}

TEST(JitCompile, ArchitecturesAreChecked) {
  CCKS_NEED_NVRTC();
  for (const char* bad : {"", "sm_", "sm_9000", "sm_90a -I/", "compute_90", "sm_90\x01"}) {
    JitInput input = small_input();
    input.architecture = bad;
    const auto image = jit_compile(input, {});
    ASSERT_FALSE(image.ok()) << bad;
    EXPECT_EQ(image.status().code(), ErrorCode::invalid_argument) << bad;
  }
  JitInput input = small_input();
  input.architecture = "sm_12";
  EXPECT_FALSE(jit_compile(input, {}).ok());
}

TEST(JitCompile, UnitsAreLinkedAndKeptOneByOne) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  const JitOptions options{.cache_folder = folder.path()};
  JitInput input = small_input();
  input.units[0].text =
      "extern \"C\" __device__ unsigned elsewhere(unsigned);\n"
      "extern \"C\" __global__ void ccks_worker(unsigned* to) { *to = elsewhere(*to); }\n";
  for (int i = 0; i < 5; ++i)
    input.units.push_back({"f.cu", fmt::format("__device__ unsigned f{}(unsigned x) {{ return x * x; }}\n", i)});
  input.units.push_back({"e.cu", "extern \"C\" __device__ unsigned elsewhere(unsigned x) { return x + 1; }\n"});
  const auto image = jit_compile(input, options);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  EXPECT_TRUE(is_elf(image->image));
  EXPECT_EQ(image->units, 7u);
  EXPECT_EQ(image->units_compiled, 7u);
  input.units.back().text = "extern \"C\" __device__ unsigned elsewhere(unsigned x) { return x + 2; }\n";
  const auto changed = jit_compile(input, options);
  ASSERT_TRUE(changed.ok()) << changed.status().to_string();
  EXPECT_FALSE(changed->hit);
  EXPECT_EQ(changed->units, 7u);
  EXPECT_EQ(changed->units_compiled, 1u);
  EXPECT_NE(changed->image, image->image);
  // With the units as they were, from scratch and from the cache: the same image.
  const auto scratch = jit_compile(input, {});
  ASSERT_TRUE(scratch.ok());
  EXPECT_EQ(scratch->units_compiled, 7u);
  EXPECT_EQ(scratch->image, changed->image);
}

TEST(JitCompile, OfSeveralErrorsTheFirstUnitsIsTold) {
  CCKS_NEED_NVRTC();
  JitInput input = small_input();
  for (int i = 0; i < 4; ++i) input.units.push_back({fmt::format("u{}.cu", i), fmt::format("int a{} = missing;\n", i)});
  for (int i = 0; i < 5; ++i) {
    const auto image = jit_compile(input, {});
    ASSERT_FALSE(image.ok());
    EXPECT_NE(image.status().message().find("'u0.cu'"), std::string::npos) << image.status().message();
  }
}

TEST(JitCompile, NothingIsReadFromTheCurrentFolder) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  std::ofstream(folder / "value.hpp") << "constexpr unsigned kValue = 9;\n";
  JitInput input = small_input();
  input.headers.clear();
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const auto image = jit_compile(input, {});
  std::filesystem::current_path(before);
  EXPECT_FALSE(image.ok());
}

// Several processes that want the same worker at once: each gets it, and one entry is left.
TEST(JitCompile, ManyProcessesAtOnce) {
  CCKS_NEED_NVRTC();
  const TestFolder folder;
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto image = jit_compile(small_input(), {.cache_folder = folder.path()});
      _exit(image.ok() && is_elf(image->image) && image->notice.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(folder.files("").size(), 2u);  // the unit and the image
  EXPECT_TRUE(jit_compile(small_input(), {.cache_folder = folder.path()})->hit);
}

// The worker that the library embeds as made by nvcc also compiles with NVRTC: what the worker headers include and use
// must suit both.
TEST(JitCompile, GenericWorker) {
  CCKS_NEED_NVRTC();
  std::ifstream file(std::string(CCKS_SOURCE_DIR) + "/gpu/cuda/generic_worker.cu");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(text.empty());
  JitInput input;
  input.units = {{"generic_worker.cu", text}};
  input.architecture = "sm_90a";
  const auto image = jit_compile(input, {});
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const std::string code(reinterpret_cast<const char*>(image->image.data()), image->image.size());
  EXPECT_NE(code.find("ccks_worker"), std::string::npos);
}

}  // namespace
}  // namespace ccks::gpu

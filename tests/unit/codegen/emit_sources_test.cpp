// Emission: text that is safe, files that are ours, code that stays in its braces.
#include "codegen/emit_sources.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "codegen/emit_text.hpp"
#include "codegen/emit_write.hpp"
#include "tests/unit/codegen/check_programs.hpp"

namespace ccks::codegen {
namespace {

namespace fs = std::filesystem;

std::vector<GeneratedFile> generated(std::size_t program, const std::string& device = "host") {
  const spec::Program parsed = testing::parse_small(testing::kSmallPrograms[program]);
  const auto image = make_plan(parsed);
  EXPECT_TRUE(image.ok());
  EmitOptions options;
  options.device = device;
  options.spec_name = "small.yaml";
  const auto files = emit_sources(parsed, **image, options);
  EXPECT_TRUE(files.ok()) << files.status().to_string();
  return *files;
}

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}
void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

class EmitWrite : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("ccks_emit_" + std::to_string(getpid()) + "_" +
                                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
  }
  void TearDown() override {
    std::error_code ignored;
    fs::permissions(dir_, fs::perms::owner_all, ignored);
    fs::remove_all(dir_, ignored);
  }
  std::size_t files_in_dir() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }
  fs::path dir_;
};

TEST(EmitText, StringsHoldWhateverTheyAreGiven) {
  EXPECT_EQ(cpp_string("a.b"), "\"a.b\"");
  EXPECT_EQ(cpp_string("\"; system(\"x\"); //\n\\"), "\"\\042; system(\\042x\\042); //\\012\\134\"");
  EXPECT_EQ(cpp_string("?"
                       "?="),
            "\"\\077\\077=\"");
  EXPECT_EQ(comment_text("x */ y\n#z"), "x????y??z");
  EXPECT_EQ(identifier("3.a-b"), "p3_a_b");
}

TEST(EmitText, NumbersReadBackAsTheyWere) {
  for (const double v : {0.0, 1.0, 1e-5, 0.1, 3.4e38, -1.5e-300, 1e300}) EXPECT_EQ(std::stod(double_literal(v)), v);
  for (const float v : {0.0f, 1.0f, 1e-5f, 0.1f, 16777216.0f, -1e-38f})
    EXPECT_EQ(std::strtof(float_literal(v).c_str(), nullptr), v);
  EXPECT_EQ(float_literal(1.0f), "1.0f");
  EXPECT_EQ(double_literal(std::numeric_limits<double>::infinity()), "std::numeric_limits<double>::infinity()");
  EXPECT_EQ(int_literal(INT64_MIN), "(-9223372036854775807LL - 1)");
}

TEST(EmitText, TemplatesTakeEveryHoleAndNoOther) {
  EXPECT_EQ(*fill_template("a@X@b@Y@", {{"X", "@Y@"}, {"Y", "2"}}), "a@Y@b2");
  EXPECT_FALSE(fill_template("@Z@", {{"X", ""}}).ok());
  EXPECT_FALSE(fill_template("one @ alone", {}).ok());
}

TEST(EmitInline, RefusesWhatReachesBeyondItsBraces) {
  for (const char* good : {"for_each([&](auto& at) { out.store(1.0f, at); });", "// {\n", "/* } */",
                           "const char* s = \"}\\\"\";", "char c = '}';", "int i = 1'000;", "int a[3] = {1, 2, 3};"})
    EXPECT_TRUE(check_inline_code(good).ok()) << good;
  for (const char* bad :
       {"}", "{", "} void f() {", "#include <x>", "  # define X", "%:include <x>", "/* open", "\"open", "f(]",
        "// \\\nint x;", "R\"(})\"", "u8R\"(})\"", "'", "int \\u0041;", "<%", "\x01", "caf\xc3\xa9;"})
    EXPECT_FALSE(check_inline_code(bad).ok()) << bad;
}

TEST(EmitSources, EqualInputGivesEqualBytes) {
  for (std::size_t p = 0; p < std::size(testing::kSmallPrograms); ++p) {
    const auto a = generated(p, "cuda"), b = generated(p, "cuda");
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].text, b[i].text);
  }
}

TEST(EmitSources, EveryFileIsMarkedAndListed) {
  const auto files = generated(0, "cuda");
  std::vector<std::string> names;
  for (const auto& file : files) {
    names.push_back(file.path);
    EXPECT_EQ(origin_of(file.text), Origin::generated) << file.path;
    const auto manifest =
        std::find_if(files.begin(), files.end(), [](const auto& f) { return f.path == "manifest.json"; });
    EXPECT_TRUE(file.path == "manifest.json" || manifest->text.find(content_hash(file.text)) != std::string::npos)
        << file.path;
  }
  EXPECT_EQ(names, generated_names());
  EXPECT_EQ(generated(0, "host").size() + 1, files.size());
}

TEST(EmitSources, OpsOfOneKindCodeAndTypesShareABody) {
  const spec::Program program = testing::parse_small(testing::kSmallPrograms[1]);
  const auto image = make_plan(program);
  const auto bodies = emit_bodies(program, **image, false);
  ASSERT_TRUE(bodies.ok());
  EXPECT_EQ(bodies->of_op.size(), 9u);
  EXPECT_EQ(bodies->count, 6u);  // matmul, softmax, three maps, matmul with an epilogue
  EXPECT_EQ(bodies->of_op[0], bodies->of_op[2]);
  EXPECT_NE(bodies->of_op[0], bodies->of_op[8]);
}

// Passes of a loop whose index is in an expression; the first and the last map have constants that nobody else has.
TEST(EmitSources, MapsThatDifferByConstantsShareABody) {
  const spec::Program program = testing::parse_small({"passes", R"yaml(ccks: 1
program: passes
dims: {d: 8}
tensors:
  x: {shape: [d], dtype: i32, kind: input}
  y: {shape: [d], dtype: i32, kind: output}
ops:
  - {op: map, expr: "x * 3", dtype: i32, out: h}
  - repeat: {index: l, to: 4}
    ops:
      - {op: map, expr: "select(h > l, h + l, h)", dtype: i32, out: h}
  - {op: map, expr: "h - 7", dtype: i32, out: y}
)yaml"});
  const auto image = make_plan(program);
  const auto bodies = emit_bodies(program, **image, false);
  ASSERT_TRUE(bodies.ok());
  ASSERT_EQ(bodies->of_op.size(), 6u);
  EXPECT_EQ(bodies->count, 3u);
  for (std::size_t pass = 2; pass <= 4; ++pass) EXPECT_EQ(bodies->of_op[pass], bodies->of_op[1]);
  EXPECT_EQ(bodies->list[bodies->of_op[0]].type.find("FrameConst"), std::string::npos) << bodies->list[bodies->of_op[0]].type;
  EXPECT_NE(bodies->list[bodies->of_op[1]].type.find("FrameConst<ExprOp::const_i"), std::string::npos) << bodies->list[bodies->of_op[1]].type;
}

TEST_F(EmitWrite, WritesAndWritesAgain) {
  const auto files = generated(0);
  ASSERT_TRUE(write_generated(dir_.string(), files, false).ok());
  ASSERT_TRUE(write_generated(dir_.string(), files, false).ok());
  for (const auto& file : files) EXPECT_EQ(read(dir_ / file.path), file.text);
  EXPECT_EQ(files_in_dir(), files.size());
}

TEST_F(EmitWrite, RefusesWhatOthersWrote) {
  fs::create_directories(dir_);
  write(dir_ / "worker.cpp", "int mine;\n");
  const Status status = write_generated(dir_.string(), generated(0), false);
  EXPECT_EQ(status.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(read(dir_ / "worker.cpp"), "int mine;\n");
  EXPECT_EQ(files_in_dir(), 1u) << "nothing else may have been written";
  EXPECT_TRUE(write_generated(dir_.string(), generated(0), true).ok());
  EXPECT_EQ(origin_of(read(dir_ / "worker.cpp")), Origin::generated);
}

TEST_F(EmitWrite, RefusesWhatWasEdited) {
  ASSERT_TRUE(write_generated(dir_.string(), generated(0), false).ok());
  const std::string edited = read(dir_ / "scheduler.cpp") + "// mine\n";
  write(dir_ / "scheduler.cpp", edited);
  const Status status = write_generated(dir_.string(), generated(0), false);
  EXPECT_NE(status.message().find("edited"), std::string::npos) << status.message();
  EXPECT_EQ(read(dir_ / "scheduler.cpp"), edited);
}

TEST_F(EmitWrite, RemovesWhatItNoLongerWrites) {
  ASSERT_TRUE(write_generated(dir_.string(), generated(0, "cuda"), false).ok());
  write(dir_ / "notes.md", "mine");
  ASSERT_TRUE(write_generated(dir_.string(), generated(0, "host"), false).ok());
  EXPECT_FALSE(fs::exists(dir_ / "worker.cu"));
  EXPECT_TRUE(fs::exists(dir_ / "notes.md"));
}

TEST_F(EmitWrite, AFolderThatCannotBeWrittenIsAnError) {
  write(dir_, "a file is in the way");
  EXPECT_EQ(write_generated(dir_.string(), generated(0), false).code(), ErrorCode::io_error);
  EXPECT_EQ(write_file((dir_ / "x").string(), "y").code(), ErrorCode::io_error);
}

/// A limit on file sizes stands in for a disk that fills up in the middle.
TEST_F(EmitWrite, AFullDiskLeavesEverythingAsItWas) {
  ASSERT_TRUE(write_generated(dir_.string(), generated(0), false).ok());
  const std::string before = read(dir_ / "scheduler.cpp");
  rlimit old_limit{};
  getrlimit(RLIMIT_FSIZE, &old_limit);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2000, old_limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = write_generated(dir_.string(), generated(1), false);
  setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), ErrorCode::io_error) << status.to_string();
  EXPECT_EQ(read(dir_ / "scheduler.cpp"), before);
  EXPECT_EQ(files_in_dir(), generated(0).size()) << "what was written aside is gone";
}

}  // namespace
}  // namespace ccks::codegen

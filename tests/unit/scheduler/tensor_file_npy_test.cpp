// .npy files: against bytes as numpy writes them, there and back, and all that must be refused.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ccks/tensor_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using wire::Dtype;

class NpyTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) names.push_back(entry.path().filename());
    return names;
  }

  test::TemporaryFolder folder_;
  const std::filesystem::path directory_{folder_.path()};
};

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A version 1.0 file with this dict and these element bytes.
std::string npy(const std::string& dict, const std::string& elements) {
  const std::string header = dict + "\n";
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() & 0xff);
  file += static_cast<char>(header.size() >> 8);
  return file + header + elements;
}
std::string dict(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}
template <class T>
std::string raw(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
Result<HostTensor> parse(const std::string& file, const NpyOptions& options = {}) {
  return parse_npy(std::as_bytes(std::span(file)), "a.npy", options);
}
template <class T>
std::vector<T> elements(const HostTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

TEST(NpyParse, EachType) {
  EXPECT_EQ(elements<float>(*parse(npy(dict("<f4", "(2,)"), raw<float>({1.5f, -2})))), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(elements<std::uint16_t>(*parse(npy(dict("<f2", "(1,)"), raw<std::uint16_t>({0x3c00})))),
            (std::vector<std::uint16_t>{0x3c00}));
  EXPECT_EQ(elements<std::int32_t>(*parse(npy(dict("<i4", "(1,)"), raw<std::int32_t>({-7})))),
            (std::vector<std::int32_t>{-7}));
  EXPECT_EQ(elements<std::int64_t>(*parse(npy(dict("<i8", "(1,)"), raw<std::int64_t>({-7})))),
            (std::vector<std::int64_t>{-7}));
  EXPECT_EQ(parse(npy(dict("|b1", "(2,)"), std::string("\0\1", 2)))->dtype, Dtype::boolean);
  EXPECT_EQ(parse(npy(dict("|u1", "(2,)"), std::string("\0\1", 2)))->dtype, Dtype::boolean);
  const auto narrowed = parse(npy(dict("<f8", "(3,)"), raw<double>({0.1, 1e300, -2})));
  EXPECT_EQ(narrowed->dtype, Dtype::f32);
  EXPECT_EQ(elements<float>(*narrowed), (std::vector<float>{0.1f, std::numeric_limits<float>::infinity(), -2}));
}

TEST(NpyParse, VoidIsBf16OnlyWhenAsked) {
  const std::string file = npy(dict("<V2", "(1,)"), "ab");
  EXPECT_EQ(parse(file).status().code(), ErrorCode::unsupported);
  EXPECT_EQ(parse(file, {.void2_is_bf16 = true})->dtype, Dtype::bf16);
}

TEST(NpyParse, ShapesVersionsAndSpellings) {
  using Shape = std::vector<std::int64_t>;
  EXPECT_EQ(parse(npy(dict("<f4", "()"), "abcd"))->shape, Shape{});
  EXPECT_EQ(parse(npy(dict("<f4", "(2, 3)"), std::string(24, 'x')))->shape, (Shape{2, 3}));
  EXPECT_EQ(parse(npy(dict("<f4", "(2, 0, 3)"), ""))->shape, (Shape{2, 0, 3}));
  EXPECT_EQ(parse(npy("{\"shape\": (1,), \"fortran_order\":False,\"descr\":\"<f4\"}   ", "abcd"))->shape, Shape{1});
  std::string second = npy(dict("<f4", "(1,)"), "abcd");
  second[6] = 2;
  second.insert(10, 2, '\0');
  EXPECT_EQ(parse(second)->shape, Shape{1});
}

TEST(NpyParse, RefusesWhatItCannotRepresent) {
  const Status order = parse(npy(dict("<f4", "(1, 2)", "True"), "abcdefgh")).status();
  EXPECT_EQ(order.code(), ErrorCode::unsupported);
  EXPECT_THAT(order.message(), HasSubstr("Fortran order"));
  EXPECT_THAT(parse(npy(dict(">f4", "(1,)"), "abcd")).status().message(), HasSubstr("big endian"));
  EXPECT_EQ(parse(npy(dict("<c8", "(1,)"), "abcdefgh")).status().code(), ErrorCode::unsupported);
  EXPECT_EQ(parse(npy(dict("<M8[ns]", "(1,)"), "abcdefgh")).status().code(), ErrorCode::unsupported);
  EXPECT_EQ(parse(npy(dict("|b1", "(1,)"), "\2")).status().code(), ErrorCode::invalid_data);
  std::string ninth = npy(dict("<f4", "(1,)"), "abcd");
  ninth[6] = 9;
  EXPECT_EQ(parse(ninth).status().code(), ErrorCode::unsupported);
}

TEST(NpyParse, RefusesMalformedAndTruncatedFiles) {
  const std::vector<std::string> bad{
      "",
      "\x93NUMPY",
      "not an array at all",
      npy(dict("<f4", "(2,)"), "abcd"),
      npy(dict("<f4", "(1,)"), "abcde"),
      npy(dict("<f4", "(4611686018427387904, 4)"), "abcd"),
      npy(dict("<f4", "(9223372036854775807, 9223372036854775807)"), ""),
      npy(dict("<f4", "(0, 99999999999999999999)"), ""),
      npy(dict("<f4", "(-1,)"), "abcd"),
      npy(dict("<f4", "(1"), "abcd"),
      npy(dict("<f4", "(1)"), "abcd"),
      npy(dict("<f4", "1"), "abcd"),
      npy("{'descr': '<f4', 'shape': (1,)}", "abcd"),
      npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "abcd"),
      npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "abcd"),
      npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", "abcd"),
      npy(dict("<f4", "(1,)") + "x", "abcd"),
      npy(dict("<f4", "(1,)") + "'", "abcd"),
      npy("{'descr': '<f4", ""),
      npy("", "")};
  for (const std::string& file : bad) {
    const Status status = parse(file).status();
    EXPECT_EQ(status.code(), ErrorCode::invalid_data) << file << ": " << status.to_string();
    EXPECT_THAT(status.message(), StartsWith("a.npy: "));
  }
  const std::string good = npy(dict("<f4", "(2, 2)"), std::string(16, 'x'));
  ASSERT_TRUE(parse(good).ok());
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
}

TEST_F(NpyTest, WritesWhatNumpyWrites) {
  const std::vector<std::int64_t> shape{2, 3};
  const std::string bytes = raw<float>({1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(write_npy(path("a.npy"), {Dtype::f32, shape, std::as_bytes(std::span(bytes))}).ok());
  std::string want("\x93NUMPY\x01\x00\x76\x00", 10);
  want += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  want.resize(127, ' ');
  EXPECT_EQ(slurp(path("a.npy")), want + "\n" + bytes);
  EXPECT_EQ(files(), std::vector<std::string>{"a.npy"});
}

TEST_F(NpyTest, ThereAndBack) {
  const std::string bytes(24, '\1');
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64, Dtype::boolean}) {
    const auto count = static_cast<std::int64_t>(bytes.size() / wire::dtype_bytes(dtype));
    for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{count}, {1, count}, {count, 1, 1, 1}}) {
      ASSERT_TRUE(write_npy(path("a.npy"), {dtype, shape, std::as_bytes(std::span(bytes))}).ok());
      const auto back = read_npy(path("a.npy"), {.void2_is_bf16 = true});
      ASSERT_TRUE(back.ok()) << back.status().to_string();
      EXPECT_EQ(back->dtype, dtype);
      EXPECT_EQ(back->shape, shape);
      EXPECT_EQ(std::memcmp(back->bytes.data(), bytes.data(), bytes.size()), 0);
    }
  }
  ASSERT_TRUE(write_npy(path("scalar.npy"), {Dtype::i64, {}, std::as_bytes(std::span(bytes)).first(8)}).ok());
  EXPECT_TRUE(read_npy(path("scalar.npy"))->shape.empty());
}

TEST_F(NpyTest, ReadingNamesThePathAndTheReason) {
  const Status missing = read_npy(path("none.npy")).status();
  EXPECT_EQ(missing.code(), ErrorCode::not_found);
  EXPECT_THAT(missing.message(), HasSubstr("none.npy"));
  EXPECT_EQ(read_npy(directory_.string()).status().code(), ErrorCode::io_error);
  EXPECT_EQ(read_npy(put("short.npy", "\x93NUM")).status().code(), ErrorCode::invalid_data);
  EXPECT_EQ(read_npy(put("cut.npy", npy(dict("<f4", "(1,)"), "ab"))).status().code(), ErrorCode::invalid_data);
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_npy(path("pipe")).status().code(), ErrorCode::io_error);  // and does not hang
}

TEST_F(NpyTest, LargeClaimsAllocateNothing) {
  // One terabyte by its header, a few bytes by its size.
  const Status status = read_npy(put("big.npy", npy(dict("<f4", "(500000, 500000)"), "abcd"))).status();
  EXPECT_EQ(status.code(), ErrorCode::invalid_data);
  EXPECT_THAT(status.message(), HasSubstr("the shape asks for more"));
}

TEST_F(NpyTest, WritingRefusesBytesThatDoNotFit) {
  const std::vector<std::int64_t> shape{3}, negative{-1}, huge{INT64_MAX, INT64_MAX};
  const std::string bytes(8, 'x');
  for (const auto* bad : {&shape, &negative, &huge})
    EXPECT_EQ(write_npy(path("a.npy"), {Dtype::f32, *bad, std::as_bytes(std::span(bytes))}).code(),
              ErrorCode::invalid_argument);
  EXPECT_TRUE(files().empty());
}

TEST_F(NpyTest, FailedWriteLeavesTheOldFileAndNothingElse) {
  const std::vector<std::int64_t> shape{1 << 16};
  const std::string bytes(std::size_t{4} << 16, 'x');
  put("a.npy", "old");
  // A file size limit stands for a full disk: write(2) comes up short, then fails.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const Status status = write_npy(path("a.npy"), {Dtype::f32, shape, std::as_bytes(std::span(bytes))});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), ErrorCode::io_error);
  EXPECT_EQ(slurp(path("a.npy")), "old");
  EXPECT_EQ(files(), std::vector<std::string>{"a.npy"});
}

TEST_F(NpyTest, FullDeviceIsAnError) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  const std::string bytes(4, 'x');
  EXPECT_EQ(write_npy("/dev/full", {Dtype::f32, {}, std::as_bytes(std::span(bytes))}).code(), ErrorCode::io_error);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));  // written to, not renamed over
}

TEST_F(NpyTest, WritingThroughALinkKeepsTheLink) {
  const std::string bytes(4, 'x');
  put("real.npy", "old");
  ASSERT_EQ(::symlink("real.npy", path("link.npy").c_str()), 0);
  ASSERT_TRUE(write_npy(path("link.npy"), {Dtype::f32, {}, std::as_bytes(std::span(bytes))}).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.npy")));
  EXPECT_TRUE(read_npy(path("real.npy")).ok());
  const Status nowhere = write_npy(path("no/such/directory.npy"), {Dtype::f32, {}, std::as_bytes(std::span(bytes))});
  EXPECT_EQ(nowhere.code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace ccks

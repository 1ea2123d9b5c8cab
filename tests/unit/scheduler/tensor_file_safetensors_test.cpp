// .safetensors files: one, sharded, and all that must be refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ccks/tensor_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace ccks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::Dtype;

std::string file_of(const std::string& header, const std::string& data) {
  std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}
std::string entry(const std::string& name, const std::string& type, const std::string& shape, int begin, int end) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":[" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}
Result<SafetensorsFile> parse(const std::string& file) {
  return SafetensorsFile::parse(std::as_bytes(std::span(file)), "m.safetensors");
}
std::string text(const TensorView& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

TEST(SafetensorsParse, TensorsMetadataAndTypes) {
  const std::string file = file_of("{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "BF16", "[2,1]", 4, 8) + "," +
                                       entry("a", "F32", "[]", 0, 4) + "," + entry("none", "I64", "[0,5]", 8, 8) + "," +
                                       entry("wide", "F64", "[1]", 8, 16) + "}   ",
                                   "abcdefghijklmnop");
  const auto parsed = parse(file);
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_THAT(parsed->names(), ElementsAre("a", "b", "none", "wide"));
  EXPECT_EQ(text(*parsed->find("a")), "abcd");
  EXPECT_EQ(parsed->find("a")->dtype, Dtype::f32);
  EXPECT_EQ(text(*parsed->find("b")), "efgh");
  EXPECT_EQ(parsed->find("b")->dtype, Dtype::bf16);
  EXPECT_THAT(parsed->find("b")->shape, ElementsAre(2, 1));
  EXPECT_TRUE(parsed->find("none")->bytes.empty());
  EXPECT_EQ(parsed->find("wide").status().code(), ErrorCode::unsupported);
  EXPECT_EQ(parsed->find("c").status().code(), ErrorCode::not_found);
  EXPECT_THAT(parsed->find("c").status().message(), HasSubstr("m.safetensors: no tensor 'c'"));
}

TEST(SafetensorsParse, EachDtype) {
  const std::vector<std::pair<std::string, Dtype>> types{{"F32", Dtype::f32},   {"F16", Dtype::f16},
                                                         {"BF16", Dtype::bf16}, {"I32", Dtype::i32},
                                                         {"I64", Dtype::i64},   {"BOOL", Dtype::boolean}};
  for (const auto& [name, dtype] : types) {
    const int bytes = static_cast<int>(wire::dtype_bytes(dtype));
    const std::string file = file_of("{" + entry("a", name, "[1]", 0, bytes) + "}", std::string(8, 'x'));
    const auto parsed = parse(file);
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(parsed->find("a")->dtype, dtype);
  }
}

TEST(SafetensorsParse, RefusesHostileFiles) {
  const std::string good = entry("a", "F32", "[1]", 0, 4);
  const std::vector<std::pair<std::string, std::string>> bad{
      {"", "not a .safetensors"},
      {std::string(8, '\xff'), "does not fit"},
      {file_of("", ""), "not a .safetensors"},
      {file_of("[]", ""), "not a .safetensors"},
      {file_of("{", ""), "malformed JSON"},
      {file_of("{" + good + "}x", "abcd"), "malformed JSON"},
      {file_of("{" + good + "," + good + "}", "abcd"), "second time"},
      {file_of("{" + good + "," + entry("b", "F32", "[1]", 3, 7) + "}", "abcdefg"), "overlap"},
      {file_of("{" + good + "}", "abc"), "outside the file"},
      {file_of("{" + entry("a", "F32", "[1]", 4, 0) + "}", "abcd"), "outside the file"},
      {file_of("{" + entry("a", "F32", "[2]", 0, 4) + "}", "abcd"), "shape"},
      {file_of("{" + entry("a", "F32", "[4611686018427387904,4]", 0, 0) + "}", "abcd"), "shape"},
      {file_of("{" + entry("a", "F32", "[-1]", 0, 4) + "}", "abcd"), "negative"},
      {file_of("{" + entry("a", "F32", "[1.0]", 0, 4) + "}", "abcd"), "fraction"},
      {file_of("{" + entry("a", "F32", "[[1]]", 0, 4) + "}", "abcd"), "array"},
      {file_of("{" + entry("a", "F31", "[1]", 0, 4) + "}", "abcd"), "unknown type"},
      {file_of("{" + entry("a", "F4", "[1]", 0, 1) + "}", "a"), "fit"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "abcd"), "lacks"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "abcd"), "lacks"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", "abcd"), "third offset"},
      {file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", ""), "key 'dtype'"},
      {file_of("{\"a\":{\"color\":\"red\"}}", ""), "key 'color'"},
      {file_of("{\"a\":1}", ""), "number"},
      {file_of("{\"a\":{\"dtype\":{}}}", ""), "object"},
      {file_of("{\"__metadata__\":{\"x\":{}}}", ""), "object"}};
  for (const auto& [file, why] : bad) {
    const Status status = parse(file).status();
    EXPECT_EQ(status.code(), ErrorCode::invalid_data) << file;
    EXPECT_THAT(status.message(), HasSubstr(why)) << file;
    EXPECT_THAT(status.message(), HasSubstr("m.safetensors: "));
  }
}

TEST(SafetensorsParse, DeepNestingAndEveryPrefixAreHarmless) {
  EXPECT_FALSE(parse(file_of("{\"a\":" + std::string(1'000'000, '['), "")).ok());
  EXPECT_FALSE(parse(file_of("{" + std::string(100, '{'), "")).ok());
  const std::string good = file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd");
  ASSERT_TRUE(parse(good).ok());
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse(good.substr(0, size)).ok()) << size;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return (directory_ / name).string();
  }
  void put_shards() const {
    put("one.safetensors", file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd"));
    put("two.safetensors", file_of("{" + entry("b", "F16", "[1]", 0, 2) + "}", "ef"));
  }
  std::string put_index(const std::string& map) const {
    return put("model.safetensors.index.json",
               "{\"metadata\":{\"total_size\":6,\"note\":null},\"weight_map\":" + map + "}");
  }

  test::TemporaryFolder folder_;
  const std::filesystem::path directory_{folder_.path()};
};

TEST_F(SafetensorsTest, OneFileLivesThroughAMove) {
  const std::string path = put("m.safetensors", file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd"));
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const SafetensorsFile moved = *std::move(opened);
  EXPECT_EQ(text(*moved.find("a")), "abcd");
}

TEST_F(SafetensorsTest, DirectoryAndIndex) {
  put_shards();
  for (const bool indexed : {false, true}) {
    if (indexed) put_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
    const auto opened = SafetensorsFile::open(directory_.string());
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    EXPECT_THAT(opened->names(), ElementsAre("a", "b"));
    EXPECT_EQ(text(*opened->find("b")), "ef");
  }
  EXPECT_TRUE(SafetensorsFile::open((directory_ / "model.safetensors.index.json").string()).ok());
}

TEST_F(SafetensorsTest, IndexThatLiesIsRefused) {
  put_shards();
  const std::vector<std::pair<std::string, std::string>> bad{
      {"{\"a\":\"../one.safetensors\"}", "not the name of a file"},
      {"{\"a\":\"/etc/passwd\"}", "not the name of a file"},
      {"{\"a\":\"..\"}", "not the name of a file"},
      {"{\"c\":\"one.safetensors\"}", "'c' is in none"},
      {"{\"a\":\"three.safetensors\"}", "three.safetensors"},
      {"{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}", "second time"},
      {"{\"a\":1}", "number"},
      {"{\"a\":{\"b\":\"one.safetensors\"}}", "string"},
      {"{}", "weight_map"},
      {"{", "malformed"}};
  for (const auto& [map, why] : bad) {
    const Status status = SafetensorsFile::open(put_index(map)).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(why)) << map;
  }
}

TEST_F(SafetensorsTest, SameTensorInTwoShardsIsRefused) {
  put("one.safetensors", file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd"));
  put("two.safetensors", file_of("{" + entry("a", "F32", "[1]", 0, 4) + "}", "abcd"));
  EXPECT_THAT(SafetensorsFile::open(directory_.string()).status().message(), HasSubstr("another file"));
}

TEST_F(SafetensorsTest, MissingEmptyAndForeignFiles) {
  EXPECT_EQ(SafetensorsFile::open((directory_ / "none").string()).status().code(), ErrorCode::not_found);
  EXPECT_EQ(SafetensorsFile::open(directory_.string()).status().code(), ErrorCode::not_found);
  EXPECT_EQ(SafetensorsFile::open(put("empty.safetensors", "")).status().code(), ErrorCode::invalid_data);
  EXPECT_EQ(SafetensorsFile::open(put("text.safetensors", "hello, world")).status().code(), ErrorCode::invalid_data);
}

}  // namespace
}  // namespace ccks

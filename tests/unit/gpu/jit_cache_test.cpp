#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "gpu/jit/sha256.hpp"
#include "tests/unit/gpu/jit_fixture.hpp"

namespace ccks::gpu {
namespace {

std::string digest_of(const std::string& text) {
  return hex(sha256(std::as_bytes(std::span(text.data(), text.size()))));
}

// Test vectors of FIPS 180-4, and a million times 'a'.
TEST(JitSha256, KnownDigests) {
  EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(JitSha256, PiecesAndFields) {
  const std::string text(1000, 'x');
  for (const std::size_t cut : {0u, 1u, 55u, 56u, 63u, 64u, 65u, 999u}) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hex(hash.finish()), digest_of(text)) << cut;
  }
  Sha256 a, b;
  a.field("ab"), a.field("c");
  b.field("a"), b.field("bc");
  EXPECT_NE(hex(a.finish()), hex(b.finish()));
}

CacheEntry entry_of(char fill, std::size_t bytes = 1000) { return {std::vector<std::byte>(bytes, std::byte(fill)), "me"}; }

TEST(JitCache, StoresAndFinds) {
  const TestFolder folder;
  const JitCache cache(folder / "deep/er", kJitCacheBytes);
  bool damaged = false;
  EXPECT_FALSE(cache.find("r", "c", damaged));
  ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
  const auto found = cache.find("r", "c", damaged);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->image, entry_of('1').image);
  EXPECT_EQ(found->compiler, "me");
  EXPECT_FALSE(cache.find("r", "d", damaged));
  EXPECT_FALSE(cache.find("rr", "c", damaged));
  EXPECT_FALSE(damaged);
  // Any compiler's will do where there is none.
  ASSERT_TRUE(cache.find("r", "", damaged));
  EXPECT_FALSE(cache.find("s", "", damaged));
  ASSERT_TRUE(cache.store("r", "c", entry_of('2')).ok());
  EXPECT_EQ(cache.find("r", "c", damaged)->image, entry_of('2').image);
  EXPECT_TRUE(folder.files(".aside").empty());
}

TEST(JitCache, DamagedEntriesAreFoundAndRemoved) {
  const TestFolder folder;
  const JitCache cache(folder.path(), kJitCacheBytes);
  ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
  const std::string path = folder.files(".cubin").at(0);
  const auto size = std::filesystem::file_size(path);
  // One bit of each part: head, sizes, checksum, compiler, image; then a file cut short, one with more, an empty one.
  for (const std::uintmax_t at : {std::uintmax_t{0}, std::uintmax_t{9}, std::uintmax_t{17}, std::uintmax_t{30},
                                  std::uintmax_t{57}, size / 2, size - 1}) {
    ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char was = static_cast<char>(file.get());
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(was ^ 4));
    file.close();
    bool damaged = false;
    EXPECT_FALSE(cache.find("r", "c", damaged)) << at;
    EXPECT_TRUE(damaged) << at;
    EXPECT_FALSE(std::filesystem::exists(path)) << at;
  }
  for (const std::uintmax_t bytes : {std::uintmax_t{0}, std::uintmax_t{20}, size - 1, size + 1}) {
    ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
    std::filesystem::resize_file(path, bytes);
    bool damaged = false;
    EXPECT_FALSE(cache.find("r", "c", damaged)) << bytes;
    EXPECT_TRUE(damaged) << bytes;
  }
}

TEST(JitCache, NothingThatOthersMayHaveWritten) {
  const TestFolder folder;
  const JitCache cache(folder.path(), kJitCacheBytes);
  ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
  const std::string path = folder.files(".cubin").at(0);
  bool damaged = false;
  ASSERT_EQ(chmod(path.c_str(), 0622), 0);
  EXPECT_FALSE(cache.find("r", "c", damaged));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(cache.find("r", "c", damaged));
  std::filesystem::rename(path, folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", path);
  EXPECT_FALSE(cache.find("r", "c", damaged));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(cache.find("r", "c", damaged));  // and does not wait for a writer
  EXPECT_FALSE(damaged);
}

TEST(JitCache, TheLongestUnusedGoFirst) {
  const TestFolder folder;
  const JitCache cache(folder.path(), 10'000);
  const auto age = [&](const std::string& request, int seconds) {
    for (const std::string& path : folder.files(".cubin")) {
      if (path.find("/" + request + "-") == std::string::npos) continue;
      const timespec then = {time(nullptr) - seconds, 0};
      const timespec times[] = {then, then};
      ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    }
  };
  for (const char* request : {"a", "b", "c"}) ASSERT_TRUE(cache.store(request, "x", entry_of('1', 2500)).ok());
  age("a", 300), age("b", 200), age("c", 100);
  bool damaged = false;
  ASSERT_TRUE(cache.find("a", "x", damaged));  // used now
  ASSERT_TRUE(cache.store("d", "x", entry_of('1', 4000)).ok());
  EXPECT_TRUE(cache.find("a", "x", damaged));
  EXPECT_FALSE(cache.find("b", "x", damaged));
  EXPECT_TRUE(cache.find("c", "x", damaged));
  EXPECT_TRUE(cache.find("d", "x", damaged));
  // One alone may be larger than the limit, and the one just made stays whatever the times say: those of several may be the same.
  age("a", -60);
  ASSERT_TRUE(cache.store("e", "x", entry_of('1', 50'000)).ok());
  EXPECT_TRUE(cache.find("e", "x", damaged));
  EXPECT_EQ(folder.files(".cubin").size(), 1u);
}

TEST(JitCache, WhatADeadProcessLeftGoes) {
  const TestFolder folder;
  const JitCache cache(folder.path(), kJitCacheBytes);
  for (const char* name : {"old.1.0.aside", "new.2.0.aside"}) std::ofstream(folder / name) << "half";
  const timespec old[] = {{time(nullptr) - 7200, 0}, {time(nullptr) - 7200, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (folder / "old.1.0.aside").c_str(), old, 0), 0);
  ASSERT_TRUE(cache.store("r", "c", entry_of('1')).ok());
  EXPECT_EQ(folder.files(".aside"), std::vector<std::string>{folder / "new.2.0.aside"});
}

TEST(JitCache, NoFolderIsNoError) {
  bool damaged = false;
  const JitCache none("", kJitCacheBytes);
  EXPECT_FALSE(none.find("r", "c", damaged));
  EXPECT_EQ(none.store("r", "c", entry_of('1')).code(), ErrorCode::not_found);
  const TestFolder folder;
  std::ofstream(folder / "file") << "in the way";
  const JitCache blocked(folder / "file/jit", kJitCacheBytes);
  EXPECT_FALSE(blocked.find("r", "c", damaged));
  EXPECT_EQ(blocked.store("r", "c", entry_of('1')).code(), ErrorCode::io_error);
}

// Writers and readers of one entry in several processes: a reader sees a whole entry or none.
TEST(JitCache, ManyProcesses) {
  const TestFolder folder;
  const JitCache cache(folder.path(), 100'000);
  std::vector<pid_t> children;
  for (int process = 0; process < 6; ++process) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int wrong = 0;
      for (int i = 0; i < 200; ++i) {
        const std::string request = "r" + std::to_string(i % 3);
        bool damaged = false;
        if (!cache.store(request, "c", entry_of(static_cast<char>('a' + process), 30'000)).ok()) ++wrong;
        const auto found = cache.find(request, "c", damaged);
        if (damaged) ++wrong;
        if (found && (found->image.size() != 30'000 || found->image.front() != found->image.back())) ++wrong;
      }
      _exit(wrong == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_TRUE(folder.files(".aside").empty());
}

}  // namespace
}  // namespace ccks::gpu

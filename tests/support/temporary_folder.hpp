// TemporaryFolder: a folder of one test alone, removed at its end.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

namespace ccks::test {

class TemporaryFolder {
 public:
  /// Throws std::filesystem::filesystem_error where none can be made: a test ends there.
  TemporaryFolder() {
    static std::atomic<unsigned> count{0};
    do {
      const unsigned n = count.fetch_add(1, std::memory_order_relaxed);  // relaxed: a number, alone
      path_ = std::filesystem::temp_directory_path() / ("ccks-test-" + std::to_string(::getpid()) + "-" + std::to_string(n));
    } while (!std::filesystem::create_directory(path_));  // left behind by an earlier process of this number
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Files in it and in folders of it whose names end like this.
  std::vector<std::string> files(const std::string& ending) const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path_))
      if (entry.is_regular_file() && entry.path().string().ends_with(ending)) out.push_back(entry.path().string());
    return out;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace ccks::test

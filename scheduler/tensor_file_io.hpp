// Files by descriptor, with every system failure turned into a Status that names the path. Private to the runtime
// library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ccks/result.hpp"

namespace ccks::scheduler {

/// "path: what: the system's words for `error`", as not_found or io_error.
Status file_error(const std::string& path, const char* what, int error);

/// An open file descriptor. Move-only; the destructor closes without a word, close() says whether it went well.
class File {
 public:
  static Result<File> open_to_read(const std::string& path);  // regular files only
  /// `flags` as of open(2), without O_CLOEXEC, which is always set.
  static Result<File> open(const std::string& path, int flags, unsigned mode);
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  std::uint64_t size() const { return size_; }  // when it was opened to read
  int descriptor() const { return descriptor_; }
  /// Fills `out` from `offset`; invalid_data where the file ends before.
  Status read_at(std::uint64_t offset, std::span<std::byte> out) const;
  Status write_all(std::span<const std::byte> bytes);
  Status sync();
  Status close();

 private:
  File(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
  std::string path_;
};

}  // namespace ccks::scheduler

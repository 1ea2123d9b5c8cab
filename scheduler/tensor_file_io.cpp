#include "scheduler/tensor_file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace ccks::scheduler {
namespace {

// Linux moves at most about 2 GiB a call; a smaller piece keeps the loop honest on every system.
constexpr std::size_t kMaxPiece = std::size_t{1} << 30;

}  // namespace

Status file_error(const std::string& path, const char* what, int error) {
  const ErrorCode code = error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::io_error;
  return {code, path + ": " + what + ": " + std::generic_category().message(error)};
}

Result<File> File::open(const std::string& path, int flags, unsigned mode) {
  int descriptor = -1;
  do descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) return file_error(path, "cannot open", errno);
  return File(descriptor, path);
}

Result<File> File::open_to_read(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would hang.
  auto file = open(path, O_RDONLY | O_NONBLOCK, 0);
  if (!file.ok()) return file;
  struct stat info {};
  if (::fstat(file->descriptor_, &info) != 0) return file_error(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode)) return Status(ErrorCode::io_error, path + ": not a regular file");
  file->size_ = static_cast<std::uint64_t>(info.st_size);
  return file;
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status File::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), std::min(out.size(), kMaxPiece), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path_, "cannot read", errno);
    if (got == 0) return {ErrorCode::invalid_data, path_ + ": the file ends too early"};
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Status File::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxPiece));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return file_error(path_, "cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Status File::sync() {
  if (::fsync(descriptor_) != 0) return file_error(path_, "cannot flush", errno);
  return {};
}

Status File::close() {
  // The descriptor is gone even where close reports an error, so it is never closed again.
  if (::close(std::exchange(descriptor_, -1)) != 0) return file_error(path_, "cannot close", errno);
  return {};
}

}  // namespace ccks::scheduler

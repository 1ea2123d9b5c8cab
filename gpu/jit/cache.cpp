#include "gpu/jit/cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "gpu/jit/sha256.hpp"

namespace ccks::gpu {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'C', 'C', 'K', 'S', 'J', 'I', 'T', '1'};
constexpr const char* kEnding = ".cubin";
constexpr const char* kAside = ".aside";
constexpr std::uint64_t kEntryBytesMax = 1ull << 30;  // anything larger is not ours
constexpr std::time_t kAsideSeconds = 3600;           // what a process that died has left behind

// Head of an entry; the compiler's name and the image follow.
struct Head {
  char magic[8];
  std::uint32_t compiler_bytes;
  std::uint32_t reserved;
  std::uint64_t image_bytes;
  Digest checksum;  // of what follows the head
};

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { (void)close_now(); }
  int fd() const { return fd_; }
  bool close_now() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

bool read_exactly(int fd, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = ::read(fd, static_cast<char*>(to) + done, bytes - done);
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

/// Code that will run as us is taken only where nobody else can have put it.
bool trustworthy(const struct stat& about) {
  return S_ISREG(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::optional<CacheEntry> parse(const File& file, std::uint64_t size) {
  Head head;
  if (size < sizeof(head) || size > kEntryBytesMax || !read_exactly(file.fd(), &head, sizeof(head))) return std::nullopt;
  const std::uint64_t rest = size - sizeof(head);
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0 || head.image_bytes == 0 || head.compiler_bytes > rest ||
      head.image_bytes != rest - head.compiler_bytes)
    return std::nullopt;
  std::vector<std::byte> bytes(rest);
  if (!read_exactly(file.fd(), bytes.data(), bytes.size()) || sha256(bytes) != head.checksum) return std::nullopt;
  CacheEntry entry;
  entry.compiler.assign(reinterpret_cast<const char*>(bytes.data()), head.compiler_bytes);
  entry.image.assign(bytes.begin() + head.compiler_bytes, bytes.end());
  return entry;
}

std::vector<std::byte> serialized(const CacheEntry& entry) {
  Head head{};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.compiler_bytes = static_cast<std::uint32_t>(entry.compiler.size());
  head.image_bytes = entry.image.size();
  std::vector<std::byte> out(sizeof(head));
  const auto name = std::as_bytes(std::span(entry.compiler.data(), entry.compiler.size()));
  out.insert(out.end(), name.begin(), name.end());
  out.insert(out.end(), entry.image.begin(), entry.image.end());
  head.checksum = sha256(std::span(out).subspan(sizeof(head)));
  std::memcpy(out.data(), &head, sizeof(head));
  return out;
}

Status failed(const std::string& what, const std::string& path) {
  return {ErrorCode::io_error, fmt::format("{} '{}': {}", what, path, std::strerror(errno))};
}

Status make_folder(const std::string& folder) {
  std::error_code error;
  const fs::path path(folder);
  fs::create_directories(path.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) == 0 || (errno == EEXIST && fs::is_directory(path, error))) return {};
  return failed("cannot make folder", folder);
}

struct Found {
  std::string path;
  std::uint64_t bytes;
  timespec used;
};

bool older(const Found& a, const Found& b) {
  return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
}

/// Regular files of `folder` whose names begin and end like this.
std::vector<Found> list(const std::string& folder, std::string_view begin, std::string_view end) {
  std::vector<Found> out;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), last; !error && at != last; at.increment(error)) {
    const std::string name = at->path().filename().string();
    struct stat about;
    if (!name.starts_with(begin) || !name.ends_with(end) || lstat(at->path().c_str(), &about) != 0) continue;
    if (S_ISREG(about.st_mode)) out.push_back({at->path().string(), static_cast<std::uint64_t>(about.st_size), about.st_mtim});
  }
  return out;
}

}  // namespace

std::string default_cache_folder() {
  const auto absolute = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr && *value == '/' ? value : "";
  };
  if (const char* own = std::getenv("CCKS_CACHE_DIR"); own != nullptr && *own != '\0') return own;
  if (const std::string cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache + "/ccks";
  if (const std::string home = absolute("HOME"); !home.empty()) return home + "/.cache/ccks";
  return {};
}

std::string JitCache::path(const std::string& request, const std::string& compiler) const {
  return fmt::format("{}/{}-{}{}", folder_, request, compiler, kEnding);
}

std::vector<std::string> JitCache::newest_first(const std::string& request) const {
  std::vector<Found> found = list(folder_, request + "-", kEnding);
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return older(b, a); });
  std::vector<std::string> out;
  for (const Found& each : found) out.push_back(each.path);
  return out;
}

std::optional<CacheEntry> JitCache::find(const std::string& request, const std::string& compiler, bool& damaged) const {
  if (folder_.empty()) return std::nullopt;
  for (const std::string& name : compiler.empty() ? newest_first(request) : std::vector{path(request, compiler)}) {
    // Without O_NONBLOCK a pipe of that name would hang us.
    const File file(::open(name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat about;
    if (file.fd() < 0 || fstat(file.fd(), &about) != 0 || !trustworthy(about)) continue;
    std::optional<CacheEntry> entry = parse(file, static_cast<std::uint64_t>(about.st_size));
    if (entry) {
      (void)futimens(file.fd(), nullptr);  // used now: trim takes the oldest
      return entry;
    }
    damaged = true;
    (void)::unlink(name.c_str());
  }
  return std::nullopt;
}

Status JitCache::store(const std::string& request, const std::string& compiler, const CacheEntry& entry) const {
  if (folder_.empty()) return {ErrorCode::not_found, "no cache folder is known: set CCKS_CACHE_DIR"};
  CCKS_RETURN_IF_ERROR(make_folder(folder_));
  static std::atomic<unsigned> count{0};
  // relaxed: only tells apart the threads of this process
  const std::string aside =
      fmt::format("{}/{}.{}.{}{}", folder_, request, getpid(), count.fetch_add(1, std::memory_order_relaxed), kAside);
  File file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.fd() < 0) return failed("cannot create", aside);
  // Some file systems report a full disk only when the file is closed.
  const std::string to = path(request, compiler);
  if (!write_all(file.fd(), serialized(entry)) || !file.close_now() || ::rename(aside.c_str(), to.c_str()) != 0) {
    const Status status = failed("cannot write", to);
    (void)::unlink(aside.c_str());
    return status;
  }
  trim(to);
  return {};
}

void JitCache::trim(const std::string& keep) const {
  for (const Found& left : list(folder_, "", kAside))
    if (left.used.tv_sec < std::time(nullptr) - kAsideSeconds) (void)::unlink(left.path.c_str());
  std::vector<Found> entries = list(folder_, "", kEnding);
  std::uint64_t total = 0;
  for (const Found& entry : entries) total += entry.bytes;
  std::sort(entries.begin(), entries.end(), older);
  // Not by its time: file systems may give what is stored within some milliseconds the same.
  for (std::size_t i = 0; i < entries.size() && total > limit_bytes_; ++i) {
    if (entries[i].path == keep) continue;
    if (::unlink(entries[i].path.c_str()) == 0) total -= entries[i].bytes;
  }
}

}  // namespace ccks::gpu

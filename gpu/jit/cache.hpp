// JitCache: compiled code on disk, one file an entry, shared by all processes of one user.
//
// An entry is named by the hash of everything that its code depends on, so it is never out of date; it is written aside and
// renamed, so nobody sees half of one; and it holds a checksum, so a damaged one is found and made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ccks/result.hpp"

namespace ccks::gpu {

/// What the entries of a folder may take together; the ones longest unused go first. A worker takes 0.2 to 1 MB.
inline constexpr std::uint64_t kJitCacheBytes = 256ull << 20;

struct CacheEntry {
  std::vector<std::byte> image;
  std::string compiler;  // who made it, for people
};

/// Where the user's cache is: CCKS_CACHE_DIR, else XDG_CACHE_HOME/ccks, else ~/.cache/ccks. Empty where none is known.
std::string default_cache_folder();

/// No call fails because of a full, read-only or missing disk: find finds nothing, store says why. Thread-safe.
class JitCache {
 public:
  /// An empty `folder`: a cache that holds nothing.
  JitCache(std::string folder, std::uint64_t limit_bytes) : folder_(std::move(folder)), limit_bytes_(limit_bytes) {}

  /// The entry `request` as `compiler` makes it; with an empty `compiler`, the newest that any has made. Both are hashes in
  /// hex. Entries that are damaged are removed and `damaged` is set; entries of other users are not looked at.
  std::optional<CacheEntry> find(const std::string& request, const std::string& compiler, bool& damaged) const;
  /// Puts `entry` there in place of what was, then trims the folder: what was not used for longest goes, but never `entry`, however large.
  Status store(const std::string& request, const std::string& compiler, const CacheEntry& entry) const;

  const std::string& folder() const { return folder_; }

 private:
  std::string path(const std::string& request, const std::string& compiler) const;
  std::vector<std::string> newest_first(const std::string& request) const;
  void trim(const std::string& keep) const;

  std::string folder_;
  std::uint64_t limit_bytes_;
};

}  // namespace ccks::gpu

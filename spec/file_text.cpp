#include "spec/file_text.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace ccks::spec {

std::optional<std::string> read_text_file(const std::string& path, std::size_t max_bytes, std::string& why) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    why = "it is a directory";
    return std::nullopt;
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    why = errno != 0 ? std::strerror(errno) : "it cannot be opened";
    return std::nullopt;
  }
  std::string text;
  char block[65536];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (text.size() <= max_bytes) continue;
    why = "it is larger than " + std::to_string(max_bytes) + " bytes";
    return std::nullopt;
  }
  if (in.bad()) {
    why = "reading failed";
    return std::nullopt;
  }
  return text;
}

}  // namespace ccks::spec

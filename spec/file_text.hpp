// Reading a text file whole, with a limit.
#pragma once

#include <optional>
#include <string>

namespace ccks::spec {

/// The file's bytes, or nothing with the reason in `why`. Only regular files and pipes are read, never directories.
std::optional<std::string> read_text_file(const std::string& path, std::size_t max_bytes, std::string& why);

}  // namespace ccks::spec

// Writing generated files: never over what was not generated, never half.
#pragma once

#include <string>
#include <vector>

#include "codegen/emit_sources.hpp"

namespace ccks::codegen {

/// `text` behind a first line that says who wrote it and holds the hash of what follows, in the comment style of
/// `path`.
std::string with_marker(const std::string& path, const std::string& text);

enum class Origin {
  absent,     // no such file
  generated,  // by ccks-gen, untouched since
  edited,     // by ccks-gen, changed since
  foreign,    // by somebody else
};
/// Whose file `text` is.
Origin origin_of(const std::string& text);

/// Writes `files` into folder `directory`, which is made if need be. All are written aside first and renamed at the
/// end; on any error nothing of the old state is lost. `force` overwrites edited and foreign files of the same names.
/// Generated files that are no longer among `files` are removed. invalid_argument where a file is not ours to
/// overwrite; io_error.
Status write_generated(const std::string& directory, const std::vector<GeneratedFile>& files, bool force);
/// Writes one file of the user's naming aside and renames it.
Status write_file(const std::string& path, const std::string& text);

}  // namespace ccks::codegen

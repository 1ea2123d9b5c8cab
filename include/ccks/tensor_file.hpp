// Tensors in files: .npy in and out, .safetensors in. Files are taken as hostile: nothing is read past their end, and
// nothing is allocated before what a header says has been held against the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ccks/result.hpp"
#include "ccks/wire/dtype.hpp"

namespace ccks {

/// A tensor in host memory: contiguous, row-major, little endian.
struct HostTensor {
  wire::Dtype dtype = wire::Dtype::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// The same, borrowed. `bytes` need not be aligned for the dtype: copy them, do not cast.
struct TensorView {
  wire::Dtype dtype = wire::Dtype::f32;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;
};

struct NpyOptions {
  /// numpy has no bf16; write_npy stores it as '<V2' (two opaque bytes an element). True reads V2 as bf16, false
  /// refuses it.
  bool void2_is_bf16 = false;
};

/// read_npy reads one array. '<f4', '<f2', '<i4', '<i8', '|b1' and '|u1' (as bool: 0 and 1 only) are taken as they are,
/// '<f8' is rounded to f32. not_found, io_error, invalid_data for a malformed or truncated file, unsupported for
/// Fortran order, big endian and other types. The message begins with the path.
Result<HostTensor> read_npy(const std::string& path, const NpyOptions& options = {});
/// The same from memory; `name` stands for the path in messages.
Result<HostTensor> parse_npy(std::span<const std::byte> file, const std::string& name, const NpyOptions& options = {});
/// write_npy writes beside `path` and renames once every byte is on the disk, so that readers see the old file or the
/// new one and a full disk leaves the old. What exists and is no regular file (a pipe, /dev/stdout) is written to
/// directly.
Status write_npy(const std::string& path, const TensorView& tensor);

/// SafetensorsFile is a checkpoint, mapped read-only: one .safetensors file, or the shards that an index
/// (model.safetensors.index.json) or a directory names. Move-only, safe to read from many threads. The files must not
/// shrink while it lives.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  /// One file in memory, which must outlive the result; `name` stands for the path in messages.
  static Result<SafetensorsFile> parse(std::span<const std::byte> file, const std::string& name);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  /// The view lives as long as this object. not_found; unsupported where its type has no Dtype (e.g. F64, F8_E4M3).
  Result<TensorView> find(std::string_view name) const;
  /// All names, in alphabetical order.
  std::vector<std::string> names() const;

 private:
  struct Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccks

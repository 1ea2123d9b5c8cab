// .npy: a magic, the length of a header, the header as a Python dict literal, then the elements.
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "ccks/tensor_file.hpp"
#include "scheduler/tensor_file_io.hpp"

namespace ccks {
namespace {

using scheduler::File;
using scheduler::file_error;
using wire::Dtype;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPreambleBytes = 12;          // magic, version, and the longer form of the header length
constexpr std::size_t kMaxHeaderBytes = 64 * 1024;  // numpy writes about 100; more is no array of ours
constexpr std::size_t kMaxRank = 32;                // as numpy up to version 1

// How elements lie in the file, and what they become.
struct Layout {
  Dtype dtype;
  std::size_t file_bytes;  // of one element
  bool from_f64 = false;
  bool is_truth = false;  // bytes that must be 0 or 1
};

struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Reads the few forms of Python literal that a header may hold. Every step says whether it matched.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  bool done() {
    skip_space();
    return text_.empty();
  }
  bool take(char c) {
    skip_space();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool take_string(std::string& out) {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return false;
    const std::size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return false;
    out = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return out.find('\\') == std::string::npos;
  }
  bool take_bool(bool& out) {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      out = word == "True";
      return true;
    }
    return false;
  }
  bool take_integer(std::int64_t& out) {
    skip_space();
    std::size_t digits = 0;
    out = 0;
    for (; digits < text_.size() && text_[digits] >= '0' && text_[digits] <= '9'; ++digits) {
      if (out > (INT64_MAX - 9) / 10) return false;
      out = out * 10 + (text_[digits] - '0');
    }
    text_.remove_prefix(digits);
    return digits > 0;
  }
  bool take_tuple(std::vector<std::int64_t>& out) {
    if (!take('(')) return false;
    while (!take(')')) {
      std::int64_t extent = 0;
      if (out.size() == kMaxRank || !take_integer(extent)) return false;
      out.push_back(extent);
      if (take(',')) continue;
      return out.size() > 1 && take(')');  // (3) is a number, (3,) a tuple
    }
    return true;
  }

 private:
  void skip_space() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n' || text_.front() == '\t'))
      text_.remove_prefix(1);
  }
  std::string_view text_;
};

// True if `text` is a dict of exactly descr, fortran_order and shape.
bool parse_header(std::string_view text, Header& header) {
  LiteralReader reader(text);
  bool seen_descr = false, seen_order = false, seen_shape = false;
  if (!reader.take('{')) return false;
  while (!reader.take('}')) {
    std::string key;
    if (!reader.take_string(key) || !reader.take(':')) return false;
    bool* const seen = key == "descr"           ? &seen_descr
                       : key == "fortran_order" ? &seen_order
                       : key == "shape"         ? &seen_shape
                                                : nullptr;
    if (seen == nullptr || *seen) return false;
    *seen = true;
    const bool read = seen == &seen_descr   ? reader.take_string(header.descr)
                      : seen == &seen_order ? reader.take_bool(header.fortran_order)
                                            : reader.take_tuple(header.shape);
    if (!read) return false;
    if (reader.take(',')) continue;
    if (!reader.take('}')) return false;
    break;
  }
  return seen_descr && seen_order && seen_shape && reader.done();
}

Result<Layout> layout_of(const std::string& descr, const std::string& path, const NpyOptions& options) {
  const auto unsupported = [&](const std::string& why) { return Status(ErrorCode::unsupported, path + ": " + why); };
  const std::string_view type = std::string_view(descr).substr(std::min<std::size_t>(1, descr.size()));
  if (descr.starts_with('>') && type != "b1" && type != "u1")
    return unsupported("elements of type '" + descr + "' are big endian");
  if (type == "f4") return Layout{Dtype::f32, 4};
  if (type == "f2") return Layout{Dtype::f16, 2};
  if (type == "f8") return Layout{Dtype::f32, 8, true};
  if (type == "i4") return Layout{Dtype::i32, 4};
  if (type == "i8") return Layout{Dtype::i64, 8};
  if (type == "b1" || type == "u1") return Layout{Dtype::boolean, 1, false, true};
  if (type == "V2" && options.void2_is_bf16) return Layout{Dtype::bf16, 2};
  if (type == "V2") return unsupported("elements of type '" + descr + "' are taken only where bf16 is expected");
  return unsupported("elements of type '" + descr.substr(0, 40) +
                     "' have no counterpart here; f4, f2, f8, i4, i8, b1 and u1 have");
}

// Bytes of the header and where it begins, from the first 12 bytes of a file; nothing if they are not those of a .npy.
struct HeaderPlace {
  std::size_t begin, bytes;
};
Result<HeaderPlace> find_header(std::span<const std::byte> preamble, const std::string& path) {
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(preamble[i]); };
  if (preamble.size() < kPreambleBytes || std::memcmp(preamble.data(), kMagic.data(), kMagic.size()) != 0)
    return Status(ErrorCode::invalid_data, path + ": not a .npy file");
  const std::size_t version = byte(6);
  if (version < 1 || version > 3)
    return Status(ErrorCode::unsupported, path + ": .npy of version " + std::to_string(version));
  HeaderPlace place{10, byte(8) | byte(9) << 8};
  if (version > 1) place = {12, place.bytes | byte(10) << 16 | byte(11) << 24};
  if (place.bytes > kMaxHeaderBytes)
    return Status(ErrorCode::invalid_data, path + ": a header of " + std::to_string(place.bytes) + " bytes");
  return place;
}

// Elements of `shape`, held against the bytes that the file has for them.
Result<std::size_t> checked_count(const Header& header, const Layout& layout, std::uint64_t data_bytes,
                                  const std::string& path) {
  const bool empty = std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end();
  std::uint64_t count = empty ? 0 : 1;
  for (const std::int64_t extent : header.shape) {
    if (count != 0 && static_cast<std::uint64_t>(extent) > data_bytes / layout.file_bytes / count)
      return Status(ErrorCode::invalid_data, path + ": the shape asks for more than the " + std::to_string(data_bytes) +
                                                 " bytes of elements there are");
    count *= static_cast<std::uint64_t>(extent);
  }
  if (count * layout.file_bytes != data_bytes)
    return Status(ErrorCode::invalid_data, path + ": the shape asks for " + std::to_string(count * layout.file_bytes) +
                                               " bytes of elements, there are " + std::to_string(data_bytes));
  return static_cast<std::size_t>(count);
}

// What is known before any element is read.
struct Description {
  Header header;
  Layout layout;
};

Result<Description> describe(std::string_view text, std::uint64_t data_bytes, const std::string& path,
                             const NpyOptions& options) {
  Header header;
  if (!parse_header(text, header))
    return Status(ErrorCode::invalid_data, path + ": the header of the .npy file is malformed");
  auto layout = layout_of(header.descr, path, options);
  CCKS_RETURN_IF_ERROR(layout.status());
  if (header.fortran_order && header.shape.size() > 1)
    return Status(ErrorCode::unsupported,
                  path + ": the array is in Fortran order; save it with numpy.ascontiguousarray");
  CCKS_RETURN_IF_ERROR(checked_count(header, *layout, data_bytes, path).status());
  return Description{std::move(header), *layout};
}

// Turns the file's elements into the tensor's.
Result<HostTensor> finish(Description description, std::vector<std::byte> bytes, const std::string& path) {
  if (description.layout.is_truth &&
      std::any_of(bytes.begin(), bytes.end(), [](std::byte b) { return b > std::byte{1}; }))
    return Status(ErrorCode::invalid_data, path + ": a bool is neither 0 nor 1");
  if (description.layout.from_f64) {
    const std::size_t count = bytes.size() / sizeof(double);
    for (std::size_t i = 0; i < count; ++i) {  // in place: the f32 of i never reaches the f64 of i + 1
      double wide = 0;
      std::memcpy(&wide, bytes.data() + i * sizeof(double), sizeof(double));
      const auto narrow = static_cast<float>(wide);
      std::memcpy(bytes.data() + i * sizeof(float), &narrow, sizeof(float));
    }
    bytes.resize(count * sizeof(float));
    bytes.shrink_to_fit();
  }
  return HostTensor{description.layout.dtype, std::move(description.header.shape), std::move(bytes)};
}

Result<HostTensor> read_from(const File& file, const std::string& path, const NpyOptions& options) {
  std::array<std::byte, kPreambleBytes> preamble{};
  if (file.size() < preamble.size()) return Status(ErrorCode::invalid_data, path + ": not a .npy file");
  CCKS_RETURN_IF_ERROR(file.read_at(0, preamble));
  const auto place = find_header(preamble, path);
  CCKS_RETURN_IF_ERROR(place.status());
  const std::uint64_t data_at = place->begin + place->bytes;
  if (data_at > file.size()) return Status(ErrorCode::invalid_data, path + ": the file ends inside its header");
  std::string text(place->bytes, '\0');
  CCKS_RETURN_IF_ERROR(file.read_at(place->begin, std::as_writable_bytes(std::span(text))));
  auto description = describe(text, file.size() - data_at, path, options);
  CCKS_RETURN_IF_ERROR(description.status());
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size() - data_at));
  CCKS_RETURN_IF_ERROR(file.read_at(data_at, bytes));
  return finish(*std::move(description), std::move(bytes), path);
}

const char* descr_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "<f4";
    case Dtype::f16:
      return "<f2";
    case Dtype::bf16:
      return "<V2";
    case Dtype::i32:
      return "<i4";
    case Dtype::i64:
      return "<i8";
    case Dtype::boolean:
      return "|b1";
  }
  return "";
}

// Preamble and header of version 1.0, padded with spaces so that the elements begin at a multiple of 64.
std::string make_header(const TensorView& tensor) {
  std::string dict = std::string("{'descr': '") + descr_of(tensor.dtype) + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t extent : tensor.shape) dict += std::to_string(extent) + ", ";
  if (tensor.shape.size() > 1) dict.resize(dict.size() - 2);
  if (tensor.shape.size() == 1) dict.resize(dict.size() - 1);
  dict += "), }";
  dict.append(63 - (10 + dict.size()) % 64, ' ');
  dict += '\n';
  std::string header(kMagic);
  header += {'\1', '\0', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return header + dict;
}

Status check_view(const std::string& path, const TensorView& tensor) {
  std::uint64_t count = 1;
  for (const std::int64_t extent : tensor.shape) {
    if (extent < 0 || (extent > 0 && count > UINT64_MAX / 16 / static_cast<std::uint64_t>(extent)))
      return {ErrorCode::invalid_argument, path + ": a tensor with an impossible dim of " + std::to_string(extent)};
    count *= static_cast<std::uint64_t>(extent);
  }
  if (tensor.shape.size() > kMaxRank || count * wire::dtype_bytes(tensor.dtype) != tensor.bytes.size())
    return {ErrorCode::invalid_argument, path + ": the tensor's bytes do not fit its shape"};
  return {};
}

Status write_to(File& file, const TensorView& tensor) {
  const std::string header = make_header(tensor);
  CCKS_RETURN_IF_ERROR(file.write_all(std::as_bytes(std::span(header))));
  return file.write_all(tensor.bytes);
}

// The directory entry is on the disk only once the directory is. Some file systems refuse that; the data is safe there.
void sync_directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  auto directory = File::open(slash == std::string::npos ? "." : path.substr(0, slash + 1), O_RDONLY | O_DIRECTORY, 0);
  if (directory.ok()) static_cast<void>(directory->sync());
}

Status write_aside(const std::string& path, const TensorView& tensor) {
  // Distinct for each writer of this process and, by the process id, of others.
  static std::atomic<unsigned> counter{0};
  // relaxed: only that numbers differ matters, they order nothing.
  const std::string aside = path + ".tmp." + std::to_string(::getpid()) + "." +
                            std::to_string(counter.fetch_add(1, std::memory_order_relaxed));
  auto file = File::open(aside, O_WRONLY | O_CREAT | O_EXCL, 0666);
  CCKS_RETURN_IF_ERROR(file.status());
  Status status = write_to(*file, tensor);
  if (status.ok()) status = file->sync();
  if (const Status closed = file->close(); status.ok()) status = closed;
  if (status.ok() && ::rename(aside.c_str(), path.c_str()) != 0)
    status = file_error(path, "cannot rename into place", errno);
  if (!status.ok())
    ::unlink(aside.c_str());
  else
    sync_directory_of(path);
  return status;
}

}  // namespace

Result<HostTensor> read_npy(const std::string& path, const NpyOptions& options) {
  try {
    const auto file = File::open_to_read(path);
    CCKS_RETURN_IF_ERROR(file.status());
    return read_from(*file, path, options);
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::out_of_memory, path + ": not enough memory for its elements");
  }
}

Result<HostTensor> parse_npy(std::span<const std::byte> file, const std::string& name, const NpyOptions& options) {
  const auto place = find_header(file.first(std::min(file.size(), kPreambleBytes)), name);
  CCKS_RETURN_IF_ERROR(place.status());
  const std::size_t data_at = place->begin + place->bytes;
  if (data_at > file.size()) return Status(ErrorCode::invalid_data, name + ": the file ends inside its header");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + place->begin, place->bytes);
  const auto data = file.subspan(data_at);
  auto description = describe(text, data.size(), name, options);
  CCKS_RETURN_IF_ERROR(description.status());
  return finish(*std::move(description), {data.begin(), data.end()}, name);
}

Status write_npy(const std::string& path, const TensorView& tensor) {
  CCKS_RETURN_IF_ERROR(check_view(path, tensor));
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return write_aside(path, tensor);
  if (S_ISREG(info.st_mode)) {
    // Renaming over a symbolic link would replace the link and leave the file.
    char* const resolved = ::realpath(path.c_str(), nullptr);
    if (resolved == nullptr) return file_error(path, "cannot resolve", errno);
    const std::string target(resolved);
    std::free(resolved);
    return write_aside(target, tensor);
  }
  auto file = File::open(path, O_WRONLY, 0);
  CCKS_RETURN_IF_ERROR(file.status());
  CCKS_RETURN_IF_ERROR(write_to(*file, tensor));
  return file->close();
}

}  // namespace ccks

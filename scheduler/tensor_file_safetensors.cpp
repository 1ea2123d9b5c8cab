// .safetensors: eight bytes of header length, a JSON header, then the tensors' bytes.
// The header is read by events, never as a tree: it may be large.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "ccks/tensor_file.hpp"
#include "scheduler/tensor_file_io.hpp"

namespace ccks {
namespace {

using scheduler::File;
using scheduler::file_error;
using wire::Dtype;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own reader
constexpr std::size_t kMaxRank = 32;

// One tensor as a header describes it.
struct Entry {
  std::string type;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // in the data part
  std::span<const std::byte> bytes;  // once checked
};
using Entries = std::map<std::string, Entry, std::less<>>;

// Bits of one element by the format's name for the type; 0 for a name that it does not have.
unsigned type_bits(std::string_view type) {
  struct Row {
    std::string_view name;
    unsigned bits;
  };
  static constexpr Row kTypes[] = {{"F32", 32},    {"F16", 16},    {"BF16", 16}, {"I32", 32},    {"I64", 64},
                                   {"BOOL", 8},    {"F64", 64},    {"I8", 8},    {"U8", 8},      {"I16", 16},
                                   {"U16", 16},    {"U32", 32},    {"U64", 64},  {"C64", 64},    {"F8_E4M3", 8},
                                   {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (const Row& row : kTypes)
    if (row.name == type) return row.bits;
  return 0;
}

std::optional<Dtype> dtype_of(std::string_view type) {
  if (type == "F32") return Dtype::f32;
  if (type == "F16") return Dtype::f16;
  if (type == "BF16") return Dtype::bf16;
  if (type == "I32") return Dtype::i32;
  if (type == "I64") return Dtype::i64;
  if (type == "BOOL") return Dtype::boolean;
  return std::nullopt;
}

// What the JSON events have in common: the reader's complaint, and refusal of all that a subclass does not expect.
class Events : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string complaint;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a bool"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary"); }
  bool start_array(std::size_t) override { return refuse("an array"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (complaint.empty()) complaint = "malformed JSON at byte " + std::to_string(position);
    return false;
  }

 protected:
  bool refuse(const std::string& what) {
    complaint = what + " where none belongs";
    return false;
  }
};

// { "__metadata__": {string: string}, name: {"dtype": string, "shape": [n...], "data_offsets": [begin, end]}, ... }
class HeaderEvents final : public Events {
 public:
  Entries entries;

  bool start_object(std::size_t) override { return ++depth_ <= 2 || refuse("an object"); }
  bool end_object() override { return --depth_ != 1 || in_metadata() || complete(); }
  bool key(string_t& name) override {
    if (depth_ == 2) {
      field_ = name;
      const unsigned bit = name == "dtype" ? 1u : name == "shape" ? 2u : name == "data_offsets" ? 4u : 0u;
      if (in_metadata()) return true;
      if (bit == 0 || (fields_ & bit) != 0) return refuse("key '" + name.substr(0, 80) + "'");
      fields_ |= bit;
      return true;
    }
    tensor_ = name;
    fields_ = 0;
    field_.clear();
    offsets_.clear();
    if (in_metadata()) return true;
    entry_ = Entry{};
    return entries.find(name) == entries.end() || refuse("tensor '" + name.substr(0, 200) + "' a second time");
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata()) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") return Events::string(value);
    entry_.type = value;
    return true;
  }
  bool start_array(std::size_t size) override {
    if (depth_ != 2 || in_array_ || in_metadata() || (field_ != "shape" && field_ != "data_offsets"))
      return Events::start_array(size);
    in_array_ = true;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_ || value > static_cast<std::uint64_t>(INT64_MAX)) return Events::number_unsigned(value);
    if (field_ == "shape") {
      entry_.shape.push_back(static_cast<std::int64_t>(value));
      return entry_.shape.size() <= kMaxRank || refuse("a dim past the last that is possible");
    }
    offsets_.push_back(value);
    return offsets_.size() <= 2 || refuse("a third offset");
  }

 private:
  bool in_metadata() const { return tensor_ == "__metadata__"; }
  bool complete() {
    if (fields_ != 7 || offsets_.size() != 2) {
      complaint = "tensor '" + tensor_.substr(0, 200) + "' lacks dtype, shape or data_offsets";
      return false;
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    entries.emplace(tensor_, std::move(entry_));
    return true;
  }

  int depth_ = 0;
  bool in_array_ = false;
  unsigned fields_ = 0;  // bit by field seen: dtype, shape, data_offsets
  std::string tensor_, field_;
  std::vector<std::uint64_t> offsets_;
  Entry entry_;
};

// { "metadata": {...}, "weight_map": { tensor: file, ... } }
class IndexEvents final : public Events {
 public:
  std::map<std::string, std::string> file_of;

  bool start_object(std::size_t) override { return ++depth_ <= 8 || refuse("an object"); }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1) section_ = name;
    if (depth_ == 2) tensor_ = name;
    return true;
  }
  bool string(string_t& value) override {
    if (section_ != "weight_map") return true;
    if (depth_ != 2) return Events::string(value);
    return file_of.emplace(tensor_, value).second || refuse("tensor '" + tensor_.substr(0, 200) + "' a second time");
  }
  bool null() override { return outside() || Events::null(); }
  bool boolean(bool value) override { return outside() || Events::boolean(value); }
  bool number_integer(number_integer_t value) override { return outside() || Events::number_integer(value); }
  bool number_unsigned(number_unsigned_t value) override { return outside() || Events::number_unsigned(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return outside() || Events::number_float(value, text);
  }

 private:
  bool outside() const { return depth_ > 0 && section_ != "weight_map"; }

  int depth_ = 0;
  std::string section_, tensor_;
};

Status parse_events(std::span<const std::byte> text, Events& events, const std::string& path) {
  const char* const begin = reinterpret_cast<const char*>(text.data());
  if (nlohmann::json::sax_parse(begin, begin + text.size(), &events)) return {};
  return {ErrorCode::invalid_data, path + ": " + events.complaint};
}

Status check_extent(const std::string& name, Entry& entry, std::span<const std::byte> data, const std::string& path) {
  const auto complain = [&](const std::string& what) {
    return Status(ErrorCode::invalid_data, path + ": tensor '" + name.substr(0, 200) + "' " + what);
  };
  const std::uint64_t bits = type_bits(entry.type);
  if (bits == 0) return complain("has the unknown type '" + entry.type.substr(0, 40) + "'");
  if (entry.begin > entry.end || entry.end > data.size()) return complain("lies outside the file");
  const std::uint64_t limit = data.size() * 8 / bits;
  const bool empty = std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end();
  std::uint64_t count = empty ? 0 : 1;
  for (const std::int64_t extent : entry.shape) {
    if (count != 0 && static_cast<std::uint64_t>(extent) > limit / count)
      return complain("has a shape larger than the file");
    count *= static_cast<std::uint64_t>(extent);
  }
  if (count * bits % 8 != 0 || count * bits / 8 != entry.end - entry.begin)
    return complain("has " + std::to_string(entry.end - entry.begin) + " bytes, which do not fit its shape and type");
  entry.bytes = data.subspan(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin));
  return {};
}

Status check_overlap(const Entries& entries, const std::string& path) {
  std::vector<const Entries::value_type*> order;
  for (const auto& item : entries)
    if (item.second.begin != item.second.end) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->second.begin < b->second.begin; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i]->second.begin < order[i - 1]->second.end)
      return {ErrorCode::invalid_data, path + ": tensors '" + order[i - 1]->first.substr(0, 200) + "' and '" +
                                           order[i]->first.substr(0, 200) + "' overlap"};
  return {};
}

Result<Entries> read_header(std::span<const std::byte> file, const std::string& path) {
  std::uint64_t header_bytes = 0;
  if (file.size() < kLengthBytes) return Status(ErrorCode::invalid_data, path + ": not a .safetensors file");
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes)
    return Status(ErrorCode::invalid_data,
                  path + ": a header of " + std::to_string(header_bytes) + " bytes does not fit the file");
  const auto header = file.subspan(kLengthBytes, static_cast<std::size_t>(header_bytes));
  if (header.empty() || header[0] != std::byte{'{'})
    return Status(ErrorCode::invalid_data, path + ": not a .safetensors file");
  HeaderEvents events;
  CCKS_RETURN_IF_ERROR(parse_events(header, events, path));
  const auto data = file.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));
  for (auto& [name, entry] : events.entries) CCKS_RETURN_IF_ERROR(check_extent(name, entry, data, path));
  CCKS_RETURN_IF_ERROR(check_overlap(events.entries, path));
  return std::move(events.entries);
}

// A whole file mapped read-only.
class Mapping {
 public:
  static Result<Mapping> open(const std::string& path) {
    const auto file = File::open_to_read(path);
    CCKS_RETURN_IF_ERROR(file.status());
    if (file->size() == 0) return Status(ErrorCode::invalid_data, path + ": the file is empty");
    const auto size = static_cast<std::size_t>(file->size());
    void* const at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->descriptor(), 0);
    if (at == MAP_FAILED) return file_error(path, "cannot map", errno);
    return Mapping({static_cast<const std::byte*>(at), size});
  }
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

}  // namespace

struct SafetensorsFile::Impl {
  std::string path;
  std::vector<Mapping> mappings;
  Entries entries;

  Status add_file(const std::string& file) {
    auto mapping = Mapping::open(file);
    CCKS_RETURN_IF_ERROR(mapping.status());
    auto found = read_header(mapping->bytes(), file);
    CCKS_RETURN_IF_ERROR(found.status());
    for (auto& [name, entry] : *found)
      if (!entries.emplace(name, std::move(entry)).second)
        return {ErrorCode::invalid_data,
                file + ": tensor '" + name.substr(0, 200) + "' stands in another file of " + path + " too"};
    mappings.push_back(*std::move(mapping));
    return {};
  }

  Status add_index(const std::string& index);
  Status add_directory(const std::filesystem::path& directory);
};

// Shards stand beside the index; a name that leads elsewhere is refused.
Status SafetensorsFile::Impl::add_index(const std::string& index) {
  const auto mapping = Mapping::open(index);
  CCKS_RETURN_IF_ERROR(mapping.status());
  if (mapping->bytes().size() > kMaxHeaderBytes) return {ErrorCode::invalid_data, index + ": too large for an index"};
  IndexEvents events;
  CCKS_RETURN_IF_ERROR(parse_events(mapping->bytes(), events, index));
  std::vector<std::string> files;
  for (const auto& [tensor, file] : events.file_of) {
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      return {ErrorCode::invalid_data, index + ": '" + file.substr(0, 200) + "' is not the name of a file beside it"};
    files.push_back(file);
  }
  if (files.empty()) return {ErrorCode::invalid_data, index + ": no 'weight_map' with tensors"};
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  const std::filesystem::path directory = std::filesystem::path(index).parent_path();
  for (const std::string& file : files) CCKS_RETURN_IF_ERROR(add_file((directory / file).string()));
  for (const auto& [tensor, file] : events.file_of)
    if (entries.find(tensor) == entries.end())
      return {ErrorCode::invalid_data, index + ": tensor '" + tensor.substr(0, 200) + "' is in none of the files"};
  return {};
}

Status SafetensorsFile::Impl::add_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const auto index = directory / "model.safetensors.index.json";
  if (std::filesystem::exists(index, error)) return add_index(index.string());
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".safetensors") files.push_back(it->path().string());
  if (error) return file_error(directory.string(), "cannot list", error.value());
  if (files.empty()) return {ErrorCode::not_found, directory.string() + ": no .safetensors file in it"};
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) CCKS_RETURN_IF_ERROR(add_file(file));
  return {};
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  try {
    auto impl = std::make_unique<Impl>();
    impl->path = path;
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
      CCKS_RETURN_IF_ERROR(impl->add_directory(path));
    else if (path.ends_with(".json"))
      CCKS_RETURN_IF_ERROR(impl->add_index(path));
    else
      CCKS_RETURN_IF_ERROR(impl->add_file(path));
    return SafetensorsFile(std::move(impl));
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::out_of_memory, path + ": not enough memory for its header");
  }
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> file, const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->path = name;
  auto entries = read_header(file, name);
  CCKS_RETURN_IF_ERROR(entries.status());
  impl->entries = *std::move(entries);
  return SafetensorsFile(std::move(impl));
}

Result<TensorView> SafetensorsFile::find(std::string_view name) const {
  const auto found = impl_->entries.find(name);
  if (found == impl_->entries.end())
    return Status(ErrorCode::not_found, impl_->path + ": no tensor '" + std::string(name) + "'");
  const auto dtype = dtype_of(found->second.type);
  if (!dtype)
    return Status(ErrorCode::unsupported, impl_->path + ": tensor '" + std::string(name) + "' has type " +
                                              found->second.type + ", which has no counterpart here");
  return TensorView{*dtype, found->second.shape, found->second.bytes};
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> all;
  for (const auto& [name, entry] : impl_->entries) all.push_back(name);
  return all;
}

}  // namespace ccks

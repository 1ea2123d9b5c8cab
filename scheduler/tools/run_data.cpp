#include "scheduler/tools/run_data.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "ccks/ragged.hpp"

namespace ccks::run {
namespace {

using wire::Dtype;

// Both take a value that the dtype can hold (spec::round_to sees to that), so that no bit is lost here.
std::uint16_t half_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
  const std::int32_t exponent = static_cast<std::int32_t>(bits >> 23 & 0xff) - 127 + 15;
  const std::uint32_t mantissa = bits & 0x7fffffu;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (exponent >= 31) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (value == 0 || exponent < -10) return sign;
  if (exponent <= 0) return static_cast<std::uint16_t>(sign | (mantissa | 0x800000u) >> (14 - exponent));
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent) << 10 | mantissa >> 13);
}

std::uint16_t bf16_from_float(float value) {
  if (std::isnan(value)) return 0x7fc0u;
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

float float_from_half(std::uint16_t half) {
  const std::uint32_t exponent = half >> 10 & 0x1f;
  const std::uint32_t mantissa = half & 0x3ffu;
  const float sign = half >> 15 ? -1.0f : 1.0f;
  if (exponent == 31)
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa | 0x400u), static_cast<int>(exponent) - 25);
}

template <class T, class Convert>
std::vector<std::byte> encode_as(std::span<const double> values, Convert convert) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const T value = convert(values[i]);
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return out;
}

template <class T, class Convert>
std::vector<double> decode_as(std::span<const std::byte> bytes, Convert convert) {
  std::vector<double> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
  return out;
}

// Where a weight may be found, see spec::Tensor::from.
std::vector<std::string> stored_names(const spec::Tensor& tensor) {
  if (tensor.from.empty()) return {tensor.name};
  std::vector<std::string> out;
  for (std::size_t at = 0; at <= tensor.from.size();) {
    const std::size_t bar = std::min(tensor.from.find('|', at), tensor.from.size());
    const std::string part = tensor.from.substr(at, bar - at);
    const std::size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
    if (first != std::string::npos) out.push_back(part.substr(first, last - first + 1));
    at = bar + 1;
  }
  return out;
}

Status at_fault(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

}  // namespace

std::vector<std::byte> encode(Dtype dtype, std::span<const double> values) {
  switch (dtype) {
    case Dtype::f32:
      return encode_as<float>(values, [](double v) { return static_cast<float>(v); });
    case Dtype::f16:
      return encode_as<std::uint16_t>(
          values, [](double v) { return half_from_float(static_cast<float>(spec::round_to(wire::Dtype::f16, v))); });
    case Dtype::bf16:
      return encode_as<std::uint16_t>(
          values, [](double v) { return bf16_from_float(static_cast<float>(spec::round_to(wire::Dtype::bf16, v))); });
    case Dtype::i32:
      return encode_as<std::int32_t>(values, [](double v) { return static_cast<std::int32_t>(v); });
    case Dtype::i64:
      return encode_as<std::int64_t>(values, [](double v) { return static_cast<std::int64_t>(v); });
    case Dtype::boolean:
      return encode_as<std::uint8_t>(values, [](double v) { return static_cast<std::uint8_t>(v != 0); });
  }
  return {};
}

std::vector<double> decode(Dtype dtype, std::span<const std::byte> bytes) {
  const auto plain = [](auto v) { return static_cast<double>(v); };
  switch (dtype) {
    case Dtype::f32:
      return decode_as<float>(bytes, plain);
    case Dtype::f16:
      return decode_as<std::uint16_t>(bytes, [](std::uint16_t v) { return static_cast<double>(float_from_half(v)); });
    case Dtype::bf16:
      return decode_as<std::uint16_t>(
          bytes, [](std::uint16_t v) { return static_cast<double>(std::bit_cast<float>(std::uint32_t{v} << 16)); });
    case Dtype::i32:
      return decode_as<std::int32_t>(bytes, plain);
    case Dtype::i64:
      return decode_as<std::int64_t>(bytes, plain);
    case Dtype::boolean:
      return decode_as<std::uint8_t>(bytes, plain);
  }
  return {};
}

std::vector<std::byte> poison(Dtype dtype, std::size_t elements) {
  const double value = wire::dtype_is_float(dtype) ? std::numeric_limits<double>::quiet_NaN()
                       : dtype == Dtype::boolean   ? 1
                                                   : -2147483648.0;
  const std::vector<double> values(elements, value);
  return encode(dtype, values);
}

namespace {

const spec::RaggedDim* find_ragged(const spec::Program& program, const std::string& name) {
  const auto found = std::find_if(program.ragged.begin(), program.ragged.end(), [&](const auto& r) { return program.symbols[r.rows].name == name; });
  return found == program.ragged.end() ? nullptr : &*found;
}

Result<std::vector<std::int32_t>> read_integers(const std::string& text) {
  std::vector<std::int64_t> wide;
  if (text.find_first_not_of("0123456789,") != std::string::npos) {
    Result<HostTensor> file = read_npy(text);
    if (!file.ok()) return file.status();
    if ((file->dtype != Dtype::i32 && file->dtype != Dtype::i64) || file->shape.size() != 1)
      return at_fault(fmt::format("{}: lengths are a row of integers (i32 or i64)", text));
    std::vector<double> values(file->bytes.size() / wire::dtype_bytes(file->dtype));
    spec::unpack_values(file->dtype, file->bytes, values);
    for (const double v : values) wide.push_back(static_cast<std::int64_t>(v));
  } else {
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t comma = std::min(text.find(',', at), text.size());
      std::int64_t value = 0;
      const auto result = std::from_chars(text.data() + at, text.data() + comma, value);
      if (result.ec != std::errc() || result.ptr != text.data() + comma) return at_fault(fmt::format("--lengths: '{}' is not numbers with commas between them", text));
      wide.push_back(value);
      at = comma + 1;
    }
  }
  std::vector<std::int32_t> out;
  for (const std::int64_t v : wide) {
    if (v < 0 || v > INT32_MAX) return at_fault(fmt::format("--lengths: {} is no length", v));
    out.push_back(static_cast<std::int32_t>(v));
  }
  return out;
}

// Whatever fills tables by them relies on it: as many as there are sequences, each within its range, all within the dim.
Status check_lengths(const spec::Program& program, std::span<const std::int64_t> dims, const Lengths& lengths) {
  for (const auto& [name, values] : lengths) {
    const spec::RaggedDim& r = *find_ragged(program, name);
    if (const auto count = r.count.evaluate(dims); count != static_cast<std::int64_t>(values.size()))
      return at_fault(fmt::format("--lengths: {} for {} sequences of '{}'", values.size(), count.value_or(0), name));
    for (const std::int32_t length : values)
      if (length < r.length.lo || length > r.length.hi)
        return {ErrorCode::out_of_range, fmt::format("--lengths: {} is outside {}'s {} to {}", length, name, r.length.lo, r.length.hi)};
    const std::int64_t rows = RaggedRows{values, r.pad, r.round}.rows();
    if (dims[r.rows] < rows) return {ErrorCode::out_of_range, fmt::format("{} = {} is too few for sequences of {} rows", name, dims[r.rows], rows)};
  }
  return {};
}

}  // namespace

Result<Lengths> read_lengths(const spec::Program& program, const Options& options) {
  Lengths out;
  for (const auto& [name, text] : options.lengths) {
    if (find_ragged(program, name) == nullptr) return at_fault(fmt::format("program '{}' has no ragged dim '{}'", program.name, name));
    Result<std::vector<std::int32_t>> values = read_integers(text);
    if (!values.ok()) return values.status();
    out[name] = std::move(*values);
  }
  return out;
}

Result<std::vector<std::int64_t>> bind_dims(const spec::Program& program, const Options& options, const Lengths& lengths) {
  std::vector<std::int64_t> dims;
  for (const spec::Symbol& symbol : program.symbols) {
    std::optional<std::int64_t> value = symbol.preset;
    if (const auto own = lengths.find(symbol.name); own != lengths.end()) {
      const spec::RaggedDim& r = *find_ragged(program, symbol.name);
      value = RaggedRows{own->second, r.pad, r.round}.rows();
    }
    for (const auto& [name, given] : options.dims) {
      if (name == symbol.name) value = given;
    }
    const std::string range = fmt::format("{} to {}", symbol.range.lo, symbol.range.hi);
    if (!value)
      return at_fault(
          fmt::format("dim '{}' has no value: give one with --set {}=N, N from {}", symbol.name, symbol.name, range));
    if (*value < symbol.range.lo || *value > symbol.range.hi) {
      return {ErrorCode::out_of_range,
              fmt::format("dim '{}' = {} is outside its range {}", symbol.name, *value, range)};
    }
    dims.push_back(*value);
  }
  return dims;
}

const std::vector<std::int32_t>* RunData::lengths_of(spec::TensorId id) const {
  for (const auto& [name, values] : lengths_) {
    const auto& tables = find_ragged(*program_, name)->tables;
    if (std::find(tables.begin(), tables.end(), id) != tables.end()) return &values;
  }
  return nullptr;
}

Result<RunData> RunData::open(const spec::Program& program, std::vector<std::int64_t> dims, Lengths lengths, const Options& options) {
  CCKS_RETURN_IF_ERROR(check_lengths(program, dims, lengths));
  RunData data;
  data.lengths_ = std::move(lengths);
  data.program_ = &program;
  data.dims_ = std::move(dims);
  data.seed_ = options.seed;
  CCKS_RETURN_IF_ERROR(data.read_inputs(options.inputs, false));
  CCKS_RETURN_IF_ERROR(data.read_inputs(options.inputs_each, true));
  for (const std::string& path : options.weights) {
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file.ok()) return file.status();
    data.weights_.push_back(std::move(*file));
  }
  return data;
}

Status RunData::read_inputs(const std::vector<NameAndPath>& files, bool stacked) {
  for (const auto& [name, path] : files) {
    const std::optional<spec::TensorId> id = program_->find_tensor(name);
    if (!id) return at_fault(fmt::format("program '{}' has no tensor '{}'", program_->name, name));
    const spec::TensorKind kind = program_->tensor(*id).kind;
    if (kind != spec::TensorKind::input && (stacked || kind != spec::TensorKind::state))
      return at_fault(fmt::format("'{}' is {}", name, stacked ? "not an input" : "neither an input nor a state"));
    Result<HostTensor> tensor = read_npy(path, {.void2_is_bf16 = program_->tensor(*id).dtype == Dtype::bf16});
    if (!tensor.ok()) return tensor.status();
    if (stacked) {
      if (tensor->shape.empty() || tensor->shape[0] < 1 || tensor->shape[0] > UINT32_MAX)
        return at_fault(fmt::format("--input-each: '{}' has no axis of iterations", path));
      if (!stacked_.empty() && tensor->shape[0] != different_iterations())
        return at_fault(fmt::format("--input-each: '{}' is for {} iterations, '{}' for {}", name, tensor->shape[0], stacked_.begin()->first, different_iterations()));
      if (given(name)) return at_fault(fmt::format("'{}' is given twice, by --input and by --input-each", name));
      const std::vector<std::int64_t> one(tensor->shape.begin() + 1, tensor->shape.end());
      CCKS_RETURN_IF_ERROR(check(*id, {tensor->dtype, one, tensor->bytes}, "--input-each"));
    }
    (stacked ? stacked_ : inputs_)[name] = std::move(*tensor);
  }
  return {};
}

std::span<const std::byte> RunData::stacked(const std::string& name, std::uint32_t iteration) const {
  const auto found = stacked_.find(name);
  if (found == stacked_.end()) return {};
  const auto count = static_cast<std::size_t>(found->second.shape[0]);
  const std::size_t bytes = found->second.bytes.size() / count;
  return std::span(found->second.bytes).subspan(iteration % count * bytes, bytes);
}

std::vector<std::int64_t> RunData::shape(spec::TensorId id) const {
  std::vector<std::int64_t> out;
  for (const spec::Expr& extent : program_->tensor(id).shape) out.push_back(extent.evaluate(dims_).value_or(0));
  return out;
}

Status RunData::check(spec::TensorId id, const TensorView& view, const std::string& where) const {
  const spec::Tensor& tensor = program_->tensor(id);
  const std::vector<std::int64_t> want = shape(id);
  if (!std::equal(want.begin(), want.end(), view.shape.begin(), view.shape.end())) {
    return at_fault(fmt::format("{}: '{}' has shape [{}], the program wants [{}]", where, tensor.name,
                                fmt::join(view.shape, ", "), fmt::join(want, ", ")));
  }
  if (view.dtype != tensor.dtype) {
    return at_fault(fmt::format("{}: '{}' is {}, the program wants {}", where, tensor.name,
                                wire::dtype_name(view.dtype), wire::dtype_name(tensor.dtype)));
  }
  return {};
}

Result<std::span<const std::byte>> RunData::stored_weight(spec::TensorId id) const {
  const spec::Tensor& tensor = program_->tensor(id);
  if (weights_.empty()) return std::span<const std::byte>();
  const std::vector<std::string> names = stored_names(tensor);
  for (const std::string& name : names) {
    for (const SafetensorsFile& file : weights_) {
      Result<TensorView> view = file.find(name);
      if (!view.ok() && view.status().code() == ErrorCode::not_found) continue;
      if (!view.ok()) return view.status();
      CCKS_RETURN_IF_ERROR(check(id, *view, fmt::format("--weights: '{}'", name)));
      return view->bytes;
    }
  }
  return {ErrorCode::not_found, fmt::format("--weights: no tensor '{}' for weight '{}'", fmt::join(names, "' or '"), tensor.name)};
}

std::vector<std::string> RunData::unused_weights() const {
  std::set<std::string> used;
  for (const spec::Tensor& tensor : program_->tensors) {
    if (tensor.kind != spec::TensorKind::weight) continue;
    for (std::string& name : stored_names(tensor)) used.insert(std::move(name));
  }
  std::vector<std::string> out;
  for (const SafetensorsFile& file : weights_) {
    for (std::string& name : file.names()) {
      if (!used.contains(name)) out.push_back(std::move(name));
    }
  }
  return out;
}

Result<std::vector<std::byte>> RunData::bytes(spec::TensorId id, std::uint32_t iteration) const {
  const spec::Tensor& tensor = program_->tensor(id);
  if (const std::span<const std::byte> own = stacked(tensor.name, iteration); !own.empty()) return std::vector<std::byte>(own.begin(), own.end());
  if (const auto input = inputs_.find(tensor.name); input != inputs_.end()) {
    CCKS_RETURN_IF_ERROR(check(id, {input->second.dtype, input->second.shape, input->second.bytes}, "--input"));
    return input->second.bytes;
  }
  if (const std::vector<std::int32_t>* lengths = lengths_of(id)) {
    std::size_t elements = 1;
    for (const std::int64_t extent : shape(id)) elements *= static_cast<std::size_t>(extent);
    std::vector<std::int32_t> table(elements);
    spec::fill_ragged(*program_, id, *lengths, table);
    const auto* bytes = reinterpret_cast<const std::byte*>(table.data());
    return std::vector<std::byte>(bytes, bytes + table.size() * sizeof(std::int32_t));
  }
  if (tensor.kind == spec::TensorKind::weight && !weights_.empty()) {
    Result<std::span<const std::byte>> stored = stored_weight(id);
    if (!stored.ok()) return stored.status();
    return std::vector<std::byte>(stored->begin(), stored->end());
  }
  if (tensor.kind == spec::TensorKind::state) {
    const auto count = spec::DenseTensor{shape(id), {}};
    std::size_t elements = 1;
    for (const std::int64_t extent : count.shape) elements *= static_cast<std::size_t>(extent);
    return std::vector<std::byte>(elements * wire::dtype_bytes(tensor.dtype));
  }
  return encode(tensor.dtype, spec::seeded_values(*program_, id, dims_, seed_).values);
}

}  // namespace ccks::run

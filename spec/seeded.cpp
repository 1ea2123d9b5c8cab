// Seeded values and the bytes of stored types. A counter-based generator: element i of a tensor is a pure function of
// (seed, name, i), made of integer arithmetic and at most two correctly rounded f64 operations, so that every platform
// and every order gives the same bits. No libm function is called but sqrt and fma, which IEEE 754 rounds exactly.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are little endian");

// The finaliser and increment of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::uint64_t stream_key(std::uint64_t seed, const std::string& name) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return mix(hash + mix(seed + kGolden));
}

std::int64_t lane_sum(std::uint64_t h) {
  return static_cast<std::int64_t>((h & 0xffff) + (h >> 16 & 0xffff) + (h >> 32 & 0xffff) + (h >> 48));
}

// Sum of eight 16-bit uniforms, centred and doubled: an integer, near enough to normal out to 4.9 standard deviations.
std::int64_t bell(std::uint64_t key, std::uint64_t i) {
  return 2 * (lane_sum(mix(key + (2 * i) * kGolden)) + lane_sum(mix(key + (2 * i + 1) * kGolden))) - 8 * 65535;
}
// 1 / (2 * sqrt(8 * (2^32 - 1) / 12)): makes bell() of variance 1.
constexpr double kBellScale = 9.344061825059267e-06;

double unit(std::uint64_t key, std::uint64_t i) {  // [0, 1)
  return static_cast<double>(mix(key + i * kGolden) >> 11) * 0x1p-53;
}

// What a tensor is filled with, its defaults worked out.
struct Recipe {
  enum class Kind { constant, normal, near_one, uniform, integers, count } kind = Kind::constant;
  double a = 0;  // constant: value; normal: standard deviation; uniform, integers: low; count: extent of the dim along which values follow each other
  double b = 0;  // uniform: high; integers: high, exclusive; count: elements between its neighbours
};

Recipe automatic_recipe(const Tensor& tensor, std::span<const std::int64_t> shape) {
  if (tensor.kind != TensorKind::input && tensor.kind != TensorKind::weight) return {Recipe::Kind::constant, 0, 0};
  if (!wire::dtype_is_float(tensor.dtype)) return {Recipe::Kind::integers, 0, 2};
  if (tensor.kind == TensorKind::input) return {Recipe::Kind::normal, 1, 0};
  if (shape.size() < 2) return {Recipe::Kind::near_one, 0, 0};
  double inner = 1;
  for (std::size_t d = 1; d < shape.size(); ++d) inner *= static_cast<double>(shape[d]);
  return {Recipe::Kind::normal, 1 / std::sqrt(std::max(inner, 1.0)), 0};
}

Recipe recipe_of(const Tensor& tensor, std::span<const std::int64_t> shape) {
  const Init& init = tensor.init;
  switch (init.kind) {
    case Init::Kind::automatic:
      return automatic_recipe(tensor, shape);
    case Init::Kind::normal:
      return {Recipe::Kind::normal, init.a, 0};
    case Init::Kind::uniform:
      return {Recipe::Kind::uniform, init.a, init.b};
    case Init::Kind::integers:
      return {Recipe::Kind::integers, std::ceil(init.a), std::ceil(init.b)};
    case Init::Kind::zeros:
      return {Recipe::Kind::constant, 0, 0};
    case Init::Kind::ones:
      return {Recipe::Kind::constant, 1, 0};
    case Init::Kind::count: {
      const auto dim = static_cast<std::size_t>(init.a);
      double inner = 1;
      for (std::size_t d = dim + 1; d < shape.size(); ++d) inner *= static_cast<double>(shape[d]);
      return {Recipe::Kind::count, dim < shape.size() ? static_cast<double>(shape[dim]) : 1, inner};
    }
  }
  return {};
}

// Calls store(i, value) for each element.
template <class Store>
void generate(const Recipe& recipe, std::uint64_t key, std::size_t count, Store&& store) {
  switch (recipe.kind) {
    case Recipe::Kind::constant:
      for (std::size_t i = 0; i < count; ++i) store(i, recipe.a);
      return;
    case Recipe::Kind::normal: {
      const double scale = recipe.a * kBellScale;
      for (std::size_t i = 0; i < count; ++i) store(i, static_cast<double>(bell(key, i)) * scale);
      return;
    }
    case Recipe::Kind::near_one:  // fma, so that no compiler's own contraction can change the bits
      for (std::size_t i = 0; i < count; ++i)
        store(i, std::fma(static_cast<double>(bell(key, i)), 0.1 * kBellScale, 1.0));
      return;
    case Recipe::Kind::uniform:
      for (std::size_t i = 0; i < count; ++i) store(i, std::fma(unit(key, i), recipe.b - recipe.a, recipe.a));
      return;
    case Recipe::Kind::integers: {
      // Doubles up to 2^53 hold all the integers that a spec can name here.
      const auto width = static_cast<std::uint64_t>(std::max(recipe.b - recipe.a, 1.0));
      for (std::size_t i = 0; i < count; ++i) store(i, recipe.a + static_cast<double>(mix(key + i * kGolden) % width));
      return;
    }
    case Recipe::Kind::count: {
      const auto along = static_cast<std::size_t>(recipe.a), inner = static_cast<std::size_t>(recipe.b);
      for (std::size_t i = 0; i < count; ++i) store(i, static_cast<double>((i / inner / along * inner + i % inner) * along + i / inner % along));
      return;
    }
  }
}

// Bit pattern of a 16-bit float with `mantissa` stored bits: nearest, ties to even.
struct HalfFormat {
  int mantissa, bias;
  Dtype dtype;
};
constexpr HalfFormat kF16{10, 15, Dtype::f16};
constexpr HalfFormat kBf16{7, 127, Dtype::bf16};

template <HalfFormat format>
std::uint16_t encode_half(double value) {
  constexpr int kDropped = 52 - format.mantissa;
  constexpr std::uint64_t kInfinity = (std::uint64_t{2} * format.bias + 1) << format.mantissa;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 48 & 0x8000);
  const std::uint64_t magnitude = bits & ~(std::uint64_t{1} << 63);
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | kInfinity | 1u << (format.mantissa - 1));
  if (exponent > format.bias) return static_cast<std::uint16_t>(sign | kInfinity);
  if (exponent <= -format.bias) {  // subnormal or zero: a whole number of the smallest step
    const double steps = std::ldexp(std::abs(round_to(format.dtype, value)), format.bias - 1 + format.mantissa);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(steps));
  }
  // A carry out of the mantissa moves into the exponent, up to infinity, as it should.
  const std::uint64_t half = (std::uint64_t{1} << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
  const std::uint64_t rebias = static_cast<std::uint64_t>(1023 - format.bias) << format.mantissa;
  return static_cast<std::uint16_t>(sign | (((magnitude + half) >> kDropped) - rebias));
}

template <HalfFormat format>
double decode_half(std::uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> format.mantissa;
  const int fraction = bits & ((1 << format.mantissa) - 1);
  double value = 0;
  if (exponent == 2 * format.bias + 1)
    value = fraction ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    value = std::ldexp(fraction, 1 - format.bias - format.mantissa);
  else
    value = std::bit_cast<double>(static_cast<std::uint64_t>(exponent - format.bias + 1023) << 52 |
                                  static_cast<std::uint64_t>(fraction) << (52 - format.mantissa));
  return bits & 0x8000 ? -value : value;
}

template <class T>
void put(std::span<std::byte> out, std::size_t i, T value) {
  std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
}
template <class T>
T get(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

// Calls produce(store) with the store(i, value) of a dtype, so that the choice is made once and not for each element.
template <class Produce>
void with_store(Dtype dtype, std::span<std::byte> out, Produce&& produce) {
  switch (dtype) {
    case Dtype::f32:
      return produce([=](std::size_t i, double v) { put(out, i, static_cast<float>(v)); });
    case Dtype::f16:
      return produce([=](std::size_t i, double v) { put(out, i, encode_half<kF16>(v)); });
    case Dtype::bf16:
      return produce([=](std::size_t i, double v) { put(out, i, encode_half<kBf16>(v)); });
    case Dtype::i32:
      return produce([=](std::size_t i, double v) { put(out, i, static_cast<std::int32_t>(round_to(Dtype::i32, v))); });
    case Dtype::i64:
      return produce([=](std::size_t i, double v) { put(out, i, static_cast<std::int64_t>(round_to(Dtype::i64, v))); });
    case Dtype::boolean:
      return produce([=](std::size_t i, double v) { put(out, i, static_cast<std::uint8_t>(v != 0)); });
  }
}

// Evaluated shape; false where a dim has no value of at least 0.
bool evaluate_shape(const Tensor& tensor, std::span<const std::int64_t> dims, std::vector<std::int64_t>& shape,
                    std::size_t& count) {
  count = 1;
  for (const Expr& dim : tensor.shape) {
    const auto extent = dim.evaluate(dims);
    if (!extent || *extent < 0) return false;
    shape.push_back(*extent);
    count *= static_cast<std::size_t>(*extent);
  }
  return true;
}

}  // namespace

void pack_values(Dtype dtype, std::span<const double> values, std::span<std::byte> out) {
  assert(out.size() == values.size() * wire::dtype_bytes(dtype));
  with_store(dtype, out, [&](auto store) {
    for (std::size_t i = 0; i < values.size(); ++i) store(i, values[i]);
  });
}

void unpack_values(Dtype dtype, std::span<const std::byte> bytes, std::span<double> out) {
  assert(bytes.size() == out.size() * wire::dtype_bytes(dtype));
  const auto each = [&](auto load) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(load(i));
  };
  switch (dtype) {
    case Dtype::f32:
      return each([&](std::size_t i) { return get<float>(bytes, i); });
    case Dtype::f16:
      return each([&](std::size_t i) { return decode_half<kF16>(get<std::uint16_t>(bytes, i)); });
    case Dtype::bf16:
      return each([&](std::size_t i) { return decode_half<kBf16>(get<std::uint16_t>(bytes, i)); });
    case Dtype::i32:
      return each([&](std::size_t i) { return get<std::int32_t>(bytes, i); });
    case Dtype::i64:
      return each([&](std::size_t i) { return get<std::int64_t>(bytes, i); });
    case Dtype::boolean:
      return each([&](std::size_t i) { return get<std::uint8_t>(bytes, i) != 0; });
  }
}

std::uint64_t seeded_number(std::uint64_t seed, const std::string& name, std::uint64_t i) { return mix(stream_key(seed, name) + i * kGolden); }

void fill_seeded(const Program& program, TensorId id, std::span<const std::int64_t> dims, std::uint64_t seed,
                 std::span<std::byte> out) {
  const Tensor& tensor = program.tensors[id];
  std::vector<std::int64_t> shape;
  std::size_t count = 0;
  if (!evaluate_shape(tensor, dims, shape, count)) return;
  assert(out.size() == count * wire::dtype_bytes(tensor.dtype));
  for (const RaggedDim& r : program.ragged) {
    if (std::find(r.tables.begin(), r.tables.end(), id) == r.tables.end()) continue;
    std::vector<std::int32_t> table(count);
    fill_ragged(program, id, seeded_lengths(program, r, dims, seed), table);
    std::memcpy(out.data(), table.data(), out.size());
    return;
  }
  const Recipe recipe = recipe_of(tensor, shape);
  const std::uint64_t key = stream_key(seed, tensor.name);
  with_store(tensor.dtype, out, [&](auto store) { generate(recipe, key, count, store); });
}

DenseTensor seeded_values(const Program& program, TensorId id, std::span<const std::int64_t> dims, std::uint64_t seed) {
  DenseTensor result;
  std::size_t count = 0;
  const Dtype dtype = program.tensors[id].dtype;
  if (!evaluate_shape(program.tensors[id], dims, result.shape, count)) return {};
  std::vector<std::byte> bytes(count * wire::dtype_bytes(dtype));
  fill_seeded(program, id, dims, seed, bytes);
  result.values.resize(count);
  unpack_values(dtype, bytes, result.values);
  return result;
}

}  // namespace ccks::spec

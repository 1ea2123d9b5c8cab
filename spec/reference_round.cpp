// Rounding to storage types, and the measure by which results are compared.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "spec/reference.hpp"

namespace ccks::spec {
namespace {

// Nearest value of a binary float with `mantissa_bits` stored bits and exponents [min_exponent, max_exponent], ties to
// even. Done on the f64 itself, so that nothing is rounded twice on the way.
double round_float(double value, int mantissa_bits, int min_exponent, int max_exponent) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);  // below min_exponent the spacing stays: subnormals
  const double spacing = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(value / spacing) * spacing;
  if (std::ilogb(rounded == 0 ? 1.0 : rounded) > max_exponent)
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  return rounded == 0 ? std::copysign(0.0, value) : rounded;
}

double round_integer(double value, double low, double high) {
  if (std::isnan(value)) return 0;
  return std::clamp(std::nearbyint(value), low, high);
}

double root_mean_square(std::span<const double> values) {
  double sum = 0;
  std::size_t count = 0;
  for (const double v : values) {
    if (!std::isfinite(v)) continue;
    sum += v * v;
    ++count;
  }
  return count == 0 ? 0 : std::sqrt(sum / static_cast<double>(count));
}

double relative_error(double got, double want, double scale) {
  if (std::isnan(want) && std::isnan(got)) return 0;
  if (got == want) return 0;  // equal infinities too
  if (!std::isfinite(want) || !std::isfinite(got)) return std::numeric_limits<double>::infinity();
  return std::abs(got - want) / std::max(std::abs(want), scale);
}

}  // namespace

double round_to(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::f32:
      return static_cast<double>(static_cast<float>(value));
    case Dtype::f16:
      return round_float(value, 10, -14, 15);
    case Dtype::bf16:
      return round_float(value, 7, -126, 127);
    case Dtype::i32:
      return round_integer(value, -2147483648.0, 2147483647.0);
    // The largest f64 below 2^63: 2^63 itself does not fit an i64.
    case Dtype::i64:
      return round_integer(value, -9223372036854775808.0, 9223372036854774784.0);
    case Dtype::boolean:
      return value != 0 ? 1 : 0;
  }
  return value;
}

double max_relative_error(std::span<const double> got, std::span<const double> want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  const double scale = std::max(root_mean_square(want), 1e-6);
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) worst = std::max(worst, relative_error(got[i], want[i], scale));
  return worst;
}

double max_relative_error(std::span<const double> got, const DenseTensor& want) {
  if (got.size() != want.values.size()) return std::numeric_limits<double>::infinity();
  return max_relative_error(got.first(want.counted().size()), want.counted());
}

double default_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return 1e-4;
    case Dtype::f16:
      return 0x1p-8;
    case Dtype::bf16:
      return 0x1p-5;
    default:
      return 0;
  }
}

double output_tolerance(const Program& program, TensorId output) {
  const auto root = [&](TensorId t) { return program.tensors[t].alias_of == kNone ? t : program.tensors[t].alias_of; };
  double tolerance = default_tolerance(program.tensor(output).dtype);
  if (!wire::dtype_is_float(program.tensor(output).dtype)) return tolerance;
  std::vector<bool> seen(program.tensors.size(), false);
  std::vector<TensorId> left = {root(output)};
  seen[left.front()] = true;
  while (!left.empty()) {
    const TensorId at = left.back();
    left.pop_back();
    for (const Op& op : program.ops) {
      const bool writes = std::any_of(op.outputs.begin(), op.outputs.end(), [&](const View& v) { return root(v.tensor) == at; });
      if (!writes) continue;
      tolerance = std::max(tolerance, default_tolerance(program.tensor(at).dtype));
      for (const View& v : op.inputs) {
        const TensorId from = root(v.tensor);
        if (!seen[from]) left.push_back(from);
        seen[from] = true;
      }
    }
  }
  return tolerance;
}

}  // namespace ccks::spec

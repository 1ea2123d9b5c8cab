// The reference interpreter: runs a Program slowly and plainly in f64. Shares no code with planner or tile ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ccks/result.hpp"
#include "spec/program.hpp"

namespace ccks::spec {

/// Values of one tensor in row-major order. Integers up to 2^53 are exact.
struct DenseTensor {
  std::vector<std::int64_t> shape;
  std::vector<double> values;
  std::int64_t rows = -1;  // of a tensor whose first dim is counted: how many of it count, what others hold is open; else -1

  /// The values of rows that count.
  std::span<const double> counted() const {
    const std::span<const double> all = values;
    return rows < 0 ? all : all.first(rows == 0 ? 0 : all.size() / static_cast<std::size_t>(shape[0]) * static_cast<std::size_t>(rows));
  }
};

/// Tensors by name. Inputs, weights and states go in; outputs, states and reports ('report.<name>') come out.
using TensorMap = std::map<std::string, DenseTensor>;

/// interpret runs `program` once with `dims[id]` for each symbol. Every stored tensor is rounded to its dtype (f32, f16,
/// bf16: nearest, ties to even), since that is what the program says it holds; everything in between is f64.
/// Fails with out_of_range where a RuntimeCheck does not hold, invalid_argument where a tensor is missing or misshapen,
/// unsupported for a custom op without a reference.
Result<TensorMap> interpret(const Program& program, std::span<const std::int64_t> dims, const TensorMap& bound);

/// Seeded fill for tensor `id`, rounded to its dtype: depends only on (seed, tensor name, kind, init, shape), never on order
/// or platform. Init::automatic means: inputs normal(0, 1), for ints and bools 0 or 1; weights of rank 2 and more normal(0,
/// 1/sqrt(K)), K the product of all dims but the first; weights of less rank 1 + 0.1 * normal(0, 1); all else zero.
/// A dim that has no value of at least 0 gives an empty tensor.
DenseTensor seeded_values(const Program& program, TensorId id, std::span<const std::int64_t> dims, std::uint64_t seed);
/// fill_seeded writes the same values as the tensor's bytes (row-major, its dtype, little endian). `out` holds exactly them.
void fill_seeded(const Program& program, TensorId id, std::span<const std::int64_t> dims, std::uint64_t seed,
                 std::span<std::byte> out);

/// Lengths for the sequences of a ragged dim, of which dims[r.rows] rows are enough (cut below the least length where they are not): depend
/// only on (seed, its name, dims). seeded_values and fill_seeded fill its tables by them.
std::vector<std::int32_t> seeded_lengths(const Program& program, const RaggedDim& r, std::span<const std::int64_t> dims, std::uint64_t seed);
/// fill_ragged writes table `id` of the ragged dim it belongs to, by these lengths; out has exactly its elements. False: it is no such table.
bool fill_ragged(const Program& program, TensorId id, std::span<const std::int32_t> lengths, std::span<std::int32_t> out);
/// Number i of the stream of `name`: 64 random bits.
std::uint64_t seeded_number(std::uint64_t seed, const std::string& name, std::uint64_t i);

/// pack_values rounds `values` to `dtype` (as round_to) and writes their bytes; out.size() == values.size() * dtype_bytes.
void pack_values(Dtype dtype, std::span<const double> values, std::span<std::byte> out);
/// unpack_values reads what pack_values wrote; the sizes fit each other the same way.
void unpack_values(Dtype dtype, std::span<const std::byte> bytes, std::span<double> out);

/// Largest |got - want| / max(|want|, scale) over all elements, where scale is the root mean square of `want` (at least 1e-6).
/// NaN or infinity where `want` is finite gives infinity.
double max_relative_error(std::span<const double> got, std::span<const double> want);
/// The same over the rows of `want` that count; `got` has them all.
double max_relative_error(std::span<const double> got, const DenseTensor& want);
/// Tolerance on that figure for values of `dtype` (bf16 2^-5, f16 2^-8, f32 1e-4; exact for integers).
double default_tolerance(Dtype dtype);
/// The same for a float that ops of this program compute: of the least precise float on the way to it, since each of those is rounded, and not everywhere to the
/// same side. What a run is given does not count: everybody has the same.
double output_tolerance(const Program& program, TensorId output);

/// Nearest value of `dtype`, ties to even; integers saturate.
double round_to(Dtype dtype, double value);

}  // namespace ccks::spec

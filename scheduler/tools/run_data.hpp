// The tensors of a run: from files or seeded, as bytes for the engine and as doubles for the reference.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "ccks/tensor_file.hpp"
#include "scheduler/tools/run_options.hpp"
#include "spec/program.hpp"
#include "spec/reference.hpp"

namespace ccks::run {

/// Lengths of the sequences of ragged dims, by name.
using Lengths = std::map<std::string, std::vector<std::int32_t>>;
/// What --lengths gives; invalid_argument for a name that is no ragged dim's, and what is neither numbers nor a file of them.
Result<Lengths> read_lengths(const spec::Program& program, const Options& options);
/// Values of all dim symbols, or out_of_range / invalid_argument naming the symbol.
Result<std::vector<std::int64_t>> bind_dims(const spec::Program& program, const Options& options, const Lengths& lengths);

/// RunData holds the files and knows where each tensor comes from.
class RunData {
 public:
  /// Opens the weight files and reads the inputs; complains about names that the program does not have, and about lengths that do not fit `dims`.
  static Result<RunData> open(const spec::Program& program, std::vector<std::int64_t> dims, Lengths lengths, const Options& options);

  /// The bytes of tensor `id` in an iteration, contiguous, in its dtype.
  Result<std::vector<std::byte>> bytes(spec::TensorId id, std::uint32_t iteration = 0) const;
  /// What --input-each gives input `name` in an iteration; empty where it gives none. As long as this lives.
  std::span<const std::byte> stacked(const std::string& name, std::uint32_t iteration) const;
  /// After so many iterations inputs come again.
  std::uint32_t different_iterations() const { return stacked_.empty() ? 1 : static_cast<std::uint32_t>(stacked_.begin()->second.shape[0]); }
  /// The bytes of weight `id` where --weights has it, as long as this lives; empty where no checkpoint was given.
  Result<std::span<const std::byte>> stored_weight(spec::TensorId id) const;
  /// Tensors of the checkpoints that no weight of the program is.
  std::vector<std::string> unused_weights() const;
  const Lengths& lengths() const { return lengths_; }
  /// The given lengths that table `id` follows from; null where it is no such table.
  const std::vector<std::int32_t>* lengths_of(spec::TensorId id) const;
  bool given(const std::string& name) const { return inputs_.contains(name); }
  std::vector<std::int64_t> shape(spec::TensorId id) const;
  const std::vector<std::int64_t>& dims() const { return dims_; }
  const spec::Program& program() const { return *program_; }

 private:
  Status read_inputs(const std::vector<NameAndPath>& files, bool stacked);
  Status check(spec::TensorId id, const TensorView& view, const std::string& where) const;

  const spec::Program* program_ = nullptr;  // must outlive this
  std::vector<std::int64_t> dims_;
  Lengths lengths_;
  std::uint64_t seed_ = 1;
  std::map<std::string, HostTensor> inputs_;
  std::map<std::string, HostTensor> stacked_;  // one more axis in front
  std::vector<SafetensorsFile> weights_;
};

std::vector<std::byte> encode(wire::Dtype dtype, std::span<const double> values);
std::vector<double> decode(wire::Dtype dtype, std::span<const std::byte> bytes);
/// Bytes that no op would leave behind: NaN, or the most negative integer.
std::vector<std::byte> poison(wire::Dtype dtype, std::size_t elements);

}  // namespace ccks::run

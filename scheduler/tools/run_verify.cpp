#include <fmt/format.h>

#include "scheduler/tools/run_session.hpp"

namespace ccks::run {
namespace {

Result<spec::TensorMap> bound_tensors(const RunData& data, std::uint32_t iteration) {
  spec::TensorMap bound;
  const spec::Program& program = data.program();
  for (spec::TensorId id = 0; id < program.tensors.size(); ++id) {
    const spec::Tensor& tensor = program.tensor(id);
    const bool given = tensor.kind == spec::TensorKind::input || tensor.kind == spec::TensorKind::weight ||
                       tensor.kind == spec::TensorKind::state;
    if (!given || tensor.alias_of != spec::kNone) continue;
    Result<std::vector<std::byte>> bytes = data.bytes(id, iteration);
    if (!bytes.ok()) return bytes.status();
    bound[tensor.name] = {data.shape(id), decode(tensor.dtype, *bytes)};
  }
  return bound;
}

// One run's outputs, at their places among those of `iterations`; `worst`: the largest error against its tolerance so far.
Status compare(const spec::Program& program, const spec::TensorMap& want, const std::map<std::string, std::vector<std::byte>>& outputs, std::uint32_t iterations,
               std::uint32_t iteration, Verification& result, double& worst) {
  for (const auto& [name, stacked] : outputs) {
    const auto reference = want.find(name);
    if (reference == want.end()) return {ErrorCode::internal, fmt::format("the reference gave no '{}'", name)};
    const std::size_t one = stacked.size() / iterations;
    const std::vector<double> got = decode(program.tensor(*program.find_tensor(name)).dtype, std::span(stacked).subspan(one * iteration, one));
    const double error = spec::max_relative_error(got, reference->second);
    const double tolerance = spec::output_tolerance(program, *program.find_tensor(name));
    const double ratio = tolerance > 0 ? error / tolerance : error > 0 ? 1e300 : 0;
    if (ratio > worst) {
      worst = ratio;
      result.worst = fmt::format("{} (error {:.3g}, tolerance {:.3g})", name, error, tolerance);
    }
    result.max_rel_err = std::max(result.max_rel_err, error);
    result.passed = result.passed && error <= tolerance;
  }
  return {};
}

}  // namespace

Result<Verification> verify(const RunData& data, const std::map<std::string, std::vector<std::byte>>& outputs, std::uint32_t iterations) {
  Verification result;
  double worst = -1;
  const std::uint32_t different = std::min(data.different_iterations(), iterations);
  for (std::uint32_t first = 0; first < different; ++first) {
    Result<spec::TensorMap> bound = bound_tensors(data, first);
    if (!bound.ok()) return bound.status();
    Result<spec::TensorMap> want = spec::interpret(data.program(), data.dims(), *bound);
    if (!want.ok()) return want.status();
    for (std::uint32_t i = first; i < iterations; i += different) CCKS_RETURN_IF_ERROR(compare(data.program(), *want, outputs, iterations, i, result, worst));
  }
  return result;
}

}  // namespace ccks::run

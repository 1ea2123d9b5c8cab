#include <fmt/format.h>

#include "scheduler/tools/run_session.hpp"

namespace ccks::run {
namespace {

Result<spec::TensorMap> bound_tensors(const RunData& data) {
  spec::TensorMap bound;
  const spec::Program& program = data.program();
  for (spec::TensorId id = 0; id < program.tensors.size(); ++id) {
    const spec::Tensor& tensor = program.tensor(id);
    const bool given = tensor.kind == spec::TensorKind::input || tensor.kind == spec::TensorKind::weight ||
                       tensor.kind == spec::TensorKind::state;
    if (!given || tensor.alias_of != spec::kNone) continue;
    Result<std::vector<std::byte>> bytes = data.bytes(id);
    if (!bytes.ok()) return bytes.status();
    bound[tensor.name] = {data.shape(id), decode(tensor.dtype, *bytes)};
  }
  return bound;
}

}  // namespace

Result<Verification> verify(const RunData& data, const std::map<std::string, std::vector<std::byte>>& outputs) {
  Result<spec::TensorMap> bound = bound_tensors(data);
  if (!bound.ok()) return bound.status();
  const spec::Program& program = data.program();
  Result<spec::TensorMap> want = spec::interpret(program, data.dims(), *bound);
  if (!want.ok()) return want.status();
  Verification result;
  double worst = -1;
  for (const auto& [name, bytes] : outputs) {
    const auto reference = want->find(name);
    if (reference == want->end()) return Status{ErrorCode::internal, fmt::format("the reference gave no '{}'", name)};
    const wire::Dtype dtype = program.tensor(*program.find_tensor(name)).dtype;
    const double error = spec::max_relative_error(decode(dtype, bytes), reference->second.values);
    const double tolerance = spec::output_tolerance(program, *program.find_tensor(name));
    const double ratio = tolerance > 0 ? error / tolerance : error > 0 ? 1e300 : 0;
    if (ratio > worst) {
      worst = ratio;
      result.worst = fmt::format("{} (error {:.3g}, tolerance {:.3g})", name, error, tolerance);
    }
    result.max_rel_err = std::max(result.max_rel_err, error);
    result.passed = result.passed && error <= tolerance;
  }
  return result;
}

}  // namespace ccks::run

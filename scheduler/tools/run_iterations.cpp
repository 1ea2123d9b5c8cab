#include "scheduler/tools/run_iterations.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace ccks::run {

bool Iterations::keeps_outputs() const {
  return tells_iterations_apart(setup_.options) && (setup_.options.verify || !setup_.options.outputs_each.empty());
}

Failure Iterations::run() {
  const Options& options = setup_.options;
  for (std::uint32_t next = 0; next < options.iterations || !flying_.empty();) {
    if (interrupted()) return flying_.empty() ? Failure{} : cancel();
    if (next < options.iterations && flying_.size() < options.in_flight) {
      show_progress(next);
      if (Failure failure = submit(next++)) return failure;
    } else if (Failure failure = wait_for_one()) {
      return failure;
    }
  }
  if (setup_.progress && options.iterations > 1) std::fprintf(stderr, "\r%40s\r", "");
  return {};
}

Failure Iterations::submit(std::uint32_t iteration) {
  const Options& options = setup_.options;
  if (const Status state = prepare_state(); !state.ok()) return device_failure(state);
  RunRequest request;
  request.dims = setup_.dims;
  if (iteration == 0 || !options.keep_inputs) add_inputs(request, iteration);
  if (options.verify && (iteration + 1 == options.iterations || keeps_outputs())) add_poison(request);
  const auto since = std::chrono::steady_clock::now();
  Result<Run> run = setup_.engine.submit(std::move(request));
  const auto until = std::chrono::steady_clock::now();
  if (!run.ok()) return device_failure(run.status());
  outcome_.us.push_back(0);
  if (tells_iterations_apart(options)) {
    using us = std::chrono::duration<double, std::micro>;
    if (iteration == 0) first_ = since;
    outcome_.at_us.push_back(us(since - first_).count());
    outcome_.submit_us.push_back(us(until - since).count());
  }
  flying_.push_back({iteration, std::move(*run)});
  return {};
}

Status Iterations::prepare_state() {
  CCKS_RETURN_IF_ERROR(setup_.engine.reset_state(0));
  for (const auto& [name, bytes] : setup_.states) CCKS_RETURN_IF_ERROR(setup_.engine.write_state(0, name, bytes));
  return {};
}

void Iterations::add_inputs(RunRequest& request, std::uint32_t iteration) {
  for (const auto& [name, bytes] : setup_.inputs) {
    const std::span<const std::byte> own = setup_.data.stacked(name, iteration);
    request.inputs.push_back({name, own.empty() ? std::span(bytes) : own});
  }
  for (const auto& [name, values] : setup_.data.lengths()) request.lengths.emplace_back(name, values);
}

// So that an output nobody writes cannot pass for a result of an earlier iteration.
void Iterations::add_poison(RunRequest& request) {
  const spec::Program& program = setup_.data.program();
  for (spec::TensorId id = 0; id < program.tensors.size(); ++id) {
    const spec::Tensor& tensor = program.tensor(id);
    if (tensor.kind != spec::TensorKind::output) continue;
    std::size_t elements = 1;
    for (const std::int64_t extent : setup_.data.shape(id)) elements *= static_cast<std::size_t>(extent);
    poison_[tensor.name] = poison(tensor.dtype, elements);
    request.inputs.push_back({tensor.name, poison_[tensor.name]});
  }
}

// A single one is slept for; of several any may be the first to end, so they are asked in turn.
Failure Iterations::wait_for_one() {
  if (flying_.size() == 1) (void)flying_.front().run.wait_for(std::chrono::milliseconds(50));
  const auto ended = [](const Flight& flight) { return flight.run.poll() == RunState::done || flight.run.poll() == RunState::failed; };
  const auto found = std::find_if(flying_.begin(), flying_.end(), ended);
  if (found == flying_.end()) {
    if (flying_.size() > 1) std::this_thread::yield();
    return {};
  }
  Flight flight = std::move(*found);
  flying_.erase(found);
  return end(flight);
}

Failure Iterations::end(Flight& flight) {
  if (flight.run.poll() == RunState::failed) return device_failure(flight.run.wait());
  outcome_.us[flight.iteration] = static_cast<double>(flight.run.latency().count()) / 1e3;
  if (Failure failure = keep(flight)) return failure;
  if (flight.iteration + 1 == setup_.options.iterations) last_ = std::move(flight.run);
  return {};
}

Failure Iterations::keep(const Flight& flight) {
  if (!tells_iterations_apart(setup_.options)) return {};
  for (const plan::ReportDesc& report : setup_.engine.plan().reports) {
    Result<std::vector<double>> values = flight.run.report(report.name);
    std::vector<std::vector<double>>& all = outcome_.reports_each[report.name];
    all.resize(std::max<std::size_t>(all.size(), flight.iteration + 1));
    if (values.ok()) all[flight.iteration] = std::move(*values);
  }
  if (!keeps_outputs()) return {};
  for (const spec::Tensor& tensor : setup_.data.program().tensors) {
    if (tensor.kind != spec::TensorKind::output) continue;
    Result<std::uint64_t> bytes = flight.run.tensor_bytes(tensor.name);
    if (!bytes.ok()) return device_failure(bytes.status());
    std::vector<std::byte>& all = outputs_[tensor.name];
    all.resize(*bytes * setup_.options.iterations);
    const Status read = flight.run.read_output(tensor.name, std::span(all).subspan(*bytes * flight.iteration, *bytes));
    if (!read.ok()) return device_failure(read);
  }
  return {};
}

Failure Iterations::cancel() {
  for (Flight& flight : flying_) flight.run.cancel();
  for (Flight& flight : flying_) (void)flight.run.wait_for(std::chrono::seconds(2));
  return {kInterrupted, "interrupted"};
}

void Iterations::show_progress(std::uint32_t done) const {
  if (!setup_.progress || (done & (done - 1)) != 0 || done == 0) return;
  std::fprintf(stderr, "\riteration %u of %u", done, setup_.options.iterations);
  std::fflush(stderr);
}

}  // namespace ccks::run

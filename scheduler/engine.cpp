#include "ccks/engine.hpp"

#include "scheduler/engine_core.hpp"

namespace ccks {

using scheduler::EngineCore;
using scheduler::RunSlot;

/// A handle holds its slot and the core.
struct Run::Impl {
  EngineCore* core;
  RunSlot* slot;
};

struct Engine::Impl {
  explicit Impl(EngineCore* c) : core(c) {}
  ~Impl() {
    core->shut_down();
    EngineCore::drop(core);
  }
  EngineCore* core;
};

namespace {

std::uint64_t timeout_of(std::chrono::nanoseconds timeout) {
  return timeout.count() < 0 ? 0 : static_cast<std::uint64_t>(timeout.count());
}

Status no_run() { return {ErrorCode::invalid_argument, "an empty run handle"}; }

}  // namespace

const RunSlot* EngineCore::slot_of(const Run& run) const {
  return run.impl_ != nullptr && run.impl_->core == this ? run.impl_->slot : nullptr;
}

// ---- Run ------------------------------------------------------------------------------------------------------------

Run::Run(Run&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}

Run& Run::operator=(Run&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

Run::~Run() {
  if (impl_ == nullptr) return;
  impl_->core->release(*impl_->slot);
  EngineCore::drop(impl_->core);
  delete impl_;
}

RunState Run::poll() const {
  return impl_ == nullptr ? RunState::failed : static_cast<RunState>(impl_->slot->state.load());
}

Status Run::wait() { return impl_ == nullptr ? no_run() : impl_->core->wait(*impl_->slot, scheduler::kForever); }

Status Run::wait_for(std::chrono::nanoseconds timeout) {
  return impl_ == nullptr ? no_run() : impl_->core->wait(*impl_->slot, timeout_of(timeout));
}

void Run::cancel() {
  if (impl_ != nullptr) impl_->core->cancel(*impl_->slot);
}

Status Run::read_output(std::string_view name, std::span<std::byte> bytes) const {
  return impl_ == nullptr ? no_run() : impl_->core->read_output(*impl_->slot, name, bytes);
}

Result<std::uint64_t> Run::tensor_bytes(std::string_view name) const {
  if (impl_ == nullptr) return no_run();
  return impl_->core->bytes_of(*impl_->slot, name);
}

Result<std::vector<double>> Run::report(std::string_view name) const {
  if (impl_ == nullptr) return no_run();
  return impl_->core->report(*impl_->slot, name);
}

std::chrono::nanoseconds Run::latency() const {
  if (impl_ == nullptr || poll() < RunState::done) return std::chrono::nanoseconds(0);
  return std::chrono::nanoseconds(impl_->slot->end_ns - impl_->slot->submit_ns);
}

// ---- Engine ---------------------------------------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Result<Engine> Engine::create(std::unique_ptr<Device> device, Program program, const EngineOptions& options) {
  Result<std::unique_ptr<EngineCore>> core = EngineCore::create(std::move(device), std::move(program), options);
  if (!core.ok()) return core.status();
  return Engine(std::make_unique<Impl>(core->release()));
}

Status Engine::bind_weight(std::string_view name, std::span<const std::byte> bytes) {
  return impl_->core->bind_weight(name, bytes);
}
Status Engine::start() { return impl_->core->start(); }

Result<Run> Engine::submit(RunRequest request) {
  Result<RunSlot*> slot = impl_->core->submit(request);
  if (!slot.ok()) return slot.status();
  impl_->core->hold();
  return Run(new Run::Impl{impl_->core, *slot});
}

Status Engine::reset_state(std::uint32_t state) { return impl_->core->reset_state(state); }
Status Engine::write_state(std::uint32_t state, std::string_view name, std::span<const std::byte> bytes) {
  return impl_->core->write_state(state, name, bytes);
}
Status Engine::read_state(std::uint32_t state, std::string_view name, std::span<std::byte> bytes) {
  return impl_->core->read_state(state, name, bytes);
}
Status Engine::drain(std::chrono::nanoseconds timeout) { return impl_->core->drain(timeout_of(timeout)); }
Result<HandoffTimes> Engine::handoff(const Program& program, std::chrono::nanoseconds timeout) {
  return impl_->core->handoff(program, timeout_of(timeout));
}
Result<RestartOutcome> Engine::restart_scheduler(std::chrono::nanoseconds grace, std::chrono::nanoseconds timeout) {
  return impl_->core->restart_scheduler(timeout_of(grace), timeout_of(timeout));
}
EngineStats Engine::stats() const { return impl_->core->stats(); }
DeviceInfo Engine::device_info() const { return impl_->core->device().info(); }
const plan::PlanView& Engine::plan() const { return impl_->core->plan(); }

Result<std::uint64_t> Engine::tasks_per_run(const std::vector<std::pair<std::string_view, std::int64_t>>& dims) const {
  return impl_->core->tasks_per_run(dims);
}
std::vector<TraceEvent> Engine::trace() const { return impl_->core->trace(); }
Status Engine::write_trace(const std::string& path) const { return impl_->core->write_trace(path); }

}  // namespace ccks

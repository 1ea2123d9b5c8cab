#include "gpu/sim/sim_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "gpu/line_status.hpp"

namespace ccks::gpu::sim {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr Nanos kJoinLookNs = 500;  // how often join() looks

}  // namespace

DeviceInfo SimDevice::info() const {
  DeviceInfo info;
  info.kind = "sim";
  info.name = "simulated device, link " + machine_.link().name;
  info.transport = machine_.link().name;
  info.workers = options_.workers;
  return info;
}

Result<std::uint64_t> SimDevice::allocate(std::uint64_t bytes, MemoryKind) {
  blocks_.push_back(std::make_unique<std::byte[]>(bytes + kAlignment));
  allocated_ += bytes;
  return (reinterpret_cast<std::uint64_t>(blocks_.back().get()) + kAlignment - 1) / kAlignment * kAlignment;
}

// Copies are done when they return, as on any device.
Status SimDevice::write(std::uint64_t to, const void* from, std::uint64_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return {};
}
Status SimDevice::read(void* to, std::uint64_t from, std::uint64_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return {};
}
Status SimDevice::fill_zero(std::uint64_t to, std::uint64_t bytes) {
  std::memset(reinterpret_cast<void*>(to), 0, bytes);
  return {};
}

void SimDevice::pass(Nanos ns) {
  if (machine_.explorer().inside()) machine_.work(ns);
}

Status SimDevice::load(const WorkerImage&) {
  if (!all_left()) return {ErrorCode::internal, "code is loaded while workers are resident"};
  pass(options_.load_ns);
  return {};
}

Status SimDevice::launch(const WorkerImage&, const wire::WorkerParams& params) {
  if (!all_left()) return {ErrorCode::internal, "workers are launched while others are resident"};
  params_ = params;
  launched_ = true;
  machine_.workers_poll(options_.workers);
  clear_states(params_);
  const u32 scratch = (params.scratch_bytes + 127) / 128 * 128;
  if (scratch_ == nullptr && scratch != 0) scratch_ = std::make_unique<std::byte[]>(std::size_t{scratch} * options_.workers + 128);
  auto* first = reinterpret_cast<wire::u8*>((reinterpret_cast<std::uint64_t>(scratch_.get()) + 127) / 128 * 128);
  auto* lines = reinterpret_cast<wire::HostLine*>(params.host_lines);
  contexts_.resize(options_.workers);
  pass(options_.launch_ns);
  for (u32 w = 0; w < options_.workers; ++w) {
    contexts_[w] = {&machine_, options_.watch, options_.costs, scratch == 0 ? nullptr : first + std::size_t{scratch} * w, scratch,
                    &scheduler_};
    if (machine_.explorer().inside()) {
      SimAtoms{&machine_}.link_store_relaxed(&lines[w].park, u32{wire::kParkNo});  // relaxed: a lone word
    } else {
      lines[w].park = wire::kParkNo;
    }
  }
  // What the launching thread has stored before is there for the kernel.
  while (machine_.explorer().inside() && machine_.memory().settled(machine_.explorer().self()) > machine_.now()) {
    pass(machine_.memory().settled(machine_.explorer().self()) - machine_.now());
  }
  for (u32 w = 0; w < options_.workers; ++w) {
    agents_[w] = machine_.explorer().add(fmt::format("worker {}", w), Side::device,
                                         [this, w] { options_.entry(&params_, w, &contexts_[w]); }, agents_[w]);
    machine_.memory().renew(agents_[w]);
  }
  return {};
}

Status SimDevice::health() { return launched_ ? lines_status(params_) : Status(); }

// The end of a grid makes all its stores visible.
bool SimDevice::all_left() const {
  return std::all_of(agents_.begin(), agents_.end(), [&](Explorer::Agent agent) {
    if (agent == Explorer::kNobody) return true;
    return !machine_.explorer().alive(agent) && machine_.memory().settled(agent) <= machine_.now();
  });
}

Status SimDevice::join(std::uint64_t timeout_ns) {
  const Nanos since = machine_.now();
  while (!all_left()) {
    if (machine_.now() - since >= timeout_ns) return {ErrorCode::deadline_exceeded, "workers have not left"};
    pass(kJoinLookNs + (machine_.now() - since) / 4);
  }
  return {};
}

void SimDevice::doorbell(std::uint32_t index) {
  if (agents_[index] != Explorer::kNobody) machine_.explorer().wake(agents_[index], machine_.now());
}

void SimDevice::scheduler_wait(std::uint64_t timeout_ns) {
  scheduler_ = machine_.explorer().self();
  machine_.explorer().sleep(timeout_ns);
}

void SimDevice::wake_scheduler() {
  if (scheduler_ != Explorer::kNobody) machine_.explorer().wake(scheduler_, machine_.now());
}

}  // namespace ccks::gpu::sim

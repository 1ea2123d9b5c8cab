#include "bench/bench_stub.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "scheduler/dims.hpp"

namespace ccks::bench {

namespace {

// A benchmark that cannot be set up has nothing to report.
[[noreturn]] void give_up(const char* what) {
  std::fprintf(stderr, "ccks-bench: %s\n", what);
  std::exit(4);
}

template <class T>
T require(Result<T> result) {
  if (!result.ok()) give_up(result.status().message().c_str());
  return std::move(*result);
}

}  // namespace

DeviceInfo StubDevice::info() const {
  DeviceInfo info;
  info.kind = "host";
  info.name = "stub";
  info.transport = "coherent";
  info.workers = workers_;
  return info;
}

Result<std::uint64_t> StubDevice::allocate(std::uint64_t bytes, MemoryKind) {
  blocks_.push_back(std::make_unique<std::byte[]>(bytes + 256));
  const auto address = reinterpret_cast<std::uint64_t>(blocks_.back().get());
  return (address + 255) / 256 * 256;
}

Status StubDevice::write(std::uint64_t to, const void* from, std::uint64_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return {};
}
Status StubDevice::read(void* to, std::uint64_t from, std::uint64_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return {};
}
Status StubDevice::fill_zero(std::uint64_t to, std::uint64_t bytes) {
  std::memset(reinterpret_cast<void*>(to), 0, bytes);
  return {};
}
std::uint64_t StubDevice::clock_pair(std::uint64_t& host_ns) { return host_ns = scheduler::now_ns(); }

StubScheduler::StubScheduler(const plan::PlanView& plan, scheduler::PolicyKind policy, scheduler::Spine spine,
                             std::uint32_t workers, std::uint32_t slots)
    : device_(workers),
      tables_(require(scheduler::make_plan_tables(plan, workers, scheduler::spine_of(policy, spine)))),
      submissions_(slots) {
  EngineOptions options;
  options.slots = slots;
  memory_ = require(scheduler::reserve_memory(device_, tables_, options));
  slots_.resize(slots);
  fences_.resize(1);
  std::vector<std::int64_t> symbols(plan.symbols.size());
  std::vector<std::int64_t> dims(plan.dims.size());
  if (!scheduler::bind_symbols(plan, {}, symbols).ok() || !scheduler::evaluate_plan(plan, symbols, dims).ok())
    give_up("bad plan");
  for (std::uint32_t i = 0; i < slots; ++i) {
    scheduler::RunSlot& run = slots_[i];
    run.index = i;
    run.memory = memory_.slots[i];
    run.instance.reserve(tables_);
    run.progress.reserve(tables_);
    if (!run.instance.rebuild(tables_, symbols, dims, run.memory, 0, 0, 0).ok()) give_up("bad plan");
    free_.push_back(i);
  }
  policy_ = scheduler::make_policy(policy, tables_, slots);
  scheduler::CopilotSetup setup;
  setup.tables = &tables_;
  setup.slots = &slots_;
  setup.fences = &fences_;
  setup.policy = policy_.get();
  setup.device = &device_;
  setup.submissions = &submissions_;
  setup.events = this;
  setup.stats = &stats_;
  setup.params = memory_.params;
  copilot_ = std::make_unique<scheduler::Copilot<wire::HostAtoms, Clock>>(setup);
  for (std::uint32_t w = 0; w < workers; ++w) {
    const wire::WorkerParams& p = memory_.params;
    inboxes_.emplace_back(reinterpret_cast<const wire::Task*>(wire::inbox_of(p, w)),
                          p.inbox_slots, 0);
    outboxes_.emplace_back(reinterpret_cast<wire::Record*>(wire::outbox_of(p, w)),
                           p.outbox_slots, 0);
  }
}

void StubScheduler::engine_failed(ErrorCode, const char* message) { give_up(message); }

void StubScheduler::submit(scheduler::RunSlot& run) {
  run.state.reset(static_cast<std::uint32_t>(RunState::queued));
  submissions_.push({scheduler::Submission::Kind::run, run.index});
}

// As a worker does that polls kPolledTasks slots at a time and answers what it found with one record.
void StubScheduler::answer() {
  for (std::size_t w = 0; w < inboxes_.size(); ++w) {
    wire::Task tasks[kPolledTasks];
    while (const std::uint32_t count = inboxes_[w].poll_many(tasks, kPolledTasks)) {
      const wire::Task& last = tasks[count - 1];
      outboxes_[w].put_release(
          {inboxes_[w].position(), last.epoch, last.op, static_cast<std::uint16_t>(last.slot()), 0});
    }
  }
}

StubResult StubScheduler::run(std::uint32_t runs) {
  const std::uint64_t decisions = stats_.decisions.get();
  const std::uint64_t publications = stats_.publications.get();
  const std::uint64_t records = stats_.records_received.get();
  StubResult result;
  std::uint32_t submitted = 0;
  ended_ = 0;
  while (ended_ < runs) {
    for (; submitted < runs && !free_.empty(); ++submitted) {
      submit(slots_[free_.back()]);
      free_.pop_back();
    }
    const std::uint64_t start = scheduler::now_ns();
    copilot_->step();
    result.step_ns += scheduler::now_ns() - start;
    answer();
  }
  result.decisions = stats_.decisions.get() - decisions;
  result.publications = stats_.publications.get() - publications;
  result.records = stats_.records_received.get() - records;
  result.tasks = std::uint64_t{runs} * slots_[0].instance.tasks();
  return result;
}

}  // namespace ccks::bench

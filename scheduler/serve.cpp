#include "ccks/serve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "ccks/plan_eval.hpp"
#include "ccks/wire/op_layout.hpp"
#include "scheduler/batcher.hpp"

namespace ccks {
namespace {

using scheduler::Batcher;
using scheduler::BatchLimits;
using scheduler::Sequence;
using scheduler::Step;

Status no_part(const plan::PlanView& plan, const char* what, const std::string& name) {
  return {ErrorCode::invalid_argument, fmt::format("program '{}' serves nobody: it has no {} '{}'", plan.name, what, name)};
}

/// Reads what a program has room for out of its plan.
class Parts {
 public:
  Parts(const plan::PlanView& plan, const ServeOptions& options) : plan_(plan), options_(options), dims_(plan.dims.size()) {}

  Result<BatchLimits> limits() {
    const ServeNames& names = options_.names;
    const plan::SymbolDesc *rows = symbol(names.rows), *taken = symbol(names.taken);
    if (rows == nullptr) return no_part(plan_, "symbol", names.rows);
    if (taken == nullptr) return no_part(plan_, "symbol", names.taken);
    std::vector<std::int64_t> most;
    for (const plan::SymbolDesc& s : plan_.symbols) most.push_back(s.hi);
    if (!plan::evaluate_dims(plan_.dims, most, dims_)) return no_part(plan_, "symbol", names.rows);
    for (const std::string* name : {&names.token, &names.seat, &names.position, &names.take, &names.keep})
      if (find(*name, plan::TensorKind::input, 1) == nullptr) return no_part(plan_, "i32 input", *name);
    const plan::TensorDesc *pages = find(names.pages, plan::TensorKind::input, 2), *last = find(names.last, plan::TensorKind::state, 1);
    const plan::TensorDesc* pool = find(names.pool, plan::TensorKind::state, 2);
    if (pages == nullptr) return no_part(plan_, "i32 input [rows, pages]", names.pages);
    if (last == nullptr) return no_part(plan_, "state", names.last);
    if (pool == nullptr) return no_part(plan_, "state", names.pool);
    const auto report = std::any_of(plan_.reports.begin(), plan_.reports.end(), [&](const auto& r) { return names.found == r.name && r.dtype == wire::Dtype::i32; });
    if (!report) return no_part(plan_, "i32 report", names.found);
    const auto paged = std::find_if(plan_.ops.begin(), plan_.ops.end(), [](const plan::OpDesc& op) { return op.kind == wire::OpCode::attention && op.input_count == 5; });
    const std::int64_t page = paged == plan_.ops.end() ? 0 : dims_[paged->dims[wire::kPageDim]];
    if (page < 1) return no_part(plan_, "attention over", names.pages);
    BatchLimits limits;
    limits.page = static_cast<std::uint32_t>(page);
    limits.seats = static_cast<std::uint32_t>(std::min(extent(*last, 0), taken->hi));
    limits.pool = static_cast<std::uint32_t>(extent(*pool, 0) / page);
    limits.seat_pages = static_cast<std::uint32_t>(extent(*pages, 1));
    limits.rows = static_cast<std::uint32_t>(options_.rows == 0 ? rows->hi : std::min<std::int64_t>(options_.rows, rows->hi));
    return limits;
  }

 private:
  const plan::SymbolDesc* symbol(const std::string& name) const {
    const auto found = std::find_if(plan_.symbols.begin(), plan_.symbols.end(), [&](const auto& s) { return name == s.name; });
    return found == plan_.symbols.end() ? nullptr : &*found;
  }
  const plan::TensorDesc* find(const std::string& name, plan::TensorKind kind, std::uint32_t rank) const {
    const auto found = std::find_if(plan_.tensors.begin(), plan_.tensors.end(), [&](const auto& t) {
      return name == t.name && t.kind == kind && t.rank == rank && (kind != plan::TensorKind::input || t.dtype == wire::Dtype::i32);
    });
    return found == plan_.tensors.end() ? nullptr : &*found;
  }
  std::int64_t extent(const plan::TensorDesc& tensor, std::size_t dim) const { return dims_[tensor.shape[dim]]; }

  const plan::PlanView& plan_;
  const ServeOptions& options_;
  std::vector<std::int64_t> dims_;
};

}  // namespace

/// Roles
///   incoming   under `mutex`: requests from any thread, what became of all, and whether to stop
///   the rest   the server's thread alone, but for warm(), which comes before the first request
struct Server::Impl {
  Impl(Engine& e, const ServeOptions& o, const BatchLimits& l) : engine(e), options(o), limits(l), batcher(l) {}

  struct UnderWay {
    Step step;
    Run run;
  };

  void work() {
    for (;;) {
      if (!take_requests()) break;
      Status status = send_steps();
      if (status.ok() && !under_way.empty()) status = take_tokens();
      if (!status.ok()) fail(status);
    }
    fail({ErrorCode::cancelled, "the server has ended"});
  }

  /// Sleeps while there is nothing to do. False: the end.
  bool take_requests() {
    std::unique_lock lock(mutex);
    if (under_way.empty() && batcher.idle()) {
      busy = false;
      settled.notify_all();
      wanted.wait(lock, [&] { return stopping || !incoming.empty(); });
    }
    if (stopping) return false;
    busy = true;
    for (auto& [sequence, request] : incoming) {
      requests.emplace(sequence->id, std::move(request));
      batcher.add(std::move(sequence));
    }
    incoming.clear();
    return true;
  }

  Status send_steps() {
    while (under_way.size() <= options.ahead) {
      Step step;
      if (!batcher.compose(step)) break;
      Result<Run> sent = engine.submit(run_of(step));
      if (!sent.ok()) return sent.status();
      const std::lock_guard lock(mutex);
      ++stats.steps;
      stats.rows += step.used_rows;
      stats.padded_rows += step.rows - step.used_rows;
      stats.most_running = std::max(stats.most_running, static_cast<std::uint32_t>(batcher.running()));
      under_way.push_back({std::move(step), std::move(*sent)});
    }
    return {};
  }

  RunRequest run_of(const Step& step) const {
    const ServeNames& names = options.names;
    RunRequest run;
    run.dims = {{names.rows, step.rows}, {names.taken, step.taken}};
    const auto input = [&](const std::string& name, const std::vector<std::int32_t>& values) {
      run.inputs.push_back({name, std::as_bytes(std::span(values))});
    };
    input(names.token, step.token);
    input(names.seat, step.seat);
    input(names.position, step.position);
    input(names.pages, step.pages);
    input(names.take, step.take);
    input(names.keep, step.keep);
    return run;
  }

  Status take_tokens() {
    UnderWay oldest = std::move(under_way.front());
    under_way.pop_front();
    CCKS_RETURN_IF_ERROR(oldest.run.wait());
    const Result<std::vector<double>> report = oldest.run.report(options.names.found);
    if (!report.ok()) return report.status();
    std::vector<std::int32_t> tokens;
    for (const double id : *report) tokens.push_back(static_cast<std::int32_t>(id));
    if (tokens.size() != oldest.step.taken) return no_part(engine.plan(), "report of all that is taken,", options.names.found);
    std::uint64_t told = 0;
    batcher.complete(oldest.step, tokens, [&](Sequence& s, std::int32_t token, bool ended) {
      ++told;
      const auto request = requests.find(s.id);
      if (request->second.on_token) request->second.on_token({token, s.found - 1});
      if (ended) end(s, {}, is_stop(s, token) ? StopReason::token : StopReason::length);
    });
    const std::lock_guard lock(mutex);
    stats.tokens += told;
    stats.dropped += oldest.step.finds.size() - told;
    return {};
  }

  static bool is_stop(const Sequence& s, std::int32_t token) { return std::find(s.stop.begin(), s.stop.end(), token) != s.stop.end(); }

  void end(const Sequence& s, const Status& status, StopReason reason) {
    const auto request = requests.extract(s.id);
    if (request && request.mapped().on_end) request.mapped().on_end(status, reason);
  }

  /// Everyone learns it, and nobody else is taken: what the state holds is not known any more.
  void fail(const Status& status) {
    for (UnderWay& u : under_way) u.run.cancel();
    for (UnderWay& u : under_way) (void)u.run.wait();
    under_way.clear();
    for (const auto& s : batcher.clear()) end(*s, status, StopReason::caller);
    std::deque<std::pair<std::shared_ptr<Sequence>, ServeRequest>> refused;
    {
      const std::lock_guard lock(mutex);
      if (failed.ok()) failed = status;
      refused.swap(incoming);
    }
    for (auto& [sequence, request] : refused)  // without the lock: a callback may submit, and is told why not
      if (request.on_end) request.on_end(status, StopReason::caller);
    settled.notify_all();
  }

  Engine& engine;
  ServeOptions options;
  BatchLimits limits;
  Batcher batcher;
  std::deque<UnderWay> under_way;
  std::map<std::uint64_t, ServeRequest> requests;  // admitted or waiting, by their sequence

  mutable std::mutex mutex;
  std::condition_variable wanted, settled;
  std::deque<std::pair<std::shared_ptr<Sequence>, ServeRequest>> incoming;
  ServeStats stats;
  Status failed;
  std::uint64_t next_id = 0;
  bool stopping = false, busy = false;
  std::thread thread;
};

std::uint32_t Server::slots_for(std::uint32_t rows, std::uint32_t ahead) {
  return static_cast<std::uint32_t>(std::bit_width(std::max(rows, 1u) - 1) + 1) * (ahead + 1) + 1;
}

Result<Server> Server::create(Engine& engine, const ServeOptions& options) {
  const Result<BatchLimits> limits = Parts(engine.plan(), options).limits();
  if (!limits.ok()) return limits.status();
  auto impl = std::make_unique<Impl>(engine, options, *limits);
  impl->thread = std::thread([self = impl.get()] { self->work(); });
  return Server(std::move(impl));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::Server(Server&&) noexcept = default;
Server& Server::operator=(Server&&) noexcept = default;

Server::~Server() {
  if (!impl_) return;
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wanted.notify_all();
  impl_->thread.join();
}

Status Server::warm() {
  for (std::uint32_t rows = 1;; rows *= 2) {
    Step step;  // nobody's
    step.rows = scheduler::step_size(rows, impl_->limits.rows);
    step.taken = std::min(step.rows, impl_->limits.seats);
    for (std::vector<std::int32_t>* of_row : {&step.seat, &step.position}) of_row->assign(step.rows, -1);
    step.token.assign(step.rows, 0);
    step.pages.assign(std::size_t{step.rows} * impl_->limits.seat_pages, -1);
    step.take.assign(step.taken, -1);
    step.keep.assign(step.taken, -1);
    std::vector<Run> runs;  // as many as will be under way, so that each has a slot of its own
    for (std::uint32_t i = 0; i <= impl_->options.ahead; ++i) {
      Result<Run> run = impl_->engine.submit(impl_->run_of(step));
      if (!run.ok()) return run.status();
      runs.push_back(std::move(*run));
    }
    for (Run& run : runs) CCKS_RETURN_IF_ERROR(run.wait());
    if (step.rows == impl_->limits.rows) return {};
  }
}

Status Server::submit(ServeRequest request) {
  auto sequence = std::make_shared<Sequence>();
  sequence->prompt = request.prompt;
  sequence->stop = request.stop;
  sequence->max_tokens = request.max_tokens;
  CCKS_RETURN_IF_ERROR(impl_->batcher.check(*sequence));
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->failed.ok()) return impl_->failed;
    sequence->id = impl_->next_id++;
    impl_->incoming.emplace_back(std::move(sequence), std::move(request));
  }
  impl_->wanted.notify_all();
  return {};
}

Status Server::drain() {
  std::unique_lock lock(impl_->mutex);
  impl_->settled.wait(lock, [&] { return !impl_->failed.ok() || (impl_->incoming.empty() && !impl_->busy); });
  return impl_->failed;
}

ServeStats Server::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace ccks

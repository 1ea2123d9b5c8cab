#include "scheduler/expert_guesses.hpp"

#include <algorithm>

#include "ccks/wire/op_layout.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

// What one tile of columns of an expert reads of its weights.
std::uint64_t tile_bytes(const RunSlot& run, const PlanTables& tables, std::uint32_t op) {
  const wire::OpParams& params = run.instance.op(op);
  const plan::OperandDesc& weights = tables.plan.operands[tables.plan.ops[op].operand_first + 1];
  const auto k = static_cast<std::uint64_t>(std::max<std::int64_t>(run.instance.dims()[weights.dim[2]], 0));
  return k * static_cast<std::uint32_t>(params.tile[3]) * wire::dtype_bytes(weights.dtype) * (params.dims[wire::kTwinDim] != 0 ? 2 : 1);
}

}  // namespace

ExpertGuesses::ExpertGuesses(const PlanTables& tables, std::uint32_t slots, const Speculation& options, SchedulerStats& stats)
    : tables_(tables), options_(options), stats_(stats), random_(options.seed) {
  std::size_t most = 0;
  for (std::uint32_t report = 0; report < tables.report_count(); ++report) {
    const plan::ReportDesc& desc = tables.plan.reports[report];
    Source source{report, {}, std::vector<std::int32_t>(desc.max_bytes / sizeof(std::int32_t), 0)};
    for (std::uint32_t op = 0; op < tables.op_count(); ++op) {
      const plan::OpDesc& info = tables.plan.ops[op];
      if (info.kind == wire::OpCode::expert_matmul && info.dynamic_report == report && desc.dtype == wire::Dtype::i32) source.ops.push_back(op);
    }
    if (source.ops.empty()) continue;
    most = std::max(most, source.counts.size());
    sources_.push_back(std::move(source));
  }
  slots_.resize(slots);
  for (Slot& slot : slots_) {
    slot.guesses.resize(sources_.size());
    for (std::vector<Guess>& guesses : slot.guesses) guesses.reserve(most);
  }
  taken_.assign(most, 0);
  order_.reserve(most);
}

bool ExpertGuesses::is_due(const RunSlot& run) const {
  const std::size_t next = slots_[run.index].next;
  return next < sources_.size() && !run.progress.skipping() && (next == 0 || run.progress.report_settled(sources_[next - 1].report));
}

void ExpertGuesses::send(const RunSlot& run, Batch& batch, WorkerLoads& loads) {
  while (is_due(run)) {
    Slot& slot = slots_[run.index];
    const Source& source = sources_[slot.next];
    std::vector<Guess>& guesses = slot.guesses[slot.next++];
    guesses.clear();
    if (!source.known || run.progress.report_settled(source.report)) continue;  // nobody waits for it any more
    choose(source, guesses);
    fetch(run, source, guesses, batch, loads);
  }
}

// Experts that had rows, most first: a budget that is too small for all is then spent where most is to be gained.
void ExpertGuesses::choose(const Source& source, std::vector<Guess>& out) {
  order_.clear();
  for (std::uint32_t e = 0; e < source.counts.size(); ++e) {
    if (source.counts[e] > 0) order_.push_back(e);
  }
  std::sort(order_.begin(), order_.end(), [&](std::uint32_t a, std::uint32_t b) {
    return source.counts[a] != source.counts[b] ? source.counts[a] > source.counts[b] : a < b;
  });
  std::fill(taken_.begin(), taken_.end(), 0);
  for (const std::uint32_t expert : order_) {
    owed_ += options_.wrong;
    std::uint32_t guess = expert;
    if (owed_ >= 1) {
      owed_ -= 1;
      guess = wrong_expert(source);
    }
    taken_[guess] = 1;
    out.push_back({guess, 0});
  }
}

// One that had no rows and is not guessed yet, if there is one: who makes guesses wrong has inputs that go the same way again.
std::uint32_t ExpertGuesses::wrong_expert(const Source& source) {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  const auto experts = static_cast<std::uint32_t>(source.counts.size());
  const auto from = static_cast<std::uint32_t>((random_ >> 33) % experts);
  for (std::uint32_t i = 0; i < experts; ++i) {
    const std::uint32_t expert = (from + i) % experts;
    if (source.counts[expert] <= 0 && taken_[expert] == 0) return expert;
  }
  return from;
}

// Op by op, in the order in which they will run; columns of an expert that lie side by side are one task, and workers take turns.
void ExpertGuesses::fetch(const RunSlot& run, const Source& source, std::vector<Guess>& guesses, Batch& batch, WorkerLoads& loads) {
  std::uint64_t left = options_.bytes;
  for (const std::uint32_t op : source.ops) {
    const wire::OpParams& params = run.instance.op(op);
    const std::uint64_t bytes = tile_bytes(run, tables_, op);
    const auto width = static_cast<std::uint32_t>(std::max(params.grid[3], 0));
    if (bytes == 0 || width * std::uint64_t{taken_.size()} > wire::kMaxTilesPerOp) continue;
    const std::uint64_t wanted = std::min<std::uint64_t>(left / bytes, std::uint64_t{width} * guesses.size());
    const std::uint32_t askers = tables_.spine == Spine::whole ? std::min(kAskers, loads.workers()) : loads.workers(), first_asker = loads.workers() - askers;
    const auto each = static_cast<std::uint32_t>(std::clamp<std::uint64_t>((wanted + askers - 1) / askers, 1, wire::kMaxTilesPerTask));
    for (Guess& guess : guesses) {
      for (std::uint32_t column = 0; column < width && left >= bytes; column += each) {
        const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>({each, width - column, left / bytes}));
        const std::uint32_t worker = first_asker + turn_;
        turn_ = turn_ + 1 < askers ? turn_ + 1 : 0;
        if (batch.full()) return;
        if (!loads.has_room(worker, loads.inbox_slots())) continue;
        Decision& out = batch.items[batch.count++];
        out = {};
        out.tile = wire::Task::pack_tiles(guess.expert * width + column, count);
        out.amount = count;
        out.cost = 1;
        out.op = out.target = static_cast<std::uint16_t>(op);
        out.worker = static_cast<std::uint16_t>(worker);
        out.slot_flags = static_cast<std::uint16_t>(run.index | wire::kTaskFetch);
        loads.add(worker, out.cost);
        left -= count * bytes;
        guess.bytes += count * bytes;
        stats_.guess_tasks.add(1);
      }
    }
  }
}

std::span<const std::int32_t> ExpertGuesses::reported(const RunSlot& run, const Source& source) const {
  const plan::ReportDesc& desc = tables_.plan.reports[source.report];
  const auto experts = static_cast<std::size_t>(std::max<std::int64_t>(run.instance.dims()[desc.elements], 0));
  return {reinterpret_cast<const std::int32_t*>(run.instance.reports() + desc.offset), std::min(experts, source.counts.size())};
}

void ExpertGuesses::on_report(const RunSlot& run, std::uint32_t report) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (source.report != report) continue;
    const std::span<const std::int32_t> counts = reported(run, source);
    if (i < slots_[run.index].next) {
      for (const Guess& guess : slots_[run.index].guesses[i]) {
        if (guess.bytes == 0) continue;
        const bool right = guess.expert < counts.size() && counts[guess.expert] > 0;
        stats_.guesses.add(1);
        stats_.guess_bytes.add(guess.bytes);
        (right ? stats_.guesses_right : stats_.guess_bytes_wrong).add(right ? 1 : guess.bytes);
      }
    }
    std::copy(counts.begin(), counts.end(), source.counts.begin());
    source.known = true;
  }
}

}  // namespace ccks::scheduler

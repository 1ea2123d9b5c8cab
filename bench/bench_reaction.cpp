// Question: a value appears on the GPU, the co-pilot decides, another worker starts: how long is that, and how much longer
// than the bare round trip over the link?
// Arms: the raw ping-pong of two rings, round after round; and, in programs whose ops exist only as far as a report says, the
// time from the end of the reporting body to the start of the body that the report called for, on the same and on another
// worker, by the GPU's own clock. The ping-pong again, a round as often as lookahead reacts: what a machine whose cores stand
// still now and then makes of the bare round trip. static: the same program decided on the GPU, where no report makes a round
// trip. Beside them what the machine takes of the scheduler's core from a thread that does nothing but read the clock: no
// decision can come sooner than its core.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "bench/bench_gpu.hpp"
#include "bench/bench_report.hpp"

#if defined(CCKS_HAVE_CUDA)

#include "bench/images/images.hpp"
#include "bench/images/ping_pong.hpp"
#include "bench/images/stamp.hpp"
#include "ccks/engine.hpp"
#include "ccks/wire/atoms.hpp"
#include "scheduler/pin.hpp"
#include "tests/support/cuda_kernels.hpp"
#include "tests/support/engine_graph.hpp"

namespace ccks::bench {
namespace {

constexpr std::uint32_t kRounds = 20'000;
constexpr std::uint32_t kWarmRounds = 1000;
// Without a record for so long, some 50 ms: is the kernel still there? Asking the driver between two rounds would show in
// the figures, and may take longer than the kernel has patience.
constexpr std::uint64_t kPollsPerQuery = 1 << 25;
constexpr std::uint64_t kStall = 1000, kStallsWatched = 500'000'000;  // ns
constexpr std::string_view kDefaultPolicy = "lookahead";
constexpr std::uint32_t kPairs = 8;  // reports of a run, one after the other

int failed(const Status& status) {
  fmt::print(stderr, "reaction: {}\n", status.to_string());
  if (status.code() == ErrorCode::unavailable) return kNoGpu;
  return status.code() == ErrorCode::invalid_data ? 3 : 4;
}

/// What both ends saw when the kernel ended early, `since_ns` the launch.
Status gave_up(test::CudaKernels& kernels, const PingPongParams& p, std::uint32_t round, std::uint64_t since_ns) {
  PingPongOutcome outcome{};
  CCKS_RETURN_IF_ERROR(kernels.device().read(&outcome, p.outcome, sizeof(outcome)));
  const auto& asked = reinterpret_cast<const wire::Record*>(p.outbox)[round % p.slots];
  const auto& answered = reinterpret_cast<const wire::Task*>(p.inbox)[outcome.round % p.slots];
  return {ErrorCode::deadline_exceeded,
          fmt::format("the ping-pong ended after {:.3f} ms while the host waited for round {} (slot: {}, seq {}); GPU in round {}: {} "
                      "after {:.3f} ms (slot: {}, seq {})",
                      static_cast<double>(now_ns() - since_ns) / 1e6, round, asked.value, asked.seq, outcome.round,
                      outcome.silent != 0 ? "no answer" : fmt::format("answer {}", outcome.answer),
                      static_cast<double>(outcome.waited_ns) / 1e6, answered.tile, answered.seq)};
}

/// The host's side: launches the kernel and answers record after record until all rounds are made or it has ended.
Status answer(test::CudaKernels& kernels, PingPongParams& p) {
  wire::RingConsumer<wire::Record, wire::HostAtoms> outbox(reinterpret_cast<const wire::Record*>(p.outbox), p.slots, 0);
  wire::RingWriter<wire::Task, wire::HostAtoms> inbox(reinterpret_cast<wire::Task*>(p.inbox), p.slots, 0);
  const std::uint64_t since = now_ns();
  CCKS_RETURN_IF_ERROR(kernels.launch("ccks_ping_pong", 1, 1, &p));
  std::uint64_t polls = 0;
  for (std::uint32_t round = 0; round < p.rounds;) {
    wire::Record record;
    if (outbox.poll(record)) {  // [R2]
      // Relaxed: published by the record.
      const std::uint32_t value = wire::HostAtoms::link_load_relaxed(reinterpret_cast<const wire::u32*>(p.value));
      if (value != record.value) {
        return {ErrorCode::invalid_data, fmt::format("record {} came before its value, which was still {}", record.value, value)};
      }
      inbox.put_release({value, 0, 0, 0, 0});  // [R1]
      ++round;
      polls = 0;
    } else if (++polls == kPollsPerQuery) {
      polls = 0;
      // The kernel gives up by itself when the host is silent, so this ends.
      const Result<bool> over = kernels.ended();
      if (!over.ok()) return over.status();
      if (over.value()) return gave_up(kernels, p, round, since);
    }
  }
  return kernels.wait(std::chrono::seconds(5));
}

/// Calls `work` on a thread that is pinned as the scheduler's is, and waits for its end.
template <class Work>
void on_scheduler_core(Work&& work) {
  std::thread([&] {
    scheduler::pin_scheduler_thread(0);
    work();
  }).join();
}

/// Two readings of the clock further apart than kStall: somebody else had the core. Nanoseconds.
std::vector<double> stalls() {
  std::vector<double> out;
  on_scheduler_core([&] {
    const std::uint64_t begin = now_ns();
    for (std::uint64_t last = begin; last - begin < kStallsWatched;) {
      const std::uint64_t now = now_ns();
      if (now - last > kStall) out.push_back(static_cast<double>(now - last));
      last = now;
    }
  });
  return out;
}

/// How late a thread comes that is wanted at a random moment, if stalls are all that keeps it: one in a hundred later than this.
double late_p99(const std::vector<double>& stalls) {
  const auto later_than = [&](double late) {
    double sum = 0;
    for (const double stall : stalls) sum += std::max(0.0, stall - late);
    return sum / static_cast<double>(kStallsWatched);
  };
  double low = 0, high = static_cast<double>(kStallsWatched);
  while (high - low > 1) (later_than((low + high) / 2) > 0.01 ? low : high) = (low + high) / 2;
  return low;
}

void measure_stalls() {
  const std::vector<double> found = stalls();
  double sum = 0;
  for (const double stall : found) sum += stall;
  const double seconds = static_cast<double>(kStallsWatched) / 1e9;
  Line line("reaction", "stalls of the scheduler's core");
  line.number("per_s", static_cast<double>(found.size()) / seconds).number("percent", sum / 1e7 / seconds).number("late_ns_p99", late_p99(found));
  line.samples("ns", found).print();
}

/// Nanoseconds of each round, which begin at least `period_ns` apart.
Result<std::vector<double>> ping_pong(std::uint64_t period_ns) {
  auto kernels = test::CudaKernels::open(ccks_image_ping_pong);
  if (!kernels.ok()) return kernels.status();
  Device& device = (*kernels)->device();
  PingPongParams p{};
  p.slots = 64;
  p.rounds = kRounds;
  p.deadline_ns = 2'000'000'000;
  p.period_ns = period_ns;
  const std::pair<wire::u64*, MemoryKind> memory[] = {
      {&p.value, MemoryKind::link}, {&p.outbox, MemoryKind::link}, {&p.inbox, MemoryKind::link}, {&p.samples, MemoryKind::device},
      {&p.outcome, MemoryKind::device}};
  for (const auto& [address, kind] : memory) {
    auto block = device.allocate(kRounds * sizeof(std::uint32_t), kind);
    if (!block.ok()) return block.status();
    *address = *block;
  }
  Status answered;
  on_scheduler_core([&] { answered = answer(**kernels, p); });
  CCKS_RETURN_IF_ERROR(answered);
  std::vector<std::uint32_t> samples(kRounds);
  CCKS_RETURN_IF_ERROR(device.read(samples.data(), p.samples, samples.size() * sizeof(samples[0])));
  if (samples.back() == 0) return Status{ErrorCode::deadline_exceeded, "the ping-pong did not make all its rounds"};
  return std::vector<double>(samples.begin() + kWarmRounds, samples.end());
}

/// report, its two rows, report, its two rows, ...
test::GraphPlan report_chain() {
  std::vector<test::GraphOp> ops(2 * kPairs);
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    if (i > 0) ops[i].edges = {{i - 1, test::Reads::all}};
    if (i % 2 == 0) {
      ops[i].report = static_cast<int>(i / 2);
    } else {
      ops[i].tiles = kStampRows;
      ops[i].dynamic_report = static_cast<int>(i / 2);
    }
  }
  return test::GraphPlan(ops, 1);
}

struct Reactions {
  std::vector<double> same, other;  // nanoseconds; started on the worker that reported, on another one
  std::vector<double> apart;        // nanoseconds from one report to the next of the same run
};

/// Adds what one run wrote down; the end of its last tile in `last`. False if the stamps are not those of one ordered run.
bool collect(const Run& run, Reactions& out, std::uint32_t& last, bool keep) {
  std::uint32_t before = 0;
  for (std::uint32_t i = 0; i < kPairs; ++i) {
    std::uint64_t reported = 0;
    std::uint64_t started[kStampRows] = {};
    const auto report = run.report("r" + std::to_string(i));
    if (!report.ok() || report->front() != kStampRows) return false;
    if (!run.read_output(test::GraphPlan::output(2 * i), std::as_writable_bytes(std::span(&reported, 1))).ok()) return false;
    if (!run.read_output(test::GraphPlan::output(2 * i + 1), std::as_writable_bytes(std::span(started))).ok()) return false;
    const auto value = static_cast<std::uint32_t>(reported >> 32);
    if (last != 0 && static_cast<std::int32_t>(value - last) <= 0) return false;
    if (keep && i > 0) out.apart.push_back(value - before);
    before = value;
    for (std::uint32_t row = 0; row < kStampRows; ++row) {
      const auto delay = static_cast<std::int32_t>(static_cast<std::uint32_t>(started[row]) - value);
      if (delay < 0) return false;
      if (keep) (row == 0 ? out.same : out.other).push_back(delay);
      last = static_cast<std::uint32_t>(started[row] >> 32);
    }
  }
  return true;
}

/// An engine for `plan`, whose workers write down when their bodies ran.
Result<Engine> start_engine(const test::GraphPlan& plan, const char* policy, const ReactionOptions& options, std::uint32_t trace_records) {
  auto device = open_device({.kind = "cuda", .workers = options.workers});
  if (!device.ok()) return device.status();
  EngineOptions engine_options;
  engine_options.policy = policy;
  engine_options.spine = "lists";  // `auto` would put what a report counts into lists, as there is so little of it, and nobody would decide anything
  engine_options.trace_records = trace_records;
  auto engine = Engine::create(std::move(*device), Program(nullptr, plan.view(), test::graph_worker(ccks_image_stamp_worker)), engine_options);
  if (!engine.ok()) return engine.status();
  CCKS_RETURN_IF_ERROR(engine->start());
  return engine;
}

/// A timeline of some more runs, apart from those measured: writing it costs time.
Status write_timeline(const char* policy, const ReactionOptions& options) {
  const test::GraphPlan plan = report_chain();
  auto engine = start_engine(plan, policy, options, 1024);
  if (!engine.ok()) return engine.status();
  for (int i = 0; i < 20; ++i) {
    Result<Run> run = engine->submit({});
    if (!run.ok()) return run.status();
    CCKS_RETURN_IF_ERROR(run->wait());
  }
  CCKS_RETURN_IF_ERROR(engine->drain(std::chrono::seconds(10)));
  return engine->write_trace(fmt::format("{}.{}.json", options.trace, policy));
}

Result<Reactions> reactions(const char* policy, const ReactionOptions& options) {
  const test::GraphPlan plan = report_chain();
  auto engine = start_engine(plan, policy, options, 0);
  if (!engine.ok()) return engine.status();
  Reactions out;
  std::uint32_t last = 0;
  for (std::uint32_t i = 0; i < options.runs + 10; ++i) {
    Result<Run> run = engine->submit({});
    if (!run.ok()) return run.status();
    CCKS_RETURN_IF_ERROR(run->wait());
    if (!collect(*run, out, last, i >= 10)) return Status{ErrorCode::invalid_data, "the stamps are not those of one run"};
  }
  // Its ops are sent ahead as drafts: without any, what was measured is no reaction of the co-pilot's.
  if (std::string_view(policy) == kDefaultPolicy && engine->stats().drafts == 0) return Status{ErrorCode::internal, "lookahead has decided nothing by a report"};
  return out;
}

/// Percent of `samples` that are over twice `raw_median`, the median of the bare round trip: where one in a hundred of them meets a stall, p99 is on one
/// side of it or on the other, and this says by how much.
double late_percent(const std::vector<double>& samples, double raw_median) {
  const auto late = std::count_if(samples.begin(), samples.end(), [&](double ns) { return ns > 2 * raw_median; });
  return 100.0 * static_cast<double>(late) / static_cast<double>(samples.size());
}

/// The bare round trip, a round as often as reactions that are so far `apart`: a stall of the scheduler's core comes every so many microseconds, and
/// of rounds that follow each other at once fewer meet one than of reactions, which have work of their own between them.
int measure_paced_ping_pong(const std::vector<double>& apart, double raw_median) {
  const double period = median(apart);
  const Result<std::vector<double>> raw = ping_pong(static_cast<std::uint64_t>(period));
  if (!raw.ok()) return failed(raw.status());
  Line line("reaction", "raw ping-pong, paced");
  line.number("workers", 1).number("period_ns", period);
  if (raw_median > 0) line.number("late_percent", late_percent(*raw, raw_median));
  line.samples("ns", *raw).print();
  return 0;
}

/// `raw_median` 0: not known.
void print(const char* policy, const Reactions& measured, double raw_median) {
  for (const bool other : {true, false}) {
    const std::vector<double>& samples = other ? measured.other : measured.same;
    Line line("reaction", fmt::format("{}, {} worker", policy, other ? "another" : "same"));
    if (raw_median > 0) {
      std::vector<double> first;  // of each run, whose workers have had nothing to do for a while
      for (std::size_t i = 0; i < samples.size(); i += kPairs) first.push_back(samples[i]);
      line.number("median_over_raw", median(samples) / raw_median).number("late_percent", late_percent(samples, raw_median));
      line.number("first_late_percent", late_percent(first, raw_median));
    }
    line.samples("ns", samples).print();
  }
}

/// One policy and, right behind lookahead, what it is held against.
int measure(const char* policy, double raw_median, const ReactionOptions& options) {
  const Result<Reactions> measured = reactions(policy, options);
  if (!measured.ok()) return failed(measured.status());
  print(policy, *measured, raw_median);
  return std::string_view(policy) == kDefaultPolicy ? measure_paced_ping_pong(measured->apart, raw_median) : 0;
}

}  // namespace

int bench_reaction(const ReactionOptions& options) {
  const Result<std::vector<double>> raw = ping_pong(0);
  int worst = raw.ok() ? 0 : failed(raw.status());
  if (worst == kNoGpu) return worst;
  if (raw.ok()) Line("reaction", "raw ping-pong").number("workers", 1).samples("ns", *raw).print();
  measure_stalls();
  for (const char* policy : {"lookahead", "reactive", "static"}) {
    worst = std::max(worst, measure(policy, raw.ok() ? median(*raw) : 0, options));
    if (options.trace.empty()) continue;
    if (const Status written = write_timeline(policy, options); !written.ok()) worst = std::max(worst, failed(written));
  }
  return worst;
}

}  // namespace ccks::bench

#else

namespace ccks::bench {
int bench_reaction(const ReactionOptions&) {
  fmt::print(stderr, "reaction: built without CUDA\n");
  return kNoGpu;
}
}  // namespace ccks::bench

#endif

#include "tests/sim/sim_case.hpp"

#include <fmt/format.h>

#include <charconv>

namespace ccks::test::sim {
namespace {

using gpu::sim::Random;

constexpr const char* kFaultNames[kFaults] = {"worker_hang", "op_fault", "scheduler_stall", "scheduler_crash", "inbox_full",
                                              "wrap",        "park",     "hand_off",        "wrong_guesses",   "retry",
                                              "clock_jump",  "flood",    "stuck_trace"};

std::uint32_t below(Random& random, std::uint32_t end) { return static_cast<std::uint32_t>(random.below(end)); }

// Reports come from ops of one tile that nothing holds or guards, so that their values exist in every run.
std::vector<GraphOp> random_ops(Random& random) {
  std::vector<GraphOp> ops(1);
  ops[0] = {.tiles = 1 + below(random, 3), .scaled = true, .per_tile_events = true};
  const std::uint32_t count = 2 + below(random, 8);
  std::vector<std::uint32_t> reporters;
  for (std::uint32_t i = 1; i < count; ++i) {
    GraphOp op;
    op.tiles = 1 + below(random, 6);
    op.scaled = random.chance(2);
    op.per_tile_events = random.chance(2);
    for (std::uint32_t e = below(random, 4); e > 0; --e) op.edges.push_back({below(random, i), Reads::all});
    const std::uint32_t kind = below(random, 5);
    if (kind == 0) {
      op.report = static_cast<int>(reporters.size());
      op.report_count = 1 + below(random, 3);
      op.tiles = 1;
      op.scaled = false;
      reporters.push_back(i);
    } else if (kind <= 2 && !reporters.empty()) {
      const std::uint32_t report = below(random, static_cast<std::uint32_t>(reporters.size()));
      op.edges.push_back({reporters[report], Reads::all});
      (kind == 1 ? op.dynamic_report : op.guard_report) = static_cast<int>(report);
    } else if (ops[i - 1].per_tile_events && ops[i - 1].dynamic_report < 0 && random.chance(2)) {
      op.tiles = ops[i - 1].tiles;
      op.scaled = ops[i - 1].scaled;
      op.edges.push_back({i - 1, Reads::same_tile});
    }
    ops.push_back(op);
  }
  return ops;
}

void choose_policy(Random& random, SimCase& out) {
  switch (random.below(5)) {
    case 0:
      out.policy = scheduler::PolicyKind::fixed;
      out.spine = scheduler::Spine::whole;
      break;
    case 1:
      out.policy = scheduler::PolicyKind::reactive;
      out.spine = scheduler::Spine::tiles;
      break;
    case 2:
      out.spine = scheduler::Spine::stretches;
      break;
    default:
      out.spine = scheduler::Spine::tiles;
  }
}

// Links from one where everything is far to one where everything is near.
void choose_link(Random& random, SimCase& out) {
  gpu::sim::LinkModel& link = out.link;
  link.name = "random";
  link.host_ns = random.between(20, 200);
  link.read_ns = random.between(50, 1000);
  link.write_ns = random.between(20, 1500);
  link.issue_ns = random.between(10, 60);
  link.release_ns = random.between(0, 300);
  link.event_read_ns = random.between(20, 400);
  link.event_write_ns = random.between(10, 400);
  link.reorder_ns = random.chance(4) ? 0 : random.between(100, 5000);
  link.stale_ns = random.chance(4) ? 0 : random.between(100, 10000);
  gpu::sim::Noise& noise = out.noise;
  noise.jitter_percent = static_cast<std::uint32_t>(random.between(0, 300));
  noise.speed_spread = random.chance(2) ? 0 : static_cast<std::uint32_t>(random.between(1, 6));
  noise.stall_one_in = random.chance(2) ? 0 : static_cast<std::uint32_t>(random.between(100, 2000));
  noise.stall_ns = random.between(1000, 200'000);
}

// The last op keeps a state: a word to which each run adds, so that its value tells their order. Chains know no counted ops.
void choose_state(Random& random, SimCase& out) {
  if (random.chance(2)) return;
  out.states = 1 + below(random, 2);
  out.chain = !random.chance(4);
  GraphOp last{.tiles = 1, .state = true};
  for (std::uint32_t e = below(random, 3); e > 0; --e) last.edges.push_back({below(random, static_cast<std::uint32_t>(out.ops.size())), Reads::all});
  out.ops.push_back(last);
  if (out.chain) {
    for (GraphOp& op : out.ops) op.dynamic_report = -1;
  }
  out.condition_percent = random.chance(2) ? 0 : 50;
}

// By draws of its own, so that all else of a seed stays as it was before there were primed runs.
void choose_repeats(SimCase& out) {
  Random random(out.seed ^ 0x9e3779b97f4a7c15u);
  if (!random.chance(4) || out.has(Fault::flood)) return;
  out.alone_percent = static_cast<std::uint32_t>(random.between(50, 100));
  if (random.chance(2)) return;
  out.policy = scheduler::PolicyKind::fixed;
  out.spine = scheduler::Spine::whole;
}

void choose_faults(Random& random, SimCase& out) {
  if (out.seed % 3 == 0) return;
  for (std::uint64_t i = random.between(1, 3); i > 0; --i) out.faults[random.below(kFaults)] = true;
  out.fault_ns = random.between(1000, 400'000);
}

}  // namespace

const char* fault_name(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

SimCase make_case(std::uint64_t seed) {
  Random random(seed);
  SimCase out;
  out.seed = seed;
  out.schedule = seed ^ 0x51u;
  out.workers = 1 + below(random, 4);
  out.slots = 1 + below(random, 4);
  out.ops = random_ops(random);
  choose_policy(random, out);
  out.inbox_slots = 64;
  out.outbox_slots = 64;
  out.cancel_percent = random.chance(3) ? 20 : 0;
  out.body_ns = random.between(50, 8000);
  choose_link(random, out);
  choose_faults(random, out);
  out.deadline_percent = random.chance(4) ? 20 : 0;
  choose_state(random, out);
  if (random.chance(4)) out.workers_per_run = 1 + below(random, out.workers);
  for (std::uint32_t i = 0; i < out.ops.size(); ++i) out.kept.push_back(i);
  choose_repeats(out);
  return out;
}

std::vector<GraphOp> keep_ops(const std::vector<GraphOp>& ops, const std::vector<bool>& keep) {
  std::vector<GraphOp> out;
  std::vector<int> at(ops.size(), -1);       // new number of an op
  std::vector<int> report_at(ops.size(), -1);  // of a report
  int reports = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!keep[i]) continue;
    GraphOp op = ops[i];
    std::erase_if(op.edges, [&](const GraphEdge& edge) { return at[edge.producer] < 0; });
    for (GraphEdge& edge : op.edges) edge.producer = static_cast<std::uint32_t>(at[edge.producer]);
    for (int* held : {&op.dynamic_report, &op.guard_report}) {
      if (*held >= 0) *held = report_at[static_cast<std::size_t>(*held)];
    }
    if (op.report >= 0) op.report = report_at[static_cast<std::size_t>(op.report)] = reports++;
    at[i] = static_cast<int>(out.size());
    out.push_back(op);
  }
  return out;
}

namespace {

Status wrong(std::string_view item) { return {ErrorCode::invalid_argument, fmt::format("case: '{}' is not understood", item)}; }

bool number(std::string_view text, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

template <class Visit>
bool for_each_part(std::string_view text, char separator, Visit&& visit) {
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    if (!visit(text.substr(0, end))) return false;
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return true;
}

bool set_faults(SimCase& out, std::string_view names) {
  out.faults.fill(false);
  return for_each_part(names, ',', [&](std::string_view name) {
    for (std::size_t i = 0; i < kFaults; ++i) {
      if (name == kFaultNames[i]) return out.faults[i] = true;
    }
    return false;
  });
}

bool set_ops(SimCase& out, std::string_view numbers) {
  std::vector<bool> keep(out.ops.size(), false);
  const bool understood = for_each_part(numbers, ',', [&](std::string_view text) {
    std::uint64_t index = 0;
    if (!number(text, index) || index >= keep.size()) return false;
    return keep[index] = true, true;
  });
  if (understood) {
    out.ops = keep_ops(out.ops, keep);
    std::erase_if(out.kept, [&](std::uint32_t op) { return !keep[op]; });
  }
  return understood && !out.ops.empty();
}

bool set_noise(SimCase& out, std::string_view text) {
  const std::size_t dash = text.find('-');
  return dash != std::string_view::npos && number(text.substr(0, dash), out.noise.from_step) &&
         number(text.substr(dash + 1), out.noise.to_step);
}

bool set_number(SimCase& out, std::string_view name, std::uint64_t value) {
  const auto small = static_cast<std::uint32_t>(value);
  if (name == "workers") return out.workers = small, value > 0 && value <= 256;
  if (name == "workers_per_run") return out.workers_per_run = small, value <= out.workers;
  if (name == "slots") return out.slots = small, value > 0 && value <= 64;
  if (name == "runs") return out.runs = small, out.min_steps = 0, value > 0;
  if (name == "cancel") return out.cancel_percent = small, true;
  if (name == "deadline") return out.deadline_percent = small, true;
  if (name == "wrong") return out.wrong_percent = small, true;
  if (name == "condition") return out.condition_percent = small, true;
  if (name == "chain") return out.chain = value != 0, value <= 1;
  if (name == "schedule") return out.schedule = value, true;
  if (name == "body") return out.body_ns = value, true;
  if (name == "fault_ns") return out.fault_ns = value, true;
  if (name == "reorder") return out.link.reorder_ns = value, true;
  if (name == "stale") return out.link.stale_ns = value, true;
  return false;
}

}  // namespace

Status change_case(SimCase& out, std::string_view text) {
  Status status;
  for_each_part(text, ';', [&](std::string_view item) {
    const std::size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    std::uint64_t amount = 0;
    const bool understood = name == "faults"  ? set_faults(out, value)
                            : name == "ops"   ? set_ops(out, value)
                            : name == "noise" ? set_noise(out, value)
                                              : number(value, amount) && set_number(out, name, amount);
    if (!understood) status = wrong(item);
    return understood;
  });
  return status;
}

std::string describe(const SimCase& c) {
  std::string faults;
  for (std::size_t i = 0; i < kFaults; ++i) {
    if (c.faults[i]) faults += fmt::format("{}{}", faults.empty() ? "" : ", ", kFaultNames[i]);
  }
  std::string ops;
  for (const GraphOp& op : c.ops) {
    ops += fmt::format(" {}{}", op.tiles, op.scaled ? "n" : "");
    if (op.report >= 0) ops += fmt::format("!{}", op.report);
    if (op.dynamic_report >= 0) ops += fmt::format("?{}", op.dynamic_report);
    if (op.guard_report >= 0) ops += fmt::format("&{}", op.guard_report);
    if (op.state) ops += "$";
    for (const GraphEdge& edge : op.edges) ops += fmt::format("{}{}", edge.reads == Reads::all ? "<" : "=", edge.producer);
  }
  return fmt::format("{} workers ({} a run), {} slots, {} states{}, policy {}, ops (tiles; !reports ?counted &guarded $state <reads =reads same):{}; faults: {}",
                     c.workers, c.workers_per_run == 0 ? c.workers : c.workers_per_run, c.slots, c.states, c.chain ? " (chained)" : "", policy_name(c.policy), ops, faults.empty() ? "none" : faults);
}

}  // namespace ccks::test::sim

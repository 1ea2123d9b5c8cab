#include "scheduler/tools/run_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ccks::run {
namespace {

// Nearest rank: a value that was measured, never one in between.
double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(p / 100 * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

nlohmann::ordered_json code_json(const CodeReport& code) {
  nlohmann::ordered_json out = {{"kind", code.kind}};
  if (code.kind == "jit") {
    out["architecture"] = code.architecture;
    out["compiler"] = code.compiler;
    out["image_bytes"] = code.image_bytes;
    out["hit"] = code.hit;
    out["units"] = {{"all", code.units}, {"compiled", code.units_compiled}};
    out["ms"] = {{"total", code.total_ms}, {"compile", code.compile_ms}, {"link", code.link_ms}};
  }
  if (!code.notice.empty()) out["notice"] = code.notice;
  return out;
}

std::string code_text(const CodeReport& code) {
  std::string out = "code: " + code.kind;
  if (code.kind == "jit") {
    out += fmt::format(" for {}, {} bytes, ", code.architecture, code.image_bytes);
    out += code.hit ? fmt::format("from the cache in {:.1f} ms (made by {})", code.total_ms, code.compiler)
                    : fmt::format("{} of {} units compiled in {:.0f} ms ({})", code.units_compiled, code.units,
                                  code.total_ms, code.compiler);
  }
  if (!code.notice.empty()) out += "; " + code.notice;
  return out + "\n";
}

// What the times of tokens say: the first holds the prompt, and the first steps may wait for frames to be built.
struct TokenTimes {
  double first_us = 0, p50_us = 0, p99_us = 0;
  std::vector<double> us;
};
TokenTimes token_times(const GenerateResult& generated) {
  TokenTimes out;
  for (const auto time : generated.times) out.us.push_back(static_cast<double>(time.count()) / 1e3);
  if (out.us.empty()) return out;
  out.first_us = out.us.front();
  const std::vector<double> rest(out.us.begin() + 1, out.us.end());
  out.p50_us = percentile(rest, 50);
  out.p99_us = percentile(rest, 99);
  return out;
}

nlohmann::ordered_json generated_json(const GenerateResult& generated) {
  const TokenTimes times = token_times(generated);
  return {{"tokens", generated.tokens}, {"rows", generated.rows}, {"stopped_by", stop_reason_name(generated.reason)}, {"position", generated.position},
          {"dropped_runs", generated.dropped}, {"first_token_us", times.first_us},
          {"token_us", {{"p50", times.p50_us}, {"p99", times.p99_us}}}, {"us", times.us}};
}

std::string generated_text(const GenerateResult& generated) {
  const TokenTimes times = token_times(generated);
  return fmt::format("\n{} tokens, stopped by {}: first after {:.1f} us, then p50 {:.1f} us, p99 {:.1f} us a token; {} run{} sent ahead and dropped\n",
                     generated.times.size(), stop_reason_name(generated.reason), times.first_us, times.p50_us, times.p99_us,
                     generated.dropped, generated.dropped == 1 ? "" : "s");
}

struct ServedTimes {
  std::vector<double> first_ms, token_ms, end_ms;  // of requests; token_ms: of each token behind the first, on average
  std::size_t tokens = 0;
};
ServedTimes served_times(const Served& served) {
  ServedTimes out;
  for (const ServedRequest& r : served.requests) {
    out.tokens += r.tokens.size();
    out.first_ms.push_back(r.first_ms);
    out.end_ms.push_back(r.end_ms);
    if (r.tokens.size() > 1) out.token_ms.push_back((r.end_ms - r.first_ms) / static_cast<double>(r.tokens.size() - 1));
  }
  return out;
}
double per_step(std::uint64_t count, const Served& served) { return static_cast<double>(count) / static_cast<double>(std::max<std::uint64_t>(served.stats.steps, 1)); }

nlohmann::ordered_json served_json(const Served& served) {
  const ServedTimes times = served_times(served);
  const auto both = [](const std::vector<double>& of) { return nlohmann::ordered_json{{"p50", percentile(of, 50)}, {"p99", percentile(of, 99)}}; };
  return {{"requests", served.requests.size()}, {"tokens", times.tokens}, {"ms", served.ms}, {"tokens_s", static_cast<double>(times.tokens) / served.ms * 1e3},
          {"ttft_ms", both(times.first_ms)}, {"tpot_ms", both(times.token_ms)}, {"latency_ms", both(times.end_ms)}, {"steps", served.stats.steps},
          {"rows_a_step", per_step(served.stats.rows, served)}, {"padded_rows_a_step", per_step(served.stats.padded_rows, served)},
          {"most_running", served.stats.most_running}, {"dropped_tokens", served.stats.dropped}};
}

std::string served_text(const Served& served) {
  const ServedTimes times = served_times(served);
  return fmt::format(
      "{} requests, {} tokens in {:.1f} ms: {:.0f} tokens/s\n"
      "first token p50 {:.2f} ms, p99 {:.2f} ms; a token after it p50 {:.3f} ms, p99 {:.3f} ms; whole p50 {:.1f} ms, p99 {:.1f} ms\n"
      "{} steps of {:.1f} rows and {:.1f} padded on average, at most {} sequences at a time, {} tokens found behind an end\n",
      served.requests.size(), times.tokens, served.ms, static_cast<double>(times.tokens) / served.ms * 1e3, percentile(times.first_ms, 50), percentile(times.first_ms, 99),
      percentile(times.token_ms, 50), percentile(times.token_ms, 99), percentile(times.end_ms, 50), percentile(times.end_ms, 99), served.stats.steps,
      per_step(served.stats.rows, served), per_step(served.stats.padded_rows, served), served.stats.most_running, served.stats.dropped);
}

// Whether a policy on the host decides: other arms leave it to queues or to the order of launches.
bool decides(const Options& options) { return options.arm == "copilot" || options.arm == "static"; }

}  // namespace

std::string token_line(const Options& options, const GeneratedToken& token) {
  if (!options.json) return fmt::format("{} ", token.id);
  return nlohmann::ordered_json{{"token", token.id}, {"index", token.index}, {"us", static_cast<double>(token.since.count()) / 1e3}}.dump() + "\n";
}

std::string to_json(const Options& options, const Outcome& outcome) {
  nlohmann::ordered_json out;
  out["program"] = outcome.program;
  out["code"] = code_json(outcome.code);
  if (!options.jit_only.empty()) return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  out["device"] = outcome.device.kind;
  out["device_name"] = outcome.device.name;
  if (!outcome.device.notice.empty()) out["device_notice"] = outcome.device.notice;
  out["transport"] = outcome.device.transport;
  out["workers"] = outcome.device.workers;
  out["arm"] = options.arm;
  out["policy"] = decides(options) ? nlohmann::ordered_json(options.policy) : nullptr;
  out["iterations"] = outcome.us.size();
  out["tasks_per_iteration"] = outcome.tasks_per_iteration;
  out["us"] = {{"p50", percentile(outcome.us, 50)}, {"p99", percentile(outcome.us, 99)}};
  out["verify"] = nullptr;
  if (outcome.verified) {
    const double error = outcome.verification.max_rel_err;
    out["verify"] = {
        {"max_rel_err", std::isfinite(error) ? nlohmann::ordered_json(error) : nlohmann::ordered_json("inf")},
        {"passed", outcome.verification.passed}};
  }
  if (!outcome.unused_weights.empty()) out["unused_weights"] = outcome.unused_weights;
  if (outcome.generated) out["generated"] = generated_json(*outcome.generated);
  if (outcome.served) out["served"] = served_json(*outcome.served);
  nlohmann::ordered_json reports = nlohmann::ordered_json::object();
  for (const auto& [name, values] : outcome.reports) reports[name] = values;
  out["reports"] = reports;
  if (tells_iterations_apart(options)) out["each"] = {{"us", outcome.us}, {"at_us", outcome.at_us}, {"submit_us", outcome.submit_us}, {"reports", outcome.reports_each}};
  out["scheduler"] = {{"tasks_sent", outcome.stats.tasks_sent},
                      {"runs_primed", outcome.stats.runs_primed},
                      {"publications", outcome.stats.publications},
                      {"skipped_tiles", outcome.stats.skipped_tiles},
                      {"busy_us", static_cast<double>(outcome.stats.scheduler_busy_ns) / 1e3}};
  if (options.speculate_mib > 0) {
    out["guesses"] = {{"made", outcome.stats.guesses},           {"right", outcome.stats.guesses_right},
                      {"tasks", outcome.stats.guess_tasks},       {"mib", static_cast<double>(outcome.stats.guess_bytes) / (1 << 20)},
                      {"wrong_mib", static_cast<double>(outcome.stats.guess_bytes_wrong) / (1 << 20)}};
  }
  if (options.arm == "gpu_queue") {
    out["queue"] = {{"atomics", outcome.stats.queue_atomics},
                    {"polls", outcome.stats.queue_polls},
                    {"us", static_cast<double>(outcome.stats.queue_ns) / 1e3}};
  }
  return out.dump() + "\n";
}

std::string to_text(const Options& options, const Outcome& outcome) {
  if (!options.jit_only.empty()) return outcome.program + ": " + code_text(outcome.code);
  std::string out = outcome.generated ? generated_text(*outcome.generated) : outcome.served ? served_text(*outcome.served) : "";
  out +=
      fmt::format("{} on {} ({}, {} workers, {} transport), {}\n", outcome.program, outcome.device.name,
                  outcome.device.kind, outcome.device.workers, outcome.device.transport,
                  decides(options) ? "policy " + options.policy : "arm " + options.arm);
  if (!outcome.device.notice.empty()) out += fmt::format("no GPU is used: {}\n", outcome.device.notice);
  out += code_text(outcome.code);
  if (!outcome.unused_weights.empty()) {
    out += fmt::format("{} tensors of the checkpoint are not used: {}{}\n", outcome.unused_weights.size(), outcome.unused_weights.front(),
                       outcome.unused_weights.size() > 1 ? ", ..." : "");
  }
  if (!outcome.generated && !outcome.served)
    out += fmt::format("{} iteration{} of {} tasks: {}p50 {:.1f} us, p99 {:.1f} us\n", outcome.us.size(),
                     outcome.us.size() == 1 ? "" : "s", outcome.tasks_per_iteration, outcome.device.kind == "sim" ? "predicted " : "", percentile(outcome.us, 50),
                     percentile(outcome.us, 99));
  for (const auto& [name, values] : outcome.reports) {
    const std::size_t shown = std::min<std::size_t>(values.size(), 16);
    out += fmt::format("report {} = {}{}\n", name,
                       fmt::join(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(shown), " "),
                       shown < values.size() ? " ..." : "");
  }
  if (outcome.verified) {
    out += fmt::format("{}: largest relative error {:.3g}, closest to its tolerance is {}\n",
                       outcome.verification.passed ? "verified" : "VERIFICATION FAILED",
                       outcome.verification.max_rel_err, outcome.verification.worst);
  }
  if (!options.trace.empty()) out += fmt::format("timeline: {} (open it at https://ui.perfetto.dev)\n", options.trace);
  return out;
}

}  // namespace ccks::run

#include "scheduler/tools/run_serve.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace ccks::run {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::int64_t kMostPrompt = 1 << 20;

Status bad_entry(const std::string& path, std::size_t index, const std::string& what) {
  return {ErrorCode::invalid_data, fmt::format("{}: request {}: {}", path, index, what)};
}

Result<std::vector<std::int32_t>> read_ids(const Json& list, std::int64_t vocabulary) {
  std::vector<std::int32_t> ids;
  if (!list.is_array()) return Status(ErrorCode::invalid_data, "ids are a list of integers");
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocabulary)
      return Status(ErrorCode::invalid_data, fmt::format("{} is not one of the ids 0 to {}", id.dump(), vocabulary - 1));
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

Result<TimedRequest> read_request(const Json& entry, std::int64_t vocabulary, std::mt19937_64& random) {
  const auto wrong = [](const char* what) { return Status(ErrorCode::invalid_data, what); };
  if (!entry.is_object()) return wrong("not an object");
  for (const auto& [key, value] : entry.items())
    if (key != "arrival_ms" && key != "prompt" && key != "prompt_tokens" && key != "max_tokens" && key != "stop")
      return Status(ErrorCode::invalid_data, fmt::format("unknown key '{}'", key));
  TimedRequest request;
  if (entry.contains("arrival_ms")) {
    if (!entry["arrival_ms"].is_number() || !(entry["arrival_ms"].get<double>() >= 0)) return wrong("'arrival_ms' is a number from 0 on");
    request.arrival_ms = entry["arrival_ms"].get<double>();
  }
  if (!entry.contains("max_tokens") || !entry["max_tokens"].is_number_unsigned() || entry["max_tokens"].get<std::uint64_t>() - 1 >= kMostPrompt)
    return wrong("'max_tokens' is a number from 1 on");
  request.max_tokens = entry["max_tokens"].get<std::uint32_t>();
  if (entry.contains("prompt") == entry.contains("prompt_tokens")) return wrong("one of 'prompt' and 'prompt_tokens' says what it begins with");
  if (entry.contains("prompt")) {
    Result<std::vector<std::int32_t>> ids = read_ids(entry["prompt"], vocabulary);
    if (!ids.ok()) return ids.status();
    request.prompt = std::move(*ids);
  } else {
    const Json& count = entry["prompt_tokens"];
    if (!count.is_number_unsigned() || count.get<std::uint64_t>() - 1 >= kMostPrompt) return wrong("'prompt_tokens' is a number from 1 on");
    for (std::uint64_t i = 0; i < count.get<std::uint64_t>(); ++i)
      request.prompt.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
  }
  if (request.prompt.empty()) return wrong("an empty prompt");
  if (entry.contains("stop")) {
    Result<std::vector<std::int32_t>> ids = read_ids(entry["stop"], vocabulary);
    if (!ids.ok()) return ids.status();
    request.stop = std::move(*ids);
  }
  return request;
}

double ms(Clock::duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

}  // namespace

Result<std::vector<TimedRequest>> read_requests(const std::string& path, std::int64_t vocabulary, std::uint64_t seed) {
  std::ifstream file(path);
  const Json list = Json::parse(file, nullptr, false);
  if (!file || list.is_discarded() || !list.is_array() || list.empty())
    return Status(ErrorCode::invalid_data, fmt::format("{}: not a JSON list of requests", path));
  std::mt19937_64 random(seed);
  std::vector<TimedRequest> requests;
  for (std::size_t i = 0; i < list.size(); ++i) {
    Result<TimedRequest> request = read_request(list[i], vocabulary, random);
    if (!request.ok()) return bad_entry(path, i, request.status().message());
    requests.push_back(std::move(*request));
  }
  return requests;
}

Failure serve_requests(const Options& options, Engine& engine, const std::vector<TimedRequest>& requests, const std::atomic<bool>& interrupted, bool progress,
                       Outcome& outcome) {
  ServeOptions serve;
  serve.ahead = options.ahead;
  serve.rows = options.serve_rows;
  Result<Server> made = Server::create(engine, serve);
  if (!made.ok()) return {kInputAtFault, made.status().message()};
  Served served;
  served.requests.resize(requests.size());
  std::vector<std::size_t> order(requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return requests[a].arrival_ms < requests[b].arrival_ms; });
  std::atomic<std::size_t> ended = 0;
  std::size_t come = 0;
  {
    Server server = std::move(*made);
    if (const Status warmed = server.warm(); !warmed.ok()) return {kDeviceError, warmed.to_string()};
    const Clock::time_point begun = Clock::now();
    for (const std::size_t i : order) {
      const TimedRequest& request = requests[i];
      const auto arrival = begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(request.arrival_ms));
      while (Clock::now() < arrival && !interrupted.load(std::memory_order_relaxed))  // relaxed: a lone flag
        std::this_thread::sleep_until(std::min(arrival, Clock::now() + std::chrono::milliseconds(50)));
      if (interrupted.load(std::memory_order_relaxed)) return {kInterrupted, "interrupted"};  // relaxed: as above
      ServedRequest& own = served.requests[i];
      ServeRequest sent{request.prompt, request.max_tokens, request.stop, {}, {}};
      sent.on_token = [&own, arrival](const ServedToken& token) {
        if (token.index == 0) own.first_ms = ms(Clock::now() - arrival);
        own.tokens.push_back(token.id);
      };
      sent.on_end = [&own, &ended, arrival](const Status& status, StopReason) {
        own.end_ms = ms(Clock::now() - arrival);
        own.status = status;
        ended.fetch_add(1, std::memory_order_relaxed);  // relaxed: for the progress; drain() orders the rest
      };
      if (const Status taken = server.submit(std::move(sent)); !taken.ok())
        return {taken.code() == ErrorCode::out_of_range ? kInputAtFault : kDeviceError, fmt::format("request {}: {}", i, taken.message())};
      ++come;
      // Relaxed: a number to show.
      if (progress) std::fprintf(stderr, "\r%zu of %zu requests have come, %zu are done", come, order.size(), ended.load(std::memory_order_relaxed));
    }
    const Status drained = server.drain();
    served.ms = ms(Clock::now() - begun);
    served.stats = server.stats();
    if (progress) std::fprintf(stderr, "\r%70s\r", "");
    if (!drained.ok()) return {kDeviceError, drained.to_string()};
  }
  outcome.served = std::move(served);
  outcome.stats = engine.stats();
  return {};
}

Status write_served(const std::string& path, const Served& served) {
  Json list = Json::array();
  for (const ServedRequest& r : served.requests) list.push_back({{"tokens", r.tokens}, {"first_ms", r.first_ms}, {"end_ms", r.end_ms}});
  std::ofstream file(path);
  file << list.dump() << "\n";
  return file.flush() ? Status{} : Status(ErrorCode::io_error, fmt::format("{}: cannot be written", path));
}

}  // namespace ccks::run

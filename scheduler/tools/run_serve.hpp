// ccks-run --serve: a list of requests, replayed as they arrive.
#pragma once

#include <atomic>
#include <optional>

#include "ccks/serve.hpp"
#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

struct TimedRequest {
  double arrival_ms = 0;
  std::vector<std::int32_t> prompt;
  std::uint32_t max_tokens = 0;
  std::vector<std::int32_t> stop;
};

/// Reads the list; prompts of which only a length is given are made up by `seed`, of ids below `vocabulary`. invalid_data names the entry.
Result<std::vector<TimedRequest>> read_requests(const std::string& path, std::int64_t vocabulary, std::uint64_t seed);

/// Of one engine, from the first arrival to the last token. Times from a request's arrival, in milliseconds.
Failure serve_requests(const Options& options, Engine& engine, const std::vector<TimedRequest>& requests, const std::atomic<bool>& interrupted, bool progress,
                       Outcome& outcome);

/// What --serve-tokens writes: a list of {tokens, first_ms, end_ms} in the order of the requests.
Status write_served(const std::string& path, const Served& served);

}  // namespace ccks::run

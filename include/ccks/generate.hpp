// generate: one token after the other from a program whose runs take tokens and put out the next one. The workers stay; tokens
// go from run to run on the device; while a run is at work the next has been sent, and the scheduler drops it where the token says
// that it is not wanted (RunRequest::Unless).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ccks/engine.hpp"

namespace ccks {

/// What such a program calls its parts: `length` tokens [length] i32 go in, the first at `position` of the state; `next` [1] i32
/// comes out and is published as report `token`. A program without the symbol `length` takes a token of each of several rows a run,
/// all at `position`: `tokens` and `next` are [rows].
struct GenerateNames {
  std::string tokens = "tokens";
  std::string next = "next";
  std::string token = "token";
  std::string length = "n";
  std::string position = "pos";
};

enum class StopReason : std::uint8_t {
  token,     // one of GenerateRequest::stop came
  length,    // max_tokens are there
  position,  // the state has no room for another
  caller,    // on_token said so
};
const char* stop_reason_name(StopReason reason);

struct GeneratedToken {
  std::int32_t id = 0;                    // of the first row
  std::span<const std::int32_t> ids{};    // of all rows, until on_token returns
  std::uint32_t index = 0;                // among those generated for a row
  std::chrono::nanoseconds since{0};      // since generate() was called
  std::chrono::nanoseconds latency{0};    // from submit to the end of its run
  const Run* run = nullptr;               // done: its outputs can be read, until on_token returns
};

struct GenerateRequest {
  std::span<const std::int32_t> prompt;   // at least one token of each row; of several rows one token of each, then the next
  std::uint32_t max_tokens = 64;          // of a row
  std::span<const std::int32_t> stop;     // ids that end it, once every row has had one; the id itself is part of the result
  std::uint32_t state = 0;
  std::int64_t position = 0;              // of the first token of the prompt: goes on where another call ended
  /// Runs that are sent before it is known whether they are wanted. Those that are not end unobserved: of the state they change
  /// only what lies behind GenerateResult::position. 0: each token comes back to the host before the next run is sent. Needs
  /// ahead + 2 slots, and EngineOptions::chain_states for the device never to wait.
  std::uint32_t ahead = 1;
  std::uint32_t prompt_chunk = 0;         // tokens of the prompt a run takes at most; 0: as many as the program does
  GenerateNames names{};
  std::function<bool(const GeneratedToken&)> on_token{};  // on the caller's thread; false: stop
};

struct GenerateResult {
  std::vector<std::int32_t> tokens;       // of several rows one of each, then the next
  std::uint32_t rows = 1;
  StopReason reason = StopReason::length;
  std::int64_t position = 0;              // of the token that would come next: prompt and tokens but the last are in the state
  std::uint32_t dropped = 0;              // runs sent ahead and not wanted
  std::vector<std::chrono::nanoseconds> times;  // per token, since the one before, or since the call
};

/// generate blocks until the last token is there. invalid_argument: the program does not have those parts, or the request is
/// empty; out_of_range: the prompt does not fit; else what a run ended with.
Result<GenerateResult> generate(Engine& engine, const GenerateRequest& request);

}  // namespace ccks

// ccks-run --generate: tokens, one after the other, from a program that generate() can drive.
#pragma once

#include <functional>

#include "ccks/generate.hpp"
#include "scheduler/tools/run_session.hpp"

namespace ccks::run {

/// Told of each token as it comes; must outlive the session.
using TokenSink = std::function<void(const GeneratedToken&)>;

/// Reads the prompt and holds it against what the program says its tokens are.
Result<std::vector<std::int32_t>> read_prompt(const Options& options, const spec::Program& program);

/// Slots that an engine needs for it.
std::uint32_t generate_slots(const Options& options);

/// Generates on a started engine. `outputs` collects, per name in options.outputs, what each token's run put out.
Failure generate_tokens(const Options& options, Engine& engine, const std::vector<std::int32_t>& prompt,
                        const std::atomic<bool>& interrupted, const TokenSink& sink,
                        std::map<std::string, std::vector<std::byte>>& outputs, Outcome& outcome);

}  // namespace ccks::run

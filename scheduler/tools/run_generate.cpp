#include "scheduler/tools/run_generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace ccks::run {
namespace {

Status at_fault(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

template <class T>
std::vector<std::int64_t> integers(std::span<const std::byte> bytes) {
  std::vector<std::int64_t> out(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = value;
  }
  return out;
}

// The ids that a program's tokens may be, as far as it says so: those it would be seeded with.
std::pair<std::int64_t, std::int64_t> id_range(const spec::Program& program) {
  const auto tokens = program.find_tensor(GenerateNames().tokens);
  if (!tokens || program.tensor(*tokens).init.kind != spec::Init::Kind::integers) return {INT32_MIN, INT32_MAX};
  const spec::Init& init = program.tensor(*tokens).init;
  return {static_cast<std::int64_t>(init.a), static_cast<std::int64_t>(init.b) - 1};
}

/// One token of each row, then the next of each.
std::vector<std::int32_t> by_position(const std::vector<std::int32_t>& ids, std::size_t rows) {
  std::vector<std::int32_t> out(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) out[i % (ids.size() / rows) * rows + i / (ids.size() / rows)] = ids[i];
  return out;
}

/// Room for all that will come, with pages of its own: a vector that grows is copied whole now and then, and a llama's logits took
/// 5 ms at their 17th token and 10 at their 33rd, while the device waited.
void touch_room(std::vector<std::byte>& all, std::size_t bytes) {
  all.resize(bytes);
  all.clear();
}

}  // namespace

Result<std::vector<std::int32_t>> read_prompt(const Options& options, const spec::Program& program) {
  Result<HostTensor> file = read_npy(options.prompt_ids);
  if (!file.ok()) return file.status();
  const bool wide = file->dtype == wire::Dtype::i64;
  const std::size_t rows = file->shape.size() == 2 ? static_cast<std::size_t>(file->shape[0]) : 1;
  if ((!wide && file->dtype != wire::Dtype::i32) || file->shape.empty() || file->shape.size() > 2) {
    return at_fault(fmt::format("{}: a prompt is a row of integers (i32 or i64), or several of one length", options.prompt_ids));
  }
  const std::vector<std::int64_t> ids = wide ? integers<std::int64_t>(file->bytes) : integers<std::int32_t>(file->bytes);
  if (ids.empty()) return at_fault(fmt::format("{}: an empty prompt", options.prompt_ids));
  const auto [lo, hi] = id_range(program);
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < lo || ids[i] > hi) return at_fault(fmt::format("{}: token {} is {}, not one of {} to {}", options.prompt_ids, i, ids[i], lo, hi));
    out.push_back(static_cast<std::int32_t>(ids[i]));
  }
  return rows > 1 ? by_position(out, rows) : out;
}

std::uint32_t generate_slots(const Options& options) { return std::max(options.slots, options.ahead + 2); }

Failure generate_tokens(const Options& options, Engine& engine, const std::vector<std::int32_t>& prompt,
                        const std::atomic<bool>& interrupted, const TokenSink& sink,
                        std::map<std::string, std::vector<std::byte>>& outputs, Outcome& outcome) {
  Status collected;
  GenerateRequest request;
  request.prompt = prompt;
  request.max_tokens = options.generate;
  request.stop = options.eos;
  request.ahead = options.ahead;
  request.prompt_chunk = options.prompt_chunk;
  request.on_token = [&](const GeneratedToken& token) {
    outcome.us.push_back(static_cast<double>(token.latency.count()) / 1e3);
    for (const auto& [name, path] : options.outputs) {
      const Result<std::uint64_t> size = token.run->tensor_bytes(name);
      if (!size.ok()) return collected = size.status(), false;
      std::vector<std::byte>& all = outputs[name];
      if (token.index == 0) touch_room(all, *size * options.generate);
      all.resize(all.size() + *size);
      collected = token.run->read_output(name, std::span(all).last(*size));
      if (!collected.ok()) return false;
    }
    if (sink) sink(token);
    return !interrupted.load(std::memory_order_relaxed);  // relaxed: a lone flag
  };
  Result<GenerateResult> generated = generate(engine, request);
  if (!generated.ok() || !collected.ok()) {
    const Status& status = generated.ok() ? collected : generated.status();
    const bool input = status.code() == ErrorCode::invalid_argument || status.code() == ErrorCode::out_of_range;
    return {input ? kInputAtFault : kDeviceError, status.to_string()};
  }
  if (interrupted.load(std::memory_order_relaxed)) return {kInterrupted, "interrupted"};  // relaxed: as above
  outcome.generated = std::move(*generated);
  outcome.stats = engine.stats();
  return {};
}

}  // namespace ccks::run

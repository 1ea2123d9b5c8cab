// Server: many requests at a time through one program whose runs are steps of several sequences (spec/examples/llama_serve.yaml). Requests come and go between
// two steps, while the workers stay; the next step is sent before the tokens of the one before are known.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ccks/engine.hpp"
#include "ccks/generate.hpp"

namespace ccks {

/// What such a program calls its parts; how many positions a page has its attention says. A run has `rows` rows, of which it finds the next token of `taken`. Inputs, all i32: `token`, `seat`, `position` [rows],
/// `pages` [rows, pages of a sequence], `take`, `keep` [taken]; report `found` [taken] i32; state `last` [seats]; state `pool` [pages * page, ..] is
/// one that pages are of, `layers.0.k_pool` say.
struct ServeNames {
  std::string rows = "n", taken = "m";
  std::string token = "token", seat = "seat", position = "position", pages = "pages", take = "take", keep = "keep";
  std::string found = "token", last = "last", pool = "layers.0.k_pool";
};

struct ServeOptions {
  std::uint32_t ahead = 1;   // steps that are sent before the tokens of the one before are known
  std::uint32_t rows = 0;    // of a step at most; 0: as many as the program takes
  ServeNames names{};
};

struct ServedToken {
  std::int32_t id = 0;
  std::uint32_t index = 0;  // among those of the request
};

struct ServeRequest {
  std::vector<std::int32_t> prompt;  // at least one
  std::uint32_t max_tokens = 64;
  std::vector<std::int32_t> stop;    // ids that end it; the id itself is one of its tokens
  /// On the server's thread, and short. on_end is called once: ok and the reason, or why there are no more tokens.
  std::function<void(const ServedToken&)> on_token{};
  std::function<void(const Status&, StopReason)> on_end{};
};

struct ServeStats {
  std::uint64_t steps = 0;
  std::uint64_t rows = 0;         // of sequences, of all steps
  std::uint64_t padded_rows = 0;  // that steps had beside them
  std::uint64_t tokens = 0;
  std::uint64_t dropped = 0;      // found behind the end of their sequence
  std::uint32_t most_running = 0;
};

/// Continuous batching: sequences that go on have a row each, prompts as many as are left of a step. Requests are admitted in order, each with a seat and pages for all
/// that it may come to, so that none is ever put out. Thread-safe. One thread of its own, which sleeps when there is nothing to do.
class Server {
 public:
  /// Slots that the engine should have: for every size of a step as many as are under way.
  static std::uint32_t slots_for(std::uint32_t rows, std::uint32_t ahead);
  /// `engine` is started, has no other runs of its state 0, and outlives the server. EngineOptions::chain_states lets the device go from step to step.
  /// invalid_argument: the program does not have those parts.
  static Result<Server> create(Engine& engine, const ServeOptions& options);
  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  /// Ends what is left with `cancelled`.
  ~Server();

  /// Runs a step of every size, so that none of them is made while somebody waits. Before the first request.
  Status warm();
  /// out_of_range: it has more positions than a sequence may have. After a step has failed: what it failed with.
  Status submit(ServeRequest request);
  /// Waits until no request is left.
  Status drain();
  ServeStats stats() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccks

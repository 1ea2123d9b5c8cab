// Batcher: which rows the next step of a server has. Knows nothing of engines: whoever runs steps tells it what they found.
//
// A sequence has a seat and pages of its own from its admission to the end of the last step that names it. Pages are reserved for all positions
// that it may come to, so that nobody is ever put out. Tokens stay on the device: a row that goes on where its sequence stands says -1, and the device
// takes what it found last for the seat. So a step can be composed before the tokens of the one before are known.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ccks/result.hpp"

namespace ccks::scheduler {

/// What a program has room for.
struct BatchLimits {
  std::uint32_t seats = 0;
  std::uint32_t pool = 0;       // pages of all sequences
  std::uint32_t page = 0;       // positions of a page
  std::uint32_t seat_pages = 0; // pages of a sequence
  std::uint32_t rows = 0;       // of a step
};

/// One request on its way.
struct Sequence {
  std::uint64_t id = 0;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> stop;
  std::uint32_t max_tokens = 0;

  // Batcher's
  std::uint32_t fed = 0;    // tokens of the prompt that steps have
  std::uint32_t asked = 0;  // tokens that steps will find
  std::uint32_t found = 0;
  std::uint32_t steps = 0;  // under way that name it
  std::int32_t seat = -1;
  bool ended = false;
  std::vector<std::int32_t> pages;
};

/// Inputs of a run, and whose they are.
struct Step {
  std::uint32_t rows = 0, taken = 0;  // the program's n and m: powers of two, or all there is room for
  std::uint32_t used_rows = 0;
  std::vector<std::int32_t> token, seat, position, pages, take, keep;
  std::vector<std::shared_ptr<Sequence>> finds;  // whose token take[i] is; those behind are nobody's
  std::vector<std::shared_ptr<Sequence>> names;  // all that have rows
};

class Batcher {
 public:
  explicit Batcher(const BatchLimits& limits);

  /// out_of_range: no step and no pool will ever have room for it.
  Status check(const Sequence& sequence) const;
  /// Behind those that wait. Only what check() has let through.
  void add(std::shared_ptr<Sequence> sequence);
  /// Rows of those that go on first, in the order of admission, then as much of prompts as there is room for. False: nobody wants any now.
  bool compose(Step& step);
  /// What the oldest step under way has found, in the order of `take`. told(sequence, token, ended) for each token that is wanted. A token of `stop` ends its
  /// sequence; what later steps find for it is dropped.
  void complete(const Step& step, std::span<const std::int32_t> tokens, const std::function<void(Sequence&, std::int32_t, bool)>& told);
  /// Takes everyone out, in no order; steps under way must not be completed any more.
  std::vector<std::shared_ptr<Sequence>> clear();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::size_t free_pages() const { return pages_.size(); }
  std::size_t free_seats() const { return seats_.size(); }
  std::size_t running() const { return running_.size(); }

 private:
  void admit();
  void add_row(Step& step, const Sequence& s, std::int32_t token, std::uint32_t position);
  void ask(Step& step, const std::shared_ptr<Sequence>& s);
  void feed_prompt(Step& step, const std::shared_ptr<Sequence>& s);
  void pad(Step& step) const;
  std::uint32_t pages_of(const Sequence& s) const;
  void let_go(Sequence& s);

  BatchLimits limits_;
  std::vector<std::int32_t> seats_, pages_;  // free
  std::deque<std::shared_ptr<Sequence>> waiting_;
  std::vector<std::shared_ptr<Sequence>> running_;  // in the order of admission; with those that have ended and are still named
};

/// Sizes that steps have: 1, 2, 4, ... and `most`.
std::uint32_t step_size(std::uint32_t rows, std::uint32_t most);

}  // namespace ccks::scheduler

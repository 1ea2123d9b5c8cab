#include "scheduler/batcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace ccks::scheduler {

std::uint32_t step_size(std::uint32_t rows, std::uint32_t most) { return std::min(std::bit_ceil(std::max(rows, 1u)), most); }

Batcher::Batcher(const BatchLimits& limits) : limits_(limits) {
  for (std::uint32_t i = limits.seats; i-- > 0;) seats_.push_back(static_cast<std::int32_t>(i));
  for (std::uint32_t i = limits.pool; i-- > 0;) pages_.push_back(static_cast<std::int32_t>(i));
}

// The last token is found and not fed.
std::uint32_t Batcher::pages_of(const Sequence& s) const {
  const std::uint64_t positions = s.prompt.size() + s.max_tokens - 1;
  return static_cast<std::uint32_t>((positions + limits_.page - 1) / limits_.page);
}

Status Batcher::check(const Sequence& s) const {
  if (s.prompt.empty() || s.max_tokens == 0) return {ErrorCode::invalid_argument, "nothing to generate, or nothing to begin with"};
  const std::uint64_t positions = s.prompt.size() + std::uint64_t{s.max_tokens} - 1;
  const std::uint64_t room = std::uint64_t{std::min(limits_.pool, limits_.seat_pages)} * limits_.page;
  if (positions > room) {
    return {ErrorCode::out_of_range, fmt::format("a prompt of {} tokens and {} more take {} positions; a sequence has room for {}", s.prompt.size(),
                                                 s.max_tokens, positions, room)};
  }
  return {};
}

void Batcher::add(std::shared_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

// In order: one that finds no pages keeps those behind it waiting, so that long ones are not starved.
void Batcher::admit() {
  while (!waiting_.empty() && !seats_.empty() && pages_of(*waiting_.front()) <= pages_.size()) {
    std::shared_ptr<Sequence> s = std::move(waiting_.front());
    waiting_.pop_front();
    s->seat = seats_.back();
    seats_.pop_back();
    const std::uint32_t wanted = pages_of(*s);
    s->pages.assign(pages_.end() - wanted, pages_.end());
    pages_.resize(pages_.size() - wanted);
    running_.push_back(std::move(s));
  }
}

void Batcher::add_row(Step& step, const Sequence& s, std::int32_t token, std::uint32_t position) {
  step.token.push_back(token);
  step.seat.push_back(s.seat);
  step.position.push_back(static_cast<std::int32_t>(position));
  step.pages.insert(step.pages.end(), s.pages.begin(), s.pages.end());
  step.pages.resize(step.token.size() * limits_.seat_pages, -1);
}

void Batcher::ask(Step& step, const std::shared_ptr<Sequence>& s) {
  step.take.push_back(static_cast<std::int32_t>(step.token.size()) - 1);
  step.keep.push_back(s->seat);
  step.finds.push_back(s);
  ++s->asked;
}

void Batcher::feed_prompt(Step& step, const std::shared_ptr<Sequence>& s) {
  const auto all = static_cast<std::uint32_t>(s->prompt.size());
  const std::uint32_t count = std::min(all - s->fed, limits_.rows - static_cast<std::uint32_t>(step.token.size()));
  if (count == 0) return;
  for (std::uint32_t i = 0; i < count; ++i, ++s->fed) add_row(step, *s, s->prompt[s->fed], s->fed);
  if (s->fed == all) ask(step, s);
  step.names.push_back(s);
}

bool Batcher::compose(Step& step) {
  admit();
  step = {};
  for (const auto& s : running_) {
    if (s->ended || s->asked == 0 || s->asked == s->max_tokens || step.token.size() == limits_.rows) continue;
    add_row(step, *s, -1, static_cast<std::uint32_t>(s->prompt.size()) + s->asked - 1);
    ask(step, s);
    step.names.push_back(s);
  }
  for (const auto& s : running_)
    if (!s->ended && s->asked == 0) feed_prompt(step, s);
  if (step.token.empty()) return false;
  for (const auto& s : step.names) ++s->steps;
  pad(step);
  return true;
}

void Batcher::pad(Step& step) const {
  step.used_rows = static_cast<std::uint32_t>(step.token.size());
  step.rows = step_size(step.used_rows, limits_.rows);
  step.taken = std::min(step.rows, limits_.seats);  // of as few sizes as may be: frames are kept for each
  step.token.resize(step.rows, 0);
  step.seat.resize(step.rows, -1);
  step.position.resize(step.rows, -1);
  step.pages.resize(std::size_t{step.rows} * limits_.seat_pages, -1);
  step.take.resize(step.taken, -1);
  step.keep.resize(step.taken, -1);
}

void Batcher::complete(const Step& step, std::span<const std::int32_t> tokens, const std::function<void(Sequence&, std::int32_t, bool)>& told) {
  for (std::size_t i = 0; i < step.finds.size(); ++i) {
    Sequence& s = *step.finds[i];
    if (s.ended) continue;
    ++s.found;
    s.ended = s.found == s.max_tokens || std::find(s.stop.begin(), s.stop.end(), tokens[i]) != s.stop.end();
    told(s, tokens[i], s.ended);
  }
  for (const auto& s : step.names) --s->steps;
  std::erase_if(running_, [&](const auto& s) {
    if (!s->ended || s->steps != 0) return false;
    let_go(*s);
    return true;
  });
}

void Batcher::let_go(Sequence& s) {
  seats_.push_back(s.seat);
  pages_.insert(pages_.end(), s.pages.begin(), s.pages.end());
  s.pages.clear();
}

std::vector<std::shared_ptr<Sequence>> Batcher::clear() {
  std::vector<std::shared_ptr<Sequence>> all(waiting_.begin(), waiting_.end());
  waiting_.clear();
  for (const auto& s : running_) {
    let_go(*s);
    if (!s->ended) all.push_back(s);
  }
  running_.clear();
  return all;
}

}  // namespace ccks::scheduler

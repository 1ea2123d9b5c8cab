// Order between whole ops: what waits for all of another op, or on guarded ops, prove at once. For check_order.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codegen/check_events.hpp"

namespace ccks::codegen::check {

/// A square bit matrix; row j holds the i of pairs (i, j).
class Pairs {
 public:
  explicit Pairs(std::size_t n) : words_((n + 63) / 64), bits_(n * words_) {}
  bool get(std::size_t i, std::size_t j) const { return bits_[j * words_ + i / 64] >> (i % 64) & 1; }
  void set(std::size_t i, std::size_t j) { bits_[j * words_ + i / 64] |= std::uint64_t{1} << (i % 64); }
  void add_row(std::size_t to, const Pairs& other, std::size_t from) {
    for (std::size_t w = 0; w < words_; ++w) bits_[to * words_ + w] |= other.bits_[from * words_ + w];
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// Conditions that each op runs under, and the ops whose reports it tests.
class Guards {
 public:
  explicit Guards(const Model& m);
  /// Number of the set of conditions that `op` runs under.
  std::size_t context(std::size_t op) const { return context_[op]; }
  /// The same with these conditions and their parents added; kNone adds nothing.
  std::size_t context_with(std::size_t op, std::uint32_t first, std::uint32_t second);
  std::size_t contexts() const { return sets_.size(); }
  /// Where `op` runs and the conditions of `context` hold, `other` runs too.
  bool runs_with(std::size_t other, std::size_t op, std::size_t context) const;
  std::span<const std::uint32_t> reports(std::size_t op) const { return reports_[op]; }

 private:
  std::size_t number_of(std::vector<std::uint32_t> set);
  void add_chain(std::uint32_t condition, std::vector<std::uint32_t>& set) const;

  const spec::Program& program_;
  std::vector<std::vector<std::uint32_t>> sets_;  // by context, ascending; with each condition its parents
  std::vector<std::vector<bool>> holds_;          // by context and condition: the same
  std::vector<std::uint32_t> condition_;          // by op
  std::vector<std::size_t> context_;              // by op
  std::vector<bool> counted_;                     // by op: tiles may not be there
  std::vector<std::vector<std::uint32_t>> reports_;
};

/// Pairs (i, j) of ops, for i that run under the conditions of one context:
///   before   every tile of i is done before any tile of j starts
///   touches  every tile of i is done before some tile of j starts
struct Reach {
  Reach(const Model& m, const Guards& g, std::size_t of_context);
  Pairs before, touches;
  const Guards& guards;  // must outlive this
  std::size_t context;

 private:
  void add(const Model& m, std::size_t op, const WaitNow& w);
  void add_guarded(std::size_t op, std::size_t producer, bool whole, bool always, bool all);
};

}  // namespace ccks::codegen::check

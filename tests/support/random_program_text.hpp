// Inside of random_program: dice, values, and the text as it grows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random_program.hpp"

namespace ccks::test {

/// splitmix64: the same numbers on every platform, which the distributions of <random> do not promise.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}

  std::uint64_t below(std::uint64_t end) { return next() % end; }
  bool chance(int percent) { return below(100) < static_cast<std::uint64_t>(percent); }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(from.size())];
  }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

/// An extent: as the spec writes it, and its value.
struct Extent {
  std::string text;
  std::int64_t value = 0;
  bool constant = true;
};
inline Extent fixed(std::int64_t value) { return {std::to_string(value), value, true}; }

/// An operand: a tensor's name or a view of one.
struct Value {
  std::string text;
  std::vector<Extent> shape;
  std::string dtype = "f32";
  bool exact = false;  // the device holds exactly the interpreter's elements: inputs, copies, integers
  bool whole = true;   // a tensor, not a window of one: may be reshaped
  std::string source;  // the name in `text`

  std::size_t rank() const { return shape.size(); }
  bool is_float() const { return dtype == "f32" || dtype == "f16" || dtype == "bf16"; }
  const Extent& last() const { return shape.back(); }
};

bool same_shape(const Value& a, const Value& b);
std::string quoted(const std::string& text);               // for YAML
std::string shape_list(const std::vector<Extent>& shape);  // "[n, 16]"
inline constexpr std::int64_t kMaxElements = 10'000;
std::int64_t element_count(const std::vector<Extent>& shape);

/// Draft is the program so far: declarations, ops, and the pool of values that later ops may read.
class Draft {
 public:
  explicit Draft(std::uint64_t seed) : dice(seed) {}

  Dice dice;
  std::string default_dtype = "f32";
  std::vector<Extent> symbols;  // text is the symbol
  std::vector<Value> pool;

  void add_symbol(const std::string& name, std::int64_t low, std::int64_t high, std::int64_t value);
  /// A dim of at most `most` rows, of which `count` says how many there are.
  Extent counted_dim(const Extent& most, const Value& count);
  Value declare(const std::string& kind, std::vector<Extent> shape, const std::string& dtype,
                const std::string& init = "");
  Value input(std::vector<Extent> shape, const std::string& dtype, const std::string& init = "");
  Value weight(std::vector<Extent> shape, const std::string& dtype, const std::string& init = "");
  std::string fresh_name(const std::string& stem) { return stem + std::to_string(++names_); }

  /// Writes `- {op: kind, fields..., out: name}` and puts the result into the pool.
  Value op(const std::string& kind, const std::string& fields, std::vector<Extent> shape, const std::string& dtype,
           bool exact = false);
  /// One entry under `ops`, without the dash.
  void entry(const std::string& text) { ops_.push_back(text); }
  void add(Value v) { pool.push_back(std::move(v)); }
  /// Marks the tensor behind `v` as read and gives its text.
  const std::string& use(const Value& v);
  void will_be_read(const std::string& name) { unread_.push_back(name); }

  /// A float of this rank from the pool, seen through a random view, or a new input.
  Value any_float(std::size_t rank);
  /// The same, but exact and f32.
  Value any_exact(std::size_t rank);
  /// A float of exactly this shape: from the pool or new.
  Value float_like(const Value& v);
  /// Some window, stride, transpose or broadcast of `v`, of the same rank.
  Value viewed(const Value& v);
  std::string any_dtype();
  std::vector<Extent> any_shape(std::size_t rank);

  /// Copies what nobody has read to outputs and gives the text.
  RandomProgram finish(std::uint64_t seed);

 private:
  void read_leftovers();

  std::vector<std::string> dims_, tensors_, ops_, unread_;
  std::vector<std::pair<std::string, std::int64_t>> set_;
  int names_ = 0;
};

/// Adds one random op or small group of ops.
void add_random_ops(Draft& d);
/// Adds ops on rows that one of them counts. Behind all others, which would look into the results.
void add_counted(Draft& d);

}  // namespace ccks::test

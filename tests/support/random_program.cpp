#include "tests/support/random_program.hpp"

#include <algorithm>

#include "tests/support/random_program_text.hpp"

namespace ccks::test {

bool same_shape(const Value& a, const Value& b) {
  return std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(), b.shape.end(),
                    [](const Extent& x, const Extent& y) { return x.text == y.text; });
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string shape_list(const std::vector<Extent>& shape) {
  std::string text = "[";
  for (const Extent& extent : shape) text += (text.size() > 1 ? ", " : "") + quoted(extent.text);
  return text + "]";
}

std::int64_t element_count(const std::vector<Extent>& shape) {
  std::int64_t count = 1;
  for (const Extent& extent : shape) count *= extent.value;
  return count;
}

void Draft::add_symbol(const std::string& name, std::int64_t low, std::int64_t high, std::int64_t value) {
  const std::string preset = dice.chance(30) ? ", default: " + std::to_string(low) : "";
  dims_.push_back(name + ": {range: [" + std::to_string(low) + ", " + std::to_string(high) + "]" + preset + "}");
  set_.emplace_back(name, value);
  symbols.push_back({name, value, false});
}

Extent Draft::counted_dim(const Extent& most, const Value& count) {
  const std::string name = fresh_name("r");
  dims_.push_back(name + ": {counted: " + count.text + ", max: " + most.text + "}");
  return {name, most.value, false};
}

Value Draft::declare(const std::string& kind, std::vector<Extent> shape, const std::string& dtype,
                     const std::string& init) {
  Value v;
  v.text = v.source = fresh_name(kind.substr(0, 1));
  v.shape = std::move(shape);
  v.dtype = dtype;
  v.exact = kind == "input" || kind == "weight";
  tensors_.push_back(v.text + ": {shape: " + shape_list(v.shape) + ", dtype: " + dtype + ", kind: " + kind +
                     (init.empty() ? "" : ", init: " + init) + "}");
  return v;
}

Value Draft::input(std::vector<Extent> shape, const std::string& dtype, const std::string& init) {
  Value v = declare("input", std::move(shape), dtype, init);
  will_be_read(v.source);
  add(v);
  return v;
}

Value Draft::weight(std::vector<Extent> shape, const std::string& dtype, const std::string& init) {
  const bool varies = std::any_of(shape.begin(), shape.end(), [](const Extent& e) { return !e.constant; });
  return declare(varies ? "input" : "weight", std::move(shape), dtype, init);
}

Value Draft::op(const std::string& kind, const std::string& fields, std::vector<Extent> shape, const std::string& dtype,
                bool exact) {
  Value v;
  v.text = v.source = fresh_name("v");
  v.shape = std::move(shape);
  v.dtype = dtype;
  v.exact = exact;
  entry("{op: " + kind + ", " + fields + ", out: " + v.text + "}");
  will_be_read(v.source);
  add(v);
  return v;
}

const std::string& Draft::use(const Value& v) {
  std::erase(unread_, v.source);
  return v.text;
}

std::string Draft::any_dtype() {
  return dice.chance(70) ? default_dtype : dice.pick<std::string>({"f32", "f16", "bf16"});
}

std::vector<Extent> Draft::any_shape(std::size_t rank) {
  std::vector<Extent> shape{fixed(static_cast<std::int64_t>(dice.pick<int>({16, 24, 32, 64})))};
  if (rank > 1)
    shape.insert(shape.begin(),
                 dice.chance(75) ? dice.pick(symbols) : fixed(static_cast<std::int64_t>(1 + dice.below(20))));
  while (shape.size() < rank) shape.insert(shape.begin(), fixed(static_cast<std::int64_t>(1 + dice.below(4))));
  return shape;
}

Value Draft::any_float(std::size_t rank) {
  std::vector<Value> fitting;
  for (const Value& v : pool)
    if (v.is_float() && v.rank() == rank) fitting.push_back(v);
  // Late values more often, so that programs grow deep and not only wide.
  const bool make = fitting.empty() || dice.chance(15);
  if (make) return input(any_shape(rank), any_dtype());
  return viewed(dice.chance(50) ? fitting.back() : dice.pick(fitting));
}

Value Draft::any_exact(std::size_t rank) {
  for (const Value& v : pool)
    if (v.exact && v.dtype == "f32" && v.rank() == rank && v.last().value >= 8 && dice.chance(50)) return v;
  return input(any_shape(rank), "f32");
}

Value Draft::float_like(const Value& v) {
  std::vector<Value> fitting;
  for (const Value& other : pool)
    if (other.is_float() && same_shape(other, v) && other.text != v.text) fitting.push_back(other);
  if (fitting.empty() || dice.chance(20)) return input(v.shape, any_dtype());
  return dice.pick(fitting);
}

namespace {

// One index of a window on a dim: what is written between the brackets, and what is left.
struct Window {
  std::string index;
  Extent extent;
};

Window any_window(Dice& dice, const Extent& e) {
  const auto kind = dice.below(4);
  if (e.constant && e.value >= 16 && kind == 0) {
    const std::int64_t low = static_cast<std::int64_t>(dice.below(5)),
                       width =
                           8 * static_cast<std::int64_t>(1 + dice.below(static_cast<std::uint64_t>(e.value - 8) / 8));
    if (low + width <= e.value) return {std::to_string(low) + ":" + std::to_string(low + width), fixed(width)};
  }
  // Symbols begin at 2 at least, so that one row can always be left out.
  if (!e.constant && e.text.find(' ') == std::string::npos && kind == 1)
    return {"1:" + e.text, {e.text + " - 1", e.value - 1, false}};
  if (e.constant && e.value >= 16 && e.value % 16 == 0 && kind == 2) return {"::2", fixed(e.value / 2)};
  return {":", e};
}

}  // namespace

Value Draft::viewed(const Value& v) {
  if (v.rank() == 0 || dice.chance(60)) return v;
  Value out = v;
  out.whole = false;
  if (v.rank() == 2 && v.shape[0].constant && v.shape[0].value % 8 == 0 && dice.chance(40)) {
    out.text += ".T";
    std::swap(out.shape[0], out.shape[1]);
    return out;
  }
  std::string indices;
  for (Extent& e : out.shape) {
    const Window window = any_window(dice, e);
    indices += (indices.empty() ? "" : ", ") + window.index;
    e = window.extent;
  }
  out.text += "[" + indices + "]";
  return out;
}

void Draft::read_leftovers() {
  const std::vector<Value> values = pool;
  for (const Value& v : values) {
    if (v.text != v.source || std::find(unread_.begin(), unread_.end(), v.source) == unread_.end()) continue;
    const Value y = declare("output", v.shape, v.dtype);
    // Most are copied as they are; floats now and then change on the way.
    const std::string expr = v.is_float() && dice.chance(30) ? "0.5 * " + use(v) : use(v);
    entry("{op: map, expr: " + quoted(expr) + ", out: " + y.text + "}");
  }
}

RandomProgram Draft::finish(std::uint64_t seed) {
  read_leftovers();
  std::string text = "ccks: 1\nprogram: random_" + std::to_string(seed) + "\ndims:\n";
  for (const std::string& line : dims_) text += "  " + line + "\n";
  text += "tensors:\n";
  for (const std::string& line : tensors_) text += "  " + line + "\n";
  text += "ops:\n";
  for (const std::string& line : ops_) text += "  - " + line + "\n";
  return {std::move(text), set_};
}

RandomProgram random_program(std::uint64_t seed) {
  Draft draft(seed);
  Dice& dice = draft.dice;
  draft.default_dtype = dice.pick<std::string>({"f32", "f32", "f16", "bf16"});
  draft.add_symbol("n", 2, 24, 2 + static_cast<std::int64_t>(dice.below(23)));
  if (dice.chance(50)) draft.add_symbol("m", 3, 40, 3 + static_cast<std::int64_t>(dice.below(38)));
  draft.input(draft.any_shape(2), draft.default_dtype);
  const auto groups = 2 + dice.below(7);
  for (std::uint64_t i = 0; i < groups; ++i) add_random_ops(draft);
  if (dice.chance(30)) add_counted(draft);
  return draft.finish(seed);
}

}  // namespace ccks::test

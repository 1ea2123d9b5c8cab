// What every op has in common while it is read: its keys, its operands, and where its result goes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "spec/element_text.hpp"
#include "spec/operand.hpp"

namespace ccks::spec {

/// Reads one op of the text. Whatever goes wrong is said once and leaves failed() true; an op function then returns,
/// and the names it would have made are poisoned.
class OpReader {
 public:
  OpReader(Builder& builder, const Yaml& node, std::string kind) : b(builder), node_(node), kind_(std::move(kind)) {}

  Builder& b;

  bool failed() const { return failed_; }
  void fail() { failed_ = true; }
  void error(Code code, const Span& where, std::string message, std::string hint = {});
  const Span& where() const { return node_.span; }
  /// Place of `key`'s value, or of the op where it is missing.
  Span where(std::string_view key) const;
  const std::string& kind() const { return kind_; }
  std::string label() const;  // "matmul 'u'", for messages

  const Yaml* find(std::string_view key) const { return node_.find(key); }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  /// The value of a key that must be there; null after a complaint.
  const Yaml* require(std::string_view key);

  View operand(std::string_view key);
  View operand_in(const Yaml& node);
  double number(std::string_view key, double fallback);
  bool flag(std::string_view key, bool fallback);
  std::int64_t integer(std::string_view key, std::int64_t lo, std::int64_t hi);
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t lo, std::int64_t hi);
  /// Index of the word in `words`.
  std::size_t choice(std::string_view key, const std::vector<std::string>& words, std::size_t fallback);
  std::string word(std::string_view key);
  /// `dtype:` of the op, or `fallback`.
  Dtype dtype(Dtype fallback);
  /// One or two numbers as {vertical, horizontal}.
  std::array<std::uint32_t, 2> pair(std::string_view key, std::uint32_t fallback, std::uint32_t lo);

  bool expect_rank(const View& v, std::string_view key, std::size_t lo, std::size_t hi);
  bool expect_float(const View& v, std::string_view key);
  bool expect_same_dtype(const View& a, const View& b, std::string_view key);
  void equal(const Expr& a, const Expr& b, const std::string& what, std::string_view key);
  void less_equal(const Expr& a, const Expr& b, const std::string& what, std::string_view key);

  /// Reads the expression under `key`. Names are, in this order: those in `with`, `acc` (argument 0) where `has_acc`,
  /// tensors in scope, constant dims. Each tensor used is appended to `operands`.
  ElementExpr element(std::string_view key, bool has_acc, std::size_t rank, std::vector<View>& operands);
  /// An epilogue, where there is one: its operands, broadcast to `shape`, are appended to `inputs`.
  ElementExpr epilogue(const Shape& shape, std::vector<View>& inputs);

  /// The one result: opens `out`, emits.
  void finish(OpAttrs attrs, std::vector<View> inputs, const Shape& shape, Dtype dtype,
              DtypeRule rule = DtypeRule::same_category);
  /// The same for ops with several results or none.
  std::optional<OutTarget> out_target();
  std::optional<View> open(const OutTarget& target, const Shape& shape, Dtype dtype, DtypeRule rule);
  bool emit(OpAttrs attrs, std::vector<View> inputs, std::vector<View> outputs, const std::string& out_name);
  /// Binds `out` to a view; no op is emitted.
  void bind_view(const View& v);
  /// Poisons what `out` names.
  void poison_outputs();

 private:
  std::optional<ElementName> resolve(const std::string& name, const Span& where, bool has_acc,
                                     std::vector<View>& operands, bool& said);

  const Yaml& node_;
  std::string kind_;
  bool failed_ = false;
};

}  // namespace ccks::spec

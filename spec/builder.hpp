// Turns the YAML tree into a Program. Builder holds what all sections share; the sections themselves are functions:
// sections.hpp (dims, tensors, include, repeat, if), operand.hpp (operands, views), ops*.cpp (one function for each
// op).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "spec/counted.hpp"
#include "spec/dim_text.hpp"
#include "spec/scope.hpp"
#include "spec/yaml.hpp"

namespace ccks::spec {

using Shape = std::vector<Expr>;

/// How strictly the dtype of an op's result binds the tensor it is written to.
enum class DtypeRule : std::uint8_t {
  same_category,  // any float for floats, any int for ints: converted on the store
  exact,
};

class Builder : public DimNames {
 public:
  Builder(ParseResult& result_in, const ParseOptions& options_in)
      : result(result_in), program(result_in.program), diagnostics(result_in.diagnostics), options(options_in) {}

  // DimNames.
  std::optional<Expr> find_dim(std::string_view name) const override;
  std::vector<std::string> dim_names() const override;
  std::span<const Symbol> symbols() const override { return program.symbols; }

  // Scalars. Each complains itself, and gives nothing where it did.
  /// The text of a scalar with every `{expression}` of repeat indices and constants replaced by its value.
  std::optional<Text> text(const Yaml& node);
  std::optional<Expr> dim(const Yaml& node);
  /// A dim expression that must come out constant and lie in [lo, hi].
  std::optional<std::int64_t> constant(const Yaml& node, std::int64_t lo, std::int64_t hi);
  std::optional<double> number(const Yaml& node);
  std::optional<Shape> shape(const Yaml& node);
  std::optional<Dtype> dtype(const Yaml& node);
  /// Complains where a tensor of this shape may have more elements than anything can hold.
  bool check_elements(const Shape& shape, const Span& where);
  bool check_name(const Text& name);
  /// Complains about keys of `mapping` that are not in `known`.
  void check_keys(const Yaml& mapping, const std::vector<std::string>& known, std::string_view where);
  bool expect(const Yaml& node, Yaml::Kind kind, std::string_view what);

  // Relations (R2): refuted is an error, unproved becomes a check at dispatch.
  bool require_equal(const Expr& a, const Expr& b, Code code, const Span& where, const std::string& message);
  bool require_less_equal(const Expr& a, const Expr& b, Code code, const Span& where, const std::string& message);
  Truth equal(const Expr& a, const Expr& b) const { return prove_equal(a, b, program.symbols); }
  std::string print(const Expr& e) const { return e.to_string(program.symbols); }
  std::string print(const Shape& s) const;
  std::string print_shape(const View& v) const;

  // Tensors.
  TensorId add_tensor(Tensor tensor);
  /// `name`, or `name@1`, `name@2`, ... where it is taken.
  std::string unique_tensor_name(const std::string& name);
  bool tensor_name_taken(const std::string& name) const { return tensor_names_.count(name) != 0; }
  View whole_view(TensorId id) const;
  TensorId root_of(TensorId id) const;
  Dtype dtype_of(const View& v) const { return program.tensors[v.tensor].dtype; }
  void mark_read(TensorId id) { read_.insert(root_of(id)); }
  void mark_written(TensorId id, bool always);
  bool is_written(TensorId id) const { return written_.count(root_of(id)) != 0; }
  bool is_always_written(TensorId id) const { return always_written_.count(root_of(id)) != 0; }
  bool is_read(TensorId id) const { return read_.count(root_of(id)) != 0; }

  // Ops.
  /// Adds `op` under a unique name made of `wanted`; refuses ops that read what they overwrite, or rows that do not count (`masks`: it leaves those out).
  bool emit(Op op, const std::string& wanted, const Span& where, bool masks = false);
  /// False, with one complaint, once the program grows past what options allow.
  bool count_work(const Span& where);
  /// Counts effort (characters parsed, nodes of proofs) and memory, which a small text with `repeat` can multiply.
  /// False, with one complaint, once it is more than any real program needs.
  bool spend(std::size_t effort, std::size_t bytes, const Span& where);
  bool exhausted() const { return exhausted_; }

  ParseResult& result;
  Program& program;
  Diagnostics diagnostics;
  const ParseOptions& options;
  Scopes scopes;
  NameMap<Expr> dims;
  NameMap<Span> dim_places;
  std::vector<CountedSymbol> counted;  // as in Program::counted
  Dtype default_dtype = Dtype::f32;
  std::set<std::string, std::less<>> later_names;  // every `out` of the text, to tell "too early" from "unknown"
  std::map<std::string, std::unique_ptr<Yaml>>
      included;  // parsed once each, by path; nodes live as long as the Builder
  std::vector<std::string> include_stack;

 private:
  void add_check(RuntimeCheck check, const Span& where);
  bool check_in_place(const Op& op, const Span& where);

  std::set<std::string, std::less<>> tensor_names_;
  std::set<std::string, std::less<>> op_names_;
  std::unordered_map<std::string, std::uint32_t> next_suffix_;
  std::unordered_multimap<std::size_t, std::size_t> checks_by_hash_;
  std::set<TensorId> read_, written_, always_written_;
  std::size_t work_ = 0;
  std::size_t effort_ = 0;
  std::size_t bytes_ = 0;
  bool exhausted_ = false;
};

Shape shape_of(const View& v);

}  // namespace ccks::spec

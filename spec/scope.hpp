// What names mean where: tensors, views, routes, reports and repeat indices, in nested scopes.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "spec/diagnostics.hpp"

namespace ccks::spec {

/// A name and the view of a tensor it stands for.
struct Binding {
  View view;
  bool declared = false;  // from `tensors`: written in place; everything else is bound anew by each `out`
  bool poisoned = false;  // its definition was at fault: uses say nothing more
  Span defined;
};

/// What `route` leaves for expert_matmul and combine.
struct RouteInfo {
  std::uint32_t k = 0;
  Expr tokens, experts;
  View weight, source, row, count;
  bool poisoned = false;
};

template <class T>
using NameMap = std::map<std::string, T, std::less<>>;

struct Scope {
  enum class Kind : std::uint8_t { root, repeat, condition };

  Kind kind = Kind::root;
  std::string prefix;               // of tensor and op names made here, e.g. "layers.3."
  std::uint32_t condition = kNone;  // innermost guard
  NameMap<Binding> names;
  NameMap<std::int64_t> indices;
  NameMap<std::uint32_t> reports;
  NameMap<RouteInfo> routes;
};

/// Innermost scope last.
class Scopes {
 public:
  Scopes() { stack_.push_back(std::make_unique<Scope>()); }

  Scope& root() { return *stack_.front(); }
  Scope& top() { return *stack_.back(); }
  const Scope& top() const { return *stack_.back(); }
  std::size_t depth() const { return stack_.size(); }
  void push(Scope::Kind kind);
  void pop() { stack_.pop_back(); }

  Binding* find(std::string_view name);
  std::optional<std::int64_t> find_index(std::string_view name) const;
  std::optional<std::uint32_t> find_report(std::string_view name) const;
  RouteInfo* find_route(std::string_view name);
  /// Where an `out: name` binds: the scope that holds the name, so that repeat blocks carry values on, but never past
  /// the innermost `if` around here. A new name belongs to the innermost scope, or to the outermost one up to that `if`
  /// where it is `global`.
  Scope& scope_to_bind(std::string_view name, bool global);

  std::vector<std::string> tensor_names() const;
  std::vector<std::string> report_names() const;
  std::vector<std::string> route_names() const;
  std::vector<std::string> index_names() const;

 private:
  std::vector<std::unique_ptr<Scope>> stack_;
};

}  // namespace ccks::spec

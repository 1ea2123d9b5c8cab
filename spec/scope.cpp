#include "spec/scope.hpp"

namespace ccks::spec {
namespace {

template <class T>
void append_keys(const NameMap<T>& map, std::vector<std::string>& out) {
  for (const auto& [name, value] : map) out.push_back(name);
}

}  // namespace

void Scopes::push(Scope::Kind kind) {
  auto scope = std::make_unique<Scope>();
  scope->kind = kind;
  scope->prefix = top().prefix;
  scope->condition = top().condition;
  stack_.push_back(std::move(scope));
}

Binding* Scopes::find(std::string_view name) {
  for (std::size_t i = stack_.size(); i-- > 0;)
    if (auto it = stack_[i]->names.find(name); it != stack_[i]->names.end()) return &it->second;
  return nullptr;
}

std::optional<std::int64_t> Scopes::find_index(std::string_view name) const {
  for (std::size_t i = stack_.size(); i-- > 0;)
    if (auto it = stack_[i]->indices.find(name); it != stack_[i]->indices.end()) return it->second;
  return std::nullopt;
}

std::optional<std::uint32_t> Scopes::find_report(std::string_view name) const {
  for (std::size_t i = stack_.size(); i-- > 0;)
    if (auto it = stack_[i]->reports.find(name); it != stack_[i]->reports.end()) return it->second;
  return std::nullopt;
}

RouteInfo* Scopes::find_route(std::string_view name) {
  for (std::size_t i = stack_.size(); i-- > 0;)
    if (auto it = stack_[i]->routes.find(name); it != stack_[i]->routes.end()) return &it->second;
  return nullptr;
}

Scope& Scopes::scope_to_bind(std::string_view name, bool global) {
  if (!global && !find(name)) return top();
  for (std::size_t i = stack_.size(); i-- > 0;) {
    Scope& scope = *stack_[i];
    if (scope.kind == Scope::Kind::condition || scope.names.find(name) != scope.names.end()) return scope;
  }
  return root();
}

std::vector<std::string> Scopes::tensor_names() const {
  std::vector<std::string> names;
  for (const auto& scope : stack_) append_keys(scope->names, names);
  return names;
}

std::vector<std::string> Scopes::report_names() const {
  std::vector<std::string> names;
  for (const auto& scope : stack_) append_keys(scope->reports, names);
  return names;
}

std::vector<std::string> Scopes::route_names() const {
  std::vector<std::string> names;
  for (const auto& scope : stack_) append_keys(scope->routes, names);
  return names;
}

std::vector<std::string> Scopes::index_names() const {
  std::vector<std::string> names;
  for (const auto& scope : stack_) append_keys(scope->indices, names);
  return names;
}

}  // namespace ccks::spec

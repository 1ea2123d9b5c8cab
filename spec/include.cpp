// include, and the file itself.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "spec/file_text.hpp"
#include "spec/sections.hpp"

namespace ccks::spec {
namespace {

constexpr std::size_t kMaxIncludeDepth = 16;
constexpr std::size_t kMaxIncludedFiles = 64;

bool is_safe_path(const std::string& path) {
  if (path.empty() || path.size() > 256 || path[0] == '/' || path[0] == '.') return false;
  const bool plain =
      std::all_of(path.begin(), path.end(), [](char c) { return is_name_part(c) || c == '.' || c == '-' || c == '/'; });
  return plain && path.find("..") == std::string::npos && path.find("//") == std::string::npos && path.back() != '/';
}

/// The parsed file, from the cache if it was included before; null after a complaint.
const Yaml* load(Builder& b, const std::string& path, const Span& where) {
  const auto known = b.included.find(path);
  if (known != b.included.end()) return known->second.get();
  if (b.included.size() >= kMaxIncludedFiles) {
    b.diagnostics.error(code::kBadInclude, where, "too many files are included", "at most 64");
    return nullptr;
  }
  auto& slot = b.included[path];
  const std::string full = (std::filesystem::path(b.result.files[0]).parent_path() / path).string();
  std::size_t used = 0;
  for (const std::string& source : b.result.sources) used += source.size();
  std::string why;
  auto text = read_text_file(full, b.options.max_bytes - std::min(used, b.options.max_bytes), why);
  if (!text) {
    b.diagnostics.error(code::kBadInclude, where, fmt::format("cannot include '{}': {}", path, why),
                        "files are looked for beside the spec");
    return nullptr;
  }
  const auto file = static_cast<std::uint32_t>(b.result.files.size());
  b.result.files.push_back(full);
  b.result.sources.push_back(std::move(*text));
  auto tree = read_yaml(b.result.sources.back(), file, b.diagnostics);
  if (!tree) return nullptr;
  slot = std::make_unique<Yaml>(std::move(*tree));
  collect_later_names(*slot, b.later_names);
  return slot.get();
}

void include_one(Builder& b, const Yaml& node) {
  const auto path = b.text(node);
  if (!path) return;
  if (!is_safe_path(path->text))
    return b.diagnostics.error(code::kBadInclude, node.span, in_quotes(path->text) + " is not a file beside the spec",
                               "a relative path without '..'");
  const auto& stack = b.include_stack;
  const std::string self = std::filesystem::path(b.result.files[0]).filename().string();
  if (path->text == self || std::find(stack.begin(), stack.end(), path->text) != stack.end())
    return b.diagnostics.error(code::kIncludeCycle, node.span, fmt::format("'{}' includes itself", path->text));
  if (stack.size() >= kMaxIncludeDepth)
    return b.diagnostics.error(code::kBadInclude, node.span, "includes nested too deeply");
  const Yaml* root = load(b, path->text, node.span);
  if (!root || !b.expect(*root, Yaml::Kind::mapping, "an included file")) return;
  b.include_stack.push_back(path->text);
  b.check_keys(*root, {"ccks", "include", "dims", "tensors", "ops"}, "an included file");
  if (const Yaml* more = root->find("include")) read_include(b, *more);
  if (const Yaml* dims = root->find("dims")) read_dims(b, *dims);
  if (const Yaml* tensors = root->find("tensors")) read_tensors(b, *tensors);
  if (const Yaml* ops = root->find("ops")) read_ops(b, *ops);
  b.include_stack.pop_back();
}

}  // namespace

void read_include(Builder& b, const Yaml& node) {
  if (!b.count_work(node.span)) return;
  if (!node.is_sequence()) return include_one(b, node);
  for (const Yaml& child : node.children) include_one(b, child);
}

void collect_later_names(const Yaml& node, std::set<std::string, std::less<>>& names) {
  for (std::size_t i = 0; i < node.children.size(); ++i) {
    const Yaml& child = node.children[i];
    const bool is_out = node.is_mapping() && i % 2 == 1 && node.children[i - 1].text == "out";
    if (is_out && child.is_scalar()) names.insert(child.text);
    for (std::size_t k = 0; is_out && k < child.children.size(); k += child.is_mapping() ? 2 : 1)
      if (child.children[k].is_scalar()) names.insert(child.children[k].text);
    collect_later_names(child, names);
  }
}

namespace {

void read_head(Builder& b, const Yaml& root) {
  const Yaml* version = root.find("ccks");
  if (!version || !version->is_scalar() || version->text != "1")
    b.diagnostics.error(code::kVersion, version ? version->span : root.span, "a spec says 'ccks: 1'",
                        "1 is the only version of the language");
  const Yaml* name = root.find("program");
  if (!name) {
    b.diagnostics.error(code::kMissingKey, root.span, "a spec needs 'program: name'");
  } else if (const auto text = b.text(*name); text && b.check_name(*text)) {
    b.program.name = text->text;
  }
  if (const Yaml* dtype = root.find("dtype"))
    if (const auto d = b.dtype(*dtype)) b.default_dtype = *d;
}

void check_overrides(Builder& b, const Yaml& root) {
  const Yaml* dims = root.find("dims");
  for (const auto& [name, value] : b.options.constants) {
    if (b.dims.count(name)) continue;
    std::vector<std::string> names;
    for (const auto& [known, e] : b.dims) names.push_back(known);
    b.diagnostics.error(code::kUnknownOverride, dims ? dims->span : root.span,
                        fmt::format("no dim {} to set to {}", in_quotes(name), value), did_you_mean(name, names));
  }
}

}  // namespace

void read_program(Builder& b, const Yaml& root) {
  if (!b.expect(root, Yaml::Kind::mapping, "a spec")) return;
  b.check_keys(root, {"ccks", "program", "dtype", "dims", "tensors", "ops", "include"}, "a spec");
  collect_later_names(root, b.later_names);
  read_head(b, root);
  const Yaml* included = root.find("include");
  if (included) read_include(b, *included);
  if (const Yaml* dims = root.find("dims")) read_dims(b, *dims);
  check_overrides(b, root);
  if (const Yaml* tensors = root.find("tensors")) read_tensors(b, *tensors);
  if (const Yaml* ops = root.find("ops"))
    read_ops(b, *ops);
  else if (!included)
    b.diagnostics.error(code::kMissingKey, root.span, "a spec needs 'ops'");
}

void check_program(Builder& b) {
  for (TensorId id = 0; id < b.program.tensors.size(); ++id) {
    const Tensor& t = b.program.tensors[id];
    if (t.alias_of != kNone) continue;
    const Span where{t.location, 1};
    if (t.kind == TensorKind::output) {
      if (b.is_always_written(id)) continue;
      b.diagnostics.error(
          code::kNeverWritten, where,
          fmt::format("output '{}' is written {}", t.name, b.is_written(id) ? "only under a condition" : "by no op"),
          b.is_written(id) ? "join both sides with 'out' of the if" : "write it, or take it out");
    } else if (!b.is_read(id) && !(t.kind == TensorKind::state && b.is_written(id))) {
      b.diagnostics.warning(code::kNeverRead, where, fmt::format("nothing reads '{}'", t.name),
                            "take it out, or use it");
    }
  }
}

}  // namespace ccks::spec

// yaml-cpp's events to a Yaml tree. Everything that a spec may not use (anchors, aliases, tags, several documents, keys
// that are not plain words) is refused here, so that nobody further in has to think of it.
#include "spec/yaml.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <set>
#include <sstream>

#include "spec/text_check.hpp"

namespace ccks::spec {

const Yaml* Yaml::find(std::string_view key) const {
  for (std::size_t i = 0; i + 1 < children.size(); i += 2)
    if (children[i].text == key) return &children[i + 1];
  return nullptr;
}

const char* Yaml::kind_name() const {
  switch (kind) {
    case Kind::null:
      return "nothing";
    case Kind::scalar:
      return "a single value";
    case Kind::sequence:
      return "a list";
    case Kind::mapping:
      return "a mapping";
  }
  return "?";
}

namespace {

/// Thrown from an event to leave yaml-cpp early; the complaint is already made.
struct Stop {};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, std::uint32_t file, Diagnostics& diagnostics)
      : text_(text), file_(file), diagnostics_(diagnostics) {}

  std::optional<Yaml> take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ < 2) return;
    diagnostics_.error(code::kSecondDocument, span(mark), "a spec is one YAML document",
                       "put each program in a file of its own");
    throw Stop{};
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add_leaf(mark, "?", anchor, {}, Yaml::Kind::null);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse_alias(mark);
    add_leaf(mark, "?", 0, {}, Yaml::Kind::null);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add_leaf(mark, tag, anchor, value, Yaml::Kind::scalar);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Yaml::Kind::sequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Yaml::Kind::mapping);
  }
  void OnMapEnd() override {
    check_keys(stack_.back());
    close();
  }

 private:
  Span span(const YAML::Mark& mark, std::size_t length = 1) const {
    Span s;
    s.location = {file_, mark.line < 0 ? 1u : mark.line + 1u, mark.column < 0 ? 1u : mark.column + 1u};
    s.length = static_cast<std::uint32_t>(std::max<std::size_t>(1, length));
    return s;
  }

  char char_at(const YAML::Mark& mark) const {
    const auto pos = static_cast<std::size_t>(mark.pos);
    return mark.pos >= 0 && pos < text_.size() ? text_[pos] : '\0';
  }

  void refuse_alias(const YAML::Mark& mark) {
    diagnostics_.error(code::kAlias, span(mark), "anchors and aliases are not part of the language",
                       "write the value out");
  }

  void check_decoration(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) refuse_alias(mark);
    // yaml-cpp says "?" or nothing for plain nodes and "!" for quoted ones.
    if (char_at(mark) == '!' || (tag.size() > 1 && tag != "?"))
      diagnostics_.error(code::kTag, span(mark), "tags are not part of the language", "leave the '!...' out");
  }

  void count(const YAML::Mark& mark) {
    if (++nodes_ <= kMaxYamlNodes && stack_.size() <= kMaxYamlDepth && !diagnostics_.full()) return;
    diagnostics_.error(code::kTooLarge, span(mark),
                       stack_.size() > kMaxYamlDepth ? "nested too deeply" : "too many values in one file",
                       stack_.size() > kMaxYamlDepth ? "at most 48 levels are read" : "use 'repeat' for what recurs");
    throw Stop{};
  }

  void add_leaf(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& value,
                Yaml::Kind kind) {
    count(mark);
    check_decoration(mark, tag, anchor);
    Yaml node;
    node.kind = kind;
    const char first = char_at(mark);
    node.quoted = kind == Yaml::Kind::scalar && (first == '"' || first == '\'' || first == '|' || first == '>');
    node.span = span(mark, value.size());
    node.text = value;
    locate_content(mark, node);
    place(std::move(node));
  }

  /// Moves the span past an opening quote, and notes whether the value stands in the file character by character.
  void locate_content(const YAML::Mark& mark, Yaml& node) const {
    if (node.kind != Yaml::Kind::scalar) return;
    auto pos = static_cast<std::size_t>(mark.pos);
    if (node.quoted) ++pos;
    node.exact = mark.pos >= 0 && pos <= text_.size() && text_.compare(pos, node.text.size(), node.text) == 0 &&
                 node.text.find('\n') == std::string::npos;
    if (node.quoted && node.exact) ++node.span.location.column;
    if (!node.exact) node.span.length = 1;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Yaml::Kind kind) {
    count(mark);
    check_decoration(mark, tag, anchor);
    Yaml node;
    node.kind = kind;
    node.span = span(mark);
    stack_.push_back(std::move(node));
  }

  void close() {
    Yaml node = std::move(stack_.back());
    stack_.pop_back();
    place(std::move(node));
  }

  void place(Yaml node) {
    if (stack_.empty())
      root_ = std::move(node);
    else
      stack_.back().children.push_back(std::move(node));
  }

  void check_keys(const Yaml& mapping) {
    std::set<std::string_view> seen;
    for (std::size_t i = 0; i + 1 < mapping.children.size(); i += 2) {
      const Yaml& key = mapping.children[i];
      if (!key.is_scalar())
        diagnostics_.error(code::kWrongNode, key.span, "a key is a single word, not " + std::string(key.kind_name()));
      else if (!seen.insert(key.text).second)
        diagnostics_.error(code::kDuplicateKey, key.span, "key " + in_quotes(key.text) + " stands twice in one mapping",
                           "keep one of them");
    }
  }

  const std::string& text_;
  std::uint32_t file_;
  Diagnostics& diagnostics_;
  std::vector<Yaml> stack_;
  std::optional<Yaml> root_;
  std::size_t nodes_ = 0;
  int documents_ = 0;
};

}  // namespace

std::optional<Yaml> read_yaml(const std::string& text, std::uint32_t file, Diagnostics& diagnostics) {
  if (!check_text(text, file, diagnostics)) return std::nullopt;
  TreeBuilder builder(text, file, diagnostics);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
    return std::nullopt;
  } catch (const YAML::Exception& e) {
    const SourceLocation at{file, e.mark.line < 0 ? 1u : e.mark.line + 1u, e.mark.column < 0 ? 1u : e.mark.column + 1u};
    if (e.msg.rfind(YAML::ErrorMsg::UNKNOWN_ANCHOR, 0) == 0) {
      diagnostics.error(code::kAlias, {at, 1}, "anchors and aliases are not part of the language",
                        "write the value out");
      return std::nullopt;
    }
    diagnostics.error(code::kYamlSyntax, {at, 1}, "not valid YAML: " + e.msg,
                      "quote text that holds ': ', '#', '[' or '{'");
    return std::nullopt;
  }
  auto root = builder.take();
  if (!root)
    diagnostics.error(code::kYamlSyntax, {{file, 1, 1}, 1}, "the file is empty", "a spec begins with 'ccks: 1'");
  return root;
}

}  // namespace ccks::spec

// How scalars, names, shapes and keys are read, whatever section they stand in.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "spec/ragged.hpp"

namespace ccks::spec {
namespace {

constexpr std::size_t kMaxScalarBytes = 4096;  // of a name or an expression; code of a custom op is read elsewhere
constexpr std::size_t kMaxNameBytes = 128;
// Extents of 2^40 and tensors of 2^46 elements: past any memory, and far from where products overflow.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 46;

bool is_name(std::string_view s) {
  if (s.empty() || s.size() > kMaxNameBytes || !is_name_start(s[0]) || s.back() == '.') return false;
  for (std::size_t i = 0; i < s.size(); ++i)
    if (!is_name_part(s[i]) && !(s[i] == '.' && s[i + 1] != '.')) return false;
  return true;
}

/// Words that mean something else where a tensor's name may stand.
bool has_reserved_part(std::string_view s) {
  static constexpr std::string_view kWhole[] = {"acc", "index", "and", "or", "not", "true", "false"};
  static constexpr std::string_view kParts[] = {"T", "transpose", "reshape", "broadcast"};
  if (std::find(std::begin(kWhole), std::end(kWhole), s) != std::end(kWhole)) return true;
  while (!s.empty()) {
    const std::string_view part = s.substr(0, s.find('.'));
    if (std::find(std::begin(kParts), std::end(kParts), part) != std::end(kParts)) return true;
    s.remove_prefix(std::min(s.size(), part.size() + 1));
  }
  return false;
}

}  // namespace

bool Builder::expect(const Yaml& node, Yaml::Kind kind, std::string_view what) {
  if (node.kind == kind) return true;
  Yaml wanted;
  wanted.kind = kind;
  diagnostics.error(code::kWrongNode, node.span,
                    fmt::format("{} is {}, not {}", what, wanted.kind_name(), node.kind_name()));
  return false;
}

std::optional<Text> Builder::text(const Yaml& node) {
  if (!expect(node, Yaml::Kind::scalar, "this value")) return std::nullopt;
  if (node.text.size() > kMaxScalarBytes) {
    diagnostics.error(code::kTooLarge, node.span, "this text is too long", "at most 4096 characters");
    return std::nullopt;
  }
  // Long sums are normalised term by term: the cost of an expression grows with the square of its length.
  if (!spend(node.text.size() + node.text.size() * node.text.size() / 256, 0, node.span)) return std::nullopt;
  Text plain = node.as_text();
  if (node.text.find_first_of("{}") == std::string::npos) return plain;
  Text out{"", node.span, false, true};
  std::size_t i = 0;
  while (i < node.text.size()) {
    const char c = node.text[i++];
    if (c == '}') {
      diagnostics.error(code::kBadSubstitution, plain.at(i - 1), "'}' without '{'");
      return std::nullopt;
    }
    if (c != '{') {
      out.text += c;
      continue;
    }
    DimParser parser(plain, i, *this, diagnostics);
    const auto value = parser.expression();
    if (!value) return std::nullopt;
    if (!value->is_constant() || !parser.accept('}')) {
      diagnostics.error(code::kBadSubstitution, plain.at(i - 1, parser.position() - i + 1),
                        "'{...}' holds one expression of repeat indices and constant dims");
      return std::nullopt;
    }
    out.text += std::to_string(value->constant_value());
    i = parser.position();
  }
  return out;
}

std::optional<Expr> Builder::dim(const Yaml& node) {
  const auto t = text(node);
  return t ? parse_dim(*t, *this, diagnostics) : std::nullopt;
}

std::optional<std::int64_t> Builder::constant(const Yaml& node, std::int64_t lo, std::int64_t hi) {
  const auto e = dim(node);
  if (!e) return std::nullopt;
  const auto value = e->as_constant();
  if (!value) {
    diagnostics.error(code::kNotConstant, node.span, fmt::format("{} is not constant", print(*e)),
                      "only dims that are known when the program is generated may stand here");
    return std::nullopt;
  }
  if (*value < lo || *value > hi) {
    diagnostics.error(code::kBadAttribute, node.span, fmt::format("{} lies outside [{}, {}]", *value, lo, hi));
    return std::nullopt;
  }
  return value;
}

std::optional<double> Builder::number(const Yaml& node) {
  const auto t = text(node);
  if (!t) return std::nullopt;
  double value = 0;
  const char* end = t->text.data() + t->text.size();
  const auto [rest, error] = std::from_chars(t->text.data(), end, value);
  if (!t->text.empty() && rest == end && error == std::errc() && std::isfinite(value)) return value;
  diagnostics.error(code::kWrongValue, node.span, fmt::format("{} is not a number", in_quotes(t->text)));
  return std::nullopt;
}

std::optional<Shape> Builder::shape(const Yaml& node) {
  if (!expect(node, Yaml::Kind::sequence, "a shape")) return std::nullopt;
  if (node.children.size() > kMaxRank) {
    diagnostics.error(code::kWrongRank, node.span,
                      fmt::format("{} dims; tensors have at most {}", node.children.size(), kMaxRank));
    return std::nullopt;
  }
  Shape s;
  bool ok = true;
  for (const Yaml& child : node.children) {
    const auto e = dim(child);
    if (!e || !require_less_equal(Expr(1), *e, code::kBadShape, child.span, "an extent must be at least 1") ||
        !require_less_equal(*e, Expr(kMaxExtent), code::kBadShape, child.span, "an extent is too large")) {
      ok = false;
      continue;
    }
    s.push_back(*e);
  }
  if (!ok) return std::nullopt;
  if (!check_elements(s, node.span)) return std::nullopt;
  return s;
}

bool Builder::check_elements(const Shape& shape, const Span& where) {
  __int128 elements = 1;
  for (const Expr& e : shape) elements = std::min<__int128>(elements * e.bounds(program.symbols).hi, __int128{1} << 62);
  if (elements <= kMaxElements) return true;
  diagnostics.error(code::kBadShape, where, "this tensor may have more than 2^46 elements",
                    "narrow the ranges of its dims");
  return false;
}

std::optional<Dtype> Builder::dtype(const Yaml& node) {
  const auto t = text(node);
  if (!t) return std::nullopt;
  std::vector<std::string> names;
  for (Dtype d : {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64, Dtype::boolean}) {
    if (t->text == wire::dtype_name(d)) return d;
    names.push_back(wire::dtype_name(d));
  }
  std::string hint = did_you_mean(t->text, names);
  diagnostics.error(code::kUnknownDtype, node.span, "unknown dtype " + in_quotes(t->text),
                    hint.empty() ? "one of f32, f16, bf16, i32, i64, bool" : hint);
  return std::nullopt;
}

bool Builder::check_name(const Text& name) {
  if (!is_name(name.text)) {
    diagnostics.error(code::kBadName, name.span, in_quotes(name.text) + " is not a name",
                      "letters, digits, '_' and inner '.', beginning with a letter or '_', at most 128 characters");
    return false;
  }
  const RaggedDim* ragged = name.text.find('.') == std::string::npos ? nullptr : ragged_of(program, name.text);
  if (ragged != nullptr) {
    const std::string& dim = program.symbols[ragged->rows].name;
    diagnostics.error(code::kBadName, name.span, fmt::format("names that begin with '{}.' belong to the ragged dim", dim),
                      fmt::format("it has {}.reach, {}.spans and {}.position", dim, dim, dim));
    return false;
  }
  if (!has_reserved_part(name.text)) return true;
  diagnostics.error(code::kBadName, name.span, in_quotes(name.text) + " is a word of the language",
                    "choose another name");
  return false;
}

void Builder::check_keys(const Yaml& mapping, const std::vector<std::string>& known, std::string_view where) {
  for (std::size_t i = 0; i + 1 < mapping.children.size(); i += 2) {
    const Yaml& key = mapping.children[i];
    if (!key.is_scalar() || std::find(known.begin(), known.end(), key.text) != known.end()) continue;
    diagnostics.error(code::kUnknownKey, key.span, fmt::format("unknown key {} in {}", in_quotes(key.text), where),
                      did_you_mean(key.text, known));
  }
}

}  // namespace ccks::spec

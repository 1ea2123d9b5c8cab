#include "spec/diagnostics.hpp"

#include <algorithm>

namespace ccks::spec {

Span Text::at(std::size_t offset, std::size_t length) const {
  if (!exact) return span;
  Span s = span;
  s.location.column += static_cast<std::uint32_t>(std::min(offset, text.size()));
  s.length = static_cast<std::uint32_t>(
      std::max<std::size_t>(1, std::min(length, text.size() - std::min(offset, text.size()))));
  return s;
}

void Diagnostics::error(Code code, const Span& where, std::string message, std::string hint) {
  ++errors_;
  add(Severity::error, code, where, std::move(message), std::move(hint));
}

void Diagnostics::warning(Code code, const Span& where, std::string message, std::string hint) {
  add(Severity::warning, code, where, std::move(message), std::move(hint));
}

void Diagnostics::add(Severity severity, Code code, const Span& where, std::string message, std::string hint) {
  if (full_) return;
  const SourceLocation& l = where.location;
  if (!seen_.emplace(l.file, l.line, l.column, code.text).second) return;
  if (out_.size() + 1 >= kMaxDiagnostics) {
    full_ = true;
    out_.push_back({Severity::error, code::kTooManyErrors.text, l, where.length,
                    "too many complaints; the rest is left out", "mend the first ones and check again"});
    ++errors_;
    return;
  }
  out_.push_back({severity, code.text, l, where.length, std::move(message), std::move(hint)});
}

namespace {

/// Levenshtein distance, where a swap of neighbours counts once; stops mattering past `limit`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if (a.size() > b.size() + limit || b.size() > a.size() + limit) return limit + 1;
  std::vector<std::size_t> two_back(b.size() + 1), back(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) back[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({back[j] + 1, row[j - 1] + 1, back[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
    two_back.swap(back);
    back.swap(row);
  }
  return back[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongestName = 64;  // beyond, a distance costs more than a hint is worth
  constexpr std::size_t kMostCandidates = 2000;
  if (name.empty() || name.size() > kLongestName) return {};
  const std::size_t limit = name.size() <= 2 ? 1 : name.size() <= 5 ? 2 : 3;
  std::size_t best = limit + 1;
  const std::string* nearest = nullptr;
  for (std::size_t i = 0; i < std::min(candidates.size(), kMostCandidates); ++i) {
    const std::size_t d = edit_distance(name, candidates[i], limit);
    if (d < best && d < std::max(name.size(), candidates[i].size())) {
      best = d;
      nearest = &candidates[i];
    }
  }
  return nearest ? "did you mean '" + *nearest + "'?" : std::string();
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (char c : text.substr(0, kLongest)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  if (text.size() > kLongest) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xc0) == 0x80) out.pop_back();
    out += "...";
  }
  return out + "'";
}

}  // namespace ccks::spec

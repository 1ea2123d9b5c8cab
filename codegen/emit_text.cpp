#include "codegen/emit_text.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

namespace ccks::codegen {

std::string cpp_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\' || c == '?' || byte < 0x20 || byte > 0x7e)
      out += fmt::format("\\{:03o}", byte);
    else
      out += c;
  }
  return out + "\"";
}

std::string comment_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("._-[]").find(c) != std::string_view::npos;
    out += plain ? c : '?';
  }
  return out;
}

std::string identifier(std::string_view text) {
  std::string out;
  for (const char c : text) out += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  if (out.empty() || std::isdigit(static_cast<unsigned char>(out[0])) != 0) out.insert(0, "p");
  return out;
}

std::string int_literal(std::int64_t value) {
  if (value == INT64_MIN) return "(-9223372036854775807LL - 1)";
  return value >= -0x7fffffff && value <= 0x7fffffff ? fmt::format("{}", value) : fmt::format("{}LL", value);
}

namespace {

std::string decimal(std::string digits) {
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

std::string special(double value, const char* type) {
  if (std::isnan(value)) return fmt::format("std::numeric_limits<{}>::quiet_NaN()", type);
  return fmt::format("{}std::numeric_limits<{}>::infinity()", value < 0 ? "-" : "", type);
}

}  // namespace

std::string float_literal(float value) {
  return std::isfinite(value) ? decimal(fmt::format("{:.9g}", value)) + "f" : special(value, "float");
}

std::string double_literal(double value) {
  return std::isfinite(value) ? decimal(fmt::format("{:.17g}", value)) : special(value, "double");
}

std::string content_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

Result<std::string> fill_template(std::string_view text, const std::map<std::string, std::string>& values) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t open = text.find('@', at);
    out += text.substr(at, open - at);
    if (open == std::string_view::npos) break;
    const std::size_t close = text.find('@', open + 1);
    const std::string name(close == std::string_view::npos ? std::string_view()
                                                           : text.substr(open + 1, close - open - 1));
    const auto value = values.find(name);
    if (value == values.end())
      return Status(ErrorCode::internal, fmt::format("a template asks for '{}', which nobody gives", name));
    out += value->second;
    at = close + 1;
  }
  return out;
}

}  // namespace ccks::codegen

#include "scheduler/tools/run_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

namespace ccks::run {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kMostBytes = 4u << 20;  // a config is a page of text

Status at_fault(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

Result<json> read_json(const std::string& path) {
  std::error_code error;
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return {ErrorCode::not_found, fmt::format("{}: cannot be read", path)};
  if (bytes > kMostBytes) return {ErrorCode::invalid_data, fmt::format("{}: {} bytes are no config", path, bytes)};
  json out = json::parse(file, nullptr, false);
  if (!out.is_object()) return {ErrorCode::invalid_data, fmt::format("{}: not a JSON object", path)};
  return out;
}

// "a.b": member b of object a. null counts as absent.
const json* find(const json& config, const std::string& key) {
  const json* at = &config;
  for (std::size_t first = 0; first <= key.size();) {
    const std::size_t dot = std::min(key.find('.', first), key.size());
    const auto member = at->is_object() ? at->find(key.substr(first, dot - first)) : at->end();
    if (!at->is_object() || member == at->end() || member->is_null()) return nullptr;
    at = &*member;
    first = dot + 1;
  }
  return at;
}

Result<std::int64_t> integer(const spec::ConfigDim& dim, const std::string& key, const json& value, const std::string& path) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<std::int64_t>(number);
  }
  if (value.is_string()) {
    std::vector<std::string> known;
    for (const auto& [text, number] : dim.values) {
      if (text == value.get<std::string>()) return number;
      known.push_back(text);
    }
    return at_fault(fmt::format("{}: '{}' is '{}'; the program knows {}", path, key, value.get<std::string>(),
                                known.empty() ? "numbers only" : fmt::format("{}", fmt::join(known, ", "))));
  }
  return at_fault(fmt::format("{}: '{}' is {}, and dim '{}' is an integer", path, key, value.dump().substr(0, 60), dim.name));
}

}  // namespace

std::string config_path(const Options& options) {
  if (!options.config.empty() || options.weights.empty()) return options.config;
  const std::filesystem::path weights(options.weights.front());
  std::error_code error;
  const bool folder = std::filesystem::is_directory(weights, error);
  const std::filesystem::path beside = (folder ? weights : weights.parent_path()) / "config.json";
  return std::filesystem::is_regular_file(beside, error) ? beside.string() : std::string();
}

Result<Constants> config_constants(const spec::Program& program, const std::string& path, const Constants& given) {
  Result<json> config = read_json(path);
  if (!config.ok()) return config.status();
  Constants out;
  for (const spec::ConfigDim& dim : program.config_dims) {
    const auto set = [&](const auto& constant) { return constant.first == dim.name; };
    if (std::any_of(given.begin(), given.end(), set)) continue;
    const json* value = nullptr;
    std::string key;
    for (std::size_t i = 0; i < dim.from.size() && value == nullptr; ++i) value = find(*config, key = dim.from[i]);
    if (value == nullptr) {
      if (dim.absent) out.emplace_back(dim.name, *dim.absent);
      continue;
    }
    Result<std::int64_t> number = integer(dim, key, *value, path);
    if (!number.ok()) return number.status();
    out.emplace_back(dim.name, *number);
  }
  return out;
}

}  // namespace ccks::run

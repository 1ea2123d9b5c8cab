#include "gpu/sim/link_model.hpp"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace ccks::gpu::sim {
namespace {

struct Field {
  const char* name;
  std::uint64_t LinkModel::* member;
};

constexpr Field kFields[] = {
    {"host_ns", &LinkModel::host_ns},
    {"host_miss_ns", &LinkModel::host_miss_ns},
    {"read_ns", &LinkModel::read_ns},
    {"crowd_ns", &LinkModel::crowd_ns},
    {"write_ns", &LinkModel::write_ns},
    {"issue_ns", &LinkModel::issue_ns},
    {"release_ns", &LinkModel::release_ns},
    {"link_release_ns", &LinkModel::link_release_ns},
    {"event_read_ns", &LinkModel::event_read_ns},
    {"event_write_ns", &LinkModel::event_write_ns},
    {"reorder_ns", &LinkModel::reorder_ns},
    {"stale_ns", &LinkModel::stale_ns},
};

constexpr std::uint64_t kLongestNs = 1'000'000'000;

// No Grace-class machine has been measured by us: its link is taken to be a third of PCIe's both ways, its GPU the same.
LinkModel coherent_model() {
  LinkModel model;
  model.name = "c2c";
  model.read_ns = 320;
  model.crowd_ns = 200;
  model.write_ns = 200;
  model.host_miss_ns = 160;
  model.link_release_ns = 320;
  return model;
}

Status bad(const std::string& what) {
  std::string fields;
  for (const Field& field : kFields) fields += fmt::format("{}{}", fields.empty() ? "" : ", ", field.name);
  return {ErrorCode::invalid_argument,
          fmt::format("--link: {}: give pcie5, c2c, or NAME:FIELD=NS,... with fields {}", what, fields)};
}

Status set_field(LinkModel& model, std::string_view item) {
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos) return bad(fmt::format("'{}' is not FIELD=NS", item));
  const std::string_view name = item.substr(0, equals);
  const std::string_view digits = item.substr(equals + 1);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value > kLongestNs) {
    return bad(fmt::format("'{}' is not a time from 0 to 1 s in ns", digits));
  }
  for (const Field& field : kFields) {
    if (name == field.name) return model.*field.member = value, Status();
  }
  return bad(fmt::format("no field '{}'", name));
}

}  // namespace

Result<LinkModel> parse_link(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  LinkModel model = name == "c2c" ? coherent_model() : LinkModel();
  if (name.empty()) return bad("no name");
  if (colon == std::string::npos) {
    if (name != model.name) return bad(fmt::format("no model '{}'", name));
    return model;
  }
  model.name = name;
  std::string_view rest = std::string_view(text).substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    CCKS_RETURN_IF_ERROR(set_field(model, rest.substr(0, comma)));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return model;
}

}  // namespace ccks::gpu::sim

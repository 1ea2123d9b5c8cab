#include "bench/bench_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <utility>

namespace ccks::bench {
namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 1);
  }
  return "cpu";
}

double at_rank(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(rank, 1, sorted.size()) - 1];
}

}  // namespace

std::string machine_name() {
  std::string name;
  for (const char c : cpu_model()) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
    } else if (!name.empty() && name.back() != '-') {
      name.push_back('-');
    }
  }
  return fmt::format("{}{}{}c", name, name.ends_with('-') ? "" : "-", std::thread::hardware_concurrency());
}

const char* commit() {
  const char* named = std::getenv("CCKS_COMMIT");
  return named != nullptr && *named != '\0' ? named : CCKS_COMMIT;
}

std::uint64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

Line::Line(const std::string& bench, const std::string& arm) {
  json_ = fmt::format(R"({{"bench": "{}", "arm": "{}", "commit": "{}", "machine": "{}")", bench, arm, commit(),
                      machine_name());
}

Line& Line::text(const std::string& name, const std::string& value) {
  json_ += fmt::format(R"(, "{}": "{}")", name, value);
  return *this;
}

Line& Line::number(const std::string& name, double value) {
  json_ += fmt::format(R"(, "{}": {:.6g})", name, value);
  return *this;
}

Line& Line::samples(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  if (values.empty()) return *this;
  json_ += fmt::format(R"(, "{0}_p50": {1:.6g}, "{0}_p99": {2:.6g}, "{0}_max": {3:.6g}, "runs": {4})", name,
                       at_rank(values, 0.5), at_rank(values, 0.99), values.back(), values.size());
  return *this;
}

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : at_rank(values, q);
}

void Line::print() const {
  std::printf("%s}\n", json_.c_str());
  std::fflush(stdout);
}

}  // namespace ccks::bench

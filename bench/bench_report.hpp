// What every benchmark prints: JSON lines that say where they were made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ccks::bench {

/// One line. Add fields, then print().
class Line {
 public:
  Line(const std::string& bench, const std::string& arm);
  Line& text(const std::string& name, const std::string& value);
  Line& number(const std::string& name, double value);
  /// Median, 99th percentile and largest of the samples, and how many there are: NAME_p50, NAME_p99, NAME_max, runs.
  Line& samples(const std::string& name, std::vector<double> values);
  void print() const;

 private:
  std::string json_;
};

double median(std::vector<double> values);
/// The sample of rank `q` of 1; 0 if there are none.
double quantile(std::vector<double> values, double q);
/// Model of the CPU and usable cores, fit for a file name, e.g. "amd-epyc-9654-2c".
std::string machine_name();
/// Of the sources: CCKS_COMMIT of the environment, else as it was when the build was configured.
const char* commit();
std::uint64_t now_ns();
/// Resident memory of this process.
std::uint64_t resident_bytes();

}  // namespace ccks::bench

#include "codegen/explain_gpu.hpp"

#include <fmt/format.h>

#include <cstdlib>

namespace ccks::codegen {
namespace {

struct Entry {
  const char* name;
  const char* source;
  double tb_per_s, tflops;
};

// Datasheet figures are peaks that no program reaches; measured ones are what a program of one purpose did reach.
constexpr Entry kGpus[] = {
    {"a100", "datasheet, A100 SXM 80 GB", 2.039, 312},
    {"h100", "datasheet, H100 SXM 80 GB", 3.35, 989.5},
    {"gh200", "datasheet, GH200 96 GB HBM3", 4.0, 989.5},
    {"h200", "measured on an H200 SXM: read-only sweep, bf16 product of random data", 4.67, 790},
    {"b200", "datasheet, B200 SXM", 8.0, 2250},
};

/// "4.8,900"
bool parse_pair(const std::string& text, double& a, double& b) {
  char* end = nullptr;
  a = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != ',') return false;
  const char* second = end + 1;
  b = std::strtod(second, &end);
  return end != second && *end == '\0' && a > 0 && b > 0 && a < 1e6 && b < 1e9;
}

}  // namespace

Result<GpuFigures> gpu_figures(const std::string& text) {
  std::string names;
  for (const Entry& gpu : kGpus) {
    if (text == gpu.name) return GpuFigures{gpu.name, gpu.source, gpu.tb_per_s * 1e12, gpu.tflops * 1e12};
    names += fmt::format("{}{}", names.empty() ? "" : ", ", gpu.name);
  }
  double tb = 0, tflops = 0;
  if (parse_pair(text, tb, tflops)) return GpuFigures{text, "as given", tb * 1e12, tflops * 1e12};
  return Status(ErrorCode::invalid_argument,
                fmt::format("unknown GPU '{}': one of {}, or TB/s,TFLOPS such as 4.8,900", text, names));
}

}  // namespace ccks::codegen

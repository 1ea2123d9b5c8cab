// What the named GPUs can do at best, and where each figure comes from.
#pragma once

#include <string>
#include <vector>

#include "ccks/result.hpp"

namespace ccks::codegen {

struct GpuFigures {
  std::string name;
  std::string source;           // "measured" or "datasheet", and of what
  double bytes_per_s = 0;       // device memory
  double operations_per_s = 0;  // dense bf16 matrix products; a multiply-add is two
};

/// Figures of a GPU by name ("h200"), or from "TB/s,TFLOPS" as two numbers. invalid_argument with the known names
/// otherwise.
Result<GpuFigures> gpu_figures(const std::string& text);

}  // namespace ccks::codegen

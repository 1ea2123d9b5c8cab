// viz: the ops of a plan and what waits for what, as a Graphviz graph.
#pragma once

#include <string>

#include "codegen/explain_plan.hpp"

namespace ccks::codegen {

/// DOT source: a node per op with its tile grid, an edge per wait with granularity and counts, a cluster per repeat.
std::string graph_to_dot(const Explanation& explanation);
/// Nodes and edges of the same graph.
std::string graph_to_json(const Explanation& explanation);
/// Runs the program `dot` on `dot_source`. unavailable where there is none, with the package's name.
Result<std::string> dot_to_svg(const std::string& dot_source);

}  // namespace ccks::codegen

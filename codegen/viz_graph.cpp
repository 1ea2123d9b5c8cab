#include "codegen/viz_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

namespace ccks::codegen {
namespace {

/// For a double-quoted DOT string. Labels are plain text: a backslash stays one, line ends are added by the caller.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string grid_text(const std::array<std::int64_t, 4>& v) {
  std::size_t first = 0;
  while (first < 3 && v[first] == 1) ++first;
  std::string text;
  for (std::size_t i = first; i < 4; ++i) text += fmt::format("{}{}", text.empty() ? "" : " x ", v[i]);
  return text;
}

/// "layers.3.ffn.matmul" -> {"layers.3"}: one level per repeat index in the name.
std::vector<std::string> clusters_of(const std::string& name) {
  std::vector<std::string> levels;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t dot = std::min(name.find('.', at), name.size());
    const bool number = dot > at && std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at),
                                                name.begin() + static_cast<std::ptrdiff_t>(dot),
                                                [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number && at > 0) levels.push_back(name.substr(0, dot));
    at = dot + 1;
  }
  return levels;
}

struct Cluster {
  std::map<std::string, Cluster> inner;
  std::vector<std::string> order;  // of `inner`, as met
  std::vector<std::size_t> ops;
};

std::string node(const Explanation& e, std::size_t i, const std::string& indent) {
  const ExplainedOp& op = e.ops[i];
  std::string label = fmt::format("{}\\n{}  {}  [{}]", escaped(op.name), escaped(op.kind),
                                  op.tiles == 1 ? "1 tile" : fmt::format("{} tiles", op.tiles), grid_text(op.grid));
  if (!op.guard.empty()) label += "\\nif " + escaped(op.guard);
  return fmt::format("{}op{} [label=\"{}\"{}];\n", indent, i, label,
                     op.dynamic         ? ", style=\"rounded,dashed\""
                     : op.guard.empty() ? ""
                                        : ", style=\"rounded,filled\", fillcolor=\"#fff3d6\"");
}

void print(const Explanation& e, const Cluster& cluster, const std::string& indent, std::size_t& counter,
           std::string& out) {
  for (const std::size_t op : cluster.ops) out += node(e, op, indent);
  for (const std::string& name : cluster.order) {
    out += fmt::format("{}subgraph cluster{} {{\n{}  label=\"{}\";\n{}  color=\"#9aa5b1\";\n", indent, counter++,
                       indent, escaped(name), indent);
    print(e, cluster.inner.at(name), indent + "  ", counter, out);
    out += indent + "}\n";
  }
}

}  // namespace

std::string graph_to_dot(const Explanation& e) {
  Cluster root;
  for (std::size_t i = 0; i < e.ops.size(); ++i) {
    Cluster* at = &root;
    for (const std::string& level : clusters_of(e.ops[i].name)) {
      if (!at->inner.contains(level)) at->order.push_back(level);
      at = &at->inner[level];
    }
    at->ops.push_back(i);
  }
  std::string dims;
  for (const auto& [name, value] : e.dims) dims += fmt::format("  {} = {}", escaped(name), value);
  std::string out = fmt::format("digraph \"{}\" {{\n  label=\"{}{}\";\n  labelloc=t;\n  fontname=\"Helvetica\";\n",
                                escaped(e.program), escaped(e.program), dims);
  out +=
      "  node [shape=box, style=rounded, fontname=\"Helvetica\", fontsize=11];\n  edge [fontname=\"Helvetica\", "
      "fontsize=9, color=\"#52606d\"];\n";
  std::size_t counter = 0;
  print(e, root, "  ", counter, out);
  for (const ExplainedWait& w : e.waits) {
    const std::string label = fmt::format("{}\\n{} of {} x {}", w.granularity, w.waited, w.events, w.total);
    out += fmt::format(
        "  op{} -> op{} [label=\"{}\", tooltip=\"{}\"{}];\n", w.producer, w.consumer, label, escaped(w.reasons),
        w.reasons.find("read-after-write") == std::string::npos && w.reasons.find("guard") == std::string::npos
            ? ", style=dashed"
            : "");
  }
  return out + "}\n";
}

}  // namespace ccks::codegen

// explanation_to_text: aligned tables for a terminal of any width.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/explain_plan.hpp"

namespace ccks::codegen {
namespace {

/// Table lines columns up: numbers to the right, words to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }

  std::string text(const std::string& right) const {  // right: one letter per column, 'r' for numbers
    std::vector<std::size_t> width(rows_[0].size());
    for (const auto& row : rows_)
      for (std::size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
    std::string out;
    for (const auto& row : rows_) {
      std::string line = " ";
      for (std::size_t c = 0; c < row.size(); ++c)
        line += right[c] == 'r' ? fmt::format(" {:>{}}", row[c], width[c]) : fmt::format(" {:<{}}", row[c], width[c]);
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string scaled(double value, const char* unit, double base, const char* const (&prefixes)[6]) {
  std::size_t i = 0;
  while (value >= base && i + 1 < std::size(prefixes)) value /= base, ++i;
  return i == 0 ? fmt::format("{:.0f} {}{}", value, prefixes[i], unit)
                : fmt::format("{:.{}f} {}{}", value,
                              value < 10    ? 2
                              : value < 100 ? 1
                                            : 0,
                              prefixes[i], unit);
}
std::string bytes(double v) { return scaled(v, "B", 1024, {"", "Ki", "Mi", "Gi", "Ti", "Pi"}); }
std::string count(double v) { return scaled(v, "", 1000, {"", "k", "M", "G", "T", "P"}); }

std::string micros(double us) {
  return us < 10 ? fmt::format("{:.2f}", us) : us < 1000 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

/// Without leading ones: "[4 x 128]".
std::string extents(const std::array<std::int64_t, 4>& v) {
  std::size_t first = 0;
  while (first < 3 && v[first] == 1) ++first;
  std::string text;
  for (std::size_t i = first; i < 4; ++i) text += fmt::format("{}{}", text.empty() ? "" : "x", v[i]);
  return text;
}

std::string ops_table(const Explanation& e) {
  Table table({"#", "op", "kind", "tiles", "grid", "tile", "read", "written", "operations", "floor us", "body us", ""});
  for (std::size_t i = 0; i < e.ops.size(); ++i) {
    const ExplainedOp& op = e.ops[i];
    table.add({fmt::format("{}", i), op.name, op.kind, fmt::format("{}", op.tiles), extents(op.grid), extents(op.tile),
               bytes(static_cast<double>(op.bytes_read)), bytes(static_cast<double>(op.bytes_written)),
               count(static_cast<double>(op.operations)), micros(op.floor_us), e.predicted_us > 0 ? micros(op.body_us) : "",
               (op.dynamic ? std::string("at most; counted at run time ") : std::string()) +
                   (op.guard.empty() ? "" : "if " + op.guard)});
  }
  return "ops\n" + table.text("rllrllrrrrrl");
}

std::string waits_table(const Explanation& e) {
  Table table({"op", "waits for", "split", "events", "per tile", "signals", "because"});
  for (const ExplainedWait& w : e.waits)
    table.add({fmt::format("{} {}", w.consumer, e.ops[w.consumer].name),
               fmt::format("{} {}", w.producer, e.ops[w.producer].name), w.granularity, fmt::format("{}", w.events),
               fmt::format("{}", w.waited), fmt::format("{}", w.total), w.reasons});
  std::string text =
      "dependencies (each tile of `op` waits for `per tile` events of `waits for`; an event is complete after "
      "`signals` tiles)\n";
  text += table.empty() ? "  none\n" : table.text("lllrrrl");
  if (e.dropped_waits > 0) text += fmt::format("  and {} dependencies that these imply\n", e.dropped_waits);
  return text;
}

std::string shape_text(const ExplainedTensor& t) {
  std::string text = t.dtype + "[";
  for (std::size_t i = 0; i < t.shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", t.shape[i]);
  return text + "]";
}

std::string tensors_table(const Explanation& e) {
  Table table({"tensor", "kind", "shape", "space", "offset", "bytes", "in use"});
  for (const ExplainedTensor& t : e.tensors) {
    const std::string use = t.first_op < 0 ? "never" : fmt::format("ops {} to {}", t.first_op, t.last_op);
    table.add({t.name, t.kind, shape_text(t), t.space, fmt::format("{}", t.offset), bytes(static_cast<double>(t.bytes)),
               t.kind == "intermediate" ? use : "always"});
  }
  return "buffers\n" + table.text("llllrrl");
}

std::string totals(const Explanation& e) {
  const double saved =
      e.unplanned_arena_bytes == 0
          ? 0
          : 100.0 * (1 - static_cast<double>(e.arena_bytes) / static_cast<double>(e.unplanned_arena_bytes));
  std::string text = "memory\n";
  text += fmt::format("  per run in flight  {} (without reuse {}: {:.0f} % saved), {} events, {} of reports\n",
                      bytes(static_cast<double>(e.arena_bytes)), bytes(static_cast<double>(e.unplanned_arena_bytes)),
                      saved, e.event_count, bytes(static_cast<double>(e.report_bytes)));
  text += fmt::format("  weights            {}\n", bytes(static_cast<double>(e.weight_bytes)));
  text += fmt::format("  per session state  {}\n", bytes(static_cast<double>(e.state_bytes)));
  text += fmt::format("  scratch per worker {}\n", bytes(static_cast<double>(e.scratch_bytes)));
  text += "work of one run\n";
  text += fmt::format("  {} ops, {} tiles, {} operations\n", e.ops.size(), e.tiles,
                      count(static_cast<double>(e.operations)));
  text += fmt::format("  {} read and {} written op by op; {} must move at least\n",
                      bytes(static_cast<double>(e.bytes_read)), bytes(static_cast<double>(e.bytes_written)),
                      bytes(static_cast<double>(e.compulsory_bytes)));
  text += fmt::format("floor on {} ({}: {:.2f} TB/s, {:.0f} TFLOP/s)\n", e.gpu.name, e.gpu.source,
                      e.gpu.bytes_per_s / 1e12, e.gpu.operations_per_s / 1e12);
  text += fmt::format("  {} us with everything overlapped; {} us op by op through device memory\n", micros(e.floor_us),
                      micros(e.op_by_op_us));
  if (e.predicted_us > 0)
    text += fmt::format("prediction for {} workers that stay ({})\n  {} us a run, of which bodies {} us and waiting {} us a worker\n",
                        e.predicted_workers, e.predicted_by, micros(e.predicted_us), micros(e.predicted_busy_us),
                        micros(e.predicted_us - e.predicted_busy_us));
  return text;
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::string out, line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += "  " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out + "  " + line + "\n";
}

}  // namespace

std::string explanation_to_text(const Explanation& e) {
  std::string text = fmt::format("program {}  plan {:016x}", e.program, e.hash);
  for (const auto& [name, value] : e.dims) text += fmt::format("  {} = {}", name, value);
  return text + "\n\n" + ops_table(e) + "\n" + waits_table(e) + "\n" + tensors_table(e) + "\n" + totals(e) +
         "should I use this?\n" + wrapped(e.advice, 100);
}

}  // namespace ccks::codegen

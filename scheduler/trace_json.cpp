#include "scheduler/trace_json.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>

namespace ccks::scheduler {
namespace {

using Out = fmt::memory_buffer;

void put_string(Out& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

void put_thread(Out& out, std::uint32_t thread, const std::string& name) {
  fmt::format_to(std::back_inserter(out), R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":)",
                 thread);
  put_string(out, name);
  fmt::format_to(std::back_inserter(out), "}}}},\n");
}

std::string_view op_name(const plan::PlanView& plan, std::uint32_t op) {
  if (op < plan.ops.size()) return plan.ops[op].name;
  return op == wire::kOpSignal ? "signal" : op == wire::kOpList ? "list" : "control";
}

void put_task(Out& out, const plan::PlanView& plan, const TraceEvent& task, std::uint64_t origin_ns) {
  out.push_back('{');
  fmt::format_to(std::back_inserter(out), R"("ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"task","name":)",
                 task.worker + 1, static_cast<double>(task.start_ns - origin_ns) / 1e3,
                 static_cast<double>(task.run_ns) / 1e3);
  put_string(out, op_name(plan, task.op));
  fmt::format_to(std::back_inserter(out),
                 R"(,"args":{{"run":{},"slot":{},"first_tile":{},"tiles":{},"wait_us":{:.3f}}}}},)", task.epoch,
                 task.slot, task.first_tile, task.tiles, static_cast<double>(task.wait_ns) / 1e3);
  out.push_back('\n');
}

void put_decision(Out& out, const plan::PlanView& plan, const TimedDecision& timed, std::uint64_t origin_ns) {
  const Decision& d = timed.decision;
  fmt::format_to(std::back_inserter(out), R"({{"ph":"i","s":"t","pid":1,"tid":0,"ts":{:.3f},"cat":"decision","name":)",
                 static_cast<double>(timed.now_ns - origin_ns) / 1e3);
  put_string(out, op_name(plan, d.op));
  const wire::Task task{d.tile, 0, 0, 0, 0};
  const bool control = d.op >= wire::kMaxOps;
  fmt::format_to(std::back_inserter(out), R"(,"args":{{"run":{},"worker":{},"first_tile":{},"tiles":{}}}}},)",
                 timed.ordinal, d.worker, control ? d.tile : task.first_tile(), control ? 0 : task.tile_count());
  out.push_back('\n');
}

std::uint64_t earliest(const std::vector<TraceEvent>& tasks, const std::vector<TimedDecision>& decisions) {
  std::uint64_t first = ~std::uint64_t{0};
  for (const TraceEvent& task : tasks) first = std::min(first, task.start_ns);
  for (const TimedDecision& decision : decisions) first = std::min(first, decision.now_ns);
  return first;
}

Status write_aside(const std::string& path, const Out& out) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, static_cast<long>(getpid()));
  const auto fail = [&] {
    Status status{ErrorCode::io_error, fmt::format("writing {}: {}", path, std::strerror(errno))};
    std::remove(temporary.c_str());
    return status;
  };
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return fail();
  const bool written = std::fwrite(out.data(), 1, out.size(), file) == out.size();
  const bool closed = std::fclose(file) == 0;
  if (!written || !closed || std::rename(temporary.c_str(), path.c_str()) != 0) return fail();
  return {};
}

}  // namespace

Status write_trace_json(const std::string& path, const plan::PlanView& plan, const DeviceInfo& device,
                        const std::vector<TraceEvent>& tasks, const std::vector<TimedDecision>& decisions) {
  const std::uint64_t origin = earliest(tasks, decisions);
  Out out;
  fmt::format_to(std::back_inserter(out), "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
  fmt::format_to(std::back_inserter(out), R"({{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{{"name":)");
  put_string(out, fmt::format("{} on {} ({})", plan.name, device.name, device.kind));
  fmt::format_to(std::back_inserter(out), "}}}},\n");
  put_thread(out, 0, "scheduler");
  for (std::uint32_t w = 0; w < device.workers; ++w) put_thread(out, w + 1, fmt::format("worker {}", w));
  for (const TraceEvent& task : tasks) put_task(out, plan, task, origin);
  for (const TimedDecision& decision : decisions) put_decision(out, plan, decision, origin);
  // The last entry closes the list: JSON has no trailing commas.
  fmt::format_to(std::back_inserter(out),
                 R"({{"ph":"M","pid":1,"tid":0,"name":"process_sort_index","args":{{"sort_index":0}}}}]}})");
  out.push_back('\n');
  return write_aside(path, out);
}

}  // namespace ccks::scheduler

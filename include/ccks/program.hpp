// Program: a plan and the worker code for it, from a spec at run time or generated and linked in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/plan.hpp"

namespace ccks {

/// What a generated scheduler source exports. Static storage.
struct GeneratedProgram {
  plan::PlanView plan;
  WorkerImage worker;
};

struct SpecOptions {
  bool allow_inline = false;
  std::vector<std::pair<std::string, std::int64_t>> constants;  // override dims by name
  std::uint32_t workers_hint = 0;  // how many workers the tiles are chosen for; 0: this machine's default
  std::string device = "host";     // tile sizes are chosen for it: "host" or "cuda"
  bool fold_norms = true;          // norms of few rows become part of the products that read them
};

/// Program is an immutable shared handle; copies are cheap and share the tables.
class Program {
 public:
  Program() = default;
  /// Wraps a generated program; `generated` must outlive all copies (it has static storage).
  static Program from_generated(const GeneratedProgram& generated) { return {nullptr, generated.plan, generated.worker}; }
  /// Parses, plans and validates the spec at `path`. The message holds all diagnostics, formatted.
  static Result<Program> from_spec_file(const std::string& path, const SpecOptions& options = {});
  static Result<Program> from_spec_text(const std::string& text, const std::string& name, const SpecOptions& options = {});
  /// For codegen: `owner` keeps the tables of `plan` alive.
  Program(std::shared_ptr<const void> owner, const plan::PlanView& plan, const WorkerImage& worker)
      : owner_(std::move(owner)), plan_(std::make_shared<const plan::PlanView>(plan)), worker_(worker) {}

  bool valid() const { return plan_ != nullptr; }
  const plan::PlanView& plan() const { return *plan_; }
  const WorkerImage& worker() const { return worker_; }
  /// The same plan with other code, for Engine::handoff. What `worker` points at must live as long as the copies do.
  Program with_worker(const WorkerImage& worker) const {
    Program out = *this;
    out.worker_ = worker;
    return out;
  }

 private:
  std::shared_ptr<const void> owner_;
  std::shared_ptr<const plan::PlanView> plan_;
  WorkerImage worker_;
};

}  // namespace ccks

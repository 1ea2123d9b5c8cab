// PlanImage: the tables of a plan in memory, and what tools want to know about how they came to be.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "spec/program.hpp"

namespace ccks::codegen {

/// How finely the events of dependencies are split. `automatic` takes the finest that pays, up to two axes.
enum class Granularity : std::uint8_t { automatic, whole, row, tile };
const char* granularity_name(Granularity granularity);

struct PlanOptions {
  std::string device = "host";       // tile sizes are chosen for it: "host" or "cuda"
  std::uint32_t workers = 0;         // tiles are chosen to feed that many; 0: a default of the device
  bool reuse_memory = true;          // intermediates share arena space; off: each keeps its own
  std::uint32_t reuse_distance = 2;  // ops that must lie between the last use of a space and its next owner
  std::uint64_t reuse_from_bytes = 8u << 20;  // "cuda": a run whose tensors need less shares nothing (plan_memory.cpp)
  Granularity granularity = Granularity::automatic;
  bool drop_implied_waits = true;             // off: keep a wait even where others imply it
  bool causal_windows = true;                 // causal attention waits only for the context it may look at
  std::uint32_t max_group_events = 1u << 16;  // of one signal group; a finer split is not taken
  bool fold_norms = true;                     // products norm their rows themselves (plan_fold.hpp)
  std::uint32_t tile_scale = 1;               // multiplies the chosen tile rows, for ablation
};

/// Why one op waits for another.
enum class DependencyKind : std::uint8_t {
  raw,    // reads what the producer wrote
  war,    // overwrites what the producer read
  waw,    // overwrites what the producer wrote
  reuse,  // writes to arena space that the producer used for another tensor
  guard,  // needs the report that its condition tests
};
const char* dependency_kind_name(DependencyKind kind);

/// One derived dependency, in order of consumer. Several may share one wait; dropped ones have none.
struct Dependency {
  std::uint32_t producer, consumer;  // ops
  std::uint32_t tensor;              // of the consumer's access
  DependencyKind kind;
  Granularity granularity;  // whole; row: one axis split; tile: two
  std::uint32_t wait;       // WaitDesc, or plan::kNone where dropped
  const char* why;          // static text: why this granularity, or why no wait was needed
};

/// When the storage of a tensor is in use, in op indices; first > last: never.
struct LiveRange {
  std::uint32_t first = 1, last = 0;
  std::uint32_t root = 0;  // tensor that owns the storage (itself unless an alias)
};

/// PlanImage owns all tables of one plan. Copies share the strings, so a copy's tables may be edited freely.
struct PlanImage {
  std::string name;
  std::uint64_t hash = 0;
  std::vector<plan::SymbolDesc> symbols;
  std::vector<plan::DimNode> dims;
  std::vector<plan::RaggedDesc> ragged;
  std::vector<plan::CheckDesc> checks;
  std::vector<plan::TensorDesc> tensors;  // same indices as spec::Program::tensors
  std::vector<plan::OpDesc> ops;
  std::vector<plan::OperandDesc> operands;
  std::vector<plan::WaitDesc> waits;
  std::vector<plan::SignalDesc> signals;
  std::vector<plan::GuardDesc> guards;
  std::vector<wire::ExprInstr> code;
  std::vector<plan::ReportDesc> reports;  // first those of the program, in its order; then the counts of route ops
  std::uint32_t event_count = 0;
  std::uint32_t max_tasks = 0;
  std::uint32_t report_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t state_bytes = 0;
  std::uint32_t scratch_bytes = 0;

  // For tools; not part of the view.
  std::uint64_t unplanned_arena_bytes = 0;  // with a space of its own for every tensor
  std::vector<LiveRange> live_ranges;       // per tensor
  std::vector<std::uint32_t> spec_ops;      // plan op -> spec op
  std::vector<Dependency> dependencies;
  PlanOptions options;

  std::shared_ptr<std::deque<std::string>> strings = std::make_shared<std::deque<std::string>>();

  /// Borrows the tables: valid while this object lives and is not edited.
  plan::PlanView view() const;
};

/// make_plan plans `program`. invalid_argument or unsupported, with the op's name, where it cannot be planned.
Result<std::shared_ptr<const PlanImage>> make_plan(const spec::Program& program, const PlanOptions& options = {});

/// hash_tables is the 64-bit hash over the contents of all tables of `view`; equal across processes and machines.
std::uint64_t hash_tables(const plan::PlanView& view);

}  // namespace ccks::codegen

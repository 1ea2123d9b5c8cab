// GraphPlan: plans made by hand for tests of the scheduler, with ops whose results show whether they ran in order.
//
// Every op writes one u64 per tile: a hash of its number, the tile, and what it reads from its producers. expected()
// computes the same without any scheduler.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/program.hpp"

namespace ccks::test {

/// What a consumer reads of a producer: the tile of the same number, or all of them.
enum class Reads { same_tile, all };

struct GraphEdge {
  std::uint32_t producer;
  Reads reads;
};

struct GraphOp {
  std::uint32_t tiles = 1;  // for n = 1; scales with symbol n if `scaled`
  bool scaled = false;
  bool per_tile_events = false;  // one event a tile instead of one for the op
  std::vector<GraphEdge> edges = {};
  int report = -1;          // >= 0: publishes its tile 0 as i32 [count], see report_count
  int dynamic_report = -1;  // rows of that report exist
  int guard_report = -1;    // runs only where that report's first value is not 0
  std::uint32_t report_count = 1;
  std::uint32_t spin_us = 0;  // every tile takes at least this long
  std::uint32_t estimated_us = 0;  // what the plan says of it; 0: next to nothing
  bool faults = false;        // every tile reports a fault
  bool state = false;         // adds to the state word 's', so that runs must be in order
  bool bare = false;          // has no operands: for workers whose ops do nothing
};

class GraphPlan {
 public:
  explicit GraphPlan(std::vector<GraphOp> ops, std::uint32_t max_n = 8);
  Program program(const void* cuda_image = nullptr) const;
  const plan::PlanView& view() const { return view_; }
  /// Breaks the plan: events of `op` are awaited once more often than they are signalled.
  void demand_too_much(std::uint32_t op);
  const std::vector<GraphOp>& ops() const { return ops_; }
  std::uint32_t tiles(std::uint32_t op, std::uint32_t n) const { return ops_[op].tiles * (ops_[op].scaled ? n : 1); }
  /// Name of the output tensor of an op.
  static std::string output(std::uint32_t op) { return "t" + std::to_string(op); }
  /// Values of all ops at `n` for input `seed`. Tiles that do not run keep the value 0.
  std::vector<std::vector<std::uint64_t>> expected(std::uint32_t n, std::uint64_t seed) const;

 private:
  plan::DimId constant(std::int64_t value);
  plan::DimId scaled(const GraphOp& op);
  const plan::TensorDesc& add_tensor(std::uint32_t index, std::uint32_t max_n);
  void add_operand(wire::Space space, std::uint64_t offset, plan::DimId count);
  void add_operands(std::uint32_t index, std::uint64_t offset, plan::OpDesc& desc);
  void add_report_operand(std::uint32_t index, plan::OpDesc& desc);
  void add_guard(const GraphOp& op, plan::OpDesc& desc);
  void add_op(std::uint32_t index, std::uint32_t max_n);
  void add_waits(std::uint32_t index);
  void add_state();
  void finish(std::uint32_t max_n);

  std::vector<GraphOp> ops_;
  std::deque<std::string> names_;
  std::vector<plan::SymbolDesc> symbols_;
  std::vector<plan::DimNode> dims_;
  std::vector<plan::TensorDesc> tensors_;
  std::vector<plan::OpDesc> op_descs_;
  std::vector<plan::OperandDesc> operands_;
  std::vector<plan::WaitDesc> waits_;
  std::vector<plan::SignalDesc> signals_;
  std::vector<plan::GuardDesc> guards_;
  std::vector<plan::ReportDesc> reports_;
  std::vector<plan::DimId> tile_dims_;
  std::uint64_t arena_ = 0;
  plan::PlanView view_;
};

/// The worker that runs such plans: on the host device, and on a GPU if `cuda_image` is graph_worker.cu, embedded.
WorkerImage graph_worker(const void* cuda_image = nullptr);

/// Tiles executed by graph workers of this process so far.
std::uint64_t graph_tiles_run();

/// A plan of `layers` layers with fan-out, joins and single tiles; symbol n scales some of them.
std::vector<GraphOp> layered_graph(std::uint32_t layers);

}  // namespace ccks::test

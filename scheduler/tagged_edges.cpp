#include "scheduler/tagged_edges.hpp"

#include <algorithm>

#include "scheduler/tuning.hpp"

namespace ccks::scheduler {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of a copy: as of tensors

class TaggedEdges {
 public:
  explicit TaggedEdges(PlanTables& tables) : tables_(tables), plan_(tables.plan), copies_(plan_.tensors.size(), 0) {}

  void find() {
    const auto known = [&](const plan::OperandDesc& operand) { return operand.tensor < plan_.tensors.size(); };
    if (!std::all_of(plan_.operands.begin(), plan_.operands.end(), known)) return;  // a plan without tensors, as benches make them
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      if (!is_product(op)) continue;
      const std::uint32_t producer = writer_of(input(op));
      if (producer == plan::kNone || producer >= op || !is_product(producer)) continue;
      if (reads_only_weights_beside(op) && waits_only_for(op, producer) && has_output_alone(op)) add(producer, op);
    }
  }

 private:
  std::uint32_t input(std::uint32_t op) const { return plan_.ops[op].operand_first; }
  std::uint32_t output(std::uint32_t op) const { return plan_.ops[op].operand_first + plan_.ops[op].input_count; }
  const plan::TensorDesc& tensor_of(std::uint32_t operand) const { return plan_.tensors[plan_.operands[operand].tensor]; }

  /// One that is the same in every run of the frame, so that update() leaves it alone, and all of which is there.
  bool is_product(std::uint32_t index) const {
    const plan::OpDesc& op = plan_.ops[index];
    const auto varies = [&](const VaryingOp& varying) { return varying.op == index; };
    return op.kind == wire::OpCode::matmul && op.guard_count == 0 && (op.flags & wire::kOpDynamic) == 0 && op.output_count == 1 && op.input_count >= 2 &&
           std::none_of(tables_.varying_ops.begin(), tables_.varying_ops.end(), varies);
  }

  bool overlap(std::uint32_t a, std::uint32_t b) const {
    const plan::TensorDesc &x = tensor_of(a), &y = tensor_of(b);
    return x.space == y.space && x.offset < y.offset + y.max_bytes && y.offset < x.offset + x.max_bytes;
  }
  /// The one op that writes what `operand` reads, an intermediate of f32 values; kNone: it is none, or several write there.
  std::uint32_t writer_of(std::uint32_t operand) const {
    const plan::TensorDesc& tensor = tensor_of(operand);
    if (tensor.kind != plan::TensorKind::intermediate || tensor.space != wire::Space::arena || tensor.dtype != wire::Dtype::f32) return plan::kNone;
    if (tensor.max_bytes > kMostTaggedBytes) return plan::kNone;
    std::uint32_t writer = plan::kNone;
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      for (std::uint32_t o = output(op); o < output(op) + plan_.ops[op].output_count; ++o) {
        if (!overlap(o, operand)) continue;
        if (writer != plan::kNone || plan_.operands[o].tensor != plan_.operands[operand].tensor) return plan::kNone;
        writer = op;
      }
    }
    return writer;
  }

  bool reads_only_weights_beside(std::uint32_t op) const {
    for (std::uint32_t o = input(op) + 1; o < output(op); ++o) {
      if (plan_.operands[o].space != wire::Space::weights) return false;
    }
    return true;
  }
  bool waits_only_for(std::uint32_t op, std::uint32_t producer) const {
    const auto waits = plan_.waits.subspan(plan_.ops[op].wait_first, plan_.ops[op].wait_count);
    return std::all_of(waits.begin(), waits.end(), [&](const plan::WaitDesc& wait) { return wait.producer == producer; });
  }
  /// No other op writes there, and none in front of it, nor itself, reads there.
  bool has_output_alone(std::uint32_t op) const {
    const std::uint32_t out = output(op);
    if (plan_.operands[out].space != wire::Space::arena) return false;
    for (std::uint32_t other = 0; other < tables_.op_count(); ++other) {
      const std::uint32_t end = output(other) + plan_.ops[other].output_count;
      for (std::uint32_t o = other <= op ? input(other) : output(other); o < end; ++o) {
        if (o != out && overlap(o, out)) return false;
      }
    }
    return true;
  }

  void add(std::uint32_t producer, std::uint32_t consumer) {
    const plan::TensorDesc& tensor = tensor_of(input(consumer));
    std::uint64_t& copy = copies_[plan_.operands[input(consumer)].tensor];
    if (copy == 0) {
      copy = (tables_.arena_bytes + kAlignment - 1) / kAlignment * kAlignment;
      const std::uint64_t end = copy + tensor.max_bytes / sizeof(float) * sizeof(std::uint64_t);
      if (end > 0xffffffffull) return void(copy = 0);  // farther than an operand can say
      tables_.arena_bytes = end;
    }
    tables_.tagged.push_back({producer, consumer, output(producer), input(consumer), tensor.offset, copy, stands_alone(producer, consumer)});
  }

  /// Nobody but the consumer reads what the producer writes, and that has no ops in front of it, or one such edge. Then no op relies on what came before the
  /// edge because it has waited for the consumer, whose events say nothing of that.
  bool stands_alone(std::uint32_t producer, std::uint32_t consumer) const {
    if (tables_.chained()) return false;  // the first ops of a run wait for its turn
    for (std::uint32_t op = 0; op < tables_.op_count(); ++op) {
      for (std::uint32_t o = input(op); o < output(op) && op != consumer; ++o) {
        if (overlap(o, output(producer))) return false;
      }
    }
    const auto leads = [&](const TaggedEdge& edge) { return edge.consumer == producer && edge.alone; };
    return plan_.ops[producer].wait_count == 0 || std::any_of(tables_.tagged.begin(), tables_.tagged.end(), leads);
  }

  PlanTables& tables_;
  const plan::PlanView& plan_;
  std::vector<std::uint64_t> copies_;  // per tensor: where its copy lies; 0: it has none
};

}  // namespace

void find_tagged_edges(PlanTables& tables) { TaggedEdges(tables).find(); }

}  // namespace ccks::scheduler

#include "scheduler/early_ops.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {
namespace {

class EarlyOps {
 public:
  explicit EarlyOps(const plan::PlanView& plan) : plan_(plan), early_(plan.ops.size(), 0) {}

  std::vector<std::uint8_t> find() {
    for (std::uint32_t op = 0; op < early_.size(); ++op) early_[op] = is_alone(plan_.ops[op]) && follows_early(op) ? 1 : 0;
    for (bool changed = true; changed;) {
      changed = false;
      for (std::uint32_t op = 0; op < early_.size(); ++op) {
        if (early_[op] != 0 || plan_.ops[op].wait_count == 0 || !follows_early(op)) continue;
        for (const plan::WaitDesc& wait : waits_of(op)) early_[wait.producer] = 0;
        changed = true;
      }
      for (std::uint32_t op = 0; op < early_.size(); ++op) {
        if (early_[op] == 0 || follows_early(op)) continue;
        early_[op] = 0;
        changed = true;
      }
    }
    return std::move(early_);
  }

 private:
  std::span<const plan::WaitDesc> waits_of(std::uint32_t op) const { return plan_.waits.subspan(plan_.ops[op].wait_first, plan_.ops[op].wait_count); }
  bool follows_early(std::uint32_t op) const {
    const auto waits = waits_of(op);
    return std::all_of(waits.begin(), waits.end(), [&](const plan::WaitDesc& wait) { return early_[wait.producer] != 0; });
  }
  bool is_alone(const plan::OpDesc& op) const {
    if (op.output_count == 0 || op.guard_count != 0 || op.report != plan::kNone || (op.flags & wire::kOpDynamic) != 0) return false;
    const auto operands = plan_.operands.subspan(op.operand_first, op.input_count + op.output_count);
    return std::all_of(operands.begin(), operands.end(), [&](const plan::OperandDesc& operand) {
      if (operand.space == wire::Space::weights) return true;
      return operand.space == wire::Space::arena && operand.tensor < plan_.tensors.size() && !is_shown(plan_.tensors[operand.tensor]);
    });
  }
  /// Whether it lies where an input or an output does.
  bool is_shown(const plan::TensorDesc& tensor) const {
    return std::any_of(plan_.tensors.begin(), plan_.tensors.end(), [&](const plan::TensorDesc& other) {
      const bool shown = other.kind == plan::TensorKind::input || other.kind == plan::TensorKind::output;
      return shown && share_bytes(other, tensor);
    });
  }

  const plan::PlanView& plan_;
  std::vector<std::uint8_t> early_;
};

}  // namespace

std::vector<std::uint8_t> find_early_ops(const plan::PlanView& plan) { return EarlyOps(plan).find(); }

}  // namespace ccks::scheduler

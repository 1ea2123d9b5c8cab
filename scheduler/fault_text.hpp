// What a failed worker says, in words. Writes into the caller's buffer: faults are found on the scheduler thread.
#pragma once

#include <span>
#include <string>

#include "ccks/plan.hpp"
#include "ccks/wire/control.hpp"
#include "scheduler/policy.hpp"

namespace ccks::scheduler {

/// Always null-terminated, cut where the buffer ends.
void describe_fault(const plan::PlanView& plan, std::uint32_t worker, wire::FaultCode code,
                    const wire::WorkerLine& line, std::span<char> out);
/// A device that has failed as `message` says; `oldest` null: nothing was under way.
void describe_device_failure(const plan::PlanView& plan, const std::string& message, std::uint32_t worker,
                             const SentTasks* oldest, std::span<char> out);
/// A task that has not ended for `limit_ns`.
void describe_stuck(const plan::PlanView& plan, std::uint32_t worker, const SentTasks& task, std::uint32_t epoch,
                    std::uint64_t limit_ns, std::span<char> out);

/// What a launch of one op found, for arms without workers.
void describe_op_fault(const plan::PlanView& plan, wire::FaultCode code, std::uint32_t op, std::uint32_t tile,
                       std::uint32_t slot, std::span<char> out);

}  // namespace ccks::scheduler

// What a failed worker says, in words. Writes into the caller's buffer: faults are found on the scheduler thread.
#pragma once

#include <span>

#include "ccks/plan.hpp"
#include "ccks/wire/control.hpp"

namespace ccks::scheduler {

/// Always null-terminated, cut where the buffer ends.
void describe_fault(const plan::PlanView& plan, std::uint32_t worker, wire::FaultCode code,
                    const wire::WorkerLine& line, std::span<char> out);
void describe_parked(std::uint32_t worker, wire::ParkReason reason, std::span<char> out);

}  // namespace ccks::scheduler

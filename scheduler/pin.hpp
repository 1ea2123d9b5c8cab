// Where the scheduler thread runs.
#pragma once

#include <cstdint>

namespace ccks::scheduler {

/// Pins the calling thread to the last core of the process that `workers` busy workers would leave free, and prefers
/// its memory node. False, and nothing is done, where cores are too few.
bool pin_scheduler_thread(std::uint32_t workers);

}  // namespace ccks::scheduler

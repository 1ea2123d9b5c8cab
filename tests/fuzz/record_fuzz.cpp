// Any bytes as a file of recorded decisions: entries within what the header declares, or a Status; never a crash.
#include <cstdint>
#include <cstdlib>

#include "scheduler/record.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto record = ccks::scheduler::parse_record(std::as_bytes(std::span(data, size)));
  if (!record.ok()) return 0;
  if (record->entries.size() * sizeof(ccks::scheduler::RecordEntry) > size) std::abort();
  for (const ccks::scheduler::RecordEntry& entry : record->entries) {
    if (entry.worker >= record->workers) std::abort();
  }
  return 0;
}

// Recorded decisions (C8): what a record file holds, and reading it. Files are taken as hostile.
//
// Layout, little endian: RecordHeader, then `count` RecordEntry in the order of sending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ccks/plan.hpp"
#include "ccks/result.hpp"
#include "scheduler/policy.hpp"

namespace ccks::scheduler {

inline constexpr std::uint64_t kRecordMagic = 0x31434552534b4343;  // "CCKSREC1"
inline constexpr std::uint32_t kRecordVersion = 2;
inline constexpr std::uint32_t kRecordOverflow = 1;  // flags: entries were lost

struct RecordHeader {
  std::uint64_t magic = kRecordMagic;
  std::uint32_t version = kRecordVersion;
  std::uint32_t header_bytes = 64;
  std::uint64_t plan_hash = 0;
  std::uint32_t workers = 0;
  std::uint32_t policy = 0;  // PolicyKind
  std::uint64_t count = 0;   // entries
  std::uint32_t flags = 0;
  std::uint32_t entry_bytes = 20;
  std::uint32_t spine = 0;   // Spine
  std::uint32_t reserved[3] = {0, 0, 0};
};
static_assert(sizeof(RecordHeader) == 64);

enum class EntryKind : std::uint16_t {
  tiles = 0,      // tile: as Task::tile
  skip = 1,       // the same with kTaskSkip
  signal = 2,     // tile: event, amount; op: the op credited
  list = 3,       // tile: list; amount: 1 with kTaskSkip
  run_start = 4,  // tile, amount: low and high half of the hash of the run's dims
  draft = 5,      // as tiles, sent before the report that says whether they exist
};

struct RecordEntry {
  std::uint32_t run = 0;  // ordinal of the run among all that were started
  std::uint32_t tile = 0;
  std::uint32_t amount = 0;
  std::uint16_t op = 0;
  std::uint16_t worker = 0;
  EntryKind kind = EntryKind::tiles;
  std::uint16_t reserved = 0;
};
static_assert(sizeof(RecordEntry) == 20);

struct Record {
  std::uint64_t plan_hash = 0;
  std::uint32_t workers = 0;
  PolicyKind policy = PolicyKind::lookahead;
  Spine spine = Spine::tiles;
  std::vector<RecordEntry> entries;
};

RecordHeader make_record_header(std::uint64_t plan_hash, std::uint32_t workers, PolicyKind policy, Spine spine);

/// parse_record reads a whole file in memory; invalid_data for anything that make_record_header and the recorder
/// would not have written. Never reads past the span, never allocates more than it.
Result<Record> parse_record(std::span<const std::byte> file);
/// The same from a file; not_found, io_error.
Result<Record> read_record(const std::string& path);
/// check_record holds a record against a plan and a worker count; invalid_argument for another plan or machine shape.
Status check_record(const Record& record, const plan::PlanView& plan, std::uint32_t workers);

}  // namespace ccks::scheduler

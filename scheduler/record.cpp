#include "scheduler/record.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace ccks::scheduler {
namespace {

Status malformed(std::string_view what) { return {ErrorCode::invalid_data, fmt::format("record: {}", what)}; }

Status check_header(const RecordHeader& header, std::size_t bytes) {
  if (header.magic != kRecordMagic) return malformed("not a record of decisions");
  if (header.version != kRecordVersion)
    return malformed(fmt::format("version {}, this build reads {}", header.version, kRecordVersion));
  if (header.header_bytes != sizeof(RecordHeader) || header.entry_bytes != sizeof(RecordEntry))
    return malformed("odd sizes");
  if (header.policy > static_cast<std::uint32_t>(PolicyKind::reactive)) return malformed("an unknown policy");
  if (header.spine > static_cast<std::uint32_t>(Spine::whole)) return malformed("an unknown spine");
  if (header.flags & kRecordOverflow) return malformed("incomplete: the recorder could not keep up");
  const std::uint64_t room = (bytes - sizeof(RecordHeader)) / sizeof(RecordEntry);
  if (header.count != room || (bytes - sizeof(RecordHeader)) % sizeof(RecordEntry) != 0) {
    return malformed(fmt::format("{} entries announced, {} bytes there", header.count, bytes));
  }
  return {};
}

Status check_entry(const RecordEntry& entry, const RecordHeader& header) {
  if (static_cast<std::uint16_t>(entry.kind) > static_cast<std::uint16_t>(EntryKind::draft))
    return malformed("an unknown entry");
  if (entry.worker >= header.workers) return malformed("an entry for a worker that is not there");
  if (entry.op >= wire::kMaxOps) return malformed("an entry for an op that cannot be");
  return {};
}

}  // namespace

RecordHeader make_record_header(std::uint64_t plan_hash, std::uint32_t workers, PolicyKind policy, Spine spine) {
  RecordHeader header;
  header.plan_hash = plan_hash;
  header.workers = workers;
  header.policy = static_cast<std::uint32_t>(policy);
  header.spine = static_cast<std::uint32_t>(spine);
  return header;
}

Result<Record> parse_record(std::span<const std::byte> file) {
  RecordHeader header;
  if (file.size() < sizeof(header)) return malformed("too short for a header");
  std::memcpy(&header, file.data(), sizeof(header));
  CCKS_RETURN_IF_ERROR(check_header(header, file.size()));
  Record record;
  record.plan_hash = header.plan_hash;
  record.workers = header.workers;
  record.policy = static_cast<PolicyKind>(header.policy);
  record.spine = static_cast<Spine>(header.spine);
  record.entries.resize(static_cast<std::size_t>(header.count));
  if (header.count > 0) std::memcpy(record.entries.data(), file.data() + sizeof(header), file.size() - sizeof(header));
  for (const RecordEntry& entry : record.entries) CCKS_RETURN_IF_ERROR(check_entry(entry, header));
  return record;
}

Result<Record> read_record(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    return {errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error,
            fmt::format("{}: {}", path, std::strerror(errno))};
  }
  std::vector<std::byte> bytes;
  std::byte block[65536];
  for (std::size_t got = 0; (got = std::fread(block, 1, sizeof(block), file.get())) > 0;)
    bytes.insert(bytes.end(), block, block + got);
  if (std::ferror(file.get()) != 0) return {ErrorCode::io_error, fmt::format("{}: {}", path, std::strerror(errno))};
  Result<Record> record = parse_record(bytes);
  if (!record.ok()) return {record.status().code(), fmt::format("{}: {}", path, record.status().message())};
  return record;
}

Status check_record(const Record& record, const plan::PlanView& plan, std::uint32_t workers) {
  if (record.plan_hash != plan.hash) {
    return {ErrorCode::invalid_argument,
            fmt::format("the record is of another program ({:016x}, this is {:016x})", record.plan_hash, plan.hash)};
  }
  if (record.workers != workers) {
    return {ErrorCode::invalid_argument,
            fmt::format("the record is of {} workers, this device has {}", record.workers, workers)};
  }
  return {};
}

}  // namespace ccks::scheduler

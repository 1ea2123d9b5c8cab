#include "scheduler/record_file.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ccks::scheduler {
namespace {

std::string aside(const std::string& path) { return fmt::format("{}.{}.tmp", path, static_cast<long>(getpid())); }

EntryKind kind_of(const Decision& decision) {
  if (decision.op == wire::kOpSignal) return EntryKind::signal;
  if (decision.op == wire::kOpList) return EntryKind::list;
  if ((decision.slot_flags & wire::kTaskDraft) != 0) return EntryKind::draft;
  return (decision.slot_flags & wire::kTaskSkip) != 0 ? EntryKind::skip : EntryKind::tiles;
}

std::uint32_t amount_of(const Decision& decision) {
  if (decision.op == wire::kOpSignal) return decision.amount;
  return decision.op == wire::kOpList && (decision.slot_flags & wire::kTaskSkip) != 0 ? 1 : 0;
}

}  // namespace

Result<std::unique_ptr<RecordFile>> RecordFile::create(const std::string& path, const RecordHeader& header) {
  std::FILE* file = std::fopen(aside(path).c_str(), "wb");
  if (file == nullptr) return {ErrorCode::io_error, fmt::format("{}: {}", path, std::strerror(errno))};
  std::unique_ptr<RecordFile> record(new RecordFile(path, header, file));
  if (std::fwrite(&header, sizeof(header), 1, file) != 1) return record->io_error("writing");
  return record;
}

RecordFile::RecordFile(std::string path, const RecordHeader& header, std::FILE* file)
    : path_(std::move(path)), header_(header), file_(file), ring_(kRingEntries) {}

RecordFile::~RecordFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!finished_) std::remove(aside(path_).c_str());
}

void RecordFile::put(const RecordEntry& entry) {
  const std::uint64_t at = written_.load(std::memory_order_relaxed);    // own store
  if (at - flushed_.load(std::memory_order_acquire) == kRingEntries) {  // [D4] pairs with [D3]
    overflow_.store(true, std::memory_order_relaxed);                   // read after the thread has been joined
    return;
  }
  ring_[at % kRingEntries] = entry;
  written_.store(at + 1, std::memory_order_release);  // [D1] pairs with [D2]
}

void RecordFile::on_run_start(const RunSlot& run) {
  const std::uint64_t hash = run.instance.dims_hash();
  put({run.ordinal, static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32), 0, 0,
       EntryKind::run_start, 0});
}

void RecordFile::on_decision(const RunSlot& run, const Decision& decision, std::uint64_t) {
  put({run.ordinal, decision.tile, amount_of(decision), decision.target, decision.worker, kind_of(decision), 0});
}

Status RecordFile::io_error(const char* what) const {
  return {ErrorCode::io_error, fmt::format("{} {}: {}", what, path_, std::strerror(errno))};
}

Status RecordFile::write_some() {
  const std::uint64_t end = written_.load(std::memory_order_acquire);  // [D2] pairs with [D1]
  std::uint64_t at = flushed_.load(std::memory_order_relaxed);         // own, under the mutex
  while (at != end && status_.ok()) {
    const std::uint64_t first = at % kRingEntries;
    const std::uint64_t count = std::min(end - at, kRingEntries - first);
    if (std::fwrite(&ring_[first], sizeof(RecordEntry), count, file_) != count) status_ = io_error("writing");
    at += count;
  }
  flushed_.store(at, std::memory_order_release);  // [D3] pairs with [D4]
  return status_;
}

Status RecordFile::flush() {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // whoever holds it does the same work
  return lock.owns_lock() ? write_some() : Status();
}

Status RecordFile::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) return status_;
  CCKS_RETURN_IF_ERROR(write_some());
  header_.count = flushed_.load(std::memory_order_relaxed);  // own
  header_.flags = overflow_.load(std::memory_order_relaxed) ? kRecordOverflow : 0;
  const bool written = std::fseek(file_, 0, SEEK_SET) == 0 && std::fwrite(&header_, sizeof(header_), 1, file_) == 1;
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!written || !closed || std::rename(aside(path_).c_str(), path_.c_str()) != 0)
    return status_ = io_error("writing");
  finished_ = true;
  return {};
}

}  // namespace ccks::scheduler

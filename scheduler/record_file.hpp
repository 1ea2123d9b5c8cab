// RecordFile: decisions on their way to a file. The scheduler thread puts them into a ring of fixed size; client
// threads write the ring out whenever they come by. If nobody comes for long the ring runs over, and the file says so.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "scheduler/copilot_setup.hpp"
#include "scheduler/record.hpp"

namespace ccks::scheduler {

/// Roles  written_  stored by the scheduler thread [D1], read by clients [D2]
///        flushed_  stored by clients under the mutex [D3], read by the scheduler thread [D4]
class RecordFile final : public DecisionSink {
 public:
  /// Opens a file beside `path`; finish() renames it.
  static Result<std::unique_ptr<RecordFile>> create(const std::string& path, const RecordHeader& header);
  ~RecordFile() override;

  // scheduler thread
  void on_run_start(const RunSlot& run) override;
  void on_decision(const RunSlot& run, const Decision& decision, std::uint64_t now_ns) override;

  /// Client threads: writes what has gathered. io_error stays.
  Status flush();
  /// Writes the rest and the header, and gives the file its name. Only once the scheduler thread is gone.
  Status finish();

 private:
  RecordFile(std::string path, const RecordHeader& header, std::FILE* file);
  void put(const RecordEntry& entry);
  Status write_some();
  Status io_error(const char* what) const;

  static constexpr std::size_t kRingEntries =
      1u << 20;  // 20 MB: a second of the fastest scheduling we measure is 10 times that
  std::string path_;
  RecordHeader header_;
  std::FILE* file_;
  std::vector<RecordEntry> ring_;
  std::atomic<std::uint64_t> written_{0};
  std::atomic<std::uint64_t> flushed_{0};
  std::atomic<bool> overflow_{false};
  std::mutex mutex_;
  Status status_;
  bool finished_ = false;
};

}  // namespace ccks::scheduler

// Record files are taken as hostile.
#include "scheduler/record.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace ccks::scheduler {
namespace {

std::vector<std::byte> file_of(RecordHeader header, const std::vector<RecordEntry>& entries) {
  header.count = entries.size();
  std::vector<std::byte> out(sizeof(header) + entries.size() * sizeof(RecordEntry));
  std::memcpy(out.data(), &header, sizeof(header));
  if (!entries.empty()) std::memcpy(out.data() + sizeof(header), entries.data(), entries.size() * sizeof(RecordEntry));
  return out;
}

RecordEntry entry(std::uint32_t run, std::uint16_t op, std::uint16_t worker) {
  RecordEntry e;
  e.run = run;
  e.op = op;
  e.worker = worker;
  return e;
}

TEST(Record, ReadsWhatWasWritten) {
  const auto file = file_of(make_record_header(7, 3, PolicyKind::reactive, Spine::tiles), {entry(0, 1, 2), entry(5, 6, 0)});
  Result<Record> record = parse_record(file);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  EXPECT_EQ(record->plan_hash, 7u);
  EXPECT_EQ(record->workers, 3u);
  EXPECT_EQ(record->policy, PolicyKind::reactive);
  ASSERT_EQ(record->entries.size(), 2u);
  EXPECT_EQ(record->entries[1].run, 5u);
  EXPECT_EQ(record->entries[1].op, 6u);
}

TEST(Record, RefusesWhatTheRecorderWouldNotWrite) {
  const RecordHeader good = make_record_header(7, 3, PolicyKind::fixed, Spine::whole);
  const auto code = [](const std::vector<std::byte>& file) { return parse_record(file).status().code(); };
  EXPECT_EQ(code(file_of(good, {})), ErrorCode::ok);
  EXPECT_EQ(code(file_of(good, {entry(0, 0, 3)})), ErrorCode::invalid_data) << "worker outside";
  EXPECT_EQ(code(file_of(good, {entry(0, 0xff05, 0)})), ErrorCode::invalid_data) << "control code as op";
  RecordHeader overflow = good;
  overflow.flags = kRecordOverflow;
  EXPECT_EQ(code(file_of(overflow, {})), ErrorCode::invalid_data);
  RecordHeader policy = good;
  policy.policy = 9;
  EXPECT_EQ(code(file_of(policy, {})), ErrorCode::invalid_data);
  RecordHeader spine = good;
  spine.spine = 4;
  EXPECT_EQ(code(file_of(spine, {})), ErrorCode::invalid_data);
  RecordHeader version = good;
  version.version = kRecordVersion + 1;
  EXPECT_EQ(code(file_of(version, {})), ErrorCode::invalid_data);
  auto longer = file_of(good, {entry(0, 0, 0)});
  longer.push_back(std::byte{0});
  EXPECT_EQ(code(longer), ErrorCode::invalid_data);
  RecordHeader huge = good;
  std::vector<std::byte> file = file_of(huge, {});
  huge.count = ~std::uint64_t{0} / sizeof(RecordEntry);
  std::memcpy(file.data(), &huge, sizeof(huge));
  EXPECT_EQ(code(file), ErrorCode::invalid_data);
}

TEST(Record, TruncatedAndFlippedFilesNeverCrash) {
  const auto file =
      file_of(make_record_header(7, 3, PolicyKind::lookahead, Spine::fitting), {entry(0, 1, 2), entry(1, 1, 1), entry(2, 0, 0)});
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(parse_record(std::span(file).first(size)).ok()) << size;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto flipped = file;
    flipped[random() % flipped.size()] = static_cast<std::byte>(random());
    (void)parse_record(flipped).ok();
  }
}

TEST(Record, AnotherProgramOrWorkerCountIsRefused) {
  Record record;
  record.plan_hash = 7;
  record.workers = 3;
  plan::PlanView plan;
  plan.hash = 7;
  EXPECT_TRUE(check_record(record, plan, 3).ok());
  EXPECT_EQ(check_record(record, plan, 4).code(), ErrorCode::invalid_argument);
  plan.hash = 8;
  EXPECT_EQ(check_record(record, plan, 3).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ccks::scheduler

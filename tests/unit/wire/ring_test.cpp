#include "ccks/wire/ring.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "ccks/wire/atoms.hpp"

namespace ccks::wire {
namespace {

constexpr u32 kCapacity = 8;
using Producer = RingProducer<Task, HostAtoms, 4>;
using Consumer = RingConsumer<Task, HostAtoms>;

Task make_task(u32 tile) {
  Task task;
  task.tile = tile;
  task.epoch = ~tile;
  task.op = static_cast<u16>(tile * 7);
  task.slot_flags = static_cast<u16>(tile * 13);
  return task;
}

TEST(Ring, WordsAreTheBytesOfTheStruct) {
  Task task = make_task(0x01020304);
  task.seq = 0xa0b0c0d0;
  const SlotWords words = to_words(task);
  EXPECT_EQ(std::memcmp(&words, &task, sizeof(task)), 0);
  const Task back = from_words<Task>(words);
  EXPECT_EQ(std::memcmp(&back, &task, sizeof(task)), 0);
  Record record{1, 2, 3, 0x1fff, 5};
  const SlotWords record_words = to_words(record);
  EXPECT_EQ(std::memcmp(&record_words, &record, sizeof(record)), 0);
  EXPECT_EQ(record.kind(), RecordKind::report);
  EXPECT_EQ(record.slot(), 0xfffu);
}

TEST(Ring, NothingIsVisibleBeforePublish) {
  std::array<Task, kCapacity> slots{};
  Producer producer(slots.data(), kCapacity);
  Consumer consumer(slots.data(), kCapacity, 0);
  Task out;
  EXPECT_FALSE(consumer.poll(out));
  ASSERT_TRUE(producer.push(make_task(5)));
  EXPECT_FALSE(consumer.poll(out));
  EXPECT_EQ(producer.publish(), 1u);
  ASSERT_TRUE(consumer.poll(out));
  EXPECT_EQ(out.tile, 5u);
  EXPECT_EQ(out.epoch, ~5u);
  EXPECT_FALSE(consumer.poll(out));
}

TEST(Ring, CreditBoundsWhatIsInFlight) {
  std::array<Task, kCapacity> slots{};
  Producer producer(slots.data(), kCapacity);
  for (u32 i = 0; i < kCapacity; ++i) ASSERT_TRUE(producer.push(make_task(i)));
  EXPECT_EQ(producer.room(), 0u);
  EXPECT_FALSE(producer.push(make_task(99)));
  producer.credit(3);
  EXPECT_EQ(producer.room(), 3u);
  producer.credit(2);  // a stale count takes nothing back
  EXPECT_EQ(producer.room(), 3u);
  producer.credit_more(1);
  for (u32 i = 0; i < 4; ++i) EXPECT_TRUE(producer.push(make_task(i)));
  EXPECT_FALSE(producer.push(make_task(99)));
}

TEST(Ring, FullBatchPublishesItselfAndTrafficIsCounted) {
  alignas(64) std::array<Task, kCapacity> slots{};
  Producer producer(slots.data(), kCapacity);
  for (u32 i = 0; i < 5; ++i) ASSERT_TRUE(producer.push(make_task(i)));
  EXPECT_EQ(producer.published(), 4u);
  EXPECT_EQ(producer.position(), 5u);
  EXPECT_EQ(producer.traffic().publications, 1u);
  EXPECT_EQ(producer.traffic().link_writes, 1u);  // slots 0..3: one 64-byte line
  EXPECT_EQ(producer.publish(), 1u);
  EXPECT_EQ(producer.publish(), 0u);              // an empty batch is no publication
  EXPECT_EQ(producer.traffic().items, 5u);
  EXPECT_EQ(producer.traffic().publications, 2u);
  for (u32 i = 5; i < 8; ++i) ASSERT_TRUE(producer.push(make_task(i)));
  producer.publish();
  EXPECT_EQ(producer.traffic().link_writes, 3u);  // 1 for slots 0..3, 1 for slot 4, 1 for slots 5..7
}

TEST(Ring, PollManyStopsAtTheFirstGap) {
  std::array<Task, kCapacity> slots{};
  Producer producer(slots.data(), kCapacity);
  for (u32 i = 0; i < 3; ++i) ASSERT_TRUE(producer.push(make_task(i)));
  producer.publish();
  slots[4] = make_task(77);
  slots[4].seq = 5;  // valid, but slot 3 before it is not
  std::array<Task, kCapacity> out;
  Consumer consumer(slots.data(), kCapacity, 0);
  EXPECT_EQ(consumer.poll_many(out.data(), 2), 2u);
  EXPECT_EQ(consumer.poll_many(out.data(), kCapacity), 1u);
  EXPECT_EQ(consumer.position(), 3u);
}

class RingWrap : public ::testing::TestWithParam<u32> {};
INSTANTIATE_TEST_SUITE_P(Starts, RingWrap, ::testing::Values(0u, 0xffffffe0u, 0xfffffff8u, 0x7ffffff0u));

TEST_P(RingWrap, SequenceNumbersWrapAt32Bits) {
  const u32 start = GetParam();
  std::array<Task, kCapacity> slots{};
  // Before `start` somebody filled every slot: a ring that stands there is never fresh.
  for (u32 i = 0; i < kCapacity && start != 0; ++i) {
    const u32 position = start - kCapacity + i;
    slots[position % kCapacity].seq = ring_seq(position);
  }
  Producer producer(slots.data(), kCapacity, start, start);
  Consumer consumer(slots.data(), kCapacity, start);
  u32 pushed = 0, taken = 0;
  for (int round = 0; round < 40; ++round) {
    while (pushed < 200 && producer.push(make_task(pushed))) ++pushed;
    producer.publish();
    Task out;
    for (int i = 0; i < 5 && consumer.poll(out); ++i) ASSERT_EQ(out.tile, taken++);
    ASSERT_LE(producer.in_flight(), kCapacity);
    producer.credit(consumer.position());
  }
  EXPECT_EQ(taken, 200u);
  EXPECT_EQ(consumer.position(), start + 200);
}

TEST(Ring, ResumesWhereItStopped) {
  std::array<Task, kCapacity> slots{};
  Producer first(slots.data(), kCapacity);
  for (u32 i = 0; i < 6; ++i) ASSERT_TRUE(first.push(make_task(i)));
  first.publish();
  Consumer reader(slots.data(), kCapacity, 0);
  Task out;
  for (u32 i = 0; i < 4; ++i) ASSERT_TRUE(reader.poll(out));
  Producer second(slots.data(), kCapacity, first.position(), reader.position());
  EXPECT_EQ(second.room(), kCapacity - 2);
  ASSERT_TRUE(second.push(make_task(6)));
  second.publish();
  Consumer again(slots.data(), kCapacity, reader.position());
  for (u32 i = 4; i < 7; ++i) {
    ASSERT_TRUE(again.poll(out));
    EXPECT_EQ(out.tile, i);
  }
}

}  // namespace
}  // namespace ccks::wire

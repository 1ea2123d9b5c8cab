// Litmus tests of the wire protocol between two threads: message passing, torn slots, ring wrap, events.
//
// CCKS_LITMUS=1e8 sets the number of hand-overs (default 2e6, for CI); the two tests in which every hand-over is a round trip
// between threads make an eighth of that. 1e8 takes some ten minutes on two cores.
// They run under ThreadSanitizer too (CCKS_SANITIZE=thread), where plain payloads also prove that every access is ordered.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "ccks/wire/atoms.hpp"
#include "ccks/wire/event.hpp"

namespace ccks::wire {
namespace {

u64 hand_overs() {
  const char* text = std::getenv("CCKS_LITMUS");
  const double wanted = text != nullptr ? std::atof(text) : 2e6;
  return wanted < 1000 ? 1000 : static_cast<u64>(wanted);
}

/// Gives the core away now and then: the other side may have to run on it.
struct Backoff {
  u32 turns = 0;
  void wait() {
    if (++turns % 64 == 0) std::this_thread::yield();
  }
};

/// All four fields of a task say the same number, so a slot put together from two writes shows.
Task patterned(u32 i) {
  Task task;
  task.tile = i;
  task.epoch = ~i;
  task.op = static_cast<u16>(i * 40503u);
  task.slot_flags = static_cast<u16>((i >> 16) ^ i);
  return task;
}
bool is_patterned(const Task& t, u32 i) {
  const Task want = patterned(i);
  return t.tile == want.tile && t.epoch == want.epoch && t.op == want.op && t.slot_flags == want.slot_flags;
}

struct alignas(kCacheLineBytes) Consumed {
  u32 count = 0;
};

/// Counts of one run of a ring between two threads.
struct RingResult {
  u64 taken = 0;
  u64 wrong_slots = 0;     // torn, lost or doubled
  u64 wrong_payloads = 0;  // message passing: the slot came before what it announces
};

/// One producer, one consumer. `payload` is plain memory next to the ring: slot p announces payload[p % capacity].
RingResult run_ring(u32 capacity, u32 start, u64 total) {
  std::vector<Task> slots(capacity);
  for (u32 i = 0; i < capacity && start != 0; ++i) slots[(start - capacity + i) % capacity].seq = start - capacity + i + 1;
  std::vector<u64> payload(capacity, 0);
  Consumed consumed;
  consumed.count = start;
  RingResult result;
  std::thread consumer([&] {
    RingConsumer<Task, HostAtoms> ring(slots.data(), capacity, start);
    Backoff backoff;
    Task task;
    for (u64 i = 0; i < total;) {
      if (!ring.poll(task)) {
        backoff.wait();
        continue;
      }
      result.wrong_slots += !is_patterned(task, static_cast<u32>(i));
      result.wrong_payloads += payload[(start + static_cast<u32>(i)) % capacity] != i * 3 + 1;
      HostAtoms::link_store_release(&consumed.count, ring.position());
      ++i;
    }
    result.taken = total;
  });
  RingProducer<Task, HostAtoms, 8> ring(slots.data(), capacity, start, start);
  Backoff backoff;
  for (u64 i = 0; i < total;) {
    if (ring.room() == 0) {
      ring.publish();
      ring.credit(HostAtoms::link_load_acquire(&consumed.count));
      if (ring.room() == 0) backoff.wait();
      continue;
    }
    payload[ring.position() % capacity] = i * 3 + 1;
    EXPECT_TRUE(ring.push(patterned(static_cast<u32>(i))));
    if (i % 5 == 0) ring.publish();
    ++i;
  }
  ring.publish();
  consumer.join();
  return result;
}

void expect_clean(const RingResult& result, u64 total) {
  EXPECT_EQ(result.taken, total);
  EXPECT_EQ(result.wrong_slots, 0u);
  EXPECT_EQ(result.wrong_payloads, 0u);
}

TEST(Litmus, MessagePassingThroughARing) {
  const u64 total = hand_overs();
  expect_clean(run_ring(64, 0, total), total);
}

TEST(Litmus, SlotsAreNeverTorn) {
  // One slot: the reader polls the very words that are being written, in every hand-over.
  const u64 total = hand_overs() / 8;
  expect_clean(run_ring(1, 0, total), total);
}

TEST(Litmus, RingAcrossTheSequenceWrap) {
  const u64 total = hand_overs();
  expect_clean(run_ring(16, 0xfffffff0u - static_cast<u32>(total / 2) / 16 * 16, total), total);
}

TEST(Litmus, EventsCarryWhatTheirSignalsPublish) {
  // Two producers write plain words and signal; a consumer that sees the target reads both. Counter and epochs wrap.
  const u64 total = hand_overs() / 16;
  const u32 base = 0xffff0000u;
  struct alignas(kCacheLineBytes) Word {
    u64 value = 0;
  };
  Word words[2], event_line, done_line;
  u32* event = reinterpret_cast<u32*>(&event_line.value);
  u32* done = reinterpret_cast<u32*>(&done_line.value);
  *event = base;
  const auto produce = [&](int who) {
    Backoff backoff;
    for (u64 run = 0; run < total; ++run) {
      while (!event_reached(HostAtoms::event_load_acquire(done), static_cast<u32>(run))) backoff.wait();
      words[who].value = run * 7 + static_cast<u64>(who);
      HostAtoms::event_add_release(event, 1);
    }
  };
  std::thread first(produce, 0), second(produce, 1);
  u64 wrong = 0;
  Backoff backoff;
  for (u64 run = 0; run < total; ++run) {
    const u32 target = event_target(base, static_cast<u32>(run), 0, 2);
    while (!event_reached(HostAtoms::event_load_acquire(event), target)) backoff.wait();
    wrong += words[0].value != run * 7;
    wrong += words[1].value != run * 7 + 1;
    HostAtoms::event_add_release(done, 1);
  }
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace ccks::wire

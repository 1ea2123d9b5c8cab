// Litmus tests of the wire protocol with a GPU at one end or both: message passing, ring wrap, torn slots, events.
//
// CCKS_LITMUS=1e9 sets the number of hand-overs of each test (default 2e6); on an H200 1e9 take seconds, since tens of
// thousands of rings run at once. Every spin, on either side, gives up after kDeadline and is then reported as late.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(CCKS_HAVE_CUDA)

#include "ccks/wire/atoms.hpp"
#include "tests/support/cuda_kernels.hpp"
#include "tests/support/litmus.hpp"

extern "C" const unsigned char ccks_image_litmus[];

namespace ccks::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline{10};

u64 hand_overs() {
  const char* text = std::getenv("CCKS_LITMUS");
  const double wanted = text != nullptr ? std::atof(text) : 2e6;
  return wanted < 1000 ? 1000 : static_cast<u64>(wanted);
}

u32 host_threads() { return std::clamp(std::thread::hardware_concurrency(), 1u, 16u); }

LitmusCounts sum_of(const std::vector<LitmusCounts>& counts) {
  LitmusCounts sum;
  for (const LitmusCounts& each : counts) {
    sum.taken += each.taken;
    sum.wrong_slots += each.wrong_slots;
    sum.wrong_payloads += each.wrong_payloads;
    sum.late += each.late;
  }
  return sum;
}

void expect_clean(const LitmusCounts& end, u64 total) {
  EXPECT_EQ(end.taken, total);
  EXPECT_EQ(end.wrong_slots, 0u);
  EXPECT_EQ(end.wrong_payloads, 0u);
  EXPECT_EQ(end.late, 0u);
}

u64 total_of(const LitmusParams& p) { return p.trials * p.rings; }

/// So many positions before the wrap that a ring crosses it in the middle of its trials.
u32 before_the_wrap(u64 trials) { return 0u - static_cast<u32>(trials / 2); }

constexpr u32 kLanes = 128;  // threads a block of the kernels that have a ring a lane

using HostEnd = LitmusCounts (*)(const LitmusParams&);

class LitmusCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    auto kernels = CudaKernels::open(ccks_image_litmus);
    if (!kernels.ok() && kernels.status().code() == ErrorCode::unavailable) GTEST_SKIP() << kernels.status().to_string();
    ASSERT_TRUE(kernels.ok()) << kernels.status().to_string();
    kernels_ = std::move(kernels.value());
  }

  u64 allocate(u64 bytes, MemoryKind kind) {
    auto address = kernels_->device().allocate(bytes, kind);
    EXPECT_TRUE(address.ok()) << address.status().to_string();
    return address.ok() ? address.value() : 0;
  }

  /// Rings of `capacity` slots whose first position is `start`, in memory of `kind`; `total` hand-overs, shared out.
  LitmusParams make_rings(u32 rings, u32 capacity, u32 start, u64 total, MemoryKind kind) {
    LitmusParams p{};
    p.rings = rings;
    p.capacity = capacity;
    p.start = start;
    p.trials = std::max<u64>(total / rings, 4 * std::min(capacity, 16u));
    p.deadline_ns = static_cast<u64>(std::chrono::nanoseconds(kDeadline).count());
    const u64 slots = u64{rings} * capacity;
    p.slots = allocate(slots * sizeof(wire::Task), kind);
    p.payload = allocate(slots * sizeof(u64), kind);
    p.consumed = allocate(rings * sizeof(u32), kind);
    p.counts = allocate(rings * 2 * sizeof(LitmusCounts), MemoryKind::device);
    std::vector<wire::Task> primed(slots);  // as if the ring had been used up to `start`
    for (u64 i = 0; i < slots && start != 0; ++i) {
      const u32 position = start - capacity + static_cast<u32>(i) % capacity;
      primed[i / capacity * capacity + position % capacity].seq = wire::ring_seq(position);
    }
    EXPECT_TRUE(put(p.slots, primed, kind).ok());
    EXPECT_TRUE(put(p.consumed, std::vector<u32>(rings, start), kind).ok());
    return p;
  }
  template <class T>
  Status put(u64 to, const std::vector<T>& from, MemoryKind kind) {
    if (kind == MemoryKind::device) return kernels_->device().write(to, from.data(), from.size() * sizeof(T));
    std::memcpy(reinterpret_cast<void*>(to), from.data(), from.size() * sizeof(T));
    return {};
  }

  void launch(const char* kernel, u32 blocks, u32 threads, LitmusParams& p) {
    const Status status = kernels_->launch(kernel, blocks, threads, &p);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  /// Waits for the kernel and adds up its counts: `ends` of them.
  LitmusCounts gpu_counts(const LitmusParams& p, u32 ends) {
    const Status status = kernels_->wait(std::chrono::seconds(300));
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<LitmusCounts> counts(ends);
    EXPECT_TRUE(kernels_->device().read(counts.data(), p.counts, ends * sizeof(LitmusCounts)).ok());
    return sum_of(counts);
  }

  /// `rings_each` rings a processor of `capacity` slots between `kernel` and `host`; both ends count every hand-over.
  void hand_over(const char* kernel, HostEnd host, u32 rings_each, u32 threads, u32 capacity, bool wraps = false) {
    const u32 blocks = kernels_->processors();
    const u32 rings = blocks * rings_each;
    LitmusParams p = make_rings(rings, capacity, wraps ? before_the_wrap(hand_overs() / rings) : 0, hand_overs(), MemoryKind::link);
    launch(kernel, blocks, threads, p);
    const LitmusCounts made = host(p);
    expect_clean(gpu_counts(p, p.rings), total_of(p));
    expect_clean(made, total_of(p));
  }

  std::unique_ptr<CudaKernels> kernels_;
};

/// Calls `serve(ring)` for the rings of each thread in turn; it says how many hand-overs that made. Ends when every ring
/// has made its trials, or when nothing has happened for the deadline.
template <class Serve>
LitmusCounts serve_rings(const LitmusParams& p, Serve serve) {
  const u32 threads = std::min(host_threads(), p.rings);
  std::vector<LitmusCounts> counts(threads);
  const auto work = [&](u32 thread) {
    // Neighbours share cache lines: rings of a thread lie side by side.
    const u32 first = static_cast<u32>(u64{p.rings} * thread / threads);
    const u32 end = static_cast<u32>(u64{p.rings} * (thread + 1) / threads);
    u64 left = (end - first) * p.trials;
    auto last = Clock::now();
    LitmusCounts mine;
    while (left > 0 && mine.late == 0) {
      u64 made = 0;
      for (u32 r = first; r < end; ++r) made += serve(r, mine);
      left -= made;
      mine.taken += made;
      if (made > 0)
        last = Clock::now();
      else
        mine.late = Clock::now() - last > kDeadline ? 1 : 0;
    }
    counts[thread] = mine;
  };
  std::vector<std::thread> running;
  for (u32 t = 1; t < threads; ++t) running.emplace_back(work, t);
  work(0);
  for (std::thread& each : running) each.join();
  return sum_of(counts);
}

wire::Task* slots_of(const LitmusParams& p, u32 ring) {
  return reinterpret_cast<wire::Task*>(p.slots) + u64{ring} * p.capacity;
}
u64* payload_of(const LitmusParams& p, u32 ring) { return reinterpret_cast<u64*>(p.payload) + u64{ring} * p.capacity; }
u32* consumed_of(const LitmusParams& p, u32 ring) { return reinterpret_cast<u32*>(p.consumed) + ring; }

/// The host's end of rings that the GPU reads.
LitmusCounts host_produces(const LitmusParams& p) {
  constexpr u32 kBatch = 8;
  using Producer = wire::RingProducer<wire::Task, wire::HostAtoms, kBatch>;
  struct Ring {
    Producer slots;
    u64 made = 0;
  };
  std::vector<Ring> rings;
  for (u32 r = 0; r < p.rings; ++r) rings.push_back({Producer(slots_of(p, r), p.capacity, p.start, p.start)});
  return serve_rings(p, [&](u32 r, LitmusCounts&) {
    Ring& ring = rings[r];
    if (ring.made == p.trials) return u64{0};
    ring.slots.credit(wire::HostAtoms::link_load_acquire(consumed_of(p, r)));  // [R4]
    const u64 count = std::min<u64>({ring.slots.room(), p.trials - ring.made, 32});
    for (u64 i = 0; i < count; ++i) {
      payload_of(p, r)[ring.slots.position() % p.capacity] = litmus_payload(r, ring.made);
      EXPECT_TRUE(ring.slots.push(litmus_task(r, ring.made++)));
    }
    ring.slots.publish();  // [R1]
    return count;
  });
}

/// The host's end of rings that the GPU writes.
LitmusCounts host_consumes(const LitmusParams& p) {
  struct Ring {
    wire::RingConsumer<wire::Task, wire::HostAtoms> slots;
    u64 taken = 0;
  };
  std::vector<Ring> rings;
  for (u32 r = 0; r < p.rings; ++r) rings.push_back({{slots_of(p, r), p.capacity, p.start}});
  return serve_rings(p, [&](u32 r, LitmusCounts& counts) {
    Ring& ring = rings[r];
    wire::Task task;
    u64 count = 0;
    for (; ring.taken < p.trials && count < 32; ++count, ++ring.taken) {
      const u32 position = ring.slots.position();
      if (!ring.slots.poll(task)) break;  // [R2]
      counts.wrong_slots += !is_litmus_task(task, r, ring.taken);
      counts.wrong_payloads += payload_of(p, r)[position % p.capacity] != litmus_payload(r, ring.taken);
    }
    if (count != 0) wire::HostAtoms::link_store_release(consumed_of(p, r), ring.slots.position());  // [R3]
    return count;
  });
}

/// The host passes on what one block tells it to another. Rings p.rings and up are those that it writes.
LitmusCounts host_relays(const LitmusParams& p) {
  struct Ring {
    wire::RingConsumer<wire::Task, wire::HostAtoms> from;
    wire::RingWriter<wire::Task, wire::HostAtoms> to;
    u64 taken = 0;
  };
  std::vector<Ring> rings;
  for (u32 r = 0; r < p.rings; ++r) {
    rings.push_back({{slots_of(p, r), p.capacity, p.start}, {slots_of(p, p.rings + r), p.capacity, p.start}});
  }
  return serve_rings(p, [&](u32 r, LitmusCounts& counts) {
    Ring& ring = rings[r];
    wire::Task task;
    u64 count = 0;
    for (; ring.taken < p.trials && count < 32; ++count, ++ring.taken) {
      if (!ring.from.poll(task)) break;  // [R2]
      counts.wrong_slots += !is_litmus_task(task, r, ring.taken);
      ring.to.put_release(task);  // [R1]
    }
    return count;
  });
}

TEST_F(LitmusCuda, MessagesFromHostToGpu) { hand_over("litmus_consume_warp", host_produces, 4, kLanes, 256); }
TEST_F(LitmusCuda, MessagesFromGpuToHost) { hand_over("litmus_produce", host_consumes, 32, 32, 32); }

// One slot: each side polls the very words that the other is writing.
TEST_F(LitmusCuda, SlotsFromHostToGpuAreNeverTorn) { hand_over("litmus_consume", host_produces, kLanes, kLanes, 1); }
TEST_F(LitmusCuda, SlotsFromGpuToHostAreNeverTorn) { hand_over("litmus_produce", host_consumes, kLanes, kLanes, 1); }

TEST_F(LitmusCuda, RingsFromHostToGpuAcrossTheSequenceWrap) {
  hand_over("litmus_consume", host_produces, kLanes, kLanes, 4, true);
}
TEST_F(LitmusCuda, RingsFromGpuToHostAcrossTheSequenceWrap) {
  hand_over("litmus_produce", host_consumes, kLanes, kLanes, 1, true);
}

TEST_F(LitmusCuda, MessagesBetweenBlocks) {
  const u32 pairs = kernels_->processors() / 2;
  LitmusParams p = make_rings(pairs * kLanes, 2, before_the_wrap(hand_overs() / (pairs * kLanes)), hand_overs(),
                              MemoryKind::device);
  launch("litmus_blocks", pairs * 2, kLanes, p);
  expect_clean(gpu_counts(p, p.rings * 2), total_of(p) * 2);
}

TEST_F(LitmusCuda, WhatStaysOnTheGpuIsThereBeforeTheHostsWordOfIt) {
  const u32 pairs = kernels_->processors() / 2;
  LitmusParams p = make_rings(pairs * kLanes * 2, 2, 0, hand_overs(), MemoryKind::link);
  p.rings /= 2;  // as many again lead back to the GPU
  p.payload = allocate(u64{p.rings} * p.capacity * sizeof(u64), MemoryKind::device);
  p.consumed = allocate(p.rings * sizeof(u32), MemoryKind::device);
  ASSERT_TRUE(put(p.consumed, std::vector<u32>(p.rings, p.start), MemoryKind::device).ok());
  launch("litmus_relay", pairs * 2, kLanes, p);
  expect_clean(host_relays(p), total_of(p));
  expect_clean(gpu_counts(p, p.rings * 2), total_of(p) * 2);
}

TEST_F(LitmusCuda, EventsCarryWhatTheirSignalsPublish) {
  // Counters start shortly before they wrap.
  const u32 triples = kernels_->processors() / 3;
  LitmusParams p = make_rings(triples * kLanes, 2, 0u - 32, hand_overs() / 2, MemoryKind::device);
  ASSERT_TRUE(put(p.slots, std::vector<u32>(p.rings, p.start), MemoryKind::device).ok());
  launch("litmus_events", triples * 3, kLanes, p);
  expect_clean(gpu_counts(p, p.rings), total_of(p));
}

TEST_F(LitmusCuda, EventsCarryWhatABlockWroteBeforeItsBarrier) {
  const u32 pairs = kernels_->processors() / 2;
  LitmusParams p = make_rings(pairs * kLanes, 1, 0u - 32, hand_overs(), MemoryKind::device);
  p.slots = allocate(pairs * 32 * sizeof(u32), MemoryKind::device);
  p.consumed = allocate(pairs * 32 * sizeof(u32), MemoryKind::device);
  for (const u64 events : {p.slots, p.consumed}) {
    ASSERT_TRUE(put(events, std::vector<u32>(pairs * 32, p.start), MemoryKind::device).ok());
  }
  launch("litmus_barrier", pairs * 2, kLanes, p);
  expect_clean(gpu_counts(p, p.rings), total_of(p));
}

// The same hand-overs without acquire and release must be seen to fail, or the tests above prove nothing.
TEST_F(LitmusCuda, HandOversWithoutOrderAreNoticed) {
  const u32 blocks = kernels_->processors();
  LitmusParams rings = make_rings(blocks / 2 * kLanes, 2, 0, 2'000'000, MemoryKind::device);
  launch("litmus_blocks_unordered", blocks / 2 * 2, kLanes, rings);
  EXPECT_GT(gpu_counts(rings, rings.rings).wrong_payloads, 0u);
  LitmusParams events = make_rings(blocks / 3 * kLanes, 2, 0, 2'000'000, MemoryKind::device);
  launch("litmus_events_unordered", blocks / 3 * 3, kLanes, events);
  EXPECT_GT(gpu_counts(events, events.rings).wrong_payloads, 0u);
}

}  // namespace
}  // namespace ccks::test

#else

TEST(LitmusCuda, All) { GTEST_SKIP() << "built without CUDA"; }

#endif

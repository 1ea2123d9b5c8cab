// Runs GenericOps for the other tests of this folder, and checks what holds for all kinds. The ops are compiled here
// only.
#include "ccks/worker/generic_ops.hpp"

#include <atomic>
#include <barrier>
#include <thread>

#include "ccks/worker/platform_host.hpp"
#include "tests/unit/worker/emulated_warps.hpp"
#include "tests/unit/worker/ops_fixture.hpp"

namespace ccks::worker::test {
namespace {

/// A worker of several threads: what a thread block is to the ops, without a GPU.
struct EmulatedBlock {
  static constexpr u32 kLanes = 3;
  std::barrier<> barrier{kLanes};
  alignas(128) u8 scratch[kMinScratchBytes];
  double slots[kLanes];
  i64 int_slots[kLanes];
};

class EmulatedLanes {
 public:
  static constexpr bool kSingleLane = false;
  EmulatedLanes(EmulatedBlock& block, u32 lane) : block_(block), lane_(lane) {}
  u32 lane() const { return lane_; }
  u32 lanes() const { return EmulatedBlock::kLanes; }
  void sync() { block_.barrier.arrive_and_wait(); }
  u32 count_in(u32* word) { return std::atomic_ref<u32>(*word).fetch_add(1, std::memory_order_acq_rel); }
  u8* scratch() { return block_.scratch; }
  u32 scratch_bytes() const { return sizeof block_.scratch; }
  template <class T>
  T sum(T v) {
    return fold(v, [](T a, T b) { return static_cast<T>(a + b); });
  }
  template <class T>
  T max(T v) {
    return fold(v, [](T a, T b) { return a > b ? a : b; });
  }
  template <class T>
  T min(T v) {
    return fold(v, [](T a, T b) { return a < b ? a : b; });
  }

 private:
  template <class T, class F>
  T fold(T v, F f) {
    if constexpr (std::is_floating_point_v<T>)
      block_.slots[lane_] = v;
    else
      block_.int_slots[lane_] = v;
    sync();
    const auto slot = [&](u32 i) {
      return std::is_floating_point_v<T> ? static_cast<T>(block_.slots[i]) : static_cast<T>(block_.int_slots[i]);
    };
    T all = slot(0);
    for (u32 i = 1; i < EmulatedBlock::kLanes; ++i) all = f(all, slot(i));
    sync();
    return all;
  }
  EmulatedBlock& block_;
  u32 lane_;
};

template <class Lanes>
FaultCode run_all(Lanes& lanes, const wire::RunFrame& frame, const wire::OpParams& op) {
  FaultCode first = FaultCode::none;
  for (u32 tile = 0; tile < op.tile_count; ++tile) {
    const FaultCode fault = GenericOps::run(lanes, frame, op, tile);
    GenericOps::prefetch(lanes.lane(), lanes.lanes(), frame, op, tile);
    if (first == FaultCode::none) first = fault;
    lanes.sync();
  }
  return first;
}

FaultCode run_emulated(const wire::RunFrame& frame, const wire::OpParams& op) {
  EmulatedBlock block;
  std::memset(block.scratch, 0xff, sizeof block.scratch);
  FaultCode faults[EmulatedBlock::kLanes];
  std::vector<std::thread> threads;
  for (u32 lane = 0; lane < EmulatedBlock::kLanes; ++lane)
    threads.emplace_back([&, lane] {
      EmulatedLanes lanes(block, lane);
      faults[lane] = run_all(lanes, frame, op);
    });
  for (std::thread& t : threads) t.join();
  for (const FaultCode f : faults) EXPECT_EQ(f, faults[0]) << "lanes disagree about a fault";
  return faults[0];
}

FaultCode run_warps(const wire::RunFrame& frame, const wire::OpParams& op) {
  static WarpBlock block;
  FaultCode faults[WarpBlock::kLanes];
  block.run([&](u32 lane) {
    EmulatedWarps lanes(block, lane);
    faults[lane] = run_all(lanes, frame, op);
  });
  for (const FaultCode f : faults) EXPECT_EQ(f, faults[0]) << "lanes disagree about a fault";
  return faults[0];
}

FaultCode run_host(u32 scratch_bytes, const wire::RunFrame& frame, const wire::OpParams& op) {
  std::vector<u8> memory(scratch_bytes + 128, 0xff);
  u8* scratch = memory.data() + (128 - reinterpret_cast<std::uintptr_t>(memory.data()) % 128);
  HostLanes lanes(scratch, scratch_bytes);
  return run_all(lanes, frame, op);
}

}  // namespace

FaultCode run_tiles(Machine machine, const wire::RunFrame& frame, const wire::OpParams& op) {
  switch (machine) {
    case Machine::host:
      return run_host(512 * 1024, frame, op);
    case Machine::host_small_scratch:
      return run_host(kMinScratchBytes, frame, op);
    case Machine::emulated_warps:
      return run_warps(frame, op);
    default:
      return run_emulated(frame, op);
  }
}

TEST(GenericOps, RefusesWhatItDoesNotKnow) {
  Bench b(1);
  const Tensor x = b.tensor(Dtype::f32, {1, 1, 2, 3});
  b.operands = {x, x};
  b.grid({1, 1, 2, 3});
  for (const Machine machine : {Machine::host, Machine::emulated, Machine::emulated_warps}) {
    EXPECT_EQ(b.run(machine, OpCode::custom, 1), FaultCode::bad_op);
    EXPECT_EQ(b.run(machine, static_cast<OpCode>(200), 1), FaultCode::bad_op);
  }
}

TEST(GenericOps, RefusesTilesBeyondTheGrid) {
  Bench b(2);
  const Tensor x = b.tensor(Dtype::f32, {1, 1, 2, 3});
  b.operands = {x, x};
  b.grid({1, 1, 2, 3});
  wire::OpParams op = b.op;
  op.tile_count = 0;
  alignas(16) wire::RunFrame frame{};
  std::vector<u8> scratch(1024);
  HostLanes lanes(scratch.data(), 1024);
  EXPECT_EQ(GenericOps::run(lanes, frame, op, 0), FaultCode::bad_op);
}

}  // namespace ccks::worker::test

// The GPU's end of the litmus tests (litmus_cuda_test.cpp). Rings, events and their accesses are the library's own; plain
// loads and stores of `payload` are what they must order.
//
// One lane is one end of a ring of its own, so tens of thousands of hand-overs are under way at once; in
// litmus_consume_warp a warp reads 32 slots at a time, as workers do.
#include "ccks/wire/event.hpp"
#include "ccks/worker/platform_cuda.hpp"
#include "tests/support/litmus.hpp"

namespace {

using namespace ccks;
using test::LitmusCounts;
using test::LitmusParams;
using wire::u32;
using wire::u64;
using worker::CudaAtoms;

/// The same accesses without their order: what the tests must notice.
struct UnorderedAtoms : CudaAtoms {
  __device__ static wire::SlotWords load_slot_acquire(const void* slot) {
    const u64* words = static_cast<const u64*>(slot);
    const u64 high = worker::ptx::ld_relaxed_sys(words + 1);
    return {worker::ptx::ld_relaxed_sys(words), high};
  }
  __device__ static void store_slot_release(void* slot, const wire::SlotWords& w) { store_slot_relaxed(slot, w); }
  __device__ static u32 link_load_acquire(const u32* p) { return worker::ptx::ld_relaxed_sys(p); }
  __device__ static void link_store_release(u32* p, u32 v) { worker::ptx::st_relaxed_sys(p, v); }
  __device__ static u32 event_load_acquire(const u32* p) { return worker::ptx::ld_relaxed_sys(p); }
  __device__ static void event_add_release(u32* p, u32 v) { atomicAdd(p, v); }
};

/// What a worker's answers do: the slot crosses the link, what it announces stays on the GPU.
struct AnswerAtoms : CudaAtoms {
  __device__ static void store_slot_release(void* slot, const wire::SlotWords& w) { store_slot_release_device(slot, w); }  // [R5]
};

/// Ends a wait: true once nothing has happened for the deadline.
struct Patience {
  u64 limit_ns;
  u64 since = worker::ptx::globaltimer();

  __device__ void progress() { since = worker::ptx::globaltimer(); }
  __device__ bool over() const { return worker::ptx::globaltimer() - since > limit_ns; }
};

struct RingMemory {
  wire::Task* slots;
  u64* payload;
  u32* consumed;

  __device__ RingMemory(const LitmusParams& p, u32 ring)
      : slots(reinterpret_cast<wire::Task*>(p.slots) + static_cast<u64>(ring) * p.capacity),
        payload(reinterpret_cast<u64*>(p.payload) + static_cast<u64>(ring) * p.capacity),
        consumed(reinterpret_cast<u32*>(p.consumed) + ring) {}
};

__device__ void finish(const LitmusParams& p, u32 ring, const LitmusCounts& counts) {
  reinterpret_cast<LitmusCounts*>(p.counts)[ring] = counts;
}

template <class Atoms>
__device__ void consume(const LitmusParams& p, u32 ring) {
  const RingMemory memory(p, ring);
  wire::RingConsumer<wire::Task, Atoms> slots(memory.slots, p.capacity, p.start);
  LitmusCounts counts;
  Patience patience{p.deadline_ns};
  while (counts.taken < p.trials && counts.late == 0) {
    const u32 position = slots.position();
    wire::Task task;
    if (!slots.poll(task)) {  // [R2]
      counts.late = patience.over() ? 1 : 0;
      continue;
    }
    counts.wrong_slots += test::is_litmus_task(task, ring, counts.taken) ? 0 : 1;
    counts.wrong_payloads += memory.payload[position % p.capacity] == test::litmus_payload(ring, counts.taken) ? 0 : 1;
    Atoms::link_store_release(memory.consumed, slots.position());  // [R3]
    ++counts.taken;
    patience.progress();
  }
  finish(p, ring, counts);
}

/// All lanes of a warp call it.
template <class Atoms>
__device__ void produce(const LitmusParams& p, u32 ring) {
  const RingMemory memory(p, ring);
  wire::RingProducer<wire::Task, Atoms, 1> slots(memory.slots, p.capacity, p.start, p.start);
  LitmusCounts counts;
  Patience patience{p.deadline_ns};
  // The lanes of a warp go round together: else each of them would pay for its release alone.
  for (;;) {
    const bool active = counts.taken < p.trials && counts.late == 0;
    const u32 together = __ballot_sync(0xffffffffu, active);
    if (together == 0) break;
    if (!active) continue;
    if (slots.room() == 0) slots.credit(Atoms::link_load_acquire(memory.consumed));  // [R4]
    const bool room = slots.room() != 0;
    __syncwarp(together);
    if (room) {
      memory.payload[slots.position() % p.capacity] = test::litmus_payload(ring, counts.taken);
      slots.push(test::litmus_task(ring, counts.taken));
      slots.publish();  // [R1]
      ++counts.taken;
      patience.progress();
    } else {
      counts.late = patience.over() ? 1 : 0;
    }
  }
  finish(p, ring, counts);
}

/// Even blocks produce, odd blocks consume, lane to lane.
template <class Atoms>
__device__ void between_blocks(const LitmusParams& p) {
  const u32 ring = blockIdx.x / 2 * blockDim.x + threadIdx.x;
  if (ring >= p.rings) return;
  if (blockIdx.x % 2 == 0) {
    LitmusParams mine = p;
    mine.counts += sizeof(LitmusCounts) * p.rings;  // the producers' counts stand behind the consumers'
    produce<Atoms>(mine, ring);
  } else {
    consume<Atoms>(p, ring);
  }
}

template <class Atoms>
__device__ bool await(const u32* event, u32 target, u64 limit_ns) {
  Patience patience{limit_ns};
  while (!wire::event_reached(Atoms::event_load_acquire(event), target)) {  // [E2]
    if (patience.over()) return false;
  }
  return true;
}

/// Of three blocks two write a word each and signal, the third waits for both signals and reads both words, lane by lane.
template <class Atoms>
__device__ void events(const LitmusParams& p) {
  const u32 who = blockIdx.x % 3;
  const u32 ring = blockIdx.x / 3 * blockDim.x + threadIdx.x;
  if (ring >= p.rings) return;
  u32* event = reinterpret_cast<u32*>(p.slots) + ring;
  u32* back = reinterpret_cast<u32*>(p.consumed) + ring;
  u64* words = reinterpret_cast<u64*>(p.payload) + static_cast<u64>(ring) * 2;
  LitmusCounts counts;
  for (; counts.taken < p.trials; ++counts.taken) {
    const u32 run = static_cast<u32>(counts.taken);
    const bool in_time = who == 2 ? await<Atoms>(event, wire::event_target(p.start, run, 0, 2), p.deadline_ns)
                                  : await<Atoms>(back, p.start + run, p.deadline_ns);
    if (!in_time) {
      counts.late = 1;
      break;
    }
    if (who == 2) {
      for (u32 i = 0; i < 2; ++i) counts.wrong_payloads += words[i] == test::litmus_payload(ring + i, counts.taken) ? 0 : 1;
    } else {
      words[who] = test::litmus_payload(ring + who, counts.taken);
    }
    Atoms::event_add_release(who == 2 ? back : event, 1);  // [E1]
  }
  if (who == 2) finish(p, ring, counts);
}

}  // namespace

extern "C" __global__ void litmus_consume(const LitmusParams p) {
  const u32 ring = blockIdx.x * blockDim.x + threadIdx.x;
  if (ring < p.rings) consume<CudaAtoms>(p, ring);
}
extern "C" __global__ void litmus_produce(const LitmusParams p) {
  const u32 ring = blockIdx.x * blockDim.x + threadIdx.x;
  if (ring < p.rings) produce<CudaAtoms>(p, ring);
}

/// A warp a ring of at least 32 slots.
extern "C" __global__ void litmus_consume_warp(const LitmusParams p) {
  const u32 lane = threadIdx.x % 32;
  const u32 ring = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (ring >= p.rings) return;
  const RingMemory memory(p, ring);
  LitmusCounts counts;
  Patience patience{p.deadline_ns};
  u64 done = 0;
  for (u32 position = p.start; done < p.trials && counts.late == 0;) {
    const u32 mine = position + lane;
    const wire::SlotWords words = CudaAtoms::load_slot_acquire(&memory.slots[mine & (p.capacity - 1)]);  // [R2]
    const u32 missing = ~__ballot_sync(0xffffffffu, wire::slot_seq(words) == wire::ring_seq(mine));
    const u32 count = missing == 0 ? 32 : static_cast<u32>(__ffs(static_cast<int>(missing)) - 1);
    if (lane < count) {
      const wire::Task task = wire::from_words<wire::Task>(words);
      counts.wrong_slots += test::is_litmus_task(task, ring, done + lane) ? 0 : 1;
      counts.wrong_payloads +=
          memory.payload[mine & (p.capacity - 1)] == test::litmus_payload(ring, done + lane) ? 0 : 1;
    }
    __syncwarp();  // all lanes have read before the leader gives the slots back
    position += count;
    done += count;
    if (count != 0 && lane == 0) CudaAtoms::link_store_release(memory.consumed, position);  // [R3]
    if (count != 0) patience.progress();
    counts.late = __any_sync(0xffffffffu, patience.over()) ? 1 : 0;
  }
  counts.taken = lane == 0 ? done : 0;
  LitmusCounts* out = reinterpret_cast<LitmusCounts*>(p.counts) + ring;
  atomicAdd(reinterpret_cast<unsigned long long*>(&out->taken), counts.taken);
  atomicAdd(reinterpret_cast<unsigned long long*>(&out->wrong_slots), counts.wrong_slots);
  atomicAdd(reinterpret_cast<unsigned long long*>(&out->wrong_payloads), counts.wrong_payloads);
  atomicAdd(reinterpret_cast<unsigned long long*>(&out->late), counts.late);
}

extern "C" __global__ void litmus_blocks(const LitmusParams p) { between_blocks<CudaAtoms>(p); }
extern "C" __global__ void litmus_blocks_unordered(const LitmusParams p) { between_blocks<UnorderedAtoms>(p); }
/// Even blocks send over rings that the host reads, odd ones take the same tasks from rings that it writes, which lie behind the
/// others. Payloads and credit do not leave the GPU.
extern "C" __global__ void litmus_relay(const LitmusParams p) {
  const u32 ring = blockIdx.x / 2 * blockDim.x + threadIdx.x;
  if (ring >= p.rings) return;
  LitmusParams mine = p;
  if (blockIdx.x % 2 == 0) {
    mine.counts += sizeof(LitmusCounts) * p.rings;
    produce<AnswerAtoms>(mine, ring);
  } else {
    mine.slots += sizeof(wire::Task) * p.rings * p.capacity;
    consume<CudaAtoms>(mine, ring);
  }
}
extern "C" __global__ void litmus_events(const LitmusParams p) { events<CudaAtoms>(p); }
extern "C" __global__ void litmus_events_unordered(const LitmusParams p) { events<UnorderedAtoms>(p); }

/// As litmus_events, but what one lane signals was written by all lanes of its block, and a barrier stands between: what
/// workers do after an op's body. Even blocks write a word a lane, odd blocks read them; a pair of blocks is one ring.
extern "C" __global__ void litmus_barrier(const LitmusParams p) {
  __shared__ bool in_time;
  const bool reads = blockIdx.x % 2 == 1;
  const u32 pair = blockIdx.x / 2;
  u32* event = reinterpret_cast<u32*>(p.slots) + pair * 32;  // a line each
  u32* back = reinterpret_cast<u32*>(p.consumed) + pair * 32;
  u64* word = reinterpret_cast<u64*>(p.payload) + static_cast<u64>(pair) * blockDim.x + threadIdx.x;
  const u32 ring = pair * blockDim.x + threadIdx.x;
  LitmusCounts counts;
  for (; counts.taken < p.trials; ++counts.taken) {
    const u32 run = static_cast<u32>(counts.taken);
    if (threadIdx.x == 0) {
      in_time = reads ? await<CudaAtoms>(event, wire::event_target(p.start, run, 0, 1), p.deadline_ns)
                      : await<CudaAtoms>(back, p.start + run, p.deadline_ns);
    }
    __syncthreads();
    const bool go_on = in_time;
    if (!go_on) break;
    if (reads)
      counts.wrong_payloads += *word == test::litmus_payload(ring, counts.taken) ? 0 : 1;
    else
      *word = test::litmus_payload(ring, counts.taken);
    __syncthreads();
    if (threadIdx.x == 0) CudaAtoms::event_add_release(reads ? back : event, 1);  // [E1]
  }
  counts.late = counts.taken < p.trials ? 1 : 0;
  if (reads && ring < p.rings) finish(p, ring, counts);
}

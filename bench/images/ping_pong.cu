// The least that a decision on the host can cost: one lane publishes a value and a record, the host answers with a task,
// the lane sees it. Same rings and same memory order as the worker, nothing else.
#include "bench/images/ping_pong.hpp"
#include "ccks/worker/platform_cuda.hpp"

namespace ptx = ccks::worker::ptx;
using ccks::wire::u32;
using ccks::wire::u64;
using ccks::worker::CudaAtoms;

extern "C" __global__ void ccks_ping_pong(const ccks::bench::PingPongParams p) {
  using namespace ccks;
  wire::RingWriter<wire::Record, CudaAtoms> outbox(reinterpret_cast<wire::Record*>(p.outbox), p.slots, 0);
  wire::RingConsumer<wire::Task, CudaAtoms> inbox(reinterpret_cast<const wire::Task*>(p.inbox), p.slots, 0);
  auto* outcome = reinterpret_cast<bench::PingPongOutcome*>(p.outcome);
  u64 due = 0;
  for (u32 round = 0; round < p.rounds; ++round) {
    while (ptx::globaltimer() < due) {
    }
    const u64 since = ptx::globaltimer();
    due = since + p.period_ns;
    ptx::st_relaxed_sys(reinterpret_cast<u32*>(p.value), round);  // published by the record's [R1]
    outbox.put_release({round, 0, 0, 0, 0});                      // [R1]
    wire::Task task;
    while (!inbox.poll(task)) {  // [R2]
      const u64 waited = ptx::globaltimer() - since;
      if (waited <= p.deadline_ns) continue;
      *outcome = {1, 0, round, 0, waited};
      return;
    }
    if (task.tile != round) {
      *outcome = {0, 1, round, task.tile, ptx::globaltimer() - since};
      return;
    }
    reinterpret_cast<u32*>(p.samples)[round] = static_cast<u32>(ptx::globaltimer() - since);
  }
}

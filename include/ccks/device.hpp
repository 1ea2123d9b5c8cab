// Device: where workers live. The scheduler sees this interface and the link memory behind it, nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ccks/result.hpp"
#include "ccks/wire/control.hpp"

namespace ccks {

/// Entry of a host worker: runs the worker loop for worker `index` until it parks. `context` belongs to the device. With
/// `params` null it runs some tiles of one op instead, as `context` says (worker/host_entry.hpp).
using HostWorkerEntry = void (*)(const wire::WorkerParams* params, std::uint32_t index, void* context);

/// The code of the workers. All pointers borrowed: they must outlive the device's last launch.
struct WorkerImage {
  HostWorkerEntry host = nullptr;       // null: the generic worker built into the library
  const void* cuda_image = nullptr;     // cubin or fatbin with kernels `ccks_worker` and `ccks_op`; null: the generic one
  std::size_t cuda_image_bytes = 0;
  bool cuda_queues = true;              // false: made without ready queues (CCKS_WORKER_QUEUES), so not for arm gpu_queue
  bool cuda_row_tags = false;           // workers take rows of 16-bit floats by their tags, before events, and know of relays (CCKS_WORKER_ROW_TAGS)
  std::uint32_t cuda_relay_rows = 1;    // rows of each product of a relay (CCKS_WORKER_RELAY_ROWS)
  bool cuda_relay_experts = false;      // workers know of relays, and of steps in them by experts that a route has chosen (CCKS_WORKER_RELAY_EXPERTS)
  bool cuda_tags = false;               // bodies of products of few rows find tags (wire::tagged_value) whatever their rows: they are made for one shape each
  // The cubin with the kernel `ccks_worker` where cuda_image is its op bodies alone (ccks/worker/apart_ops.cuh), else null. A handoff to other bodies of the same
  // loop, told by its address, loads nothing but these. Not for arms stream, graph and graph_pdl.
  const void* cuda_loop = nullptr;
};

/// How the ops of an OpSequence are launched.
enum class SequenceMode : std::uint8_t {
  stream,            // one launch after the other
  graph,             // one graph of launches, with the edges of the plan: independent ops may run side by side
  graph_overlapped,  // a graph in which each launch may begin before the one in front of it has ended
};

struct OpStep {
  std::uint32_t op;
  std::uint32_t tiles;             // at least 1
  std::uint32_t dependency_first;  // into OpSequencePlan::dependencies
  std::uint32_t dependency_count;
};

/// OpSequencePlan says what to launch; borrowed for the call only. Steps stand after those they depend on.
struct OpSequencePlan {
  SequenceMode mode = SequenceMode::stream;
  std::uint64_t frame = 0;           // wire::RunFrame; what it says of grids must be what `steps` say
  std::uint64_t status = 0;          // wire::OpStatus and a word per report, link memory; the caller clears it
  std::uint32_t scratch_bytes = 0;   // as WorkerParams::scratch_bytes
  std::span<const OpStep> steps;
  std::span<const std::uint32_t> dependencies;  // indices of steps
};

/// OpSequence runs the ops of one frame, one launch each, without workers, rings or events. One thread at a time; the
/// device must outlive it. The destructor waits until what was launched has ended.
class OpSequence {
 public:
  virtual ~OpSequence() = default;
  /// Starts all steps. Not before what was launched last has ended.
  virtual Status launch() = 0;
  /// True once all of it has ended, false if `timeout_ns` passed first (0: only looks). device_fault: the driver's words.
  virtual Result<bool> wait(std::uint64_t timeout_ns) = 0;
};

enum class MemoryKind : std::uint8_t {
  device,  // workers read and write it; the host uses Device::read and write
  link,    // both sides load and store it directly (rings, lines, reports, traces)
};

struct DeviceOptions {
  std::string kind = "auto";       // auto, host, cuda
  std::string transport = "auto";  // auto, coherent, pinned
  std::uint32_t workers = 0;       // 0: the device's default
  bool pin_threads = true;         // host device: pin workers to cores where there are enough of them
  std::int32_t ordinal = 0;        // which GPU
};

struct DeviceInfo {
  std::string kind;        // "host", "cuda"
  std::string name;        // e.g. "NVIDIA H200", or the CPU's model
  std::string transport;   // "coherent", "pinned"
  std::uint32_t workers = 0;
  std::uint32_t lanes = 1;             // threads of a worker
  std::uint64_t memory_bytes = 0;      // device memory, 0: unknown
  std::string architecture;            // of a GPU, as compilers name it: "sm_90a"; empty otherwise
  std::uint64_t worker_bytes = 0;      // of fast memory that a worker has to itself, for weights on their way and what it multiplies them by; 0: none that it can count on
  bool takes_records = false;          // workers take lists as wire::TileRecord
  bool workers_sleep = false;          // workers may sleep and need doorbell(); the scheduler should sleep too when idle
  std::string notice;                  // for people: why `auto` took no GPU; empty otherwise
};

/// Device owns memory and workers. Thread-safe unless noted. Destroying it parks the workers and frees everything; if an op
/// does not end within seconds, it gives up instead: what that worker may still touch is kept until the process ends.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;

  /// Reserves `bytes` (zeroed, 256-byte aligned). The address is valid on both sides for `link`, for workers only for `device`.
  virtual Result<std::uint64_t> allocate(std::uint64_t bytes, MemoryKind kind) = 0;
  /// Copies to or from device memory; blocks the calling thread until done. Never called by the scheduler thread.
  virtual Status write(std::uint64_t to, const void* from, std::uint64_t bytes) = 0;
  virtual Status read(void* to, std::uint64_t from, std::uint64_t bytes) = 0;
  virtual Status fill_zero(std::uint64_t to, std::uint64_t bytes) = 0;

  /// Does what can be done of a later load of `image` while workers go on; nothing where that would wait for them. An image that is refused here
  /// would be by load().
  virtual Status prepare(const WorkerImage& /*image*/) { return {}; }
  /// Loads code while no worker is alive, so that the launch of `image` that follows need not: the long part of a handoff. What was
  /// loaded before may be gone: a launch of it loads it again.
  virtual Status load(const WorkerImage& /*image*/) { return {}; }
  /// Starts (or resumes) all workers; returns when every one of them is running. `params` is copied.
  virtual Status launch(const WorkerImage& image, const wire::WorkerParams& params) = 0;
  /// Waits until all workers have left. They leave when told through their inbox or line, when the heartbeat is stale,
  /// or when idle for too long.
  virtual Status join(std::uint64_t timeout_ns) = 0;
  /// ok while workers are alive or parked without fault. Cheap; may be called by the scheduler thread.
  virtual Status health() = 0;
  /// Prepares launches of single ops (kernel `ccks_op` of the image). `unsupported` where the device or its driver cannot.
  virtual Result<std::unique_ptr<OpSequence>> make_op_sequence(const WorkerImage& /*image*/,
                                                               const OpSequencePlan& /*plan*/) {
    return {ErrorCode::unsupported, "this device cannot launch single ops"};
  }
  /// Device clock in nanoseconds as workers see it, paired with std::chrono::steady_clock in `host_ns`.
  virtual std::uint64_t clock_pair(std::uint64_t& host_ns) = 0;

  /// Wakes worker `index` if it sleeps. Never blocks. No-op where workers do not sleep.
  virtual void doorbell(std::uint32_t /*index*/) {}
  /// Blocks the scheduler thread until a worker posts a record, `wake_scheduler` is called, or the time is over.
  virtual void scheduler_wait(std::uint64_t timeout_ns) = 0;
  /// Called by client threads after they have queued work.
  virtual void wake_scheduler() = 0;
};

/// open_device opens the device that `options` ask for. `auto` takes a GPU where driver and worker image allow it, else host.
Result<std::unique_ptr<Device>> open_device(const DeviceOptions& options = {});

}  // namespace ccks

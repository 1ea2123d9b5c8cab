// Engine: one device, one program, one scheduler thread. What servers embed. See README.md for 30 lines that use it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ccks/device.hpp"
#include "ccks/program.hpp"
#include "ccks/result.hpp"

namespace ccks {

namespace scheduler {
class EngineCore;
}

struct EngineOptions {
  /// How runs reach the device: copilot (resident workers, decided by `policy`), static (the same with policy static),
  /// gpu_queue (resident workers that share ready queues in device memory), stream, graph, graph_pdl (one launch per op, no
  /// workers). Which of them a device has is known at start(); recording, replay and traces need workers.
  std::string arm = "copilot";
  std::string policy = "lookahead";     // static, lookahead, reactive
  std::string spine = "auto";           // lookahead: what needs no report goes out as lists, tiles, or auto: as suits its tasks
  std::uint32_t slots = 8;              // runs in flight, waiting for their state, or held by a handle; each reserves an arena
  std::uint32_t states = 1;             // state instances (sessions); runs of one state instance are executed in order
  /// Runs of one state instance are sent one behind the other without waiting for the end of the first: the device keeps them in
  /// order, and has the next run at hand when one ends (C6). With resident workers, policies static and lookahead, without
  /// recording, and programs in which nothing depends on a report or is a convolution; elsewhere it changes nothing.
  bool chain_states = false;
  /// Each run stays on so many workers, those that the fewest runs are on; 0: all. Runs on other workers go on whatever it does: with
  /// workers / workers_per_run runs in flight at most, a run that takes long delays no other (A6). Suits many runs of small tensors;
  /// workers that are left over stay idle. A program's tiles should be made for as many (SpecOptions::workers_hint). Where a host
  /// decides (arms copilot and static); not with chain_states, which it turns off, nor with recording and replay.
  std::uint32_t workers_per_run = 0;
  /// While a run is alone the co-pilot makes out what the next run of its slot will be sent, if dims and frame stay as they are; submit() then stores that
  /// into the inboxes itself, and no hand-over to another thread lies between a client and the workers. For programs without state whose ops all
  /// go out as lists, without recording, traces, guesses and workers_per_run; elsewhere it changes nothing.
  bool prime_runs = true;
  /// Products of one row between which weights stream take it from one another by its tags, before events say that it is there, where the program's workers were made
  /// for that. Not: they wait for events, in the same workers. It changes no result. For measurements.
  bool take_rows_by_tags = true;
  /// Ops of one row that hand it on to one another, from the first product of a decode step to the last, run without a worker's stages between their tiles, and wait
  /// for no events of one another (wire/relay.hpp), where the program's workers were made for rows by tags. Not: tile by tile, in the same workers. For measurements.
  bool relays = true;
  bool pin_scheduler = true;            // pin the scheduler thread (hwloc); ignored where cores are few
  std::chrono::nanoseconds spin_deadline = std::chrono::seconds(30);   // longest event wait of a worker
  /// Workers leave a device when they have had nothing to do for so long, and come back with the next run. On a GPU that
  /// costs tens of microseconds, and resident workers block frees and module loads of the whole process. Negative: the
  /// device's own (a second on a GPU, never on the host). 0: never.
  std::chrono::nanoseconds idle_limit{-1};
  /// Workers leave when the scheduler thread has been silent for so long: a stopped process leaves its GPU to others. They
  /// come back when it goes on; runs in flight just take longer. 0: never.
  std::chrono::nanoseconds heartbeat_limit = std::chrono::seconds(10);
  /// A task that takes longer, though all it waits for is there, is an op that never ends: the engine fails. Shorter than
  /// spin_deadline, so that the op is named and not those that wait for it. 0: never.
  std::chrono::nanoseconds task_deadline = std::chrono::seconds(20);
  /// A scheduler thread that has stood still for so long is lost, and another takes its place: see Engine::restart_scheduler. Time in
  /// which the process was stopped does not count. Longer than any RunRequest::on_done takes. 0: nobody watches it.
  std::chrono::nanoseconds scheduler_limit{0};
  /// Simulates a slower link: tasks, and what workers answer, are held back for so long each way. For measurements.
  std::chrono::nanoseconds link_delay{0};
  /// Where rows are routed to experts (arms copilot and static): weights of the experts that the run is likely to need, those that the last one needed, are
  /// asked for before the router has run, so many bytes at most. It changes no result; a wrong guess costs what it read in vain. 0: none. Not with replay.
  std::uint64_t speculate_bytes = 0;
  double wrong_guesses = 0;             // for measurements: this share of the guesses, 0 to 1, is made wrong on purpose
  std::uint32_t trace_records = 0;      // per worker; 0: no trace
  std::string record_path;              // write every decision there (C8)
  std::string replay_path;              // take decisions from there instead of the policy
};

/// State of one run as seen by clients.
enum class RunState : std::uint32_t { queued = 0, running = 1, done = 2, failed = 3 };

class Run;

/// What to run. Spans are read during submit() only.
struct RunRequest {
  /// Input `name` is what `run`, an earlier run on the same state instance, puts out as `output`: it never leaves the device, and
  /// need not be there yet. Same type, same size. Programs with state only.
  struct Feed {
    std::string_view name;
    const Run* run;
    std::string_view output;
  };
  /// Whether the run is wanted is known only once `run`, an earlier run on the same state instance, has told report `report`, of
  /// i32: it is not if the report holds nothing but `values`, nor if `run` itself is not wanted or cancelled. The scheduler decides,
  /// when the report is there; meanwhile the run may be sent, and work, as any other. If it is not wanted, what has not been sent is
  /// skipped, and it ends with `cancelled`: what it has changed of the state is then whatever it had come to.
  struct Unless {
    const Run* run = nullptr;           // null: it is wanted
    std::string_view report;
    std::span<const std::int32_t> values;
  };
  struct Input {
    std::string_view name;
    std::span<const std::byte> bytes;   // contiguous row-major, exactly the tensor's size at these dims
  };
  std::vector<std::pair<std::string_view, std::int64_t>> dims{};  // symbols without a preset must be named
  /// Lengths of the sequences of a ragged dim, in rows: the dim's value follows from them (or is given too, and is then no less), and the engine fills
  /// its tables. Without them both are given like any other dim and input. invalid_argument, out_of_range: not as many as the program
  /// has sequences, or one outside its range.
  std::vector<std::pair<std::string_view, std::span<const std::int32_t>>> lengths{};
  std::vector<Input> inputs{};          // inputs not named keep what the slot last held: name them all unless they never change.
                                        // Outputs may be named too: what they hold before the run (tools poison them)
  std::vector<Feed> feeds{};
  Unless unless{};
  std::uint32_t state = 0;              // state instance
  std::chrono::nanoseconds deadline{0}; // from submit; 0: none
  /// Called once on the scheduler thread when the run ends; must be short, must not call back into the engine
  /// except through Run::read_*; may be empty.
  std::function<void(const Status&)> on_done{};
};

/// Run is a move-only handle on a submitted run. Dropping it lets the run go on unobserved; its slot is
/// released when the run has ended and the handle is gone.
class Run {
 public:
  Run() = default;
  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;
  ~Run();

  bool valid() const { return impl_ != nullptr; }
  RunState poll() const;
  /// Blocks until the run has ended; its Status. A second call returns the same.
  Status wait();
  /// Like wait, but gives up after `timeout` with deadline_exceeded; the run goes on.
  Status wait_for(std::chrono::nanoseconds timeout);
  /// Asks for cancellation: tasks not yet sent are skipped. The run still ends, with `cancelled`, unless it was done already.
  void cancel();
  /// Copies output or state `name` once the run is done; `bytes` must have exactly its size at this run's dims.
  Status read_output(std::string_view name, std::span<std::byte> bytes) const;
  /// Bytes of tensor `name` at this run's dims.
  Result<std::uint64_t> tensor_bytes(std::string_view name) const;
  /// Values of report `name` (i32 or f32 as declared), valid once done.
  Result<std::vector<double>> report(std::string_view name) const;
  /// Submit to completion as the scheduler saw it; 0 before the end.
  std::chrono::nanoseconds latency() const;

 private:
  friend class Engine;
  friend class scheduler::EngineCore;
  struct Impl;
  explicit Run(Impl* impl) : impl_(impl) {}
  Impl* impl_ = nullptr;
};

struct EngineStats {
  std::uint64_t runs_submitted = 0, runs_done = 0, runs_failed = 0, runs_cancelled = 0;
  std::uint64_t runs_primed = 0;       // of those submitted, the ones that submit() itself sent (EngineOptions::prime_runs)
  std::uint64_t tasks_sent = 0;        // slots written to inboxes
  std::uint64_t decisions = 0;         // task and worker choices made by the policy
  std::uint64_t publications = 0;      // batches of link writes (C5)
  std::uint64_t records_received = 0;
  std::uint64_t skipped_tiles = 0;     // tiles that did not exist or were cancelled
  std::uint64_t drafts = 0;            // tasks that were sent before it was decided whether they run (wire/task.hpp)
  std::uint64_t drafts_dropped = 0;    // of those, the ones that did not
  std::uint64_t guesses = 0;           // experts whose weights were asked for ahead (EngineOptions::speculate_bytes)
  std::uint64_t guesses_right = 0;     // of those, the ones that got rows
  std::uint64_t guess_tasks = 0;       // what asking took, of tasks_sent
  std::uint64_t guess_bytes = 0;       // of weights asked for
  std::uint64_t guess_bytes_wrong = 0; // of those, the ones of experts that got no rows
  std::uint64_t scheduler_busy_ns = 0; // thread time spent deciding and sending
  // What workers spend on scheduling themselves (C9); zero but for arm gpu_queue, complete once drained:
  std::uint64_t queue_atomics = 0;     // read-modify-writes in device memory
  std::uint64_t queue_polls = 0;       // looks at places of the queue that were still empty
  std::uint64_t queue_ns = 0;          // time of all workers spent adding to events and pushing what is ready
  std::uint64_t scheduler_restarts = 0;
  std::uint64_t runs_lost = 0;         // of runs_failed: with a scheduler
  std::uint64_t relaunches = 0;        // times that workers came back: after they had left, or with new code
};

/// One timed task for tools; see write_trace.
struct TraceEvent {
  std::uint32_t worker, op, slot, epoch, first_tile, tiles;
  std::uint64_t start_ns, wait_ns, run_ns;   // steady_clock
};

/// What a restart of the scheduler has cost.
struct RestartOutcome {
  std::uint64_t runs_lost = 0;       // they have failed with ErrorCode::internal
  std::uint64_t runs_kept = 0;       // submitted, not yet taken by the lost scheduler: they go on
  std::chrono::nanoseconds took{0};
};

/// How long the workers stood still for a handoff.
struct HandoffTimes {
  std::chrono::nanoseconds park{0};      // until the last had left
  std::chrono::nanoseconds load{0};      // of the new code
  std::chrono::nanoseconds relaunch{0};  // until all ran again
  std::chrono::nanoseconds total() const { return park + load + relaunch; }
};

/// Engine runs a program on a device. Thread-safe: any number of client threads may submit. Several engines may live in
/// one process. Starts two threads (the scheduler, and one that sleeps until workers must be brought back); the device
/// starts its workers.
class Engine {
 public:
  /// Reserves all memory, starts the scheduler thread, does not launch workers yet (start()).
  static Result<Engine> create(std::unique_ptr<Device> device, Program program, const EngineOptions& options = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  /// Cancels what waits, drains what runs, parks the workers. If an op never ends, gives up after some seconds: its worker
  /// cannot be stopped, so what it may touch stays with the process (Device).
  ~Engine();

  /// Copies a weight to the device. invalid_argument unless `bytes` has exactly its size. Before start().
  Status bind_weight(std::string_view name, std::span<const std::byte> bytes);
  /// Launches the workers. Fails if a weight is unbound.
  Status start();
  /// Submits a run. Blocks only while every slot is taken; deadline_exceeded if all of them stay held by handles of ended
  /// runs. out_of_range if a dim or a runtime check does not hold: nothing is sent.
  Result<Run> submit(RunRequest request);
  /// Zeroes a state instance, in order with its runs.
  Status reset_state(std::uint32_t state);
  Status write_state(std::uint32_t state, std::string_view name, std::span<const std::byte> bytes);
  Status read_state(std::uint32_t state, std::string_view name, std::span<std::byte> bytes);
  /// Waits until nothing is queued or running.
  Status drain(std::chrono::nanoseconds timeout);
  /// handoff gives the workers other code for the same plan, compiled elsewhere, while runs are in flight: the workers leave
  /// where they stand, the code is loaded, they go on. Nothing is lost or run twice. On a failure the old code goes on,
  /// loaded again if need be; if it cannot be, runs fail with device_fault. deadline_exceeded if the workers did not leave within
  /// `timeout`, else the loader's words. After start(). On a GPU workers stand still a third shorter in a process that loads code lazily
  /// (CUDA_MODULE_LOADING=LAZY before the first device is opened; gpu/README.md says when one may).
  Result<HandoffTimes> handoff(const Program& program, std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  /// restart_scheduler puts another scheduler thread into the place of one that is stuck or lost, wherever it stands: for a supervisor of
  /// the caller's own; EngineOptions::scheduler_limit is one that comes with the engine. What was under way cannot be told apart from
  /// what was not, so runs that the lost thread had taken fail, each once; those that waited for it go on, and so do clients; but where a run with a state was lost,
  /// what its state instance holds is not known, so those that waited behind it fail too. Tiles of
  /// lost runs have run at most once. The thread may leave between two steps within `grace`; then a signal (SIGURG, whose handler is
  /// installed by the first call) stops it for good: it, its stack, and whatever a callback of the caller's held stay with the
  /// process. unsupported for arms without workers, gpu_queue, recording and replay. If workers do not leave either within `timeout`
  /// the engine fails. After start(); any thread but the scheduler's.
  Result<RestartOutcome> restart_scheduler(std::chrono::nanoseconds grace = std::chrono::milliseconds(10),
                                           std::chrono::nanoseconds timeout = std::chrono::seconds(10));
  EngineStats stats() const;
  DeviceInfo device_info() const;
  const plan::PlanView& plan() const;
  /// Tasks per run at these dims, under the current policy's chunking.
  Result<std::uint64_t> tasks_per_run(const std::vector<std::pair<std::string_view, std::int64_t>>& dims) const;

  /// Timed tasks so far (needs trace_records). Call when drained.
  std::vector<TraceEvent> trace() const;
  /// Writes them, and the scheduler's decisions, as Chrome trace JSON, which Perfetto opens.
  Status write_trace(const std::string& path) const;

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ccks

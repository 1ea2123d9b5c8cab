#include "scheduler/engine_core.hpp"

#include <fmt/format.h>

#include <cstring>

#include "scheduler/decision_trace.hpp"
#include "scheduler/overtaking.hpp"
#include "scheduler/policy_replay.hpp"
#include "scheduler/record_file.hpp"
#include "scheduler/relays.hpp"
#include "scheduler/tuning.hpp"

namespace ccks::scheduler {

Result<std::unique_ptr<EngineCore>> EngineCore::create(std::unique_ptr<Device> device, Program program,
                                                       const EngineOptions& options) {
  if (device == nullptr || !program.valid())
    return {ErrorCode::invalid_argument, "an engine needs a device and a program"};
  if (options.slots == 0 || options.slots > wire::kMaxSlots) {
    return {ErrorCode::invalid_argument, fmt::format("slots must be 1 to {}", wire::kMaxSlots)};
  }
  if (options.states == 0) return {ErrorCode::invalid_argument, "an engine needs at least one state instance"};
  if ((options.trace_records & (options.trace_records - 1)) != 0) {
    return {ErrorCode::invalid_argument, "trace_records must be a power of two or 0"};
  }
  std::unique_ptr<EngineCore> core(new EngineCore(std::move(device), std::move(program), options));
  CCKS_RETURN_IF_ERROR(core->set_up());
  return core;
}

EngineCore::EngineCore(std::unique_ptr<Device> device, Program program, const EngineOptions& options)
    : device_(std::move(device)), program_(std::move(program)), options_(options) {}

EngineCore::~EngineCore() { shut_down(); }

Status EngineCore::set_up() {
  CCKS_RETURN_IF_ERROR(set_up_arm());
  CCKS_RETURN_IF_ERROR(set_up_policy());
  const Result<std::uint32_t> run_workers = this->run_workers();
  if (!run_workers.ok()) return run_workers.status();
  const std::uint32_t workers = device_->info().workers;
  Result<PlanTables> tables = make_plan_tables(program_.plan(), *run_workers, spine_, device_->info().takes_records, chains());
  if (!tables.ok()) return tables.status();
  tables_ = std::move(*tables);
  const bool lists = device_->info().kind == "cuda" && (arm_ == Arm::copilot || arm_ == Arm::fixed);
  tables_.finds_tags = lists && program_.worker().cuda_tags;
  if (lists && program_.worker().cuda_row_tags && options_.take_rows_by_tags) find_row_edges(tables_);
  const bool has_room = program_.worker().cuda_relay_rows == 1 || device_->info().worker_bytes >= kLeastRelayRowsMemory;
  const bool experts = program_.worker().cuda_relay_experts && options_.speculate_bytes == 0;  // guesses are made of what a route reports, and one in a relay reports nothing
  if (lists && (program_.worker().cuda_row_tags || experts) && options_.relays && has_room) find_relays(tables_, program_.worker().cuda_relay_rows, experts);
  Result<MemoryMap> memory = reserve_memory(*device_, tables_, options_);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(*memory);
  if (arm_ == Arm::gpu_queue) CCKS_RETURN_IF_ERROR(queues_.reserve(*device_, tables_, options_.slots));
  for (std::uint32_t i = 0; i < tables_.plan.tensors.size(); ++i)
    tensor_index_.emplace(tables_.plan.tensors[i].name, i);
  weight_bound_.assign(tables_.plan.tensors.size(), false);
  set_up_slots();
  if (!options_.record_path.empty()) {
    const RecordHeader header = make_record_header(tables_.plan.hash, workers, policy_kind_, spine_);
    Result<std::unique_ptr<RecordFile>> record = RecordFile::create(options_.record_path, header);
    if (!record.ok()) return record.status();
    record_ = std::move(*record);
  }
  if (options_.trace_records > 0)
    decision_trace_ = std::make_unique<DecisionTrace>(options_.trace_records * std::size_t{workers});
  keeper_ = std::make_unique<Keeper>(*device_, memory_.params);
  if (policy_ == nullptr) policy_ = make_policy(policy_kind_, tables_, options_.slots);
  make_guesses();
  return start_thread();
}

void EngineCore::make_guesses() {
  if (options_.speculate_bytes == 0 || !options_.replay_path.empty() || (arm_ != Arm::copilot && arm_ != Arm::fixed)) return;
  guesses_ = std::make_unique<ExpertGuesses>(tables_, options_.slots, Speculation{options_.speculate_bytes, options_.wrong_guesses}, stats_);
}

Status EngineCore::set_up_arm() {
  Result<Arm> arm = parse_arm(options_.arm);
  if (!arm.ok()) return arm.status();
  arm_ = *arm;
  const bool records = !options_.record_path.empty() || !options_.replay_path.empty();
  if (records && arm_ != Arm::copilot && arm_ != Arm::fixed) {
    return {ErrorCode::invalid_argument,
            fmt::format("arm {}: nothing is decided on the host that could be recorded or replayed", options_.arm)};
  }
  if (options_.trace_records > 0 && !arm_has_workers(arm_)) {
    return {ErrorCode::invalid_argument, fmt::format("arm {} has no workers that could be traced", options_.arm)};
  }
  if (arm_ == Arm::fixed) options_.policy = policy_name(PolicyKind::fixed);
  return check_code(program_);
}

Status EngineCore::check_code(const Program& program) const {
  if (device_->info().kind != "cuda") return {};
  const WorkerImage& worker = program.worker();
  const bool relays = !tables_.relay_places.empty(), knows_relays = worker.cuda_row_tags || worker.cuda_relay_experts;
  const bool same_relays = knows_relays && worker.cuda_relay_rows == tables_.relay_rows && (worker.cuda_relay_experts || !tables_.relay_experts);
  if ((tables_.finds_tags && !worker.cuda_tags) || (!tables_.rows.empty() && !worker.cuda_row_tags) || (relays && !same_relays)) {
    return {ErrorCode::unsupported, "the program's workers find no tags, and the engine was made for such as do"};
  }
  if (arm_ != Arm::gpu_queue || program.worker().cuda_queues) return {};
  return {ErrorCode::unsupported, "arm gpu_queue: the program's workers were made without ready queues"};
}

bool EngineCore::chains() const {
  if (options_.workers_per_run != 0) return false;
  const bool records = !options_.record_path.empty() || !options_.replay_path.empty();
  return options_.chain_states && arm_has_workers(arm_) && arm_ != Arm::gpu_queue && decides_ahead(policy_kind_) && !records;
}

Result<std::uint32_t> EngineCore::run_workers() const {
  const std::uint32_t all = device_->info().workers, wanted = options_.workers_per_run;
  const bool decided = arm_has_workers(arm_) && arm_ != Arm::gpu_queue;
  if (wanted == 0 || !decided) return all;
  if (wanted > all) return {ErrorCode::invalid_argument, fmt::format("workers_per_run is {}, and the device has {} workers", wanted, all)};
  if (!options_.record_path.empty() || !options_.replay_path.empty()) {
    return {ErrorCode::unsupported, "decisions for runs that each have workers of their own are neither recorded nor replayed"};
  }
  return wanted;
}

// A replay is a policy of its own; what it replays decides whether the frames hold lists.
Status EngineCore::set_up_policy() {
  if (arm_ != Arm::copilot && arm_ != Arm::fixed) {  // nobody on the host decides
    if (arm_ == Arm::gpu_queue) policy_kind_ = PolicyKind::queue;
    spine_ = Spine::tiles;
    return {};
  }
  if (options_.replay_path.empty()) {
    Result<PolicyKind> kind = parse_policy(options_.policy);
    if (!kind.ok()) return kind.status();
    policy_kind_ = *kind;
    Result<Spine> asked = parse_spine(options_.spine);
    if (!asked.ok()) return asked.status();
    spine_ = spine_of(policy_kind_, *asked);
    return {};
  }
  Result<Record> record = read_record(options_.replay_path);
  if (!record.ok()) return record.status();
  CCKS_RETURN_IF_ERROR(check_record(*record, program_.plan(), device_->info().workers));
  policy_kind_ = record->policy;
  spine_ = record->spine;
  policy_ = std::make_unique<ReplayPolicy>(tables_, std::move(*record));
  return {};
}

void EngineCore::set_up_slots() {
  const std::size_t slots = options_.slots;
  const std::size_t fences = options_.states;
  free_slots_ = std::make_unique<SlotStack>(slots);
  free_fences_ = std::make_unique<BoundedQueue<std::uint32_t>>(fences);
  // Each slot and each fence is queued at most once, and a fence has two messages: this never fills.
  submissions_ = std::make_unique<SubmissionQueue>(slots + 2 * fences);
  slots_.resize(slots);
  for (std::uint32_t i = 0; i < slots; ++i) {
    RunSlot& run = slots_[i];
    run.index = i;
    run.memory = memory_.slots[i];
    run.instance.reserve(tables_);
    run.progress.reserve(tables_);
    free_slots_->push(i);
  }
  fences_.resize(fences);
  tickets_ = std::deque<std::atomic<std::uint32_t>>(options_.states);
  for (std::uint32_t i = 0; i < fences; ++i) free_fences_->push(i);
  primed_.reserve(tables_, device_->info().workers);
}

CopilotSetup EngineCore::copilot_setup() {
  CopilotSetup setup;
  setup.tables = &tables_;
  setup.slots = &slots_;
  setup.fences = &fences_;
  setup.policy = policy_.get();
  setup.guesses = guesses_.get();
  setup.device = device_.get();
  setup.submissions = submissions_.get();
  setup.primed = options_.prime_runs ? &primed_ : nullptr;
  setup.events = this;
  setup.stats = &stats_;
  setup.sinks[0] = record_.get();
  setup.sinks[1] = decision_trace_.get();
  setup.params = memory_.params;
  setup.states = options_.states;
  setup.stateful = tables_.plan.state_bytes > 0;
  setup.doorbells = device_->info().workers_sleep;
  setup.task_deadline_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.task_deadline.count(), 0));
  setup.link_delay_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.link_delay.count(), 0));
  return setup;
}

Status EngineCore::start_thread() {
  if (!arm_has_workers(arm_)) return start_launcher();
  const DeviceInfo info = device_->info();
  SchedulerThreadOptions thread;
  thread.pin = options_.pin_scheduler;
  thread.busy_workers = info.kind == "host" ? info.workers : 0;
  thread_ = std::make_unique<SchedulerThread>(copilot_setup(), thread);
  return {};
}

Status EngineCore::start_launcher() {
  LauncherSetup own;
  own.mode = sequence_mode(arm_);
  own.image = program_.worker();
  own.status_stride = op_status_bytes(tables_.report_count());
  own.patience_ns = static_cast<std::uint64_t>(options_.spin_deadline.count());
  own.scratch_bytes = tables_.plan.scratch_bytes;
  Result<std::uint64_t> status = device_->allocate(own.status_stride * options_.slots, MemoryKind::link);
  if (!status.ok()) return status.status();
  own.status = *status;
  launcher_ = std::make_unique<LauncherThread>(copilot_setup(), own, options_.pin_scheduler);
  return {};
}

Status EngineCore::bind_weight(std::string_view name, std::span<const std::byte> bytes) {
  Result<const plan::TensorDesc*> found = find_tensor(name);
  if (!found.ok()) return found.status();
  const plan::TensorDesc& tensor = **found;
  if (tensor.kind != plan::TensorKind::weight) {
    return {ErrorCode::invalid_argument, fmt::format("'{}' is not a weight", name)};
  }
  if (bytes.size() != tensor.max_bytes) return size_error(tensor, bytes.size(), tensor.max_bytes);
  const std::lock_guard lock(setup_mutex_);
  if (started_.load(std::memory_order_relaxed)) {  // relaxed: only stored under the lock
    return {ErrorCode::invalid_argument, "weights are bound before start()"};
  }
  CCKS_RETURN_IF_ERROR(device_->write(memory_.weights + tensor.offset, bytes.data(), bytes.size()));
  weight_bound_[static_cast<std::size_t>(&tensor - tables_.plan.tensors.data())] = true;
  return {};
}

Status EngineCore::start() {
  const std::lock_guard lock(setup_mutex_);
  if (started_.load(std::memory_order_relaxed)) return {};  // relaxed: only stored under the lock
  for (std::size_t i = 0; i < weight_bound_.size(); ++i) {
    const plan::TensorDesc& tensor = tables_.plan.tensors[i];
    if (tensor.kind == plan::TensorKind::weight && !weight_bound_[i] && tensor.max_bytes > 0) {
      return {ErrorCode::invalid_argument, fmt::format("weight '{}' is not bound", tensor.name)};
    }
  }
  CCKS_RETURN_IF_ERROR(start_device());
  if (options_.scheduler_limit.count() > 0 && thread_ != nullptr) {
    supervisor_ = std::make_unique<Supervisor>(
        static_cast<std::uint64_t>(options_.scheduler_limit.count()),
        [this] {
          const std::unique_lock steady(restart_mutex_, std::try_to_lock);
          return steady.owns_lock() ? thread_->beats() : 0;
        },
        [this] { (void)restart_scheduler(0, kRestartPatienceNs); });  // a failure is the engine's, and clients hear of it
  }
  started_.store(true, std::memory_order_release);  // [C3] release: pairs with [C4]
  return {};
}

// Arms without workers make an empty sequence, so that the code is loaded and what the device lacks is known now.
Status EngineCore::start_device() {
  if (arm_has_workers(arm_)) return keeper_->launch(program_);
  OpSequencePlan nothing;
  nothing.mode = sequence_mode(arm_);
  nothing.scratch_bytes = tables_.plan.scratch_bytes;
  Result<std::unique_ptr<OpSequence>> made = device_->make_op_sequence(program_.worker(), nothing);
  if (!made.ok()) return made.status();
  loaded_ = std::move(*made);
  return {};
}

void EngineCore::shut_down() {
  supervisor_.reset();  // first: until it has gone it may put another thread into thread_
  if (thread_ == nullptr && launcher_ == nullptr) return;
  stopping_.store(true, std::memory_order_relaxed);  // relaxed: submit() may race with it either way
  for (RunSlot& run : slots_) {
    if (run.state.peek() == static_cast<std::uint32_t>(RunState::queued))
      run.cancel.store(true, std::memory_order_relaxed);
  }
  device_->wake_scheduler();
  // A worker gives up waiting after spin_deadline; twice that and a second for long ops is beyond all hope.
  const auto patience = 2 * static_cast<std::uint64_t>(options_.spin_deadline.count()) + 1'000'000'000u;
  const bool drained = unfinished_.wait([](std::uint32_t left) { return left == 0; }, patience);
  keeper_->stop();  // nobody comes back from here on
  const bool failed = !failure().ok();
  if (launcher_ != nullptr) {
    launcher_->stop();
    launcher_.reset();
    loaded_.reset();
  } else {
    thread_->stop(!drained || failed);
    // relaxed: no other thread uses the core's lifecycle any more. If workers stay, the device's end deals with them.
    if (started_.load(std::memory_order_relaxed)) (void)device_->join(failed ? kFailedPatienceNs : patience);
    thread_.reset();
  }
  if (record_ != nullptr) (void)record_->finish();
}

Result<HandoffTimes> EngineCore::handoff(const Program& program, std::uint64_t timeout_ns) {
  CCKS_RETURN_IF_ERROR(ready_to_run());
  if (!program.valid() || program.plan().hash != tables_.plan.hash) {
    return {ErrorCode::invalid_argument, "a handoff needs code for the same plan"};
  }
  if (!arm_has_workers(arm_)) {
    return {ErrorCode::unsupported, fmt::format("arm {} has no workers that could be handed new code", options_.arm)};
  }
  CCKS_RETURN_IF_ERROR(check_code(program));
  return keeper_->handoff(program, timeout_ns);
}

void EngineCore::drop(EngineCore* core) {
  // acq_rel: the last holder sees what all others did to the core.
  if (core->holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete core;
}

Status EngineCore::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return {};  // [C2] pairs with [C1]
  return {fail_code_, fail_message_};
}

Result<const plan::TensorDesc*> EngineCore::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  if (found == tensor_index_.end()) {
    return {ErrorCode::not_found, fmt::format("program '{}' has no tensor '{}'", tables_.plan.name, name)};
  }
  return &tables_.plan.tensors[found->second];
}

Status EngineCore::size_error(const plan::TensorDesc& tensor, std::uint64_t got, std::uint64_t want) {
  return {ErrorCode::invalid_argument, fmt::format("'{}' has {} bytes, not {}", tensor.name, want, got)};
}

EngineStats EngineCore::stats() const {
  EngineStats out;
  out.runs_submitted = runs_submitted_.load(std::memory_order_relaxed);  // relaxed: a counter
  out.runs_done = stats_.runs_done.get();
  out.runs_primed = stats_.runs_primed.get();
  out.runs_lost = runs_lost_.load(std::memory_order_relaxed);            // relaxed: as above
  out.scheduler_restarts = restarts_.load(std::memory_order_relaxed);    // relaxed: as above
  out.runs_failed = stats_.runs_failed.get() + out.runs_lost;
  out.runs_cancelled = stats_.runs_cancelled.get();
  out.tasks_sent = stats_.tasks_sent.get();
  out.decisions = stats_.decisions.get();
  out.publications = stats_.publications.get();
  out.records_received = stats_.records_received.get();
  out.skipped_tiles = stats_.skipped_tiles.get();
  out.drafts = stats_.drafts.get();
  out.drafts_dropped = stats_.drafts_dropped.get();
  out.guesses = stats_.guesses.get();
  out.guesses_right = stats_.guesses_right.get();
  out.guess_tasks = stats_.guess_tasks.get();
  out.guess_bytes = stats_.guess_bytes.get();
  out.guess_bytes_wrong = stats_.guess_bytes_wrong.get();
  out.scheduler_busy_ns = stats_.busy_ns.get();
  if (arm_ == Arm::gpu_queue) queues_.add_cost(memory_.params, out);
  out.relaunches = keeper_->relaunches();
  return out;
}

Result<std::uint64_t> EngineCore::tasks_per_run(const DimValues& given) const {
  std::vector<std::int64_t> symbols(tables_.plan.symbols.size());
  std::vector<std::int64_t> dims(tables_.plan.dims.size());
  CCKS_RETURN_IF_ERROR(bind_symbols(tables_.plan, given, symbols));
  CCKS_RETURN_IF_ERROR(evaluate_plan(tables_.plan, symbols, dims));
  Instance instance;
  instance.reserve(tables_);
  CCKS_RETURN_IF_ERROR(instance.rebuild(tables_, symbols, dims, SlotMemory{}, 0, 0, 0));
  if (arm_has_workers(arm_)) return instance.tasks();
  std::uint64_t tasks = 0;
  for (const OpInstance& op : instance.ops()) tasks += op.tiles != 0 ? 1 : 0;
  return tasks;
}

}  // namespace ccks::scheduler

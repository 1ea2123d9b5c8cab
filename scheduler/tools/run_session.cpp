#include "scheduler/tools/run_session.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/record.hpp"
#include "scheduler/tools/run_config.hpp"
#include "scheduler/tools/run_generate.hpp"
#include "scheduler/tools/run_iterations.hpp"
#include "scheduler/tools/run_serve.hpp"
#include "scheduler/tools/run_sim.hpp"
#include "spec/parse.hpp"

namespace ccks::run {
namespace {

Failure input_fault(const Status& status) { return {kInputAtFault, status.message()}; }

class Session {
 public:
  Session(const Options& options, const std::atomic<bool>& interrupted, bool progress, Outcome& outcome, const TokenSink& sink)
      : options_(options), given_(options.dims), interrupted_(interrupted), progress_(progress), outcome_(outcome), sink_(sink) {}

  Failure run() {
    if (!options_.jit_only.empty()) {
      const Failure parsed = parse();
      return parsed ? parsed : compile_only();
    }
    if (options_.device == "sim") return simulate();
    if (!options_.serve.empty()) return run_steps({&Session::parse, &Session::load_data, &Session::open, &Session::bind, &Session::serve, &Session::write});
    if (options_.generate > 0) return run_steps({&Session::parse, &Session::load_data, &Session::open, &Session::bind, &Session::generate, &Session::write});
    return run_steps({&Session::parse, &Session::load_data, &Session::open, &Session::bind, &Session::iterate,
                      &Session::collect, &Session::check, &Session::write});
  }

 private:
  Failure run_steps(std::initializer_list<Failure (Session::*)()> steps) {
    for (const auto step : steps) {
      if (Failure failure = (this->*step)()) return failure;
      if (interrupted()) return {kInterrupted, "interrupted"};
    }
    return close();
  }

  // Relaxed: the flag carries no data.
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }

  Failure parse() {
    spec::ParseOptions parse;
    parse.allow_inline = options_.allow_inline;
    parse.constants = options_.dims;
    const std::string config = config_path(options_);
    // What stands for an absent key may follow from other dims, so it takes a few rounds until nothing changes.
    for (int round = 0; round < kConfigRounds; ++round) {
      spec::ParseResult parsed = spec::parse_file(options_.spec, parse);
      if (!parsed.ok) return {kInputAtFault, spec::format_diagnostics(parsed)};
      spec_ = std::move(parsed.program);
      if (config.empty() || spec_.config_dims.empty()) break;
      Result<Constants> said = config_constants(spec_, config, given_);
      if (!said.ok()) return input_fault(said.status());
      Constants all = given_;
      all.insert(all.end(), said->begin(), said->end());
      if (all == parse.constants) break;
      options_.dims = parse.constants = std::move(all);
    }
    outcome_.program = spec_.name;
    return {};
  }

  Failure load_data() {
    Result<Lengths> lengths = read_lengths(spec_, options_);
    if (!lengths.ok()) return input_fault(lengths.status());
    Result<std::vector<std::int64_t>> dims = bind_dims(spec_, options_, *lengths);
    if (!dims.ok()) return input_fault(dims.status());
    // The plan is made for the rows that there are, as for a dim that --set gives.
    for (const spec::RaggedDim& r : spec_.ragged)
      if (lengths->contains(spec_.symbols[r.rows].name)) spec_.symbols[r.rows].preset = (*dims)[r.rows];
    Result<RunData> data = RunData::open(spec_, std::move(*dims), std::move(*lengths), options_);
    if (!data.ok()) return input_fault(data.status());
    data_.emplace(std::move(*data));
    for (const auto* outputs : {&options_.outputs, &options_.outputs_each}) {
      for (const auto& [name, path] : *outputs) {
        const auto id = spec_.find_tensor(name);
        if (!id || spec_.tensor(*id).kind != spec::TensorKind::output)
          return {kInputAtFault, fmt::format("'{}' is not an output", name)};
      }
    }
    if (!options_.serve.empty()) return read_serve();
    if (options_.generate == 0) return read_inputs();
    Result<std::vector<std::int32_t>> prompt = read_prompt(options_, spec_);
    if (!prompt.ok()) return input_fault(prompt.status());
    prompt_ = std::move(*prompt);
    return {};
  }

  // The ids that a program's tokens may be are those it would be seeded with.
  Failure read_serve() {
    const auto tokens = spec_.find_tensor(ServeNames().token);
    const bool known = tokens && spec_.tensor(*tokens).init.kind == spec::Init::Kind::integers;
    const auto rows = std::find_if(spec_.symbols.begin(), spec_.symbols.end(), [](const auto& s) { return s.name == ServeNames().rows; });
    if (rows == spec_.symbols.end()) return {kInputAtFault, fmt::format("'{}' serves nobody: it has no symbol '{}'", spec_.name, ServeNames().rows)};
    most_rows_ = static_cast<std::uint32_t>(rows->range.hi);
    if (options_.serve_rows != 0) most_rows_ = std::min(most_rows_, options_.serve_rows);
    Result<std::vector<TimedRequest>> read = read_requests(options_.serve, known ? static_cast<std::int64_t>(spec_.tensor(*tokens).init.b) : INT32_MAX, options_.seed);
    if (!read.ok()) return input_fault(read.status());
    requests_ = std::move(*read);
    return {};
  }

  Failure serve() {
    Failure failure = serve_requests(options_, *engine_, requests_, interrupted_, progress_, outcome_);
    if (failure || options_.serve_tokens.empty()) return failure;
    const Status written = write_served(options_.serve_tokens, *outcome_.served);
    return written.ok() ? Failure{} : input_fault(written);
  }

  // Before the device is opened: a bad file should not cost a launch.
  Failure read_inputs() {
    for (spec::TensorId id = 0; id < spec_.tensors.size(); ++id) {
      const spec::Tensor& tensor = spec_.tensor(id);
      const bool state = tensor.kind == spec::TensorKind::state && data_->given(tensor.name);
      if (tensor.kind == spec::TensorKind::output) outputs_[tensor.name] = {};
      if ((tensor.kind != spec::TensorKind::input && !state) || data_->lengths_of(id) != nullptr) continue;
      Result<std::vector<std::byte>> bytes = data_->bytes(id);
      if (!bytes.ok()) return input_fault(bytes.status());
      (state ? states_ : inputs_)[tensor.name] = std::move(*bytes);
    }
    return {};
  }

  Failure open() {
    DeviceOptions device;
    device.kind = options_.device;
    device.transport = options_.transport;
    device.workers = options_.workers;
    Result<std::unique_ptr<Device>> opened = open_device(device);
    if (!opened.ok()) return {kDeviceError, opened.status().to_string()};
    outcome_.device = (*opened)->info();
    const CodeTarget target{outcome_.device.kind, outcome_.device.architecture,
                            options_.workers_per_run > 0 ? options_.workers_per_run : outcome_.device.workers};
    Result<Program> program = load_program(options_, spec_, target, outcome_.code);
    if (!program.ok())
      return program.status().code() == ErrorCode::unavailable ? device_failure(program.status())
                                                               : input_fault(program.status());
    EngineOptions engine;
    engine.arm = options_.arm;
    engine.policy = options_.policy;
    engine.spine = options_.spine;
    engine.slots = !options_.serve.empty()  ? std::max(options_.slots, Server::slots_for(most_rows_, options_.ahead))
                   : options_.generate > 0 ? generate_slots(options_)
                                           : std::max(options_.slots, options_.in_flight);
    engine.chain_states = options_.generate > 0 || !options_.serve.empty();
    engine.workers_per_run = options_.workers_per_run;
    engine.prime_runs = !options_.no_prime;
    engine.take_rows_by_tags = !options_.no_row_tags;
    engine.relays = !options_.no_relays;
    engine.speculate_bytes = speculate_bytes(options_);
    engine.wrong_guesses = options_.wrong_guesses / 100;
    if (options_.task_deadline_s > 0)
      engine.task_deadline = std::chrono::nanoseconds(static_cast<std::int64_t>(options_.task_deadline_s * 1e9));
    engine.trace_records = options_.trace.empty() ? 0 : 1u << 16;
    engine.record_path = options_.record;
    engine.replay_path = options_.replay;
    Result<Engine> created = Engine::create(std::move(*opened), std::move(*program), engine);
    if (!created.ok()) {
      const bool file =
          created.status().code() == ErrorCode::not_found || created.status().code() == ErrorCode::io_error;
      return file ? input_fault(created.status()) : device_failure(created.status());
    }
    engine_.emplace(std::move(*created));
    return {};
  }

  Failure simulate() {
    if (options_.generate > 0) return {kUsage, "--device sim generates nothing"};
    if (!options_.serve.empty()) return {kUsage, "--device sim serves nobody"};
    if (tells_iterations_apart(options_)) return {kUsage, "--device sim: iterations are alike, one at a time"};
    if (Failure parsed = parse()) return parsed;
    if (Failure loaded = load_data()) return loaded;
    return run_simulated(options_, spec_, *data_, interrupted_, outcome_);
  }

  // Nothing runs: for machines without a GPU.
  Failure compile_only() {
    Options jit = options_;
    jit.code = "jit";
    const Result<Program> program =
        load_program(jit, spec_, {"cuda", options_.jit_only, options_.workers}, outcome_.code);
    if (program.ok()) return {};
    return program.status().code() == ErrorCode::unavailable ? device_failure(program.status())
                                                             : input_fault(program.status());
  }

  Failure bind() {
    for (spec::TensorId id = 0; id < spec_.tensors.size() && !interrupted(); ++id) {
      const spec::Tensor& tensor = spec_.tensor(id);
      if (tensor.kind != spec::TensorKind::weight) continue;
      Result<std::span<const std::byte>> stored = data_->stored_weight(id);  // not copied: a checkpoint may be large
      if (!stored.ok()) return input_fault(stored.status());
      std::vector<std::byte> seeded;
      if (stored->empty()) {
        Result<std::vector<std::byte>> bytes = data_->bytes(id);
        if (!bytes.ok()) return input_fault(bytes.status());
        seeded = std::move(*bytes);
      }
      const Status bound = engine_->bind_weight(tensor.name, stored->empty() ? std::span<const std::byte>(seeded) : *stored);
      // A generated module may leave out weights that no op reads.
      if (!bound.ok() && bound.code() != ErrorCode::not_found) return device_failure(bound);
    }
    outcome_.unused_weights = data_->unused_weights();
    if (interrupted()) return {kInterrupted, "interrupted"};
    if (const Status started = engine_->start(); !started.ok()) return device_failure(started);
    for (std::size_t i = 0; i < spec_.symbols.size(); ++i) dims_.emplace_back(spec_.symbols[i].name, data_->dims()[i]);
    Result<std::uint64_t> tasks = engine_->tasks_per_run(dims_);
    if (!tasks.ok()) return device_failure(tasks.status());
    outcome_.tasks_per_iteration = *tasks;
    return {};
  }

  Failure iterate() {
    Iterations iterations({options_, *data_, *engine_, inputs_, states_, dims_, interrupted_, progress_}, outcome_);
    Failure failure = iterations.run();
    run_ = iterations.take_last();
    outputs_each_ = iterations.take_outputs();
    return failure;
  }

  Failure generate() { return generate_tokens(options_, *engine_, prompt_, interrupted_, sink_, outputs_, outcome_); }

  Failure collect() {
    for (auto& [name, bytes] : outputs_) {
      Result<std::uint64_t> size = run_.tensor_bytes(name);
      if (!size.ok()) return device_failure(size.status());
      bytes.resize(*size);
      if (const Status read = run_.read_output(name, bytes); !read.ok()) return device_failure(read);
    }
    for (const plan::ReportDesc& report : engine_->plan().reports) {
      Result<std::vector<double>> values = run_.report(report.name);
      if (values.ok()) outcome_.reports.emplace_back(report.name, std::move(*values));
    }
    outcome_.stats = engine_->stats();
    return {};
  }

  Failure check() {
    if (!options_.verify) return {};
    const bool each = tells_iterations_apart(options_);
    Result<Verification> result = verify(*data_, each ? outputs_each_ : outputs_, each ? options_.iterations : 1);
    if (!result.ok())
      return {result.status().code() == ErrorCode::unsupported ? kUsage : kInputAtFault, result.status().to_string()};
    outcome_.verified = true;
    outcome_.verification = *result;
    return {};
  }

  Failure write() {
    for (const auto& [name, path] : options_.outputs) {
      const spec::TensorId id = *spec_.find_tensor(name);
      std::vector<std::int64_t> shape = data_->shape(id);
      if (options_.generate > 0) shape.insert(shape.begin(), static_cast<std::int64_t>(outcome_.us.size()));  // a token each
      const Status written = write_npy(path, {spec_.tensor(id).dtype, shape, outputs_[name]});
      if (!written.ok()) return input_fault(written);
    }
    for (const auto& [name, path] : options_.outputs_each) {
      const spec::TensorId id = *spec_.find_tensor(name);
      std::vector<std::int64_t> shape = data_->shape(id);
      shape.insert(shape.begin(), options_.iterations);
      const Status written = write_npy(path, {spec_.tensor(id).dtype, shape, outputs_each_[name]});
      if (!written.ok()) return input_fault(written);
    }
    if (options_.trace.empty()) return {};
    if (const Status drained = engine_->drain(std::chrono::seconds(10)); !drained.ok()) return device_failure(drained);
    const Status written = engine_->write_trace(options_.trace);
    return written.ok() ? Failure{} : input_fault(written);
  }

  // Ends the engine, which gives the record its name.
  Failure close() {
    if (!options_.record.empty()) {
      if (const Status drained = engine_->drain(std::chrono::seconds(10)); !drained.ok())
        return device_failure(drained);
    }
    run_ = Run();
    engine_.reset();
    if (options_.record.empty()) return {};
    // Read back: an engine that goes away cannot say that its record is incomplete.
    const Result<scheduler::Record> record = scheduler::read_record(options_.record);
    return record.ok() ? Failure{} : input_fault(record.status());
  }

  static constexpr int kConfigRounds = 4;
  Options options_;  // its dims grow by what a checkpoint's config says
  const Constants given_;
  const std::atomic<bool>& interrupted_;
  bool progress_;
  Outcome& outcome_;
  const TokenSink& sink_;
  std::vector<std::int32_t> prompt_;
  std::vector<TimedRequest> requests_;
  std::uint32_t most_rows_ = 0;
  spec::Program spec_;
  std::optional<RunData> data_;
  std::map<std::string, std::vector<std::byte>> inputs_, states_, outputs_, outputs_each_;
  std::vector<std::pair<std::string_view, std::int64_t>> dims_;
  std::optional<Engine> engine_;
  Run run_;
};

}  // namespace

Failure device_failure(const Status& status) {
  const bool input = status.code() == ErrorCode::out_of_range || status.code() == ErrorCode::invalid_argument ||
                     status.code() == ErrorCode::invalid_data;
  return {input ? kInputAtFault : kDeviceError, status.to_string()};
}

Failure run_session(const Options& options, const std::atomic<bool>& interrupted, bool progress, Outcome& outcome,
                    const std::function<void(const GeneratedToken&)>& on_token) {
  return Session(options, interrupted, progress, outcome, on_token).run();
}

}  // namespace ccks::run

#include "ccks/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "ccks/plan_eval.hpp"

namespace ccks {
namespace {

using Clock = std::chrono::steady_clock;

Status no_part(const plan::PlanView& plan, const char* what, const std::string& name) {
  return {ErrorCode::invalid_argument, fmt::format("program '{}' generates nothing: it has no {} '{}'", plan.name, what, name)};
}

class Generation {
 public:
  Generation(Engine& engine, const GenerateRequest& request)
      : engine_(engine), request_(request), begun_(Clock::now()), position_(request.position) {}

  Result<GenerateResult> run() {
    CCKS_RETURN_IF_ERROR(check());
    CCKS_RETURN_IF_ERROR(send_prompt());
    last_ = begun_;
    for (;;) {
      while (sent_ahead() < request_.ahead && wants_more()) CCKS_RETURN_IF_ERROR(send_step());
      CCKS_RETURN_IF_ERROR(take_token());
      if (stopped_) break;
      if (under_way_.empty()) CCKS_RETURN_IF_ERROR(send_known());
    }
    drop_rest();
    return std::move(result_);
  }

 private:
  Status check() {
    const plan::PlanView& plan = engine_.plan();
    const plan::SymbolDesc* length = symbol(request_.names.length);
    const plan::SymbolDesc* position = symbol(request_.names.position);
    if (position == nullptr) return no_part(plan, "symbol", request_.names.position);
    const auto has_tensor = [&](const std::string& name, plan::TensorKind kind) {
      return std::any_of(plan.tensors.begin(), plan.tensors.end(),
                         [&](const auto& t) { return name == t.name && t.kind == kind && t.dtype == wire::Dtype::i32; });
    };
    if (!has_tensor(request_.names.tokens, plan::TensorKind::input)) return no_part(plan, "i32 input", request_.names.tokens);
    if (!has_tensor(request_.names.next, plan::TensorKind::output)) return no_part(plan, "i32 output", request_.names.next);
    if (request_.prompt.empty() || request_.max_tokens == 0) return {ErrorCode::invalid_argument, "nothing to generate, or nothing to begin with"};
    last_position_ = position->hi;
    if (length == nullptr) {
      CCKS_RETURN_IF_ERROR(find_rows(plan));
    } else {
      has_length_ = true;
      chunk_ = request_.prompt_chunk == 0 ? length->hi : std::min<std::int64_t>(request_.prompt_chunk, length->hi);
    }
    if (request_.prompt.size() % rows_ != 0)
      return {ErrorCode::invalid_argument, fmt::format("a prompt of {} tokens is not one of {} rows", request_.prompt.size(), rows_)};
    const auto tokens = static_cast<std::int64_t>(request_.prompt.size() / rows_);
    if (request_.position < position->lo || request_.position + tokens - 1 > last_position_) {
      return {ErrorCode::out_of_range, fmt::format("a prompt of {} tokens from position {} does not fit: the last position is {}",
                                                   tokens, request_.position, last_position_)};
    }
    return {};
  }

  /// How many tokens such a run takes, whatever the position.
  Status find_rows(const plan::PlanView& plan) {
    std::vector<std::int64_t> symbols, dims(plan.dims.size());
    for (const plan::SymbolDesc& s : plan.symbols) symbols.push_back(s.lo);
    if (!plan::evaluate_dims(plan.dims, symbols, dims)) return no_part(plan, "symbol", request_.names.length);
    const auto rows_of = [&](const std::string& name) {
      const auto found = std::find_if(plan.tensors.begin(), plan.tensors.end(), [&](const auto& t) { return name == t.name; });
      std::int64_t count = 1;
      for (std::size_t d = 0; d < found->rank; ++d) count *= dims[found->shape[d]];
      return count;
    };
    const std::int64_t rows = rows_of(request_.names.tokens);
    if (rows < 1 || rows != rows_of(request_.names.next)) return no_part(plan, "symbol", request_.names.length);
    rows_ = static_cast<std::size_t>(rows);
    chunk_ = 1;
    return {};
  }

  const plan::SymbolDesc* symbol(const std::string& name) const {
    const auto symbols = engine_.plan().symbols;
    const auto found = std::find_if(symbols.begin(), symbols.end(), [&](const auto& s) { return name == s.name; });
    return found == symbols.end() ? nullptr : &*found;
  }

  /// A run of `tokens` from where the state stands; without tokens, of what the newest run puts out.
  Status send(std::span<const std::int32_t> tokens) {
    RunRequest run;
    const auto length = tokens.empty() ? std::int64_t{1} : static_cast<std::int64_t>(tokens.size() / rows_);
    run.dims = {{request_.names.position, position_}};
    if (has_length_) run.dims.push_back({request_.names.length, length});
    run.state = request_.state;
    if (tokens.empty()) {
      run.feeds = {{request_.names.tokens, &newest_run(), request_.names.next}};
      if (!request_.stop.empty()) run.unless = {&newest_run(), request_.names.token, request_.stop};
    } else {
      run.inputs = {{request_.names.tokens, std::as_bytes(tokens)}};
    }
    Result<Run> sent = engine_.submit(std::move(run));
    if (!sent.ok()) return sent.status();
    position_ += length;
    under_way_.push_back(std::move(*sent));
    return {};
  }

  /// Of the parts of a prompt only the last has a token that counts.
  Status send_prompt() {
    for (std::span<const std::int32_t> rest = request_.prompt; !rest.empty();) {
      const std::size_t count = std::min(rest.size(), static_cast<std::size_t>(chunk_) * rows_);
      CCKS_RETURN_IF_ERROR(send(rest.first(count)));
      rest = rest.subspan(count);
      if (rest.empty()) break;
      CCKS_RETURN_IF_ERROR(under_way_.front().wait());
      under_way_.pop_front();
    }
    return {};
  }

  const Run& newest_run() const { return under_way_.back(); }
  std::size_t sent_ahead() const { return under_way_.size() - 1; }
  /// Whether the tokens of the runs under way leave any to be made.
  bool wants_more() const {
    return result_.times.size() + under_way_.size() < request_.max_tokens && position_ <= last_position_;
  }
  Status send_step() { return send({}); }
  Status send_known() { return send(newest_tokens()); }
  std::span<const std::int32_t> newest_tokens() const { return std::span(result_.tokens).last(rows_); }

  Status take_token() {
    Run run = std::move(under_way_.front());
    under_way_.pop_front();
    CCKS_RETURN_IF_ERROR(run.wait());
    Result<std::vector<double>> report = run.report(request_.names.token);
    if (!report.ok()) return report.status();
    if (report->size() != rows_) return no_part(engine_.plan(), "report of all rows,", request_.names.token);
    const auto now = Clock::now();
    for (const double id : *report) result_.tokens.push_back(static_cast<std::int32_t>(id));
    GeneratedToken token{result_.tokens[result_.tokens.size() - rows_], newest_tokens(), static_cast<std::uint32_t>(result_.times.size()),
                         now - begun_, run.latency(), &run};
    result_.times.push_back(now - last_);
    last_ = now;
    const bool goes_on = !request_.on_token || request_.on_token(token);
    decide(goes_on);
    return {};
  }

  /// Whether every row has had a token to stop at.
  bool all_stopped() {
    stopped_rows_.resize(rows_);
    const auto newest = newest_tokens();
    for (std::size_t row = 0; row < rows_; ++row)
      if (std::find(request_.stop.begin(), request_.stop.end(), newest[row]) != request_.stop.end()) stopped_rows_[row] = true;
    return std::find(stopped_rows_.begin(), stopped_rows_.end(), false) == stopped_rows_.end();
  }

  void decide(bool goes_on) {
    const std::int64_t next = position_ - static_cast<std::int64_t>(under_way_.size());
    stopped_ = true;
    result_.position = next;
    if (all_stopped()) {
      result_.reason = StopReason::token;
    } else if (!goes_on) {
      result_.reason = StopReason::caller;
    } else if (result_.times.size() == request_.max_tokens) {
      result_.reason = StopReason::length;
    } else if (next > last_position_) {
      result_.reason = StopReason::position;
    } else {
      stopped_ = false;
    }
  }

  /// What has not begun is left out; what has ends by itself, and in order with whatever uses the state next.
  void drop_rest() {
    result_.rows = static_cast<std::uint32_t>(rows_);
    result_.dropped = static_cast<std::uint32_t>(under_way_.size());
    for (Run& run : under_way_) run.cancel();
  }

  Engine& engine_;
  const GenerateRequest& request_;
  Clock::time_point begun_, last_;
  std::int64_t position_;  // that the next run begins at
  std::int64_t last_position_ = 0;
  std::int64_t chunk_ = 1;
  std::size_t rows_ = 1;
  bool has_length_ = false;
  std::vector<bool> stopped_rows_;
  std::deque<Run> under_way_;  // the oldest first: the one whose token comes next
  GenerateResult result_;
  bool stopped_ = false;
};

}  // namespace

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::token:
      return "token";
    case StopReason::length:
      return "length";
    case StopReason::position:
      return "position";
    case StopReason::caller:
      return "caller";
  }
  return "unknown";
}

Result<GenerateResult> generate(Engine& engine, const GenerateRequest& request) { return Generation(engine, request).run(); }

}  // namespace ccks

// Sequences of single ops on the host device: the order of a stream, kept by the threads of an OpPool.
#include "gpu/host/host_device.hpp"
#include "gpu/host/isa.hpp"

namespace ccks::gpu {
namespace {

constexpr std::uint64_t kTeardownNs = 5'000'000'000;  // as OpPool's

class HostOpSequence final : public OpSequence {
 public:
  HostOpSequence(OpPool& pool, std::shared_ptr<OpJob> job) : pool_(pool), job_(std::move(job)) {}
  ~HostOpSequence() override { (void)pool_.wait(*job_, kTeardownNs); }  // the pool keeps a job that has not ended

  Status launch() override {
    if (!pool_.wait(*job_, 0)) return {ErrorCode::invalid_argument, "a sequence is launched while it is under way"};
    if (!job_->steps.empty()) pool_.start(job_);
    return {};
  }
  Result<bool> wait(std::uint64_t timeout_ns) override { return pool_.wait(*job_, timeout_ns); }

 private:
  OpPool& pool_;
  std::shared_ptr<OpJob> job_;
};

}  // namespace

Result<std::unique_ptr<OpSequence>> HostDevice::make_op_sequence(const WorkerImage& image, const OpSequencePlan& plan) {
  if (plan.mode != SequenceMode::stream) {
    return {ErrorCode::unsupported, "the host device has no graphs: single ops run as a stream does"};
  }
  {
    const std::lock_guard lock(op_pool_mutex_);
    if (op_pool_ == nullptr) {
      auto pool = OpPool::create(info_.workers);
      if (!pool.ok()) return pool.status();
      op_pool_ = std::move(pool.value());
    }
  }
  auto job = std::make_shared<OpJob>();
  job->entry = image.host != nullptr ? image.host : best_host_isa().entry;
  job->launch.frame = plan.frame;
  job->launch.status = plan.status;
  job->scratch_bytes = plan.scratch_bytes;
  job->steps.assign(plan.steps.begin(), plan.steps.end());
  return std::unique_ptr<OpSequence>(new HostOpSequence(*op_pool_, std::move(job)));
}

}  // namespace ccks::gpu

// A small server around an Engine: client threads with seeded Poisson arrivals, one program, latency percentiles at the
// end.
//
// usage: ccks-example-server SPEC [requests per client] [clients] [arrivals per second and client] [seed]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ccks/engine.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Load {
  int requests = 100;
  int clients = 4;
  double per_second = 200;
  unsigned seed = 1;
};

// Every tensor gets small values; a real server would read a checkpoint. Zero bytes are valid for every dtype.
std::vector<std::byte> filled(const ccks::plan::TensorDesc& tensor, std::uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  if (tensor.dtype != ccks::wire::Dtype::f32) return out;
  for (std::uint64_t i = 0; i + 4 <= bytes; i += 4) {
    const float value = 0.01f * static_cast<float>(i / 4 % 17) - 0.08f;
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

ccks::Status bind_weights(ccks::Engine& engine) {
  for (const ccks::plan::TensorDesc& tensor : engine.plan().tensors) {
    if (tensor.kind != ccks::plan::TensorKind::weight) continue;
    CCKS_RETURN_IF_ERROR(engine.bind_weight(tensor.name, filled(tensor, tensor.max_bytes)));
  }
  return {};
}

// One client: waits for its next arrival, submits, and records the time from arrival to completion, queueing included.
class Client {
 public:
  Client(ccks::Engine& engine, const Load& load, int index)
      : engine_(engine), load_(load), random_(load.seed * 1000 + static_cast<unsigned>(index)) {}

  void run() {
    std::exponential_distribution<double> gap(load_.per_second);
    Clock::time_point arrival = Clock::now();
    for (int i = 0; i < load_.requests; ++i) {
      arrival += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap(random_)));
      std::this_thread::sleep_until(arrival);
      if (!serve(arrival)) ++failed_;
    }
  }
  const std::vector<double>& milliseconds() const { return milliseconds_; }
  int failed() const { return failed_; }

 private:
  bool serve(Clock::time_point arrival) {
    ccks::Result<ccks::Run> run = engine_.submit({});
    if (!run.ok() || !run->wait().ok()) return false;
    milliseconds_.push_back(std::chrono::duration<double, std::milli>(Clock::now() - arrival).count());
    return true;
  }

  ccks::Engine& engine_;
  const Load& load_;
  std::mt19937 random_;
  std::vector<double> milliseconds_;
  int failed_ = 0;
};

int fail(const ccks::Status& status) {
  std::fprintf(stderr, "server: %s\n", status.to_string().c_str());
  return 1;
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1))];
}

int serve(ccks::Engine& engine, const Load& load) {
  std::vector<Client> clients;
  for (int i = 0; i < load.clients; ++i) clients.emplace_back(engine, load, i);
  std::vector<std::thread> threads;
  for (Client& client : clients) threads.emplace_back([&client] { client.run(); });
  for (std::thread& thread : threads) thread.join();
  if (const ccks::Status drained = engine.drain(std::chrono::seconds(10)); !drained.ok()) return fail(drained);
  std::vector<double> all;
  int failed = 0;
  for (const Client& client : clients) {
    all.insert(all.end(), client.milliseconds().begin(), client.milliseconds().end());
    failed += client.failed();
  }
  std::sort(all.begin(), all.end());
  const ccks::EngineStats stats = engine.stats();
  std::printf("%zu requests served, %d failed\n", all.size(), failed);
  std::printf("latency ms: p50 %.3f  p90 %.3f  p99 %.3f  max %.3f\n", percentile(all, 0.5), percentile(all, 0.9),
              percentile(all, 0.99), percentile(all, 1));
  std::printf("%llu tasks in %llu publications\n", static_cast<unsigned long long>(stats.tasks_sent),
              static_cast<unsigned long long>(stats.publications));
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s SPEC [requests per client] [clients] [arrivals per second and client] [seed]\n",
                 argv[0]);
    return 2;
  }
  Load load;
  if (argc > 2) load.requests = std::atoi(argv[2]);
  if (argc > 3) load.clients = std::atoi(argv[3]);
  if (argc > 4) load.per_second = std::atof(argv[4]);
  if (argc > 5) load.seed = static_cast<unsigned>(std::atoi(argv[5]));
  auto device = ccks::open_device();
  if (!device.ok()) return fail(device.status());
  ccks::SpecOptions spec;
  spec.device = (*device)->info().kind;
  spec.workers_hint = (*device)->info().workers;
  auto program = ccks::Program::from_spec_file(argv[1], spec);
  if (!program.ok()) return fail(program.status());
  auto engine = ccks::Engine::create(std::move(*device), std::move(*program));
  if (!engine.ok()) return fail(engine.status());
  if (const ccks::Status bound = bind_weights(*engine); !bound.ok()) return fail(bound);
  if (const ccks::Status started = engine->start(); !started.ok()) return fail(started);
  return serve(*engine, load);
}

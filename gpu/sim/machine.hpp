// Machine: explorer, memory and link of one simulation, and the accesses that agents make to it. Times are those of the link
// model; in an exploring simulation they are only where chance begins.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/sim/link_model.hpp"
#include "gpu/sim/memory.hpp"

namespace ccks::gpu::sim {

struct MachineOptions {
  std::uint64_t seed = 1;
  Noise noise;
  LinkModel link;
  std::uint32_t retry_one_in = 0;  // a store in so many is lost on its way and sent again, by the link itself
  Nanos retry_ns = 0;              // how long that takes at most
  bool posts_aside = false;        // the device stores to link memory by a hand of its own: as a warp that only posts
};

/// One line of a timeline.
struct Moment {
  Nanos at;
  Explorer::Agent agent;
  std::string what;
};

class Machine {
 public:
  explicit Machine(const MachineOptions& options)
      : options_(options), explorer_(options.seed, options.noise, memory_) {
    memory_.attach(explorer_, options.link.stale_ns);
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  Explorer& explorer() { return explorer_; }
  Memory& memory() { return memory_; }
  const LinkModel& link() const { return options_.link; }
  Nanos now() const { return explorer_.now(); }

  // ---- words of link memory, by either side. Reads: the way there, the look, the way back. ----
  void begin_link_load() { explorer_.advance(on_host() ? link().host_ns : link().read_ns / 2); }
  /// Several words may be looked at between begin and end: one access fetches them all.
  std::uint64_t look(const void* address, std::uint32_t bytes, Order order) {
    const std::uint64_t value = memory_.load(address, bytes, order);
    if (trace_) tell("load", address, value, order);
    return value;
  }
  void end_link_load(const void* address) {
    if (!on_host()) explorer_.spend(link().read_ns - link().read_ns / 2);
    remember(address);
  }
  std::uint64_t load_link(const void* address, std::uint32_t bytes, Order order) {
    begin_link_load();
    const std::uint64_t value = look(address, bytes, order);
    end_link_load(address);
    return value;
  }
  void store_link(void* address, std::uint32_t bytes, std::uint64_t value, Order order) {
    begin_link_store(order);
    put_link(address, bytes, value, order, link_delay(order));
  }
  void begin_link_store(Order order) {
    explorer_.advance(on_host() ? link().host_ns : options_.posts_aside ? 0 : issue(order));
  }
  Nanos link_delay(Order order) {
    if (on_host()) return delay(link().host_ns + link().host_miss_ns, order);
    if (options_.posts_aside) post_for(issue(order));
    return (options_.posts_aside ? posting_until() - now() : 0) + delay(link().write_ns + link().host_miss_ns, order);
  }
  /// The hand that posts for this agent is busy for `ns` more; only with posts_aside.
  void post_for(Nanos ns) { posting_until() = (posting_until() > now() ? posting_until() : now()) + ns; }
  void put_link(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay) {
    if (trace_) tell("store", address, value, order);
    memory_.store(address, bytes, value, order, delay);
  }

  // ---- words of device memory, by workers ----
  std::uint64_t load_device(const void* address, std::uint32_t bytes, Order order);
  void store_device(void* address, std::uint32_t bytes, std::uint64_t value, Order order);
  void add_event(std::uint32_t* address, std::uint32_t amount, Order order);
  /// `order` release stands for acquire and release.
  std::uint32_t exchange_add(std::uint32_t* address, std::uint32_t amount, Order order);

  /// When a plain store of a body will be visible, from now.
  Nanos body_delay() { return delay(link().event_write_ns, Order::relaxed); }

  // ---- time ----
  Nanos clock() {
    explorer_.advance(kClockNs);
    return explorer_.now() + jump_[on_host() ? 0 : 1];
  }
  /// From now on the clock of `side` shows `ns` more.
  void jump_clock(Side side, Nanos ns) { jump_[side == Side::host ? 0 : 1] += ns; }
  void work(Nanos ns) { explorer_.advance(ns); }
  /// Sleeps until somebody stores to the word that the agent has read last, at most `most`.
  void wait_for_change(Nanos most) { explorer_.sleep(most, watched_[explorer_.self()]); }

  // ---- timelines ----
  bool tracing() const { return trace_; }
  void trace(bool on) { trace_ = on; }
  void tell(std::string what);
  void tell(const char* verb, const void* address, std::uint64_t value, Order order);
  const std::vector<Moment>& moments() const { return moments_; }
  /// Says what lies at an address; for timelines.
  void name_memory(std::function<std::string(const void*)> namer) { namer_ = std::move(namer); }

 private:
  static constexpr Nanos kClockNs = 20;  // of a look at the clock, either side

  bool on_host() const { return explorer_.side() == Side::host; }
  void remember(const void* address) {
    const Explorer::Agent self = explorer_.self();
    if (self >= watched_.size()) watched_.resize(self + 1);
    watched_[self] = address;
  }
  Nanos delay(Nanos ns, Order order);
  Nanos issue(Order order) const { return link().issue_ns + (order == Order::release ? link().link_release_ns : 0); }
  Nanos& posting_until() {
    const Explorer::Agent self = explorer_.self();
    if (self >= posting_.size()) posting_.resize(self + 1);
    return posting_[self];
  }

  MachineOptions options_;
  Memory memory_;
  Explorer explorer_;
  std::vector<const void*> watched_ = std::vector<const void*>(16);  // per agent: what it has read last
  std::vector<Nanos> posting_;
  Nanos jump_[2] = {0, 0};
  bool trace_ = false;
  std::vector<Moment> moments_;
  std::function<std::string(const void*)> namer_;
};

}  // namespace ccks::gpu::sim

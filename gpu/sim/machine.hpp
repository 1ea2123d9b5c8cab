// Machine: explorer, memory and link of one simulation, and the accesses that agents make to it. Times are those of the link
// model; in an exploring simulation they are only where chance begins.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/sim/hands.hpp"
#include "gpu/sim/link_model.hpp"
#include "gpu/sim/memory.hpp"

namespace ccks::gpu::sim {

struct MachineOptions {
  std::uint64_t seed = 1;
  Noise noise;
  LinkModel link;
  std::uint32_t retry_one_in = 0;  // a store in so many is lost on its way and sent again, by the link itself
  Nanos retry_ns = 0;              // how long that takes at most
  bool side_by_side = false;       // workers are thread blocks, whose stages have hands of their own (hands.hpp)
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
  void begin_link_load() { explorer_.advance(on_host() ? link().host_ns : read_ns() / 2); }
  /// Several words may be looked at between begin and end: one access fetches them all.
  std::uint64_t look(const void* address, std::uint32_t bytes, Order order) {
    const std::uint64_t value = memory_.load(address, bytes, order);
    if (trace_) tell("load", address, value, order);
    return value;
  }
  void end_link_load(const void* address) {
    if (!on_host()) explorer_.spend(read_ns() - read_ns() / 2);
    remember(address);
  }
  std::uint64_t load_link(const void* address, std::uint32_t bytes, Order order) {
    begin_link_load();
    const std::uint64_t value = look(address, bytes, order);
    end_link_load(address);
    return value;
  }
  /// Of its own inbox, a worker looks at verdicts: its gate does.
  std::uint64_t load_link_wide(const std::uint64_t* address, Order order) {
    const bool verdict = !on_host() && side_by_side() && address >= hands().inbox && address < hands().inbox_end;
    return verdict ? gate_look(address, 8, order, read_ns()) : load_link(address, 8, order);
  }
  void store_link(void* address, std::uint32_t bytes, std::uint64_t value, Order order) {
    begin_link_store(order);
    put_link(address, bytes, value, order, link_delay(order));
  }
  void begin_link_store(Order order) {
    explorer_.advance(on_host() ? link().host_ns : options_.side_by_side ? 0 : issue(order));
  }
  Nanos link_delay(Order order) {
    if (on_host()) return delay(link().host_ns + link().host_miss_ns, order);
    if (side_by_side()) post_for(issue(order));
    return (side_by_side() ? hands().post - now() : 0) + delay(link().write_ns + link().host_miss_ns, order);
  }
  void put_link(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay) {
    if (trace_) tell("store", address, value, order);
    memory_.store(address, bytes, value, order, delay, !on_host() && side_by_side() ? Hand::post : Hand::worker);
  }

  // ---- words of device memory, by workers ----
  std::uint64_t load_device(const void* address, std::uint32_t bytes, Order order);
  /// A look of a gate.
  std::uint64_t load_event(const std::uint32_t* address, Order order);
  void store_device(void* address, std::uint32_t bytes, std::uint64_t value, Order order);
  void add_event(std::uint32_t* address, std::uint32_t amount, Order order);
  /// `order` release stands for acquire and release.
  std::uint32_t exchange_add(std::uint32_t* address, std::uint32_t amount, Order order);

  /// When a plain store of a body will be visible, from now.
  Nanos body_delay() { return delay(link().event_write_ns, Order::relaxed); }

  // ---- stages of the worker that runs; only where they stand side by side ----
  bool side_by_side() const { return options_.side_by_side; }
  /// So many poll their inboxes over the link.
  void workers_poll(std::uint32_t workers) { crowd_ns_ = side_by_side() ? link().crowd_ns * (workers - 1) / kCrowd : 0; }
  Hands& hands() {
    const Explorer::Agent self = explorer_.self();
    if (self >= hands_.size()) hands_.resize(self + 1);
    return hands_[self];
  }
  void signal_for(Nanos ns) { busy(hands().signal, ns); }
  void post_for(Nanos ns) { busy(hands().post, ns); }
  /// A tile has run that adds to an event, which gets `total` adds a run.
  void will_add(const void* event, std::uint32_t total);

  // ---- time ----
  Nanos clock() {
    // Stages look at the clock only for traces.
    explorer_.advance(on_host() || !side_by_side() ? kClockNs : 0);
    return explorer_.now() + jump_[on_host() ? 0 : 1];
  }
  /// From now on the clock of `side` shows `ns` more.
  void jump_clock(Side side, Nanos ns) { jump_[side == Side::host ? 0 : 1] += ns; }
  /// It shows `ns` less; not more than shown().
  void set_back(Side side, Nanos ns) { jump_[side == Side::host ? 0 : 1] -= ns; }
  Nanos shown(Side side) const { return now() + jump_[side == Side::host ? 0 : 1]; }
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
  /// Of an event's adds in this run, those of one worker, while no other's are among them.
  struct Adds {
    Explorer::Agent by = Explorer::kNobody;
    std::uint32_t count = 0, total = 0;
  };

  static constexpr std::uint64_t kCrowd = 131;  // others, of an H200's workers
  static constexpr Nanos kClockNs = 20;  // of a look at the clock, either side

  bool on_host() const { return explorer_.side() == Side::host; }
  void remember(const void* address) {
    const Explorer::Agent self = explorer_.self();
    if (self >= watched_.size()) watched_.resize(self + 1);
    watched_[self] = address;
  }
  Nanos delay(Nanos ns, Order order);
  Nanos read_ns() const { return link().read_ns + crowd_ns_; }
  Nanos issue(Order order) const { return link().issue_ns + (order == Order::release ? link().link_release_ns : 0); }
  void busy(Nanos& hand, Nanos ns) { hand = std::max(hand, explorer_.own_time()) + ns; }
  std::uint64_t gate_look(const void* address, std::uint32_t bytes, Order order, Nanos takes);
  bool adds_all(const void* event) const;

  MachineOptions options_;
  Memory memory_;
  Explorer explorer_;
  std::vector<const void*> watched_ = std::vector<const void*>(16);  // per agent: what it has read last
  Nanos crowd_ns_ = 0;
  std::vector<Hands> hands_;  // per agent
  std::unordered_map<const void*, Adds> adds_;  // by event; side by side only
  Nanos jump_[2] = {0, 0};
  bool trace_ = false;
  std::vector<Moment> moments_;
  std::function<std::string(const void*)> namer_;
};

}  // namespace ccks::gpu::sim

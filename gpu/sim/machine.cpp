#include "gpu/sim/machine.hpp"

#include <fmt/format.h>

namespace ccks::gpu::sim {

Nanos Machine::delay(Nanos ns, Order order) {
  Random& random = explorer_.random();
  if (order == Order::relaxed && link().reorder_ns != 0 && explorer_.noisy()) ns += random.below(link().reorder_ns);
  if (options_.retry_one_in != 0 && explorer_.noisy() && random.chance(options_.retry_one_in)) ns += random.below(options_.retry_ns);
  return ns;
}

std::uint64_t Machine::load_device(const void* address, std::uint32_t bytes, Order order) {
  explorer_.advance(link().event_read_ns / 2);
  const std::uint64_t value = look(address, bytes, order);
  explorer_.spend(link().event_read_ns - link().event_read_ns / 2);
  remember(address);
  return value;
}

std::uint64_t Machine::load_event(const std::uint32_t* address, Order order) {
  if (!side_by_side()) return load_device(address, 4, order);
  Hands& mine = hands();
  // A pipeline does not wait for events whose whole count its worker adds: their tiles lie before this one.
  if (mine.own != address && adds_all(address)) {
    mine.own = address;
    return look(address, 4, order);
  }
  return gate_look(address, 4, order, link().event_read_ns);
}

// The gate has looked since its hand was free, whatever the fiber did meanwhile: this is the look that shows what the event is now.
std::uint64_t Machine::gate_look(const void* address, std::uint32_t bytes, Order order, Nanos takes) {
  Hands& mine = hands();
  const Nanos there = takes / 2, back = std::max<Nanos>(takes - there, 1);  // without time nobody else would ever come to his turn
  const Nanos at = look_that_sees(mine.gate, memory_.changed_at(address), there, back);
  if (at > explorer_.own_time()) explorer_.advance(at - explorer_.own_time());
  const std::uint64_t value = memory_.load_visible(address, bytes, order);
  if (trace_) tell("load", address, value, order);
  mine.gate = at + back;
  if (mine.gate > explorer_.own_time()) explorer_.spend(mine.gate - explorer_.own_time());
  remember(address);
  return value;
}

// Counts go on over runs: an event that is complete begins anew.
void Machine::will_add(const void* event, std::uint32_t total) {
  Adds& adds = adds_[event];
  if (adds.by != explorer_.self() || adds.count >= adds.total) adds = {explorer_.self(), 0, total};
  ++adds.count;
}

bool Machine::adds_all(const void* event) const {
  const auto found = adds_.find(event);
  return found != adds_.end() && found->second.by == explorer_.self() && found->second.count == found->second.total;
}

void Machine::store_device(void* address, std::uint32_t bytes, std::uint64_t value, Order order) {
  explorer_.advance(link().issue_ns + (order == Order::release ? link().release_ns : 0));
  if (trace_) tell("store", address, value, order);
  memory_.store(address, bytes, value, order, delay(link().event_write_ns, order));
}

void Machine::add_event(std::uint32_t* address, std::uint32_t amount, Order order) {
  const Nanos takes = link().issue_ns + (order == Order::release ? link().release_ns : 0);
  Nanos until = now();
  if (side_by_side()) {
    signal_for(hands().unheard ? 0 : takes);
    until = hands().signal;
    hands().post = std::max(hands().post, until);  // an answer says that the run's events stand at their counts
  } else {
    explorer_.advance(takes);
    until = now();
  }
  if (trace_) tell("add", address, amount, order);
  memory_.add(address, amount, order, until - now() + delay(link().event_write_ns, order));
}

std::uint32_t Machine::exchange_add(std::uint32_t* address, std::uint32_t amount, Order order) {
  explorer_.advance(link().event_read_ns / 2);
  // A read-modify-write that releases waits for what its agent has stored.
  while (order == Order::release && memory_.settled(explorer_.self()) > explorer_.now()) {
    explorer_.advance(memory_.settled(explorer_.self()) - explorer_.now());
  }
  const std::uint32_t before = memory_.exchange_add(address, amount, order);
  if (trace_) tell("exchange", address, before, order);
  explorer_.spend(link().event_read_ns - link().event_read_ns / 2);
  remember(address);
  return before;
}

void Machine::tell(std::string what) {
  if (trace_) moments_.push_back({explorer_.now(), explorer_.self(), std::move(what)});
}

void Machine::tell(const char* verb, const void* address, std::uint64_t value, Order order) {
  constexpr const char* kOrders[] = {"relaxed", "acquire", "release"};
  const std::string name = namer_ ? namer_(address) : fmt::format("{}", address);
  tell(fmt::format("{} {} {} = {:#x}", verb, kOrders[static_cast<int>(order)], name, value));
}

}  // namespace ccks::gpu::sim

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

void Machine::store_device(void* address, std::uint32_t bytes, std::uint64_t value, Order order) {
  explorer_.advance(link().issue_ns + (order == Order::release ? link().release_ns : 0));
  if (trace_) tell("store", address, value, order);
  memory_.store(address, bytes, value, order, delay(link().event_write_ns, order));
}

void Machine::add_event(std::uint32_t* address, std::uint32_t amount, Order order) {
  explorer_.advance(link().issue_ns + (order == Order::release ? link().release_ns : 0));
  if (trace_) tell("add", address, amount, order);
  memory_.add(address, amount, order, delay(link().event_write_ns, order));
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

#include "gpu/sim/memory.hpp"

#include <algorithm>
#include <cstring>

namespace ccks::gpu::sim {
namespace {

std::uint64_t get(const void* address, std::uint32_t bytes) {
  std::uint64_t value = 0;
  std::memcpy(&value, address, bytes);
  return value;
}
void put(void* address, std::uint32_t bytes, std::uint64_t value) { std::memcpy(address, &value, bytes); }

}  // namespace

Memory::AgentState& Memory::state(Explorer::Agent agent) {
  if (agent >= agents_.size()) agents_.resize(agent + 1);
  return agents_[agent];
}

// A change is seen late by relaxed loads of some agents: how late depends on agent and change alone, so that no agent sees
// a word go back.
bool Memory::is_stale(const Cell& cell, Explorer::Agent agent) {
  if (stale_ns_ == 0 || cell.by == agent) return false;
  const std::uint64_t mix = (std::uint64_t{cell.salt} + agent * 0x9e3779b9u) * 0xbf58476d1ce4e5b9ull;
  // Half of them at once.
  if ((mix >> 60 & 1) != 0) return false;
  return explorer_->now() < cell.changed + (mix >> 20) % stale_ns_;
}

std::uint64_t Memory::load(const void* address, std::uint32_t bytes, Order order, bool own) {
  const Explorer::Agent agent = explorer_->self();
  AgentState& mine = state(agent);
  const Cell& known = cell(address);
  std::uint64_t value = get(address, bytes);
  if (known.address == address) {
    if (order == Order::acquire) {
      mine.floor = std::max(mine.floor, known.changed);
    } else if (known.changed > mine.floor && is_stale(known, agent)) {
      value = known.before;
    }
  } else if (order == Order::acquire) {
    mine.floor = explorer_->now();
  }
  if (!own || mine.pending == 0) return value;
  std::uint64_t newest = 0;
  std::uint64_t added = 0;
  for (const Pending& p : pending_) {
    if (p.agent != agent || p.address != address) continue;
    if (p.kind == Kind::add) {
      added += p.value;
    } else if (p.sequence >= newest) {
      newest = p.sequence;
      value = p.value;
    }
  }
  return added == 0 ? value : static_cast<std::uint32_t>(get(address, bytes) + added);
}

void Memory::push(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay, Kind kind, Hand hand) {
  const Explorer::Agent agent = explorer_->self();
  AgentState& mine = state(agent);
  Nanos at = explorer_->now() + delay;
  if (order == Order::release) {
    at = std::max(at, hand == Hand::post ? std::max(mine.latest, mine.posted) : mine.latest);
  } else if (mine.pending != 0) {
    for (const Pending& p : pending_) {
      if (p.agent == agent && p.address == address) at = std::max(at, p.at);
    }
  }
  Nanos& last = hand == Hand::post ? mine.posted : mine.latest;
  last = std::max(last, at);
  ++mine.pending;
  pending_.push_back({at, ++sequence_, address, value, agent, static_cast<std::uint8_t>(bytes), kind});
  std::push_heap(pending_.begin(), pending_.end(), Later());
  most_ = std::max(most_, pending_.size());
  explorer_->expect(pending_.front().at);
}

void Memory::store(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay, Hand hand) {
  push(address, bytes, value, order, delay, Kind::store, hand);
}
void Memory::add(std::uint32_t* address, std::uint32_t amount, Order order, Nanos delay) {
  push(address, 4, amount, order, delay, Kind::add, Hand::worker);
}

std::uint32_t Memory::exchange_add(std::uint32_t* address, std::uint32_t amount, Order order) {
  const Explorer::Agent agent = explorer_->self();
  const std::uint32_t before = *address;
  Cell& known = cell(address);
  AgentState& mine = state(agent);
  if (order != Order::relaxed) {
    mine.floor = known.address == address ? std::max(mine.floor, known.changed) : explorer_->now();
  }
  note_change(address, before, explorer_->now(), agent);
  *address = before + amount;
  explorer_->stored(address, explorer_->now());
  return before;
}

void Memory::write(void* address, std::uint32_t bytes, std::uint64_t value) {
  note_change(address, get(address, bytes), explorer_->now(), explorer_->self());
  put(address, bytes, value);
}

Nanos Memory::changed_at(const void* address) {
  const Cell& known = cell(address);
  return known.address == address ? known.changed : 0;
}

Nanos Memory::settled(Explorer::Agent agent) const {
  return agent < agents_.size() ? std::max(agents_[agent].latest, agents_[agent].posted) : 0;
}

void Memory::renew(Explorer::Agent agent) { state(agent).floor = explorer_->now(); }

void Memory::drop(Explorer::Agent agent) {
  std::erase_if(pending_, [&](const Pending& p) { return p.agent == agent; });
  std::make_heap(pending_.begin(), pending_.end(), Later());
  state(agent) = {};
  renew(agent);
}

void Memory::note_change(const void* address, std::uint64_t before, Nanos at, Explorer::Agent by) {
  cell(address) = {address, before, at, by, static_cast<std::uint32_t>(++sequence_ * 0x9e3779b9u)};
}

void Memory::apply(const Pending& pending) {
  const std::uint64_t before = get(pending.address, pending.bytes);
  const std::uint64_t value = pending.kind == Kind::add ? static_cast<std::uint32_t>(before + pending.value) : pending.value;
  note_change(pending.address, before, pending.at, pending.agent);
  put(pending.address, pending.bytes, value);
  explorer_->stored(pending.address, pending.at);
}

void Memory::happen(Nanos now) {
  while (!pending_.empty() && pending_.front().at <= now) {
    std::pop_heap(pending_.begin(), pending_.end(), Later());
    const Pending next = pending_.back();
    pending_.pop_back();
    --agents_[next.agent].pending;
    apply(next);
  }
  if (!pending_.empty()) explorer_->expect(pending_.front().at);
}

}  // namespace ccks::gpu::sim

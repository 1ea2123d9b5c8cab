// Memory: the words that agents share, as weak as the code says. The words themselves lie in ordinary memory of the process and
// show what everybody can see; a store waits in its agent's buffer until its time has come.
//
// The model, for each access by the order its code names
//   relaxed store    visible after its delay, whatever was stored before it; in order with earlier ones of the agent to the
//                    same word
//   release store    the same, but not before anything that the agent has stored before it
//   relaxed load     its own newest store; else what is visible, or what was until `stale` ago, never older than what the
//                    agent has seen, or has acquired
//   acquire load     what is visible; from here on the agent sees everything that was visible when that word was stored
//   add              as the store of its order, but nothing of others is lost
// So a release that is too weak lets data arrive after the word that announces it; an acquire that is too weak lets data be read
// from before. Loads do not pass earlier loads or stores of their agent in any other way.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gpu/sim/explorer.hpp"

namespace ccks::gpu::sim {

enum class Order : std::uint8_t { relaxed, acquire, release };

/// Whose a store of an agent is, where an agent stands for several warps. A release waits for what its own warps have stored: one of
/// the worker's for bodies and signals, one of those that post for all.
enum class Hand : std::uint8_t { worker, post };

/// One simulation's memory. Words are 4 or 8 bytes, naturally aligned; a word is always accessed with the same size.
class Memory final : public Upcoming {
 public:
  void attach(Explorer& explorer, Nanos stale_ns) { explorer_ = &explorer, stale_ns_ = stale_ns; }

  /// By the agent that runs, at its time.
  std::uint64_t load(const void* address, std::uint32_t bytes, Order order) { return load(address, bytes, order, true); }
  /// The same by a warp that does not see what others of its agent have yet on their way.
  std::uint64_t load_visible(const void* address, std::uint32_t bytes, Order order) { return load(address, bytes, order, false); }
  /// Visible `delay` from now or later.
  void store(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay, Hand hand = Hand::worker);
  void add(std::uint32_t* address, std::uint32_t amount, Order order, Nanos delay);
  /// At once, as a unit; what stood there before. The caller has waited for what its order asks for.
  std::uint32_t exchange_add(std::uint32_t* address, std::uint32_t amount, Order order);
  /// At once, as a copy that has ended: seen by all who acquire something that comes after it.
  void write(void* address, std::uint32_t bytes, std::uint64_t value);
  /// When the word was last changed; 0 if that was long ago.
  Nanos changed_at(const void* address);
  /// When all that `agent` has stored so far can be seen.
  Nanos settled(Explorer::Agent agent) const;
  /// Ends the buffers of an agent that has left: its stores are all visible, its next launch sees everything.
  void renew(Explorer::Agent agent);
  /// A crash: nothing that is still in the agent's buffer will ever be seen.
  void drop(Explorer::Agent agent);

  std::size_t on_their_way() const { return pending_.size(); }
  std::size_t most_on_their_way() const { return most_; }
  void happen(Nanos now) override;

 private:
  enum class Kind : std::uint8_t { store, add };
  struct Pending {
    Nanos at;
    std::uint64_t sequence;
    void* address;
    std::uint64_t value;
    Explorer::Agent agent;
    std::uint8_t bytes;
    Kind kind;
  };
  struct Later {
    bool operator()(const Pending& a, const Pending& b) const { return a.at != b.at ? a.at > b.at : a.sequence > b.sequence; }
  };
  struct AgentState {
    Nanos latest = 0;       // when the last store of its worker becomes visible
    Nanos posted = 0;       // and the last that was posted aside
    Nanos floor = 0;        // it sees all that was visible then
    std::uint32_t pending = 0;
  };
  /// What a word was before its last change. Words share cells by hash; a word that lost its cell is never stale.
  struct Cell {
    const void* address = nullptr;
    std::uint64_t before = 0;
    Nanos changed = 0;
    Explorer::Agent by = Explorer::kNobody;
    std::uint32_t salt = 0;
  };

  AgentState& state(Explorer::Agent agent);
  Cell& cell(const void* address) { return cells_[(reinterpret_cast<std::uint64_t>(address) >> 2) * 0x9e3779b97f4a7c15ull >> 52]; }
  std::uint64_t load(const void* address, std::uint32_t bytes, Order order, bool own);
  void push(void* address, std::uint32_t bytes, std::uint64_t value, Order order, Nanos delay, Kind kind, Hand hand);
  void apply(const Pending& pending);
  void note_change(const void* address, std::uint64_t before, Nanos at, Explorer::Agent by);
  bool is_stale(const Cell& cell, Explorer::Agent agent);

  Explorer* explorer_ = nullptr;
  Nanos stale_ns_ = 0;
  std::vector<Pending> pending_;  // heap: the next to become visible in front
  std::vector<AgentState> agents_;
  std::vector<Cell> cells_ = std::vector<Cell>(4096);
  std::uint64_t sequence_ = 0;
  std::size_t most_ = 0;
};

}  // namespace ccks::gpu::sim

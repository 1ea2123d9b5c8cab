// Instance: a plan at certain dims, for one run slot. Built on the client's thread, read by the policies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ccks/result.hpp"
#include "scheduler/list_dealer.hpp"
#include "scheduler/list_records.hpp"
#include "scheduler/plan_tables.hpp"

namespace ccks::scheduler {

/// An axis of a wait at `dims`.
wire::WaitAxis wait_axis(const plan::WaitAxisDesc& axis, std::span<const std::int64_t> dims);

/// Tells runs of different dims apart in record files.
std::uint64_t hash_symbols(std::span<const std::int64_t> symbols);

/// How tiles are cut into tasks and laid out over workers.
struct Cut {
  std::uint32_t chunk = 1;  // tiles of a task
  float affinity = 0;       // workers / tiles: which worker holds the neighbourhood of a tile
  float tasks_each = 1;     // tasks that prefer one worker, on average
  bool in_turn = false;     // each to the next worker: tiles beside each other take as long, others may take many times that, or read the same
  std::uint32_t begin = 0;  // in turn: share of the first tile. Behind the last of the op before, so that what is left over goes to others
};
/// in_turn: if there are more tiles than workers.
Cut cut_tiles(std::uint32_t tiles, std::uint32_t workers, bool in_turn);

/// What the scheduler knows of an op at these dims.
struct OpInstance : Cut {
  std::uint32_t tiles = 0;
  std::uint32_t tile_cost = 1;  // estimate, about nanoseconds on one worker
  std::uint32_t stretch = plan::kNone;  // whose lists hold its tiles; kNone: they are sent
  bool reports = false;                 // publishes a report
  bool goes_in_turn = false;            // cut_tiles' in_turn
};

/// How a stretch goes out at these dims.
struct StretchInstance {
  bool listed = false;
  std::uint32_t lists = 0;  // that hold anything; listed only
  std::uint32_t filled_first = 0;  // the first of them in the instance's table
  std::uint64_t tiles = 0;
};

/// Addresses of a slot's memory, on the device.
struct SlotMemory {
  std::uint64_t arena = 0;
  std::uint64_t events = 0;
  std::uint64_t reports = 0;  // link memory: host address too
  std::uint64_t frame = 0;
};

/// An input that lies elsewhere than in the slot's own arena: what another run has put out. word: where that run's relay leaves it as a word of this tag (Instance::word_of); 0: nowhere.
struct Feed {
  std::uint32_t tensor = 0;
  std::uint64_t address = 0;
  std::uint64_t word = 0;
  std::uint32_t tag = 0;
  bool operator==(const Feed&) const = default;
};

/// Bytes of a frame that have changed.
struct FrameRange {
  std::uint32_t first = 0, end = 0;
};

/// Instance owns a slot's staging frame. All memory is reserved by reserve(); nothing below allocates after it.
/// Roles  written by the client that owns the slot, while no run of it is in flight; read by the scheduler after it
///        has taken the run from the submission queue.
class Instance {
 public:
  void reserve(const PlanTables& tables);

  /// Whether tiles add to the events of this signal; those of others stand still.
  bool sends(std::uint32_t signal) const { return signal_sent_[signal] != 0; }
  /// True if the instance was built for these symbols, so that its frame can be used again as it stands.
  bool matches(std::span<const std::int64_t> symbols) const;
  /// update brings an instance that has been built to other symbols where only operands and parameters of ops depend on them
  /// (PlanTables::varying_ops): lists, events and estimates stay. False: rebuild it.
  Result<bool> update(const PlanTables& tables, std::span<const std::int64_t> symbols, std::span<const std::int64_t> dims);
  /// Says where inputs lie; those not named lie in the arena. After rebuild() or update(). True: lists have changed, too, so all of the frame is to be written.
  bool feed(const PlanTables& tables, std::span<const Feed> feeds);
  /// Whether the relay begins with a row that the feed's word names, so that it waits for that and not for the run's turn.
  bool is_answered_by(const PlanTables& tables, const Feed& feed) const;
  /// Where a run of this frame leaves its output `tensor`, an index, as a word (wire::RelayStep::words of a pick); 0: nowhere.
  std::uint64_t word_of(const PlanTables& tables, std::uint32_t tensor) const { return relays_.word_of(head().arena + tables.plan.tensors[tensor].offset); }
  /// What update() and feed() have written since the last call, in few pieces, in order. Valid until the next call.
  std::span<const FrameRange> take_changes();

  /// rebuild resolves the plan at `symbols`; `dims` are its evaluated nodes. `epoch` is the next run of the slot.
  /// Fails with invalid_data where the plan does not fit its own bounds.
  Status rebuild(const PlanTables& tables, std::span<const std::int64_t> symbols, std::span<const std::int64_t> dims,
                 const SlotMemory& memory, std::uint64_t weights, std::uint64_t state, std::uint32_t epoch);

  void set_state(std::uint64_t state) { head().state = state; }
  /// After rebuild() and before the frame is written; 0: none.
  void set_queue(std::uint64_t address) { head().queue = address; }
  std::uint64_t state() const { return head().state; }

  std::span<const std::byte> frame() const { return {bytes(), head().frame_bytes}; }
  std::span<const std::int64_t> symbols() const { return symbols_; }
  std::span<const std::int64_t> dims() const { return dims_; }
  std::span<const OpInstance> ops() const { return ops_; }
  std::uint64_t dims_hash() const { return dims_hash_; }
  const wire::OpParams& op(std::uint32_t index) const { return table<wire::OpParams>(head().ops)[index]; }
  const wire::WaitParams* waits() const { return table<wire::WaitParams>(head().waits); }
  const wire::SignalParams* signals() const { return table<wire::SignalParams>(head().signals); }
  const wire::GuardParams* guards() const { return table<wire::GuardParams>(head().guards); }
  /// The slot's report area, on the host.
  const std::byte* reports() const { return reinterpret_cast<const std::byte*>(head().reports); }
  /// Where report `report` lies in it.
  std::byte* report_place(std::uint32_t report, const PlanTables& tables) const {
    return reinterpret_cast<std::byte*>(head().reports) + tables.plan.reports[report].offset;
  }
  const wire::ListParams* lists() const { return table<wire::ListParams>(head().lists); }
  std::span<const StretchInstance> stretches() const { return stretches_; }
  /// Estimated time of a list, about nanoseconds.
  std::uint32_t list_cost(std::uint32_t list) const { return list_cost_[list]; }
  /// The lists of `stretch` that hold anything, in order.
  std::span<const std::uint32_t> filled_lists(std::uint32_t stretch) const {
    return std::span(filled_).subspan(stretches_[stretch].filled_first, stretches_[stretch].lists);
  }
  /// The list that publishes `report`; kNone if a tile of its own does.
  std::uint32_t list_of_report(std::uint32_t report) const { return report_list_[report]; }
  /// False if everything goes out as lists.
  bool has_tiles() const { return has_tiles_; }
  /// What a run begins with, per op: tiles, and what it waits for to be sent; and the ops that wait for nothing. Valid
  /// where no op is without tiles, which would release others at once.
  std::span<const std::uint32_t> first_tiles() const { return first_tiles_; }
  std::span<const std::uint32_t> first_waiting() const { return first_waiting_; }
  std::span<const std::uint64_t> first_open() const { return first_open_; }
  bool has_empty_ops() const { return has_empty_ops_; }
  /// True if lists leave workers idle, so that runs beside each other should begin at different ones.
  bool has_idle_workers() const { return idle_workers_; }
  /// Tiles that run as steps of a relay (relays.hpp); 0: the frame has none.
  std::uint32_t relay_steps() const { return relays_.steps(); }
  bool relays() const { return relay_steps() != 0; }
  /// Tasks of a run, those of lists included.
  std::uint64_t tasks() const;

 private:
  template <class T>
  T* table(std::uint32_t offset) {
    return reinterpret_cast<T*>(bytes() + offset);
  }
  template <class T>
  const T* table(std::uint32_t offset) const {
    return reinterpret_cast<const T*>(bytes() + offset);
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(staging_.data()); }
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(staging_.data()); }
  wire::RunFrame& head() { return *table<wire::RunFrame>(0); }
  const wire::RunFrame& head() const { return *table<wire::RunFrame>(0); }

  void advance_bases(const PlanTables& tables, std::uint32_t epoch);
  void fill_head(const PlanTables& tables, const SlotMemory& memory, std::uint64_t weights, std::uint64_t state);
  void fill_operands(const PlanTables& tables);
  void fill_operand(const PlanTables& tables, std::uint32_t index);
  void fill_waits(const PlanTables& tables);
  void place_inputs(const PlanTables& tables, std::span<const Feed> feeds);
  void move_input(const PlanTables& tables, const Feed& feed);
  bool waits_stay(const PlanTables& tables, std::span<const std::int64_t> dims) const;
  void update_waits(const PlanTables& tables, std::uint32_t op);
  Status update_op(const PlanTables& tables, std::uint32_t index);
  void changed(std::uint32_t first, std::size_t bytes);
  Status fill_signals(const plan::PlanView& plan);
  void fill_guards(const plan::PlanView& plan);
  bool has_typical_shape(const PlanTables& tables, const plan::OpDesc& op) const;
  Status fill_op(const PlanTables& tables, std::uint32_t index);
  Status fill_grid(const plan::OpDesc& from, wire::OpParams& to) const;
  Status fill_report(const plan::PlanView& plan, const plan::OpDesc& from, wire::OpParams& to) const;
  void fill_tags(const PlanTables& tables);
  /// Says at both ends of an edge whether there are tags.
  void fill_row(const RowEdge& edge);
  /// Of the edges that the op is an end of.
  void update_rows(const PlanTables& tables, std::uint32_t op);
  bool takes_row(const RowEdge& edge) const;
  /// Whether lists were made for the rows that are taken by tags now.
  bool rows_stay(const PlanTables& tables) const;
  void fill_blocks(const PlanTables& tables);
  void fill_block(const PlanTables& tables, std::uint32_t index);
  bool fits_lists(const PlanTables& tables, std::uint32_t stretch);
  void fill_beginning(const PlanTables& tables);
  Status fill_lists(const PlanTables& tables);
  void count_list_tasks(const PlanTables& tables);
  void write_list_tasks(const PlanTables& tables);
  bool make_records(const PlanTables& tables);
  RelaySource relay_source(const PlanTables& tables) const;
  std::uint32_t number_lists(const PlanTables& tables);
  std::int64_t dim(plan::DimId id) const { return id == plan::kNone ? 0 : dims_[id]; }
  std::int32_t dim32(plan::DimId id) const { return static_cast<std::int32_t>(dim(id)); }

  struct alignas(16) Block {
    std::byte bytes[16];
  };
  std::vector<Block> staging_;
  std::vector<std::int64_t> symbols_;
  std::vector<std::int64_t> dims_;
  bool answered_ = false;  // the run in front says by a word which row the relay begins with
  std::vector<Feed> feeds_;
  std::vector<FrameRange> changes_, taken_;
  std::vector<std::uint32_t> moved_ops_, moved_waits_;  // while update() runs
  std::vector<std::uint8_t> taken_rows_;                // per row edge, where lists are made
  std::vector<OpInstance> ops_;
  std::vector<StretchInstance> stretches_;
  std::vector<std::uint32_t> list_fill_;  // per list, while lists are built
  std::vector<std::uint32_t> list_cost_;  // per list
  std::vector<std::uint32_t> filled_;     // lists that hold anything
  std::vector<std::uint32_t> report_list_;
  ListDealer dealer_;
  ListRecords records_;
  Relays relays_;
  std::uint64_t place_ = 0;  // of the frame, on the device
  std::vector<std::uint8_t> signal_sent_;  // per signal: tiles add to its events
  std::vector<std::uint32_t> first_tiles_, first_waiting_;  // per op
  std::vector<std::uint64_t> first_open_;                   // bitmap of ops
  bool has_empty_ops_ = false;
  bool has_tiles_ = true;
  bool idle_workers_ = false;
  std::uint64_t dims_hash_ = 0;
  bool built_ = false;
};

}  // namespace ccks::scheduler

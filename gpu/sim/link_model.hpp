// LinkModel: what crossing between the processors costs, in nanoseconds.
#pragma once

#include <cstdint>
#include <string>

#include "ccks/result.hpp"

namespace ccks::gpu::sim {

/// Rings, lines and reports lie in the host's memory; events and ready queues in the device's.
struct LinkModel {
  std::string name = "pcie5";
  std::uint64_t host_ns = 2;           // the host reads or writes its own memory
  std::uint64_t host_miss_ns = 80;     // a line goes from one side's cache to the other's: on top of a store's way, either way
  std::uint64_t read_ns = 1000;        // a device read of link memory, there and back: 950 alone; as a raw ping-pong shows it
  std::uint64_t crowd_ns = 680;        // on top while 132 workers poll their inboxes, for fewer in proportion: 3,340 cycles in all (gpu/README.md)
  std::uint64_t write_ns = 600;        // a store crosses the link, either way, until the other side can see it
  std::uint64_t issue_ns = 28;         // what a store takes the device that posts it
  std::uint64_t release_ns = 470;      // what a release takes the device on top, to its own memory: 582 to 992 cycles (gpu/README.md)
  std::uint64_t link_release_ns = 850; // and across the link, until what was stored before it has arrived; 560 where nobody polls
  std::uint64_t event_read_ns = 242;   // a device load of an event, there and back: 480 cycles
  std::uint64_t event_write_ns = 227;  // an add, until others can see it: with a look and a half, the 590 of a hop through the L2
  // What order alone does not forbid, and an explorer tries:
  std::uint64_t reorder_ns = 0;        // a relaxed store may take so much longer than a later one
  std::uint64_t stale_ns = 0;          // a relaxed load may see what stood there so long ago
};

/// parse_link takes the name of a model, or name:field=ns,field=ns,..., where a name that is not known begins from pcie5.
/// invalid_argument says what there is.
Result<LinkModel> parse_link(const std::string& text);

}  // namespace ccks::gpu::sim

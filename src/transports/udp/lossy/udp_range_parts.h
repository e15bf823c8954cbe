// Joins the parts of ranges that one rank of a group sends in parts, because the path no longer carries whole ranges
// (UdpStreams). The result is a datagram with the whole range, as if it had come in one piece.
//
// A part says how long its range is, but not where its bytes go: that follows from its index. Ranges of which parts are missing
// wait in a limited amount of memory. If there is not enough memory, the range that has waited longest is dropped, as if it
// had been lost; its receiver asks for it again, if it needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/datagram.h"

namespace unisono {

class RangeParts {
 public:
  // About 180 ranges of Ethernet's size. So many datagrams may lie between the parts of one range, if the network reorders
  // them.
  static constexpr size_t bytes_max = 256u << 10;

  explicit RangeParts(uint32_t part_bytes = range_part_bytes) : part_bytes_(part_bytes) {}

  // Adds a datagram of the kind `data` with the flag `part`. Returns DatagramFault::none if it was accepted; if its range is
  // then whole, whole() returns true. Returns `size` if the part cannot be one of a range, or contradicts another part of the
  // same range, and `duplicate` if this part has arrived before.
  DatagramFault add(const DatagramHeader& header, std::span<const std::byte> payload);
  // Returns true if the last add() has completed a range. header() and bytes() are then the datagram of that range. They are
  // valid until the next add().
  bool whole() const { return whole_; }
  const DatagramHeader& header() const { return header_; }
  std::span<const std::byte> bytes() const { return joined_; }
  // Returns how many ranges wait for parts.
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Range {
    DatagramHeader header;  // of the first part that arrived
    std::vector<std::byte> bytes;
    uint64_t arrived = 0;  // one bit per part
  };
  Range* find(const DatagramHeader& header);
  Range& begin(const DatagramHeader& header, size_t bytes);

  uint32_t part_bytes_;         // size of each part but the last
  std::vector<Range> waiting_;  // in the order in which their first parts arrived
  size_t waiting_bytes_ = 0;
  bool whole_ = false;
  DatagramHeader header_;
  std::vector<std::byte> joined_;
};

}  // namespace unisono

// The words that lossy operations and datagram transports share: what one rank sends to another in one phase of one operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/peer_id.h"

namespace unisono {

struct StreamName {
  uint32_t op = 0;
  uint8_t phase = 0;  // 0 contribute, 1 result
  friend bool operator==(const StreamName&, const StreamName&) = default;
};

// Cut into datagrams from its begin: `range_bytes` each, the last one shorter. Nothing else is known of its contents.
struct OutStream {
  Rank to = 0;
  StreamName name;
  std::span<const std::byte> bytes;  // must stay as they are until the stream is dropped
  size_t range_bytes = 0;
  std::span<const uint16_t> contributors{};  // by range; empty: all 0
  uint32_t deadline_us = 0;                  // announced in every datagram
};

// A flow's counts, for reports.
struct StreamCounts {
  uint64_t sent = 0, repaired = 0;  // datagrams: each range once; asked for again
};

}  // namespace unisono

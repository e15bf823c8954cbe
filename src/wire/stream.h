// Types that lossy operations and datagram transports share. A stream is the data that one rank sends to another rank in one
// phase of one operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/peer_id.h"

namespace unisono {

struct StreamName {
  uint32_t op = 0;
  uint8_t phase = 0;  // 0: contributions, 1: results
  friend bool operator==(const StreamName&, const StreamName&) = default;
};

// What a rank says with a repair request about a stream that another rank sends to it.
struct StreamRequest {
  enum class Kind : uint8_t {
    ranges,    // it lacks ranges of the stream, and asks for them
    complete,  // it needs nothing more of the stream
    pending    // an answer to `ranges`: the stream goes the other way, and this rank lives and will send it
  };
  Kind kind = Kind::ranges;
  StreamName stream;
  // Used by `pending`: the rank for which the sender of the answer waits before it can send the stream. Its own rank: it is
  // sending the stream.
  Rank waits_for = 0;
};

// A stream that is to be sent. The transport cuts the bytes, from the first one on, into datagrams of `range_bytes` each; the
// last datagram may be shorter. The transport does not interpret the bytes.
struct OutStream {
  Rank to = 0;
  StreamName name;
  std::span<const std::byte> bytes;  // must not change until the stream is dropped
  size_t range_bytes = 0;
  // The value of DatagramHeader::contributors for each range. If the span is empty, the value is `call` for all ranges.
  std::span<const uint16_t> contributors{};
  uint16_t call = 0;         // a hash of the call: AnnouncedCall::mark(), or 0
  uint32_t deadline_us = 0;  // DatagramHeader::deadline_us in every datagram of the stream
};

// Counts the datagrams of a flow (all datagrams from one rank to another) for reports.
struct StreamCounts {
  // `sent` counts ranges that were sent for the first time, and `repaired` those that were sent again on request. A range that
  // is sent in parts takes further datagrams, which `more_parts` counts.
  uint64_t sent = 0, repaired = 0, more_parts = 0;
};

}  // namespace unisono

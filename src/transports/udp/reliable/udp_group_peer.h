// A peer in its role as a rank of one lossy group. It holds the streams to this rank, and the keys that seal the group's
// datagrams to and from this rank. If the link is encrypted, its keys seal these datagrams (UdpLinkSeal).
#pragma once

#include <cstdint>

#include "transports/udp/lossy/udp_range_parts.h"
#include "transports/udp/lossy/udp_streams.h"
#include "wire/datagram.h"

namespace unisono {

struct UdpGroupPeer {
  UdpGroupPeer(const DatagramGroup& what, Rank with, uint32_t header_bytes)
      : group(what),
        rank(with),
        out_seal{link_key(what.key, what.self, with, what.epoch, what.run_id), what.auth},
        in_seal{link_key(what.key, with, what.self, what.epoch, what.run_id), what.auth},
        streams(range_part_bytes_with(header_bytes)),
        parts(range_part_bytes_with(header_bytes)) {}

  DatagramGroup group;
  Rank rank = 0;
  DatagramSeal out_seal, in_seal;
  UdpStreams streams;
  RangeParts parts;  // ranges from this rank that come in parts
  uint64_t received = 0, ends_sent = 0;
  uint64_t dropped[datagram_fault_count] = {};
  uint64_t firewalled_before = 0, refused_before = 0;
};

}  // namespace unisono

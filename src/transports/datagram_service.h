// The seam for lossy operations, beside Transport: streams of datagrams to the ranks of a group, paced and authenticated, each
// sent once, and again only where the receiver asks. Implemented by the UDP transport, and by the simulator.
//
// All calls come from the thread that calls Transport::poll; news come from poll only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"
#include "wire/datagram.h"
#include "wire/peer_id.h"
#include "wire/stream.h"

namespace unisono {

class DatagramSink {
 public:
  virtual ~DatagramSink() = default;
  // An authentic `data` or `end` datagram of the group's current epoch; payload is valid during the call. What the sink makes
  // of it: none, or why it was dropped (op_old, op_ahead, place, size, duplicate, late), which is counted.
  virtual DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                                 Nanos now) = 0;
  // Every range of the stream and its first `end` have been given to the kernel.
  virtual void stream_sent(uint32_t group, Rank to, StreamName stream) = 0;
};

// Per peer, since the group was opened. Own drops are of this process's socket, so they are of all its peers together.
struct DatagramCounters {
  uint64_t sent = 0, received = 0, repaired = 0;
  uint64_t own_drops = 0;
  uint64_t firewalled = 0, refused = 0;  // EPERM, ECONNREFUSED of what was sent
  uint64_t dropped[datagram_fault_count] = {};
};

class DatagramService {
 public:
  virtual ~DatagramService() = default;

  // peers: by rank; the entry of group.self is not used. All must be up. Datagrams of this epoch are dropped before.
  virtual Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex> peers,
                            DatagramSink& sink) = 0;
  virtual void close_group(uint32_t group) = 0;
  // UDP payload of the largest datagram that has been seen to reach all these peers.
  virtual uint32_t datagram_bytes(std::span<const PeerIndex> peers) const = 0;
  // No longer ones are being tried on the way to any of them: it does not grow any more.
  virtual bool datagram_bytes_known(std::span<const PeerIndex> peers) const = 0;

  // In the order in which streams are given; between peers in turn, as the pacer says.
  virtual void send_stream(uint32_t group, const OutStream& stream) = 0;
  // Its bytes are not touched afterwards; repair requests for it are ignored.
  virtual void drop_stream(uint32_t group, Rank to, StreamName stream) = 0;
  // Asks for ranges again. The bitmap as in wire/datagram.h; empty: all has arrived.
  virtual void ask(uint32_t group, Rank from, StreamName stream, uint16_t slice, uint32_t first,
                   std::span<const std::byte> bitmap) = 0;
  // Whether the sender still holds this stream and the receiver has not said that it has all of it.
  virtual bool stream_wanted(uint32_t group, Rank to, StreamName stream) const = 0;

  // srtt + 4 rttvar of the link; 50 ms while nothing was measured.
  virtual Nanos answer_time(uint32_t group, Rank rank) const = 0;
  virtual DatagramCounters datagram_counters(uint32_t group, Rank rank) const = 0;
};

}  // namespace unisono

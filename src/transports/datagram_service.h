// The seam for lossy operations, beside Transport: paced and authenticated streams of datagrams to the ranks of a group. Each
// range is sent once, and again only where the receiver asks. Implemented by the UDP transport and by the simulator.
//
// All calls come from the thread that calls Transport::poll; upcalls come from poll only.
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
  // An authentic `data` or `end` datagram of the group's current epoch; the payload is valid during the call. The sink returns
  // none, or why it dropped the datagram (op_old, op_ahead, place, size, duplicate, late); the service counts the reason.
  virtual DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                                 Nanos now) = 0;
  // The kernel has taken every range of the stream and its first `end`.
  virtual void stream_sent(uint32_t group, Rank to, StreamName stream) = 0;
};

// Counters per peer since the group was opened. own_drops counts the drops of this process's socket, so it covers all its peers
// together.
struct DatagramCounters {
  uint64_t sent = 0, received = 0, repaired = 0;
  uint64_t own_drops = 0;
  uint64_t firewalled = 0, refused = 0;  // EPERM and ECONNREFUSED for sent datagrams
  uint64_t dropped[datagram_fault_count] = {};
};

class DatagramService {
 public:
  virtual ~DatagramService() = default;

  // Opens a group. peers: by rank; the entry of group.self is not used. The links to all must be up. Datagrams of this epoch
  // that arrive before this call are dropped.
  virtual Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex> peers,
                            DatagramSink& sink) = 0;
  virtual void close_group(uint32_t group) = 0;
  // UDP payload of the largest datagram that is known to reach all these peers.
  virtual uint32_t datagram_bytes(std::span<const PeerIndex> peers) const = 0;
  // True if no longer datagrams are being tried on the way to any of them: datagram_bytes does not grow any more.
  virtual bool datagram_bytes_known(std::span<const PeerIndex> peers) const = 0;

  // Streams to one peer are sent in the order in which they are given. Peers take turns, as the pacer decides.
  virtual void send_stream(uint32_t group, const OutStream& stream) = 0;
  // The bytes of the stream are not touched afterwards, and repair requests for it are ignored.
  virtual void drop_stream(uint32_t group, Rank to, StreamName stream) = 0;
  // Asks for ranges again. The bitmap is as in wire/datagram.h; empty: all has arrived.
  virtual void ask(uint32_t group, Rank from, StreamName stream, uint16_t slice, uint32_t first,
                   std::span<const std::byte> bitmap) = 0;
  // True while the sender holds this stream and the receiver has not confirmed all of it.
  virtual bool stream_wanted(uint32_t group, Rank to, StreamName stream) const = 0;

  // srtt + 4 rttvar of the link; 50 ms before the first measurement.
  virtual Nanos answer_time(uint32_t group, Rank rank) const = 0;
  virtual DatagramCounters datagram_counters(uint32_t group, Rank rank) const = 0;
};

}  // namespace unisono

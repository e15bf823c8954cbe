// The interface for lossy operations, which exists beside Transport. It sends paced and authenticated streams of datagrams to
// the ranks of a group. A stream consists of ranges of data, each of which fits into one datagram. Each range is sent once, and
// it is sent again only if the receiver requests it. The UDP transport and the simulator implement this interface.
//
// All calls must come from the thread that calls Transport::poll. Only poll makes upcalls.
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
  // Delivers a datagram of the type `data` or `end` that is authentic and belongs to the group's current epoch. The payload is
  // valid during the call. If the sink drops the datagram, it returns why: op_old, op_ahead, place, size, duplicate or late.
  // Otherwise it returns `none`. The service counts these faults.
  virtual DatagramFault datagram(uint32_t group, Rank from, const DatagramHeader& header, std::span<const std::byte> payload,
                                 Nanos now) = 0;
  // Reports an authentic repair request of the group's current epoch. The service has already done what it asks for. It also
  // reports a request for a stream that it does not hold: the sink may not have sent the stream yet.
  virtual void stream_requested(uint32_t group, Rank from, const StreamRequest& request, Nanos now) = 0;
  // Reports that the kernel has taken every range of the stream and the stream's first `end` datagram.
  virtual void stream_sent(uint32_t group, Rank to, StreamName stream) = 0;
};

// Counters of one peer. They start when the group is opened. The exception is own_drops: this is not a counter of the peer, but
// counts the datagrams that this process's own socket dropped.
struct DatagramCounters {
  uint64_t sent = 0, received = 0, repaired = 0;
  uint64_t own_drops = 0;
  // firewalled: a firewall refused the datagram (EPERM); refused: the peer's host refused it (ECONNREFUSED)
  uint64_t firewalled = 0, refused = 0;
  uint64_t dropped[datagram_fault_count] = {};
};

class DatagramService {
 public:
  virtual ~DatagramService() = default;

  // Opens a group. `peers` is indexed by rank; the entry of this process's own rank is not used. The links to all other ranks
  // must be up. If datagrams of this epoch arrive before this call, they are dropped.
  virtual Status open_group(uint32_t group, const DatagramGroup& what, std::span<const PeerIndex> peers,
                            DatagramSink& sink) = 0;
  virtual void close_group(uint32_t group) = 0;
  // Returns the size of the header of a group's datagrams. It is 8 bytes longer if they are encrypted.
  virtual uint32_t header_bytes() const = 0;
  // Returns the largest datagram that is known to reach all these peers, in bytes: a header of datagram_header_bytes and the
  // payload. What encryption adds is not counted, so the number says how many elements a datagram has.
  virtual uint32_t datagram_bytes(std::span<const PeerIndex> peers) const = 0;
  // Returns true if the transport has finished probing the paths to these peers. Then datagram_bytes() no longer grows.
  virtual bool datagram_bytes_known(std::span<const PeerIndex> peers) const = 0;
  // Begins to measure the rate of the path to this peer, unless that was done before. Call this if data will follow soon. Data
  // that has to wait makes the transport measure the rate, too, but it waits meanwhile.
  virtual void measure_rate(PeerIndex peer) = 0;

  // Queues a stream. Streams to one peer are sent in the order of these calls. The pacer decides how the peers take turns.
  virtual void send_stream(uint32_t group, const OutStream& stream) = 0;
  // Drops a stream. After this call the stream's bytes are not read any more, and repair requests for it are ignored.
  virtual void drop_stream(uint32_t group, Rank to, StreamName stream) = 0;
  // Asks the sender to repeat ranges of a stream. The bitmap says which ranges of the slice are missing; wire/datagram.h
  // defines it. An empty bitmap tells the sender that the whole stream has arrived. With pending_bitmap, it is an answer to
  // such a request of `from`, and `first` is StreamRequest::waits_for.
  virtual void request_repair(uint32_t group, Rank from, StreamName stream, uint16_t slice, uint32_t first,
                              std::span<const std::byte> bitmap) = 0;
  // Returns true if this process still holds the stream, and the receiver has not yet confirmed that all of it has arrived.
  virtual bool stream_unconfirmed(uint32_t group, Rank to, StreamName stream) const = 0;

  // Returns how long an answer from the rank may take: srtt + 4 rttvar of the link. Before the first measurement the result is
  // 50 ms.
  virtual Nanos answer_time(uint32_t group, Rank rank) const = 0;
  virtual DatagramCounters datagram_counters(uint32_t group, Rank rank) const = 0;
};

}  // namespace unisono

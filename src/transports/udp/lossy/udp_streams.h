// The lossy streams that one rank of a group sends to another: which datagram goes next. No socket, no clock; the flow paces,
// numbers and seals.
//
// Every range goes once, in order; the last ones carry `tail`, and three `end` datagrams follow, a millisecond apart. A range
// goes again only where the receiver asks, and not before what was sent of it last can have arrived. A stream that nobody has
// confirmed says its end again now and then, so that a receiver which heard no end can ask. Memory of streams is used again:
// nothing is allocated once there were as many at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "wire/datagram.h"
#include "wire/stream.h"

namespace unisono {

class UdpStreams {
 public:
  struct Datagram {
    DatagramHeader header;  // kind, op, phase, flags, slice, packet_index, contributors, deadline_us; the rest is the flow's
    std::span<const std::byte> payload{};
  };
  struct Turn {
    Nanos now = 0;
    Nanos answer_time = 0;     // after which what was sent would have been heard of
    bool others_wait = false;  // something else goes to this peer: no end needs to be repeated
  };

  // 3 ends, 1 ms apart; then again after so long, doubled up to the second.
  static constexpr Nanos end_interval = millisecond, probe_first = 4 * millisecond, probe_max = 50 * millisecond;
  static constexpr int ends = 3;
  // docs/design/methods/packet_loss.md, "Streams and deadlines": the last max(8, 1 %) of the datagrams are the tail.
  static constexpr uint32_t tail_of(uint32_t ranges) { return ranges < 800 ? (ranges < 8 ? ranges : 8) : (ranges + 99) / 100; }

  void push(const OutStream& stream, Nanos now);
  void drop(StreamName name);
  // Held, and not confirmed by its receiver.
  bool wanted(StreamName name) const;
  // A repair request. place: of a slice that the stream does not have; op_old, op_ahead: of a stream that is not here.
  DatagramFault asked(const DatagramHeader& header, std::span<const std::byte> payload);

  // False: nothing now.
  bool next(const Turn& turn, Datagram& datagram);
  // Whether next() would find something that need not wait for a time.
  bool waits() const;
  // When the next end is due; never if none is.
  Nanos next_deadline() const;
  // Streams whose ranges and first end have been given out since the last call.
  bool take_sent(StreamName& name);

  size_t held() const { return live_.size(); }
  const StreamCounts& counts() const { return counts_; }

 private:
  struct Stream {
    OutStream out;
    uint32_t ranges = 0, next = 0;
    int ends_sent = 0;
    Nanos end_at = 0, probe_interval = 0;
    bool confirmed = false, told = false;
    std::vector<uint64_t> asked;           // ranges to be sent again, by bit
    uint32_t asked_count = 0, cursor = 0;  // no bit is set in the words before cursor
    std::vector<Nanos> sent_at;            // of each range, last
  };
  Stream* find(StreamName name) const;
  bool next_repair(Stream& stream, const Turn& turn, Datagram& datagram);
  void fill(const Stream& stream, uint32_t range, Datagram& datagram) const;
  void say_end(Stream& stream, Nanos now, Datagram& datagram);

  std::vector<std::unique_ptr<Stream>> live_;  // in the order in which they were given
  std::vector<std::unique_ptr<Stream>> spare_;
  StreamCounts counts_;
};

}  // namespace unisono

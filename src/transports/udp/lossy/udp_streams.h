// The lossy streams from one rank of a group to another: decides which datagram goes next. No socket and no clock; the flow
// paces, numbers and seals.
//
// Every range goes once, in order. The last ones carry `tail`, and three `end` datagrams follow, a millisecond apart. A range
// is repeated only where the receiver asks, and not before its last transmission can have arrived. A stream that is not
// confirmed repeats its end now and then, so that a receiver which got no end can ask. Memory of streams is reused: nothing is
// allocated once the largest number of streams was reached.
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
    DatagramHeader header;  // the flow fills in the rest
    std::span<const std::byte> payload{};
  };
  struct Turn {
    Nanos now = 0;
    Nanos answer_time = 0;     // after this, a reaction to a sent datagram would have come
    bool others_wait = false;  // other datagrams for this peer wait, so no end is repeated
  };

  // 3 ends, 1 ms apart; then again after probe_first, with the interval doubled up to probe_max.
  static constexpr Nanos end_interval = millisecond, probe_first = 4 * millisecond, probe_max = 50 * millisecond;
  static constexpr int ends = 3;
  // docs/design/methods/packet_loss.md, "Streams and deadlines": the last max(8, 1 %) of the datagrams are the tail.
  static constexpr uint32_t tail_of(uint32_t ranges) { return ranges < 800 ? (ranges < 8 ? ranges : 8) : (ranges + 99) / 100; }

  void push(const OutStream& stream, Nanos now);
  void drop(StreamName name);
  // The stream is held, and its receiver has not confirmed it.
  bool wanted(StreamName name) const;
  // Handles a repair request. Returns place for a slice that the stream does not have, and op_old or op_ahead for an unknown
  // stream.
  DatagramFault asked(const DatagramHeader& header, std::span<const std::byte> payload);

  // False: there is nothing to send now.
  bool next(const Turn& turn, Datagram& datagram);
  // Whether next() has something that need not wait for a time.
  bool waits() const;
  // When the next end is due; never if none is.
  Nanos next_deadline() const;
  // Returns each stream once whose ranges and first end have been given out.
  bool take_sent(StreamName& name);

  size_t held() const { return live_.size(); }
  const StreamCounts& counts() const { return counts_; }

 private:
  struct Stream {
    OutStream out;
    uint32_t ranges = 0, next = 0;
    int ends_sent = 0;
    Nanos end_at = 0, probe_interval = 0;
    bool confirmed = false, reported = false;
    std::vector<uint64_t> asked;           // ranges to repeat, by bit
    uint32_t asked_count = 0, cursor = 0;  // no bit is set in the words before cursor
    std::vector<Nanos> sent_at;            // last transmission of each range
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

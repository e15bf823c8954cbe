// The lossy streams that one rank of a group sends to another rank. A stream consists of ranges of data, and each range fits
// into one datagram. UdpStreams decides which datagram is sent next. It has no socket and no clock; UdpFlow paces, numbers and
// seals the datagrams.
//
// Every range is sent once, in order. The last ranges carry the flag `tail`. They are followed by three `end` datagrams, a
// millisecond apart. A range is repeated only if the receiver requests it. The request is ignored if the last copy of the range
// may still be on its way. While a stream is not confirmed, its `end` is repeated now and then. Therefore even a receiver that
// got none of the first `end` datagrams can request ranges. If the path no longer carries a whole range in one datagram, the
// range is sent in parts (wire/datagram.h); udp_range_parts.h joins them. The memory of streams is used again, so that in a
// long run no more memory is allocated.
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
    DatagramHeader header;                 // UdpFlow fills in the ranks, run, epoch, numbers and time.
    std::span<const std::byte> payload{};  // a range or, if the header has the flag `part`, the bytes of `part`
    RangePart part;
    size_t range_bytes = 0;  // size of a full range of the stream; 0: the datagram is an `end`
  };
  struct NextOptions {
    Nanos now = 0;
    Nanos answer_time = 0;                // the receiver should react to a datagram within this time
    bool others_wait = false;             // other datagrams for this peer are waiting; do not repeat `end` now
    size_t payload_bytes_max = SIZE_MAX;  // the path carries payloads of this size; longer ranges are sent in parts
  };

  // After its ranges, each stream sends `ends` datagrams of the kind `end`, end_interval apart. If the stream is still not
  // confirmed, `end` is repeated after probe_first. The interval then doubles each time, up to probe_max.
  static constexpr Nanos end_interval = millisecond, probe_first = 4 * millisecond, probe_max = 50 * millisecond;
  static constexpr int ends = 3;
  // The tail is the last 1 % of the ranges, but at least 8 of them (or all, if there are fewer). Returns the number of these
  // ranges. Source: docs/design/methods/packet_loss.md, "Streams and deadlines".
  static constexpr uint32_t tail_of(uint32_t ranges) { return ranges < 800 ? (ranges < 8 ? ranges : 8) : (ranges + 99) / 100; }

  // part_bytes: size of the parts of ranges that are too long for the path.
  explicit UdpStreams(uint32_t part_bytes = range_part_bytes) : part_bytes_(part_bytes) {}

  void push(const OutStream& stream, Nanos now);
  void drop(StreamName name);
  // Returns true if this process holds the stream, and its receiver has not confirmed it.
  bool is_unconfirmed(StreamName name) const;
  // Handles a repair request. An answer to one (pending_bitmap) has no effect. Returns the fault `place` if the stream does not
  // have this slice. Returns op_old or op_ahead if this process does not hold the stream.
  DatagramFault on_repair_request(const DatagramHeader& header, std::span<const std::byte> payload);

  // Fills in the next datagram. Returns false if there is nothing to send now.
  bool next(const NextOptions& options, Datagram& datagram);
  // Returns true if a range, or the first `end` of a stream, waits to be sent. The later `end` datagrams do not count;
  // next_deadline() returns their time.
  bool ready() const;
  // Returns the time at which the next `end` must be sent; `never` if no stream waits for one.
  Nanos next_deadline() const;
  // Returns each stream once. A stream is returned when next() has returned all its ranges and its first `end`, or when the
  // stream is confirmed.
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
    std::vector<uint64_t> requested;  // one bit per range; 1: the range must be repeated
    // requested_count: how many bits are set in `requested`. cursor: no bit is set in the words before this one.
    uint32_t requested_count = 0, cursor = 0;
    std::vector<Nanos> sent_at;  // for each range: the time when it was last sent
  };
  Stream* find(StreamName name) const;
  // A range of which some parts were sent. Its other parts are sent next.
  struct Begun {
    Stream* stream = nullptr;  // null: there is no such range
    uint32_t range = 0, next_part = 0;
    bool repaired = false;
  };
  bool next_repair(Stream& stream, const NextOptions& options, Datagram& datagram);
  bool is_begun(const Stream& stream) const { return begun_.stream == &stream; }
  void fill(Stream& stream, uint32_t range, bool repaired, const NextOptions& options, Datagram& datagram);
  void fill_part(Datagram& datagram);
  void make_end(Stream& stream, Nanos now, Datagram& datagram);

  uint32_t part_bytes_;
  std::vector<std::unique_ptr<Stream>> live_;  // in the order of push()
  std::vector<std::unique_ptr<Stream>> spare_;
  Begun begun_;
  StreamCounts counts_;
};

}  // namespace unisono

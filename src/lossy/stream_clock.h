// Decides when one stream of a lossy phase ends. A stream is the data that one rank sends to this rank. Its last datagrams have
// the tail flag, and an `end` datagram follows them. The stream ends at the earliest of these times:
// - when the last missing datagram arrives
// - when t_hard has passed since the start of the phase
// - when a tail or `end` datagram has arrived, and `grace` has passed since the last datagram with data
// - when t_soft has passed since the first datagram
//
// If two of these times are equal, the one that is listed first counts. This class does not read a clock; the caller passes the
// time. Source: docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace unisono {

enum class StreamEnd : uint8_t { open, complete, tail, soft, hard, silent };
const char* name(StreamEnd end);

struct StreamLimits {
  Nanos soft = 0, hard = 0, grace = 0;  // the values of t_soft, t_hard and grace in this operation
};

class StreamClock {
 public:
  // start: the time when this rank began the phase. ranges: false if the stream has no ranges; such a stream is complete at
  // once. If datagrams arrived before `start`, the caller reports them after begin() with their arrival times; the deadlines
  // count from `start` for them.
  void begin(Nanos start, const StreamLimits& limits, bool ranges = true);
  // Reports that a new datagram of the stream has arrived. tail: the datagram has the tail flag. complete: no datagram is
  // missing any more. Has no effect if the stream has already ended.
  void arrived(Nanos now, bool tail, bool complete);
  // Reports an `end` datagram, which means that the sender has sent everything. A repeated `end` does not restart the grace
  // time.
  void end_seen(Nanos now);

  // Ends the stream if `grace`, t_soft or t_hard has passed. Call this at due() and after arrivals; repeated calls are
  // harmless.
  //
  // lacking: more data is missing than the loss budget allows. If so, `grace` and t_soft do not end the stream but start its
  // repair: needs_repair() becomes true, and the caller requests the missing ranges. The repair ends when `lacking` becomes
  // false, or at t_hard.
  StreamEnd update(Nanos now, bool lacking);
  // Ends the stream now, as t_hard would.
  void close(Nanos now);

  bool needs_repair() const { return repairing_ && end_ == StreamEnd::open; }
  // Returns why the stream ended. If a repair ended because `lacking` became false, returns the reason why the repair began.
  StreamEnd end() const { return end_; }
  Nanos ended_at() const { return ended_at_; }
  // Returns when to call update() if no datagram arrives. After the end of the stream, returns `never`.
  Nanos due() const;
  // True if a datagram of the stream has arrived, including an `end` datagram.
  bool heard() const { return first_ != never; }
  // Return the times when the first and the last data arrived. If no data arrived, both return the time of the first `end`
  // datagram. If no deadline cut the stream, its duration is last() - first().
  Nanos first() const { return first_; }
  Nanos last() const { return last_; }
  // Returns the deadline (t_soft or t_hard) that cut the stream, for Deadline::stream_cut(). Returns 0 if no deadline did.
  Nanos cut_by() const;

 private:
  void finish(StreamEnd end, Nanos now);
  Nanos hard_at() const { return start_ + limits_.hard; }
  Nanos tail_at() const;
  Nanos soft_at() const;

  Nanos start_ = 0, first_ = never, last_ = never, tail_seen_ = never, ended_at_ = never;
  StreamLimits limits_;
  bool has_data_ = false, repairing_ = false, was_repaired_ = false;
  StreamEnd end_without_repair_ = StreamEnd::open, end_ = StreamEnd::open;
};

}  // namespace unisono

// Decides when one stream of a lossy phase ends: at its last missing datagram, shortly after its tail, late after its first
// datagram, or at the phase's deadline. Pure: times come in as arguments. At equal times, arrivals count before deadlines, and
// t_hard before t_soft. Source: docs/design/methods/packet_loss.md, "Streams and deadlines".
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace unisono {

enum class StreamEnd : uint8_t { open, complete, tail, soft, hard, silent };
const char* name(StreamEnd end);

struct StreamLimits {
  Nanos soft = 0, hard = 0, grace = 0;  // t_soft, t_hard and grace of this operation
};

class StreamClock {
 public:
  // start: when this rank entered the phase. ranges false: the stream has no ranges and is complete at once. Report earlier
  // (staged) datagrams after begin(), with their arrival times: for deadlines they count as if they had arrived at start.
  void begin(Nanos start, const StreamLimits& limits, bool ranges = true);
  // A new datagram of the stream. tail: it has the tail flag. complete: it was the last missing one. No effect once the stream
  // has ended.
  void arrived(Nanos now, bool tail, bool complete);
  // An `end` datagram: the sender has sent everything. Repeated ones do not restart the grace time.
  void end_seen(Nanos now);

  // Ends the stream if it is time. Call at due() and after arrivals. lacking: more is missing than the budget allows. Then tail
  // and soft do not end the stream but start its repair: needs_repair() is true, and the caller requests the missing ranges.
  // The stream ends when it no longer lacks too much, or at t_hard. Idempotent.
  StreamEnd update(Nanos now, bool lacking);
  // Closes the stream for the caller's own reasons, as if t_hard were now.
  void close(Nanos now);

  bool needs_repair() const { return repairing_ && end_ == StreamEnd::open; }
  // For a repaired stream: the reason that would have ended it without repair.
  StreamEnd end() const { return end_; }
  Nanos ended_at() const { return ended_at_; }
  // Next time at which update() changes something without arrivals; `never` once ended.
  Nanos due() const;
  // Whether anything of the stream arrived, including an `end`.
  bool heard() const { return first_ != never; }
  // Times of the first and last datagram; of the `end`, if no data arrived. A stream that ended by itself took last() -
  // first().
  Nanos first() const { return first_; }
  Nanos last() const { return last_; }
  // The deadline (t_soft or t_hard) that cut it, for Deadline::stream_cut(); 0: none.
  Nanos cut_by() const;

 private:
  void finish(StreamEnd end, Nanos now);
  Nanos hard_at() const { return start_ + limits_.hard; }
  Nanos tail_at() const;
  Nanos soft_at() const;

  Nanos start_ = 0, first_ = never, last_ = never, tail_seen_ = never, ended_at_ = never;
  StreamLimits limits_;
  bool data_came_ = false, repairing_ = false, was_repaired_ = false;
  StreamEnd would_be_ = StreamEnd::open, end_ = StreamEnd::open;
};

}  // namespace unisono

// When one stream of a lossy phase ends: at its last missing datagram, a little after its tail, late after its first datagram,
// or at the phase's deadline. Pure: times come in as arguments. At equal times arrivals count before deadlines, and t_hard
// before t_soft. Source: docs/design/methods/packet_loss.md, "Streams and deadlines".
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
  // start: when this rank entered the phase. ranges: false: the stream has none, and is complete at once.
  // What had been staged before is told after this, with the times at which it arrived: before start, and for deadlines as if
  // at start.
  void begin(Nanos start, const StreamLimits& limits, bool ranges = true);
  // A new datagram of the stream; tail: it has the flag; complete: it was the last one missing. Nothing once the stream has
  // ended.
  void arrived(Nanos now, bool tail, bool complete);
  // An `end` datagram: the sender has sent everything. Repeated ones re-arm nothing.
  void end_seen(Nanos now);

  // Ends the stream if it is time; to be called when due(), and after arrivals. lacking: more is missing than the budget
  // allows. Then tail and soft do not end it but begin its repair: needs_repair() is true, the caller asks, and the stream ends
  // when it is no longer lacking, or at t_hard. Idempotent.
  StreamEnd update(Nanos now, bool lacking);
  // The step is closed for reasons of its own: as if t_hard were now.
  void close(Nanos now);

  bool needs_repair() const { return repairing_ && end_ == StreamEnd::open; }
  // Repaired: what would have ended it without repair.
  StreamEnd end() const { return end_; }
  Nanos ended_at() const { return ended_at_; }
  // When update() would change something if nothing arrived; `never` once ended.
  Nanos due() const;
  // Whether anything of its sender came, be it only an `end`.
  bool heard() const { return first_ != never; }
  // Of the first and the latest datagram; of the `end`, if no data came. A stream that ended by itself has the duration last()
  // - first().
  Nanos first() const { return first_; }
  Nanos last() const { return last_; }
  // The deadline that cut it, from t_soft and t_hard, for Deadline::stream_cut(); 0: none did.
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

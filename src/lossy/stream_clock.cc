#include "lossy/stream_clock.h"

#include <algorithm>

namespace unisono {

const char* name(StreamEnd end) {
  constexpr const char* names[] = {"open", "complete", "tail", "soft", "hard", "silent"};
  return names[static_cast<int>(end)];
}

void StreamClock::begin(Nanos start, const StreamLimits& limits, bool ranges) {
  *this = StreamClock();
  start_ = start;
  limits_ = limits;
  if (!ranges) finish(StreamEnd::complete, start);
}

void StreamClock::arrived(Nanos now, bool tail, bool complete) {
  if (end_ != StreamEnd::open) return;
  // As long as no data has arrived, first_ may hold the time of an `end` datagram.
  if (!has_data_) first_ = now;
  has_data_ = true;
  last_ = now;
  if (tail && tail_seen_ == never) tail_seen_ = now;
  if (complete) finish(StreamEnd::complete, now);
}

void StreamClock::end_seen(Nanos now) {
  if (end_ != StreamEnd::open || tail_seen_ != never) return;
  tail_seen_ = now;
  if (!has_data_) first_ = last_ = now;
}

Nanos StreamClock::tail_at() const {
  return tail_seen_ == never ? never : std::max(std::max(last_, start_) + limits_.grace, tail_seen_);
}

Nanos StreamClock::soft_at() const { return first_ == never ? never : std::max(first_, start_) + limits_.soft; }

StreamEnd StreamClock::update(Nanos now, bool lacking) {
  if (end_ != StreamEnd::open) return end_;
  const auto tail = tail_at(), soft = soft_at();
  const auto earlier = std::min(tail, soft);
  if (!repairing_ && earlier <= now && earlier < hard_at()) {
    end_without_repair_ = tail <= soft ? StreamEnd::tail : StreamEnd::soft;
    repairing_ = lacking;
    was_repaired_ = lacking;
    if (!lacking) finish(end_without_repair_, now);
  } else if (repairing_ && !lacking) {
    finish(end_without_repair_, now);
  }
  if (end_ == StreamEnd::open && hard_at() <= now) close(now);
  return end_;
}

void StreamClock::close(Nanos now) {
  if (end_ == StreamEnd::open) finish(heard() ? StreamEnd::hard : StreamEnd::silent, now);
}

void StreamClock::finish(StreamEnd end, Nanos now) {
  end_ = end;
  ended_at_ = std::max(now, start_);
}

Nanos StreamClock::due() const {
  if (end_ != StreamEnd::open) return never;
  return repairing_ ? hard_at() : std::min({tail_at(), soft_at(), hard_at()});
}

Nanos StreamClock::cut_by() const {
  if (end_ == StreamEnd::hard) return limits_.hard;
  return end_ == StreamEnd::soft && !was_repaired_ ? limits_.soft : 0;
}

}  // namespace unisono

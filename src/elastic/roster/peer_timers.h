// Holds one deadline per peer, and knows the earliest one. Only few peers have a deadline at the same time, so one contiguous
// array is enough.
#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono {

class PeerTimers {
 public:
  void set(const PeerId& id, Nanos at) {
    const auto position = find_position(id);
    if (position != timers_.end() && position->id == id) {
      position->at = at;
      find_next();
    } else {
      timers_.insert(position, {id, at});
      next_ = std::min(next_, at);
    }
  }
  void erase(const PeerId& id) {
    const auto position = find_position(id);
    if (position == timers_.end() || position->id != id) return;
    const bool first = position->at == next_;
    timers_.erase(position);
    if (first) find_next();
  }
  // Returns the peer's deadline, or `never` if it has none.
  Nanos at(const PeerId& id) const {
    const auto position = std::ranges::lower_bound(timers_, id, {}, &Timer::id);
    return position == timers_.end() || position->id != id ? never : position->at;
  }
  Nanos next() const { return next_; }
  // If the earliest deadline has come, removes it, stores its peer in `id`, and returns true. Otherwise returns false.
  bool take_due(Nanos now, PeerId& id) {
    if (timers_.empty() || next_ > now) return false;
    id = std::ranges::find(timers_, next_, &Timer::at)->id;
    erase(id);
    return true;
  }
  // Sets all deadlines that are earlier than `until` to `until`.
  void postpone(Nanos until) {
    for (auto& timer : timers_) timer.at = std::max(timer.at, until);
    find_next();
  }

 private:
  struct Timer {
    PeerId id;
    Nanos at = 0;
  };
  std::vector<Timer>::iterator find_position(const PeerId& id) { return std::ranges::lower_bound(timers_, id, {}, &Timer::id); }
  void find_next() {
    next_ = never;
    for (const auto& timer : timers_) next_ = std::min(next_, timer.at);
  }

  std::vector<Timer> timers_;  // ordered by id
  Nanos next_ = never;
};

}  // namespace unisono

// One deadline per peer, and the earliest of them. It holds few peers at a time, in one contiguous array.
#pragma once

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono {

class PeerTimers {
 public:
  void set(const PeerId& id, Nanos at) {
    const auto place = place_of(id);
    if (place != timers_.end() && place->id == id) {
      place->at = at;
      find_next();
    } else {
      timers_.insert(place, {id, at});
      next_ = std::min(next_, at);
    }
  }
  void erase(const PeerId& id) {
    const auto place = place_of(id);
    if (place == timers_.end() || place->id != id) return;
    const bool first = place->at == next_;
    timers_.erase(place);
    if (first) find_next();
  }
  // `never`: no deadline for this peer.
  Nanos at(const PeerId& id) const {
    const auto place = std::ranges::lower_bound(timers_, id, {}, &Timer::id);
    return place == timers_.end() || place->id != id ? never : place->at;
  }
  Nanos next() const { return next_; }
  // Removes the earliest deadline if it is due; otherwise returns false.
  bool take_due(Nanos now, PeerId& id) {
    if (timers_.empty() || next_ > now) return false;
    id = std::ranges::find(timers_, next_, &Timer::at)->id;
    erase(id);
    return true;
  }
  // Moves all deadlines to this time or later.
  void put_off(Nanos until) {
    for (auto& timer : timers_) timer.at = std::max(timer.at, until);
    find_next();
  }

 private:
  struct Timer {
    PeerId id;
    Nanos at = 0;
  };
  std::vector<Timer>::iterator place_of(const PeerId& id) { return std::ranges::lower_bound(timers_, id, {}, &Timer::id); }
  void find_next() {
    next_ = never;
    for (const auto& timer : timers_) next_ = std::min(next_, timer.at);
  }

  std::vector<Timer> timers_;  // by id
  Nanos next_ = never;
};

}  // namespace unisono

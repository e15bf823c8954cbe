// One deadline per peer, and which is the next: each call costs O(log peers).
#pragma once

#include <map>
#include <set>
#include <utility>

#include "base/clock.h"
#include "wire/peer_id.h"

namespace unisono {

class PeerTimers {
 public:
  void set(const PeerId& id, Nanos at) {
    erase(id);
    times_[id] = at;
    order_.emplace(at, id);
    next_ = order_.begin()->first;
  }
  void erase(const PeerId& id) {
    const auto found = times_.find(id);
    if (found == times_.end()) return;
    order_.erase({found->second, id});
    times_.erase(found);
    next_ = order_.empty() ? never : order_.begin()->first;
  }
  bool contains(const PeerId& id) const { return times_.contains(id); }
  // `never` if there is none for this peer, or none at all.
  Nanos at(const PeerId& id) const {
    const auto found = times_.find(id);
    return found == times_.end() ? never : found->second;
  }
  Nanos next() const { return next_; }
  // Removes the earliest that is due; false if none is.
  bool take_due(Nanos now, PeerId& id) {
    if (next() > now) return false;
    id = order_.begin()->second;
    erase(id);
    return true;
  }
  // None before this time.
  void put_off(Nanos until) {
    while (next() < until) set(PeerId(order_.begin()->second), until);
  }
  size_t size() const { return times_.size(); }

 private:
  std::map<PeerId, Nanos> times_;
  std::set<std::pair<Nanos, PeerId>> order_;
  Nanos next_ = never;  // asked for after every message
};

}  // namespace unisono

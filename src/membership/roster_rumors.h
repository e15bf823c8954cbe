// Which entries of the roster are still to be told around: each is sent a limited number of times, with whatever message goes
// out, and then everybody has it but for a small chance (healing takes care of that). At most one rumor per peer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

class RosterRumors {
 public:
  // What matters goes before what waits already.
  void add(const PeerId& id, uint32_t times, bool matters);
  // At most `count`; those that have to be sent again go to the end.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return queue_.empty(); }
  size_t size() const { return queue_.size(); }

 private:
  std::deque<PeerId> queue_;
  std::map<PeerId, uint32_t> left_;  // how often each of the queue is still to be sent
};

}  // namespace unisono

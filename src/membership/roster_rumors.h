// Which entries of the roster are still to be told around: each is sent a limited number of times, with whatever message goes
// out, and then everybody has it but for a small chance (healing takes care of that). At most one rumor per peer; those that
// matter (who is dead, who is not) go before those that do not (who finished which sweep). Each call costs O(log peers) per rumor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

class RosterRumors {
 public:
  void add(const PeerId& id, uint32_t times, bool matters);
  // At most `count`, none twice; those that have to be sent again go to the end.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return rumors_.empty(); }
  size_t size() const { return rumors_.size(); }

 private:
  // Removing from the middle of a queue would cost O(peers): a place that is no longer the rumor's own is skipped at its turn.
  struct Rumor {
    uint32_t left = 0;  // how often it is still to be sent; 0: only a skipped place is left
    bool matters = false;
    bool queued[2] = {};  // has a place in each queue
  };

  void take_from(bool matters, size_t count, std::vector<PeerId>& taken);

  std::deque<PeerId> queues_[2];  // what does not matter, what does
  std::map<PeerId, Rumor> rumors_;
};

}  // namespace unisono

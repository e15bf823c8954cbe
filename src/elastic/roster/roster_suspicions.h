// Holds the suspicions, deaths and refutations that still have to be gossiped. They are sent without facts, each a limited
// number of times. The one that was sent least often goes first. For each peer only the newest one is held.
//
// In a large run some peer is suspect nearly always, and each process receives each suspicion a dozen times. This table
// recognises repeated suspicions without a look-up in the roster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "elastic/roster/peer_roster.h"

namespace unisono {

class RosterSuspicions {
 public:
  // Adds a suspicion, to be sent `times` times. `claim` is the peer's present entry in the roster.
  void add(const PeerClaim& claim, uint32_t times, Nanos now);
  // Returns true if the claim has no facts, does not say that its peer is gone, and is no newer than the suspicion that is held
  // about this peer.
  bool covers(const PeerClaim& claim) const;
  // Appends at most `count` claims without facts, and counts each of them as sent once more.
  void take(size_t count, std::vector<PeerClaim>& claims, Nanos now);
  bool empty() const { return suspicions_.empty(); }
  size_t size() const { return suspicions_.size(); }

 private:
  struct Suspicion {
    PeerId id;
    uint32_t incarnation = 0;
    PeerStatus status = PeerStatus::alive;
    bool proven = false;
    uint32_t sent = 0;
    uint32_t times = 0;  // how many times the suspicion must be sent
    Nanos gone_at = 0;
  };

  std::vector<Suspicion> suspicions_;  // ordered by id
};

}  // namespace unisono

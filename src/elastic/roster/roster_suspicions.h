// Suspicions, deaths and refutations that still have to be gossiped, without facts. Each is sent a limited number of times, the
// least sent first. At most one per peer, the newest.
//
// In a large run some peer is suspect nearly always, and each process hears each suspicion a dozen times. This table recognises
// repeated ones without a look at the roster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "elastic/roster/peer_roster.h"

namespace unisono {

class RosterSuspicions {
 public:
  // claim: the roster's present entry of the peer.
  void add(const PeerClaim& claim, uint32_t times, Nanos now);
  // True if the claim is brief, its peer is not gone, and it says nothing newer than the suspicion held here.
  bool covers(const PeerClaim& claim) const;
  // Appends brief claims, at most `count`.
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
    uint32_t times = 0;  // how often it must be sent
    Nanos gone_at = 0;
  };

  std::vector<Suspicion> suspicions_;  // by id
};

}  // namespace unisono

// Who is in doubt, gone, or neither after all, and is still to be told around: in brief, a limited number of times, those that
// were told least first. At most one per peer, the newest.
//
// In a large run somebody is in doubt nearly always, and each process hears each doubt a dozen times: here it finds what is no
// news at one place, without looking at the roster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "elastic/roster/peer_roster.h"

namespace unisono {

class RosterSuspicions {
 public:
  // The claim: what the roster says of the peer now.
  void add(const PeerClaim& claim, uint32_t times, Nanos now);
  // True if the claim, of a peer that lives, is brief and says nothing that is newer than what is told here.
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
    uint32_t times = 0;  // to be sent
    Nanos gone_at = 0;
  };

  std::vector<Suspicion> suspicions_;  // by id
};

}  // namespace unisono

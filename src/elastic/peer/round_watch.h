// Who wants to see what rounds do to a peer's values: simulations that check it. Called by the peer in the middle of its work,
// so it may not call the peer.
#pragma once

#include <span>

#include "elastic/formation/group_descriptor.h"
#include "elastic/round/moshpit_round.h"
#include "wire/peer_id.h"

namespace unisono {

// A peer's values and weights, and the group. Copies of the values are cheap: they share the memory, which nobody writes any
// more.
struct RoundSight {
  PeerId self;
  const GroupDescriptor& group;
  const ChunkValues& values;           // without elements at a reducer
  std::span<const ChunkState> states;  // by chunk
};

class RoundWatch {
 public:
  virtual ~RoundWatch() = default;
  // What the peer gives.
  virtual void began(const RoundSight& sight) = 0;
  // What it has now. round.applied() says why.
  virtual void ended(const RoundSight& sight, const MoshpitRound& round) = 0;
};

}  // namespace unisono

// An observer of the changes that rounds make to a peer's values, for simulations that check them. The peer calls it in the
// middle of its work, so it must not call the peer.
#pragma once

#include <span>

#include "elastic/formation/group_descriptor.h"
#include "elastic/round/moshpit_round.h"
#include "wire/peer_id.h"

namespace unisono {

// A peer's values and weights, and its group. Copies of the values are cheap: they share memory that does not change any more.
struct RoundView {
  PeerId self;
  const GroupDescriptor& group;
  const ChunkValues& values;           // without elements for a reducer
  std::span<const ChunkState> states;  // by chunk
};

class RoundWatch {
 public:
  virtual ~RoundWatch() = default;
  // The values that the peer contributes.
  virtual void began(const RoundView& sight) = 0;
  // The values after the round. round.applied() says which chunks changed.
  virtual void ended(const RoundView& sight, const MoshpitRound& round) = 0;
};

}  // namespace unisono

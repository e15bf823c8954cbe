// An observer that sees how rounds change a peer's values. Simulations use it for checks. The peer calls the observer in the
// middle of its work, so the observer must not call the peer.
#pragma once

#include <span>

#include "elastic/formation/group_descriptor.h"
#include "elastic/round/moshpit_round.h"
#include "wire/peer_id.h"

namespace unisono {

// A peer's values, weights and group. It is cheap to copy the values, because copies share memory that is never written again.
struct RoundView {
  PeerId self;
  const GroupDescriptor& group;
  const ChunkValues& values;           // empty for a reducer
  std::span<const ChunkState> states;  // the state of each chunk
};

class RoundObserver {
 public:
  virtual ~RoundObserver() = default;
  // Called when a round begins. The view has the values that the peer contributes.
  virtual void began(const RoundView& view) = 0;
  // Called when a round has ended. The view has the new values, and round.applied() tells which chunks have changed.
  virtual void ended(const RoundView& view, const MoshpitRound& round) = 0;
};

}  // namespace unisono

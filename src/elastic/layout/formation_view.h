// The interface through which group formation sees the roster and the layouts. RosterKeeper implements it, and tests have their
// own implementation.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

// A peer may report an averaging step that is at most this far beyond the highest opened step that this process knows. (A
// REGISTER message, with which a peer asks for a group, opens its step.) Reports beyond the limit are ignored. Otherwise one
// false message could use up the step numbers of all peers. No honest peer exceeds the limit: 2^32 averaging steps take more
// than a year, even if there are a hundred per second.
inline constexpr uint64_t steps_ahead_max = uint64_t{1} << 32;

class FormationView {
 public:
  virtual ~FormationView() = default;
  // Returns null if this process does not hold the layout. The pointer stays valid until the next call that adds a layout.
  virtual const Layout* find_layout(uint64_t version, uint64_t digest) const = 0;
  // Returns the newest layout with first_step <= step, or null if none is known.
  virtual const Layout* layout_for(uint64_t step) const = 0;
  // Returns true if the peer is known to be dead, or to have left the run. Returns false for an unknown peer.
  virtual bool gone(const PeerId& peer) const = 0;
  // Returns the peers that may coordinate a slot (the name of a group to be formed) with this key, best first. They are alive
  // or suspect, and they are not clients. This process may be among them. If the slot's layout is known and one of its peers is
  // alive or suspect, all returned peers belong to that layout. A newcomer is not returned in this case, because only some
  // peers know it yet, and the group could be split.
  virtual std::vector<PeerId> coordinators(std::string_view key, const SlotName& slot) const = 0;
  // Returns the number of the highest averaging step that a REGISTER has opened, plus 1. Returns 0 if no step was opened yet.
  virtual uint64_t steps_opened() const = 0;
};

}  // namespace unisono

// The view of roster and layouts that group formation needs. RosterKeeper implements it; tests have their own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

// How far ahead of this peer an opened averaging step may be before it is ignored. At a hundred averaging steps per second the
// bound is more than a year, so no honest peer is refused. Without it one wrong message could use up the numbers for all peers.
inline constexpr uint64_t steps_ahead_max = uint64_t{1} << 32;

class FormationView {
 public:
  virtual ~FormationView() = default;
  // Null: this process does not hold it. Pointers stay valid until the next call that takes in a layout.
  virtual const Layout* find_layout(uint64_t version, uint64_t digest) const = 0;
  // The newest layout in effect for the averaging step (first_step <= step); null if none is known.
  virtual const Layout* layout_for(uint64_t step) const = 0;
  // The peer is known to be dead or to have left. False for a peer that is not known.
  virtual bool gone(const PeerId& peer) const = 0;
  // The peers that may coordinate a slot with this key, best first. Candidates are live and reachable: alive or suspect, not
  // clients; this process counts. If the slot's layout is known and any peer that it names is alive, only peers of that layout
  // are candidates: a newcomer is known to some peers only, and would split a group.
  virtual std::vector<PeerId> coordinators(std::string_view key, const SlotName& slot) const = 0;
  // The highest averaging step known to have been opened by a REGISTER, plus 1; 0: none yet.
  virtual uint64_t steps_opened() const = 0;
};

}  // namespace unisono

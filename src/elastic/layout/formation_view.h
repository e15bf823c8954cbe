// What forming groups needs to know of the roster and of layouts. Implemented by RosterKeeper; tests have their own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

// Nobody comes back from a cut so far behind the others: at a hundred averaging steps each second, that is more than a year.
// Who says that a later one was opened is not followed, or the numbers would be used up for everybody.
inline constexpr uint64_t steps_ahead_max = uint64_t{1} << 32;

class FormationView {
 public:
  virtual ~FormationView() = default;
  // Null: not held here. Pointers stay valid until the next call that takes in a layout.
  virtual const Layout* find_layout(uint64_t version, uint64_t digest) const = 0;
  // The newest one in effect for the averaging step (first_step <= step); null if none is known.
  virtual const Layout* layout_for(uint64_t step) const = 0;
  // Known to be dead, or to have left. Not: unknown here.
  virtual bool gone(const PeerId& peer) const = 0;
  // Who may be the coordinator of a slot with this key, best first: the live reachable peers (alive or suspect, not clients,
  // this process included) among those that the slot's layout names, where it is known and any of them lives. Who has just come
  // is known to some only, and would split a group.
  virtual std::vector<PeerId> coordinators(std::string_view key, const SlotName& slot) const = 0;
  // The highest averaging step that is known to have been opened by a REGISTER, plus 1; 0: none yet.
  virtual uint64_t steps_opened() const = 0;
};

}  // namespace unisono

// A peer's position in one round of an averaging step. Each peer has a cell in the layout's grid. A line runs through the cell
// along the round's axis, and the peer has a position on this line. All functions are pure, so members and coordinators compute
// the same results.
//
// Under a layout with keys (elastic/layout/moshpit_key.h), the peer's key takes the place of its cell and line. Only the peer
// itself knows its key. Its position is drawn when the group is formed.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinePosition {
  uint32_t cell = 0;
  uint32_t position = 0;   // coordinate on the round's axis; the axis is round mod axes
  uint32_t line = 0;       // index of the line along the round's axis
  bool in_layout = false;  // false: the layout does not list the peer, and a hash has chosen its cell
  friend bool operator==(const LinePosition&, const LinePosition&) = default;
};

// Returns the peer's position in the round. Under a layout with keys, this is derived from the peer's first key.
LinePosition position_in(const Layout& layout, const PeerId& peer, uint32_t round);
// Returns true if the peer may register with this position.
bool may_register(const Layout& layout, const PeerId& peer, uint32_t round, const LinePosition& line_position);
// Returns the peers that the layout puts on the line, ordered by position; peers at the same position are ordered by rank.
// Returns nothing if there is no such line, or if the layout has keys.
std::vector<PeerId> line_of(const Layout& layout, uint32_t round, uint32_t line);
// Returns the slot for which the peer has to register in this round of the averaging step.
SlotName slot_in(const Layout& layout, const PeerId& peer, uint64_t step, uint32_t round);

}  // namespace unisono

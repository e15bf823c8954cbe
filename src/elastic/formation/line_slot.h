// A peer's position in one round of an averaging step: its cell in the layout's grid, the line along the round's axis, and its
// position on that line. Also the other layout members of that line. Pure functions of a layout, so members and coordinator
// compute the same. Under a layout with keys (elastic/layout/moshpit_key.h) cell and line are the key, which only its holder
// knows, and the position comes with the group.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinePosition {
  uint32_t cell = 0;
  uint32_t position = 0;   // coordinate on the round's axis, which is round mod axes
  uint32_t line = 0;       // the line along that axis
  bool in_layout = false;  // false: the cell was chosen by hash
  friend bool operator==(const LinePosition&, const LinePosition&) = default;
};

// Under a layout with keys: for the peer's first key.
LinePosition position_in(const Layout& layout, const PeerId& peer, uint32_t round);
// Whether the peer may claim this position.
bool may_stand(const Layout& layout, const PeerId& peer, uint32_t round, const LinePosition& place);
// Layout members on that line, by position, then rank. Empty if there is no such line, or the layout has keys.
std::vector<PeerId> line_of(const Layout& layout, uint32_t round, uint32_t line);
// The slot of a peer in a round of an averaging step under the layout.
SlotName slot_in(const Layout& layout, const PeerId& peer, uint64_t step, uint32_t round);

}  // namespace unisono

// Where a peer stands in one round of an averaging step: its cell in the grid of a layout, the line along the round's axis and
// its place in the line; and who else the layout puts there. Pure functions of a layout, the same for a member and for the
// coordinator of its group. Where peers have keys (elastic/layout/moshpit_key.h), cell and line are the key, which only its
// holder knows, and the position comes with the group.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/layout/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinePlace {
  uint32_t cell = 0;
  uint32_t position = 0;   // coordinate on the axis of the round, which is round mod axes
  uint32_t line = 0;       // along that axis
  bool in_layout = false;  // false: the cell came by hash
  friend bool operator==(const LinePlace&, const LinePlace&) = default;
};

// With keys: for the key that it begins with.
LinePlace place_in(const Layout& layout, const PeerId& peer, uint32_t round);
// Whether the peer may say that it stands there.
bool may_stand(const Layout& layout, const PeerId& peer, uint32_t round, const LinePlace& place);
// Members of the layout in that line, by position and rank; empty if there is no such line, or if there are keys.
std::vector<PeerId> line_of(const Layout& layout, uint32_t round, uint32_t line);
// The slot of a peer in round `round` of averaging step `averaging step` under the layout.
SlotName slot_in(const Layout& layout, const PeerId& peer, uint64_t step, uint32_t round);

}  // namespace unisono

// Where a peer stands in one round of a sweep: its cell in the grid of a layout, the line along the round's axis and its place in
// the line; and who else the layout puts there. Pure functions of a layout, the same for a member and for the clerk of its group.
#pragma once

#include <cstdint>
#include <vector>

#include "membership/layout.h"
#include "membership/record_holders.h"
#include "wire/peer_id.h"

namespace unisono {

struct LinePlace {
  uint32_t cell = 0;
  uint32_t position = 0;   // coordinate on the axis of the round, which is round mod axes
  uint32_t line = 0;       // along that axis
  bool in_layout = false;  // false: the cell came by hash
  friend bool operator==(const LinePlace&, const LinePlace&) = default;
};

LinePlace place_in(const Layout& layout, const PeerId& peer, uint32_t round);
// Members of the layout in that line, by position and rank; empty if there is no such line.
std::vector<PeerId> line_of(const Layout& layout, uint32_t round, uint32_t line);
// The seat of a peer in round `round` of sweep `sweep` under the layout.
SeatName seat_in(const Layout& layout, const PeerId& peer, uint64_t sweep, uint32_t round);

}  // namespace unisono

#include "elastic/formation/line_slot.h"

#include "base/check.h"
#include "elastic/layout/moshpit_key.h"

namespace unisono {

namespace {

MoshpitGrid checked_grid(const Layout& layout) {
  auto grid = grid_of(layout);
  UNISONO_CHECK(grid.ok());  // make_layout and read_layout have checked the grid of every layout
  return std::move(*grid);
}

}  // namespace

LinePosition position_in(const Layout& layout, const PeerId& peer, uint32_t round) {
  if (key_count(layout) > 0) {
    const auto key = first_key(layout, peer);
    return {.cell = key, .position = 0, .line = key, .in_layout = layout.rank_of(peer) < layout.peers.size()};
  }
  const auto grid = checked_grid(layout);
  const auto axis = round % grid.axes();
  LinePosition line_position;
  const auto rank = layout.rank_of(peer);
  line_position.in_layout = rank < layout.peers.size();
  line_position.cell = line_position.in_layout ? grid.cell_of(rank) : grid.cell_of_unlisted(pid64(peer));
  line_position.position = grid.position(line_position.cell, axis);
  line_position.line = grid.line(line_position.cell, axis);
  return line_position;
}

bool may_register(const Layout& layout, const PeerId& peer, uint32_t round, const LinePosition& line_position) {
  auto expected = position_in(layout, peer, round);
  if (line_position.cell < key_count(layout)) expected.cell = expected.line = line_position.cell;
  return line_position == expected;
}

std::vector<PeerId> line_of(const Layout& layout, uint32_t round, uint32_t line) {
  if (key_count(layout) > 0) return {};
  const auto grid = checked_grid(layout);
  std::vector<PeerId> members;
  for (const auto rank : grid.line_members(round % grid.axes(), line)) members.push_back(layout.peers[rank]);
  return members;
}

SlotName slot_in(const Layout& layout, const PeerId& peer, uint64_t step, uint32_t round) {
  return {layout.version, layout.digest, step, round, position_in(layout, peer, round).line};
}

}  // namespace unisono

// The layout of a run: the position of each peer in the grid. A layout is valid from a given averaging step on. The layout's
// key selects peers as its holders; the first holder makes the layout, and all other peers receive the same bytes. If two
// layouts have the same version, the one with the smaller digest is used.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "elastic/layout/moshpit_grid.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

inline constexpr uint32_t roster_peers_max = 4096;

struct Layout {
  uint64_t version = 0;     // 1, 2, …; 0: no layout
  uint64_t first_step = 0;  // the layout is valid from this averaging step on
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims;
  std::vector<PeerId> peers;  // all peers of the layout, ordered by rank
  uint64_t digest = 0;        // the digest64 of all other fields, encoded
  friend bool operator==(const Layout&, const Layout&) = default;

  // Returns the peer's rank, or peers.size() if the peer is not in the layout.
  uint32_t rank_of(const PeerId& peer) const;
};

struct LayoutRequest {
  std::string_view run;
  uint64_t version = 0;
  uint64_t first_step = 0;
  GridKind grid = GridKind::fitted;
  uint32_t max_group = 32;
  // A test may choose the dimensions. If the list is empty, fitted_dims or published_dims chooses them.
  std::vector<uint32_t> dims{};
};
// Makes a layout of the peers. Ranks follow descending scores under layout_key(run, version). Returns the error invalid if
// there are no peers, or if MoshpitGrid::make refuses the dimensions.
Result<Layout> make_layout(const LayoutRequest& request, const std::vector<PeerId>& peers);
// Returns the layout's grid. Never fails for a layout that make_layout or read_layout returned.
Result<MoshpitGrid> grid_of(const Layout& layout);
// Returns true if an averaging step under this layout can give the exact mean of all peers. For this, the grid must be fitted,
// or full (N = M^d), or form a single group.
bool can_be_exact(const Layout& layout);
// Returns true if layout a replaces layout b. It does so if it has a higher version, or if it has the same version and a
// smaller digest.
bool replaces(const Layout& a, const Layout& b);

void write_layout(ByteWriter& writer, const Layout& layout);
// Reads a layout. Returns the error corrupt with the name of the faulty field if there are more than roster_peers_max peers, a
// peer is listed twice, `dims` do not fit, or the digest is wrong.
Status read_layout(ByteReader& reader, Layout& layout);

}  // namespace unisono

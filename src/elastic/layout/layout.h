// The layout of a run: each peer's position in the grid, from a given averaging step on. The first holder of the layout's key
// makes it; all peers then hold the same bytes. Two layouts of one version differ in their digest, and the smaller digest wins.
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
  uint64_t first_step = 0;  // the layout takes effect at this averaging step
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims;
  std::vector<PeerId> peers;  // by rank
  uint64_t digest = 0;        // digest64 of the encoding of all fields above
  friend bool operator==(const Layout&, const Layout&) = default;

  // Rank of the peer, or peers.size() if it is not in the layout.
  uint32_t rank_of(const PeerId& peer) const;
};

struct LayoutRequest {
  std::string_view run;
  uint64_t version = 0;
  uint64_t first_step = 0;
  GridKind grid = GridKind::fitted;
  uint32_t max_group = 32;
  std::vector<uint32_t> dims{};  // set by tests; empty: fitted_dims or published_dims
};
// Orders the peers by descending score under layout_key(run, version). Error: invalid if there are no peers, or as
// MoshpitGrid::make.
Result<Layout> make_layout(const LayoutRequest& request, const std::vector<PeerId>& peers);
// The grid of a layout that make_layout or read_layout returned; never fails for those.
Result<MoshpitGrid> grid_of(const Layout& layout);
// Whether an averaging step under this layout can include every peer's values: a fitted grid, one group of all, or a full grid
// (N = M^d).
bool can_be_exact(const Layout& layout);
// True if a replaces b: a has a higher version, or the same version and a smaller digest.
bool replaces(const Layout& a, const Layout& b);

void write_layout(ByteWriter& writer, const Layout& layout);
// Error: corrupt, naming the field: more than roster_peers_max peers, a peer listed twice, dims that do not fit, or a digest
// that does not match.
Status read_layout(ByteReader& reader, Layout& layout);

}  // namespace unisono

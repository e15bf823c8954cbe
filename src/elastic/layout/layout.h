// The layout of a run: which peer stands where in the grid from which averaging step on. Made by the first holder of its key,
// the same bytes everywhere afterwards; two that bear one version are told apart by their digest, and the smaller digest wins.
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
  uint64_t version = 0;     // 1, 2, …; 0: there is none
  uint64_t first_step = 0;  // in effect from this averaging step on
  GridKind grid = GridKind::fitted;
  std::vector<uint32_t> dims;
  std::vector<PeerId> peers;  // by rank
  uint64_t digest = 0;        // of all of the above, digest64 of the encoding without it
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
  std::vector<uint32_t> dims{};  // tests may give them; empty: fitted_dims or published_dims
};
// Orders the peers by descending score under layout_key(run, version). invalid as MoshpitGrid::make says, or without peers.
Result<Layout> make_layout(const LayoutRequest& request, const std::vector<PeerId>& peers);
// The grid of a layout that make_layout or read_layout gave; never fails for those.
Result<MoshpitGrid> grid_of(const Layout& layout);
// Whether an averaging step under it can lack nobody's values: a fitted grid, one group of all, or a full grid (N = M^d).
bool can_be_exact(const Layout& layout);
// True if a replaces b: a higher version, or the same with a smaller digest.
bool replaces(const Layout& a, const Layout& b);

void write_layout(ByteWriter& writer, const Layout& layout);
// corrupt, naming the field: more than roster_peers_max peers, a peer twice, dims that do not fit, or a digest that is not its
// own.
Status read_layout(ByteReader& reader, Layout& layout);

}  // namespace unisono

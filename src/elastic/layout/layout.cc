#include "elastic/layout/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/concat.h"
#include "elastic/layout/record_holders.h"
#include "wire/digest.h"

namespace unisono {

namespace {

constexpr size_t peer_bytes = 16;

Status corrupt_layout(const std::string& what) { return {Code::corrupt, "layout: " + what}; }

void write_body(ByteWriter& writer, const Layout& layout) {
  writer.write(layout.version).write(layout.first_step).write(static_cast<uint8_t>(layout.grid));
  writer.write(static_cast<uint32_t>(layout.dims.size()));
  for (const auto size : layout.dims) writer.write(size);
  writer.write(static_cast<uint32_t>(layout.peers.size()));
  for (const auto& peer : layout.peers) writer.write(peer.low).write(peer.high);
}

uint64_t digest_of(const Layout& layout) {
  ByteWriter writer;
  write_body(writer, layout);
  return digest64(writer.view());
}

bool all_differ(std::vector<PeerId> peers) {
  std::sort(peers.begin(), peers.end());
  return std::adjacent_find(peers.begin(), peers.end()) == peers.end();
}

Status check(const LayoutRequest& request, const std::vector<PeerId>& peers) {
  const auto named = concat("layout ", request.version, ": ");
  if (request.version == 0) return {Code::invalid, named + "versions start with 1"};
  if (peers.empty() || peers.size() > roster_peers_max)
    return {Code::invalid, concat(named, peers.size(), " peers: 1 to ", roster_peers_max, " are possible")};
  if (!all_differ(peers)) return {Code::invalid, named + "a peer is listed twice"};
  const uint32_t group_min = request.grid == GridKind::fitted ? 4 : 2;
  if (request.dims.empty() && request.max_group < group_min)
    return {Code::invalid, concat(named, "groups of ", request.max_group, ": at least ", group_min)};
  return {};
}

}  // namespace

uint32_t Layout::rank_of(const PeerId& peer) const {
  return static_cast<uint32_t>(std::find(peers.begin(), peers.end(), peer) - peers.begin());
}

Result<Layout> make_layout(const LayoutRequest& request, const std::vector<PeerId>& peers) {
  if (const auto status = check(request, peers); !status.ok()) return status;
  const auto count = static_cast<uint32_t>(peers.size());
  Layout layout{
      .version = request.version, .first_step = request.first_step, .grid = request.grid, .dims = request.dims, .peers = {}};
  if (layout.dims.empty())
    layout.dims =
        request.grid == GridKind::fitted ? fitted_dims(count, request.max_group) : published_dims(count, request.max_group);
  if (const auto grid = MoshpitGrid::make(layout.grid, layout.dims, count); !grid.ok()) return grid.status();
  // Sorts first, so that peers with equal scores keep the order of their ids, whatever the order of `peers` is.
  auto sorted = peers;
  std::sort(sorted.begin(), sorted.end());
  layout.peers = by_score(layout_key(request.run, request.version), sorted);
  layout.digest = digest_of(layout);
  return layout;
}

Result<MoshpitGrid> grid_of(const Layout& layout) {
  return MoshpitGrid::make(layout.grid, layout.dims, static_cast<uint32_t>(layout.peers.size()));
}

bool can_be_exact(const Layout& layout) {
  uint64_t cells = 1;
  for (const auto size : layout.dims) cells *= size;
  return layout.grid == GridKind::fitted || layout.dims.size() == 1 || cells == layout.peers.size();
}

bool replaces(const Layout& a, const Layout& b) { return a.version != b.version ? a.version > b.version : a.digest < b.digest; }

void write_layout(ByteWriter& writer, const Layout& layout) {
  write_body(writer, layout);
  writer.write(layout.digest);
}

Status read_layout(ByteReader& reader, Layout& layout) {
  Layout read;
  read.version = reader.read<uint64_t>();
  read.first_step = reader.read<uint64_t>();
  const auto grid = reader.read<uint8_t>();
  const auto axes = reader.read<uint32_t>();
  if (!reader.ok()) return corrupt_layout("cut off");
  if (read.version == 0) return corrupt_layout("version 0");
  if (grid > static_cast<uint8_t>(GridKind::chunk_keys)) return corrupt_layout(concat("grid of kind ", grid));
  read.grid = static_cast<GridKind>(grid);
  if (axes == 0 || axes > grid_axes_max) return corrupt_layout(concat("dims: ", axes, " axes"));
  for (uint32_t axis = 0; axis < axes; ++axis) read.dims.push_back(reader.read<uint32_t>());
  const auto count = reader.read<uint32_t>();
  if (!reader.ok()) return corrupt_layout("cut off");
  if (count == 0 || count > roster_peers_max) return corrupt_layout(concat("peers: ", count));
  if (reader.left() < count * peer_bytes) return corrupt_layout("peers: cut off");
  for (uint32_t rank = 0; rank < count; ++rank) {
    const auto low = reader.read<uint64_t>();
    read.peers.push_back({.low = low, .high = reader.read<uint64_t>()});
  }
  read.digest = reader.read<uint64_t>();
  if (!reader.ok()) return corrupt_layout("digest: cut off");
  if (!all_differ(read.peers)) return corrupt_layout("peers: one is listed twice");
  if (const auto fits = grid_of(read); !fits.ok()) return corrupt_layout("dims: " + fits.status().message());
  if (read.digest != digest_of(read)) return corrupt_layout("digest: does not match the contents");
  layout = std::move(read);
  return {};
}

}  // namespace unisono

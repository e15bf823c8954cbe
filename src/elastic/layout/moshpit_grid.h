// Where each peer stands in the grid of a Moshpit All-Reduce, and with whom it averages in each round.
//
// `fitted` (Unisono's own rule): dimensions fitted to the number of peers, so that no cell is empty and none holds more than
// two, and one averaging step (a round along each axis) is exact for every number of peers. `published`: a fixed M^d grid, as
// in the authors' averaging simulation (yandex-research/moshpit-sgd); cells may be empty, and only N = M^d is exact.
// `chunk_keys`: as large as that, but where a peer averages follows from its key (elastic/layout/moshpit_key.h), unless there
// is one axis only. A pure value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unisono/status.h"

namespace unisono {

enum class GridKind : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };

inline constexpr uint32_t grid_cells_max = 1u << 20;
inline constexpr uint32_t grid_axes_max = 20;                      // as many as have two entries each in the largest grid
inline constexpr uint32_t key_group_min = 2, key_group_max = 128;  // M of chunk_keys

// d = smallest with max_group^d >= peers; (m, …, m) with m = floor(peers^(1/d)), then the first, second, … entry raised by one
// while the product stays at most `peers`. peers >= 1, max_group >= 4. One peer: {1}.
std::vector<uint32_t> fitted_dims(uint32_t peers, uint32_t max_group);
// Also of chunk_keys: d >= 1 entries of M = group, d = smallest with M^d >= peers. group >= 2.
std::vector<uint32_t> published_dims(uint32_t peers, uint32_t group);

class MoshpitGrid {
 public:
  // invalid, naming the numbers: for fitted, product > peers or more extras than m_1…m_(d-1); for the others, product < peers;
  // for chunk_keys, axes that differ or are not key_group_min … key_group_max long; no axis or more than grid_axes_max, an axis
  // of 0, or a product above grid_cells_max.
  static Result<MoshpitGrid> make(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind() const { return kind_; }
  const std::vector<uint32_t>& dims() const { return dims_; }
  uint32_t axes() const { return static_cast<uint32_t>(dims_.size()); }
  uint32_t cells() const { return cells_; }
  uint32_t peers() const { return peers_; }

  // rank < peers: its place in the layout. An extra (rank >= cells) has coordinates 1…d-1 from the digits of rank - cells, and
  // coordinate d = (sum of the others) mod m_d.
  uint32_t cell_of(uint32_t rank) const;
  // Of a live peer that is not in the layout: mix64(pid64) mod cells.
  uint32_t cell_of_unlisted(uint64_t pid64) const;
  // The coordinate on an axis, axis < axes(); last coordinate fastest.
  uint32_t position(uint32_t cell, uint32_t axis) const;
  // Which line along the axis the cell is in: index of the cell without that coordinate, row-major.
  uint32_t line(uint32_t cell, uint32_t axis) const;
  uint32_t line_count(uint32_t axis) const { return cells_ / dims_[axis]; }
  // Ranks in the line, by position and then rank. Empty if line >= line_count(axis).
  std::vector<uint32_t> line_members(uint32_t axis, uint32_t line) const;

 private:
  MoshpitGrid(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind_ = GridKind::fitted;
  std::vector<uint32_t> dims_;
  uint32_t cells_ = 0;
  uint32_t peers_ = 0;
  std::vector<uint32_t> strides_;      // of each axis, in cells
  std::vector<uint32_t> first_extra_;  // by cell: rank of the extra in it, or 0 (rank 0 is never an extra)
};

}  // namespace unisono

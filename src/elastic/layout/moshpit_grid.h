// The grid of a Moshpit All-Reduce: each peer's cell, and the peers that it averages with in each round.
//
// `fitted` (Unisono's own rule): the dimensions fit the number of peers, so that each cell holds one or two peers. One
// averaging step (a round along each axis) is then exact for every number of peers. `published`: a fixed M^d grid, as in the
// authors' averaging simulation (yandex-research/moshpit-sgd); cells may be empty, and only N = M^d is exact. `chunk_keys`: a
// grid of the same size, but a peer's group follows from its key (elastic/layout/moshpit_key.h), unless there is only one axis.
// A pure value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unisono/status.h"

namespace unisono {

enum class GridKind : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };

inline constexpr uint32_t grid_cells_max = 1u << 20;
inline constexpr uint32_t grid_axes_max = 20;                      // the largest grid with two entries per axis has this many
inline constexpr uint32_t key_group_min = 2, key_group_max = 128;  // limits of M under chunk_keys

// Dimensions of a fitted grid. d is the smallest with max_group^d >= peers; m = floor(peers^(1/d)). Start from (m, …, m) and
// raise the first, second, … entry by one while the product stays at most `peers`. Requires peers >= 1, max_group >= 4. One
// peer gives {1}.
std::vector<uint32_t> fitted_dims(uint32_t peers, uint32_t max_group);
// Dimensions for `published` and `chunk_keys`: d >= 1 entries of M = group, with the smallest d such that M^d >= peers.
// Requires group >= 2.
std::vector<uint32_t> published_dims(uint32_t peers, uint32_t group);

class MoshpitGrid {
 public:
  // Error: invalid, naming the numbers. For fitted: product > peers, or more extras than m_1…m_(d-1). For the others: product <
  // peers. For chunk_keys: axes that differ, or are not key_group_min … key_group_max long. For all: no axis, more than
  // grid_axes_max, an axis of 0, or a product above grid_cells_max.
  static Result<MoshpitGrid> make(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind() const { return kind_; }
  const std::vector<uint32_t>& dims() const { return dims_; }
  uint32_t axes() const { return static_cast<uint32_t>(dims_.size()); }
  uint32_t cells() const { return cells_; }
  uint32_t peers() const { return peers_; }

  // The cell of a rank of the layout, rank < peers. An extra (rank >= cells) takes coordinates 1…d-1 from the digits of rank -
  // cells, and coordinate d = (sum of the others) mod m_d.
  uint32_t cell_of(uint32_t rank) const;
  // The cell of a live peer that is not in the layout: mix64(pid64) mod cells.
  uint32_t cell_of_unlisted(uint64_t pid64) const;
  // The cell's coordinate on an axis < axes(). The last coordinate varies fastest.
  uint32_t position(uint32_t cell, uint32_t axis) const;
  // The line along the axis that the cell lies on: the cell's index without that coordinate, row-major.
  uint32_t line(uint32_t cell, uint32_t axis) const;
  uint32_t line_count(uint32_t axis) const { return cells_ / dims_[axis]; }
  // Ranks on the line, ordered by position, then by rank. Empty if line >= line_count(axis).
  std::vector<uint32_t> line_members(uint32_t axis, uint32_t line) const;

 private:
  MoshpitGrid(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind_ = GridKind::fitted;
  std::vector<uint32_t> dims_;
  uint32_t cells_ = 0;
  uint32_t peers_ = 0;
  std::vector<uint32_t> strides_;      // by axis, in cells
  std::vector<uint32_t> first_extra_;  // by cell: rank of the extra in it; 0: none (rank 0 is never an extra)
};

}  // namespace unisono

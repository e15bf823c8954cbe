// The grid of a Moshpit All-Reduce. It determines the cell of each peer, and with which other peers that peer averages in each
// round.
//
// There are three kinds:
// - `fitted` (Unisono's own rule): the dimensions fit the number of peers, so that each cell holds one or two peers. An
//   averaging step has one round along each axis. Its result is exact for any number of peers.
// - `published`: an M^d grid, as in the simulation by the authors of Moshpit All-Reduce (yandex-research/moshpit-sgd). Cells
//   may be empty. Averaging is exact only for N = M^d peers.
// - `chunk_keys`: the dimensions are those of `published`. If there is more than one axis, the peer's key selects its group
//   (elastic/layout/moshpit_key.h).
//
// A value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "unisono/status.h"

namespace unisono {

enum class GridKind : uint8_t { fitted = 0, published = 1, chunk_keys = 2 };

inline constexpr uint32_t grid_cells_max = 1u << 20;
inline constexpr uint32_t grid_axes_max = 20;                      // a grid of 2^20 cells with axes of length 2 has 20 axes
inline constexpr uint32_t key_group_min = 2, key_group_max = 128;  // smallest and largest M under `chunk_keys`

// Returns the dimensions of a fitted grid. The number of axes is the smallest d such that max_group^d >= peers. All axes get
// the length floor(peers^(1/d)). Then the first, second, … axis is made longer by one, as long as the product of all lengths
// stays at most `peers`. Requires peers >= 1 and max_group >= 4. For one peer, returns {1}.
std::vector<uint32_t> fitted_dims(uint32_t peers, uint32_t max_group);
// Returns the dimensions of a `published` or `chunk_keys` grid: d axes of length M, where M is `group`. d is the smallest
// number >= 1 such that M^d >= peers. Requires group >= 2.
std::vector<uint32_t> published_dims(uint32_t peers, uint32_t group);

class MoshpitGrid {
 public:
  // Returns the error invalid, with the numbers in the text, in these cases:
  // - any grid: there are no peers, no axis, more than grid_axes_max axes, an axis of length 0, or more than grid_cells_max
  //   cells
  // - `fitted`: there are more cells than peers, or more than m_1·…·m_(d-1) extra peers (those beyond one peer per cell; m_i is
  //   the length of axis i)
  // - `published` and `chunk_keys`: there are fewer cells than peers
  // - `chunk_keys`: the axes differ in length, or their length is outside key_group_min … key_group_max
  static Result<MoshpitGrid> make(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind() const { return kind_; }
  const std::vector<uint32_t>& dims() const { return dims_; }
  uint32_t axes() const { return static_cast<uint32_t>(dims_.size()); }
  uint32_t cells() const { return cells_; }
  uint32_t peers() const { return peers_; }

  // Returns the cell of the peer with this rank. Requires a rank below the number of peers. A peer with a rank >= cells is an
  // extra peer. The digits of rank - cells give coordinates 1 … d-1 of its cell; coordinate d is the sum of these, mod m_d.
  uint32_t cell_of(uint32_t rank) const;
  // Returns the cell of a live peer that the layout does not list: mix64(pid64) mod cells.
  uint32_t cell_of_unlisted(uint64_t pid64) const;
  // Returns the cell's coordinate on the axis. Requires axis < axes(). Cells are numbered so that the last coordinate varies
  // fastest.
  uint32_t position(uint32_t cell, uint32_t axis) const;
  // Returns the number of the line that runs through the cell along the axis. Lines are numbered row by row over all other
  // axes.
  uint32_t line(uint32_t cell, uint32_t axis) const;
  uint32_t line_count(uint32_t axis) const { return cells_ / dims_[axis]; }
  // Returns the ranks on the line, ordered by position. Ranks at the same position are in ascending order. Returns nothing if
  // line >= line_count(axis).
  std::vector<uint32_t> line_members(uint32_t axis, uint32_t line) const;

 private:
  MoshpitGrid(GridKind kind, std::vector<uint32_t> dims, uint32_t peers);

  GridKind kind_ = GridKind::fitted;
  std::vector<uint32_t> dims_;
  uint32_t cells_ = 0;
  uint32_t peers_ = 0;
  std::vector<uint32_t> strides_;  // per axis: how far apart the numbers of neighbouring cells are
  // For each cell: the smallest rank of an extra peer in it, or 0 if the cell has none (rank 0 is never an extra peer).
  std::vector<uint32_t> first_extra_;
};

}  // namespace unisono

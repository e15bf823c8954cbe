#include "elastic/layout/moshpit_grid.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"
#include "base/random.h"

namespace unisono {

namespace {

// Returns side^axes. If this power exceeds `limit`, returns some number above `limit` instead. No product overflows if limit <
// 2^32.
uint64_t power_up_to(uint64_t side, size_t axes, uint64_t limit) {
  uint64_t product = 1;
  for (size_t axis = 0; axis < axes && product <= limit; ++axis) product *= side;
  return product;
}

size_t axes_for(uint32_t peers, uint32_t side) {
  size_t axes = 1;
  while (power_up_to(side, axes, peers) < peers) ++axes;
  return axes;
}

std::string dims_text(const std::vector<uint32_t>& dims) {
  std::string text;
  for (const auto size : dims) text += concat(text.empty() ? "" : "x", size);
  return text;
}

Status does_not_fit(const std::vector<uint32_t>& dims, uint32_t peers, const std::string& why) {
  return {Code::invalid, concat("a grid of ", dims_text(dims), " for ", peers, " peers: ", why)};
}

}  // namespace

std::vector<uint32_t> fitted_dims(uint32_t peers, uint32_t max_group) {
  UNISONO_CHECK(peers >= 1 && max_group >= 2);
  const auto axes = axes_for(peers, max_group);
  uint32_t side = 1;
  if (axes == 1) {
    side = peers;
  } else {
    while (power_up_to(side + 1, axes, peers) <= peers) ++side;
  }
  std::vector<uint32_t> dims(axes, side);
  auto product = power_up_to(side, axes, peers);
  for (auto& size : dims) {
    const auto raised = product / side * (side + 1);
    if (raised > peers) break;
    product = raised;
    ++size;
  }
  return dims;
}

std::vector<uint32_t> published_dims(uint32_t peers, uint32_t group) {
  UNISONO_CHECK(group >= 2);
  return std::vector<uint32_t>(axes_for(peers, group), group);
}

Result<MoshpitGrid> MoshpitGrid::make(GridKind kind, std::vector<uint32_t> dims, uint32_t peers) {
  if (dims.empty() || dims.size() > grid_axes_max)
    return Status{Code::invalid, concat("a grid of ", dims.size(), " axes: 1 to ", grid_axes_max, " are possible")};
  if (peers == 0) return does_not_fit(dims, peers, "there are no peers");
  uint64_t cells = 1;
  for (const auto size : dims) {
    if (size == 0) return does_not_fit(dims, peers, "an axis has no cells");
    cells *= size;
    if (cells > grid_cells_max) return does_not_fit(dims, peers, concat("more than ", grid_cells_max, " cells"));
  }
  const auto numbers = concat(cells, " cells");
  if (kind != GridKind::fitted && cells < peers) return does_not_fit(dims, peers, numbers + " are too few");
  if (kind == GridKind::chunk_keys && (std::ranges::count(dims, dims.front()) != std::ssize(dims) ||
                                       dims.front() < key_group_min || dims.front() > key_group_max))
    return does_not_fit(dims, peers, concat("keys need axes of one length, ", key_group_min, " to ", key_group_max));
  if (kind == GridKind::fitted) {
    if (cells > peers) return does_not_fit(dims, peers, numbers + " cannot all be filled");
    const auto extras_max = cells / dims.back();
    if (peers - cells > extras_max)
      return does_not_fit(dims, peers, concat(peers - cells, " more than the cells, ", extras_max, " are possible"));
  }
  return MoshpitGrid(kind, std::move(dims), peers);
}

MoshpitGrid::MoshpitGrid(GridKind kind, std::vector<uint32_t> dims, uint32_t peers)
    : kind_(kind), dims_(std::move(dims)), peers_(peers), strides_(dims_.size()) {
  cells_ = 1;
  for (size_t axis = dims_.size(); axis-- > 0;) {
    strides_[axis] = cells_;
    cells_ *= dims_[axis];
  }
  first_extra_.assign(cells_, 0);
  for (auto rank = cells_; rank < peers_; ++rank) first_extra_[cell_of(rank)] = rank;
}

uint32_t MoshpitGrid::cell_of(uint32_t rank) const {
  UNISONO_CHECK(rank < peers_);
  if (rank < cells_) return rank;
  // Extra peer j (counted from 0) has the rank cells + j, and lies on line j along the last axis. This line gives all
  // coordinates of the peer's cell except the last one.
  const auto first = (rank - cells_) * dims_.back();
  uint64_t sum = 0;
  for (uint32_t axis = 0; axis + 1 < axes(); ++axis) sum += position(first, axis);
  return first + static_cast<uint32_t>(sum % dims_.back());
}

uint32_t MoshpitGrid::cell_of_unlisted(uint64_t pid64) const { return static_cast<uint32_t>(mix64(pid64) % cells_); }

uint32_t MoshpitGrid::position(uint32_t cell, uint32_t axis) const { return cell / strides_[axis] % dims_[axis]; }

uint32_t MoshpitGrid::line(uint32_t cell, uint32_t axis) const {
  const auto stride = strides_[axis];
  return cell / (stride * dims_[axis]) * stride + cell % stride;
}

std::vector<uint32_t> MoshpitGrid::line_members(uint32_t axis, uint32_t line) const {
  std::vector<uint32_t> ranks;
  if (line >= line_count(axis)) return ranks;
  const auto stride = strides_[axis];
  const auto first = line / stride * stride * dims_[axis] + line % stride;
  for (uint32_t coordinate = 0; coordinate < dims_[axis]; ++coordinate) {
    const auto cell = first + coordinate * stride;
    if (cell < peers_) ranks.push_back(cell);
    if (first_extra_[cell] != 0) ranks.push_back(first_extra_[cell]);
  }
  return ranks;
}

}  // namespace unisono

#include "training/sharded/sharded_state.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {
namespace {

Status check(const RangeGeometry& geometry, Rank self, size_t elements) {
  const auto& cut = geometry.cut();
  if (self >= cut.world) return {Code::invalid, concat("sharded state: rank ", self, " of ", cut.world)};
  if (elements != cut.elements)
    return {Code::invalid, concat("sharded state: ", elements, " values given; the shards have ", cut.elements, " in total")};
  return {};
}

}  // namespace

Result<ShardedState> ShardedState::make(const RangeGeometry& geometry, Rank self, std::span<const float> values,
                                        std::unique_ptr<ShardOptimizer> optimizer, const ShardedStateOptions& options) {
  if (auto status = check(geometry, self, values.size()); !status.ok()) return status;
  if (optimizer == nullptr) return Status(Code::invalid, "sharded state: no optimizer");
  ShardedState made(geometry, self, std::move(optimizer), options);
  made.optimizer_->resize(geometry.shard(self).count());
  made.cut(values, 0);
  return made;
}

// Divides the tensor into shards and ranges and allocates the buffers. All parameters are encoded and decoded, as if this rank
// had received them. If the initial values are equal on all ranks, the replicas are therefore equal without communication.
void ShardedState::cut(std::span<const float> values, uint32_t step) {
  const auto world = geometry_.cut().world;
  const auto own = geometry_.shard(self_);
  own_.assign(values.begin() + static_cast<std::ptrdiff_t>(own.begin), values.begin() + static_cast<std::ptrdiff_t>(own.end));
  first_range_.assign(1, 0);
  for (Rank owner = 0; owner < world; ++owner) first_range_.push_back(first_range_.back() + geometry_.ranges(owner));
  versions_.assign(first_range_.back(), step);
  encoded_.assign(std::max(geometry_.shard_bytes(self_), geometry_.range_bytes()), std::byte{0});
  parameters_.assign(values.begin(), values.end());
  kernels::BlockCounts counts;
  for (Rank owner = 0; owner < world; ++owner) {
    for (uint32_t range = 0; range < geometry_.ranges(owner); ++range) {
      const auto part = elements(owner, range);
      unisono::encode({.codec = geometry_.cut().codec,
                       .elements = part.data(),
                       .count = part.size(),
                       .message = encoded_.data(),
                       .decoded = part.data()},
                      counts);
    }
  }
  encoded_.resize(geometry_.shard_bytes(self_));
  step_ = step;
  held_ = 0;
}

std::span<float> ShardedState::elements(Rank owner, uint32_t range) {
  const auto extent = geometry_.range(owner, range);
  return std::span(parameters_).subspan(extent.begin, extent.count());
}

float clip_factor(double squares, double norm_max) {
  return static_cast<float>(std::min(1.0, norm_max / (std::sqrt(squares) + 1e-6)));
}

GradientScalars ShardedState::scalars(std::span<const float> gradient, std::span<const uint8_t> held) const {
  const auto ranges = geometry_.ranges(self_);
  UNISONO_CHECK(gradient.size() == own_.size() && (held.empty() || held.size() == ranges));
  GradientScalars found;
  const size_t each = geometry_.range_elements();
  for (uint32_t range = 0; range < ranges; ++range) {
    if (!held.empty() && held[range] != 0) continue;
    for (const double value : gradient.subspan(range * each, std::min(each, gradient.size() - range * each)))
      found.squares += value * value;
  }
  // This test is enough, because the sum of the squares of finite fp32 values cannot overflow a double.
  found.finite = std::isfinite(found.squares);
  return found;
}

void ShardedState::update(std::span<const float> gradient, std::span<const uint8_t> held, float scale) {
  const auto ranges = geometry_.ranges(self_);
  UNISONO_CHECK(gradient.size() == own_.size() && (held.empty() || held.size() == ranges));
  hold();
  const auto is_held = [&](uint32_t range) { return !held.empty() && held[range] != 0; };
  held_ = 0;
  const size_t each = geometry_.range_elements();
  for (uint32_t range = 0; range < ranges;) {
    if (is_held(range)) {
      ++held_, ++range;
      continue;
    }
    // Ranges that are adjacent are updated with one call.
    const auto first = range;
    while (range < ranges && !is_held(range)) ++range;
    const size_t begin = first * each, count = std::min(range * each, own_.size()) - begin;
    optimizer_->update({.begin = begin,
                        .values = std::span(own_).subspan(begin, count),
                        .gradient = gradient.subspan(begin, count),
                        .scale = scale,
                        .step = step_});
  }
}

void ShardedState::hold(uint32_t steps) {
  step_ += steps;
  held_ = geometry_.ranges(self_);
}

std::span<const std::byte> ShardedState::encode() {
  kernels::BlockCounts counts;
  for (uint32_t range = 0; range < geometry_.ranges(self_); ++range) {
    const auto decoded = elements(self_, range);
    const float* const values = own_.data() + size_t{range} * geometry_.range_elements();
    unisono::encode({.codec = geometry_.cut().codec,
                     .elements = values,
                     .count = decoded.size(),
                     .message = encoded_.data() + geometry_.offset(range),
                     .decoded = decoded.data()},
                    counts);
    versions_[first_range_[self_] + range] = step_;
  }
  return encoded_;
}

bool ShardedState::receive(Rank owner, uint32_t range, uint32_t step, std::span<const std::byte> encoded) {
  if (owner >= geometry_.cut().world || owner == self_ || range >= geometry_.ranges(owner) || step > step_) return false;
  auto& version = versions_[first_range_[owner] + range];
  if (step <= version) return false;
  const auto part = elements(owner, range);
  const auto& codec = geometry_.cut().codec;
  if (!check_message(codec, encoded, part.size()).ok()) return false;
  kernels::BlockCounts counts;
  decode({.codec = codec, .message = encoded.data(), .elements = part.data(), .count = part.size()}, counts);
  version = step;
  return true;
}

void ShardedState::sent() {
  std::fill_n(versions_.begin() + static_cast<std::ptrdiff_t>(first_range_[self_]), geometry_.ranges(self_), step_);
}

void ShardedState::arrived(Rank owner, std::span<const uint32_t> missing) {
  UNISONO_CHECK(owner < geometry_.cut().world && owner != self_);
  auto next = missing.begin();
  for (uint32_t range = 0; range < geometry_.ranges(owner); ++range) {
    if (next != missing.end() && *next == range) ++next;
    else versions_[first_range_[owner] + range] = step_;
  }
}

uint32_t ShardedState::receive_shard(Rank owner, uint32_t step, std::span<const std::byte> encoded) {
  if (owner >= geometry_.cut().world || encoded.size() != geometry_.shard_bytes(owner)) return 0;
  uint32_t written = 0;
  for (uint32_t range = 0; range < geometry_.ranges(owner); ++range)
    written += receive(owner, range, step, encoded.subspan(geometry_.offset(range), geometry_.bytes(owner, range)));
  return written;
}

StaleReport ShardedState::close_step() const {
  StaleReport report{.held_ranges = held_};
  for (Rank owner = 0; owner < geometry_.cut().world; ++owner) {
    if (owner == self_) continue;
    for (const uint32_t version : versions(owner)) {
      report.stale_ranges += version < step_;
      report.age_max = std::max(report.age_max, step_ - version);
    }
  }
  return report;
}

void ShardedState::to_fetch(Rank owner, std::vector<uint32_t>& ranges) const {
  ranges.clear();
  if (options_.stale_max == 0 || owner == self_) return;
  const auto all = versions(owner);
  for (uint32_t range = 0; range < all.size(); ++range) {
    if (step_ - all[range] >= options_.stale_max) ranges.push_back(range);
  }
}

uint32_t ShardedState::age(Rank owner, uint32_t range) const { return owner == self_ ? 0 : step_ - version(owner, range); }

std::span<const uint32_t> ShardedState::versions(Rank owner) const {
  UNISONO_CHECK(owner < geometry_.cut().world);
  return std::span(versions_).subspan(first_range_[owner], first_range_[owner + 1] - first_range_[owner]);
}

void ShardedState::age_histogram(std::span<uint64_t> counts) const {
  std::fill(counts.begin(), counts.end(), uint64_t{0});
  if (counts.empty()) return;
  for (Rank owner = 0; owner < geometry_.cut().world; ++owner) {
    if (owner == self_) continue;
    for (const uint32_t version : versions(owner)) ++counts[std::min<size_t>(step_ - version, counts.size() - 1)];
  }
}

Status ShardedState::rebuild(const RangeGeometry& geometry, Rank self, const GatheredShards& pieces) {
  if (auto status = check(geometry, self, pieces.values.size()); !status.ok()) return status;
  if (pieces.values.size() != parameters_.size())
    return {Code::invalid,
            concat("sharded state: ", pieces.values.size(), " values gathered; there were ", parameters_.size())};
  if (!pieces.states.empty() && pieces.states.size() != optimizer_->state_count()) {
    return {Code::invalid, concat("sharded state: ", pieces.states.size(), " optimizer states gathered; the optimizer has ",
                                  optimizer_->state_count())};
  }
  for (const auto& state : pieces.states) {
    if (state.size() != pieces.values.size())
      return {Code::invalid,
              concat("sharded state: state of ", state.size(), " elements gathered; there are ", pieces.values.size())};
  }
  // The values are copied first, because `pieces` may refer to the values of this object.
  const std::vector<float> values(pieces.values.begin(), pieces.values.end());
  geometry_ = geometry;
  self_ = self;
  const auto own = geometry.shard(self);
  optimizer_->resize(own.count());
  for (uint32_t i = 0; i < pieces.states.size(); ++i) {
    std::copy_n(pieces.states[i].begin() + static_cast<std::ptrdiff_t>(own.begin), own.count(), optimizer_->state(i).begin());
  }
  cut(values, pieces.step);
  return {};
}

}  // namespace unisono

#include "lab/averaging/averaging_algorithms.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "elastic/layout/moshpit_grid.h"

namespace unisono::sim {
namespace {

using Alive = std::span<const uint8_t>;
using PeerValues = std::span<double>;

double sent_by_group(size_t group) { return group == 0 ? 0 : 2 * (static_cast<double>(group) - 1); }

// Sets the value of each peer in the group to the group's mean. Returns how many vectors the group sent.
double average_group(std::span<const uint32_t> group, PeerValues values) {
  double sum = 0;
  for (const uint32_t peer : group) sum += values[peer];
  for (const uint32_t peer : group) values[peer] = sum / static_cast<double>(group.size());
  return sent_by_group(group.size());
}

double average_groups(const AveragingGroups& groups, PeerValues values) {
  double sent = 0;
  for (const auto& group : groups) sent += average_group(group, values);
  return sent;
}

std::vector<uint32_t> present(Alive alive) {
  std::vector<uint32_t> peers;
  for (uint32_t peer = 0; peer < alive.size(); ++peer) {
    if (alive[peer]) peers.push_back(peer);
  }
  return peers;
}

// If a round fails because a peer is absent, it costs as much as any other round, because peers notice the absence only after
// they have sent.
class AllReduceRule : public AveragingRule {
 public:
  double average(uint32_t, Alive alive, PeerValues values, AveragingRandom&) override {
    const auto peers = present(alive);
    if (peers.size() == values.size()) average_group(peers, values);
    return sent_by_group(values.size());
  }
};

class GossipRule : public AveragingRule {
 public:
  double average(uint32_t, Alive alive, PeerValues values, AveragingRandom&) override {
    const std::vector<double> before(values.begin(), values.end());
    const size_t peers = values.size();
    double sent = 0;
    for (size_t i = 0; i < peers; ++i) {
      if (!alive[i]) continue;
      double sum = 0;
      uint32_t count = 0;
      for (const size_t j : {(i + peers - 1) % peers, i, (i + 1) % peers}) {
        if (!alive[j]) continue;
        sum += before[j];
        ++count;
      }
      values[i] = sum / count;
      sent += count - 1;
    }
    return sent;
  }
};

// Row i of matrix h has ones at the flat positions iN + i + k modulo N^2, for k in 0, 2^h, 2^(h+1). If a position is beyond the
// end of row i, it is in the next row. The authors' matrices have this property. In a circulant matrix, by contrast, positions
// would wrap around within the row. Check A5 of docs/design/methods/moshpit.md shows which of the two is used.
class PushRule : public AveragingRule {
 public:
  explicit PushRule(uint32_t peers) : peers_(peers), matrices_(static_cast<uint32_t>(std::bit_width(peers - 1)) - 1) {}

  double average(uint32_t round, Alive alive, PeerValues values, AveragingRandom&) override {
    const uint64_t reach = uint64_t{1} << (round % matrices_);
    std::vector<double> sums(peers_);
    std::vector<uint32_t> counts(peers_);
    double sent = 0;
    for (uint64_t i = 0; i < peers_; ++i) {
      for (const uint64_t k : {uint64_t{0}, reach, 2 * reach}) {
        const uint64_t flat = (i * peers_ + i + k) % (uint64_t{peers_} * peers_), row = flat / peers_, column = flat % peers_;
        if (!alive[row] || !alive[column]) continue;
        sums[row] += values[column];
        ++counts[row];
        sent += row != column;
      }
    }
    for (uint32_t i = 0; i < peers_; ++i) {
      if (counts[i] > 0) values[i] = sums[i] / counts[i];
    }
    return sent;
  }

 private:
  uint32_t peers_;
  uint32_t matrices_;
};

class RandomGroupsRule : public AveragingRule {
 public:
  explicit RandomGroupsRule(uint32_t max_group) : max_group_(max_group) {}
  double average(uint32_t, Alive alive, PeerValues values, AveragingRandom& random) override {
    return average_groups(random_groups(alive, max_group_, random), values);
  }

 private:
  uint32_t max_group_;
};

class ChunkKeysRule : public AveragingRule {
 public:
  ChunkKeysRule(uint32_t peers, uint32_t base, uint32_t digits) : keys_(peers, base, digits) {}
  double average(uint32_t, Alive alive, PeerValues values, AveragingRandom& random) override {
    return average_groups(keys_.next_groups(alive, random), values);
  }

 private:
  ChunkKeys keys_;
};

class PublishedGridRule : public AveragingRule {
 public:
  PublishedGridRule(const MoshpitGrid& grid, uint32_t peers, uint32_t cell_seed) : grid_(grid), cells_(grid.cells()) {
    std::iota(cells_.begin(), cells_.end(), 0u);
    AveragingRandom(cell_seed).shuffle(cells_);
    cells_.resize(peers);
  }

  double average(uint32_t round, Alive alive, PeerValues values, AveragingRandom&) override {
    const uint32_t axis = round % grid_.axes();
    AveragingGroups lines(grid_.line_count(axis));
    for (uint32_t peer = 0; peer < cells_.size(); ++peer) {
      if (alive[peer]) lines[grid_.line(cells_[peer], axis)].push_back(peer);
    }
    return average_groups(lines, values);
  }

 private:
  MoshpitGrid grid_;
  std::vector<uint32_t> cells_;  // by peer: its cell in the grid
};

// Each peer has a value x and a weight w. Whichever peers are absent, the sum of w x over all peers, and the sum of w, stay
// constant.
class FittedRule : public AveragingRule {
 public:
  FittedRule(const MoshpitGrid& grid, bool mid_round) : mid_round_(mid_round), weights_(grid.peers(), 1.) {
    for (uint32_t axis = 0; axis < grid.axes(); ++axis) {
      auto& lines = axes_.emplace_back(grid.line_count(axis));
      for (uint32_t line = 0; line < lines.size(); ++line) {
        for (const uint32_t rank : grid.line_members(axis, line))
          lines[line].push_back({rank, grid.position(grid.cell_of(rank), axis)});
      }
    }
  }

  double average(uint32_t round, Alive alive, PeerValues values, AveragingRandom& random) override {
    double sent = 0;
    for (const auto& line : axes_[(round - 1) % axes_.size()]) {
      contributors_.clear();
      for (const auto& member : line) {
        if (alive[member.rank]) contributors_.push_back(member);
      }
      sent += sent_by_group(contributors_.size());
      if (mid_round_) {
        const auto& owner = line[random.at_most(static_cast<uint32_t>(line.size()) - 1)];
        if (!alive[owner.rank] || contributors_.size() * 2 <= line.size()) continue;
      }
      average_line(values);
    }
    return sent;
  }

 private:
  struct Member {
    uint32_t rank, position;
  };

  // Adds up the members at each position of the line, then the positions. If two peers share a cell and each has half of its
  // weight, this order causes no rounding error for them.
  void average_line(PeerValues values) {
    double mass = 0, weight = 0;
    uint32_t positions = 0;
    for (size_t at = 0; at < contributors_.size(); ++positions) {
      double position_mass = 0, position_weight = 0;
      for (const size_t end = end_of_position(at); at < end; ++at) {
        const uint32_t rank = contributors_[at].rank;
        position_mass += weights_[rank] * values[rank];
        position_weight += weights_[rank];
      }
      mass += position_mass;
      weight += position_weight;
    }
    if (weight == 0) return;
    for (size_t at = 0; at < contributors_.size();) {
      const size_t end = end_of_position(at);
      const double share = weight / (positions * static_cast<double>(end - at));
      for (; at < end; ++at) {
        values[contributors_[at].rank] = mass / weight;
        weights_[contributors_[at].rank] = share;
      }
    }
  }

  size_t end_of_position(size_t at) const {
    size_t end = at + 1;
    while (end < contributors_.size() && contributors_[end].position == contributors_[at].position) ++end;
    return end;
  }

  bool mid_round_;
  std::vector<double> weights_;
  std::vector<std::vector<std::vector<Member>>> axes_;  // by axis, then by line: the peers in this line of the grid
  std::vector<Member> contributors_;
};

Status check(const AveragingSettings& settings) {
  const bool fitted =
      settings.algorithm == AveragingAlgorithm::fitted || settings.algorithm == AveragingAlgorithm::fitted_mid_round;
  const uint32_t group_least = fitted ? 4 : 2;
  if (settings.peers < averaging_peers_least || settings.peers > averaging_peers_limit)
    return {Code::invalid, fmt::format("averaging: {} peers; expected {} to {}", settings.peers, averaging_peers_least,
                                       averaging_peers_limit)};
  if (!(settings.absence >= 0 && settings.absence <= 1))
    return {Code::invalid, fmt::format("averaging: absence {}; expected 0 to 1", settings.absence)};
  if (settings.max_group < group_least)
    return {Code::invalid, fmt::format("averaging: groups of {}; {} takes {} or more", settings.max_group,
                                       name(settings.algorithm), group_least)};
  return {};
}

Result<MoshpitGrid> grid_of(const AveragingSettings& settings) {
  if (settings.algorithm == AveragingAlgorithm::published_grid)
    return MoshpitGrid::make(GridKind::published, published_dims(settings.peers, settings.max_group), settings.peers);
  return MoshpitGrid::make(GridKind::fitted, fitted_dims(settings.peers, settings.max_group), settings.peers);
}

}  // namespace

AveragingGroups random_groups(std::span<const uint8_t> alive, uint32_t max_group, AveragingRandom& random) {
  auto peers = present(alive);
  if (peers.empty()) return {};
  random.shuffle(peers);
  AveragingGroups groups(std::max<size_t>(1, peers.size() / max_group));
  const size_t in_order = std::min(peers.size(), groups.size() * max_group);
  for (size_t i = 0; i < in_order; ++i) groups[i / max_group].push_back(peers[i]);
  for (size_t i = in_order; i < peers.size(); ++i) groups[(i - in_order) % groups.size()].push_back(peers[i]);
  return groups;
}

ChunkKeys::ChunkKeys(uint32_t peers, uint32_t base, uint32_t digits) : base_(base), key_count_(1), keys_(peers) {
  for (uint32_t i = 0; i < digits; ++i) key_count_ *= base;
  for (uint32_t peer = 0; peer < peers; ++peer) keys_[peer] = peer % key_count_;
}

AveragingGroups ChunkKeys::next_groups(std::span<const uint8_t> alive, AveragingRandom& random) {
  AveragingGroups registered(key_count_), groups;
  for (uint32_t peer = 0; peer < keys_.size(); ++peer) {
    if (alive[peer]) registered[keys_[peer]].push_back(peer);
  }
  for (auto& peers : registered) {
    if (peers.size() > base_) random.shuffle(peers);
    for (size_t at = 0; at < peers.size(); at += base_) {
      const std::span group = std::span(peers).subspan(at, std::min<size_t>(base_, peers.size() - at));
      if (group.size() > 1) {
        groups.emplace_back(group.begin(), group.end());
        move_keys(group, random);
      }
    }
  }
  return groups;
}

void ChunkKeys::move_keys(std::span<const uint32_t> group, AveragingRandom& random) {
  std::vector<uint32_t> slots(base_);
  std::iota(slots.begin(), slots.end(), 0u);
  random.shuffle(slots);
  for (size_t i = 0; i < group.size(); ++i) keys_[group[i]] = (keys_[group[i]] * base_ + slots[i]) % key_count_;
}

Result<std::unique_ptr<AveragingRule>> make_averaging_rule(const AveragingSettings& settings) {
  if (auto status = check(settings); !status.ok()) return status;
  const auto of = [](auto rule) {
    return Result<std::unique_ptr<AveragingRule>>(std::unique_ptr<AveragingRule>(std::move(rule)));
  };
  switch (settings.algorithm) {
    case AveragingAlgorithm::all_reduce: return of(std::make_unique<AllReduceRule>());
    case AveragingAlgorithm::gossip: return of(std::make_unique<GossipRule>());
    case AveragingAlgorithm::sgp: return of(std::make_unique<PushRule>(settings.peers));
    case AveragingAlgorithm::random_groups: return of(std::make_unique<RandomGroupsRule>(settings.max_group));
    case AveragingAlgorithm::chunk_keys: {
      const auto axes = static_cast<uint32_t>(published_dims(settings.peers, settings.max_group).size());
      return of(std::make_unique<ChunkKeysRule>(settings.peers, settings.max_group, axes - 1));
    }
    case AveragingAlgorithm::published_grid:
    case AveragingAlgorithm::fitted:
    case AveragingAlgorithm::fitted_mid_round: {
      const auto grid = grid_of(settings);
      if (!grid.ok()) return grid.status();
      if (settings.algorithm == AveragingAlgorithm::published_grid)
        return of(std::make_unique<PublishedGridRule>(*grid, settings.peers, settings.cell_seed));
      return of(std::make_unique<FittedRule>(*grid, settings.algorithm == AveragingAlgorithm::fitted_mid_round));
    }
  }
  return Status(Code::invalid, "averaging: no such algorithm");
}

}  // namespace unisono::sim

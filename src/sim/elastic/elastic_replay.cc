#include "sim/elastic/elastic_replay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

namespace unisono::sim {
namespace {

constexpr size_t examples_max = 5;
constexpr uint64_t steps_kept = 1000;  // a process that was stopped begins a round long after the others have ended it
constexpr double weight_tolerance = 1e-12, value_tolerance = 1e-6;  // of sums in double; of a mean rounded to fp32

bool same_bits(const SharedBuffer& a, const SharedBuffer& b) {
  return a.data() == b.data() || (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0);
}

}  // namespace

ElasticReplay::Group& ElasticReplay::open(const GroupDescriptor& descriptor) {
  if (descriptor.slot.step > newest_) {
    newest_ = descriptor.slot.step;
    std::erase_if(groups_, [&](const auto& one) { return one.second.descriptor.slot.step + steps_kept <= newest_; });
  }
  auto& group = groups_[descriptor.id];
  if (group.given.empty()) {
    group.descriptor = descriptor;
    group.given.resize(descriptor.members.size());
  }
  return group;
}

void ElasticReplay::began(const RoundView& sight) {
  auto& group = open(sight.group);
  if (group.descriptor != sight.group)
    wrong(group, sight.group.rank_of(sight.self), "holds another descriptor of the group than others");
  auto& given = group.given[sight.group.rank_of(sight.self)];
  given = {.began = true, .over = false, .values = sight.values, .states = {sight.states.begin(), sight.states.end()}};
  last_[sight.self] = sight.group.id;
}

void ElasticReplay::ended(const RoundView& sight, const MoshpitRound& round) {
  const auto found = groups_.find(sight.group.id);
  if (found == groups_.end()) return;
  auto& group = found->second;
  const auto rank = sight.group.rank_of(sight.self);
  ++counts_.rounds;
  if (!std::exchange(group.counted, true)) ++counts_.groups;
  check_member(group, rank, sight, round);
  over(group, rank);
}

void ElasticReplay::gone(const PeerId& peer) {
  const auto last = last_.find(peer);
  if (last == last_.end()) return;
  const auto found = groups_.find(last->second);
  if (found != groups_.end()) over(found->second, found->second.descriptor.rank_of(peer));
  last_.erase(last);
}

void ElasticReplay::over(Group& group, uint32_t rank) {
  group.given[rank].over = true;
  // Contributions can be dropped once they were averaged here.
  const bool replayed = std::ranges::all_of(
      group.outcomes, [](const Outcome& outcome) { return outcome.decided && (!outcome.result || outcome.mean); });
  for (auto& given : group.given) {
    if (given.over && replayed && !group.outcomes.empty()) given.values = {};
  }
  if (std::ranges::all_of(group.given, [](const Given& given) { return given.over; })) groups_.erase(group.descriptor.id);
}

void ElasticReplay::check_member(Group& group, uint32_t rank, const RoundView& sight, const MoshpitRound& round) {
  const auto& before = group.given[rank];
  group.outcomes.resize(std::max<size_t>(group.outcomes.size(), sight.states.size()));
  const bool decided = round.report().undecided == 0;
  if (!decided) ++counts_.undecided;
  for (uint32_t chunk = 0; chunk < sight.states.size(); ++chunk) {
    const auto* result = round.applied(chunk);
    if (decided && (result != nullptr || round.report().lost == 0)) settle(group, chunk, sight, result);
    const auto& after = sight.states[chunk];
    const auto& outcome = group.outcomes[chunk];
    const bool in = result != nullptr && result->contributors[rank];
    if (!in) {
      if (!same_bits(before.values.buffer(chunk), sight.values.buffer(chunk)) || before.states[chunk].weight != after.weight)
        wrong(group, rank, "changed chunk " + std::to_string(chunk) + ", which it has no part in");
      continue;
    }
    uint32_t sharers = 0;
    for (uint32_t other = 0; other < group.given.size(); ++other) {
      sharers +=
          result->contributors[other] && group.descriptor.members[other].position == group.descriptor.members[rank].position
              ? 1
              : 0;
    }
    if (!same_bits(sight.values.buffer(chunk), outcome.mean))
      wrong(group, rank, "has other bits of chunk " + std::to_string(chunk));
    const double weight = outcome.mean_weight / (static_cast<double>(outcome.positions) * sharers);
    if (std::abs(after.weight - weight) > weight_tolerance * weight)
      wrong(group, rank,
            "has weight " + std::to_string(after.weight) + " of chunk " + std::to_string(chunk) + " instead of " +
                std::to_string(weight));
  }
}

// Checks the result of the first member that decides; compares later results with it.
void ElasticReplay::settle(Group& group, uint32_t chunk, const RoundView& sight, const ChunkResult* result) {
  auto& outcome = group.outcomes[chunk];
  const auto rank = sight.group.rank_of(sight.self);
  if (outcome.decided) {
    if (outcome.result.has_value() != (result != nullptr))
      return wrong(
          group, rank,
          std::string(result != nullptr ? "applied" : "did not apply") + " chunk " + std::to_string(chunk) + ", unlike others");
    if (result != nullptr && (outcome.result->contributors != result->contributors || outcome.result->total != result->total ||
                              outcome.result->digest != result->digest))
      wrong(group, rank, "applied another result of chunk " + std::to_string(chunk));
    if (result != nullptr && !outcome.mean && result->contributors[rank])
      replay(group, chunk, *result, sight.values.buffer(chunk));
    return;
  }
  outcome.decided = true;
  if (result == nullptr) {
    ++counts_.voided;
    return;
  }
  ++counts_.chunks;
  outcome.result = *result;
  counts_.absences += group.given.size() - result->contributors.count();
  // A member that was left out has no copy of the mean.
  if (result->contributors[rank]) replay(group, chunk, *result, sight.values.buffer(chunk));
}

void ElasticReplay::replay(Group& group, uint32_t chunk, const ChunkResult& result, const SharedBuffer& mean) {
  auto& outcome = group.outcomes[chunk];
  outcome.mean = mean;
  std::set<uint32_t> positions;
  double total = 0;
  const size_t count = mean.size() / sizeof(float);
  std::vector<double> sums(count), largest(count);
  for (uint32_t rank = 0; rank < group.given.size(); ++rank) {
    if (!result.contributors[rank]) continue;
    const auto& given = group.given[rank];
    if (!given.began) return wrong(group, rank, "is said to have given chunk " + std::to_string(chunk) + " and never began");
    positions.insert(group.descriptor.members[rank].position);
    const double weight = given.states[chunk].weight;
    total += weight;
    if (weight == 0) continue;
    const auto* values = given.values.chunk(chunk);
    for (size_t i = 0; i < count; ++i) {
      sums[i] += weight * static_cast<double>(values[i]);
      largest[i] = std::max(largest[i], std::abs(static_cast<double>(values[i])));
    }
  }
  outcome.positions = static_cast<uint32_t>(positions.size());
  outcome.mean_weight = total;
  const double weight_error = std::abs(result.total - total) / total;
  counts_.weight_error = std::max(counts_.weight_error, weight_error);
  double value_error = 0;
  const auto* found = reinterpret_cast<const float*>(mean.data());
  for (size_t i = 0; i < count; ++i) {
    const double error = std::abs(static_cast<double>(found[i]) - sums[i] / total);
    if (error > 0) value_error = std::max(value_error, error / largest[i]);
  }
  counts_.value_error = std::max(counts_.value_error, value_error);
  if (!(weight_error <= weight_tolerance))
    wrong(group, 0,
          "chunk " + std::to_string(chunk) + " has weight " + std::to_string(result.total) + ", its contributors " +
              std::to_string(total));
  if (!(value_error <= value_tolerance))
    wrong(group, 0, "chunk " + std::to_string(chunk) + " is not the mean of its contributors' values");
}

void ElasticReplay::wrong(const Group& group, uint32_t rank, const std::string& what) {
  ++counts_.wrong;
  if (counts_.examples.size() < examples_max)
    counts_.examples.push_back(to_string(group.descriptor.slot) + ", rank " + std::to_string(rank) + " of " +
                               std::to_string(group.given.size()) + ": " + what);
}

}  // namespace unisono::sim

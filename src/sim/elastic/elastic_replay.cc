#include "sim/elastic/elastic_replay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/concat.h"

namespace unisono::sim {
namespace {

constexpr size_t examples_max = 5;
// A group is forgotten when the newest averaging step is this many steps later. The number is large, because a stopped process
// may begin its round long after the other members have ended theirs.
constexpr uint64_t steps_kept = 1000;
// Weights are summed in double, and means are rounded to fp32.
constexpr double weight_tolerance = 1e-12, value_tolerance = 1e-6;

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
  if (group.input.empty()) {
    group.descriptor = descriptor;
    group.input.resize(descriptor.members.size());
  }
  return group;
}

void ElasticReplay::began(const RoundView& view) {
  auto& group = open(view.group);
  if (group.descriptor != view.group)
    wrong(group, view.group.rank_of(view.self), "holds another descriptor of the group than others");
  auto& input = group.input[view.group.rank_of(view.self)];
  input = {.began = true, .over = false, .values = view.values, .states = {view.states.begin(), view.states.end()}};
  last_[view.self] = view.group.id;
}

void ElasticReplay::ended(const RoundView& view, const MoshpitRound& round) {
  const auto found = groups_.find(view.group.id);
  if (found == groups_.end()) return;
  auto& group = found->second;
  const auto rank = view.group.rank_of(view.self);
  ++counts_.rounds;
  if (!std::exchange(group.counted, true)) ++counts_.groups;
  check_member(group, rank, view, round);
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
  group.input[rank].over = true;
  // After every chunk of the group was replayed or discarded, the contributions are no longer needed.
  const bool replayed = std::ranges::all_of(
      group.outcomes, [](const Outcome& outcome) { return outcome.decided && (!outcome.result || outcome.mean); });
  for (auto& input : group.input) {
    if (input.over && replayed && !group.outcomes.empty()) input.values = {};
  }
  if (std::ranges::all_of(group.input, [](const MemberInput& input) { return input.over; })) groups_.erase(group.descriptor.id);
}

void ElasticReplay::check_member(Group& group, uint32_t rank, const RoundView& view, const MoshpitRound& round) {
  const auto& before = group.input[rank];
  group.outcomes.resize(std::max<size_t>(group.outcomes.size(), view.states.size()));
  const bool decided = round.report().undecided == 0;
  if (!decided) ++counts_.undecided;
  for (uint32_t chunk = 0; chunk < view.states.size(); ++chunk) {
    const auto* result = round.applied(chunk);
    if (decided && (result != nullptr || round.report().lost == 0)) settle(group, chunk, view, result);
    const auto& after = view.states[chunk];
    const auto& outcome = group.outcomes[chunk];
    const bool in = result != nullptr && result->contributors[rank];
    if (!in) {
      if (!same_bits(before.values.buffer(chunk), view.values.buffer(chunk)) || before.states[chunk].weight != after.weight)
        wrong(group, rank, concat("changed chunk ", chunk, ", which it has no part in"));
      continue;
    }
    uint32_t sharers = 0;
    for (uint32_t other = 0; other < group.input.size(); ++other) {
      sharers +=
          result->contributors[other] && group.descriptor.members[other].position == group.descriptor.members[rank].position
              ? 1
              : 0;
    }
    if (!same_bits(view.values.buffer(chunk), outcome.mean)) wrong(group, rank, concat("has other bits of chunk ", chunk));
    const double weight = outcome.mean_weight / (static_cast<double>(outcome.positions) * sharers);
    if (std::abs(after.weight - weight) > weight_tolerance * weight)
      wrong(group, rank, concat("has weight ", after.weight, " of chunk ", chunk, " instead of ", weight));
  }
}

// The first member that decides defines the outcome of the chunk. Later members are compared with it.
void ElasticReplay::settle(Group& group, uint32_t chunk, const RoundView& view, const ChunkResult* result) {
  auto& outcome = group.outcomes[chunk];
  const auto rank = view.group.rank_of(view.self);
  if (outcome.decided) {
    if (outcome.result.has_value() != (result != nullptr))
      return wrong(group, rank, concat(result != nullptr ? "applied" : "did not apply", " chunk ", chunk, ", unlike others"));
    if (result != nullptr && (outcome.result->contributors != result->contributors || outcome.result->total != result->total ||
                              outcome.result->digest != result->digest))
      wrong(group, rank, concat("applied another result of chunk ", chunk));
    if (result != nullptr && !outcome.mean && result->contributors[rank])
      replay(group, chunk, *result, view.values.buffer(chunk));
    return;
  }
  outcome.decided = true;
  if (result == nullptr) {
    ++counts_.voided;
    return;
  }
  ++counts_.chunks;
  outcome.result = *result;
  counts_.absences += group.input.size() - result->contributors.count();
  // A replay needs the mean, which only contributors have.
  if (result->contributors[rank]) replay(group, chunk, *result, view.values.buffer(chunk));
}

void ElasticReplay::replay(Group& group, uint32_t chunk, const ChunkResult& result, const SharedBuffer& mean) {
  auto& outcome = group.outcomes[chunk];
  outcome.mean = mean;
  std::set<uint32_t> positions;
  double total = 0;
  const size_t count = mean.size() / sizeof(float);
  std::vector<double> sums(count), largest(count);
  for (uint32_t rank = 0; rank < group.input.size(); ++rank) {
    if (!result.contributors[rank]) continue;
    const auto& input = group.input[rank];
    if (!input.began)
      return wrong(group, rank, concat("is listed as a contributor of chunk ", chunk, ", but never began the round"));
    positions.insert(group.descriptor.members[rank].position);
    const double weight = input.states[chunk].weight;
    total += weight;
    if (weight == 0) continue;
    const auto* values = input.values.chunk(chunk);
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
    wrong(group, 0, concat("chunk ", chunk, " has weight ", result.total, ", its contributors ", total));
  if (!(value_error <= value_tolerance))
    wrong(group, 0, concat("chunk ", chunk, " is not the mean of its contributors' values"));
}

void ElasticReplay::wrong(const Group& group, uint32_t rank, const std::string& what) {
  ++counts_.wrong;
  if (counts_.examples.size() < examples_max)
    counts_.examples.push_back(
        concat(to_string(group.descriptor.slot), ", rank ", rank, " of ", group.input.size(), ": ", what));
}

}  // namespace unisono::sim

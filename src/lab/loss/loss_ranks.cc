#include "lab/loss/loss_ranks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/concat.h"

namespace unisono::sim {
namespace {

// A block of plain fp32 numbers fills one cache line, so ranges end on cache lines.
constexpr uint32_t block_elements = 16, block_bytes = 64;
constexpr uint32_t datagram_bytes_min = 576;

// If a shard has several ranges, each range must fill a datagram. If a shard has only one range, that range may be shorter.
Result<RangeGeometry> geometry_of(const LossRanksOptions& options) {
  const auto blocks = (options.elements + block_elements - 1) / block_elements;
  auto geometry =
      RangeGeometry::make({.elements = uint64_t{options.peers} * options.ranges * options.elements,
                           .world = options.peers,
                           .datagram_bytes = std::max(datagram_bytes_min, datagram_header_bytes + blocks * block_bytes)});
  if (!geometry.ok()) return geometry;
  if (options.elements == 0 || geometry->shard_elements() != uint64_t{options.ranges} * options.elements ||
      geometry->ranges(0) != options.ranges || (options.ranges > 1 && geometry->range_elements() != options.elements)) {
    return Status(Code::invalid,
                  concat(options.ranges, " ranges of ", options.elements,
                         " elements: a range has a multiple of 16 elements, at least 128 where a shard has several"));
  }
  return geometry;
}

}  // namespace

Result<LossRanks> LossRanks::make(const LossRanksOptions& options, std::span<const float> values) {
  if (options.peers < 2) return Status(Code::invalid, "peers must be at least 2");
  if (auto status = options.model.check(options.peers); !status.ok()) return status;
  const auto geometry = geometry_of(options);
  if (!geometry.ok()) return geometry.status();
  LossRanks made(options, *geometry);
  if (values.size() != made.shard_elements()) return Status(Code::invalid, "the number of values is not the size of a shard");
  std::vector<float> all;
  for (Rank rank = 0; rank < options.peers; ++rank) all.insert(all.end(), values.begin(), values.end());
  for (Rank rank = 0; rank < options.peers; ++rank) {
    auto state = ShardedState::make(*geometry, rank, all, make_sgd({.rate = options.rate}), {.stale_max = options.stale_max});
    if (!state.ok()) return state.status();
    made.states_.push_back(*std::move(state));
  }
  return made;
}

LossRanks::LossRanks(const LossRanksOptions& options, const RangeGeometry& geometry)
    : options_(options),
      geometry_(geometry),
      codec_(geometry.cut().codec),
      pattern_(options.model, options.seed, {.world = options.peers, .ranges = options.ranges}),
      effective_(options.peers) {
  const size_t peers = options.peers, elements = peers * shard_elements(), ranges = peers * options.ranges;
  arrivals_.resize(peers * peers);
  for (auto& each : arrivals_) each.reset(options.ranges);
  contributions_.resize(peers * elements);
  reduced_.resize(elements);
  changes_.resize(elements);
  kinds_.resize(ranges, RangeKind::full);
  held_.resize(ranges);
  messages_.resize(peers);
  encoded_.resize(peers);
}

uint32_t LossRanks::received(Rank owner, uint32_t range) const {
  uint32_t received = 0;
  for (Rank sender = 0; sender < options_.peers; ++sender) received += sender != owner && arrived(owner, sender, range);
  return received;
}

uint64_t LossRanks::delivered(Rank sender) const {
  uint64_t delivered = 0;
  for (Rank owner = 0; owner < options_.peers; ++owner)
    delivered += sender == owner ? 0 : arrivals_[size_t{owner} * options_.peers + sender].arrived_count();
  return delivered;
}

HalfStep LossRanks::contribute(uint64_t step) {
  HalfStep outcome;
  for (Rank owner = 0; owner < options_.peers; ++owner) {
    for (Rank sender = 0; sender < options_.peers; ++sender) {
      auto& arrivals = arrivals_[size_t{owner} * options_.peers + sender];
      arrivals.reset(options_.ranges);
      for (uint32_t range = 0; range < options_.ranges; ++range) {
        if (!pattern_.lost({.sender = sender, .receiver = owner, .step = step, .phase = 0, .range = range}))
          arrivals.mark(range);
      }
      // The owner's own contribution is not counted, because only count_all can lose it.
      if (sender == owner) continue;
      outcome.sent += options_.ranges;
      outcome.lost += arrivals.missing_count();
    }
    for (uint32_t range = 0; range < options_.ranges; ++range) {
      const auto others = received(owner, range);
      effective_.add(others, options_.elements, options_.on_empty);
      outcome.full += others + 1 == options_.peers;
      outcome.empty += others == 0;
      outcome.reduced += others > 0 && others + 1 < options_.peers;
    }
  }
  return outcome;
}

void LossRanks::reduce(Estimator estimator) {
  const bool own_can_be_lost = estimator == Estimator::count_all;
  for (Rank owner = 0; owner < options_.peers; ++owner) {
    for (uint32_t range = 0; range < options_.ranges; ++range) {
      const size_t begin = size_t{range} * options_.elements;
      for (Rank sender = 0; sender < options_.peers; ++sender) {
        const bool here = arrived(owner, sender, range) || (sender == owner && !own_can_be_lost);
        messages_[sender] = here ? reinterpret_cast<const std::byte*>(contribution(owner, sender).data() + begin) : nullptr;
      }
      const auto kind = estimator_.estimate({.codec = codec_,
                                             .contributions = messages_,
                                             .own = messages_[owner],
                                             .owner = owner,
                                             .count = options_.elements,
                                             .mean = true,
                                             .estimator = estimator,
                                             .on_empty = options_.on_empty,
                                             .loss = options_.model.loss,
                                             .output = reduced_.data() + size_t{owner} * shard_elements() + begin});
      const size_t index = size_t{owner} * options_.ranges + range;
      kinds_[index] = kind;
      held_[index] = kind == RangeKind::empty && options_.on_empty == OnEmpty::hold;
    }
  }
}

HalfStep LossRanks::update_and_broadcast(uint64_t step, bool lossless) {
  HalfStep outcome;
  for (Rank owner = 0; owner < options_.peers; ++owner) {
    auto& state = states_[owner];
    const size_t first = size_t{owner} * shard_elements();
    const auto before = copy(owner, owner);
    std::copy(before.begin(), before.end(), changes_.begin() + static_cast<std::ptrdiff_t>(first));
    state.update(reduced(owner), std::span<const uint8_t>(held_).subspan(size_t{owner} * options_.ranges, options_.ranges));
    encoded_[owner] = state.encode();
    const auto after = copy(owner, owner);
    for (size_t i = 0; i < after.size(); ++i) changes_[first + i] = after[i] - changes_[first + i];
  }
  for (Rank owner = 0; owner < options_.peers; ++owner) send_shard(owner, step, lossless, outcome);
  if (options_.stale_max == 0) return outcome;
  for (Rank rank = 0; rank < options_.peers; ++rank) {
    if (states_[rank].close_step().age_max >= options_.stale_max) outcome.fetched += fetch(rank);
  }
  return outcome;
}

void LossRanks::send_shard(Rank owner, uint64_t step, bool lossless, HalfStep& outcome) {
  for (Rank receiver = 0; receiver < options_.peers; ++receiver) {
    if (receiver == owner) continue;
    auto& arrivals = arrivals_[size_t{owner} * options_.peers + receiver];
    arrivals.reset(options_.ranges);
    for (uint32_t range = 0; range < options_.ranges; ++range) {
      if (!lossless && pattern_.lost({.sender = owner, .receiver = receiver, .step = step, .phase = 1, .range = range})) {
        drop(owner, receiver, range);
        continue;
      }
      arrivals.mark(range);
      deliver(owner, receiver, range);
    }
    outcome.sent += options_.ranges;
    outcome.lost += arrivals.missing_count();
  }
}

void LossRanks::deliver(Rank owner, Rank receiver, uint32_t range) {
  auto& state = states_[receiver];
  if (options_.travel == Travel::values) {
    state.receive(owner, range, states_[owner].step(), encoded(owner, range));
    return;
  }
  const size_t first = size_t{owner} * shard_elements() + size_t{range} * options_.elements;
  const auto parameters = state.parameters().subspan(first, options_.elements);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i] += changes_[first + i];
}

void LossRanks::drop(Rank owner, Rank receiver, uint32_t range) {
  if (options_.missed != Missed::zero) return;
  const auto parameters = states_[receiver].parameters().subspan(
      size_t{owner} * shard_elements() + size_t{range} * options_.elements, options_.elements);
  std::fill(parameters.begin(), parameters.end(), 0.f);
}

uint64_t LossRanks::fetch(Rank receiver) {
  uint64_t fetched = 0;
  for (Rank owner = 0; owner < options_.peers; ++owner) {
    states_[receiver].to_fetch(owner, to_fetch_);
    for (const auto range : to_fetch_)
      fetched += states_[receiver].receive(owner, range, states_[owner].step(), encoded(owner, range));
  }
  return fetched;
}

bool LossRanks::identical() {
  for (Rank rank = 1; rank < options_.peers; ++rank) {
    if (std::memcmp(states_[rank].parameters().data(), states_[0].parameters().data(), states_[0].parameters().size_bytes()) !=
        0)
      return false;
  }
  return true;
}

}  // namespace unisono::sim

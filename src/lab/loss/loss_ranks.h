// Virtual ranks that train with a sharded optimizer while their links lose: the estimator, the bookkeeping of arrivals and the
// state of each rank are those that ship; the links, and what the ablations do instead, are here. One thread, no clock.
//
// Ownership: the caller fills in contributions and reads updates; ranks keep their parameters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lossy/estimator.h"
#include "lossy/range_arrivals.h"
#include "sim/loss_pattern.h"
#include "training/sharded/sharded_state.h"

namespace unisono::sim {

// The contents of the results: values, or their changes since the last step (an ablation).
enum class Travel : uint8_t { values = 0, differences = 1 };
// A range of parameters that was missed stays as it is, or becomes zeros (an ablation).
enum class Missed : uint8_t { stale = 0, zero = 1 };

struct LossRanksOptions {
  LossModel model = {};
  uint32_t peers = 8;
  uint32_t ranges = 1,
           elements = 16;  // of each shard; of each range: several ranges have a multiple of 16 elements, at least 128
  uint64_t seed = 0;       // of the losses
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::hold;  // hold, own or zero
  uint32_t stale_max = 0;
  Travel travel = Travel::values;
  Missed missed = Missed::stale;
  float rate = 1;  // of gradient descent
};

// The counts of one half of a step, over all ranks.
struct HalfStep {
  uint64_t sent = 0, lost = 0;                // datagrams
  uint64_t full = 0, reduced = 0, empty = 0;  // ranges, of the first half
  uint64_t fetched = 0;                       // ranges, of the second half
};

class LossRanks {
 public:
  // All ranks begin with `values`, one for each element of a shard. invalid: sizes that no geometry has, ranks that the model
  // names and are not there.
  static Result<LossRanks> make(const LossRanksOptions& options, std::span<const float> values);

  uint32_t shard_elements() const { return options_.ranges * options_.elements; }
  uint32_t datagram_elements() const { return options_.elements; }
  const LossRanksOptions& options() const { return options_; }

  // The contribution of `sender` to the shard of `owner` in this step. The caller writes it.
  std::span<float> contribution(Rank owner, Rank sender) {
    return std::span(contributions_).subspan((size_t{owner} * options_.peers + sender) * shard_elements(), shard_elements());
  }
  // Contributions go to the owners. Once per step.
  HalfStep contribute(uint64_t step);
  // Owners reduce the contributions that arrived, as this estimator says. Several may be tried; the last one counts. The
  // results of held ranges mean nothing.
  void reduce(Estimator estimator);
  std::span<const float> reduced(Rank owner) const {
    return std::span(reduced_).subspan(size_t{owner} * shard_elements(), shard_elements());
  }
  RangeKind kind(Rank owner, uint32_t range) const { return kinds_[size_t{owner} * options_.ranges + range]; }
  bool held(Rank owner, uint32_t range) const { return held_[size_t{owner} * options_.ranges + range] != 0; }
  // Contributions of this rank that arrived in this step, at all owners.
  uint64_t delivered(Rank sender) const;
  double effective_contributors() const { return effective_.value(); }

  // Owners update what they own by what they have reduced, and send it to all; then what is too old is fetched. lossless:
  // everything arrives.
  HalfStep update_and_broadcast(uint64_t step, bool lossless);
  // By how much the last update changed the owners' values, shard after shard.
  std::span<const float> changes() const { return changes_; }

  // theta of a rank, the part that this owner's shard is.
  std::span<const float> copy(Rank rank, Rank owner) {
    return std::span<const float>(states_[rank].parameters()).subspan(size_t{owner} * shard_elements(), shard_elements());
  }
  // Whether it arrived in the last step.
  bool arrived(Rank owner, Rank receiver, uint32_t range) const {
    return arrivals_[size_t{owner} * options_.peers + receiver].arrived(range);
  }
  const ShardedState& state(Rank rank) const { return states_[rank]; }
  // Every rank has, to the bit, what the owners have.
  bool identical();

 private:
  LossRanks(const LossRanksOptions& options, const RangeGeometry& geometry);
  uint32_t received(Rank owner, uint32_t range) const;
  void send_shard(Rank owner, uint64_t step, bool lossless, HalfStep& outcome);
  void deliver(Rank owner, Rank receiver, uint32_t range);
  void drop(Rank owner, Rank receiver, uint32_t range);
  uint64_t fetch(Rank receiver);
  std::span<const std::byte> encoded(Rank owner, uint32_t range) const {
    return encoded_[owner].subspan(geometry_.offset(range), geometry_.bytes(owner, range));
  }

  LossRanksOptions options_;
  RangeGeometry geometry_;
  WireCodec codec_;
  LossPattern pattern_;
  RangeEstimator estimator_;
  EffectiveContributors effective_;
  std::vector<ShardedState> states_;
  std::vector<RangeArrivals> arrivals_;   // [owner][the other rank]: contributions, then results
  std::vector<float> contributions_;      // [owner][sender][element]
  std::vector<float> reduced_, changes_;  // [owner][element]
  std::vector<RangeKind> kinds_;
  std::vector<uint8_t> held_;
  std::vector<uint32_t> to_fetch_;
  std::vector<const std::byte*> messages_;
  std::vector<std::span<const std::byte>> encoded_;  // by owner, of this step
};

}  // namespace unisono::sim

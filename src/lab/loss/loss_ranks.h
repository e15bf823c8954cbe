// Simulates ranks that train with a sharded optimizer over lossy links. The estimator, the arrival bitmaps and the state of
// each rank are the production code; links and ablations are simulated. It runs in one thread and has no clock.
//
// The caller writes the contributions and reads the updates. The parameters belong to the ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lossy/estimator.h"
#include "lossy/range_arrivals.h"
#include "sim/loss_pattern.h"
#include "training/sharded/sharded_state.h"

namespace unisono::sim {

// The data that owners send after an update: the new values, or how these changed since the last step (an ablation).
enum class Travel : uint8_t { values = 0, differences = 1 };
// The action of a replica if a range did not arrive: it keeps the old values, or sets them to zero (an ablation).
enum class Missed : uint8_t { stale = 0, zero = 1 };

struct LossRanksOptions {
  LossModel model = {};
  uint32_t peers = 8;
  // ranges: the number of ranges in a shard. elements: the number of elements in a range. If a shard has several ranges, it
  // must be a multiple of 16 and at least 128.
  uint32_t ranges = 1, elements = 16;
  uint64_t seed = 0;  // seed of the losses
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::hold;  // must be hold, own or zero
  uint32_t stale_max = 0;
  Travel travel = Travel::values;
  Missed missed = Missed::stale;
  float rate = 1;  // learning rate of gradient descent
};

// Counts of one half of a step, over all ranks. contribute() is the first half, update_and_broadcast() is the second.
struct HalfStep {
  uint64_t sent = 0, lost = 0;                // numbers of datagrams
  uint64_t full = 0, reduced = 0, empty = 0;  // numbers of ranges; counted in the first half only
  uint64_t fetched = 0;                       // number of ranges; counted in the second half only
};

class LossRanks {
 public:
  // Makes ranks whose shards all begin with `values`, which has one value for each element of a shard. Fails with Code::invalid
  // if there is no geometry with these sizes, or if the loss model names a rank that does not exist.
  static Result<LossRanks> make(const LossRanksOptions& options, std::span<const float> values);

  uint32_t shard_elements() const { return options_.ranges * options_.elements; }
  uint32_t datagram_elements() const { return options_.elements; }
  const LossRanksOptions& options() const { return options_; }

  // Returns the memory for the contribution that `sender` makes to the shard of `owner` in this step. The caller writes the
  // contribution there.
  std::span<float> contribution(Rank owner, Rank sender) {
    return std::span(contributions_).subspan((size_t{owner} * options_.peers + sender) * shard_elements(), shard_elements());
  }
  // Sends the contributions to the owners. Call this once in each step.
  HalfStep contribute(uint64_t step);
  // Lets every owner reduce the contributions that arrived, with this estimator. update_and_broadcast() uses the results of the
  // last call. If held() is true for a range, the range has no result.
  void reduce(Estimator estimator);
  std::span<const float> reduced(Rank owner) const {
    return std::span(reduced_).subspan(size_t{owner} * shard_elements(), shard_elements());
  }
  RangeKind kind(Rank owner, uint32_t range) const { return kinds_[size_t{owner} * options_.ranges + range]; }
  bool held(Rank owner, uint32_t range) const { return held_[size_t{owner} * options_.ranges + range] != 0; }
  // Returns how many contributions of this rank arrived in this step, summed over all owners.
  uint64_t delivered(Rank sender) const;
  double effective_contributors() const { return effective_.value(); }

  // Lets every owner update its shard with the reduced gradients, and send it to all ranks. Afterwards, ranks fetch the ranges
  // that are too old. lossless: true if everything is delivered.
  HalfStep update_and_broadcast(uint64_t step, bool lossless);
  // Returns by how much the last update changed the values of the owners, shard after shard.
  std::span<const float> changes() const { return changes_; }

  // Returns the copy that `rank` has of the shard of `owner`.
  std::span<const float> copy(Rank rank, Rank owner) {
    return std::span<const float>(states_[rank].parameters()).subspan(size_t{owner} * shard_elements(), shard_elements());
  }
  // True if the range arrived at `receiver` in the last step.
  bool arrived(Rank owner, Rank receiver, uint32_t range) const {
    return arrivals_[size_t{owner} * options_.peers + receiver].arrived(range);
  }
  const ShardedState& state(Rank rank) const { return states_[rank]; }
  // True if the copies of all ranks are bit-identical to the values of the owners.
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
  // [owner][other rank]: which ranges of the contribution, and later of the result, have arrived
  std::vector<RangeArrivals> arrivals_;
  std::vector<float> contributions_;      // [owner][sender][element]
  std::vector<float> reduced_, changes_;  // [owner][element]
  std::vector<RangeKind> kinds_;
  std::vector<uint8_t> held_;
  std::vector<uint32_t> to_fetch_;
  std::vector<const std::byte*> messages_;
  std::vector<std::span<const std::byte>> encoded_;  // by owner: its encoded shard in this step
};

}  // namespace unisono::sim

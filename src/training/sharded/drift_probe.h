// Measures drift (the difference between replicas). Every few steps, all ranks exchange their values of a few elements of each
// shard. Each rank then computes how far the replicas are from the values of the owners and from each other. It compares the
// result with the formulae of drift.h. This code does not communicate: the caller exchanges the buffers, reliably.
//
// The choice of the elements depends only on the run, the step and the shard. Therefore all ranks choose the same elements
// without communication.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/sharded/drift.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// The observations of one rank. It sends these numbers together with its values, in single precision.
struct DriftInputs {
  double loss = 0;           // Other ranks sent ranges to this rank; this share of them was lost.
  double recovery = -1;      // The result of recovery_from_ages(). NaN or negative: the recovery is not known.
  double second_moment = 0;  // second moment of the updates that this rank made to its shard (UpdateStatistics)
  double rho = 0;
};

struct ShardDrift {
  double owner = 0, pair = 0;  // The measured O and P. `pair` is NaN if there are fewer than two replicas.
  // Like `pair`, but it covers only pairs in which exactly one replica received the range in the last step. NaN if there is no
  // such pair.
  double gap = 0;
  double owner_expected = 0, pair_expected = 0;
  double paper = 0;  // paper_form() times the second moment of one update
  double second_moment = 0, rho = 0;
};
struct DriftReport {
  uint32_t step = 0;
  DriftLaw law{};  // These are means over the ranks. rho is not set, because it is different for each shard.
  // These are means over the elements of all shards, except for `gap`, which is the mean over the pairs of all shards.
  ShardDrift all{};
  // The mean over all pairs of ranks, including pairs with the owner. If the shards are equally large, this is pair_mean().
  double all_pairs = 0;
  std::vector<ShardDrift> shards{};  // Indexed by owner. All numbers are 0 for a shard that has no elements.
  // Returns true if the drift is far larger than expected. The caller should then send all values again.
  bool is_excessive() const { return all.owner > 2 * all.owner_expected; }
};

class DriftProbe {
 public:
  DriftProbe(const RangeGeometry& geometry, uint64_t run_id, uint32_t samples = 256)
      : geometry_(geometry), run_id_(run_id), samples_(samples) {}

  // Chooses `samples` elements of the owner's shard. They are spread evenly, and their order is ascending. If the shard has
  // fewer elements, chooses all of them.
  void sample(uint32_t step, Rank owner, std::vector<uint64_t>& elements) const;
  // Returns how many floats the buffer of one rank has.
  size_t buffer_elements() const;
  // Fills the buffer of this rank, which has buffer_elements() floats. Call this between two steps, after ranges have been
  // fetched.
  void pack(const ShardedState& state, const DriftInputs& inputs, std::span<float> buffer);
  // `gathered` consists of the buffers of all ranks, one after the other. `stale_max` is ShardedStateOptions::stale_max.
  // Returns invalid if the size is wrong, or if the buffers are from different steps.
  Result<DriftReport> evaluate(std::span<const float> gathered, uint32_t stale_max) const;

 private:
  struct Gaps {
    double sum = 0, count = 0;
    double mean() const { return sum / count; }  // Returns NaN if there are no gaps.
  };

  uint32_t count(Rank owner) const;
  // Returns how many samples all shards have together.
  size_t samples() const;
  // `at` is the position of the shard's first sample in a buffer. The pairs of the shard are added to `gaps`.
  ShardDrift measure(std::span<const float> gathered, Rank owner, size_t at, Gaps& gaps) const;

  RangeGeometry geometry_;
  uint64_t run_id_;
  uint32_t samples_;
  std::vector<uint64_t> elements_;
};

// Statistics of the updates to the shard of this rank. They always cover the same few elements. They use the values that other
// ranks decode, not the exact ones.
class OwnUpdates {
 public:
  OwnUpdates(uint64_t run_id, uint32_t samples = 256, uint32_t window = 1000)
      : run_id_(run_id), samples_(samples), statistics_(window) {}
  // Call this in each step, after encode(). The first call only stores the values from which the updates are counted. After
  // ShardedState::rebuild(), make a new object.
  void add(const ShardedState& state);
  const UpdateStatistics& statistics() const { return statistics_; }

 private:
  uint64_t run_id_;
  uint32_t samples_;
  UpdateStatistics statistics_;
  std::vector<uint64_t> elements_;
  std::vector<float> values_, updates_;
};

}  // namespace unisono

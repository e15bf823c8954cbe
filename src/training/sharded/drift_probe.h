// Measures drift. Every few steps, all ranks exchange their values of a few elements of every shard. From these, all ranks
// compute the distance of replicas from the owners and from each other, and compare it with the formulae. Pure: the caller
// exchanges the buffers, reliably.
//
// The choice of elements depends only on run, step and shard, so all ranks choose the same without communication.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/sharded/drift.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// A rank's own observations, sent with its values in single precision.
struct DriftInputs {
  double loss = 0;           // lost share of the ranges of other ranks' shards
  double recovery = -1;      // recovery_from_ages() of histograms summed over many steps; NaN or < 0: not known
  double second_moment = 0;  // of the own shard's updates: UpdateStatistics
  double rho = 0;
};

struct ShardDrift {
  double owner = 0, pair = 0;  // measured O and P; pair: NaN without two replicas
  // As pair, but only where exactly one of the two received the range in the last step; NaN if there is no such range.
  double gap = 0;
  double owner_expected = 0, pair_expected = 0;
  double paper = 0;  // 2p / (1 + p) times the second moment of one update: see drift.h
  double second_moment = 0, rho = 0;
};
struct DriftReport {
  uint32_t step = 0;
  DriftLaw law{};                    // means over the ranks; without rho, which differs per shard
  ShardDrift all{};                  // means over the elements of all shards; gap: over all such pairs
  double all_pairs = 0;              // mean over all pairs of ranks, owners included: pair_mean() for equal shards
  std::vector<ShardDrift> shards{};  // by owner; zeros for a shard without elements
  // Drift is far above its expectation, so lossy delivery should be switched off.
  bool beyond() const { return all.owner > 2 * all.owner_expected; }
};

class DriftProbe {
 public:
  DriftProbe(const RangeGeometry& geometry, uint64_t run_id, uint32_t samples = 256)
      : geometry_(geometry), run_id_(run_id), samples_(samples) {}

  // Chooses elements of the tensor, ascending, spread evenly over the shard: `samples`, or all of a smaller shard.
  void sample(uint32_t step, Rank owner, std::vector<uint64_t>& elements) const;
  // Elements of one rank's buffer.
  size_t buffer_elements() const;
  // Call between two steps, after fetches. buffer has buffer_elements() elements.
  void pack(const ShardedState& state, const DriftInputs& inputs, std::span<float> buffer);
  // gathered: all ranks' buffers, concatenated. stale_max: as in the states. invalid: wrong size, or buffers of different
  // steps.
  Result<DriftReport> evaluate(std::span<const float> gathered, uint32_t stale_max) const;

 private:
  struct Gaps {
    double sum = 0, count = 0;
    double mean() const { return sum / count; }  // NaN if empty
  };

  uint32_t count(Rank owner) const;
  // Samples of all shards together.
  size_t samples() const;
  // at: index of the shard's first sample. gaps: accumulates.
  ShardDrift measure(std::span<const float> gathered, Rank owner, size_t at, Gaps& gaps) const;

  RangeGeometry geometry_;
  uint64_t run_id_;
  uint32_t samples_;
  std::vector<uint64_t> elements_;
};

// Statistics of the own shard's updates as receivers would see them without loss, of the same few elements in every step.
class OwnUpdates {
 public:
  OwnUpdates(uint64_t run_id, uint32_t samples = 256, uint32_t window = 1000)
      : run_id_(run_id), samples_(samples), statistics_(window) {}
  // Call in each step, after encode(). The first call only sets the starting values. After rebuild(), make a new object.
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

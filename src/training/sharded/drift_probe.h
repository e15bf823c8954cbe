// Drift as it is: every now and then each rank tells the others its values of a few elements of every shard, and all compute
// from these how far replicas are from the owners and from each other, beside what the formulae say. Pure: the caller gathers
// the buffers, reliably.
//
// Which elements depends on the run, the step and the shard alone, so all ranks pick the same ones without a word.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/sharded/drift.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// What a rank has seen itself, and tells the others with its values. In single precision on its way.
struct DriftInputs {
  double loss = 0;           // share of ranges of others' shards that did not arrive, when they were sent
  double recovery = -1;      // recovery_from_ages, of histograms summed over many steps; NaN or < 0: not known
  double second_moment = 0;  // of the own shard's updates: UpdateStatistics
  double rho = 0;
};

struct ShardDrift {
  double owner = 0, pair = 0;  // measured O and P; pair: NaN without two replicas
  double gap = 0;  // as pair, but only where one of the two received the range in the last step and the other did not; NaN if
                   // there are none
  double owner_expected = 0, pair_expected = 0;
  double paper = 0;  // 2p / (1 + p) with the second moment of one update: see drift.h
  double second_moment = 0, rho = 0;
};
struct DriftReport {
  uint32_t step = 0;
  DriftLaw law{};                    // without rho, which each shard has its own of: means over the ranks
  ShardDrift all{};                  // means over the elements of all shards; gap: over all such pairs
  double all_pairs = 0;              // over all pairs of ranks, owners too: what pair_mean() is for shards of one size
  std::vector<ShardDrift> shards{};  // by owner; zeros for a shard without elements
  // Lossy delivery does not do what it is expected to do, and is better left.
  bool beyond() const { return all.owner > 2 * all.owner_expected; }
};

class DriftProbe {
 public:
  DriftProbe(const RangeGeometry& geometry, uint64_t run_id, uint32_t samples = 256)
      : geometry_(geometry), run_id_(run_id), samples_(samples) {}

  // Elements of the tensor, ascending, spread evenly over the shard: `samples`, or all of a smaller shard.
  void sample(uint32_t step, Rank owner, std::vector<uint64_t>& elements) const;
  // Of one rank's buffer.
  size_t buffer_elements() const;
  // state: between two steps, after fetches. buffer: buffer_elements().
  void pack(const ShardedState& state, const DriftInputs& inputs, std::span<float> buffer);
  // All ranks' buffers, one behind the other. stale_max: as the states have it. invalid: another size, or buffers of different
  // steps.
  Result<DriftReport> evaluate(std::span<const float> gathered, uint32_t stale_max) const;

 private:
  struct Gaps {
    double sum = 0, count = 0;
    double mean() const { return sum / count; }  // NaN without any
  };

  uint32_t count(Rank owner) const;
  // Of all shards together.
  size_t samples() const;
  // at: of the shard's first sample. gaps: grows.
  ShardDrift measure(std::span<const float> gathered, Rank owner, size_t at, Gaps& gaps) const;

  RangeGeometry geometry_;
  uint64_t run_id_;
  uint32_t samples_;
  std::vector<uint64_t> elements_;
};

// The own shard's updates, as the others would see them if nothing were lost: of the same few elements in every step.
class OwnUpdates {
 public:
  OwnUpdates(uint64_t run_id, uint32_t samples = 256, uint32_t window = 1000)
      : run_id_(run_id), samples_(samples), statistics_(window) {}
  // In each step, after encode(). The first only says where it begins; after rebuild() make a new one.
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

// Steps of virtual ranks under loss, measured: what the estimators give of fixed gradients, how far replicas drift, and where
// training settles.
//
// Everything is counted in the run itself; the formulae that it is to be compared with are in lab/loss/loss_law.h and
// training/sharded/drift.h.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "lab/loss/loss_ranks.h"
#include "sim/loss_statistics.h"

namespace unisono::sim {

struct LossSettings {
  LossRanksOptions ranks = {};  // its seed decides gradients, too; its rate is not used
  uint64_t steps = 1000;
  uint64_t burn_in = 100;  // the first ones, which are not measured
  double rho = 0;          // of the updates in run_drift: their autocorrelation from step to step
};
// Ranges and elements that give enough samples in little time, for so many ranks.
void choose_sizes(LossRanksOptions& options);
// invalid: what does not go together, named.
Status check(const LossSettings& settings);

struct LossWatch {
  uint64_t curve_points = 100;
  std::function<void(uint64_t steps)> progress = nullptr;  // called now and then, with the steps done since the last call
};

inline constexpr std::array estimators{Estimator::stratified, Estimator::count, Estimator::count_all,
                                       Estimator::horvitz_thompson, Estimator::zero_fill};
const char* name(Estimator estimator);

// Fixed, unequal gradients; in every shard the owner's is fixed_gradient(0, N), that of the rank d positions after it
// fixed_gradient(d, N).
double fixed_gradient(uint32_t distance, uint32_t world);
std::vector<double> fixed_gradients(uint32_t world);  // by distance

// The errors of one estimator, over all ranges that were not held.
struct EstimateMeasures {
  BlockMeans deviation;  // from the true mean
  BlockMeans square;     // of that
  // About the mean of all blocks.
  BlockMeans variance() const;
};
struct EstimatesOutcome {
  std::array<EstimateMeasures, estimators.size()> of{};  // as `estimators`
  BlockMeans full, reduced, empty;                       // shares of ranges
  BlockMeans loss;                                       // share of contributions
  double effective = 0;                                  // N_eff
  double delivered_ratio = 1;                            // of the sender of which most arrived, to the one of which least did

  void append(const EstimatesOutcome& other, size_t runs);
};
// Every estimator under the same losses. No values are broadcast.
Result<EstimatesOutcome> run_estimates(const LossSettings& settings, const LossWatch& watch = {});

struct DriftPoint {
  uint64_t step = 0;  // the last one of those that it is the mean of
  double owner = 0, pair = 0;
};
// By how much something grew from the middle of a run to its end: the slope through the means of its blocks.
struct Growth {
  double value = 0, standard_error = 0;
};
Growth growth_of(const BlockMeans& values);
Growth mean_of(const std::vector<Growth>& runs);

struct DriftOutcome {
  // Mean squared differences per element, after each step and its fetches. pair: of replicas that do not own the range; none
  // with two ranks.
  BlockMeans owner, pair;
  BlockMeans pair_mean;  // of all ranks, over the whole vector
  BlockMeans consensus;
  BlockMeans fresh;               // fresh value minus stale copy, where of two receivers just one received: as its square
  BlockMeans age, fetched, loss;  // per range of another's shard; of results
  BlockMeans noise;  // squared error of the estimate of a mean whose contributions have independent noise of variance 1
  BlockMeans update_square, update_product;  // of the owners' updates: with themselves, and with those of the step before
  std::vector<uint64_t> ages;                // how many ranges had which age; the last entry counts all older ones
  std::vector<DriftPoint> curve = {};
  std::vector<Growth> owner_growth = {}, pair_growth = {};  // of each run
  bool healed = true;  // after one more step in which every result arrived, all replicas are the same to the bit
  double rho = 0;      // as set

  // sigma_u^2, and how much of it has the autocorrelation rho^|s|; the rest is new in each step.
  double update_moment() const { return update_square.mean(); }
  double correlated_moment() const { return rho == 0 ? 0 : update_product.mean() / rho; }
  // Combines a formula f, in units of the moment: f(rho) (`correlated`) for the correlated part, f(0) (`independent`) for the
  // rest.
  double compose(double correlated, double independent) const;
  void append(const DriftOutcome& other);
};
// Gradients are a common process with autocorrelation rho and variance 1, and noise of variance 1 of each rank.
Result<DriftOutcome> run_drift(const LossSettings& settings, const LossWatch& watch = {});

// Rank i is drawn to its own target i^2: its gradient is its own, perhaps stale, copy minus that; steps of 0.05
// (checks C1 and C2 of docs/design/methods/packet_loss.md).
struct FixedPointOutcome {
  std::vector<BlockMeans> values;  // by owner: the values of the owner's own copy
  void append(const FixedPointOutcome& other);
};
inline double target_of(Rank rank) { return static_cast<double>(rank) * rank; }
Result<FixedPointOutcome> run_fixed_point(const LossSettings& settings, const LossWatch& watch = {});

}  // namespace unisono::sim

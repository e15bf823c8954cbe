// Measures simulated ranks under loss in three ways: the estimates of fixed gradients, the drift of replicas (how far they
// differ from their owners and from each other), and the point where training settles.
//
// All numbers are counted in the run. The formulae to compare them with are in lab/loss/loss_law.h and
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
  LossRanksOptions ranks = {};  // ranks.seed is also the seed of the gradients; ranks.rate is not used
  uint64_t steps = 1000;
  uint64_t burn_in = 100;  // this many steps at the start are not measured
  double rho = 0;          // for run_drift: the correlation between updates of consecutive steps
};
// Sets `ranges` and `elements` such that a run with options.peers ranks gets enough samples in a short time.
void choose_sizes(LossRanksOptions& options);
// Fails with Code::invalid if settings contradict each other; the message names these settings.
Status check(const LossSettings& settings);

struct LossWatch {
  uint64_t curve_points = 100;
  // This is called from time to time, with the number of steps made since the last call.
  std::function<void(uint64_t steps)> progress = nullptr;
};

inline constexpr std::array estimators{Estimator::stratified, Estimator::count, Estimator::count_all,
                                       Estimator::horvitz_thompson, Estimator::zero_fill};
const char* name(Estimator estimator);

// Fixed gradients that differ between ranks. In the shard of rank r, the rank (r + d) mod N (at distance d from the owner) has
// the gradient fixed_gradient(d, N).
double fixed_gradient(uint32_t distance, uint32_t world);
std::vector<double> fixed_gradients(uint32_t world);  // indexed by distance from the owner

// The errors of one estimator, over all ranges that were not empty.
struct EstimateMeasures {
  BlockMeans deviation;  // difference of estimate and true mean
  BlockMeans square;     // squared difference of estimate and true mean
  // Returns the variance of the estimate around its mean over all blocks.
  BlockMeans variance() const;
};
struct EstimatesOutcome {
  std::array<EstimateMeasures, estimators.size()> of{};  // in the order of `estimators`
  BlockMeans full, reduced, empty;                       // fractions of all ranges
  BlockMeans loss;                                       // fraction of the contributions that were lost
  double effective = 0;                                  // N_eff, the effective number of contributors
  double delivered_ratio = 1;  // contributions that arrived from the best sender, divided by those from the worst sender

  void append(const EstimatesOutcome& other, size_t runs);
};
// Measures all estimators under the same losses. Owners do not send values back.
Result<EstimatesOutcome> run_estimates(const LossSettings& settings, const LossWatch& watch = {});

struct DriftPoint {
  uint64_t step = 0;  // this point is a mean over several steps; this is the number of the last one
  double owner = 0, pair = 0;
};
// By how much a value grows in the second half of a run, according to the slope of a line through its block means.
struct Growth {
  double value = 0, standard_error = 0;
};
Growth growth_of(const BlockMeans& values);
Growth mean_of(const std::vector<Growth>& runs);

struct DriftOutcome {
  // Mean squared differences for one element, after each step and its fetches.
  // - owner: between an owner and a replica
  // - pair: between two replicas, where neither of the two ranks owns the range; empty if there are only two ranks
  BlockMeans owner, pair;
  BlockMeans pair_mean;  // mean squared difference between two ranks, over all pairs of ranks and all elements
  BlockMeans consensus;
  BlockMeans fresh;  // (fresh value - stale copy)^2 in the cases in which exactly one of two receivers got the range
  // age, fetched: for a range of another rank's shard; loss: fraction of the results that were lost
  BlockMeans age, fetched, loss;
  // Squared error with which the common value is estimated. Each contribution is the common value plus noise with variance 1.
  BlockMeans noise;
  BlockMeans update_square, update_product;  // an owner's update squared, and its product with the update of the step before
  std::vector<uint64_t> ages;                // how many ranges had each age; the last entry also counts all higher ages
  std::vector<DriftPoint> curve = {};
  std::vector<Growth> owner_growth = {}, pair_growth = {};  // one entry for each run
  bool healed = true;                                       // after one more step without loss, all replicas are bit-identical
  double rho = 0;                                           // LossSettings::rho

  // update_moment() is sigma_u^2. correlated_moment() is the part of it that has the autocorrelation rho^|s|. The rest is
  // independent from step to step.
  double update_moment() const { return update_square.mean(); }
  double correlated_moment() const { return rho == 0 ? 0 : update_product.mean() / rho; }
  // Combines two values of a formula for updates that have a correlated and an independent part. correlated: the formula's
  // value for autocorrelation rho. independent: its value for autocorrelation 0. Both are in units of the second moment of an
  // update. Returns correlated_moment() * correlated + (update_moment() - correlated_moment()) * independent.
  double compose(double correlated, double independent) const;
  void append(const DriftOutcome& other);
};
// Measures drift. The gradient of a rank is the sum of two parts with variance 1: one is common to all ranks and has the
// autocorrelation rho, the other is independent noise.
Result<DriftOutcome> run_drift(const LossSettings& settings, const LossWatch& watch = {});

// The result of gradient descent with step size 0.05, for checks C1 and C2 of docs/design/methods/packet_loss.md. Rank i has
// the target i^2. Its gradient is its copy of the parameters (which may be stale) minus its target.
struct FixedPointOutcome {
  std::vector<BlockMeans> values;  // by owner: the values that it has in its shard
  void append(const FixedPointOutcome& other);
};
inline double target_of(Rank rank) { return static_cast<double>(rank) * rank; }
Result<FixedPointOutcome> run_fixed_point(const LossSettings& settings, const LossWatch& watch = {});

}  // namespace unisono::sim

// Drift tells how far the replicas of a shard are from the values of its owner, and from each other. It is a mean squared
// difference per element. This file has the formulae for it, and statistics of updates.
//
// O is the drift between owner and replica, and P is the drift between two replicas. The formulae hold if owners broadcast
// values, so that a lost value leaves the old value in place (docs/design/methods/packet_loss.md, "Drift"). paper_form() is the
// formula that later articles attribute to arXiv 2507.07114; this is unconfirmed. It uses another sigma^2, which that page
// explains.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct DriftLaw {
  double loss = 0;  // p: probability that one receiver does not get a range (the elements of one datagram) in one step
  double rho = 0;   // Autocorrelation of the updates. Updates that are s steps apart have the correlation rho^s.
  // r: probability that a range that was lost arrives in the next step. < 0: losses are independent over time, so r is 1 - p.
  double recovery = -1;
  double both = -1;  // c: probability that two receivers both miss a range. < 0: their losses are independent, so c is p * p.
  uint32_t stale_max = 0;  // A: a range is fetched before its age reaches this number of steps. 0: ranges are never fetched.
};
// Return O and P in units of sigma_u^2, the second moment of one update (not about its mean). The result is infinite if a lost
// range never arrives again. It is NaN if the law is impossible: p is outside [0, 1), or |rho| > 1, or this p does not allow
// the given r or c. pair_drift() also returns NaN if `both` is combined with `recovery` or `stale_max`, because no formula is
// known for this.
double owner_drift(const DriftLaw& law);
double pair_drift(const DriftLaw& law);
// Returns how many reliable fetches there are per range and step.
double fetches_per_step(const DriftLaw& law);
// Return O and P when `steps` steps have passed since all replicas were equal. They assume that rho = 0 and that losses are
// independent.
double owner_drift_after(double loss, uint32_t steps);
double pair_drift_after(double loss, uint32_t steps);
// Convert O and P to measures of a vector that consists of `world` equal shards. pair_mean() returns the mean drift over all
// pairs of ranks. consensus_distance() returns (1/N) sum |x_i - mean|^2 per element. For one rank, both return 0.
double pair_mean(uint32_t world, double owner, double pair);
double consensus_distance(uint32_t world, double owner, double pair);
double paper_form(double loss);  // Returns 2p / (1 + p).
// Returns what the drift between two replicas would be if owners sent differences instead of values. It would be a random walk,
// which grows by 2 p (1 - p) per step.
double difference_drift(double loss, uint64_t steps);

// Estimates the recovery r by maximum likelihood from P(age >= m) = p (1 - r)^(m - 1). histogram[m] is the number of ranges
// whose age is m; the last entry also counts all older ranges. age_limit is the highest age that a range reaches before it is
// fetched; 0: no limit.
//
// Returns NaN if no range is stale, or if age_limit is 1. Also returns NaN if the histogram has fewer than 3 entries, or fewer
// than age_limit + 1.
double recovery_from_ages(std::span<const uint64_t> histogram, uint32_t age_limit = 0);

// Estimates sigma_u^2 and rho of the updates that an owner makes. It uses some elements of the shard, and the last `window`
// steps.
class UpdateStatistics {
 public:
  explicit UpdateStatistics(uint32_t window = 1000) : window_(window) {}
  // Adds the updates of one step. Pass the same elements in each call. If the number of elements changes, the statistics start
  // again.
  void add(std::span<const float> updates);
  // Returns NaN if add() was never called.
  double second_moment() const;
  // Returns the correlation of successive updates (not about their mean). Returns 0 if there were fewer than two steps, or if
  // all updates are 0.
  double autocorrelation() const;
  uint64_t steps() const { return steps_; }

 private:
  uint32_t window_;
  uint64_t steps_ = 0;
  std::vector<float> last_;
  // Ring buffers with one number for each of the last steps. squares_: the mean square of the step's updates. products_: the
  // mean product of the step's updates with the updates of the step before.
  std::vector<double> squares_, products_;
};

}  // namespace unisono
